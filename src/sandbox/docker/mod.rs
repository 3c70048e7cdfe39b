//! The docker backend: one hardened container per sandbox, made by a Docker engine.
//! Never uses `docker exec` or the archive API where a mounted socket can cross to the engine's kernel.
//! Invariant: whatever carries our labels was made here, and `list` finds it, so nothing is left behind for good.

mod body;
mod bridge;
mod engine;
mod events;
mod labels;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    RenameContainerOptionsBuilder, StatsOptionsBuilder,
};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use self::body::Surroundings;
use self::bridge::Bridge;
use self::engine::{EngineError, QUICK, SLOW, within};
use super::cgroup::Hierarchy;
use super::{
    Backend, BackendError, Ended, ListedSandbox, SandboxHandle, SandboxSpec, Usage, inside, process,
};

pub use self::body::SharedFolders;
pub use self::engine::Engine;
pub use self::labels::Deployment;

pub const NAME: &str = "docker";
/// How long a container that is being removed by somebody else may take.
const REMOVAL_LOOKS: usize = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(100);
const NEWS_AT_MOST: usize = 256;

/// What the operator decided.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    pub deployment: Deployment,
    pub image: String,
    pub allowed_images: Vec<String>,
    pub runtime: Option<String>,
    pub folders: SharedFolders,
}

#[derive(Clone)]
pub struct DockerBackend {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    around: Surroundings,
    /// None where cgroups cannot be read; the engine is asked then.
    hierarchy: Option<Hierarchy>,
    /// One per connected sandbox whose links cannot cross by a mounted socket.
    bridges: Mutex<HashMap<String, Bridge>>,
    news: tokio::sync::Mutex<mpsc::Receiver<Ended>>,
    /// How often the engine told of memory that ran out, by container.
    oom_kills: Arc<Mutex<HashMap<String, u64>>>,
    follower: JoinHandle<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl DockerBackend {
    pub fn new(engine: Engine, config: DockerConfig) -> Self {
        let bridged = !engine.can_mount_sockets(config.runtime.as_deref());
        let (sender, news) = mpsc::channel(NEWS_AT_MOST);
        let oom_kills = Arc::default();
        let follower = tokio::spawn(events::follow(
            engine.docker.clone(),
            config.deployment.clone(),
            sender,
            Arc::clone(&oom_kills),
        ));
        let around = Surroundings {
            deployment: config.deployment,
            image: config.image,
            allowed_images: config.allowed_images,
            runtime: config.runtime,
            folders: config.folders,
            has_seccomp: engine.has_seccomp,
            bridged,
        };
        Self {
            inner: Arc::new(Inner {
                engine,
                around,
                hierarchy: Hierarchy::detect().ok(),
                bridges: Mutex::default(),
                news: tokio::sync::Mutex::new(news),
                oom_kills,
                follower,
            }),
        }
    }
}

impl Inner {
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxHandle, BackendError> {
        let failed = |reason: String| BackendError::CreateFailed {
            name: spec.name.clone(),
            reason,
        };
        if spec.uid == 0 || spec.gid == 0 {
            return Err(failed("uid and gid must not be 0".to_owned()));
        }
        let image = self.around.image_for(spec).map_err(failed)?;
        // An engine that hangs is found out quickly here, not after the long limit of a creation.
        self.ping().await?;
        let container_id =
            self.create_container(spec, image)
                .await
                .map_err(|error| match error {
                    EngineError::NotFound => failed(format!("the engine has no image {image}")),
                    other => other.into_backend_error(failed),
                })?;
        let started = self.start(&container_id).await;
        match started.and_then(|handle| check_workspace(spec, handle)) {
            Ok(handle) => Ok(handle),
            Err(error) => {
                if let Err(error) = self.remove(&container_id).await {
                    tracing::warn!(container_id, %error, "a half-made sandbox could not be removed; the reaper will");
                }
                Err(error.into_backend_error(failed))
            }
        }
    }

