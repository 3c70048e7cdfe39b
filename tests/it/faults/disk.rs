//! A disk that fills up: under the work root, while files are stored, and under the images of workspaces.

use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::json;

use crate::contract::sessions::{done, open};
use crate::support::TestApp;

/// A small disk of the test's own, with a work root on it.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn new(megabytes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(format!("size={megabytes}m")).unwrap();
        let flags = MountFlags::NOSUID;
        rustix::mount::mount("small", folder.path(), "tmpfs", flags, options.as_c_str()).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Takes up all room that is left, but for so much.
    fn fill_but(&self, left_bytes: u64) {
        let free = rustix::fs::statvfs(self.path()).unwrap();
        let ballast = std::fs::File::create(self.path().join("ballast")).unwrap();
        let size = (free.f_bavail * free.f_frsize).saturating_sub(left_bytes);
        rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, size).unwrap();
    }

    fn empty(&self) {
        std::fs::remove_file(self.path().join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        rustix::mount::unmount(self.path(), UnmountFlags::DETACH).unwrap();
    }
}

#[tokio::test]
async fn case_47_a_disk_that_fills_up_while_files_are_stored_loses_nothing_that_was_acknowledged() {
    let disk = SmallDisk::new(160);
    let settings = [
        ("MIN_FREE_DISK_MB", "0"),
        ("MAX_WORKSPACE_SIZE_MB", "64"),
        ("SANDBOX_REAPER_INTERVAL", "1"),
        ("DELETE_S3_ON_CLEANUP", "0"),
    ];
    let app = TestApp::start_in(disk.path(), &settings).await;
    let first = app
        .run("s", "x = 1; open('first', 'w').write('stored')")
        .await;
    assert_eq!(first["sync"]["uploaded"], 1);
    let uploaded = app.upload("s", "upload", b"acknowledged", None).await;
    assert_eq!(uploaded.0, 200);
    // Not even room for the copy in the store.
    disk.fill_but(3 << 20);
    let second = app
        .run_with(
            "s",
            "import os; open('second', 'wb').write(os.urandom(4 << 20))",
            json!({"timeout_seconds": 50}),
        )
        .await;
    assert!(second["sync"]["error"].is_string(), "{second}");
    assert_eq!(
        second["artifacts"][0]["download_url"],
        json!(null),
        "no link to what is not stored"
    );
    // Refused or carried out, but never half: what is answered with 200 is there in the end.
    let mut acknowledged = vec!["upload".to_owned()];
    for n in 0..5 {
        let name = format!("more{n}");
        let (status, problem) = app.upload("s", &name, &[b'm'; 3 << 20], None).await;
        match status.as_u16() {
            200 => acknowledged.push(name),
            507 => assert_eq!(problem["code"], "quota_exceeded"),
            other => panic!("{other}: {problem}"),
        }
    }
    assert!(acknowledged.len() < 6, "the disk never was full");
    disk.empty();
    write_again(&app, "open('third', 'w').write('3')").await;
    for _ in 0..100 {
        if app.run("s", "None").await["sync"].get("error").is_none() {
            break;
        }
    }
    app.session("sandbox/stop", "s").await;
    let stored = app.list("s").await;
    for path in acknowledged
        .iter()
        .map(String::as_str)
        .chain(["first", "third"])
    {
        assert!(
            stored.iter().any(|found| found == path),
            "{path} of {stored:?}"
        );
    }
    let content = app
        .run("s", "open('first').read() + open('upload').read()")
        .await;
    assert_eq!(content["output"], "'storedacknowledged'\n");
}

