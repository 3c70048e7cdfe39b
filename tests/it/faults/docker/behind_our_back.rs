//! Somebody pauses, stops or removes a sandbox: the next call has a new one with the old files, and says so once.

use serde_json::json;

use crate::docker::{exists, start_with};
use crate::support::{TestApp, docker, wait_for};

async fn is_replaced_and_said_once(app: &TestApp, arguments: &[&str]) {
    app.run("s", "x = 1; open('f', 'w').write('f')").await;
    let container = app.container_of("s").await;
    docker(&[arguments, &[&container]].concat());
    let answer = app
        .run("s", "import os; print('x' in globals(), os.listdir())")
        .await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("False ['f']\n"), &json!("lost")),
        "{arguments:?}"
    );
    assert_eq!(app.run("s", "1").await["state"], "kept");
    assert_ne!(app.container_of("s").await, container);
    wait_for("the old container to go", || {
        (!exists(&container)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn case_48_a_sandbox_removed_stopped_killed_or_paused_is_replaced_and_its_loss_is_said_once()
{
    let app = start_with(&[]).await;
    is_replaced_and_said_once(&app, &["rm", "--force"]).await;
    is_replaced_and_said_once(&app, &["stop", "-t", "0"]).await;
    is_replaced_and_said_once(&app, &["kill"]).await;
    // The news of a pause comes by the engine's events: give it the moment that any next call takes.
    app.run("s", "x = 1").await;
    let container = app.container_of("s").await;
    docker(&["pause", &container]);
    wait_for("the paused sandbox to go", || {
        (!exists(&container)).then_some(())
    })
    .await;
    let answer = app.run("s", "'x' in globals()").await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("False\n"), &json!("lost"))
    );
}

#[tokio::test]
async fn case_48_a_pause_or_removal_during_a_cell_ends_it_with_the_truth() {
    let app = start_with(&[]).await;
    for action in [&["pause"][..], &["rm", "--force"]] {
        app.run("s", "import os\nif os.path.exists('on'): os.remove('on')")
            .await;
        let container = app.container_of("s").await;
        let cell = app.run_with(
            "s",
            "open('on', 'w')\nimport time; time.sleep(50)",
            json!({"timeout_seconds": 55}),
        );
        let act = async {
            let on = app.only_workspace().join("on");
            wait_for("the cell to run", || on.exists().then_some(())).await;
            docker(&[action, &[&container]].concat());
        };
        let (answer, ()) = tokio::join!(cell, act);
        assert_eq!(
            (&answer["status"], &answer["state"]),
            (&json!("died"), &json!("lost")),
            "{action:?}"
        );
        assert!(
            answer["duration_ms"].as_f64().unwrap() < 30_000.0,
            "long before its time limit"
        );
        assert_eq!(app.run("s", "1").await["state"], "kept");
    }
}

#[tokio::test]
async fn case_48_a_sandbox_paused_while_the_service_was_away_is_replaced() {
    let mut app = start_with(&[]).await;
    app.run("s", "x = 1; open('f', 'w').write('f')").await;
    let container = app.container_of("s").await;
    app.kill();
    docker(&["pause", &container]);
    app.launch().await;
    let answer = app
        .run("s", "import os; print('x' in globals(), os.listdir())")
        .await;
    assert_eq!(
        (&answer["output"], &answer["state"]),
        (&json!("False ['f']\n"), &json!("lost"))
    );
}
