//! The store is elsewhere, is down, or comes back: nothing is lost, and answers say how it is.

use std::path::Path;

use serde_json::json;

use super::outside_s3::{Behaviour, OutsideS3, S3Proxy};
use crate::support::{TestApp, fetch_artifact, free_port, wait_for};

pub async fn app_on(port: u16, more: &[(&str, &str)]) -> TestApp {
    let endpoint = format!("http://127.0.0.1:{port}");
    let mut settings = vec![
        ("S3_ENDPOINT_URL", endpoint.as_str()),
        ("S3_ACCESS_KEY_ID", "outside"),
        ("S3_SECRET_ACCESS_KEY", "outside-secret"),
        ("S3_BUCKET", "made-if-missing"),
        ("SANDBOX_REAPER_INTERVAL", "1"),
    ];
    settings.extend(more);
    TestApp::start_with(&settings).await
}

#[tokio::test]
async fn any_s3_serves_and_the_bucket_is_made() {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let s3 = OutsideS3::start(root.path(), port).await;
    let app = app_on(
        port,
        &[(
            "S3_PUBLIC_ENDPOINT_URL",
            &format!("http://localhost:{port}"),
        )],
    )
    .await;
    let answer = app.run("s", "open('f', 'w').write('x')").await;
    let link = answer["artifacts"][0]["download_url"].as_str().unwrap();
    assert!(
        link.starts_with(&format!(
            "http://localhost:{port}/made-if-missing/sandboxes/"
        )),
        "{link}"
    );
    assert_eq!(
        fetch_artifact(&app, &answer, "f").await,
        (reqwest::StatusCode::OK, b"x".to_vec())
    );
    assert_eq!(app.get_json("/health").await.1["s3"], "external");
    s3.end().await;
}

#[tokio::test]
async fn case_46_a_store_that_is_down_fails_no_cell_and_gets_everything_when_it_is_back() {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let app = app_on(port, &[("DELETE_S3_ON_CLEANUP", "0")]).await;
    let (status, health) = app.get_json("/health").await;
    assert_eq!(
        (status.as_u16(), &health["status"]),
        (503, &json!("degraded"))
    );
    assert!(
        health["reasons"]
            .as_array()
            .unwrap()
            .iter()
            .any(|reason| reason.as_str().unwrap().contains("store"))
    );
    let answer = app
        .run_with(
            "s",
            "x = 1; open('f', 'w').write('precious')",
            json!({"timeout_seconds": 50}),
        )
        .await;
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("ok"), &json!("kept"))
    );
    assert!(answer["sync"]["error"].is_string(), "{answer}");
    assert_eq!(
        (
            &answer["artifacts"][0]["path"],
            &answer["artifacts"][0]["download_url"]
        ),
        (&json!("f"), &json!(null))
    );
    let s3 = OutsideS3::start(root.path(), port).await;
    while app.get_json("/health").await.0 != 200 {}
    // Stored under its name, not just on its way: the stored manifest, which goes last, names it.
    let digest = answer["artifacts"][0]["sha256"]
        .as_str()
        .unwrap()
        .to_owned();
    wait_for("the file to be stored", || {
        find(root.path(), digest.as_bytes()).then_some(())
    })
    .await;
    wait_for_synced(&app).await;
    let again = app.run("s", "x").await;
    assert_eq!(
        (&again["output"], &again["artifacts"]),
        (&json!("1\n"), &json!([]))
    );
    assert_eq!(
        again["sync"],
        json!({"uploaded": 0, "unchanged": 1, "skipped": []})
    );
    assert_eq!(app.get_json("/health").await.0, 200);
    app.session("sandbox/stop", "s").await;
    assert_eq!(
        app.run("s", "open('f').read()").await["output"],
        "'precious'\n",
        "it was really stored"
    );
    s3.end().await;
}

#[tokio::test]
async fn case_46_an_expired_session_keeps_its_folder_until_its_files_are_stored() {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let s3 = OutsideS3::start(root.path(), port).await;
    let app = app_on(
        port,
        &[("DELETE_S3_ON_CLEANUP", "0"), ("SANDBOX_IDLE_SECONDS", "2")],
    )
    .await;
    app.run("s", "open('first', 'w').write('1')").await;
    s3.end().await;
    app.run_with(
        "s",
        "open('f', 'w').write('precious')",
        json!({"timeout_seconds": 50}),
    )
    .await;
    wait_for("the sandbox to go", || {
        app.containers().is_empty().then_some(())
    })
    .await;
    assert_eq!(
        std::fs::read(app.only_workspace().join("f")).unwrap(),
        b"precious"
    );
    let s3 = OutsideS3::start(root.path(), port).await;
    wait_for("the file to be stored", || {
        find(root.path(), b"precious").then_some(())
    })
    .await;
    assert_eq!(
        app.run("s", "open('f').read()").await["output"],
        "'precious'\n"
    );
    s3.end().await;
}

