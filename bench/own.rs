//! Cellblock as a contender: the real service as a process, spoken to by the smallest blocking client there is.
//! Never reaches into the service. Invariant: a service that is dropped has ended and has no sandboxes left.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::bare::docker::SANDBOX_IMAGE;
use crate::report::figures::Contender;

pub const BINARY: &str = env!("CARGO_BIN_EXE_cellblock");

/// Work roots of a run are beneath this folder of it, where `supervise` finds them.
pub const SERVICES: &str = "services";

const START_LIMIT: Duration = Duration::from_secs(60);
/// No answer may take longer.
const PATIENCE: Duration = Duration::from_secs(120);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One backend's service that most work is done on.
pub struct Own {
    pub contender: Contender,
    pub service: Service,
    pub client: Client,
}

impl Own {
    pub fn start(folder: &Path, contender: Contender) -> Self {
        // Large enough for the files that some work makes.
        let settings = [
            ("SANDBOX_POOL_SIZE", "0"),
            ("MAX_TOTAL_FILES", "5000"),
            ("MAX_WORKSPACE_SIZE_MB", "2000"),
            ("SANDBOX_MEMORY_MB", "2048"),
        ];
        let service = Service::start(folder, "main", contender, &settings);
        let mut client = service.client();
        client.run("warm", "x = 0");
        Self {
            contender,
            service,
            client,
        }
    }
}

impl Own {
    /// Where the Python of its sandboxes is, which for embedded ones is the same place on the host.
    pub fn interpreter(&mut self) -> PathBuf {
        let answer = self
            .client
            .run("warm", "import sys; print(sys.executable, end='')");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        PathBuf::from(answer["stdout"].as_str().unwrap())
    }
}

fn backend_name(contender: Contender) -> &'static str {
    match contender {
        Contender::Docker => "docker",
        _ => "embedded",
    }
}

pub struct Service {
    child: Option<Child>,
    pub work_root: PathBuf,
    settings: Vec<(String, String)>,
    address: String,
    pub s3_address: String,
}

impl Service {
    pub fn start(
        folder: &Path,
        name: &str,
        contender: Contender,
        settings: &[(&str, &str)],
    ) -> Self {
        let backend = backend_name(contender);
        let work_root = folder.join(SERVICES).join(format!("{backend}-{name}"));
        std::fs::create_dir_all(&work_root).unwrap();
        let all = [
            ("HOST", "127.0.0.1"),
            ("PORT", "0"),
            ("EMBEDDED_S3_ADDR", "127.0.0.1:0"),
            ("SANDBOX_API_KEY", ""),
            ("S3_ENDPOINT_URL", ""),
            ("S3_ACCESS_KEY_ID", ""),
            ("S3_SECRET_ACCESS_KEY", ""),
            ("SANDBOX_BACKEND", backend),
            ("SANDBOX_IMAGE", SANDBOX_IMAGE),
        ];
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let mut service = Self {
            child: None,
            work_root,
            settings: all.iter().chain(settings).map(owned).collect(),
            address: String::new(),
            s3_address: String::new(),
        };
        service.launch();
        service
    }

    /// Starts the process and returns how long it took until it listens.
    pub fn launch(&mut self) -> Duration {
        let file = self.work_root.join("service.json");
        let _none_yet = std::fs::remove_file(&file);
        let started = Instant::now();
        self.child = Some(self.command("serve").spawn().unwrap());
        loop {
            if let Ok(bytes) = std::fs::read(&file)
                && let Ok(facts) = serde_json::from_slice::<Value>(&bytes)
            {
                self.address = facts["address"].as_str().unwrap().to_owned();
                self.s3_address = facts["s3_address"].as_str().unwrap().to_owned();
                return started.elapsed();
            }
            assert!(
                started.elapsed() < START_LIMIT,
                "the service does not start; `cellblock doctor` may say why"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the process the way an operator would; sandboxes stay.
    pub fn terminate(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            child.wait().unwrap();
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map(Child::id).unwrap()
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(BINARY);
        command
            .arg(subcommand)
            .envs(self.settings.iter().cloned())
            .env("WORK_ROOT", &self.work_root)
            .current_dir(&self.work_root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
        let _purged = self.command("purge").status();
    }
}

/// One keep-alive connection, made anew after a pause in which the service may have closed it.
pub struct Client {
    address: String,
    link: BufReader<TcpStream>,
    used: Instant,
}

impl Client {
    fn connect(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            link: connected(address),
            used: Instant::now(),
        }
    }

    /// Runs a cell, which must succeed, and returns the whole answer.
    pub fn run(&mut self, session: &str, code: &str) -> String {
        let answer = self.post("/v1/execute", &cell(session, code));
        assert!(answer.contains(r#""status":"ok""#), "{answer}");
        answer
    }

    pub fn stop(&mut self, session: &str) {
        let body = json!({"user_id": "u", "session_id": session});
        self.post("/v1/sandbox/stop", &body.to_string());
    }

    pub fn post(&mut self, path: &str, body: &str) -> String {
        self.send("POST", path, body)
    }

    pub fn get(&mut self, path: &str) -> String {
        self.send("GET", path, "")
    }

    fn send(&mut self, method: &str, path: &str, body: &str) -> String {
        if self.used.elapsed() > LONGEST_PAUSE {
            self.link = connected(&self.address);
        }
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.link.get_mut().write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            assert_ne!(self.link.read_line(&mut line).unwrap(), 0, "it hung up");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut answer = vec![0; length];
        self.link.read_exact(&mut answer).unwrap();
        self.used = Instant::now();
        String::from_utf8(answer).unwrap()
    }
}

fn connected(address: &str) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

/// The body of an execute.
pub fn cell(session: &str, code: &str) -> String {
    json!({"user_id": "u", "session_id": session, "code": code, "timeout_seconds": 100}).to_string()
}
