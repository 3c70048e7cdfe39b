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

/// A service that is not root, as a member of the group that may use the engine.
struct WithoutRoot {
    folder: tempfile::TempDir,
    binary: PathBuf,
    variables: Vec<(&'static str, &'static str)>,
    service: Option<Service>,
    base: String,
}

impl WithoutRoot {
    async fn start(variables: &[(&'static str, &'static str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let binary = copy_of_binary(folder.path());
        let mut app = Self {
            binary,
            folder,
            variables: variables.to_vec(),
            service: None,
            base: String::new(),
        };
        std::fs::create_dir(app.work_root()).unwrap();
        chown(app.work_root(), Some(USER), Some(USER)).unwrap();
        app.launch().await;
        app
    }

    fn work_root(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn command(&self, subcommand: &str) -> Command {
        let engine_group = std::fs::metadata("/var/run/docker.sock").unwrap().gid();
        let mut command = Command::new(&self.binary);
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
            .envs(self.variables.iter().copied())
            .env("WORK_ROOT", self.work_root())
            .current_dir("/")
            .uid(USER)
            .gid(engine_group);
        command
    }

    async fn launch(&mut self) {
        let _none_yet = std::fs::remove_file(self.work_root().join("service.json"));
        self.service = Some(Service(self.command("serve").spawn().unwrap()));
        self.base = address(&self.work_root()).await;
    }

    fn kill(&mut self) {
        self.service = None;
    }
}

impl Drop for WithoutRoot {
    fn drop(&mut self) {
        self.kill();
        let purged = self.command("purge").status().unwrap();
        assert!(purged.success() || std::thread::panicking());
    }
}

const USER: u32 = 12_345;

#[tokio::test]
async fn a_service_without_root_runs_sandboxes_as_its_own_user() {
    let app = WithoutRoot::start(&[]).await;
    let made = execute(
        &app.base,
        "import os; open('f', 'w').write('f'); print(os.getuid())",
    )
    .await;
    assert!(
        made["output"].as_str().unwrap().starts_with("12345\n"),
        "{made}"
    );
    assert_eq!(made["artifacts"][0]["path"], "f");
    let again = execute(&app.base, "open('f', 'a').write('g'); open('f').read()").await;
    assert_eq!(again["output"], "'fg'\n");
}

#[tokio::test]
async fn code_that_closes_its_workspace_shuts_out_neither_the_service_nor_its_next_start() {
    let mut app = WithoutRoot::start(&[("DELETE_S3_ON_CLEANUP", "0")]).await;
    let code = "import os, threading\nos.mkdir('d'); open('d/f', 'w').write('kept'); os.chmod('d', 0)\nos.chmod('/workspace', 0)";
    let closed = execute(&app.base, code).await;
    assert_eq!(closed["artifacts"][0]["path"], "d/f", "{closed}");
    // After the sync, which opened it up.
    let later =
        "threading.Timer(0.3, lambda: (os.chmod('d', 0), os.chmod('/workspace', 0))).start()";
    execute(&app.base, later).await;
    let sessions = app.work_root().join("sessions");
    let user = std::fs::read_dir(sessions).unwrap().next().unwrap();
    let session = std::fs::read_dir(user.unwrap().path()).unwrap().next();
    let workspace = session.unwrap().unwrap().path().join("workspace");
    wait_for("the workspace to be closed", || {
        let mode = std::fs::metadata(&workspace).unwrap().permissions().mode();
        (mode & 0o777 == 0).then_some(())
    })
    .await;
    app.kill();
    app.launch().await;
    let again = execute(&app.base, "open('d/f').read()").await;
    assert_eq!(
        (&again["output"], &again["state"]),
        (&json!("'kept'\n"), &json!("kept")),
        "{again}"
    );
    execute(&app.base, "os.chmod('/workspace', 0)").await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ids = json!({"user_id": "u", "session_id": "s"});
    let url = format!("{}/v1/sandbox/stop", app.base);
    let (status, stopped) = answer(client.post(url).json(&ids)).await;
    assert_eq!(
        (status.as_u16(), &stopped["deleted"]["workspace"]),
        (200, &json!(true)),
        "{stopped}"
    );
}

#[tokio::test]
async fn closing_folders_does_not_hide_them_from_the_soft_quota() {
    let app = WithoutRoot::start(&[("MAX_WORKSPACE_SIZE_MB", "8")]).await;
    let ways = [("/workspace", "0o300"), ("d", "0o300"), ("d", "0o400")];
    for (round, (folder, mode)) in ways.into_iter().enumerate() {
        let code = format!(
            "import os, time\nos.mkdir('d')\nfor i in range(1000):\n    os.chmod('{folder}', 0o700); open(f'd/f{{i}}', 'wb').write(b'x' * (1 << 20)); os.chmod('{folder}', {mode}); time.sleep(0.05)"
        );
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let body = json!({"user_id": "u", "session_id": format!("{round}"), "code": code, "timeout_seconds": 55});
        let url = format!("{}/v1/execute", app.base);
        let (_, stopped) = answer(client.post(url).json(&body)).await;
        assert_eq!(
            stopped["error"]["name"], "WorkspaceQuotaExceeded",
            "{folder} {mode}: {stopped}"
        );
    }
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