#[tokio::test]
async fn case_46_a_store_that_was_down_when_the_session_came_back_still_gives_its_files_after_a_restart()
 {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let s3 = OutsideS3::start(root.path(), port).await;
    let mut app = app_on(port, &[("DELETE_S3_ON_CLEANUP", "0")]).await;
    app.run("s", "open('old', 'w').write('stored before')")
        .await;
    app.session("sandbox/stop", "s").await;
    s3.end().await;
    let answer = app
        .run_with(
            "s",
            "open('new', 'w').write('made meanwhile')",
            json!({"timeout_seconds": 50}),
        )
        .await;
    assert!(answer["sync"]["error"].is_string(), "{answer}");
    app.kill();
    let s3 = OutsideS3::start(root.path(), port).await;
    app.launch().await;
    let files = app
        .run(
            "s",
            "import os; print(sorted(os.listdir()), open('new').read())",
        )
        .await;
    assert_eq!(files["sync"].get("error"), None, "{files}");
    assert_eq!(
        app.run("s", "sorted(os.listdir())").await["output"],
        "['new', 'old']\n"
    );
    app.session("sandbox/stop", "s").await;
    assert_eq!(app.list("s").await, ["new", "old"], "both are stored now");
    s3.end().await;
}

#[tokio::test]
async fn case_46_a_stop_while_the_store_is_down_is_carried_out_when_it_is_back() {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let s3 = OutsideS3::start(root.path(), port).await;
    let app = app_on(port, &[]).await;
    app.run("s", "open('f', 'w').write('precious')").await;
    s3.end().await;
    let stopped = app.session("sandbox/stop", "s").await;
    assert_eq!(stopped["deleted"]["objects_pending"], true, "{stopped}");
    let s3 = OutsideS3::start(root.path(), port).await;
    assert_eq!(
        app.run("s", "import os; os.listdir()").await["output"],
        "[]\n",
        "a stopped session does not come back"
    );
    wait_for("the old object to go", || {
        (!find(root.path(), b"precious")).then_some(())
    })
    .await;
    s3.end().await;
}

/// Until a cell finds everything stored.
async fn wait_for_synced(app: &TestApp) {
    for _ in 0..100 {
        if app.run("s", "None").await["sync"].get("error").is_none() {
            return;
        }
    }
    panic!("the store never caught up");
}

fn find(folder: &Path, content: &[u8]) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return find(&path, content);
        }
        std::fs::read(path)
            .is_ok_and(|bytes| bytes.windows(content.len()).any(|window| window == content))
    })
}

#[tokio::test]
async fn case_46_a_stop_that_must_not_lose_files_fails_while_the_store_is_down_and_says_that_variables_went()
 {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let s3 = OutsideS3::start(root.path(), port).await;
    let app = app_on(port, &[("DELETE_S3_ON_CLEANUP", "0")]).await;
    app.run("s", "x = 1; open('stored', 'w').write('1')").await;
    s3.end().await;
    let late = json!({"timeout_seconds": 50});
    app.run_with("s", "open('late', 'w').write('2')", late.clone())
        .await;
    let ids = json!({"user_id": "u", "session_id": "s"});
    let (status, problem) = app.post("/v1/sandbox/stop", ids).await;
    assert_eq!(status, 503, "{problem}");
    let answer = app
        .run_with("s", "open('late').read(), 'x' in globals()", late)
        .await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("('2', False)\n"), &json!("lost"))
    );
}

