//! The embedded backend: real OCI containers through youki's libcontainer, with no daemon and no image.
//! Never makes a container in its own process: a helper (`helper.rs`) does, once per sandbox, and exits.
//! Invariant: a sandbox is one folder under the state root, one cgroup and one init; `remove` ends all three.

mod cgroup_limits;
mod filter_file;
mod helper;
mod kernel_files;
mod launch;
mod oci;
mod probe;
mod python;
mod record;
mod rootfs;
mod seccomp;

pub mod packages;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::cgroup::{self, Hierarchy};
use super::process::Process;
use super::{
    Backend, BackendError, Ended, Limits, ListedSandbox, SandboxHandle, SandboxSpec, Usage,
};

pub use self::helper::{SUBCOMMAND, run_helper};
pub use self::kernel_files::{InstallError, install_kernel};
pub use self::probe::{Check, probe};
pub use self::python::{Python, PythonError};

pub const NAME: &str = "embedded";
const KILL_LIMIT: Duration = Duration::from_secs(10);
const CGROUP_LIMIT: Duration = Duration::from_secs(5);

/// What the backend needs to know of its host; made once, at start.
#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    /// One folder per sandbox is made here.
    pub state_root: PathBuf,
    /// Shared by all sandboxes: the root skeleton, the compiled filter, user files.
    pub runtime_root: PathBuf,
    /// Keeps the cgroups of several services on one host apart.
    pub deployment_id: String,
    /// The binary that answers to the hidden subcommand; the service itself unless a test says otherwise.
    pub helper: PathBuf,
    pub python: Python,
    /// What `install_kernel` gave.
    pub kernel_dir: PathBuf,
    /// What `packages::locate` or `packages::prepare` gave; none means the standard library only.
    pub packages_dir: Option<PathBuf>,
}

impl EmbeddedConfig {
    /// The service's own binary, even after the file was replaced by an upgrade.
    pub fn own_binary() -> PathBuf {
        PathBuf::from("/proc/self/exe")
    }
}

/// Makes sandboxes on this host.
#[derive(Clone)]
pub struct EmbeddedBackend {
    inner: Arc<Inner>,
}

struct Inner {
    config: EmbeddedConfig,
    hierarchy: Hierarchy,
    root: rootfs::Root,
    filter_file: PathBuf,
    oom_score_adj: i32,
}

impl EmbeddedBackend {
    /// Prepares the host: folders, root skeleton, filter, parent cgroup. Fails where isolation or a limit would be missing.
    pub fn new(config: EmbeddedConfig) -> Result<Self, BackendError> {
        probe::require_root()?;
        let hierarchy = Hierarchy::detect().map_err(unavailable)?;
        hierarchy.prepare().map_err(unavailable)?;
        if !record::is_container_id(&config.deployment_id) {
            let text = "the deployment id must be letters, digits, '-', '_' or '.'";
            return Err(BackendError::Unavailable(text.to_owned()));
        }
        for folder in [&config.state_root, &config.runtime_root] {
            make_private(folder).map_err(|error| {
                BackendError::Unavailable(format!("{}: {error}", folder.display()))
            })?;
        }
        let root = rootfs::assemble(&config.runtime_root, &config.python).map_err(unavailable)?;
        let filter_file = filter_file::install(&config.runtime_root).map_err(unavailable)?;
        if !hierarchy.limits_swap() && probe::host_has_swap() {
            tracing::warn!(
                "the host has swap but does not account it: sandboxes may swap beyond their memory limit"
            );
        }
        Ok(Self {
            inner: Arc::new(Inner {
                oom_score_adj: super::OOM_SCORE_ADJ.max(probe::own_oom_score_adj()),
                config,
                hierarchy,
                root,
                filter_file,
            }),
        })
    }
}

impl Inner {
    fn container_dir(&self, container_id: &str) -> PathBuf {
        self.config.state_root.join(container_id)
    }

