//! Where the service is put together: settings in, a running service out. Which backend: `backend.rs`.
//! Holds no logic of its own. Invariant: a service that cannot isolate code or keep files does not start.

pub mod backend;
mod local;

use std::fs::{self, File};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api::{self, AppState};
use crate::http_server;
use crate::ingest::{FetchPolicy, Fetcher};
use crate::policy::judge::Judge;
use crate::sandbox::Backend;
use crate::session::{Core, CoreParts};
use crate::settings::{QuotaChoice, Settings};
use crate::store::embedded::{Credentials, EmbeddedS3};
use crate::store::{Connection, ObjectStore};
use crate::volume::{HostDisk, VolumeSize, Volumes};

pub use local::LocalCore;

/// How long running cells may go on after the service was told to end.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);
/// After that, what is left of a request.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Where another work root will do as well.
const HANDOVER_PATIENCE: Duration = Duration::from_secs(1);
const HEARTBEAT: Duration = Duration::from_millis(100);
const STORE_RETRY: Duration = Duration::from_secs(1);

/// What `WORK_ROOT/service.json` tells those who want to find the running service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceFile {
    pub pid: u32,
    pub address: SocketAddr,
    pub s3_address: Option<SocketAddr>,
}

/// Runs the service until `shutdown` resolves.
pub async fn run(
    settings: Settings,
    shutdown: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    let work_root = open_work_root(&settings.work_root)?;
    let _lock = lock_work_root(&work_root).await?;
    let listener = listen(
        "HOST and PORT",
        SocketAddr::new(settings.host, settings.port),
    )
    .await?;
    let address = listener.local_addr()?;
    let parts = assemble(settings, &work_root).await?;
    let (core, s3_address) = (parts.state.core.clone(), parts.s3_address);
    let service = TowerToHyperService::new(api::router(parts.state.clone()));
    write_service_file(
        &work_root,
        &ServiceFile {
            pid: std::process::id(),
            address,
            s3_address,
        },
    )?;
    tracing::info!(%address, s3 = ?s3_address, backend = core.backend().name(), work_root = %work_root.display(), "listening");
    let ending = async {
        shutdown.await;
        tracing::info!("shutting down; sandboxes stay alive for the next start");
        core.shut_down(SHUTDOWN_PATIENCE).await;
    };
    http_server::serve(listener, service, DRAIN_LIMIT, ending).await;
    drop(parts);
    let _already_gone = fs::remove_file(work_root.join("service.json"));
    Ok(())
}

/// Serves MCP on standard input and output, with a core of its own, until the client hangs up. It takes the first of
/// `work_roots` that nobody holds, so that whoever comes back alone finds what it left.
pub async fn run_mcp(settings: Settings, work_roots: &[PathBuf]) -> anyhow::Result<()> {
    let (work_root, _lock) = lock_first_free(work_roots).await?;
    let parts = assemble(settings, &work_root).await?;
    let client = api::mcp::Mcp::new(&parts.state, "stdio");
    let service = rmcp::serve_server(client, rmcp::transport::stdio())
        .await
        .context("the MCP client did not open a session")?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        ended = service.waiting() => { ended?; }
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    parts.state.core.shut_down(SHUTDOWN_PATIENCE).await;
    Ok(())
}

/// A running core and what goes on beside it; all of it ends when this is dropped.
struct Parts {
    state: api::Shared,
    s3_address: Option<SocketAddr>,
    stop_store: CancellationToken,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
        self.stop_store.cancel();
    }
}

async fn assemble(settings: Settings, work_root: &Path) -> anyhow::Result<Parts> {
    let backend = backend::choose(&settings, work_root).await?;
    let stop_store = CancellationToken::new();
    let (store, s3_address) = open_store(&settings, work_root, stop_store.clone()).await?;
    let volumes = volumes(&settings, work_root, backend.as_ref())?;
    let core = Core::start(core_parts(&settings, work_root, backend, store, volumes)).await;
    let core = core
        .map_err(|error| anyhow::Error::new(error).context("sessions could not be taken over"))?;
    let tasks = [
        tokio::spawn(core.clone().look_after_everything()),
        tokio::spawn(keep_a_timer_near()),
    ];
    let s3_kind = if s3_address.is_some() {
        "embedded"
    } else {
        "external"
    };
    let policy = settings.dialects.command_policy.clone();
    let judge = policy.map(|policy| Arc::new(Judge::new(policy, settings.helper.clone())));
    let state = Arc::new(AppState {
        core,
        judge,
        worker_id: settings.worker_id.clone().unwrap_or_else(host_name),
        s3_kind,
        started: Instant::now(),
        settings,
    });
    Ok(Parts {
        state,
        s3_address,
        stop_store,
        tasks,
    })
}

