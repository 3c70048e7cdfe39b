//! Cells over HTTP: what persists, what is echoed, how a cell may end.

use serde_json::json;

use crate::support::{TestApp, wait_for};

#[tokio::test]
async fn variables_persist_from_one_cell_to_the_next() {
    let app = TestApp::start().await;
    assert_eq!(app.run("s", "x = 10").await["output"], "");
    assert_eq!(app.run("s", "x += 5").await["output"], "");
    let answer = app.run("s", "x").await;
    assert_eq!(answer["output"], "15\n");
    assert_eq!(answer["status"], "ok");
    assert_eq!(answer["state"], "kept");
    assert_eq!(answer["results"], json!([{"text/plain": "15"}]));
    assert_eq!(answer["execution_count"], 3);
    assert_eq!(answer["error"], json!(null));
    assert_eq!(
        answer["sync"],
        json!({"uploaded": 0, "unchanged": 0, "skipped": []})
    );
}

#[tokio::test]
async fn two_sessions_and_two_users_share_nothing() {
    let app = TestApp::start().await;
    app.run("one", "x = 1; open('f', 'w').write('1')").await;
    let other = app
        .run("two", "import os; print('x' in globals(), os.listdir())")
        .await;
    assert_eq!(other["output"], "False []\n");
    let body = json!({"user_id": "v", "session_id": "one", "code": "import os; print('x' in globals(), os.listdir())"});
    let (_, stranger) = app.post("/v1/execute", body).await;
    assert_eq!(stranger["output"], "False []\n");
}

#[tokio::test]
async fn output_is_what_a_person_would_have_seen_in_order() {
    let app = TestApp::start().await;
    let code = "import sys, os, subprocess\nprint('a')\nprint('b', file=sys.stderr)\nos.write(1, b'c\\n')\nsubprocess.run(['echo', 'd'])\nprint('e')\n'end'";
    let answer = app.run("s", code).await;
    assert_eq!(answer["output"], "a\nb\nc\nd\ne\n'end'\n");
    assert_eq!(answer["stdout"], "a\nc\nd\ne\n");
    assert_eq!(answer["stderr"], "b\n");
}

#[tokio::test]
async fn an_exception_is_a_result_with_its_source_line_and_keeps_the_variables() {
    let app = TestApp::start().await;
    let answer = app.run("s", "x = 1\ndef f():\n    return 1 / 0\nf()").await;
    assert_eq!(answer["status"], "error");
    assert_eq!(answer["state"], "kept");
    assert_eq!(answer["error"]["name"], "ZeroDivisionError");
    let traceback = answer["error"]["traceback"].as_str().unwrap();
    assert!(
        traceback.contains("return 1 / 0") && traceback.contains("<cell 1>"),
        "{traceback}"
    );
    assert!(!traceback.contains("cellblock"), "{traceback}");
    assert_eq!(answer["output"].as_str().unwrap(), traceback);
    assert_eq!(app.run("s", "x").await["output"], "1\n");
}

#[tokio::test]
async fn top_level_await_works() {
    let app = TestApp::start().await;
    let answer = app
        .run("s", "import asyncio\nawait asyncio.sleep(0.01, 'slept')")
        .await;
    assert_eq!(answer["output"], "'slept'\n");
}

#[tokio::test]
async fn input_is_refused_with_a_clear_word() {
    let app = TestApp::start().await;
    let answer = app.run("s", "input('name? ')").await;
    assert_eq!(answer["error"]["name"], "EOFError");
    assert!(
        answer["error"]["value"]
            .as_str()
            .unwrap()
            .contains("input()"),
        "{answer}"
    );
}

#[tokio::test]
async fn pandas_and_a_plot_come_back_as_rich_results() {
    let app = TestApp::start().await;
    let code = "import pandas as pd, matplotlib.pyplot as plt\ndf = pd.DataFrame({'a': [1, 2]})\nplt.plot(df.a)\nplt.show()\ndf";
    let answer = app
        .run_with("s", code, json!({"timeout_seconds": 60}))
        .await;
    assert_eq!(answer["status"], "ok", "{answer}");
    let results = answer["results"].as_array().unwrap();
    assert!(
        results[0]["image/png"]
            .as_str()
            .unwrap()
            .starts_with("iVBOR"),
        "no picture"
    );
    assert!(
        results[1]["text/html"].as_str().unwrap().contains("<table"),
        "no table"
    );
    assert_eq!(
        answer["artifacts"],
        json!([]),
        "a cache showed up as an artifact"
    );
}

#[tokio::test]
async fn output_over_the_limit_is_cut_with_a_mark() {
    let app = TestApp::start_with(&[("MAX_OUTPUT_BYTES", "2000")]).await;
    for code in [
        "print('x' * 100_000)",
        "import subprocess; subprocess.run('yes | head -c 3000000', shell=True); None",
    ] {
        let answer = app.run("s", code).await;
        assert_eq!(answer["truncated"], true);
        let output = answer["output"].as_str().unwrap();
        assert!(
            output.len() < 2200 && output.ends_with("[output truncated: more than 2000 bytes]\n"),
            "{output}"
        );
        assert_eq!(answer["status"], "ok");
    }
}

#[tokio::test]
async fn a_cell_that_runs_too_long_is_stopped_and_keeps_its_variables() {
    let app = TestApp::start().await;
    let answer = app
        .run_with(
            "s",
            "x = 1\nwhile True: pass",
            json!({"timeout_seconds": 0.5}),
        )
        .await;
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("timeout"), &json!("kept"))
    );
    assert_eq!(app.run("s", "x").await["output"], "1\n");
}

#[tokio::test]
async fn a_background_child_that_keeps_stdout_open_does_not_hold_the_answer_back() {
    let app = TestApp::start().await;
    let code = "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\nprint('started')";
    let answer = app.run("s", code).await;
    assert_eq!(answer["output"], "started\n");
    assert!(answer["duration_ms"].as_f64().unwrap() < 30_000.0);
    assert_eq!(
        app.run("s", "child.poll() is None").await["output"],
        "True\n"
    );
}

#[tokio::test]
async fn a_cell_that_its_worker_never_took_up_does_not_run_after_its_interrupt() {
    let app = TestApp::start().await;
    let code = "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'until [ -e go ]; do sleep 0.01; done; kill -STOP $PPID; touch stopped'])";
    app.run("s", code).await;
    std::fs::write(app.only_workspace().join("go"), "").unwrap();
    let stopped = app.only_workspace().join("stopped");
    wait_for("the worker to be stopped", || {
        stopped.exists().then_some(())
    })
    .await;
    let cell = app.run_with("s", "open('ran', 'w')", json!({"timeout_seconds": 1}));
    let answer = cell.await;
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("timeout"), &json!("lost")),
        "{answer}"
    );
    assert!(
        !app.only_workspace().join("ran").exists(),
        "it ran after its time was over"
    );
    assert_eq!(app.run("s", "1 + 1").await["output"], "2\n");
}

#[tokio::test]
async fn an_exit_after_a_childs_oom_is_not_called_oom() {
    let app = TestApp::start_with(&[("SANDBOX_MEMORY_MB", "256")]).await;
    let hog = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'b = bytearray(1 << 30)']).returncode";
    assert_eq!(app.run("s", hog).await["output"], "-9\n");
    let answer = app.run("s", "import os; os._exit(4)").await;
    assert_eq!(answer["reason"], "exit", "{answer}");
}
