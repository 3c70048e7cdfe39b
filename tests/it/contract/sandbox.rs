//! Reset, interrupt, stop, status, the queue and the capacity.

use std::time::Duration;

use serde_json::json;

use crate::support::{TestApp, wait_for};

#[tokio::test]
async fn a_reset_throws_variables_and_children_away_and_keeps_files() {
    let app = TestApp::start().await;
    app.run("s", "x = 1; open('f', 'w').write('1')\nimport subprocess; child = subprocess.Popen(['sleep', '100'])").await;
    let answer = app.session("sandbox/reset", "s").await;
    assert_eq!(
        (&answer["status"], &answer["output"]),
        (&json!("success"), &json!("Kernel reset.\n"))
    );
    let container = app.status("s").await.1["container_id"].clone();
    assert_eq!(answer["container_id"], container);
    let code = "import os\npids = [int(p) for p in os.listdir('/proc') if p.isdigit()]\nprint('x' in globals(), os.listdir(), len(pids))";
    let next = app.run("s", code).await;
    assert_eq!(
        next["output"], "False ['f'] 2\n",
        "supervisor and worker only"
    );
    assert_eq!(
        next["state"], "kept",
        "a reset that was asked for is no loss"
    );
}

#[tokio::test]
async fn a_reset_ends_a_running_cell() {
    let app = TestApp::start().await;
    app.run("s", "1").await;
    let cell = app.run_with(
        "s",
        "open('on', 'w')\nwhile True: pass",
        json!({"timeout_seconds": 50}),
    );
    let reset = async {
        let on = app.only_workspace().join("on");
        wait_for("the cell to run", || on.exists().then_some(())).await;
        app.session("sandbox/reset", "s").await
    };
    let (answer, _) = tokio::join!(cell, reset);
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("died"), &json!("lost"))
    );
    assert_eq!(app.run("s", "2").await["output"], "2\n");
}

#[tokio::test]
async fn an_interrupt_right_after_a_reset_finds_nothing_to_stop() {
    let app = TestApp::start().await;
    app.run("s", "x = 1").await;
    for _ in 0..10 {
        app.session("sandbox/reset", "s").await;
        let interrupted = app.session("sandbox/interrupt", "s").await;
        assert_eq!(interrupted["status"], "idle", "{interrupted}");
    }
}

#[tokio::test]
async fn an_interrupt_stops_the_running_cell_and_keeps_the_variables() {
    let app = TestApp::start().await;
    assert_eq!(
        app.session("sandbox/interrupt", "s").await,
        json!({"status": "idle", "state": "kept"})
    );
    app.run("s", "x = 1").await;
    let cell = app.run_with(
        "s",
        "open('on', 'w')\nimport time; time.sleep(50)",
        json!({"timeout_seconds": 55}),
    );
    let interrupt = async {
        let on = app.only_workspace().join("on");
        wait_for("the cell to run", || on.exists().then_some(())).await;
        app.session("sandbox/interrupt", "s").await
    };
    let (answer, interrupted) = tokio::join!(cell, interrupt);
    assert_eq!(
        interrupted,
        json!({"status": "interrupted", "state": "kept"})
    );
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("interrupted"), &json!("kept"))
    );
    assert_eq!(app.run("s", "x").await["output"], "1\n");
}

#[tokio::test]
async fn a_stop_deletes_container_folder_and_objects_and_a_second_one_finds_nothing() {
    let app = TestApp::start().await;
    let answer = app.run("s", "x = 1; open('f', 'w').write('1')").await;
    let link = answer["artifacts"][0]["download_url"]
        .as_str()
        .unwrap()
        .to_owned();
    let deleted = app.session("sandbox/stop", "s").await;
    assert_eq!(
        deleted,
        json!({"status": "success", "deleted": {"container": true, "workspace": true, "objects": 1}})
    );
    assert!(app.containers().is_empty());
    assert_eq!(app.client.get(link).send().await.unwrap().status(), 404);
    assert_eq!(app.status("s").await.0, 404);
    let again = app.session("sandbox/stop", "s").await;
    assert_eq!(
        again["deleted"],
        json!({"container": false, "workspace": false, "objects": 0})
    );
    let fresh = app
        .run("s", "import os; print('x' in globals(), os.listdir())")
        .await;
    assert_eq!(
        (&fresh["output"], &fresh["state"]),
        (&json!("False []\n"), &json!("kept"))
    );
}

