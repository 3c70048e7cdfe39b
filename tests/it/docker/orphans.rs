//! What the reaper removes, and above all what it leaves alone.

use super::{Foreign, deployment, exists, inspect, start_with};
use crate::support::{docker, wait_for};

#[tokio::test]
async fn an_orphan_with_our_labels_goes_and_strangers_stay() {
    let app = start_with(&[("SANDBOX_REAPER_INTERVAL", "1")]).await;
    app.run("s", "x = 1").await;
    let ours = format!("cellblock.deployment={}", deployment(&app));
    let orphan = Foreign::start(&["--label", "sandbox.managed=1", "--label", &ours]);
    let dead_orphan = Foreign::start(&["--label", "sandbox.managed=1", "--label", &ours]);
    docker(&["kill", &dead_orphan.0]);
    let other_deployment = Foreign::start(&[
        "--label",
        "sandbox.managed=1",
        "--label",
        "cellblock.deployment=other",
    ]);
    let half_labelled = Foreign::start(&["--label", &ours]);
    let stranger = Foreign::start(&[]);
    wait_for("the orphans to go", || {
        (!exists(&orphan.0) && !exists(&dead_orphan.0)).then_some(())
    })
    .await;
    for kept in [&other_deployment, &half_labelled, &stranger] {
        assert_eq!(inspect(&kept.0)["State"]["Running"], true);
    }
    assert_eq!(app.run("s", "x").await["output"], "1\n");
}

#[tokio::test]
async fn nodes_that_share_a_deployment_leave_each_others_sandboxes_alone() {
    let shared = [
        ("DEPLOYMENT_ID", "shared-by-test"),
        ("SANDBOX_REAPER_INTERVAL", "1"),
    ];
    let one = start_with(&[&shared[..], &[("WORKER_ID", "one")]].concat()).await;
    let two = start_with(&[&shared[..], &[("WORKER_ID", "two")]].concat()).await;
    one.run("s", "x = 1").await;
    two.run("t", "y = 2").await;
    let orphan = Foreign::start(&[
        "--label",
        "sandbox.managed=1",
        "--label",
        "cellblock.deployment=shared-by-test",
        "--label",
        "cellblock.node=two",
    ]);
    wait_for("the orphan of the second node to go", || {
        (!exists(&orphan.0)).then_some(())
    })
    .await;
    assert_eq!(one.run("s", "x").await["output"], "1\n");
    assert_eq!(two.run("t", "y").await["output"], "2\n");
}

#[tokio::test]
async fn a_leftover_with_the_name_of_a_session_makes_way_but_a_strangers_container_does_not() {
    let app = start_with(&[]).await;
    // No other test has a container of this name.
    let session = uuid::Uuid::new_v4().to_string();
    app.run(&session, "x = 1").await;
    let name = inspect(&app.container_of(&session).await)["Name"]
        .as_str()
        .unwrap()[1..]
        .to_owned();
    app.session("sandbox/stop", &session).await;
    let ours = format!("cellblock.deployment={}", deployment(&app));
    let leftover = Foreign::start(&[
        "--name",
        &name,
        "--label",
        "sandbox.managed=1",
        "--label",
        &ours,
    ]);
    assert_eq!(app.run(&session, "1 + 1").await["output"], "2\n");
    assert!(!exists(&leftover.0));
    assert_eq!(
        inspect(&app.container_of(&session).await)["Name"],
        format!("/{name}")
    );
    app.session("sandbox/stop", &session).await;
    let stranger = Foreign::start(&["--name", &name]);
    assert_eq!(app.run(&session, "2 + 2").await["output"], "4\n");
    assert!(exists(&stranger.0));
}
