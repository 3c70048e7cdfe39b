//! A running service for one test: started from the real binary, with a work root and ports of its own,
//! and taken down with all its sandboxes at the end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const BINARY: &str = env!("CARGO_BIN_EXE_cellblock");

pub struct TestApp {
    child: Option<Child>,
    work_root: TempDir,
    variables: Vec<(String, String)>,
    pub base: String,
    pub client: reqwest::Client,
}

impl TestApp {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub async fn start_with(variables: &[(&str, &str)]) -> Self {
        Self::start_in(&std::env::temp_dir(), variables).await
    }

    /// With its work root in a folder of `parent`.
    pub async fn start_in(parent: &Path, variables: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut app = Self {
            child: None,
            work_root: tempfile::tempdir_in(parent).unwrap(),
            variables: variables.iter().map(owned).collect(),
            base: String::new(),
            client: reqwest::Client::builder()
                .no_proxy()
                .timeout(Duration::from_secs(60))
                .build()
                .unwrap(),
        };
        app.launch().await;
        app
    }

    pub fn work_root(&self) -> &Path {
        self.work_root.path()
    }

    /// Another value for the next `launch`.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    fn command(&self, subcommand: &str) -> Command {
        let mut command = command(subcommand);
        command
            .env("WORK_ROOT", self.work_root())
            .envs(self.variables.iter().cloned());
        command
    }

    /// Starts the service (again) and waits until it says where it listens.
    pub async fn launch(&mut self) {
        let service_file = self.work_root().join("service.json");
        let _none_yet = std::fs::remove_file(&service_file);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.work_root().join("log"))
            .unwrap();
        let mut child = self
            .command("serve")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let address = wait_for("the service to listen", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the service ended with {status}: {}", self.log());
            }
            let service: Value =
                serde_json::from_slice(&std::fs::read(&service_file).ok()?).ok()?;
            Some(service["address"].as_str()?.to_owned())
        })
        .await;
        self.base = format!("http://{address}");
        self.child = Some(child);
    }

    pub fn service_pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// What the service's process has in memory.
    pub fn service_memory_kb(&self) -> u64 {
        let pid = self.service_pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.work_root().join("log")).unwrap_or_default()
    }

    /// `kill -9`, as an operator's worst day would do it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGTERM, and the wait for its end.
    pub async fn terminate(&mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        wait_for("the service to end", || child.try_wait().unwrap()).await
    }

    pub fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.base))
    }

    pub async fn get_json(&self, path: &str) -> (StatusCode, Value) {
        answer(self.get(path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        answer(self.client.post(format!("{}{path}", self.base)).json(&body)).await
    }

    /// Runs a cell for user `u`; the answer must be 200.
    pub async fn run(&self, session: &str, code: &str) -> Value {
        self.run_with(session, code, json!({})).await
    }

    pub async fn run_with(&self, session: &str, code: &str, more: Value) -> Value {
        let mut body = json!({"user_id": "u", "session_id": session, "code": code});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, answer) = self.post("/v1/execute", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// A session command such as `sandbox/stop`; the answer must be 200.
    pub async fn session(&self, command: &str, session: &str) -> Value {
        let (status, answer) = self
            .post(
                &format!("/v1/{command}"),
                json!({"user_id": "u", "session_id": session}),
            )
            .await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub async fn status(&self, session: &str) -> (StatusCode, Value) {
        self.get_json(&format!(
            "/v1/sandbox/status?user_id=u&session_id={session}"
        ))
        .await
    }

    /// Waits until a session is in a state such as `running`.
    pub async fn wait_for_state(&self, session: &str, state: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.status(session).await.1["state"] != state {
            assert!(Instant::now() < deadline, "{session} never was {state}");
        }
    }

    pub async fn list(&self, session: &str) -> Vec<String> {
        let (status, answer) = self
            .get_json(&format!("/v1/files/list?user_id=u&session_id={session}"))
            .await;
        assert_eq!(status, 200, "{answer}");
        let files = answer["files"].as_array().unwrap().iter();
        files
            .map(|file| file["path"].as_str().unwrap().to_owned())
            .collect()
    }

    pub async fn upload(
        &self,
        session: &str,
        name: &str,
        content: &[u8],
        folder: Option<&str>,
    ) -> (StatusCode, Value) {
        let part = reqwest::multipart::Part::bytes(content.to_vec()).file_name(name.to_owned());
        let mut form = reqwest::multipart::Form::new()
            .text("user_id", "u")
            .text("session_id", session.to_owned());
        if let Some(folder) = folder {
            form = form.text("dest_dir", folder.to_owned());
        }
        let request = self.client.post(format!("{}/v1/files/upload", self.base));
        answer(request.multipart(form.part("file", part))).await
    }

    /// Where file systems are mounted below the work root, as this process sees it.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points
            .map(PathBuf::from)
            .filter(|point| point.starts_with(self.work_root()))
            .collect()
    }

    /// Images below the work root that a loop device still holds on to.
    pub fn attached_images(&self) -> Vec<String> {
        let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
        let images = devices.filter_map(|device| {
            std::fs::read_to_string(device.path().join("loop/backing_file")).ok()
        });
        let root = self.work_root().to_str().unwrap();
        images.filter(|image| image.starts_with(root)).collect()
    }

    /// Ends all sandboxes and unmounts all workspaces, as the end of the host would.
    pub fn purge(&self) {
        let purged = self.command("purge").output().unwrap();
        assert!(
            purged.status.success(),
            "purge failed: {}",
            String::from_utf8_lossy(&purged.stderr)
        );
    }

    /// The host's folder of the only session there is.
    pub fn only_workspace(&self) -> PathBuf {
        let sessions = glob(&self.work_root().join("sessions"), 2);
        assert_eq!(sessions.len(), 1, "{sessions:?}");
        sessions[0].join("workspace")
    }

    /// Ids of the containers that exist on this host for this service, alive or dead.
    pub fn containers(&self) -> Vec<String> {
        if backend() == "docker" {
            let Ok(deployment) = std::fs::read_to_string(self.work_root().join("deployment"))
            else {
                return Vec::new();
            };
            let label = format!("label=cellblock.deployment={deployment}");
            let ids = docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &label]);
            return ids.lines().map(str::to_owned).collect();
        }
        let folders = glob(&self.work_root().join("containers"), 1).into_iter();
        folders
            .map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned())
            .collect()
    }

    pub async fn container_of(&self, session: &str) -> String {
        let id = self.status(session).await.1["container_id"].clone();
        id.as_str().unwrap().to_owned()
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        self.kill();
        let purged = self.command("purge").output().unwrap();
        let clean = purged.status.success();
        if std::thread::panicking() {
            eprintln!("--- service log\n{}", self.log());
        } else {
            assert!(
                clean,
                "purge failed: {}",
                String::from_utf8_lossy(&purged.stderr)
            );
        }
    }
}

