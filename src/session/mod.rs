//! The core: sessions, their lifecycle, their queue, their reaper. No HTTP and no container types in here.
//! It turns commands into work on sandbox, kernel, workspace and store, and says truthfully what came of it.
//!
//! ```text
//!              first use                 first cell                    cell
//!   (unknown) ───────────▶ open, no sandbox ─────────▶ sandbox ready ◀──────▶ running
//!       ▲                      ▲      ▲                     │
//!       │                      │      └── sandbox died ─────┤  files kept, `lost` said once
//!       │ stop, expiry         │          or was removed    │
//!       └──── closed ◀─────────┴────────────────────────────┘  ttl, idle, stop
//! ```
//! Invariant: one session has at most one sandbox, one running cell, and one folder; a closed session is
//! gone from disk before the same ids can open a new one.

mod adoption;
mod answer;
mod background;
mod cell;
mod clock;
mod creation;
mod error;
mod events;
mod execution;
mod files;
mod folder;
mod ingestion;
mod lifecycle;
mod output;
mod pool;
mod process;
mod quota;
mod reaper;
mod registry;
mod removal;
mod status;
mod stored;
mod tombstone;
mod vanished;
mod volumes;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

pub use background::{ExecReading, ExecStatus};
pub use creation::{Created, SessionFacts};
pub use error::CoreError;
pub use events::EventSink;
pub use files::{Download, Listed, Upload};
pub use folder::{OwnLimits, Terms, left_sandboxes, write_whole};
pub use ingestion::IngestReport;
pub use removal::Deleted;
pub use status::SessionStatus;

use crate::ingest::Fetcher;
use crate::sandbox::Backend;
use crate::settings::{FileSettings, S3Settings, SandboxSettings};
use crate::store::ObjectStore;
use crate::volume::{HostDisk, Volumes};
use crate::workspace::Owner;
use pool::Pool;
use reaper::Suspects;
use registry::Registry;

/// What the core is made of; everything the settings decide.
pub struct CoreParts {
    pub work_root: PathBuf,
    pub sandbox: SandboxSettings,
    pub files: FileSettings,
    pub s3: S3Settings,
    pub backend: Arc<dyn Backend>,
    pub store: ObjectStore,
    pub fetcher: Fetcher,
    pub volumes: Volumes,
    pub disk: HostDisk,
    /// Who code in a sandbox is, and who owns the files it finds.
    pub sandbox_user: Owner,
}

pub struct Core {
    parts: CoreParts,
    registry: Registry,
    /// One permit per living sandbox.
    capacity: Arc<Semaphore>,
    next_execution: AtomicU64,
    shutting_down: AtomicBool,
    pool: Pool,
    suspects: Mutex<Suspects>,
}

impl Core {
    /// Opens the work root and takes over the sessions that an earlier service left.
    pub async fn start(parts: CoreParts) -> Result<Arc<Self>, CoreError> {
        folder::prepare_work_root(&parts.work_root).map_err(CoreError::internal)?;
        let core = Arc::new(Self {
            registry: Registry::default(),
            capacity: Arc::new(Semaphore::new(parts.sandbox.max_total)),
            // Greater than every id of an earlier service, whose last cell may still run.
            next_execution: AtomicU64::new(clock::now_ms() * 1000),
            shutting_down: AtomicBool::new(false),
            pool: Pool::default(),
            suspects: Mutex::default(),
            parts,
        });
        core.adopt_sessions().await?;
        core.end_left_runs().await;
        core.clear_left_pool().await;
        Ok(core)
    }

    /// Everything that goes on without a caller: the reaper, the pool, the backend's news. Runs until dropped.
    pub async fn look_after_everything(self: Arc<Self>) {
        tokio::join!(
            self.reap_for_ever(),
            self.keep_pool_filled(),
            self.watch_for_vanished()
        );
    }

    pub fn backend(&self) -> &dyn Backend {
        self.parts.backend.as_ref()
    }

    pub fn store(&self) -> &ObjectStore {
        &self.parts.store
    }
}