#[tokio::test]
async fn case_47_below_the_floor_new_work_waits_until_there_is_room_again() {
    let disk = SmallDisk::new(160);
    let settings = [("MIN_FREE_DISK_MB", "64"), ("MAX_WORKSPACE_SIZE_MB", "32")];
    let app = TestApp::start_in(disk.path(), &settings).await;
    app.run("s", "x = 1").await;
    disk.fill_but(40 << 20);
    let cell = json!({"user_id": "u", "session_id": "s", "code": "x"});
    let (status, problem) = app.post("/v1/execute", cell.clone()).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (507, &json!("quota_exceeded"))
    );
    assert_eq!(app.get_json("/health").await.0, 503);
    disk.empty();
    assert_eq!(app.get_json("/health").await.0, 200);
    let (_, answer) = app.post("/v1/execute", cell).await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("1\n"), &json!("kept"))
    );
}

#[tokio::test]
async fn case_47_a_cell_that_fills_the_hosts_disk_is_stopped_before_its_writes_fail_half_way() {
    let disk = SmallDisk::new(200);
    let settings = [
        ("MIN_FREE_DISK_MB", "100"),
        ("MAX_WORKSPACE_SIZE_MB", "400"),
    ];
    let app = TestApp::start_in(disk.path(), &settings).await;
    app.run("quiet", "x = 1").await;
    let code = "import os, time\nwith open('big', 'wb', buffering=0) as file:\n    while True:\n        file.write(os.urandom(1 << 20)); os.fsync(file); time.sleep(0.03)";
    let quiet = app.run_with(
        "quiet",
        "import time; time.sleep(6); 'done'",
        json!({"timeout_seconds": 50}),
    );
    let loud = app.run_with("loud", code, json!({"timeout_seconds": 50}));
    let (quiet, loud) = tokio::join!(quiet, loud);
    assert_eq!(loud["error"]["name"], "WorkspaceQuotaExceeded", "{loud}");
    assert_eq!(
        (&quiet["output"], &quiet["status"]),
        (&json!("'done'\n"), &json!("ok")),
        "one that does not write is left alone"
    );
    app.session("sandbox/stop", "loud").await;
    // What it took is given back in the background.
    while app.get_json("/health").await.0 != 200 {}
    assert_eq!(app.run("quiet", "x").await["output"], "1\n");
}

/// A cell that fails because its disk had failed makes the next one find it mended.
async fn write_again(app: &TestApp, code: &str) {
    let mut last = json!(null);
    for _ in 0..5 {
        let body = json!({"user_id": "u", "session_id": "s", "code": code, "timeout_seconds": 50});
        let (status, answer) = app.post("/v1/execute", body).await;
        if status == 200 && answer["status"] == "ok" {
            return;
        }
        last = answer;
    }
    panic!("the session never could write again: {last}");
}

/// The floor off and the image larger than its disk: writes fail below the file system, which then takes no more of them.
#[tokio::test]
async fn case_47_a_workspace_whose_disk_failed_under_it_says_so_and_heals_when_there_is_room() {
    let disk = SmallDisk::new(160);
    let settings = [("MIN_FREE_DISK_MB", "0"), ("MAX_WORKSPACE_SIZE_MB", "400")];
    let app = TestApp::start_in(disk.path(), &settings).await;
    let before = app.run("s", "open('before', 'w').write('stored')").await;
    assert_eq!(before["sync"]["uploaded"], 1);
    disk.fill_but(40 << 20);
    let code = "
import os
problem = None
try:
    with open('big', 'wb', buffering=0) as file:
        while True:
            file.write(os.urandom(1 << 20)); os.fsync(file)
except OSError as error:
    problem = error.errno
print(problem)";
    let failed = app
        .run_with("s", code, json!({"timeout_seconds": 50}))
        .await;
    // No room, an error of the device, or a file system that has turned read-only: an error in any case.
    let words = ["28\n", "5\n", "30\n"];
    assert!(
        words.contains(&failed["stdout"].as_str().unwrap()),
        "{failed}"
    );
    disk.empty();
    let code =
        "import os\nif os.path.exists('big'): os.remove('big')\nopen('after', 'w').write('again')";
    write_again(&app, code).await;
    let read = app
        .run("s", "open('before').read() + open('after').read()")
        .await;
    assert_eq!(read["output"], "'storedagain'\n");
}

