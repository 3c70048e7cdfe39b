//! The embedded S3 server: objects in a local directory, served over S3's HTTP protocol in this process.
//! Never acknowledges a write before it is on disk, and never answers a request that is not signed with its credentials.
//! Invariant: an object file holds body and metadata together, so the two cannot differ after a crash.

mod conditions;
mod digests;
mod directory;
mod error;
mod incoming_body;
mod layout;
mod listing;
mod multipart;
mod object_body;
mod object_file;
mod object_store;
mod operations;
mod server;
mod staging;

use std::fs::{File, TryLockError};
use std::future::Future;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use tokio::net::TcpListener;

use directory::Directory;
use object_store::ObjectStore;
use operations::S3Operations;

const STALE_UPLOAD_MS: i64 = 24 * 60 * 60 * 1000;
/// A predecessor that is just ending may still finish its last file operations.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// The key pair every request must be signed with.
#[derive(Clone)]
pub struct Credentials {
    pub access_key_id: String,
    pub secret_access_key: String,
}

#[derive(Debug, thiserror::Error)]
pub enum EmbeddedS3Error {
    #[error("embedded object store {path} cannot be opened")]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("embedded object store {path} is in use by another process")]
    InUse { path: PathBuf },
}

/// An opened store, ready to be served.
#[derive(Debug)]
pub struct EmbeddedS3 {
    store: Arc<ObjectStore>,
    /// Locked while this lives, so that no second process cleans up under a running one.
    lock: File,
}

impl EmbeddedS3 {
    /// Opens (creates) the store under `root`, cleans half-written temp files of a crash.
    pub fn open(root: &Path) -> Result<Self, EmbeddedS3Error> {
        let failed = |source| EmbeddedS3Error::Open {
            path: root.to_owned(),
            source,
        };
        let directory = create_root(root).map_err(failed)?;
        let lock = directory.open_lock_file("lock").map_err(failed)?;
        wait_for_lock(&lock, root)?;
        let store = ObjectStore::open(&directory).map_err(failed)?;
        clean_up(&store).map_err(failed)?;
        Ok(Self {
            store: Arc::new(store),
            lock,
        })
    }

    /// Serves until `shutdown` resolves; finishes requests under way within a bound (5 s).
    pub async fn serve(
        self,
        listener: TcpListener,
        credentials: Credentials,
        shutdown: impl Future<Output = ()> + Send,
    ) {
        let operations = S3Operations { store: self.store };
        server::serve(operations, listener, &credentials, shutdown).await;
        drop(self.lock);
    }
}

fn create_root(root: &Path) -> io::Result<Directory> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(root)?;
    let directory = Directory::open_root(root)?;
    if let Some(parent) = root.canonicalize()?.parent() {
        Directory::open_root(parent)?.sync()?;
    }
    Ok(directory)
}

fn wait_for_lock(lock: &File, root: &Path) -> Result<(), EmbeddedS3Error> {
    let path = || root.to_owned();
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_RETRY)
            }
            Err(TryLockError::WouldBlock) => return Err(EmbeddedS3Error::InUse { path: path() }),
            Err(TryLockError::Error(source)) => {
                return Err(EmbeddedS3Error::Open {
                    path: path(),
                    source,
                });
            }
        }
    }
}

fn clean_up(store: &ObjectStore) -> io::Result<()> {
    let temporary_files = store.remove_temporary_files()?;
    let uploads = store.remove_uploads_before(unix_ms_now() - STALE_UPLOAD_MS)?;
    if temporary_files + uploads > 0 {
        tracing::info!(
            temporary_files,
            uploads,
            "embedded object store: removed what was left unfinished"
        );
    }
    Ok(())
}

fn unix_ms_now() -> i64 {
    let now = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
    i64::try_from(now).expect("the clock is within 200 million years of 1970")
}