/// The backend that the contract suite runs on.
pub fn backend() -> String {
    std::env::var("CELLBLOCK_TEST_BACKEND").unwrap_or_else(|_| "embedded".to_owned())
}

/// The docker client; it must succeed.
pub fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "docker {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text.trim().to_owned()
}

/// The real binary with nothing of this environment's settings in it.
pub fn command(subcommand: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.arg(subcommand).env_clear();
    for name in ["PATH", "HOME", "XDG_CACHE_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let defaults = [
        ("PORT", "0"),
        ("EMBEDDED_S3_ADDR", "127.0.0.1:0"),
        ("LOG_LEVEL", "debug"),
        ("SANDBOX_POOL_SIZE", "0"),
        ("SANDBOX_BACKEND", &backend()),
    ];
    command.envs(defaults).current_dir(std::env::temp_dir());
    command
}

/// A port that nobody listens on just now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

pub async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    (
        status,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

/// What an `/v1/execute` answer's artifact of that name links to, fetched by a client that knows nothing of us.
pub async fn fetch_artifact(app: &TestApp, answer: &Value, path: &str) -> (StatusCode, Vec<u8>) {
    let artifacts = answer["artifacts"].as_array().unwrap();
    let artifact = artifacts.iter().find(|artifact| artifact["path"] == path);
    let artifact = artifact.unwrap_or_else(|| panic!("no artifact {path} in {answer}"));
    let response = app
        .client
        .get(artifact["download_url"].as_str().unwrap())
        .send()
        .await
        .unwrap();
    (response.status(), response.bytes().await.unwrap().to_vec())
}

/// Polls until `probe` gives a value; a test waits for events, and this is how it sees those outside its process.
pub async fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if let Some(value) = probe() {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited too long for {what}");
}

fn glob(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let entries: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    if depth == 1 {
        return entries;
    }
    entries
        .iter()
        .flat_map(|entry| glob(entry, depth - 1))
        .collect()
}
