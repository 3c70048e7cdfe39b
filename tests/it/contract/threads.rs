//! The threads dialect, row by row of the contract.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{TestApp, answer};

async fn create(app: &TestApp, thread: &str) -> (StatusCode, Value) {
    app.post(
        "/create_session",
        json!({"user_id": "ada", "thread_id": thread}),
    )
    .await
}

async fn open(app: &TestApp, thread: &str) -> String {
    let (status, session) = create(app, thread).await;
    assert_eq!(status, 200, "{session}");
    session["session_id"].as_str().unwrap().to_owned()
}

async fn execute(app: &TestApp, session: &str, command: &str) -> (StatusCode, Value) {
    app.post(
        "/execute",
        json!({"session_id": session, "command": command}),
    )
    .await
}

async fn output(app: &TestApp, session: &str, command: &str) -> String {
    let (status, answer) = execute(app, session, command).await;
    assert_eq!(
        (status.as_u16(), &answer["exit_code"]),
        (200, &json!(0)),
        "{answer}"
    );
    answer["stdout"].as_str().unwrap().to_owned()
}

async fn upload(
    app: &TestApp,
    session: &str,
    name: &str,
    filename: Option<&str>,
    content: &[u8],
) -> (StatusCode, Value) {
    let part = reqwest::multipart::Part::bytes(content.to_vec()).file_name(name.to_owned());
    let mut form = reqwest::multipart::Form::new().text("session_id", session.to_owned());
    if let Some(filename) = filename {
        form = form.text("filename", filename.to_owned());
    }
    let request = app.client.post(format!("{}/upload_file", app.base));
    answer(request.multipart(form.part("file", part))).await
}

#[tokio::test]
async fn create_session_gives_a_session_and_409_for_a_live_one() {
    let app = TestApp::start().await;
    let (status, made) = create(&app, "t1").await;
    assert_eq!(status, 200, "{made}");
    let id = made["session_id"].as_str().unwrap();
    assert!(uuid::Uuid::parse_str(id).is_ok());
    let expected = json!({"session_id": id, "thread_id": "t1", "status": "created", "workspace_dir": "/workspace", "user": "sandboxuser", "expires_at": made["expires_at"]});
    assert_eq!(made, expected);
    let expires = time::OffsetDateTime::parse(
        made["expires_at"].as_str().unwrap(),
        &time::format_description::well_known::Rfc3339,
    )
    .unwrap();
    let minutes = (expires - time::OffsetDateTime::now_utc()).whole_minutes();
    assert!((28..=30).contains(&minutes), "{minutes}");
    let (status, again) = create(&app, "t1").await;
    assert_eq!(status, 409);
    assert_eq!(
        (&again["session_id"], &again["status"]),
        (&json!(id), &json!("existing"))
    );
    assert!(
        again["created_at"].is_string()
            && again["last_activity"].is_string()
            && again["workspace_dir"] == "/workspace"
    );
    assert_ne!(
        open(&app, "t2").await,
        id,
        "another thread has another session"
    );
}

#[tokio::test]
async fn many_creates_of_one_thread_at_once_make_one_session() {
    let app = TestApp::start().await;
    let answers = futures_util::future::join_all((0..20).map(|_| create(&app, "t"))).await;
    let made = answers.iter().filter(|(status, _)| *status == 200).count();
    let existing = answers.iter().filter(|(status, _)| *status == 409).count();
    assert_eq!((made, existing), (1, 19));
    assert!(
        answers
            .iter()
            .all(|(_, body)| body["session_id"] == answers[0].1["session_id"])
    );
    assert_eq!(app.containers().len(), 1);
}

#[tokio::test]
async fn create_session_without_room_is_503() {
    let app = TestApp::start_with(&[("SANDBOX_MAX_TOTAL", "1")]).await;
    let session = open(&app, "t1").await;
    let (status, refused) = create(&app, "t2").await;
    assert_eq!(status, 503);
    assert!(refused["error"].is_string(), "{refused}");
    assert_eq!(
        app.get_json("/get_session?thread_id=t2").await.0,
        404,
        "it was not half made"
    );
    app.post("/cleanup", json!({"session_id": session})).await;
    assert_eq!(create(&app, "t2").await.0, 200);
}

