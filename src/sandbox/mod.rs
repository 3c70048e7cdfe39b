//! Sandboxes as plain data, and the one trait every backend implements.
//! Never speaks HTTP, never touches session state; a backend is one folder beside this file.
//! Invariant: isolation comes from `SandboxSpec` alone, and its defaults are the safe ones.

mod cgroup;
pub mod docker;
pub mod embedded;
mod inside;
mod process;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::model::ids::SessionIds;

/// Sandboxes go before anything else when the host runs out of memory.
const OOM_SCORE_ADJ: i32 = 500;
/// The allowlist of system calls for every backend, in Docker's profile format.
const SECCOMP_PROFILE: &str = include_str!("seccomp.json");

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
    /// Container name, `sb_{user_key}_{session_key}`, or a pool name until it has an owner.
    pub name: String,
    /// Whose it is; none while it waits in the pool.
    pub session: Option<SessionIds>,
    /// Another image than the operator's `SANDBOX_IMAGE`; it must be in `SANDBOX_ALLOWED_IMAGES`.
    pub image: Option<String>,
    /// Host folder that appears read-write at `/workspace`.
    pub workspace_dir: PathBuf,
    /// Host folder that appears read-only at `/run/cellblock`; it holds the kernel socket.
    pub control_dir: PathBuf,
    /// Uid and gid inside the sandbox; never 0.
    pub uid: u32,
    pub gid: u32,
    pub limits: Limits,
    /// A network of the engine's instead of none; only where the operator allows it.
    pub network: bool,
    /// Modules the supervisor imports before it forks a worker.
    pub preload: Vec<String>,
}

/// A sandbox that exists: enough to find the very same one again after a restart of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxHandle {
    /// The backend that made it; no other one can look after it.
    #[serde(default = "first_backend")]
    pub backend: String,
    pub container_id: String,
    /// Pid of the sandbox's init in the host's pid namespace; 0 if it cannot be seen from here.
    pub init_pid: i32,
    /// Start time of that pid in clock ticks since boot, so that a reused pid is not mistaken for it.
    pub init_start_ticks: u64,
}

impl SandboxHandle {
    /// Whether its init is still that process, as far as it can be seen from here.
    pub fn is_running(&self) -> bool {
        process::start_ticks(self.init_pid) == Some(self.init_start_ticks)
    }
}

/// A sandbox as its backend lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSandbox {
    pub handle: SandboxHandle,
    /// Since it was made, by the wall clock; nothing if that was set back.
    pub age: Duration,
}

impl ListedSandbox {
    fn new(handle: SandboxHandle, made: Option<SystemTime>) -> Self {
        let age = made.and_then(|made| made.elapsed().ok());
        Self {
            handle,
            age: age.unwrap_or_default(),
        }
    }
}

/// Handles that an early version wrote do not say who made them; there was only one backend then.
fn first_backend() -> String {
    embedded::NAME.to_owned()
}

/// News that a sandbox may no longer serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// This container ended, was paused or was removed.
    One(String),
    /// News may have been missed: look at all of them.
    Any,
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
    /// Who makes the sandboxes does not answer; it may well do so later.
    #[error("the {0} does not answer; try again later")]
    Silent(&'static str),
    #[error("sandbox {name} could not be made: {reason}")]
    CreateFailed { name: String, reason: String },
    #[error("sandbox {container_id} could not be removed: {reason}")]
    RemoveFailed {
        container_id: String,
        reason: String,
    },
}

/// How sandboxes are made: `docker` where an engine runs, `embedded` where nothing does.
#[async_trait]
pub trait Backend: Send + Sync {
    fn name(&self) -> &'static str;
    /// Whether a sandbox sees what this process has mounted in a folder that it is given.
    fn shares_mounts(&self) -> bool;
    /// Answers quickly whether new sandboxes can be made right now.
    async fn check(&self) -> Result<(), BackendError>;
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxHandle, BackendError>;
    /// Sees to it that the kernel of a sandbox reaches the socket in `control_dir`; gives the pid of whoever dials there.
    async fn connect(
        &self,
        handle: &SandboxHandle,
        control_dir: &Path,
    ) -> Result<i32, BackendError>;
    /// Shows outsiders whose a sandbox from the pool is now. Nothing in the service depends on it.
    async fn rename(&self, handle: &SandboxHandle, name: &str) -> Result<(), BackendError>;
    /// Whether it runs and can answer. In doubt, for example while an engine is silent, yes.
    async fn is_alive(&self, handle: &SandboxHandle) -> bool;
    async fn usage(&self, handle: &SandboxHandle) -> Usage;
    /// Kills and removes; returns when no process of the sandbox is left. False if it was already gone.
    async fn remove(&self, handle: &SandboxHandle) -> Result<bool, BackendError>;
    /// Every sandbox of this deployment and node that this backend knows of, alive or dead.
    async fn list(&self) -> Result<Vec<ListedSandbox>, BackendError>;
    /// Waits for news of sandboxes that ended behind our back. For one listener.
    async fn next_ended(&self) -> Ended;
}