/// Everything an S3 service can do wrong, one after the other, while a session goes on working.
#[tokio::test]
async fn case_46_errors_delays_resets_and_half_answers_are_retried_and_the_manifest_names_only_what_is_there()
 {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let s3 = OutsideS3::start(root.path(), port).await;
    let proxy = S3Proxy::start(port).await;
    let app = app_on(proxy.port, &[("DELETE_S3_ON_CLEANUP", "0")]).await;
    app.run("s", "runs = []").await;
    let behaviours = [
        Behaviour::Status(500),
        Behaviour::Status(503),
        Behaviour::Reset,
        Behaviour::CutAnswer,
        Behaviour::Slow,
        Behaviour::Passing,
    ];
    for (round, behaviour) in behaviours.into_iter().enumerate() {
        proxy.set(behaviour);
        let code =
            format!("runs.append({round}); open('f{round}', 'w').write('content {round}'); runs");
        let answer = app
            .run_with("s", &code, json!({"timeout_seconds": 50}))
            .await;
        assert_eq!(
            (&answer["status"], &answer["state"]),
            (&json!("ok"), &json!("kept")),
            "{behaviour:?}: {answer}"
        );
        assert_manifest_is_true(root.path());
        if behaviour == Behaviour::Slow || behaviour == Behaviour::Passing {
            assert_eq!(answer["sync"].get("error"), None, "{behaviour:?}");
        }
    }
    wait_for_synced(&app).await;
    app.session("sandbox/stop", "s").await;
    let answer = app
        .run(
            "s",
            "import os; print(*[open(f'f{n}').read() for n in range(6)], len(os.listdir()))",
        )
        .await;
    assert_eq!(
        answer["output"], "content 0 content 1 content 2 content 3 content 4 content 5 6\n",
        "all of them were stored"
    );
    s3.end().await;
}

/// A store that fails now and then, at random, for many cells: in the end it has exactly what the workspace has.
#[tokio::test]
async fn case_46_a_store_that_fails_every_third_time_ends_up_with_everything() {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let s3 = OutsideS3::start(root.path(), port).await;
    let proxy = S3Proxy::start(port).await;
    let app = app_on(proxy.port, &[("DELETE_S3_ON_CLEANUP", "0")]).await;
    app.run("s", "1").await;
    proxy.set(Behaviour::EveryThird(500));
    for round in 0..20 {
        let code = format!("open('f{}', 'w').write('{round}')", round % 7);
        app.run_with("s", &code, json!({"timeout_seconds": 50}))
            .await;
        assert_manifest_is_true(root.path());
    }
    proxy.set(Behaviour::Passing);
    wait_for_synced(&app).await;
    app.session("sandbox/stop", "s").await;
    let answer = app
        .run("s", "[open(f'f{n}').read() for n in range(7)]")
        .await;
    assert_eq!(
        answer["output"],
        "['14', '15', '16', '17', '18', '19', '13']\n"
    );
    s3.end().await;
}

/// Whatever happened on the way: each file that a stored manifest names has its object.
fn assert_manifest_is_true(root: &Path) {
    let mut files = Vec::new();
    all_files(root, &mut files);
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let names: Vec<String> = files.iter().map(name).collect();
    let manifests = files
        .iter()
        .filter(|path| name(path).ends_with(".manifest.json"));
    for manifest in manifests {
        // Body and metadata of an object are one file; the body is the only JSON with files in it.
        let bytes = std::fs::read(manifest).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let body = &text[text.find("{\"version\"").unwrap()..];
        let mut documents = serde_json::Deserializer::from_str(body).into_iter();
        let document: serde_json::Value = documents.next().unwrap().unwrap();
        for file in document["files"].as_array().unwrap() {
            let object = format!("o-{}", file["path"].as_str().unwrap());
            assert!(names.contains(&object), "{object} is missing: {names:?}");
        }
    }
}

fn all_files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => all_files(&entry.path(), found),
            false => found.push(entry.path()),
        }
    }
}

#[tokio::test]
async fn case_46_a_store_that_hangs_does_not_keep_the_reaper_from_its_other_work() {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let s3 = OutsideS3::start(root.path(), port).await;
    let mut app = app_on(port, &[]).await;
    app.run("s", "open('f', 'w').write('x')").await;
    let meta = app.only_workspace().parent().unwrap().join("meta.json");
    let meta: serde_json::Value = serde_json::from_slice(&std::fs::read(meta).unwrap()).unwrap();
    app.kill();
    s3.end().await;
    // Connections stand and nothing comes back. What is taken over has to be synced at the first look.
    let address = format!("127.0.0.1:{port}");
    let _hangs = wait_for("the port", || std::net::TcpListener::bind(&address).ok()).await;
    app.launch().await;
    wait_for_a_look(&app).await;
    let init = meta["sandbox"]["init_pid"].as_i64().unwrap() as i32;
    let init = rustix::process::Pid::from_raw(init).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    wait_for("the dead sandbox to go", || {
        app.containers().is_empty().then_some(())
    })
    .await;
}

/// The reaper looks at the trash after everything else that does not need the store.
async fn wait_for_a_look(app: &TestApp) {
    let rubbish = app.work_root().join("trash/rubbish");
    std::fs::create_dir(&rubbish).unwrap();
    wait_for("the reaper", || (!rubbish.exists()).then_some(())).await;
}