#[tokio::test]
async fn create_session_with_bad_input_is_400() {
    let app = TestApp::start().await;
    for body in [
        json!({}),
        json!({"user_id": "u"}),
        json!({"user_id": "u", "thread_id": ""}),
        json!({"user_id": "u", "thread_id": "a/b"}),
        json!({"user_id": "a\u{0}", "thread_id": "t"}),
        json!({"user_id": "u", "thread_id": "t", "timeout_minutes": 0}),
        json!({"user_id": "u", "thread_id": "t", "timeout_minutes": -1}),
        json!({"user_id": "u", "thread_id": "t", "timeout_minutes": 1_000_000}),
        json!({"user_id": "u", "thread_id": 7}),
    ] {
        let (status, refused) = app.post("/create_session", body.clone()).await;
        assert_eq!(status, 400, "{body}");
        assert!(refused["error"].is_string(), "{refused}");
    }
    assert!(app.containers().is_empty());
}

#[tokio::test]
async fn get_session_tells_of_a_live_session_else_404_and_400_without_its_parameter() {
    let app = TestApp::start().await;
    let session = open(&app, "t 1").await;
    output(&app, &session, "echo a > a; echo b > b").await;
    let (status, found) = app.get_json("/get_session?thread_id=t%201").await;
    assert_eq!(status, 200, "{found}");
    let expected = json!({"session_id": session, "thread_id": "t 1", "status": "active", "created_at": found["created_at"],
        "last_activity": found["last_activity"], "workspace_dir": "/workspace", "files_count": 2});
    assert_eq!(found, expected);
    let (status, missing) = app.get_json("/get_session?thread_id=other").await;
    assert_eq!(
        (status.as_u16(), &missing["thread_id"]),
        (404, &json!("other"))
    );
    assert!(missing["error"].is_string());
    assert_eq!(app.get_json("/get_session").await.0, 400);
}

#[tokio::test]
async fn execute_gives_exit_code_stdout_stderr_and_time() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    let (status, answer) = execute(&app, &session, "echo out; ls /nowhere; exit 3").await;
    assert_eq!(status, 200);
    assert_eq!(
        (&answer["exit_code"], &answer["stdout"]),
        (&json!(3), &json!("out\n"))
    );
    assert!(
        answer["stderr"].as_str().unwrap().contains("/nowhere"),
        "{answer}"
    );
    assert!(answer["execution_time_ms"].is_u64());
    assert_eq!(answer.as_object().unwrap().len(), 4);
    assert_eq!(output(&app, &session, "echo '[{\"a\": 2}, {\"a\": 5}]' > d.json; python3 -c 'import json; print(sum(r[\"a\"] for r in json.load(open(\"d.json\"))))'").await, "7\n");
}

#[tokio::test]
async fn execute_over_its_time_limit_has_exit_code_124() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    let body = json!({"session_id": session, "command": "echo before; python3 -c 'import time; time.sleep(60)'", "timeout": 1});
    let (status, answer) = app.post("/execute", body).await;
    assert_eq!(
        (status.as_u16(), &answer["exit_code"], &answer["stdout"]),
        (200, &json!(124), &json!("before\n")),
        "{answer}"
    );
    let bad = json!({"session_id": session, "command": "ls", "timeout": 0});
    assert_eq!(app.post("/execute", bad).await.0, 400);
}

#[tokio::test]
async fn execute_for_an_unknown_session_is_404() {
    let app = TestApp::start().await;
    let (status, refused) = execute(&app, "no-such-session", "ls").await;
    assert_eq!(status, 404);
    assert_eq!(
        refused,
        json!({"error": "Invalid or expired session", "session_id": "no-such-session"})
    );
}

#[tokio::test]
async fn execute_refuses_by_policy_with_400_and_names_the_word() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    output(&app, &session, "echo data > f").await;
    let (status, refused) = execute(&app, &session, "rm f").await;
    assert_eq!(status, 400);
    assert_eq!(
        (&refused["command"], &refused["forbidden_pattern"]),
        (&json!("rm f"), &json!("rm"))
    );
    let (status, refused) = execute(&app, &session, "node -e 1").await;
    assert_eq!(status, 400);
    assert!(
        refused["error"].as_str().unwrap().contains("node")
            && refused.get("forbidden_pattern").is_none(),
        "{refused}"
    );
    assert_eq!(
        execute(&app, &session, "echo $(rm f").await.0,
        400,
        "not parsable"
    );
    assert_eq!(
        output(&app, &session, "cat f; echo 'rm f'").await,
        "data\nrm f\n"
    );
    let deep = "$(".repeat(5000);
    assert_eq!(execute(&app, &session, &deep).await.0, 400);
    assert_eq!(app.get_json("/health").await.0, 200);
}