pub(crate) fn open_work_root(path: &Path) -> anyhow::Result<PathBuf> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| fs::canonicalize(path))
        .with_context(|| {
            format!(
                "WORK_ROOT={} cannot be used: make it a writable folder",
                path.display()
            )
        })
}

async fn lock_first_free(work_roots: &[PathBuf]) -> anyhow::Result<(PathBuf, File)> {
    let (last, others) = work_roots.split_last().context("no work root to choose")?;
    for path in others {
        let work_root = open_work_root(path)?;
        if let Ok(lock) = lock_within(&work_root, HANDOVER_PATIENCE).await {
            return Ok((work_root, lock));
        }
    }
    let work_root = open_work_root(last)?;
    let lock = lock_work_root(&work_root).await?;
    Ok((work_root, lock))
}

/// One service per work root. A predecessor that is just ending is waited for.
pub(crate) async fn lock_work_root(work_root: &Path) -> anyhow::Result<File> {
    lock_within(work_root, LOCK_PATIENCE).await
}

async fn lock_within(work_root: &Path, patience: Duration) -> anyhow::Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(work_root.join("lock"))?;
    let deadline = Instant::now() + patience;
    while file.try_lock().is_err() {
        if Instant::now() > deadline {
            bail!(
                "WORK_ROOT={} is in use by another cellblock: stop that one, or set another WORK_ROOT",
                work_root.display()
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(file)
}

async fn listen(names: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| {
        format!("cannot listen on {address}: free that address or set {names} to another")
    })
}

async fn open_store(
    settings: &Settings,
    work_root: &Path,
    stop: CancellationToken,
) -> anyhow::Result<(ObjectStore, Option<SocketAddr>)> {
    if !settings.uses_embedded_s3() {
        let credentials = settings
            .s3
            .access_key_id
            .clone()
            .zip(settings.s3.secret_access_key.clone());
        let connection = Connection {
            endpoint_url: settings.s3.endpoint_url.clone(),
            credentials,
        };
        let store = ObjectStore::connect(&settings.s3, connection).await;
        tokio::spawn(ensure_bucket_for_ever(store.clone()));
        return Ok((store, None));
    }
    let listener = listen("EMBEDDED_S3_ADDR", settings.s3.embedded_addr).await?;
    let address = listener.local_addr()?;
    let credentials = embedded_credentials(work_root)?;
    let connection = Connection {
        endpoint_url: Some(format!("http://{address}")),
        credentials: Some((
            credentials.access_key_id.clone(),
            credentials.secret_access_key.clone(),
        )),
    };
    let server = EmbeddedS3::open(&work_root.join("s3"))?;
    tokio::spawn(async move { server.serve(listener, credentials, stop.cancelled()).await });
    let store = ObjectStore::connect(&settings.s3, connection).await;
    store
        .ensure_bucket()
        .await
        .context("the embedded S3 server does not answer")?;
    Ok((store, Some(address)))
}

/// A store that is down at start must not keep the service from starting; /health says so meanwhile.
async fn ensure_bucket_for_ever(store: ObjectStore) {
    while let Err(error) = store.ensure_bucket().await {
        tracing::warn!(%error, "the S3 store cannot be used yet; trying again");
        tokio::time::sleep(STORE_RETRY).await;
    }
}

/// A timer that is nearer than all others when it is set costs tokio a system call and wakes a thread. With this one
/// around, the deadline of a cell never is: that takes two system calls out of every warm execution.
async fn keep_a_timer_near() {
    let mut ticks = tokio::time::interval(HEARTBEAT);
    loop {
        ticks.tick().await;
    }
}

/// Made once and kept, so that links handed out before a restart still work after it.
fn embedded_credentials(work_root: &Path) -> anyhow::Result<Credentials> {
    let path = work_root.join("s3-credentials");
    if let Some((id, secret)) = fs::read_to_string(&path).ok().and_then(|text| {
        Some(text.trim().split_once(':')?).map(|(id, secret)| (id.to_owned(), secret.to_owned()))
    }) {
        return Ok(Credentials {
            access_key_id: id,
            secret_access_key: secret,
        });
    }
    let random = || uuid::Uuid::new_v4().simple().to_string();
    let (id, secret) = (
        random()[..20].to_uppercase(),
        format!("{}{}", random(), random()),
    );
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&path)?;
    std::io::Write::write_all(&mut file, format!("{id}:{secret}\n").as_bytes())?;
    file.sync_all()?;
    Ok(Credentials {
        access_key_id: id,
        secret_access_key: secret,
    })
}

