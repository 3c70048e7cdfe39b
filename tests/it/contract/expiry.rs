//! Time runs out for sessions, sandboxes and stored files.

use serde_json::json;

use crate::support::{TestApp, fetch_artifact, free_port, wait_for};

#[tokio::test]
async fn an_idle_session_expires_and_its_stored_files_come_back_when_it_is_used_again() {
    let settings = [
        ("SANDBOX_IDLE_SECONDS", "1"),
        ("SANDBOX_REAPER_INTERVAL", "1"),
        ("DELETE_S3_ON_CLEANUP", "0"),
    ];
    let app = TestApp::start_with(&settings).await;
    app.run(
        "s",
        "import os; os.makedirs('d'); x = 1; open('d/f.txt', 'w').write('one'); open('gone', 'w')",
    )
    .await;
    app.run("s", "os.remove('gone')").await;
    wait_for("the session to expire", || {
        app.containers().is_empty().then_some(())
    })
    .await;
    wait_for("its folder to go", || {
        (!app
            .work_root()
            .join("sessions")
            .read_dir()
            .unwrap()
            .any(|_| true))
        .then_some(())
    })
    .await;
    assert_eq!(app.status("s").await.0, 404);
    assert_eq!(app.list("s").await, ["d/f.txt"], "listing is a use");
    let answer = app
        .run("s", "print(open('d/f.txt').read(), 'x' in globals())")
        .await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("one False\n"), &json!("lost"))
    );
    assert_eq!(answer["artifacts"], json!([]), "restoring is not making");
    assert_eq!(app.run("s", "1").await["state"], "kept");
}

#[tokio::test]
async fn an_expired_sessions_objects_live_as_long_as_its_links() {
    let s3 = format!("127.0.0.1:{}", free_port());
    let settings = [
        ("SANDBOX_IDLE_SECONDS", "1"),
        ("SANDBOX_REAPER_INTERVAL", "1"),
        ("PRESIGN_EXPIRES_SECONDS", "12"),
        ("EMBEDDED_S3_ADDR", s3.as_str()),
    ];
    let mut app = TestApp::start_with(&settings).await;
    let answer = app.run("s", "open('f.txt', 'w').write('one')").await;
    let sessions = app.work_root().join("sessions");
    wait_for("the session to expire", || {
        sessions.read_dir().unwrap().next().is_none().then_some(())
    })
    .await;
    assert_eq!(
        fetch_artifact(&app, &answer, "f.txt").await.0,
        200,
        "the link still works"
    );
    app.kill();
    app.set("SANDBOX_IDLE_SECONDS", "600");
    app.launch().await;
    // A new session of the same ids starts empty, and keeps its own file when the old ones go.
    let fresh = app
        .run_with(
            "s",
            "import os; print(os.listdir()); open('g.txt', 'w').write('two')",
            json!({"presign_expires_in": 600}),
        )
        .await;
    assert_eq!(fresh["output"], "[]\n3\n");
    let tombstones = app.work_root().join("tombstones");
    wait_for("the old objects to go", || {
        tombstones
            .read_dir()
            .unwrap()
            .next()
            .is_none()
            .then_some(())
    })
    .await;
    let objects = stored_files(&app);
    assert!(
        !objects.iter().any(|name| name.contains("f.txt")),
        "{objects:?}"
    );
    assert_eq!(fetch_artifact(&app, &fresh, "g.txt").await.0, 200);
}

#[tokio::test]
async fn a_session_lives_no_longer_than_its_ttl_however_busy() {
    let app = TestApp::start_with(&[
        ("SANDBOX_TTL_SECONDS", "2"),
        ("SANDBOX_REAPER_INTERVAL", "1"),
    ])
    .await;
    app.run("s", "x = 1").await;
    for _ in 0..400 {
        let answer = app.run("s", "'x' in globals()").await;
        if answer["output"] == "False\n" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the session never expired");
}

#[tokio::test]
async fn a_sandbox_without_a_session_is_reaped() {
    let mut app = TestApp::start_with(&[("SANDBOX_REAPER_INTERVAL", "1")]).await;
    app.run("s", "1").await;
    app.run("kept", "x = 1").await;
    let container = app.container_of("s").await;
    app.kill();
    // As after a crash between making a container and writing it down.
    let sessions = app.work_root().join("sessions");
    for entry in walk(&sessions)
        .into_iter()
        .filter(|path| path.ends_with("meta.json"))
    {
        if std::fs::read_to_string(&entry)
            .unwrap()
            .contains(&container)
        {
            std::fs::remove_file(entry).unwrap();
        }
    }
    app.launch().await;
    wait_for("the orphan to go", || {
        (!app.containers().contains(&container)).then_some(())
    })
    .await;
    assert_eq!(app.run("kept", "x").await["output"], "1\n");
}

fn stored_files(app: &TestApp) -> Vec<String> {
    walk(&app.work_root().join("s3"))
        .iter()
        .map(|path| path.to_string_lossy().into_owned())
        .collect()
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in folder.read_dir().unwrap().flatten() {
        if entry.path().is_dir() {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}
