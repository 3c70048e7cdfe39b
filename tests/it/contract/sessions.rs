//! The sessions dialect, row by row of the contract.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{TestApp, answer};

pub async fn open(app: &TestApp) -> String {
    let (status, session) = app.post("/sessions", json!({})).await;
    assert_eq!(status, 200, "{session}");
    session["session_id"].as_str().unwrap().to_owned()
}

pub async fn step(app: &TestApp, session: &str, kind: &str, text: &str) -> (StatusCode, Value) {
    let field = if kind == "bash" { "cmd" } else { "code" };
    let body = json!({"sandbox_id": session, "type": kind, "payload": {field: text}});
    app.post(&format!("/sessions/{session}/step"), body).await
}

/// A step that is carried out.
pub async fn done(app: &TestApp, session: &str, kind: &str, text: &str) -> Value {
    let (status, answer) = step(app, session, kind, text).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn close(app: &TestApp, session: &str) -> StatusCode {
    let url = format!("{}/sessions/{session}", app.base);
    app.client.delete(url).send().await.unwrap().status()
}

#[tokio::test]
async fn post_sessions_gives_a_new_uuid_with_and_without_a_body() {
    let app = TestApp::start().await;
    let with_body = open(&app).await;
    let request = app.client.post(format!("{}/sessions", app.base));
    let (status, without) = answer(request).await;
    assert_eq!(status, 200);
    for id in [&with_body, without["session_id"].as_str().unwrap()] {
        assert!(uuid::Uuid::parse_str(id).is_ok(), "{id}");
    }
    assert_ne!(without["session_id"], with_body);
}

#[tokio::test]
async fn post_sessions_without_room_says_when_to_come_back_and_is_counted() {
    let app = TestApp::start_with(&[("SANDBOX_MAX_TOTAL", "1")]).await;
    open(&app).await;
    let request = app.client.post(format!("{}/sessions", app.base));
    let refused = request.json(&json!({})).send().await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "10");
    let metrics = app.get("/metrics").send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let counted = "cellblock_refusals_total{code=\"capacity\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn a_python_step_that_exits_with_a_text_prints_it_as_a_script_does() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    for (code, error, exit_code) in [
        ("import sys; sys.exit('boom')", "boom\n", 1),
        ("sys.exit(256 + 3)", "", 3),
        ("sys.exit()", "", 0),
    ] {
        let answer = done(&app, &session, "python", code).await;
        assert_eq!(
            answer,
            json!({"output": "", "error": error, "exit_code": exit_code})
        );
    }
}

#[tokio::test]
async fn a_bash_step_gives_output_error_and_exit_code() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    assert_eq!(
        done(
            &app,
            &session,
            "bash",
            "echo out; echo err >&2; pwd; exit 7"
        )
        .await,
        json!({"output": "out\n/workspace\n", "error": "err\n", "exit_code": 7})
    );
    let missing = done(&app, &session, "bash", "no-such-program").await;
    assert_eq!(missing["exit_code"], 127);
    let read = done(&app, &session, "bash", "cat; echo stdin is closed").await;
    assert_eq!(read["output"], "stdin is closed\n");
}

#[tokio::test]
async fn python_steps_share_variables_with_each_other_and_files_with_bash() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    let first = done(
        &app,
        &session,
        "python",
        "x = 41\nopen('f', 'w').write('from python')\nx",
    )
    .await;
    assert_eq!(
        first,
        json!({"output": "", "error": "", "exit_code": 0}),
        "a script echoes nothing"
    );
    assert_eq!(
        done(&app, &session, "python", "x += 1\nprint(x)").await["output"],
        "42\n"
    );
    assert_eq!(
        done(&app, &session, "bash", "cat f").await["output"],
        "from python"
    );
    let failed = done(
        &app,
        &session,
        "python",
        "import sys\nsys.stderr.write('warned')\n1 / 0",
    )
    .await;
    assert_eq!(failed["exit_code"], 1);
    let text = failed["error"].as_str().unwrap();
    assert!(
        text.starts_with("warned\nTraceback") && text.ends_with("division by zero\n"),
        "{text}"
    );
    assert_eq!(
        done(&app, &session, "python", "sys.exit(5)").await["exit_code"],
        5
    );
    assert_eq!(
        done(&app, &session, "python", "print(x)").await["output"],
        "42\n"
    );
}