    fn cgroup(&self, container_id: &str) -> String {
        format!(
            "{}/{}.{container_id}",
            cgroup::PARENT,
            self.config.deployment_id
        )
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxHandle, BackendError> {
        let failed = |reason: String| BackendError::CreateFailed {
            name: spec.name.clone(),
            reason,
        };
        let container_id = record::new_container_id(&spec.name);
        if !record::is_container_id(&container_id) {
            return Err(failed(
                "its name is not usable as a container id".to_owned(),
            ));
        }
        if spec.uid == 0 || spec.gid == 0 {
            return Err(failed("uid and gid must not be 0".to_owned()));
        }
        if let Some(image) = &spec.image {
            return Err(failed(format!(
                "the embedded backend has no images, so not {image}"
            )));
        }
        if spec.network {
            return Err(failed(
                "the embedded backend has no network to give".to_owned(),
            ));
        }
        match self.make(spec, &container_id).await {
            Ok(init) => Ok(SandboxHandle {
                backend: NAME.to_owned(),
                container_id,
                init_pid: init.pid,
                init_start_ticks: init.start_ticks,
            }),
            Err(reason) => {
                if let Err(error) = self.clean_up(&container_id) {
                    tracing::warn!(container_id, %error, "a half-made sandbox could not be cleaned up");
                }
                Err(failed(reason))
            }
        }
    }

    async fn make(&self, spec: &SandboxSpec, container_id: &str) -> Result<record::Init, String> {
        let container_dir = self.container_dir(container_id);
        self.write_bundle(spec, &container_dir)
            .map_err(|error| error.to_string())?;
        let cgroup_entries = self
            .hierarchy
            .create(&self.cgroup(container_id), &spec.limits)
            .map_err(|error| error.to_string())?;
        let helper = &self.config.helper;
        launch::run(helper, &container_dir, &self.filter_file, &cgroup_entries).await
    }

    fn write_bundle(&self, spec: &SandboxSpec, container_dir: &Path) -> std::io::Result<()> {
        let (passwd, group) = rootfs::user_files(&self.config.runtime_root, spec.uid, spec.gid)?;
        let spec = SandboxSpec {
            limits: within_own_rlimits(&spec.limits),
            ..spec.clone()
        };
        let layout = oci::Layout {
            root: &self.root.path,
            host_folders: &self.root.host_folders,
            passwd: &passwd,
            group: &group,
            python: &self.config.python,
            kernel_dir: &self.config.kernel_dir,
            packages_dir: self.config.packages_dir.as_deref(),
            oom_score_adj: self.oom_score_adj,
        };
        record::write_new(container_dir, &oci::config(&spec, &layout))
    }

    fn remove(&self, handle: &SandboxHandle) -> Result<bool, BackendError> {
        let failed = |reason: String| BackendError::RemoveFailed {
            container_id: handle.container_id.clone(),
            reason,
        };
        if !record::is_container_id(&handle.container_id) {
            return Ok(false);
        }
        // The end of a pid namespace's init is the end of every process in it.
        let init = Process::open(handle.init_pid, handle.init_start_ticks);
        if let Some(init) = &init
            && !init.kill_and_wait(KILL_LIMIT)
        {
            return Err(failed("its init does not end".to_owned()));
        }
        let existed = self.clean_up(&handle.container_id).map_err(failed)?;
        Ok(existed || init.is_some())
    }

    /// Removes cgroup and folder, killing what a create that was cut short may have left in the cgroup.
    fn clean_up(&self, container_id: &str) -> Result<bool, String> {
        self.hierarchy
            .remove(&self.cgroup(container_id), CGROUP_LIMIT)
            .map_err(|error| error.to_string())?;
        match std::fs::remove_dir_all(self.container_dir(container_id)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[async_trait]
impl Backend for EmbeddedBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn shares_mounts(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<(), BackendError> {
        self.inner.hierarchy.prepare().map_err(unavailable)
    }

    /// Runs to its end even if the caller goes away: a sandbox is either whole and listed, or cleaned up.
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxHandle, BackendError> {
        let (inner, spec) = (self.inner.clone(), spec.clone());
        let name = spec.name.clone();
        tokio::spawn(async move { inner.create(&spec).await })
            .await
            .unwrap_or_else(|error| {
                Err(BackendError::CreateFailed {
                    name,
                    reason: error.to_string(),
                })
            })
    }

    async fn connect(&self, handle: &SandboxHandle, _: &Path) -> Result<i32, BackendError> {
        Ok(handle.init_pid)
    }

    /// Its container id keeps the name it was born with; only the owner's metadata says whose it is.
    async fn rename(&self, _: &SandboxHandle, _: &str) -> Result<(), BackendError> {
        Ok(())
    }

    async fn is_alive(&self, handle: &SandboxHandle) -> bool {
        handle.is_running()
    }

    async fn usage(&self, handle: &SandboxHandle) -> Usage {
        if !record::is_container_id(&handle.container_id) {
            return Usage::default();
        }
        let cgroup = self.inner.cgroup(&handle.container_id);
        self.inner.hierarchy.usage(&cgroup)
    }

    async fn remove(&self, handle: &SandboxHandle) -> Result<bool, BackendError> {
        let (inner, handle) = (self.inner.clone(), handle.clone());
        let container_id = handle.container_id.clone();
        tokio::task::spawn_blocking(move || inner.remove(&handle))
            .await
            .unwrap_or_else(|error| {
                Err(BackendError::RemoveFailed {
                    container_id,
                    reason: error.to_string(),
                })
            })
    }

    async fn list(&self) -> Result<Vec<ListedSandbox>, BackendError> {
        record::read_all(&self.inner.config.state_root).map_err(unavailable)
    }

    /// The end of an init ends its kernel link too, and that is news enough.
    async fn next_ended(&self) -> Ended {
        std::future::pending().await
    }
}

/// A hard limit of the service itself cannot be exceeded (it may lack CAP_SYS_RESOURCE), so ask for what is possible.
fn within_own_rlimits(limits: &Limits) -> Limits {
    use rustix::process::{Resource, getrlimit};
    let at_most = |wanted: u64, resource| {
        getrlimit(resource)
            .maximum
            .map_or(wanted, |own| own.min(wanted))
    };
    Limits {
        open_files: at_most(limits.open_files, Resource::Nofile),
        file_size_bytes: at_most(limits.file_size_bytes, Resource::Fsize),
        ..limits.clone()
    }
}

fn make_private(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

fn unavailable(error: impl std::fmt::Display) -> BackendError {
    BackendError::Unavailable(error.to_string())
}
