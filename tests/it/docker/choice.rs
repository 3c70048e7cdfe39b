//! Which backend is taken, and what is said when none can be.

use serde_json::json;

use super::start_with;
use crate::support::{TestApp, command, docker};

async fn backend_with(variables: &[(&str, &str)]) -> serde_json::Value {
    let settings = [&[("SANDBOX_BACKEND", "auto")], variables].concat();
    let app = TestApp::start_with(&settings).await;
    assert_eq!(app.run("s", "1 + 1").await["output"], "2\n");
    app.get_json("/health").await.1["backend"].clone()
}

#[tokio::test]
async fn auto_takes_docker_if_an_engine_has_the_image_and_embedded_otherwise() {
    assert_eq!(backend_with(&[]).await, "docker");
    assert_eq!(
        backend_with(&[("SANDBOX_IMAGE", "no-such-image")]).await,
        "embedded"
    );
    let nowhere = ("DOCKER_HOST", "unix:///nonexistent/docker.sock");
    assert_eq!(backend_with(&[nowhere]).await, "embedded");
}

#[tokio::test]
async fn docker_that_cannot_be_used_stops_the_start_and_says_what_to_do() {
    let work_root = tempfile::tempdir().unwrap();
    for (name, value, remedy) in [
        ("SANDBOX_IMAGE", "no-such-image", "./ctl.sh image"),
        ("DOCKER_HOST", "unix:///nonexistent/docker.sock", "start it"),
        ("SANDBOX_IMAGE", "cellblock-base", "./ctl.sh image"),
        ("SANDBOX_RUNTIME", "no-such-runtime", "it has"),
    ] {
        let refused = command("serve")
            .env("WORK_ROOT", work_root.path())
            .env("SANDBOX_BACKEND", "docker")
            .env(name, value)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{text}");
        assert!(
            text.contains("SANDBOX_BACKEND=docker") && text.contains(remedy),
            "{text}"
        );
    }
}

#[tokio::test]
async fn with_another_backend_files_stay_variables_go_and_nothing_is_left_behind() {
    let mut app = start_with(&[]).await;
    app.run("s", "x = 1; open('f', 'w').write('f')").await;
    let container = app.container_of("s").await;
    for (backend, state) in [("embedded", "lost"), ("docker", "lost"), ("docker", "kept")] {
        app.kill();
        app.set("SANDBOX_BACKEND", backend);
        app.launch().await;
        let answer = app.run("s", "import os; os.listdir()").await;
        assert_eq!(
            (&answer["output"], &answer["state"]),
            (&json!("['f']\n"), &json!(state)),
            "{backend}"
        );
        assert!(!super::exists(&container));
        let embedded = app.work_root().join("containers").read_dir();
        let embedded = embedded.map_or(0, Iterator::count);
        assert_eq!(embedded, usize::from(backend == "embedded"));
    }
}

#[tokio::test]
async fn the_doctor_tells_of_engine_and_image() {
    let told = |variables: &[(&str, &str)]| {
        let output = command("doctor")
            .env("SANDBOX_BACKEND", "docker")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (ready, text) = told(&[]);
    assert!(
        ready && text.contains("Engine") && text.contains("up to date"),
        "{text}"
    );
    let (ready, text) = told(&[("SANDBOX_IMAGE", "no-such-image")]);
    assert!(
        !ready && text.contains("no-such-image is not there") && text.contains("./ctl.sh image"),
        "{text}"
    );
    let (ready, text) = told(&[("DOCKER_HOST", "unix:///nonexistent/docker.sock")]);
    assert!(
        !ready && text.contains("no Docker engine answers"),
        "{text}"
    );
}

#[tokio::test]
async fn a_session_may_ask_for_an_allowed_image_and_gets_it_past_the_pool() {
    docker(&["tag", "cellblock-sandbox", "cellblock-sandbox-other"]);
    let settings = [
        ("SANDBOX_ALLOWED_IMAGES", "cellblock-sandbox-other"),
        ("SANDBOX_POOL_SIZE", "1"),
    ];
    let app = start_with(&settings).await;
    let open = |image: &str| {
        let sandbox = json!({"mode": "code", "image": image});
        json!({"context": {"agent_run_id": image}, "input": {"sandbox": sandbox}})
    };
    let (status, opened) = app
        .post("/v1/tools/sandbox_open", open("cellblock-sandbox-other"))
        .await;
    assert_eq!(status, 200, "{opened}");
    assert_eq!(opened["image"], "cellblock-sandbox-other");
    let sandboxes = app.get_json("/v1/sandboxes").await.1;
    let container = sandboxes["sandboxes"][0]["container_id"].clone();
    let container = super::inspect(container.as_str().unwrap());
    assert_eq!(container["Config"]["Image"], "cellblock-sandbox-other");
    assert_eq!(container["HostConfig"]["ReadonlyRootfs"], true);
    let (status, problem) = app
        .post("/v1/tools/sandbox_open", open("python:3.12"))
        .await;
    assert_eq!(
        (status.as_u16(), &problem["field"]),
        (400, &json!("sandbox.image"))
    );
}

#[tokio::test]
async fn a_session_has_a_network_only_if_it_asks_and_the_operator_allows_it() {
    let app = start_with(&[("SANDBOX_ALLOW_NETWORK", "1"), ("SANDBOX_POOL_SIZE", "1")]).await;
    for (agent, enabled, mode, interfaces) in [
        ("asks", true, "bridge", "eth0 lo"),
        ("does not", false, "none", "lo"),
    ] {
        let sandbox = json!({"mode": "code", "network": {"enabled": enabled}});
        let body = json!({"context": {"agent_run_id": agent}, "input": {"sandbox": sandbox}});
        let (status, opened) = app.post("/v1/tools/sandbox_open", body).await;
        assert_eq!(status, 200, "{opened}");
        let list = json!({"input": {"sandbox_id": opened["sandbox_id"], "cmd": ["bash", "-c", "cd /sys/class/net; echo *"]}});
        let (_, listed) = app.post("/v1/tools/sandbox_exec", list).await;
        assert_eq!(listed["stdout"], format!("{interfaces}\n"), "{agent}");
        let sandboxes = app.get_json("/v1/sandboxes").await.1;
        let newest =
            sandboxes["sandboxes"].as_array().unwrap().last().unwrap()["container_id"].clone();
        let container = super::inspect(newest.as_str().unwrap());
        assert_eq!(container["HostConfig"]["NetworkMode"], mode, "{agent}");
    }
}
