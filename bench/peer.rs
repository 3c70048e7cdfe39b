//! A peer: a Python program in `peers/` that does one piece of work per line and says how many nanoseconds it took.
//! Knows nothing of what a peer does inside. Invariant: a peer that fails at a work is not asked for it again, and that is said.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::bare::docker;
use crate::report::figures::Contender;

/// Contender, script, and whether it needs an engine.
pub const SCRIPTS: &[(Contender, &str, bool)] = &[
    (Contender::Ipykernel, "ipykernel_zmq.py", false),
    (Contender::KernelGateway, "gateway_websocket.py", false),
    (Contender::DockerExec, "docker_exec.py", true),
    (Contender::Autogen, "autogen_docker.py", true),
    (Contender::LlmSandbox, "llm_sandbox_docker.py", true),
];

const PATIENCE: Timespec = Timespec {
    tv_sec: 90,
    tv_nsec: 0,
};

pub struct Peer {
    pub contender: Contender,
    /// Names and versions of what is compared.
    pub packages: Vec<String>,
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    log: std::path::PathBuf,
}

impl Peer {
    /// Starts the peer and waits until it is ready; the error is a reason for people.
    pub fn start(
        folder: &Path,
        contender: Contender,
        script: &str,
        image: Option<&str>,
    ) -> Result<Self, String> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/peers");
        let home = folder.join("peers").join(script);
        std::fs::create_dir_all(&home).map_err(|error| error.to_string())?;
        let log = home.join("log");
        let log_file = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let python = std::env::var("CELLBLOCK_BENCH_PYTHON").unwrap_or("python3".to_owned());
        let mut child = Command::new(python)
            .arg(scripts.join(script))
            // Whatever a peer leaves behind is left in its own folder, which goes with the run.
            .env("HOME", &home)
            .env("TMPDIR", &home)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("BENCH_RUN", docker::run_name(folder))
            .env("BENCH_IMAGE", image.unwrap_or_default())
            .current_dir(&home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .map_err(|error| format!("it did not start: {error}"))?;
        let answers = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut peer = Self {
            contender,
            packages: Vec::new(),
            questions: child.stdin.take(),
            child,
            answers,
            log,
        };
        let ready = peer.answer()?;
        let packages = ready.strip_prefix("ready").ok_or(ready.clone())?;
        let packages = packages.split(',').map(str::trim);
        peer.packages = packages.map(str::to_owned).collect();
        Ok(peer)
    }

    /// One piece of work, as long as it took inside the peer.
    pub fn time(&mut self, work: &str) -> Result<Duration, String> {
        self.number(work).map(Duration::from_nanos)
    }

    /// What the peer answers to a word, as a plain number.
    pub fn number(&mut self, work: &str) -> Result<u64, String> {
        let questions = self.questions.as_mut().ok_or("it was ended")?;
        writeln!(questions, "{work}").map_err(|error| error.to_string())?;
        let answer = self.answer()?;
        answer.parse().map_err(|_| answer)
    }

    fn answer(&mut self) -> Result<String, String> {
        let stdout = self.answers.get_ref().as_fd();
        let mut waiting = [PollFd::new(&stdout, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, Some(&PATIENCE)) {
            Ok(0) => return Err(format!("no answer within {} s", PATIENCE.tv_sec)),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(format!("it ended: {}", self.last_words())),
            Ok(_) => Ok(line.trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().last().unwrap_or("no reason given").to_owned()
    }
}

impl Drop for Peer {
    /// The end of its input lets a peer clean up; what it does not manage in time is the supervisor's.
    fn drop(&mut self) {
        drop(self.questions.take());
        for _ in 0..200 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
