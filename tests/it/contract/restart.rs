//! The service goes and comes back: variables, files, links and queues survive what they can.

use serde_json::json;

use crate::support::{TestApp, fetch_artifact, free_port, wait_for};

#[tokio::test]
async fn variables_survive_a_kill_of_the_service() {
    let mut app = TestApp::start().await;
    app.run("s", "x = 41; open('f', 'w').write('f')").await;
    let container = app.status("s").await.1["container_id"].clone();
    for round in 0..3 {
        app.kill();
        app.launch().await;
        let answer = app.run("s", "x += 1; x").await;
        assert_eq!(
            (&answer["output"], &answer["state"]),
            (&json!(format!("{}\n", 42 + round)), &json!("kept"))
        );
    }
    assert_eq!(app.status("s").await.1["container_id"], container);
    assert_eq!(app.containers().len(), 1);
    assert_eq!(app.list("s").await, ["f"]);
}

#[tokio::test]
async fn variables_survive_a_graceful_restart_and_the_service_ends_well() {
    let mut app = TestApp::start().await;
    app.run("s", "x = 1").await;
    let status = app.terminate().await;
    assert!(status.success(), "{status}");
    app.launch().await;
    assert_eq!(app.run("s", "x").await["output"], "1\n");
}

#[tokio::test]
async fn a_cell_that_runs_during_a_kill_goes_on_and_its_variables_are_there() {
    let mut app = TestApp::start().await;
    app.run("s", "import os, time").await;
    let body = json!({"user_id": "u", "session_id": "s", "detach": true, "timeout_seconds": 50,
        "code": "open('on', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)\ny = 7"});
    let request = app
        .client
        .post(format!("{}/v1/execute", app.base))
        .json(&body)
        .send();
    let request = tokio::spawn(request);
    let workspace = app.only_workspace();
    wait_for("the cell to run", || {
        workspace.join("on").exists().then_some(())
    })
    .await;
    app.kill();
    assert!(request.await.unwrap().is_err());
    app.launch().await;
    std::fs::write(workspace.join("go"), "").unwrap();
    let answer = app.run("s", "y").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("7\n"), &json!("kept"))
    );
}

#[tokio::test]
async fn a_graceful_end_interrupts_a_cell_that_does_not_finish_and_keeps_the_sandbox() {
    let mut app = TestApp::start().await;
    app.run("s", "x = 1").await;
    let body = json!({"user_id": "u", "session_id": "s", "timeout_seconds": 300, "code": "open('on', 'w')\nimport time; time.sleep(200)"});
    let request = tokio::spawn(
        app.client
            .post(format!("{}/v1/execute", app.base))
            .json(&body)
            .send(),
    );
    let on = app.only_workspace().join("on");
    wait_for("the cell to run", || on.exists().then_some(())).await;
    assert!(app.terminate().await.success());
    let answer: serde_json::Value = request.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("interrupted"), &json!("kept"))
    );
    app.launch().await;
    assert_eq!(app.run("s", "x").await["output"], "1\n");
}

#[tokio::test]
async fn links_handed_out_before_a_restart_work_after_it() {
    let s3 = format!("127.0.0.1:{}", free_port());
    let mut app = TestApp::start_with(&[("EMBEDDED_S3_ADDR", s3.as_str())]).await;
    let answer = app.run("s", "open('f.txt', 'w').write('content')").await;
    app.kill();
    app.launch().await;
    assert_eq!(
        fetch_artifact(&app, &answer, "f.txt").await,
        (reqwest::StatusCode::OK, b"content".to_vec())
    );
}

#[tokio::test]
async fn a_sandbox_that_died_while_the_service_was_away_is_replaced_and_said_once() {
    let mut app = TestApp::start().await;
    app.run("s", "x = 1; open('f', 'w').write('f')").await;
    app.kill();
    let purged = crate::support::command("purge")
        .env("WORK_ROOT", app.work_root())
        .output()
        .unwrap();
    assert!(purged.status.success(), "{purged:?}");
    app.launch().await;
    let answer = app
        .run("s", "import os; print('x' in globals(), os.listdir())")
        .await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("False ['f']\n"), &json!("lost"))
    );
    assert_eq!(app.run("s", "1").await["state"], "kept");
}

#[tokio::test]
async fn a_sandbox_killed_behind_our_back_is_replaced_and_said_once() {
    let app = TestApp::start().await;
    app.run("s", "x = 1; open('f', 'w').write('f')").await;
    let meta = app.only_workspace().parent().unwrap().join("meta.json");
    let meta: serde_json::Value = serde_json::from_slice(&std::fs::read(meta).unwrap()).unwrap();
    let init = meta["sandbox"]["init_pid"].as_i64().unwrap() as i32;
    let init = rustix::process::Pid::from_raw(init).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    let status = format!("/proc/{}/status", init.as_raw_nonzero());
    let is_dead =
        || std::fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ"));
    wait_for("the sandbox to die", || is_dead().then_some(())).await;
    let answer = app
        .run("s", "import os; print('x' in globals(), os.listdir())")
        .await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("False ['f']\n"), &json!("lost"))
    );
    assert_eq!(app.run("s", "1").await["state"], "kept");
    assert_eq!(app.containers().len(), 1);
}

#[tokio::test]
async fn a_second_service_on_the_same_work_root_is_refused() {
    let app = TestApp::start().await;
    let second = crate::support::command("serve")
        .env("WORK_ROOT", app.work_root())
        .output()
        .unwrap();
    assert!(!second.status.success());
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        text.contains("WORK_ROOT") && text.contains("in use"),
        "{text}"
    );
    assert_eq!(app.run("s", "1").await["status"], "ok");
}

