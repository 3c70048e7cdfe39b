//! Programs beside cells: their output, their limits, and that what was ended is gone, seen from the host.

use std::time::Duration;

use serde_json::json;

use super::sessions::{done, open, step};
use crate::support::{TestApp, wait_for};

/// Whether any process of this host, in whatever container, has this word in its command line.
fn runs_on_host(word: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let name = entry.file_name();
        let is_process = name
            .to_string_lossy()
            .bytes()
            .all(|byte| byte.is_ascii_digit());
        let is_this_test = name.to_string_lossy() == std::process::id().to_string();
        is_process
            && !is_this_test
            && std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(word))
    })
}

/// A number of seconds that no other test sleeps.
fn unlike_any_other() -> String {
    let random = uuid::Uuid::new_v4().as_u128() % 1_000_000;
    format!("9{random:06}")
}

#[tokio::test]
async fn a_time_limit_ends_the_whole_tree_even_what_went_into_a_session_of_its_own() {
    let app = TestApp::start_with(&[("SBS_STEP_TIMEOUT_SEC", "1")]).await;
    let session = open(&app).await;
    let (child, hidden, nameless) = (unlike_any_other(), unlike_any_other(), unlike_any_other());
    // The last one has neither its parent nor its session nor its environment any more.
    let line = format!(
        "sleep {child} & setsid sleep {hidden} & (sleep {child} &) ; (env -i setsid sleep {nameless} &) ; wait; sleep 60"
    );
    let answer = done(&app, &session, "bash", &line).await;
    assert_eq!(answer["exit_code"], 124);
    for gone in [&child, &hidden, &nameless] {
        assert!(
            !runs_on_host(&format!("sleep\0{gone}")),
            "{gone} still runs"
        );
    }
    assert_eq!(
        done(&app, &session, "bash", "echo next").await["output"],
        "next\n"
    );
}

#[tokio::test]
async fn a_caller_that_hangs_up_ends_its_program() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    let seconds = unlike_any_other();
    let word = format!("sleep\0{seconds}");
    let body = json!({"sandbox_id": session, "type": "bash", "payload": {"cmd": format!("sleep {seconds}; true")}});
    let request = app
        .client
        .post(format!("{}/sessions/{session}/step", app.base))
        .json(&body);
    let call = tokio::spawn(request.send());
    wait_for("the program to run", || runs_on_host(&word).then_some(())).await;
    call.abort();
    wait_for("the program to go", || (!runs_on_host(&word)).then_some(())).await;
    assert_eq!(
        done(&app, &session, "bash", "echo next").await["output"],
        "next\n"
    );
}