#[tokio::test]
async fn execute_refuses_a_command_that_breaks_the_parser_and_the_service_goes_on() {
    let app = TestApp::start().await;
    let session = open(&app, "tangled").await;
    for command in ["(".repeat(34), "${x#\\}".repeat(20_000)] {
        let (status, body) = execute(&app, &session, &command).await;
        assert_eq!(status, 400, "{}", body["error"]);
    }
    assert_eq!(
        output(&app, &session, "echo still here").await,
        "still here\n"
    );
}

#[tokio::test]
async fn the_policy_can_be_changed_and_turned_off() {
    let app = TestApp::start_with(&[("COMMAND_POLICY", "off")]).await;
    let session = open(&app, "t").await;
    assert_eq!(output(&app, &session, "touch f; rm f; ls").await, "");
    let app = TestApp::start_with(&[("COMMAND_POLICY_ALLOWED", "echo,touch")]).await;
    let session = open(&app, "t").await;
    assert_eq!(output(&app, &session, "touch f").await, "");
    assert_eq!(execute(&app, &session, "ls").await.0, 400);
}

#[tokio::test]
async fn upload_file_puts_a_file_in_place_under_its_own_or_a_given_name() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    let (status, uploaded) = upload(&app, &session, "data.json", None, b"[1, 2]").await;
    assert_eq!(status, 200, "{uploaded}");
    assert_eq!(
        uploaded,
        json!({"status": "uploaded", "filename": "data.json", "path": "/workspace/data.json", "size_bytes": 6})
    );
    let (_, renamed) = upload(&app, &session, "x", Some("sub/other.json"), b"3").await;
    assert_eq!(renamed["path"], "/workspace/sub/other.json");
    assert_eq!(
        output(&app, &session, "cat data.json sub/other.json").await,
        "[1, 2]3"
    );
    for bad in ["../x", "/etc/passwd", "a/../../x", ""] {
        let (status, refused) = upload(&app, &session, "x", Some(bad), b"x").await;
        assert_eq!(status, 400, "{bad}: {refused}");
    }
    assert_eq!(upload(&app, "unknown", "x", None, b"x").await.0, 404);
}

#[tokio::test]
async fn upload_file_takes_a_name_that_comes_after_the_file() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    upload(&app, &session, "x.bin", None, b"mine").await;
    let named_last = |name: &'static str| {
        let part = reqwest::multipart::Part::bytes(b"new".to_vec()).file_name("x.bin");
        let form = reqwest::multipart::Form::new().text("session_id", session.clone());
        let form = form.part("file", part).text("filename", name);
        let request = app.client.post(format!("{}/upload_file", app.base));
        answer(request.multipart(form))
    };
    let (status, uploaded) = named_last("sub/data.json").await;
    assert_eq!(
        (status.as_u16(), &uploaded["path"]),
        (200, &json!("/workspace/sub/data.json"))
    );
    assert_eq!(named_last("../data.json").await.0, 400);
    assert_eq!(
        output(
            &app,
            &session,
            "cat x.bin sub/data.json; find . -type f | wc -l"
        )
        .await,
        "minenew2\n"
    );
}

#[tokio::test]
async fn a_given_name_makes_no_file_more_than_allowed_and_may_replace_one() {
    let app = TestApp::start_with(&[("MAX_TOTAL_FILES", "2")]).await;
    let session = open(&app, "t").await;
    for name in ["a", "b"] {
        assert_eq!(upload(&app, &session, name, None, b"1").await.0, 200);
    }
    let full =
        json!({"error": "Workspace file count limit exceeded", "max_files": 2, "current_files": 2});
    let (status, refused) = upload(&app, &session, "a", Some("c"), b"2").await;
    assert_eq!((status.as_u16(), &refused), (507, &full));
    let part = reqwest::multipart::Part::bytes(b"2".to_vec()).file_name("a");
    let form = reqwest::multipart::Form::new().text("session_id", session.clone());
    let form = form.part("file", part).text("filename", "c");
    let request = app.client.post(format!("{}/upload_file", app.base));
    let (status, refused) = answer(request.multipart(form)).await;
    assert_eq!((status.as_u16(), &refused), (507, &full), "named last");
    assert_eq!(upload(&app, &session, "x", Some("b"), b"3").await.0, 200);
    assert_eq!(output(&app, &session, "cat a b; ls").await, "13a\nb\n");
}

