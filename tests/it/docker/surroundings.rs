//! The service itself in other surroundings: without root, and in a container of its own.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use serde_json::{Value, json};

use crate::support::{BINARY, answer, docker, free_port, wait_for};

/// Where other users may reach it.
fn copy_of_binary(folder: &Path) -> PathBuf {
    let copy = folder.join("cellblock");
    std::fs::copy(BINARY, &copy).unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

async fn execute(base: &str, code: &str) -> Value {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let body = json!({"user_id": "u", "session_id": "s", "code": code});
    let (status, answer) = answer(client.post(format!("{base}/v1/execute")).json(&body)).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn address(work_root: &Path) -> String {
    let file = work_root.join("service.json");
    let address = wait_for("the service to listen", || {
        let service: Value = serde_json::from_slice(&std::fs::read(&file).ok()?).ok()?;
        Some(service["address"].as_str()?.to_owned())
    });
    format!("http://{}", address.await)
}

struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        // SIGTERM would keep the sandboxes; `purge` below ends them.
        let _may_have_ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[tokio::test]
async fn a_service_without_root_runs_sandboxes_as_its_own_user() {
    const USER: u32 = 12_345;
    let folder = tempfile::tempdir().unwrap();
    let binary = copy_of_binary(folder.path());
    let work_root = folder.path().join("work");
    std::fs::create_dir(&work_root).unwrap();
    chown(&work_root, Some(USER), Some(USER)).unwrap();
    // As a member of the group that may use the engine.
    let engine_group = std::fs::metadata("/var/run/docker.sock").unwrap().gid();
    let command = |subcommand: &str| {
        let mut command = Command::new(&binary);
        command
            .arg(subcommand)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .envs([
                ("PORT", "0"),
                ("EMBEDDED_S3_ADDR", "127.0.0.1:0"),
                ("SANDBOX_BACKEND", "docker"),
                ("SANDBOX_POOL_SIZE", "0"),
            ])
            .env("WORK_ROOT", &work_root)
            .current_dir("/")
            .uid(USER)
            .gid(engine_group);
        command
    };
    let service = Service(command("serve").spawn().unwrap());
    let base = address(&work_root).await;
    let made = execute(
        &base,
        "import os; open('f', 'w').write('f'); print(os.getuid())",
    )
    .await;
    assert!(
        made["output"].as_str().unwrap().starts_with("12345\n"),
        "{made}"
    );
    assert_eq!(made["artifacts"][0]["path"], "f");
    let again = execute(&base, "open('f', 'a').write('g'); open('f').read()").await;
    assert_eq!(again["output"], "'fg'\n");
    drop(service);
    assert!(command("purge").status().unwrap().success());
}

/// Runs the service in a container, on the engine's socket, with its work root mounted at another path than on the host.
async fn in_a_container(more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let binary = copy_of_binary(folder.path());
    let work_root = folder.path().join("work");
    std::fs::create_dir(&work_root).unwrap();
    let (port, s3_port) = (free_port(), free_port());
    let name = format!("cellblock-service-{port}");
    let environment = [
        format!("PORT={port}"),
        format!("EMBEDDED_S3_ADDR=127.0.0.1:{s3_port}"),
        format!("WORK_ROOT_HOST={}", work_root.display()),
        "WORK_ROOT=/var/lib/cellblock".to_owned(),
        "SANDBOX_BACKEND=docker".to_owned(),
        "SANDBOX_POOL_SIZE=0".to_owned(),
        "WORKER_ID=in-a-container".to_owned(),
        "LOG_LEVEL=debug".to_owned(),
    ];
    let mut arguments = vec![
        "run",
        "--detach",
        "--name",
        &name,
        "--network",
        "host",
        "--user",
        "0",
    ];
    let mounts = [
        format!("{}:/usr/bin/cellblock:ro", binary.display()),
        format!("{}:/var/lib/cellblock", work_root.display()),
        "/var/run/docker.sock:/var/run/docker.sock".to_owned(),
    ];
    mounts
        .iter()
        .for_each(|mount| arguments.extend(["--volume", mount]));
    environment
        .iter()
        .for_each(|pair| arguments.extend(["--env", pair]));
    arguments.extend(more);
    arguments.extend([
        "--entrypoint",
        "/usr/bin/cellblock",
        "cellblock-sandbox",
        "serve",
    ]);
    docker(&arguments);
    let base = address(&work_root).await;
    let made = execute(&base, "x = 1; open('f', 'w').write('f'); print('made')").await;
    assert_eq!(
        (&made["output"], &made["artifacts"][0]["path"]),
        (&json!("made\n"), &json!("f"))
    );
    assert_eq!(execute(&base, "x += 1; x").await["output"], "2\n");
    let died = execute(&base, "import os; os._exit(3)").await;
    assert_eq!(
        (&died["status"], &died["reason"]),
        (&json!("died"), &json!("exit"))
    );
    execute(&base, "x = 41; print('x' * 300_000)").await;
    docker(&["kill", &name]);
    docker(&["start", &name]);
    let again = wait_for_answer(&base, "x += 1; x").await;
    assert_eq!(
        (&again["output"], &again["state"]),
        (&json!("42\n"), &json!("kept"))
    );
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ids = json!({"user_id": "u", "session_id": "s"});
    let reset = answer(client.post(format!("{base}/v1/sandbox/reset")).json(&ids)).await;
    assert_eq!(reset.0, 200);
    let status = answer(client.get(format!("{base}/v1/sandbox/status?user_id=u&session_id=s")))
        .await
        .1;
    assert_eq!(
        status["container_id"], reset.1["container_id"],
        "a reset keeps the sandbox"
    );
    let fresh = execute(&base, "'x' in globals()").await;
    assert_eq!(
        (&fresh["output"], &fresh["state"]),
        (&json!("False\n"), &json!("kept"))
    );
    let stopped = answer(client.post(format!("{base}/v1/sandbox/stop")).json(&ids))
        .await
        .1;
    assert_eq!(stopped["deleted"]["container"], true, "{stopped}");
    docker(&["stop", "-t", "20", &name]);
    docker(&["rm", &name]);
}

async fn wait_for_answer(base: &str, code: &str) -> Value {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for _ in 0..300 {
        if client.get(format!("{base}/health")).send().await.is_ok() {
            return execute(base, code).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the service did not come back");
}

#[tokio::test]
async fn a_service_in_a_container_that_sees_the_hosts_processes_uses_the_mounted_socket() {
    in_a_container(&["--pid", "host"]).await;
}

#[tokio::test]
async fn a_service_in_a_container_with_pids_of_its_own_bridges_kernel_links_over_exec() {
    in_a_container(&[]).await;
}