#[tokio::test]
async fn a_step_over_its_time_limit_has_exit_code_124_and_says_so() {
    let app = TestApp::start_with(&[("SBS_STEP_TIMEOUT_SEC", "1")]).await;
    let session = open(&app).await;
    done(&app, &session, "python", "x = 1").await;
    for (kind, text) in [
        ("bash", "echo before; sleep 60; echo after"),
        ("python", "print('before')\nwhile True: pass"),
    ] {
        let answer = done(&app, &session, kind, text).await;
        assert_eq!(
            (&answer["exit_code"], &answer["output"]),
            (&json!(124), &json!("before\n")),
            "{answer}"
        );
        assert!(
            answer["error"]
                .as_str()
                .unwrap()
                .contains("stopped after 1 seconds"),
            "{answer}"
        );
    }
    assert_eq!(
        done(&app, &session, "python", "print(x)").await["output"],
        "1\n"
    );
}

#[tokio::test]
async fn a_sandbox_id_that_is_not_the_one_in_the_path_is_422() {
    let app = TestApp::start().await;
    let (session, other) = (open(&app).await, open(&app).await);
    let body = json!({"sandbox_id": other, "type": "bash", "payload": {"cmd": "touch wrong"}});
    let (status, refused) = app.post(&format!("/sessions/{session}/step"), body).await;
    assert_eq!(status, 422);
    assert!(refused["detail"].as_str().unwrap().contains("sandbox_id"));
    for id in [&session, &other] {
        assert_eq!(
            done(&app, id, "bash", "ls").await["output"],
            "",
            "nothing ran"
        );
    }
}

#[tokio::test]
async fn a_body_that_is_not_a_step_is_422() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    let path = format!("/sessions/{session}/step");
    for body in [
        json!({}),
        json!({"sandbox_id": session, "type": "ruby", "payload": {"cmd": "1"}}),
        json!({"sandbox_id": session, "type": "bash", "payload": {"code": "1"}}),
        json!({"sandbox_id": session, "type": "python", "payload": {"cmd": "1"}}),
        json!({"sandbox_id": session, "type": "bash", "payload": {"cmd": "1", "code": "1"}}),
        json!({"sandbox_id": session, "type": "bash", "payload": "1"}),
        json!({"sandbox_id": 1, "type": "bash", "payload": {"cmd": "1"}}),
    ] {
        let (status, refused) = app.post(&path, body.clone()).await;
        assert_eq!(status, 422, "{body}: {refused}");
        assert!(refused["detail"].is_string(), "{refused}");
    }
    let request = app
        .client
        .post(format!("{}{path}", app.base))
        .body("not json");
    assert_eq!(answer(request).await.0, 422);
}

#[tokio::test]
async fn delete_is_204_and_takes_folder_and_processes_and_the_session_is_404_from_then_on() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    done(&app, &session, "bash", "touch f; sleep 300 & echo started").await;
    assert_eq!(app.containers().len(), 1);
    assert_eq!(close(&app, &session).await, 204);
    assert!(app.containers().is_empty());
    let folders = app.work_root().join("sessions").read_dir().unwrap();
    assert_eq!(folders.count(), 0);
    assert_eq!(step(&app, &session, "bash", "true").await.0, 404);
    assert_eq!(step(&app, &session, "python", "1").await.0, 404);
    assert_eq!(close(&app, &session).await, 404);
}

#[tokio::test]
async fn an_unknown_session_is_404_and_is_not_created() {
    let app = TestApp::start().await;
    let unknown = uuid::Uuid::new_v4().to_string();
    for id in [unknown.as_str(), "no-uuid", "..%2f..", "%00"] {
        let body = json!({"sandbox_id": id, "type": "bash", "payload": {"cmd": "true"}});
        let (status, _) = app.post(&format!("/sessions/{id}/step"), body).await;
        assert!(status == 404 || status == 422, "{id}: {status}");
    }
    assert!(app.containers().is_empty());
}

#[tokio::test]
async fn a_session_and_its_variables_survive_a_kill_of_the_service() {
    let mut app = TestApp::start().await;
    let session = open(&app).await;
    done(&app, &session, "python", "x = 1").await;
    app.kill();
    app.launch().await;
    assert_eq!(
        done(&app, &session, "python", "print(x)").await["output"],
        "1\n"
    );
    assert_eq!(
        done(&app, &session, "bash", "echo here").await["output"],
        "here\n"
    );
}

#[tokio::test]
async fn callers_of_v1_cannot_reach_into_a_session_of_this_dialect() {
    let app = TestApp::start().await;
    let session = open(&app).await;
    done(&app, &session, "bash", "echo secret > f").await;
    let as_v1 =
        json!({"user_id": "sessions", "session_id": session, "code": "import os; os.listdir()"});
    assert_eq!(app.post("/v1/execute", as_v1).await.1["output"], "[]\n");
    let forged = json!({"user_id": "/sessions", "session_id": session, "code": "1"});
    assert_eq!(app.post("/v1/execute", forged).await.0, 400);
}
