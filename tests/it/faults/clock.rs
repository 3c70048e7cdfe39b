//! The wall clock jumps: by a little library of the test's own before the service's, since the host's clock is not ours to set.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::support::{TestApp, wait_for};

/// Adds the seconds in a file to what the wall clock says.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *found) {
    int outcome = syscall(SYS_clock_gettime, clock, found);
    if (outcome == 0 && clock == CLOCK_REALTIME) {
        char text[32] = {0};
        int file = open(getenv("CLOCK_SHIFT_FILE"), O_RDONLY | O_CLOEXEC);
        if (file >= 0 && read(file, text, sizeof text - 1) > 0) found->tv_sec += atol(text);
        if (file >= 0) close(file);
    }
    return outcome;
}
"#;

struct ShiftedClock {
    folder: tempfile::TempDir,
}

impl ShiftedClock {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("shim.c");
        std::fs::write(&source, SHIM).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([library(folder.path()), source])
            .status();
        assert!(built.unwrap().success(), "the shim needs a C compiler");
        let clock = Self { folder };
        clock.shift(0);
        clock
    }

    fn shift(&self, seconds: i64) {
        // Whole at once: the service reads it all the time.
        let new = self.folder.path().join("new");
        std::fs::write(&new, seconds.to_string()).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("shift")
    }

    async fn start(&self, settings: &[(&str, &str)]) -> TestApp {
        let (library, file) = (library(self.folder.path()), self.file());
        let shim = [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("CLOCK_SHIFT_FILE", file.to_str().unwrap()),
        ];
        TestApp::start_with(&[&shim, settings].concat()).await
    }
}

fn library(folder: &Path) -> PathBuf {
    folder.join("shim.so")
}

const DAY: i64 = 86_400;

#[tokio::test]
async fn a_clock_that_jumps_forward_ends_no_session_early_not_even_across_a_restart() {
    let clock = ShiftedClock::new();
    let mut app = clock.start(&[("SANDBOX_REAPER_INTERVAL", "1")]).await;
    app.run("s", "x = 1").await;
    clock.shift(DAY);
    // A session that is really due shows that the reaper has been here since.
    let retained = json!({"context": {"workflow_run_id": "w"}, "input": {}});
    assert_eq!(app.post("/v1/tools/sandbox_open", retained).await.0, 200);
    let complete = json!({"retain_seconds": 1});
    assert_eq!(app.post("/v1/workflows/w/complete", complete).await.0, 200);
    wait_for("the reaper", || (app.containers().len() == 1).then_some(())).await;
    let answer = app.run("s", "x").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("1\n"), &json!("kept"))
    );
    app.kill();
    clock.shift(2 * DAY);
    app.launch().await;
    let answer = app.run("s", "x").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("1\n"), &json!("kept"))
    );
}

#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_session_for_ever() {
    let clock = ShiftedClock::new();
    let settings = [
        ("SANDBOX_REAPER_INTERVAL", "1"),
        ("SANDBOX_IDLE_SECONDS", "2"),
        ("DELETE_S3_ON_CLEANUP", "0"),
    ];
    let mut app = clock.start(&settings).await;
    app.run("s", "x = 1").await;
    clock.shift(-DAY);
    wait_for("the session to expire", || {
        app.containers().is_empty().then_some(())
    })
    .await;
    app.kill();
    app.set("SANDBOX_IDLE_SECONDS", "600");
    app.set("SANDBOX_TTL_SECONDS", "3");
    app.launch().await;
    app.run("t", "x = 1").await;
    app.kill();
    clock.shift(-2 * DAY);
    app.launch().await;
    wait_for("the session to grow too old", || {
        app.containers().is_empty().then_some(())
    })
    .await;
}
