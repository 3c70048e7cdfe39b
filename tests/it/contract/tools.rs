//! The tools dialect, row by row of the contract.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{TestApp, wait_for};

async fn call(app: &TestApp, tool: &str, context: Value, input: Value) -> (StatusCode, Value) {
    app.post(
        &format!("/v1/tools/{tool}"),
        json!({"context": context, "input": input}),
    )
    .await
}

/// A call that is carried out.
async fn done(app: &TestApp, tool: &str, input: Value) -> Value {
    let (status, answer) = call(app, tool, json!({"agent_run_id": "a1"}), input).await;
    assert_eq!(status, 200, "{tool}: {answer}");
    answer
}

async fn open(app: &TestApp, context: Value, input: Value) -> (String, bool) {
    let (status, opened) = call(app, "sandbox_open", context, input).await;
    assert_eq!(status, 200, "{opened}");
    assert_eq!(opened["workdir"], "/workspace");
    (
        opened["sandbox_id"].as_str().unwrap().to_owned(),
        opened["created"] == true,
    )
}

async fn opened(app: &TestApp) -> String {
    open(app, json!({"agent_run_id": "a1"}), json!({})).await.0
}

#[tokio::test]
async fn the_tool_list_has_sandbox_run_for_compute_and_the_other_nine_for_code() {
    let app = TestApp::start().await;
    let names = |listed: &Value| -> Vec<String> {
        listed["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect()
    };
    for compute in [
        json!({}),
        json!({"sandbox": "python"}),
        json!({"sandbox": {"mode": "compute"}}),
    ] {
        let (status, listed) = app.post("/v1/tools", compute).await;
        assert_eq!(
            (status.as_u16(), names(&listed)),
            (200, vec!["sandbox_run".to_owned()])
        );
        assert_eq!(
            listed["tools"][0]["input_schema"]["required"],
            json!(["code"])
        );
    }
    let (_, listed) = app
        .post(
            "/v1/tools",
            json!({"sandbox": {"mode": "code", "runtime": "python"}}),
        )
        .await;
    assert_eq!(
        names(&listed),
        [
            "sandbox_open",
            "sandbox_exec",
            "sandbox_exec_read",
            "sandbox_exec_wait",
            "sandbox_fs_write",
            "sandbox_fs_read",
            "sandbox_fs_list",
            "sandbox_fs_delete",
            "sandbox_close"
        ]
    );
    for bad in [
        json!({"sandbox": "ruby"}),
        json!({"sandbox": {"mode": "fast"}}),
        json!({"sandbox": {"nonsense": 1}}),
    ] {
        assert_eq!(app.post("/v1/tools", bad.clone()).await.0, 400, "{bad}");
    }
}

#[tokio::test]
async fn sandbox_run_runs_in_a_fresh_sandbox_that_is_gone_afterwards() {
    let app = TestApp::start().await;
    let input = json!({"code": "import sys, os; print(open('d/in.txt').read(), sys.argv[1:], os.environ['WORD']); open('left', 'w')",
        "args": ["a", "b c"], "env": {"WORD": "x"}, "files": {"d/in.txt": "data"}});
    let ran = done(&app, "sandbox_run", input).await;
    assert_eq!(
        (&ran["ok"], &ran["runtime"], &ran["exit_code"]),
        (&json!(true), &json!("python"), &json!(0)),
        "{ran}"
    );
    assert_eq!(ran["stdout"], "data ['a', 'b c'] x\n");
    assert!(ran["duration_ms"].is_u64() && ran.get("error").is_none());
    assert!(app.containers().is_empty(), "nothing is left");
    assert_eq!(
        app.get_json("/v1/sandboxes").await.1,
        json!({"sandboxes": []})
    );
    let failed = done(
        &app,
        "sandbox_run",
        json!({"runtime": "bash", "code": "ls; echo $1 >&2; exit 4", "args": ["arg"]}),
    )
    .await;
    assert_eq!(
        (
            &failed["ok"],
            &failed["exit_code"],
            &failed["stderr"],
            &failed["stdout"]
        ),
        (&json!(false), &json!(4), &json!("arg\n"), &json!(""))
    );
    let late = done(
        &app,
        "sandbox_run",
        json!({"code": "while True: pass", "timeout_seconds": 1}),
    )
    .await;
    assert_eq!(
        (&late["ok"], &late["exit_code"]),
        (&json!(false), &json!(124))
    );
    assert!(late["error"].as_str().unwrap().contains("1 seconds"));
    assert_eq!(
        call(
            &app,
            "sandbox_run",
            json!({}),
            json!({"runtime": "cobol", "code": ""})
        )
        .await
        .0,
        400
    );
    assert_eq!(
        call(&app, "sandbox_run", json!({}), json!({})).await.1["field"],
        "input.code"
    );
}

#[tokio::test]
async fn sandbox_open_is_idempotent_and_sessions_are_resolved_by_workflow_agent_and_user() {
    let app = TestApp::start().await;
    let in_workflow = |agent: &str| json!({"workflow_run_id": "w1", "agent_run_id": agent});
    let (shared, created) = open(&app, in_workflow("a1"), json!({})).await;
    assert!(created && shared.starts_with("sbx_"));
    assert_eq!(
        open(&app, in_workflow("a2"), json!({})).await,
        (shared.clone(), false),
        "all agents of a run share it"
    );
    let mut ids = vec![shared];
    for (context, input) in [
        (in_workflow("a1"), json!({"session_key": "other"})),
        (in_workflow("a1"), json!({"sandbox": {"session": "named"}})),
        (
            in_workflow("a1"),
            json!({"sandbox": {"session": "isolated"}}),
        ),
        (
            in_workflow("a2"),
            json!({"sandbox": {"session": "isolated"}}),
        ),
        // Who asks for isolation gets it, also under a name.
        (
            in_workflow("a1"),
            json!({"session_key": "other", "sandbox": {"session": "isolated"}}),
        ),
        (
            in_workflow("a2"),
            json!({"session_key": "other", "sandbox": {"session": "isolated"}}),
        ),
        (json!({"workflow_run_id": "w2"}), json!({})),
        (json!({"agent_run_id": "w1"}), json!({})),
        (json!({"user_id": "w1"}), json!({})),
    ] {
        let (id, created) = open(&app, context.clone(), input.clone()).await;
        assert!(created, "{context} {input}");
        assert_eq!(open(&app, context, input).await, (id.clone(), false));
        ids.push(id);
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 10);
    for (context, input) in [
        (json!({}), json!({})),
        (
            json!({"workflow_run_id": "w"}),
            json!({"sandbox": {"session": "isolated"}}),
        ),
        (json!({"agent_run_id": "a/b"}), json!({})),
        (json!({"agent_run_id": "a"}), json!({"session_key": ""})),
    ] {
        assert_eq!(
            call(&app, "sandbox_open", context.clone(), input).await.0,
            400,
            "{context}"
        );
    }
}

#[tokio::test]
async fn sandbox_exec_runs_to_the_end_or_in_the_background() {
    let app = TestApp::start().await;
    let id = opened(&app).await;
    done(&app, "sandbox_fs_write", json!({"sandbox_id": id, "path": "sub/f.sh", "contents": "echo $WORD; pwd; exit 3", "mode": "0755"})).await;
    let ran = done(
        &app,
        "sandbox_exec",
        json!({"sandbox_id": id, "cmd": ["./f.sh"], "cwd": "sub", "env": {"WORD": "hi"}}),
    )
    .await;
    assert_eq!(
        (&ran["status"], &ran["exit_code"]),
        (&json!("completed"), &json!(127)),
        "no shebang: {ran}"
    );
    let ran = done(
        &app,
        "sandbox_exec",
        json!({"sandbox_id": id, "cmd": ["bash", "f.sh"], "cwd": "sub", "env": {"WORD": "hi"}}),
    )
    .await;
    assert_eq!(
        (&ran["status"], &ran["exit_code"], &ran["stdout"]),
        (
            &json!("completed"),
            &json!(3),
            &json!("hi\n/workspace/sub\n")
        ),
        "{ran}"
    );
    let started = done(&app, "sandbox_exec", json!({"sandbox_id": id, "cmd": ["bash", "-c", "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two >&2; exit 5"], "stream": true})).await;
    assert_eq!(
        (&started["status"], started.get("exit_code")),
        (&json!("running"), None)
    );
    let exec = started["exec_id"].as_str().unwrap().to_owned();
    let waiting = done(
        &app,
        "sandbox_exec_wait",
        json!({"sandbox_id": id, "exec_id": exec, "timeout_seconds": 1}),
    )
    .await;
    assert_eq!(waiting, json!({"done": false}));
    done(
        &app,
        "sandbox_fs_write",
        json!({"sandbox_id": id, "path": "go", "contents": ""}),
    )
    .await;
    let waited = done(
        &app,
        "sandbox_exec_wait",
        json!({"sandbox_id": id, "exec_id": exec}),
    )
    .await;
    assert_eq!(waited, json!({"done": true, "exit_code": 5}));
    let all = done(
        &app,
        "sandbox_exec_read",
        json!({"sandbox_id": id, "exec_id": exec}),
    )
    .await;
    assert_eq!(
        all,
        json!({"chunks": [{"seq": 1, "stream": "stdout", "text": "one\n"}, {"seq": 2, "stream": "stderr", "text": "two\n"}], "done": true})
    );
    let rest = done(
        &app,
        "sandbox_exec_read",
        json!({"sandbox_id": id, "exec_id": exec, "since_seq": 1}),
    )
    .await;
    assert_eq!(rest["chunks"].as_array().unwrap().len(), 1);
    let first = done(
        &app,
        "sandbox_exec_read",
        json!({"sandbox_id": id, "exec_id": exec, "max_chunks": 1}),
    )
    .await;
    assert_eq!(
        (first["chunks"].as_array().unwrap().len(), &first["done"]),
        (1, &json!(false))
    );
    for (tool, input) in [
        (
            "sandbox_exec_read",
            json!({"sandbox_id": id, "exec_id": "exec_none"}),
        ),
        (
            "sandbox_exec_wait",
            json!({"sandbox_id": "sbx_none", "exec_id": exec}),
        ),
        (
            "sandbox_exec",
            json!({"sandbox_id": "sbx_none", "cmd": ["true"]}),
        ),
    ] {
        assert_eq!(call(&app, tool, json!({}), input).await.0, 404, "{tool}");
    }
    for input in [
        json!({"sandbox_id": id, "cmd": []}),
        json!({"sandbox_id": id, "cmd": ["a\u{0}"]}),
        json!({"sandbox_id": id, "cmd": "ls"}),
        json!({"sandbox_id": id, "cmd": ["ls"], "cwd": "../x"}),
        json!({"sandbox_id": id, "cmd": ["ls"], "timeout_seconds": 0}),
    ] {
        assert_eq!(
            call(&app, "sandbox_exec", json!({}), input.clone()).await.0,
            400,
            "{input}"
        );
    }
}

#[tokio::test]
async fn a_background_program_that_prints_a_flood_leaves_the_service_flat_and_its_end_readable() {
    let app = TestApp::start().await;
    let id = opened(&app).await;
    done(
        &app,
        "sandbox_exec",
        json!({"sandbox_id": id, "cmd": ["bash", "-c", "yes | head -c 3000000"]}),
    )
    .await;
    let before = app.service_memory_kb();
    let line =
        "yes 0123456789012345678901234567890123456789012345678 | head -c 1000000000; echo the end";
    let started = done(
        &app,
        "sandbox_exec",
        json!({"sandbox_id": id, "cmd": ["bash", "-c", line], "stream": true}),
    )
    .await;
    let wait = json!({"sandbox_id": id, "exec_id": started["exec_id"], "timeout_seconds": 100});
    let mut most = 0;
    loop {
        let ended = done(
            &app,
            "sandbox_exec_wait",
            json!({"sandbox_id": id, "exec_id": started["exec_id"], "timeout_seconds": 1}),
        )
        .await;
        most = most.max(app.service_memory_kb());
        if ended["done"] == true {
            break;
        }
    }
    assert_eq!(done(&app, "sandbox_exec_wait", wait).await["exit_code"], 0);
    assert!(
        most.saturating_sub(before) < 30_000,
        "{before} kB grew to {most} kB"
    );
    let mut last = String::new();
    let mut since = 0;
    loop {
        let read = done(&app, "sandbox_exec_read", json!({"sandbox_id": id, "exec_id": started["exec_id"], "since_seq": since, "max_chunks": 1000})).await;
        for chunk in read["chunks"].as_array().unwrap() {
            let seq = chunk["seq"].as_u64().unwrap();
            assert!(seq > since);
            since = seq;
            last = chunk["text"].as_str().unwrap().to_owned();
        }
        if read["done"] == true {
            break;
        }
    }
    assert!(last.ends_with("the end\n"), "{last}");
}

#[tokio::test]
async fn files_are_written_read_listed_and_deleted() {
    let app = TestApp::start().await;
    let id = opened(&app).await;
    let write = |path: &str, more: Value| {
        let mut input = json!({"sandbox_id": id, "path": path});
        input
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        input
    };
    assert_eq!(
        done(
            &app,
            "sandbox_fs_write",
            write("a/text.txt", json!({"contents": "héllo"}))
        )
        .await,
        json!({"ok": true, "path": "a/text.txt"})
    );
    done(
        &app,
        "sandbox_fs_write",
        write(
            "/workspace/a/run.sh",
            json!({"contents_b64": "/wA=", "mode": "0700"}),
        ),
    )
    .await;
    assert_eq!(
        call(
            &app,
            "sandbox_fs_write",
            json!({}),
            write("a/text.txt", json!({"contents": "x", "overwrite": false}))
        )
        .await
        .0,
        400
    );
    for bad in [
        write("../x", json!({"contents": ""})),
        write("x", json!({})),
        write("x", json!({"contents": "", "contents_b64": ""})),
        write("x", json!({"contents_b64": "?"})),
        write("x", json!({"contents": "", "mode": "9"})),
    ] {
        assert_eq!(
            call(&app, "sandbox_fs_write", json!({}), bad.clone())
                .await
                .0,
            400,
            "{bad}"
        );
    }
    let read = |path: &str, max: u64| json!({"sandbox_id": id, "path": path, "max_bytes": max});
    assert_eq!(
        done(&app, "sandbox_fs_read", read("a/text.txt", 100)).await,
        json!({"contents": "héllo", "truncated": false, "size_bytes": 6})
    );
    assert_eq!(
        done(&app, "sandbox_fs_read", read("a/text.txt", 2)).await,
        json!({"contents": "h", "truncated": true, "size_bytes": 6}),
        "never half a character"
    );
    assert_eq!(
        done(&app, "sandbox_fs_read", read("a/run.sh", 100)).await["contents_b64"],
        "/wA="
    );
    assert_eq!(
        call(&app, "sandbox_fs_read", json!({}), read("none", 1))
            .await
            .0,
        404
    );
    done(&app, "sandbox_exec", json!({"sandbox_id": id, "cmd": ["bash", "-c", "mkdir -p b/c; ln -s /etc/passwd b/link; touch b/c/deep"]})).await;
    let listed = done(&app, "sandbox_fs_list", json!({"sandbox_id": id})).await;
    let short = |listed: &Value| -> Vec<(String, String)> {
        listed["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| {
                (
                    entry["path"].as_str().unwrap().to_owned(),
                    entry["type"].as_str().unwrap().to_owned(),
                )
            })
            .collect()
    };
    let pair = |path: &str, kind: &str| (path.to_owned(), kind.to_owned());
    assert_eq!(short(&listed), [pair("a", "dir"), pair("b", "dir")]);
    let listed = done(
        &app,
        "sandbox_fs_list",
        json!({"sandbox_id": id, "path": ".", "recursive": true}),
    )
    .await;
    assert_eq!(
        short(&listed),
        [
            pair("a", "dir"),
            pair("a/run.sh", "file"),
            pair("a/text.txt", "file"),
            pair("b", "dir"),
            pair("b/c", "dir"),
            pair("b/c/deep", "file")
        ]
    );
    let script = &listed["entries"][1];
    assert_eq!(
        (&script["mode"], &script["size"]),
        (&json!("0700"), &json!(2))
    );
    assert!(script["mtime_unix"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(
        call(
            &app,
            "sandbox_fs_list",
            json!({}),
            json!({"sandbox_id": id, "path": "none"})
        )
        .await
        .0,
        404
    );
    assert_eq!(
        call(
            &app,
            "sandbox_fs_delete",
            json!({}),
            json!({"sandbox_id": id, "path": "b"})
        )
        .await
        .0,
        400
    );
    assert_eq!(
        done(
            &app,
            "sandbox_fs_delete",
            json!({"sandbox_id": id, "path": "b", "recursive": true})
        )
        .await,
        json!({"ok": true, "deleted": "b"})
    );
    assert!(std::path::Path::new("/etc/passwd").exists());
    assert_eq!(
        done(
            &app,
            "sandbox_fs_delete",
            json!({"sandbox_id": id, "path": "a/run.sh"})
        )
        .await["deleted"],
        "a/run.sh"
    );
    assert_eq!(
        call(
            &app,
            "sandbox_fs_delete",
            json!({}),
            json!({"sandbox_id": id, "path": "a/run.sh"})
        )
        .await
        .0,
        404
    );
    let listed = done(
        &app,
        "sandbox_fs_list",
        json!({"sandbox_id": id, "recursive": true}),
    )
    .await;
    assert_eq!(
        short(&listed),
        [pair("a", "dir"), pair("a/text.txt", "file")]
    );
}

#[tokio::test]
async fn sandbox_close_ends_it_and_keeps_the_files_only_if_asked_to() {
    let app = TestApp::start().await;
    let id = opened(&app).await;
    done(
        &app,
        "sandbox_fs_write",
        json!({"sandbox_id": id, "path": "f", "contents": "kept"}),
    )
    .await;
    assert_eq!(
        done(
            &app,
            "sandbox_close",
            json!({"sandbox_id": id, "delete_workspace": false})
        )
        .await,
        json!({"ok": true})
    );
    assert!(app.containers().is_empty());
    assert_eq!(
        open(&app, json!({"agent_run_id": "a1"}), json!({})).await,
        (id.clone(), false)
    );
    assert_eq!(
        done(
            &app,
            "sandbox_exec",
            json!({"sandbox_id": id, "cmd": ["cat", "f"]})
        )
        .await["stdout"],
        "kept"
    );
    done(&app, "sandbox_close", json!({"sandbox_id": id})).await;
    assert_eq!(
        call(
            &app,
            "sandbox_exec",
            json!({}),
            json!({"sandbox_id": id, "cmd": ["true"]})
        )
        .await
        .0,
        404
    );
    let (next, created) = open(&app, json!({"agent_run_id": "a1"}), json!({})).await;
    assert!(created && next != id);
    assert_eq!(
        done(&app, "sandbox_fs_list", json!({"sandbox_id": next})).await,
        json!({"entries": []})
    );
}

#[tokio::test]
async fn limits_of_a_session_are_really_applied_and_never_looser_than_the_operators() {
    let app = TestApp::start_with(&[
        ("SANDBOX_MEMORY_MB", "400"),
        ("MAX_WORKSPACE_SIZE_MB", "50"),
        ("SANDBOX_POOL_SIZE", "1"),
    ])
    .await;
    let sandbox = json!({"limits": {"memory_mb": 150, "workspace_mb": 5, "cpu_millicores": 500}});
    let (id, _) = open(
        &app,
        json!({"agent_run_id": "tight"}),
        json!({"sandbox": sandbox}),
    )
    .await;
    let eat = ["python3", "-c", "x = 'x' * (250 << 20); print(len(x))"];
    let eaten = done(&app, "sandbox_exec", json!({"sandbox_id": id, "cmd": eat})).await;
    assert_eq!(eaten["exit_code"], 137, "{eaten}");
    let (usual, _) = open(&app, json!({"agent_run_id": "usual"}), json!({})).await;
    assert_eq!(
        done(
            &app,
            "sandbox_exec",
            json!({"sandbox_id": usual, "cmd": eat})
        )
        .await["exit_code"],
        0
    );
    let fill = json!({"sandbox_id": id, "cmd": ["bash", "-c", "head -c 20000000 /dev/zero > f"]});
    let filled = done(&app, "sandbox_exec", fill).await;
    assert_ne!(filled["exit_code"], json!(0), "{filled}");
    let big = json!({"sandbox_id": id, "path": "g", "contents": "x".repeat(6_000_000)});
    assert_eq!(call(&app, "sandbox_fs_write", json!({}), big).await.0, 507);
    for (field, sandbox) in [
        (
            "sandbox.limits.memory_mb",
            json!({"limits": {"memory_mb": 401}}),
        ),
        (
            "sandbox.limits.workspace_mb",
            json!({"limits": {"workspace_mb": 51}}),
        ),
        (
            "sandbox.limits.cpu_millicores",
            json!({"limits": {"cpu_millicores": 1001}}),
        ),
        (
            "sandbox.limits.timeout_seconds",
            json!({"limits": {"timeout_seconds": 0}}),
        ),
        (
            "sandbox.network.enabled",
            json!({"network": {"enabled": true}}),
        ),
        ("sandbox.image", json!({"image": "evil"})),
    ] {
        let (status, problem) = call(
            &app,
            "sandbox_open",
            json!({"agent_run_id": "x"}),
            json!({"sandbox": sandbox}),
        )
        .await;
        assert_eq!(
            (status.as_u16(), &problem["field"]),
            (400, &json!(field)),
            "{problem}"
        );
    }
}

#[tokio::test]
async fn a_completed_workflow_closes_its_sessions_and_no_others_now_or_later() {
    let app = TestApp::start_with(&[("SANDBOX_REAPER_INTERVAL", "1")]).await;
    let workflow = json!({"workflow_run_id": "w", "agent_run_id": "a"});
    let (one, _) = open(&app, workflow.clone(), json!({})).await;
    let (two, _) = open(
        &app,
        workflow.clone(),
        json!({"sandbox": {"session": "isolated"}}),
    )
    .await;
    let (other, _) = open(&app, json!({"workflow_run_id": "v"}), json!({})).await;
    let (status, completed) = app.post("/v1/workflows/w/complete", json!({})).await;
    assert_eq!(
        (status.as_u16(), completed),
        (200, json!({"ok": true, "closed": 2}))
    );
    for id in [&one, &two] {
        assert_eq!(
            call(
                &app,
                "sandbox_fs_list",
                json!({}),
                json!({"sandbox_id": id})
            )
            .await
            .0,
            404
        );
    }
    let bare = app
        .client
        .post(format!("{}/v1/workflows/w/complete", app.base));
    let (status, completed) = crate::support::answer(bare).await;
    assert_eq!((status.as_u16(), &completed["closed"]), (200, &json!(0)));
    let (_, retained) = app
        .post("/v1/workflows/v/complete", json!({"retain_seconds": 2}))
        .await;
    assert_eq!(retained, json!({"ok": true, "retained": 1}));
    assert_eq!(
        done(&app, "sandbox_fs_list", json!({"sandbox_id": other})).await,
        json!({"entries": []})
    );
    wait_for("the retained session to go", || {
        app.containers().is_empty().then_some(())
    })
    .await;
    assert_eq!(
        app.post("/v1/workflows/v/complete", json!({"retain_seconds": -1}))
            .await
            .0,
        400
    );
}

#[tokio::test]
async fn a_sandbox_survives_a_kill_of_the_service_under_its_id() {
    let mut app = TestApp::start().await;
    let id = opened(&app).await;
    done(
        &app,
        "sandbox_fs_write",
        json!({"sandbox_id": id, "path": "f", "contents": "kept"}),
    )
    .await;
    let container = app.containers();
    app.kill();
    app.launch().await;
    assert_eq!(
        done(
            &app,
            "sandbox_exec",
            json!({"sandbox_id": id, "cmd": ["cat", "f"]})
        )
        .await["stdout"],
        "kept"
    );
    assert_eq!(
        open(&app, json!({"agent_run_id": "a1"}), json!({})).await,
        (id, false)
    );
    assert_eq!(app.containers(), container);
}

#[tokio::test]
async fn a_file_can_be_written_again_where_no_other_fits() {
    let app = TestApp::start_with(&[("MAX_TOTAL_FILES", "3")]).await;
    let id = opened(&app).await;
    let write = |path: &str, contents: &str| {
        let input = json!({"sandbox_id": id, "path": path, "contents": contents});
        let (app, context) = (&app, json!({"agent_run_id": "a1"}));
        async move { call(app, "sandbox_fs_write", context, input).await.0 }
    };
    for path in ["a", "b", "c"] {
        assert_eq!(write(path, "1").await, 200);
    }
    assert_eq!(write("d", "1").await, 507);
    assert_eq!(write("b", "2").await, 200);
    let read = json!({"sandbox_id": id, "path": "b"});
    assert_eq!(done(&app, "sandbox_fs_read", read).await["contents"], "2");
}

#[tokio::test]
async fn a_run_that_a_crash_cut_short_leaves_nothing_behind() {
    let mut app = TestApp::start_with(&[("DELETE_S3_ON_CLEANUP", "0")]).await;
    let body = json!({"input": {"code": "import time; open('on', 'w'); time.sleep(300)", "timeout_seconds": 400}});
    let request = app
        .client
        .post(format!("{}/v1/tools/sandbox_run", app.base))
        .json(&body);
    let call = tokio::spawn(request.send());
    let sessions = app.work_root().join("sessions");
    let runs = || walk(&sessions).iter().any(|path| path.ends_with("on"));
    wait_for("the program to run", || runs().then_some(())).await;
    app.kill();
    assert!(call.await.unwrap().is_err());
    app.launch().await;
    assert!(app.containers().is_empty(), "{:?}", app.containers());
    assert!(!runs());
}

#[tokio::test]
async fn a_part_of_a_path_that_is_no_text_is_refused_in_the_dialects_own_shape() {
    let app = TestApp::start().await;
    for (path, field, status) in [
        ("/v1/tools/%FF", "code", 400),
        ("/v1/workflows/%FF/complete", "code", 400),
        ("/sessions/%FF/step", "detail", 422),
    ] {
        let (seen, problem) = app.post(path, json!({})).await;
        assert_eq!(seen, status, "{path}: {problem}");
        assert!(problem[field].is_string(), "{path}: {problem}");
    }
}

#[tokio::test]
async fn an_unknown_tool_is_404_and_names_those_there_are() {
    let app = TestApp::start().await;
    let (status, problem) = call(&app, "sandbox_fly", json!({}), json!({})).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (404, &json!("not_found"))
    );
    assert!(problem["detail"].as_str().unwrap().contains("sandbox_run"));
}

#[tokio::test]
async fn a_caller_that_hangs_up_ends_its_run_and_leaves_no_sandbox() {
    let app = TestApp::start().await;
    let body = json!({"input": {"code": "import time; open('on', 'w'); time.sleep(300)", "timeout_seconds": 400}});
    let request = app
        .client
        .post(format!("{}/v1/tools/sandbox_run", app.base))
        .json(&body);
    let call = tokio::spawn(request.send());
    wait_for("the sandbox", || {
        (!app.containers().is_empty()).then_some(())
    })
    .await;
    let sessions = app.work_root().join("sessions");
    let runs = || walk(&sessions).iter().any(|path| path.ends_with("on"));
    wait_for("the program to run", || runs().then_some(())).await;
    call.abort();
    wait_for("the sandbox to go", || {
        app.containers().is_empty().then_some(())
    })
    .await;
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = folder.read_dir() else {
        return Vec::new();
    };
    let paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let below: Vec<_> = paths.iter().flat_map(|path| walk(path)).collect();
    [paths, below].concat()
}