#[tokio::test]
async fn what_one_dialect_handed_out_is_no_session_in_another() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    let input = json!({"sandbox_id": session, "cmd": ["rm", "-rf", "x"]});
    let (status, refused) = app
        .post("/v1/tools/sandbox_exec", json!({ "input": input }))
        .await;
    assert_eq!(status, 404, "{refused}");
    let (_, opened) = app
        .post(
            "/v1/tools/sandbox_open",
            json!({"context": {"agent_run_id": "a"}, "input": {}}),
        )
        .await;
    let sandbox = opened["sandbox_id"].as_str().unwrap();
    assert_eq!(execute(&app, sandbox, "echo x").await.0, 404);
    let body = json!({"session_id": sandbox});
    assert_eq!(app.post("/cleanup", body).await.0, 404);
}

#[tokio::test]
async fn a_look_at_a_session_is_no_activity() {
    let app = TestApp::start().await;
    open(&app, "t").await;
    let first = app.get_json("/get_session?thread_id=t").await.1["last_activity"].clone();
    let began = std::time::Instant::now();
    // Times are told in seconds.
    while began.elapsed() < std::time::Duration::from_millis(2100) {
        let (_, seen) = app.get_json("/get_session?thread_id=t").await;
        assert_eq!(seen["last_activity"], first);
    }
    let (status, existing) = create(&app, "t").await;
    assert_eq!((status.as_u16(), &existing["last_activity"]), (409, &first));
}

#[tokio::test]
async fn upload_file_over_a_limit_is_413_or_507_with_the_numbers() {
    let settings = [
        ("MAX_FILE_SIZE_MB", "2"),
        ("MAX_WORKSPACE_SIZE_MB", "5"),
        ("MAX_TOTAL_FILES", "4"),
    ];
    let app = TestApp::start_with(&settings).await;
    let session = open(&app, "t").await;
    let (status, refused) = upload(&app, &session, "big", None, &vec![7; 3 << 20]).await;
    assert_eq!(status, 413, "{refused}");
    assert_eq!(
        (&refused["max_size_mb"], &refused["uploaded_size_mb"]),
        (&json!(2.0), &json!(3.0))
    );
    for name in ["a", "b"] {
        assert_eq!(
            upload(&app, &session, name, None, &vec![7; 2 << 20])
                .await
                .0,
            200
        );
    }
    let (status, refused) = upload(&app, &session, "c", None, &vec![7; 2 << 20]).await;
    assert_eq!(status, 507, "{refused}");
    assert_eq!(
        (&refused["max_workspace_mb"], &refused["file_size_mb"]),
        (&json!(5.0), &json!(2.0))
    );
    assert!(
        refused["current_workspace_mb"].as_f64().unwrap() >= 4.0,
        "{refused}"
    );
    for name in ["c", "d"] {
        assert_eq!(upload(&app, &session, name, None, b"x").await.0, 200);
    }
    let (status, refused) = upload(&app, &session, "e", None, b"x").await;
    assert_eq!(status, 507);
    assert_eq!(
        (&refused["max_files"], &refused["current_files"]),
        (&json!(4), &json!(4)),
        "{refused}"
    );
}

#[tokio::test]
async fn download_file_gives_the_bytes_else_404_or_400() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    output(&app, &session, "mkdir=1; echo 'a,b' > 'out put.csv'").await;
    let request = |name: &str| {
        let body = json!({"session_id": session, "filename": name});
        app.client
            .post(format!("{}/download_file", app.base))
            .json(&body)
    };
    let response = request("out put.csv").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-length"), "4");
    assert!(header("content-disposition").starts_with("attachment; filename=\"out put.csv\""));
    assert_eq!(response.bytes().await.unwrap().as_ref(), b"a,b\n");
    let (status, missing) = answer(request("missing")).await;
    assert_eq!(status, 404);
    assert_eq!(
        (&missing["filename"], &missing["workspace_dir"]),
        (&json!("missing"), &json!("/workspace"))
    );
    for bad in ["../x", "/etc/passwd", "a/../../x"] {
        assert_eq!(answer(request(bad)).await.0, 400, "{bad}");
    }
    let unknown = json!({"session_id": "unknown", "filename": "f"});
    assert_eq!(app.post("/download_file", unknown).await.0, 404);
}