#[tokio::test]
async fn case_47_programs_too_find_a_workspace_mended_whose_disk_failed_under_them() {
    let disk = SmallDisk::new(160);
    let settings = [("MIN_FREE_DISK_MB", "0"), ("MAX_WORKSPACE_SIZE_MB", "400")];
    let app = TestApp::start_in(disk.path(), &settings).await;
    let session = open(&app).await;
    disk.fill_but(40 << 20);
    let fill = "dd if=/dev/urandom of=big bs=1M oflag=direct,sync";
    let failed = done(&app, &session, "bash", fill).await;
    assert_ne!(failed["exit_code"], 0, "{failed}");
    disk.empty();
    let write = "rm -f big; echo again > after && cat after";
    let written = done(&app, &session, "bash", write).await;
    assert_eq!(written["output"], "again\n", "{written}");
}

#[tokio::test]
async fn case_47_a_workspace_that_takes_no_writes_does_not_keep_the_service_from_starting() {
    let mut app = TestApp::start().await;
    app.run(
        "s",
        "import os; open('f', 'w').write('f'); os.chmod('.', 0o700)",
    )
    .await;
    let workspace = app.only_workspace();
    app.kill();
    rustix::mount::mount_remount(&workspace, MountFlags::RDONLY, "").unwrap();
    app.launch().await;
    assert_eq!(app.list("s").await, ["f"]);
    app.run("other", "1").await;
    rustix::mount::mount_remount(&workspace, MountFlags::empty(), "").unwrap();
}

#[tokio::test]
async fn case_47_where_the_quota_is_soft_too_a_cell_that_fills_the_hosts_disk_is_stopped() {
    let disk = SmallDisk::new(200);
    let settings = [
        ("WORKSPACE_QUOTA", "soft"),
        ("MIN_FREE_DISK_MB", "100"),
        ("MAX_WORKSPACE_SIZE_MB", "400"),
    ];
    let app = TestApp::start_in(disk.path(), &settings).await;
    app.run("quiet", "x = 1").await;
    let code = "import os, time\nwith open('big', 'wb', buffering=0) as file:\n    while True:\n        file.write(os.urandom(1 << 20)); time.sleep(0.03)";
    let quiet = app.run_with(
        "quiet",
        "import time; time.sleep(6); 'done'",
        json!({"timeout_seconds": 50}),
    );
    let loud = app.run_with("loud", code, json!({"timeout_seconds": 50}));
    let (quiet, loud) = tokio::join!(quiet, loud);
    assert_eq!(loud["error"]["name"], "WorkspaceQuotaExceeded", "{loud}");
    assert_eq!(
        quiet["output"], "'done'\n",
        "one that does not write is left alone"
    );
}

#[tokio::test]
async fn case_47_a_session_that_cannot_be_made_leaves_no_folder_no_mount_and_no_device() {
    let disk = SmallDisk::new(64);
    let settings = [("MIN_FREE_DISK_MB", "0"), ("MAX_WORKSPACE_SIZE_MB", "32")];
    let app = TestApp::start_in(disk.path(), &settings).await;
    // So little that a folder and an image can be made, but hardly anything in them.
    for left in [0, 4 << 10, 64 << 10, 128 << 10, 160 << 10, 256 << 10] {
        disk.fill_but(left);
        let body = json!({"user_id": "u", "session_id": "s", "code": "1"});
        let (status, problem) = app.post("/v1/execute", body).await;
        disk.empty();
        match status.as_u16() {
            507 => {}
            // The session could be made, if not its sandbox.
            200 | 503 => _ = app.session("sandbox/stop", "s").await,
            other => panic!("{other}: {problem}"),
        }
        crate::support::wait_for("nothing to be left", || {
            let sessions = app.work_root().join("sessions").read_dir().unwrap();
            (sessions.count() == 0).then_some(())
        })
        .await;
    }
    let answer = app.run("s", "1 + 1").await;
    assert_eq!(answer["output"], "2\n", "{answer}");
}