#[tokio::test]
async fn a_cell_that_an_earlier_service_left_running_can_be_interrupted() {
    let mut app = TestApp::start().await;
    app.run("s", "x = 1").await;
    let body = json!({"user_id": "u", "session_id": "s", "detach": true, "timeout_seconds": 300,
        "code": "open('on', 'w')\nimport time; time.sleep(250)"});
    let request = tokio::spawn(
        app.client
            .post(format!("{}/v1/execute", app.base))
            .json(&body)
            .send(),
    );
    let on = app.only_workspace().join("on");
    wait_for("the cell to run", || on.exists().then_some(())).await;
    app.kill();
    assert!(request.await.unwrap().is_err());
    app.launch().await;
    let status = loop {
        let status = app.status("s").await.1;
        if status["kernel_answers"] == true {
            break status;
        }
    };
    assert_eq!(status["state"], "running");
    assert_eq!(
        app.session("sandbox/interrupt", "s").await,
        json!({"status": "interrupted", "state": "kept"})
    );
    assert_eq!(app.run("s", "x").await["output"], "1\n");
}

#[tokio::test]
async fn a_loss_that_was_said_is_not_said_again_after_a_restart() {
    let mut app = TestApp::start().await;
    app.run("died", "x = 1").await;
    assert_eq!(
        app.run("died", "import os; os._exit(1)").await["state"],
        "lost"
    );
    app.run("reset", "x = 1").await;
    app.session("sandbox/reset", "reset").await;
    app.kill();
    app.launch().await;
    assert_eq!(app.run("died", "1").await["state"], "kept");
    assert_eq!(app.run("reset", "1").await["state"], "kept");
}

#[tokio::test]
async fn a_shutdown_refuses_waiting_cells_with_503_and_ends_stubborn_ones_together() {
    let mut app = TestApp::start().await;
    let stubborn = "import signal, time\nopen('on', 'w')\nsignal.signal(2, signal.SIG_IGN)\nwhile True: time.sleep(1)";
    let mut cells = Vec::new();
    for session in ["a", "b", "c", "d"] {
        app.run(session, "1").await;
        let body = json!({"user_id": "u", "session_id": session, "timeout_seconds": 300, "code": stubborn});
        cells.push(tokio::spawn(
            app.client
                .post(format!("{}/v1/execute", app.base))
                .json(&body)
                .send(),
        ));
        app.wait_for_state(session, "running").await;
    }
    let waiting = json!({"user_id": "u", "session_id": "a", "code": "open('ran', 'w')"});
    let waiting = tokio::spawn(
        app.client
            .post(format!("{}/v1/execute", app.base))
            .json(&waiting)
            .send(),
    );
    while app.status("a").await.1["queued_cells"] != 1 {}
    assert!(app.terminate().await.success());
    for cell in cells {
        let answer: serde_json::Value = cell.await.unwrap().unwrap().json().await.unwrap();
        assert_eq!(answer["status"], "interrupted", "{answer}");
    }
    assert_eq!(waiting.await.unwrap().unwrap().status(), 503);
    app.launch().await;
    assert_eq!(app.list("a").await, ["on"], "the waiting cell never ran");
}

fn meta_file(app: &TestApp) -> std::path::PathBuf {
    app.only_workspace().parent().unwrap().join("meta.json")
}

fn read_meta(app: &TestApp) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(meta_file(app)).unwrap()).unwrap()
}

#[tokio::test]
async fn a_loss_that_no_answer_carried_before_the_service_died_is_said_once_after_it() {
    let mut app = TestApp::start().await;
    app.run("s", "x = 1").await;
    app.run("s", "import os; os._exit(1)").await;
    assert_eq!(read_meta(&app)["lost"], false, "it was said");
    app.kill();
    // As it is on disk after the death of a worker and before the answer.
    let mut meta = read_meta(&app);
    meta["lost"] = json!(true);
    std::fs::write(meta_file(&app), meta.to_string()).unwrap();
    app.launch().await;
    assert_eq!(app.run("s", "1").await["state"], "lost");
    app.kill();
    app.launch().await;
    assert_eq!(app.run("s", "1").await["state"], "kept");
}

#[tokio::test]
async fn a_sandbox_that_was_lost_with_a_cell_is_not_said_again_after_a_restart() {
    let mut app = TestApp::start().await;
    app.run("s", "x = 1").await;
    let init = read_meta(&app)["sandbox"]["init_pid"].as_i64().unwrap();
    let init = rustix::process::Pid::from_raw(init as i32).unwrap();
    let on = app.only_workspace().join("on");
    let cell = app.run("s", "open('on', 'w')\nimport time; time.sleep(50)");
    let killing = async {
        wait_for("the cell to run", || on.exists().then_some(())).await;
        rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    };
    let (answer, ()) = tokio::join!(cell, killing);
    assert_eq!(answer["state"], "lost");
    app.kill();
    app.launch().await;
    assert_eq!(app.run("s", "1").await["state"], "kept");
}

#[tokio::test]
async fn variables_of_an_earlier_life_are_said_to_be_lost_also_if_the_service_dies_in_between() {
    let mut app = TestApp::start_with(&[("DELETE_S3_ON_CLEANUP", "0")]).await;
    app.run("s", "x = 1; open('f', 'w').write('f')").await;
    app.session("sandbox/stop", "s").await;
    assert_eq!(app.list("s").await, ["f"]);
    app.kill();
    app.launch().await;
    assert_eq!(app.run("s", "1").await["state"], "lost");
    assert_eq!(app.run("s", "1").await["state"], "kept");
}
