//! Each workspace is a file system of limited size: a full one is full for its own session, and for nobody else.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{TestApp, wait_for};

const HARD: (&str, &str) = ("WORKSPACE_QUOTA", "hard");
const FILL: &str = "
written, problem = 0, None
try:
    with open('big', 'wb', buffering=0) as file:
        while True:
            written += file.write(b'x' * 65536)
except OSError as error:
    problem = error
print(written, problem.errno)";

async fn start(more: &[(&str, &str)]) -> TestApp {
    let settings = [&[HARD, ("MAX_WORKSPACE_SIZE_MB", "24")], more].concat();
    TestApp::start_with(&settings).await
}

fn numbers(answer: &Value) -> Vec<u64> {
    let words = answer["stdout"].as_str().unwrap().split_whitespace();
    words.map(|word| word.parse().unwrap()).collect()
}

/// What a cell could write until it was told that there is no more room.
async fn fill(app: &TestApp, session: &str) -> u64 {
    let answer = app
        .run_with(session, FILL, json!({"timeout_seconds": 55}))
        .await;
    let found = numbers(&answer);
    assert_eq!(found[1], 28, "ENOSPC: {answer}");
    found[0]
}

fn only_session(app: &TestApp) -> PathBuf {
    app.only_workspace().parent().unwrap().to_owned()
}

#[tokio::test]
async fn a_full_workspace_says_so_at_its_limit_and_the_next_cell_can_delete_and_go_on() {
    let app = start(&[]).await;
    app.run("neighbour", "x = 1").await;
    let written = fill(&app, "s").await;
    assert!((24 << 20..25 << 20).contains(&written), "{written}");
    // Nobody else is touched, and nothing of the session's own is lost.
    let neighbour = app.run("neighbour", "open('f', 'w').write('y' * 1000000)");
    assert_eq!(neighbour.await["output"], "1000000\n");
    let (status, problem) = app.upload("s", "more", &[0; 1 << 20], None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (507, &json!("quota_exceeded"))
    );
    let full = app.run("s", "written > 0").await;
    assert_eq!(
        (&full["output"], &full["state"]),
        (&json!("True\n"), &json!("kept"))
    );
    let code = "import os; os.remove('big'); open('after', 'w').write('a' * 5000000)";
    let after = app.run("s", code).await;
    assert_eq!(
        (&after["output"], &after["state"]),
        (&json!("5000000\n"), &json!("kept"))
    );
    assert_eq!(app.list("s").await, ["after"]);
}

#[tokio::test]
async fn the_number_of_files_is_limited_whatever_they_are() {
    let app = start(&[("MAX_TOTAL_FILES", "10")]).await;
    let code = "
import os
made = 0
try:
    while True:
        os.mkdir(f'd{made}') if made % 2 else os.symlink('x', f'l{made}')
        made += 1
except OSError as error:
    print(made, error.errno)";
    let found = numbers(&app.run("s", code).await);
    assert_eq!(found[1], 28);
    assert!((1000..1100).contains(&found[0]), "{found:?}");
    let (status, problem) = app.upload("s", "one", b"1", None).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (507, &json!("quota_exceeded"))
    );
}

#[tokio::test]
async fn nothing_of_the_file_system_itself_shows_up() {
    let app = start(&[]).await;
    let answer = app.run("s", "import os; os.listdir()").await;
    assert_eq!(
        (&answer["output"], &answer["sync"]["skipped"]),
        (&json!("[]\n"), &json!([]))
    );
    assert_eq!(app.list("s").await, Vec::<String>::new());
    let (_, status) = app.status("s").await;
    assert_eq!(status["workspace_quota"], "hard", "{status}");
    assert_eq!(app.get_json("/health").await.1["workspace_quota"], "hard");
}

