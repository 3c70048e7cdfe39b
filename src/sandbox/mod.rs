//! Sandboxes as plain data, and the one trait every backend implements.
//! Never speaks HTTP, never touches session state; a backend is one folder beside this file.
//! Invariant: isolation comes from `SandboxSpec` alone, and its defaults are the safe ones.

pub mod embedded;

use std::path::PathBuf;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// What a sandbox may use. Enforced by cgroups and rlimits, never by the kernel daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub cpus: f64,
    pub memory_bytes: u64,
    pub pids: u32,
    pub open_files: u64,
    pub file_size_bytes: u64,
    pub tmp_bytes: u64,
    pub tmp_inodes: u64,
    pub shm_bytes: u64,
}

/// Everything a backend needs to make one sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Container name, `sb_{user_key}_{session_key}`.
    pub name: String,
    /// Host folder that appears read-write at `/workspace`.
    pub workspace_dir: PathBuf,
    /// Host folder that appears read-only at `/run/cellblock`; it holds the kernel socket.
    pub control_dir: PathBuf,
    /// Uid and gid inside the sandbox; never 0.
    pub uid: u32,
    pub gid: u32,
    pub limits: Limits,
    /// Modules the supervisor imports before it forks a worker.
    pub preload: Vec<String>,
}

/// A sandbox that exists: enough to find the very same one again after a restart of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxHandle {
    pub container_id: String,
    /// Pid of the sandbox's init in the host's pid namespace.
    pub init_pid: i32,
    /// Start time of that pid in clock ticks since boot, so that a reused pid is not mistaken for it.
    pub init_start_ticks: u64,
}

/// What the host itself measures of a sandbox.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    pub memory_bytes: Option<u64>,
    pub cpu_seconds: Option<f64>,
    /// How many times the kernel's OOM killer has struck in this sandbox.
    pub oom_kills: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The host cannot make sandboxes at the moment; the text says what is missing and what to do.
    #[error("{0}")]
    Unavailable(String),
    #[error("sandbox {name} could not be made: {reason}")]
    CreateFailed { name: String, reason: String },
    #[error("sandbox {container_id} could not be removed: {reason}")]
    RemoveFailed {
        container_id: String,
        reason: String,
    },
}

/// How sandboxes are made. Implementations: `embedded`, and `docker` as the production choice.
#[async_trait]
pub trait Backend: Send + Sync {
    fn name(&self) -> &'static str;
    /// Answers quickly whether new sandboxes can be made right now.
    async fn check(&self) -> Result<(), BackendError>;
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxHandle, BackendError>;
    async fn is_alive(&self, handle: &SandboxHandle) -> bool;
    async fn usage(&self, handle: &SandboxHandle) -> Usage;
    /// Kills and removes; returns when no process of the sandbox is left. False if it was already gone.
    async fn remove(&self, handle: &SandboxHandle) -> Result<bool, BackendError>;
    /// Every sandbox of this deployment that this backend knows of, alive or dead.
    async fn list(&self) -> Result<Vec<(String, SandboxHandle)>, BackendError>;
}