    async fn ping(&self) -> Result<(), BackendError> {
        within(QUICK, self.engine.docker.ping())
            .await
            .map(drop)
            .map_err(|error| error.into_backend_error(BackendError::Unavailable))
    }

    async fn create_container(
        &self,
        spec: &SandboxSpec,
        image: &str,
    ) -> Result<String, EngineError> {
        for name in self.names(&spec.name) {
            match self.try_create(spec, &name, image).await {
                Err(EngineError::Conflict(_)) if self.free_name(&name).await? => {
                    return self.try_create(spec, &name, image).await;
                }
                Err(EngineError::Conflict(_)) => {}
                created => return created,
            }
        }
        let reason = format!("other containers have the name {}", spec.name);
        Err(EngineError::Conflict(reason))
    }

    /// The name a sandbox should have, and one for when another deployment serves a session of the same ids.
    fn names(&self, name: &str) -> [String; 2] {
        let own = format!("{name}_{}", self.around.deployment.id);
        [name.to_owned(), own]
    }

    /// A container of ours that still has a name which is needed has outlived its session: it goes. Somebody else's stays.
    /// True if the name may be free now.
    async fn free_name(&self, name: &str) -> Result<bool, EngineError> {
        match within(QUICK, self.engine.docker.inspect_container(name, None)).await {
            Ok(other) if self.is_ours(&other) => {
                tracing::warn!(
                    name,
                    "removing a container that was left with the name of a sandbox"
                );
                self.remove(&other.id.unwrap_or_default()).await?;
                Ok(true)
            }
            Ok(_) | Err(EngineError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is_ours(&self, container: &bollard::models::ContainerInspectResponse) -> bool {
        let labels = container
            .config
            .as_ref()
            .and_then(|config| config.labels.as_ref());
        labels.is_some_and(|labels| self.around.deployment.owns(labels))
    }

    async fn try_create(
        &self,
        spec: &SandboxSpec,
        name: &str,
        image: &str,
    ) -> Result<String, EngineError> {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let body = body::create_body(spec, image, &self.around);
        let created = within(
            SLOW,
            self.engine.docker.create_container(Some(options), body),
        )
        .await?;
        for warning in created.warnings {
            tracing::warn!(warning, "the Docker engine warns about a sandbox");
        }
        Ok(created.id)
    }

    async fn start(&self, container_id: &str) -> Result<SandboxHandle, EngineError> {
        let docker = &self.engine.docker;
        within(SLOW, docker.start_container(container_id, None)).await?;
        let state = within(QUICK, docker.inspect_container(container_id, None))
            .await?
            .state;
        let pid = state.and_then(|state| state.pid).unwrap_or(0);
        let init_pid = i32::try_from(pid).unwrap_or(0);
        let start_ticks =
            process::start_ticks(init_pid).filter(|_| self.sees(init_pid, container_id));
        if start_ticks.is_none() && !self.around.bridged {
            let reason =
                "its init ended at once, or its processes cannot be seen from this service";
            return Err(EngineError::Refused(reason.to_owned()));
        }
        Ok(SandboxHandle {
            backend: NAME.to_owned(),
            container_id: container_id.to_owned(),
            init_pid: start_ticks.map_or(0, |_| init_pid),
            init_start_ticks: start_ticks.unwrap_or(0),
        })
    }

    /// Whether the engine's pid means the same process here: a service in a container has pids of its own.
    fn sees(&self, pid: i32, container_id: &str) -> bool {
        self.cgroup_of(pid)
            .is_some_and(|cgroup| cgroup.contains(container_id))
    }

    fn cgroup_of(&self, pid: i32) -> Option<String> {
        self.hierarchy.as_ref()?.of_process(pid)
    }

    /// Gone when this returns, also if somebody else was removing it already. False if there was nothing to remove.
    async fn remove(&self, container_id: &str) -> Result<bool, EngineError> {
        self.bridges().remove(container_id);
        self.oom_kills().remove(container_id);
        let options = RemoveContainerOptionsBuilder::new()
            .force(true)
            .v(true)
            .build();
        match within(
            SLOW,
            self.engine
                .docker
                .remove_container(container_id, Some(options)),
        )
        .await
        {
            Ok(()) => Ok(true),
            Err(EngineError::NotFound) => Ok(false),
            Err(EngineError::Conflict(_)) => self.wait_until_gone(container_id).await,
            Err(error) => Err(error),
        }
    }

    async fn wait_until_gone(&self, container_id: &str) -> Result<bool, EngineError> {
        for _ in 0..REMOVAL_LOOKS {
            match within(
                QUICK,
                self.engine.docker.inspect_container(container_id, None),
            )
            .await
            {
                Err(EngineError::NotFound) => return Ok(true),
                Err(error) => return Err(error),
                Ok(_) => tokio::time::sleep(REMOVAL_PAUSE).await,
            }
        }
        Err(EngineError::Refused(
            "its removal does not come to an end".to_owned(),
        ))
    }

    fn bridges(&self) -> std::sync::MutexGuard<'_, HashMap<String, Bridge>> {
        self.bridges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_frozen(&self, pid: i32) -> Option<bool> {
        let hierarchy = self.hierarchy.as_ref()?;
        hierarchy.is_frozen(&hierarchy.of_process(pid)?)
    }

    async fn usage_by_engine(&self, container_id: &str) -> Usage {
        let options = StatsOptionsBuilder::new()
            .stream(false)
            .one_shot(true)
            .build();
        let mut stats = std::pin::pin!(self.engine.docker.stats(container_id, Some(options)));
        let stats = tokio::time::timeout(QUICK, stats.next())
            .await
            .ok()
            .flatten();
        let stats = stats.and_then(Result::ok);
        let killed = self
            .state(container_id)
            .await
            .ok()
            .and_then(|state| state.oom_killed);
        let counted = self.oom_kills().get(container_id).copied().unwrap_or(0);
        Usage {
            memory_bytes: stats
                .as_ref()
                .and_then(|stats| stats.memory_stats.as_ref()?.usage),
            cpu_seconds: stats.as_ref().and_then(|stats| {
                let nanos = stats.cpu_stats.as_ref()?.cpu_usage.as_ref()?.total_usage?;
                Some(nanos as f64 / 1e9)
            }),
            oom_kills: counted.max(u64::from(killed == Some(true))),
        }
    }

    fn oom_kills(&self) -> std::sync::MutexGuard<'_, HashMap<String, u64>> {
        self.oom_kills
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's own word, for what cannot be read from here.
    async fn state(
        &self,
        container_id: &str,
    ) -> Result<bollard::models::ContainerState, EngineError> {
        let found = within(
            QUICK,
            self.engine.docker.inspect_container(container_id, None),
        )
        .await?;
        Ok(found.state.unwrap_or_default())
    }
}

/// An engine in a mount namespace of its own would give the sandbox the bare folder below what we mounted there, where no
/// limit holds and no file is found again.
fn check_workspace(
    spec: &SandboxSpec,
    handle: SandboxHandle,
) -> Result<SandboxHandle, EngineError> {
    let seen_inside = format!("/proc/{}/root{}", handle.init_pid, inside::WORKSPACE);
    let (inside, here) = (
        std::fs::metadata(seen_inside),
        std::fs::metadata(&spec.workspace_dir),
    );
    match (inside, here) {
        (Ok(inside), Ok(here)) if inside.dev() != here.dev() => {
            let reason =
                "the engine does not see what this service mounts; set WORKSPACE_QUOTA=soft";
            Err(EngineError::Refused(reason.to_owned()))
        }
        // Not for us to see: as another user than root there is no mount to miss.
        _ => Ok(handle),
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn shares_mounts(&self) -> bool {
        !self.inner.around.bridged
    }

    async fn check(&self) -> Result<(), BackendError> {
        self.inner.ping().await
    }

    /// Runs to its end even if the caller goes away: a container is either whole and known, or removed.
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

    async fn connect(
        &self,
        handle: &SandboxHandle,
        control_dir: &Path,
    ) -> Result<i32, BackendError> {
        if !self.inner.around.bridged {
            return Ok(handle.init_pid);
        }
        let bridge = Bridge::start(
            self.inner.engine.docker.clone(),
            &handle.container_id,
            control_dir,
        )
        .map_err(|error| BackendError::Unavailable(format!("no bridge to the sandbox: {error}")))?;
        self.inner
            .bridges()
            .insert(handle.container_id.clone(), bridge);
        Ok(bridge::dialling_pid())
    }

    async fn rename(&self, handle: &SandboxHandle, name: &str) -> Result<(), BackendError> {
        let mut outcome = Ok(());
        for name in self.inner.names(name) {
            let options = RenameContainerOptionsBuilder::new().name(&name).build();
            let docker = &self.inner.engine.docker;
            outcome = within(
                QUICK,
                docker.rename_container(&handle.container_id, options),
            )
            .await;
            if !matches!(outcome, Err(EngineError::Conflict(_))) {
                break;
            }
        }
        outcome.map_err(|error| error.into_backend_error(BackendError::Unavailable))
    }

    /// Looks at the process and its cgroup where it can: that needs no engine.
    async fn is_alive(&self, handle: &SandboxHandle) -> bool {
        if handle.init_pid > 0 {
            if !handle.is_running() {
                return false;
            }
            if let Some(frozen) = self.inner.is_frozen(handle.init_pid) {
                return !frozen;
            }
        }
        match self.inner.state(&handle.container_id).await {
            Ok(state) => state.running == Some(true) && state.paused != Some(true),
            Err(EngineError::NotFound) => false,
            // In doubt it lives.
            Err(_) => true,
        }
    }

    async fn usage(&self, handle: &SandboxHandle) -> Usage {
        if let (Some(hierarchy), Some(cgroup)) =
            (&self.inner.hierarchy, self.inner.cgroup_of(handle.init_pid))
        {
            let usage = hierarchy.usage(&cgroup);
            if usage.memory_bytes.is_some() {
                return usage;
            }
        }
        // Its cgroup went with it, or is not ours to see: the engine tells what it knows.
        self.inner.usage_by_engine(&handle.container_id).await
    }

    async fn remove(&self, handle: &SandboxHandle) -> Result<bool, BackendError> {
        let (inner, container_id) = (self.inner.clone(), handle.container_id.clone());
        let failed = |reason: String| BackendError::RemoveFailed {
            container_id: handle.container_id.clone(),
            reason,
        };
        // A request that an engine answers too late may still be carried out: one that hangs gets none.
        self.inner.ping().await?;
        tokio::spawn(async move { inner.remove(&container_id).await })
            .await
            .map_err(|error| failed(error.to_string()))?
            .map_err(|error| error.into_backend_error(failed))
    }

    async fn list(&self) -> Result<Vec<ListedSandbox>, BackendError> {
        let filters = self.inner.around.deployment.filters();
        let options = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&filters)
            .build();
        let found = within(
            SLOW,
            self.inner.engine.docker.list_containers(Some(options)),
        )
        .await
        .map_err(|error| error.into_backend_error(BackendError::Unavailable))?;
        let handle = |container_id: String| SandboxHandle {
            backend: NAME.to_owned(),
            container_id,
            init_pid: 0,
            init_start_ticks: 0,
        };
        let made = |seconds: i64| Some(UNIX_EPOCH + Duration::from_secs(seconds.try_into().ok()?));
        Ok(found
            .into_iter()
            .filter_map(|found| {
                let handle = handle(found.id?);
                Some(ListedSandbox::new(handle, found.created.and_then(made)))
            })
            .collect())
    }

    async fn next_ended(&self) -> Ended {
        match self.inner.news.lock().await.recv().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }
}