#[tokio::test]
async fn a_session_with_a_limit_of_its_own_has_a_workspace_of_that_size() {
    let app = start(&[]).await;
    let open = json!({"context": {"agent_run_id": "a"}, "input": {"sandbox": {"mode": "code", "limits": {"workspace_mb": 12}}}});
    let (status, opened) = app.post("/v1/tools/sandbox_open", open).await;
    assert_eq!(status, 200, "{opened}");
    let exec = json!({"context": {"agent_run_id": "a"}, "input": {"sandbox_id": opened["sandbox_id"], "cmd": ["python3", "-c", FILL]}});
    let (status, answer) = app.post("/v1/tools/sandbox_exec", exec).await;
    assert_eq!(status, 200, "{answer}");
    let found = numbers(&answer);
    assert_eq!(found[1], 28, "{answer}");
    assert!((12 << 20..13 << 20).contains(&found[0]), "{found:?}");
}

#[tokio::test]
async fn a_sandbox_from_the_pool_brings_its_workspace_along_and_a_killed_service_finds_it_mounted()
{
    let mut app = start(&[("SANDBOX_POOL_SIZE", "1")]).await;
    wait_for("the pool", || (app.mounts().len() == 1).then_some(())).await;
    while app.get_json("/health").await.1["pool_available"] != 1 {}
    app.run("s", "x = 1; open('f', 'w').write('kept')").await;
    let mount = app.only_workspace();
    assert!(app.mounts().contains(&mount), "{:?}", app.mounts());
    assert_eq!(std::fs::read(mount.join("f")).unwrap(), b"kept");
    app.kill();
    assert!(app.mounts().contains(&mount));
    app.launch().await;
    let answer = app.run("s", "print(x, open('f').read())").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("1 kept\n"), &json!("kept"))
    );
    assert_eq!(app.only_workspace(), mount);
}

#[tokio::test]
async fn after_a_restart_of_the_host_a_workspace_is_mounted_again_with_its_files() {
    let mut app = start(&[("S3_ENDPOINT_URL", "http://127.0.0.1:1")]).await;
    let (status, uploaded) = app.upload("s", "precious", b"only here", None).await;
    assert_eq!(status, 200, "{uploaded}");
    app.kill();
    app.purge();
    assert_eq!(app.mounts(), Vec::<PathBuf>::new());
    wait_for("the loop device to go", || {
        app.attached_images().is_empty().then_some(())
    })
    .await;
    app.launch().await;
    let late = json!({"timeout_seconds": 50});
    let answer = app
        .run_with(
            "s",
            "import os; print(os.listdir(), open('precious').read())",
            late,
        )
        .await;
    assert_eq!(answer["stdout"], "['precious'] only here\n", "{answer}");
    assert_eq!(app.mounts(), [app.only_workspace()]);
}

#[tokio::test]
async fn a_workspace_that_somebody_unmounted_under_a_living_sandbox_is_the_same_one_again() {
    let mut app = start(&[]).await;
    app.run("s", "x = 1; open('before', 'w').write('1')").await;
    app.kill();
    let mount = app.only_workspace();
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::empty()).unwrap();
    app.launch().await;
    let answer = app.run("s", "open('after', 'w').write('2'); x").await;
    assert_eq!(answer["state"], "kept");
    assert_eq!(
        app.list("s").await,
        ["after", "before"],
        "host and sandbox see one file system"
    );
}

#[tokio::test]
async fn a_removed_session_leaves_no_mount_no_device_and_no_image() {
    let app = start(&[]).await;
    app.run("s", "open('f', 'w').write('x')").await;
    assert_eq!(app.mounts().len(), 1);
    app.session("sandbox/stop", "s").await;
    wait_for("everything to go", || nothing_is_left(&app)).await;
}

#[tokio::test]
async fn what_a_service_left_that_died_while_it_made_or_removed_a_session_goes_at_the_next_start() {
    let mut app = start(&[]).await;
    app.upload("s", "f", b"x", None).await;
    assert_eq!(app.mounts().len(), 1);
    app.kill();
    // It died between the rename and the deletion.
    let removed = only_session(&app);
    std::fs::rename(&removed, app.work_root().join("trash/removed")).unwrap();
    app.launch().await;
    wait_for("the removed session to go", || nothing_is_left(&app)).await;
    app.upload("s", "f", b"x", None).await;
    app.kill();
    // It died before the session was on record.
    std::fs::remove_file(only_session(&app).join("meta.json")).unwrap();
    app.launch().await;
    wait_for("the half-made session to go", || nothing_is_left(&app)).await;
}