#[tokio::test]
async fn a_stop_during_a_cell_ends_it_and_queued_cells_run_in_a_new_session() {
    let app = TestApp::start().await;
    app.run("s", "x = 1").await;
    let cell = app.run_with(
        "s",
        "open('on', 'w')\nwhile True: pass",
        json!({"timeout_seconds": 50}),
    );
    let rest = async {
        let on = app.only_workspace().join("on");
        wait_for("the cell to run", || on.exists().then_some(())).await;
        tokio::join!(
            app.run("s", "'x' in globals()"),
            app.session("sandbox/stop", "s")
        )
    };
    let (answer, (queued, stopped)) = tokio::join!(cell, rest);
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("died"), &json!("lost"))
    );
    assert_eq!(stopped["deleted"]["container"], true);
    assert_eq!(queued["output"], "False\n");
}

#[tokio::test]
async fn the_status_tells_what_is_known() {
    let app = TestApp::start().await;
    assert_eq!(app.status("s").await.0, 404);
    app.run("s", "open('f', 'w').write('12345')").await;
    let (status, answer) = app.status("s").await;
    assert_eq!(status, 200);
    assert_eq!(
        (&answer["state"], &answer["backend"]),
        (&json!("idle"), &json!(crate::support::backend()))
    );
    assert_eq!((&answer["files"], &answer["bytes"]), (&json!(1), &json!(5)));
    assert_eq!(answer["kernel_answers"], true);
    assert!(
        answer["memory_bytes"].as_u64().unwrap() > 1_000_000,
        "{answer}"
    );
    assert!(answer["cpu_seconds"].as_f64().unwrap() > 0.0);
    assert!(answer["expires_at"].as_str().unwrap() > answer["created_at"].as_str().unwrap());
    let (_, all) = app.get_json("/v1/sandboxes").await;
    assert_eq!(all["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(all["sandboxes"][0]["session_id"], "s");
    let (status, health) = app.get_json("/health").await;
    assert_eq!(
        (
            status.as_u16(),
            &health["status"],
            &health["active_sessions"]
        ),
        (200, &json!("ok"), &json!(1))
    );
    assert_eq!(
        (&health["backend"], &health["s3"]),
        (&json!(crate::support::backend()), &json!("embedded"))
    );
}

#[tokio::test]
async fn cells_of_one_session_queue_in_order_and_too_many_are_refused() {
    let app = TestApp::start_with(&[("SANDBOX_QUEUE_MAX", "2")]).await;
    app.run("s", "order = []").await;
    let first = app.run_with("s", "open('on', 'w')\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\norder.append(1)", json!({"timeout_seconds": 50}));
    let rest = async {
        let workspace = app.only_workspace();
        wait_for("the cell to run", || {
            workspace.join("on").exists().then_some(())
        })
        .await;
        let body = |n: u32| json!({"user_id": "u", "session_id": "s", "code": format!("order.append({n})")});
        let queue = async {
            let second = app.post("/v1/execute", body(2));
            let third = async {
                wait_until_queued(&app, 1).await;
                app.post("/v1/execute", body(3)).await
            };
            tokio::join!(second, third)
        };
        let refused = async {
            wait_until_queued(&app, 2).await;
            let response = app
                .client
                .post(format!("{}/v1/execute", app.base))
                .json(&body(4))
                .send()
                .await
                .unwrap();
            let retry_after = response.headers().get("retry-after").cloned();
            let refused = (
                response.status().as_u16(),
                retry_after.is_some(),
                response.json::<serde_json::Value>().await.unwrap(),
            );
            // Files do not wait behind the cell.
            assert_eq!(app.list("s").await, ["on"]);
            std::fs::write(workspace.join("go"), "").unwrap();
            refused
        };
        tokio::join!(queue, refused)
    };
    let (_, (_, (status, has_retry_after, problem))) = tokio::join!(first, rest);
    assert_eq!(
        (status, has_retry_after, &problem["code"]),
        (429, true, &json!("busy"))
    );
    assert_eq!(app.run("s", "order").await["output"], "[1, 2, 3]\n");
}

async fn wait_until_queued(app: &TestApp, count: u64) {
    for _ in 0..2000 {
        if app.status("s").await.1["queued_cells"] == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{count} cells never queued");
}

#[tokio::test]
async fn a_full_house_is_said_with_429_and_room_comes_back_with_a_stop() {
    let app = TestApp::start_with(&[("SANDBOX_MAX_TOTAL", "1")]).await;
    app.run("one", "1").await;
    let body = json!({"user_id": "u", "session_id": "two", "code": "1"});
    let (status, problem) = app.post("/v1/execute", body.clone()).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (429, &json!("capacity"))
    );
    app.session("sandbox/stop", "one").await;
    assert_eq!(app.post("/v1/execute", body).await.0, 200);
}
