//! A program to run in a sandbox, and what came of it.
//! No I/O. Invariant: an exit code is what a shell would give: 124 for a time limit, 127 for no such program, 128 + n for signal n.

use std::collections::BTreeMap;
use std::time::Duration;

use super::path::WorkspacePath;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessCommand {
    pub argv: Vec<String>,
    /// Below the workspace; the workspace itself if there is none.
    pub cwd: Option<WorkspacePath>,
    pub env: BTreeMap<String, String>,
    pub timeout: Duration,
}

impl ProcessCommand {
    /// A line of bash.
    pub fn bash(line: &str, timeout: Duration) -> Self {
        Self {
            argv: ["bash", "-c", line].map(str::to_owned).to_vec(),
            cwd: None,
            env: BTreeMap::new(),
            timeout,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEnd {
    Exit(i64),
    Signal(i64),
    TimedOut {
        limit: Duration,
    },
    /// It was ended because the workspace outgrew its limit.
    OverQuota,
    /// The sandbox ran out of memory, and the operating system killed it or what it waited for.
    OutOfMemory,
    /// The sandbox ended under it.
    SandboxLost,
    /// There is no such program, or it may not be run.
    NotStarted(String),
}

impl ProcessEnd {
    /// For those who count.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Exit(0) => "ok",
            Self::Exit(_) => "failed",
            Self::Signal(_) => "signal",
            Self::TimedOut { .. } => "timeout",
            Self::OverQuota => "quota",
            Self::OutOfMemory => "oom",
            Self::SandboxLost => "died",
            Self::NotStarted(_) => "not_started",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessAnswer {
    pub end: ProcessEnd,
    pub stdout: String,
    pub stderr: String,
    pub truncated: bool,
    pub duration: Duration,
}

impl ProcessAnswer {
    pub fn not_started(reason: String, duration: Duration) -> Self {
        Self {
            end: ProcessEnd::NotStarted(reason),
            stdout: String::new(),
            stderr: String::new(),
            truncated: false,
            duration,
        }
    }

    pub fn exit_code(&self) -> i64 {
        match &self.end {
            ProcessEnd::Exit(code) => *code,
            ProcessEnd::Signal(number) => number.saturating_add(128),
            ProcessEnd::TimedOut { .. } => 124,
            ProcessEnd::OverQuota | ProcessEnd::OutOfMemory | ProcessEnd::SandboxLost => 137,
            ProcessEnd::NotStarted(_) => 127,
        }
    }

    /// What the program itself could not say about its end.
    pub fn note(&self) -> Option<String> {
        match &self.end {
            ProcessEnd::Exit(_) | ProcessEnd::Signal(_) => None,
            ProcessEnd::TimedOut { limit } => {
                Some(format!("stopped after {} seconds", limit.as_secs_f64()))
            }
            ProcessEnd::OverQuota => {
                Some("stopped: the workspace grew over MAX_WORKSPACE_SIZE_MB, or filled the disk of the service".to_owned())
            }
            ProcessEnd::OutOfMemory => Some("killed: the sandbox ran out of memory".to_owned()),
            ProcessEnd::SandboxLost => {
                Some("the sandbox ended while the command ran; files are kept".to_owned())
            }
            ProcessEnd::NotStarted(reason) => Some(reason.clone()),
        }
    }

    /// The program's stderr with that note on a line of its own.
    pub fn stderr_with_note(&self) -> String {
        let mut text = self.stderr.clone();
        if let Some(note) = self.note() {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&note);
            text.push('\n');
        }
        text
    }
}