fn nothing_is_left(app: &TestApp) -> Option<()> {
    let empty = |folder: &str| {
        let mut entries = app.work_root().join(folder).read_dir().unwrap();
        entries.next().is_none()
    };
    let clean = app.mounts().is_empty() && app.attached_images().is_empty();
    (clean && empty("trash") && empty("sessions")).then_some(())
}

#[tokio::test]
async fn below_the_free_space_floor_no_work_begins_and_what_frees_room_still_works() {
    let mut app = start(&[]).await;
    app.run("s", "open('f', 'w').write('x')").await;
    app.kill();
    app.set("MIN_FREE_DISK_MB", "1048576");
    app.launch().await;
    let cell = |session: &str| json!({"user_id": "u", "session_id": session, "code": "1"});
    for session in ["s", "new"] {
        let (status, problem) = app.post("/v1/execute", cell(session)).await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (507, &json!("quota_exceeded")),
            "{problem}"
        );
        assert!(
            problem["detail"]
                .as_str()
                .unwrap()
                .contains("MIN_FREE_DISK_MB")
        );
        assert_eq!(app.upload(session, "g", b"1", None).await.0, 507);
    }
    let (status, health) = app.get_json("/health").await;
    assert_eq!(
        (status.as_u16(), &health["status"]),
        (503, &json!("degraded"))
    );
    assert!(health["reasons"][0].as_str().unwrap().starts_with("disk: "));
    assert_eq!(app.list("s").await, ["f"]);
    let delete = json!({"user_id": "u", "session_id": "s", "paths": ["f"]});
    assert_eq!(app.post("/v1/files/delete", delete).await.0, 200);
    app.session("sandbox/stop", "s").await;
}

#[tokio::test]
async fn a_workspace_that_cannot_be_mounted_for_now_is_left_alone_and_comes_back_whole() {
    let mut app = start(&[("S3_ENDPOINT_URL", "http://127.0.0.1:1")]).await;
    app.upload("s", "precious", b"only here", None).await;
    app.kill();
    app.purge();
    let session = only_session(&app);
    let (image, saved) = (session.join("workspace.img"), session.join("saved"));
    std::fs::rename(&image, &saved).unwrap();
    // Nothing that a device can be made of.
    std::fs::create_dir(&image).unwrap();
    app.launch().await;
    let cell = json!({"user_id": "u", "session_id": "s", "code": "1"});
    for _ in 0..2 {
        let (status, problem) = app.post("/v1/execute", cell.clone()).await;
        assert_eq!(status, 503, "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("left alone"), "{problem}");
    }
    let other = json!({"user_id": "u", "session_id": "other", "code": "1"});
    assert_eq!(app.post("/v1/execute", other).await.0, 200);
    app.kill();
    std::fs::remove_dir(&image).unwrap();
    std::fs::rename(&saved, &image).unwrap();
    app.launch().await;
    assert_eq!(app.list("s").await, ["precious"]);
}

#[tokio::test]
async fn a_workspace_beyond_repair_is_put_aside_and_what_is_stored_of_it_comes_back() {
    let mut app = start(&[]).await;
    app.run("s", "open('f', 'w').write('stored')").await;
    app.kill();
    app.purge();
    let image = only_session(&app).join("workspace.img");
    wait_for("the loop device to go", || {
        app.attached_images().is_empty().then_some(())
    })
    .await;
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    app.launch().await;
    let answer = app.run("s", "open('f').read()").await;
    assert_eq!(answer["output"], "'stored'\n", "{answer}");
    assert!(image.with_extension("img.broken").exists());
}

#[tokio::test]
async fn a_purge_unmounts_workspaces_and_leaves_what_others_mounted() {
    let mut app = start(&[]).await;
    app.run("s", "1").await;
    let foreign = app.work_root().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("foreign", &foreign, "tmpfs", flags, None).unwrap();
    app.kill();
    app.purge();
    let left = app.mounts();
    rustix::mount::unmount(&foreign, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(left, [foreign]);
}