#[tokio::test]
async fn programs_run_beside_a_cell_and_beside_each_other() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    let cell = done(
        &app,
        &session,
        "python",
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('cell done')",
    );
    let programs = async {
        let waiting = (0..50).map(|n| {
            let line = format!("while [ ! -e go ]; do sleep 0.05; done; echo {n}");
            let (app, session) = (&app, session.clone());
            async move { done(app, &session, "bash", &line).await }
        });
        let go = async {
            // All fifty wait by now, each in a shell of its own.
            loop {
                let count = done(&app, &session, "bash", "ls /proc | grep -c '^[0-9]'").await;
                if count["output"]
                    .as_str()
                    .unwrap()
                    .trim()
                    .parse::<u32>()
                    .unwrap()
                    >= 50
                {
                    break;
                }
            }
            done(&app, &session, "bash", "touch go").await
        };
        tokio::join!(futures_util::future::join_all(waiting), go).0
    };
    let (cell, programs) = tokio::join!(cell, programs);
    assert_eq!(cell["output"], "cell done\n");
    for (n, answer) in programs.iter().enumerate() {
        assert_eq!(answer["output"], format!("{n}\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_flood_of_output_is_cut_and_costs_the_service_no_memory() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    done(&app, &session, "bash", "yes | head -c 1000000").await;
    let before = app.service_memory_kb();
    let answer = done(
        &app,
        &session,
        "bash",
        "yes 0123456789012345678901234567890123456789012345678 | head -c 300000000; echo end >&2",
    )
    .await;
    assert_eq!(answer["exit_code"], 0);
    let length = answer["output"].as_str().unwrap().len();
    assert!((100_000..=201_000).contains(&length), "{length}");
    let grown = app.service_memory_kb().saturating_sub(before);
    assert!(grown < 20_000, "{grown} kB for 300 MB of output");
}

#[tokio::test]
async fn a_program_outlives_the_death_of_the_worker_but_not_a_reset_of_its_sandbox() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    let program = done(
        &app,
        &session,
        "bash",
        "touch on; while [ ! -e go ]; do sleep 0.02; done; echo survived",
    );
    let crash = async {
        while done(&app, &session, "bash", "ls").await["output"] != "on\n" {}
        let died = done(&app, &session, "python", "import os; os._exit(1)").await;
        assert_eq!(died["exit_code"], 137, "{died}");
        done(&app, &session, "bash", "touch go").await
    };
    let (program, _) = tokio::join!(program, crash);
    assert_eq!(program["output"], "survived\n", "{program}");
}

#[tokio::test]
async fn a_program_that_fills_the_workspace_finds_no_more_room_and_goes_on() {
    let app = TestApp::start_with(&[("MAX_WORKSPACE_SIZE_MB", "20")]).await;
    let session = open(&app).await;
    let line = "head -c 60000000 /dev/zero > big; echo $?; rm big; echo small > f; cat f";
    let answer = done(&app, &session, "bash", line).await;
    assert_eq!(answer["output"], "1\nsmall\n", "{answer}");
    let said = answer["error"].as_str().unwrap();
    assert!(said.contains("No space left on device"), "{answer}");
}

#[tokio::test]
async fn a_kill_of_the_service_ends_programs_that_nobody_waits_for_any_more() {
    let mut app = TestApp::start().await;
    let session = open(&app).await;
    let seconds = unlike_any_other();
    let word = format!("sleep\0{seconds}");
    let body = json!({"sandbox_id": session, "type": "bash", "payload": {"cmd": format!("sleep {seconds}; true")}});
    let request = app
        .client
        .post(format!("{}/sessions/{session}/step", app.base))
        .json(&body);
    let call = tokio::spawn(request.send());
    wait_for("the program to run", || runs_on_host(&word).then_some(())).await;
    app.kill();
    assert!(call.await.unwrap().is_err());
    wait_for("the program to go", || (!runs_on_host(&word)).then_some(())).await;
    app.launch().await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(
        done(&app, &session, "bash", "echo next").await["output"],
        "next\n"
    );
}

#[tokio::test]
async fn a_program_that_leaves_a_writer_behind_ends_and_the_sandbox_goes_on() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    done(&app, &session, "python", "x = 1").await;
    let answer = done(&app, &session, "bash", "yes & echo started >&2; exit 3").await;
    assert_eq!(
        (&answer["exit_code"], &answer["error"]),
        (&json!(3), &json!("started\n"))
    );
    assert_eq!(
        done(&app, &session, "python", "print(x)").await["output"],
        "1\n"
    );
    assert_eq!(
        done(&app, &session, "bash", "echo next").await["output"],
        "next\n"
    );
}

#[tokio::test]
async fn a_command_or_code_too_long_for_the_sandbox_is_413_and_costs_nothing() {
    let app = TestApp::start_with(&[("COMMAND_POLICY", "off")]).await;
    let session = open(&app).await;
    done(&app, &session, "python", "x = 1").await;
    let long = "#".repeat(1_200_000);
    let escaped = format!("'''{}'''", "\u{1}".repeat(300_000));
    for (kind, text) in [("bash", &long), ("python", &long), ("python", &escaped)] {
        assert_eq!(step(&app, &session, kind, text).await.0, 413, "{kind}");
    }
    let answer = done(&app, &session, "bash", &"#".repeat(300_000)).await;
    assert_eq!(
        answer["exit_code"], 127,
        "longer than the operating system's limit: {answer}"
    );
    assert_eq!(
        done(&app, &session, "python", "print(x)").await["output"],
        "1\n"
    );
}

#[tokio::test]
async fn a_program_that_runs_out_of_memory_is_said_to() {
    let app = TestApp::start_with(&[("SANDBOX_MEMORY_MB", "128")]).await;
    let session = open(&app).await;
    let greedy = "python3 -c 'x = bytearray(300 << 20)'";
    for line in [format!("exec {greedy}"), format!("{greedy}; exit $?")] {
        let answer = done(&app, &session, "bash", &line).await;
        assert_eq!(answer["exit_code"], 137, "{answer}");
        let said = answer["error"].as_str().unwrap();
        assert!(said.contains("ran out of memory"), "{answer}");
    }
    let killed = done(&app, &session, "bash", "kill -9 $$").await;
    assert_eq!(killed["exit_code"], 137, "{killed}");
    assert_eq!(killed["error"], "", "not every SIGKILL is the OOM killer's");
}