fn core_parts(
    settings: &Settings,
    work_root: &Path,
    backend: Arc<dyn Backend>,
    store: ObjectStore,
    volumes: Volumes,
) -> CoreParts {
    let policy = FetchPolicy {
        allow_private: settings.files.allow_private_urls,
        max_bytes: settings.files.max_upload_bytes,
        ..FetchPolicy::default()
    };
    CoreParts {
        work_root: work_root.to_owned(),
        sandbox: settings.sandbox.clone(),
        files: settings.files.clone(),
        s3: settings.s3.clone(),
        backend,
        store,
        fetcher: Fetcher::new(policy),
        volumes,
        disk: HostDisk::new(work_root, settings.files.min_free_disk_bytes),
        sandbox_user: backend::sandbox_user(),
    }
}

/// Ends every sandbox of a work root that nobody else holds. How many there were.
pub(crate) async fn end_left_sandboxes(
    settings: &Settings,
    work_root: &Path,
) -> anyhow::Result<usize> {
    let mut count = 0;
    for backend in backend::all(settings, work_root).await? {
        for listed in backend.list().await? {
            count += usize::from(backend.remove(&listed.handle).await?);
        }
    }
    // The next start mounts them again.
    crate::volume::unmount_workspaces(work_root)?;
    Ok(count)
}

/// Where programs of this user that carry a core keep theirs, beside any service on this host.
pub(crate) fn own_data_folder() -> PathBuf {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = data.or(home).unwrap_or_else(std::env::temp_dir);
    data.join("cellblock")
}

/// A file system of limited size for each workspace, where the settings want it and the host can.
fn volumes(
    settings: &Settings,
    work_root: &Path,
    backend: &dyn Backend,
) -> anyhow::Result<Volumes> {
    if settings.files.workspace_quota == QuotaChoice::Soft {
        tracing::info!(
            quota = "soft",
            "workspaces are limited by looks at their size"
        );
        return Ok(Volumes::Soft);
    }
    let hard = match backend.shares_mounts() {
        true => hard_volumes(settings, work_root),
        false => Err(io::Error::other(
            "sandboxes do not see what this service mounts",
        )),
    };
    match hard {
        Ok(volumes) => {
            tracing::info!(quota = "hard", "each workspace is a file system of its own");
            Ok(volumes)
        }
        Err(error) if settings.files.workspace_quota == QuotaChoice::Auto => {
            tracing::warn!(quota = "soft", reason = %error, "workspaces are limited by looks at their size only");
            Ok(Volumes::Soft)
        }
        Err(error) => Err(error).context("WORKSPACE_QUOTA=hard cannot be used"),
    }
}

/// Tries it out. Also for those who only want to know.
pub(crate) fn hard_volumes(settings: &Settings, work_root: &Path) -> io::Result<Volumes> {
    let folder = work_root.join("runtime");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    let files = &settings.files;
    let size = VolumeSize::new(files.max_workspace_bytes, files.max_total_files);
    Volumes::hard(&folder, size)
}

fn write_service_file(work_root: &Path, service: &ServiceFile) -> anyhow::Result<()> {
    let temporary = work_root.join("service.json.tmp");
    fs::write(&temporary, serde_json::to_vec(service)?)?;
    Ok(fs::rename(temporary, work_root.join("service.json"))?)
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
