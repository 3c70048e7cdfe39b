//! A sandbox ends or stands still without anybody having asked for it.

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::support::{TestApp, wait_for};

/// The pid of the only session's init, from the record that the next service would read.
fn init_of(app: &TestApp) -> Pid {
    let meta = app.only_workspace().parent().unwrap().join("meta.json");
    let meta: Value = serde_json::from_slice(&std::fs::read(meta).unwrap()).unwrap();
    Pid::from_raw(meta["sandbox"]["init_pid"].as_i64().unwrap() as i32).unwrap()
}

#[tokio::test]
async fn case_48_a_sandbox_killed_during_a_cell_is_told_truly_and_every_file_is_kept() {
    let app = TestApp::start_with(&[("SANDBOX_REAPER_INTERVAL", "1")]).await;
    let uploaded = app.upload("s", "before", b"uploaded", None).await;
    assert_eq!(uploaded.0, 200);
    app.run("s", "x = 1; open('made', 'w').write('by a cell')")
        .await;
    let code = "open('on', 'w').close()\nimport time; time.sleep(50)";
    let cell = app.run_with("s", code, json!({"timeout_seconds": 55}));
    let strike = async {
        let on = app.only_workspace().join("on");
        wait_for("the cell to run", || on.exists().then_some(())).await;
        rustix::process::kill_process(init_of(&app), Signal::KILL).unwrap();
    };
    let (answer, ()) = tokio::join!(cell, strike);
    assert_eq!(
        (&answer["status"], &answer["state"]),
        (&json!("died"), &json!("lost")),
        "{answer}"
    );
    let next = app
        .run(
            "s",
            "print('x' in globals(), open('before').read(), open('made').read())",
        )
        .await;
    assert_eq!(
        (&next["output"], &next["state"]),
        (&json!("False uploaded by a cell\n"), &json!("kept"))
    );
    wait_for("the dead sandbox to go", || {
        (app.containers().len() == 1 && app.mounts().len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn case_48_a_sandbox_that_stands_still_ends_its_cell_in_time_and_is_replaced() {
    let app = TestApp::start_with(&[("SANDBOX_REAPER_INTERVAL", "1")]).await;
    app.run("s", "x = 1").await;
    let code = "open('on', 'w').close()\nimport time; time.sleep(50)";
    let cell = app.run_with("s", code, json!({"timeout_seconds": 3}));
    let strike = async {
        let on = app.only_workspace().join("on");
        wait_for("the cell to run", || on.exists().then_some(())).await;
        // Supervisor and worker alike: neither an interrupt nor a kill through them gets anywhere.
        for pid in processes_of(init_of(&app)) {
            rustix::process::kill_process(pid, Signal::STOP).unwrap();
        }
    };
    let (answer, ()) = tokio::join!(cell, strike);
    assert_eq!(answer["state"], "lost", "{answer}");
    assert!(
        answer["duration_ms"].as_f64().unwrap() < 20_000.0,
        "{answer}"
    );
    let next = app.run("s", "'x' in globals()").await;
    assert_eq!(
        (&next["output"], &next["state"]),
        (&json!("False\n"), &json!("kept"))
    );
}

/// The init and its children, as the host sees them.
fn processes_of(init: Pid) -> Vec<Pid> {
    let children = format!("/proc/{0}/task/{0}/children", init.as_raw_nonzero());
    let children = std::fs::read_to_string(children).unwrap();
    let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
    pids.filter_map(Pid::from_raw).chain([init]).collect()
}
