//! Sandboxes that wait for their session.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{TestApp, backend, docker, wait_for};

async fn with_pool(more: &[(&str, &str)]) -> TestApp {
    let settings = [
        &[("SANDBOX_POOL_SIZE", "2"), ("SANDBOX_REAPER_INTERVAL", "1")],
        more,
    ]
    .concat();
    let app = TestApp::start_with(&settings).await;
    wait_until_available(&app, 2).await;
    app
}

async fn wait_until_available(app: &TestApp, count: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, health) = app.get_json("/health").await;
        if health["pool_available"] == count {
            return;
        }
        assert!(Instant::now() < deadline, "{health}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_new_session_takes_a_sandbox_that_waits_and_another_takes_its_place() {
    let app = with_pool(&[("SANDBOX_PRELOAD", "sqlite3")]).await;
    let waiting = app.containers();
    assert_eq!(waiting.len(), 2);
    assert_eq!(
        app.get_json("/v1/sandboxes").await.1,
        json!({"sandboxes": []})
    );
    let answer = app
        .run(
            "s",
            "import sys, os; print('sqlite3' in sys.modules, os.listdir())",
        )
        .await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("True []\n"), &json!("kept"))
    );
    assert!(waiting.contains(&app.container_of("s").await));
    wait_until_available(&app, 2).await;
    assert_eq!(app.containers().len(), 3);
    let (_, health) = app.get_json("/health").await;
    assert_eq!(
        (&health["pool_size"], &health["active_sessions"]),
        (&json!(2), &json!(1))
    );
}

#[tokio::test]
async fn a_session_that_begins_with_an_upload_finds_it_in_its_pooled_sandbox() {
    let app = with_pool(&[]).await;
    let waiting = app.containers();
    let (status, _) = app
        .upload("s", "in.txt", b"from outside", Some("data"))
        .await;
    assert_eq!(status, 200);
    let answer = app
        .run(
            "s",
            "open('out.txt', 'w').write(open('data/in.txt').read())",
        )
        .await;
    assert_eq!(answer["artifacts"][0]["path"], "out.txt", "{answer}");
    assert!(waiting.contains(&app.container_of("s").await));
    assert_eq!(app.list("s").await, ["data/in.txt", "out.txt"]);
}

#[tokio::test]
async fn stored_files_come_back_into_a_pooled_sandbox() {
    let app = with_pool(&[("DELETE_S3_ON_CLEANUP", "0")]).await;
    app.run("s", "x = 1; open('f.txt', 'w').write('kept')")
        .await;
    app.session("sandbox/stop", "s").await;
    wait_until_available(&app, 2).await;
    let waiting = app.containers();
    let answer = app
        .run("s", "print(open('f.txt').read(), 'x' in globals())")
        .await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("kept False\n"), &json!("lost"))
    );
    assert!(waiting.contains(&app.container_of("s").await));
}

#[tokio::test]
async fn sessions_from_the_pool_survive_a_kill_and_what_waited_is_collected() {
    let mut app = with_pool(&[]).await;
    app.run("s", "x = 41; open('f', 'w').write('f')").await;
    let container = app.container_of("s").await;
    wait_until_available(&app, 2).await;
    let waited: Vec<String> = app
        .containers()
        .into_iter()
        .filter(|id| *id != container)
        .collect();
    app.kill();
    app.launch().await;
    let answer = app.run("s", "x += 1; x").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("42\n"), &json!("kept"))
    );
    assert_eq!(app.container_of("s").await, container);
    wait_until_available(&app, 2).await;
    let now = app.containers();
    assert_eq!(now.len(), 3, "{now:?}");
    assert!(waited.iter().all(|id| !now.contains(id)));
    assert_eq!(app.list("s").await, ["f"]);
}

#[tokio::test]
async fn a_graceful_end_leaves_only_the_sandboxes_of_sessions() {
    let mut app = with_pool(&[]).await;
    app.run("s", "x = 1").await;
    let container = app.container_of("s").await;
    wait_until_available(&app, 2).await;
    assert!(app.terminate().await.success());
    assert_eq!(app.containers(), [container]);
    let folders = app.work_root().join("pool").read_dir();
    assert_eq!(folders.map_or(0, Iterator::count), 0);
}

#[tokio::test]
async fn what_waits_counts_as_alive_but_makes_room_for_what_is_needed() {
    let settings = [("SANDBOX_MAX_TOTAL", "2"), ("DELETE_S3_ON_CLEANUP", "0")];
    let app = with_pool(&settings).await;
    app.run("stored", "open('f', 'w').write('1')").await;
    app.session("sandbox/stop", "stored").await;
    wait_until_available(&app, 2).await;
    // Looking at the files of a session takes no sandbox; running in it then needs a place that the pool has.
    assert_eq!(app.list("stored").await, ["f"]);
    assert_eq!(app.containers().len(), 2);
    assert_eq!(
        app.run("stored", "open('f').read()").await["output"],
        "'1'\n"
    );
    app.run("second", "1").await;
    let body = json!({"user_id": "u", "session_id": "third", "code": "1"});
    let (status, problem) = app.post("/v1/execute", body).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (429, &json!("capacity"))
    );
    assert_eq!(app.containers().len(), 2);
}

/// Kills a sandbox and waits until it is dead; the service may have noticed by then, or not.
async fn end_behind_our_back(app: &TestApp, container: &str) {
    if backend() == "docker" {
        docker(&["kill", container]);
        let running = ["ps", "--quiet", "--no-trunc"];
        let is_dead = || (!docker(&running).contains(container)).then_some(());
        return wait_for("the sandbox to die", is_dead).await;
    }
    let folder = app.work_root().join("containers").join(container);
    let init = std::fs::read(folder.join("init.json")).unwrap();
    let init: serde_json::Value = serde_json::from_slice(&init).unwrap();
    let pid = rustix::process::Pid::from_raw(init["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let status = format!("/proc/{}/status", pid.as_raw_nonzero());
    let is_dead =
        || std::fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ"));
    wait_for("the sandbox to die", || is_dead().then_some(())).await;
}

#[tokio::test]
async fn a_sandbox_that_dies_before_any_code_ran_in_it_took_no_variables_with_it() {
    let app = with_pool(&[]).await;
    app.upload("s", "in.txt", b"kept", None).await;
    end_behind_our_back(&app, &app.container_of("s").await).await;
    let answer = app.run("s", "open('in.txt').read()").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("'kept'\n"), &json!("kept"))
    );
}

#[tokio::test]
async fn a_sandbox_that_dies_while_it_waits_is_replaced_and_never_handed_out() {
    let app = with_pool(&[]).await;
    let doomed = app.containers()[0].clone();
    end_behind_our_back(&app, &doomed).await;
    wait_for("the dead one to go", || {
        (!app.containers().contains(&doomed)).then_some(())
    })
    .await;
    wait_until_available(&app, 2).await;
    for session in ["a", "b"] {
        assert_eq!(app.run(session, "1").await["state"], "kept");
        assert_ne!(app.container_of(session).await, doomed);
    }
}

#[tokio::test]
async fn many_first_calls_at_once_get_a_sandbox_each() {
    let app = with_pool(&[]).await;
    let names: Vec<String> = (0..8).map(|n| format!("s{n}")).collect();
    let calls = names
        .iter()
        .map(|name| app.run(name, "import os; os.listdir()"));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer["output"], "[]\n", "{answer}");
    }
    let mut containers = Vec::new();
    for name in &names {
        containers.push(app.container_of(name).await);
    }
    containers.sort();
    containers.dedup();
    assert_eq!(containers.len(), 8, "no two share one");
}