#[tokio::test]
async fn list_files_has_the_newest_first_with_permissions_and_totals() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    output(&app, &session, "python3 -c \"import os\nfor n, name in enumerate(['old', 'new']):\n    open(name, 'w').write('x' * (n + 1)); os.utime(name, (1700000000 + n, 1700000000 + n))\nos.chmod('new', 0o750)\"").await;
    let (status, listed) = app
        .get_json(&format!("/list_files?session_id={session}"))
        .await;
    assert_eq!(status, 200, "{listed}");
    assert_eq!(
        listed,
        json!({"session_id": session, "workspace_dir": "/workspace", "files": [
        {"name": "new", "size_bytes": 2, "modified": "2023-11-14T22:13:21Z", "permissions": "-rwxr-x---"},
        {"name": "old", "size_bytes": 1, "modified": "2023-11-14T22:13:20Z", "permissions": "-rw-r--r--"},
    ], "total_files": 2, "total_size_bytes": 3})
    );
    assert_eq!(app.get_json("/list_files?session_id=unknown").await.0, 404);
    assert_eq!(app.get_json("/list_files").await.0, 400);
}

#[tokio::test]
async fn cleanup_ends_the_session_and_the_thread_can_have_a_new_one() {
    let app = TestApp::start().await;
    let session = open(&app, "t").await;
    output(&app, &session, "echo x > f").await;
    let (status, cleaned) = app.post("/cleanup", json!({"session_id": session})).await;
    assert_eq!(
        (status.as_u16(), cleaned),
        (200, json!({"status": "cleaned_up", "session_id": session}))
    );
    assert!(app.containers().is_empty());
    assert_eq!(execute(&app, &session, "ls").await.0, 404);
    assert_eq!(
        app.post("/cleanup", json!({"session_id": session})).await.0,
        404
    );
    let next = open(&app, "t").await;
    assert_ne!(next, session);
    assert_eq!(output(&app, &next, "ls").await, "");
}

#[tokio::test]
async fn a_session_survives_a_restart_and_dies_after_its_own_time_without_activity() {
    let mut app = TestApp::start_with(&[
        ("SANDBOX_REAPER_INTERVAL", "3600"),
        ("SANDBOX_TTL_SECONDS", "1"),
        ("SANDBOX_IDLE_SECONDS", "1"),
    ])
    .await;
    let session = open(&app, "t").await;
    output(&app, &session, "echo kept > f").await;
    app.kill();
    app.launch().await;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(
        output(&app, &session, "cat f").await,
        "kept\n",
        "the settings of other dialects do not count"
    );
    app.kill();
    // As if it had been created for a second only.
    let meta = app.only_workspace().parent().unwrap().join("meta.json");
    let text = std::fs::read_to_string(&meta).unwrap();
    std::fs::write(&meta, text.replace("\"idle_secs\":1800", "\"idle_secs\":1")).unwrap();
    app.launch().await;
    assert_eq!(output(&app, &session, "cat f").await, "kept\n");
    tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
    let (status, refused) = execute(&app, &session, "cat f").await;
    assert_eq!(
        (status.as_u16(), &refused["error"]),
        (404, &json!("Invalid or expired session"))
    );
    assert_eq!(app.get_json("/get_session?thread_id=t").await.0, 404);
    let next = open(&app, "t").await;
    assert_ne!(next, session);
    assert_eq!(
        output(&app, &next, "ls").await,
        "",
        "the old one went with its files"
    );
}

#[tokio::test]
async fn events_are_in_the_log_with_user_thread_and_session() {
    let app = TestApp::start_with(&[("LOG_FORMAT", "json")]).await;
    let session = open(&app, "t").await;
    create(&app, "t").await;
    output(&app, &session, "echo x > f").await;
    execute(&app, &session, "grep nothing f").await;
    execute(&app, &session, "rm f").await;
    upload(&app, &session, "up", None, b"x").await;
    app.post(
        "/download_file",
        json!({"session_id": session, "filename": "f"}),
    )
    .await;
    let log = app.log();
    for event in [
        "session_created",
        "session_reused",
        "command_executed",
        "command_failed",
        "validation_failed",
        "file_uploaded",
        "file_downloaded",
    ] {
        let line = log
            .lines()
            .find(|line| line.contains(&format!("\"event\":\"{event}\"")));
        let line: Value =
            serde_json::from_str(line.unwrap_or_else(|| panic!("no {event} in {log}"))).unwrap();
        assert_eq!(
            (&line["user_id"], &line["thread_id"], &line["session_id"]),
            (&json!("ada"), &json!("t"), &json!(session)),
            "{line}"
        );
        if event.starts_with("command") {
            assert!(
                line["exit_code"].is_i64() && line["duration_ms"].is_u64(),
                "{line}"
            );
        }
    }
}
