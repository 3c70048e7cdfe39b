//! Which sessions are open, by key, and the session itself as the rest of the core sees it.
//! Never does I/O. Invariant: one key has at most one open session; a closing one keeps its place until it is gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OnceCell, OwnedSemaphorePermit, watch};

use super::background::Execs;
use super::clock::SteadyMs;
use super::error::CoreError;
use super::folder::{Meta, SessionFolder};
use super::stored::Stored;
use crate::kernel::{CellLink, Kernel};
use crate::model::execution::VariableState;
use crate::model::ids::{SessionIds, SessionKey};
use crate::sandbox::SandboxHandle;
use crate::store::SessionPrefix;
use crate::workspace::Workspace;

#[derive(Default)]
pub struct Registry {
    slots: Mutex<HashMap<SessionKey, Arc<Slot>>>,
    /// Sessions that have another name.
    handles: Mutex<HashMap<String, SessionKey>>,
}

/// A place in the registry; the session in it is opened once, by whoever comes first.
#[derive(Default)]
pub struct Slot {
    pub session: OnceCell<Arc<Session>>,
}

pub struct Session {
    pub ids: SessionIds,
    pub key: SessionKey,
    pub folder: SessionFolder,
    pub prefix: SessionPrefix,
    pub workspace: Arc<Workspace>,
    /// Its workspace is a file system of its own, which limits it.
    pub has_volume: bool,
    pub meta: Mutex<Meta>,
    pub born: SteadyMs,
    pub last_activity: Activity,
    /// Whoever holds it runs a cell; tokio's mutex is fair, so cells run in the order they came.
    pub turn: tokio::sync::Mutex<()>,
    pub waiting: AtomicUsize,
    /// How many programs run beside the cells.
    pub processes: AtomicUsize,
    pub running: Mutex<Option<Running>>,
    pub sandbox: tokio::sync::Mutex<SandboxState>,
    pub stored: tokio::sync::Mutex<Stored>,
    /// Held for reading while a caller's file is put in place, so that nobody removes the folder under it.
    pub in_use: Arc<tokio::sync::RwLock<()>>,
    /// Programs that callers started and ask about later.
    pub execs: Execs,
    pub stage: watch::Sender<Stage>,
}

/// When a session was last used.
pub struct Activity(AtomicI64);

impl Activity {
    pub fn now() -> Self {
        Self(AtomicI64::new(SteadyMs::now().0))
    }

    pub fn moment(&self) -> SteadyMs {
        SteadyMs(self.0.load(Ordering::Relaxed))
    }
}

/// Whether a session may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Open,
    /// Being removed; it may yet turn out that it has to stay.
    Closing,
    /// Gone from disk and from the registry.
    Gone,
}

#[derive(Default)]
pub struct SandboxState {
    pub live: Option<Arc<Live>>,
}

impl SandboxState {
    /// The sandbox is gone or no longer makes sense; if it held variables, the next answer says that they are lost.
    /// Nothing is written: as long as the metadata names this sandbox, the next service finds out by itself.
    pub fn give_up(&mut self, session: &Session) {
        self.live = None;
        session.meta().lose_variables();
    }
}

/// A sandbox that serves its session.
pub struct Live {
    pub handle: SandboxHandle,
    pub kernel: Kernel,
    pub oom_kills_seen: AtomicU64,
    /// The worker that holds variables; 0 if there is none.
    pub generation: AtomicU64,
    /// Taken over from an earlier service.
    pub adopted: bool,
    pub _permit: Option<OwnedSemaphorePermit>,
}

impl Live {
    /// Whether the worker that held the variables was replaced behind our back.
    pub fn lost_its_worker(&self, cell: &CellLink) -> bool {
        let known = self.generation.load(Ordering::Acquire);
        known != 0 && known != cell.generation
    }
}

/// The cell that runs now, as others may see and stop it.
#[derive(Clone)]
pub struct Running {
    pub interrupt: Arc<Notify>,
    pub outcome: watch::Receiver<Option<VariableState>>,
}

impl Registry {
    pub fn slot(&self, key: &SessionKey) -> Arc<Slot> {
        self.lock().entry(key.clone()).or_default().clone()
    }

    pub fn find(&self, key: &SessionKey) -> Option<Arc<Session>> {
        self.lock()
            .get(key)
            .and_then(|slot| slot.session.get().cloned())
    }

    /// The session that was given this name.
    pub fn find_by_handle(&self, handle: &str) -> Option<Arc<Session>> {
        let key = self.handles().get(handle).cloned()?;
        let session = self.find(&key)?;
        let same = session.meta().terms.handle.as_deref() == Some(handle);
        same.then_some(session)
    }

    pub fn note_handle(&self, session: &Session) {
        if let Some(handle) = session.meta().terms.handle.clone() {
            self.handles().insert(handle, session.key.clone());
        }
    }

    pub fn insert(&self, session: Arc<Session>) {
        self.note_handle(&session);
        let slot = Slot {
            session: OnceCell::new_with(Some(session.clone())),
        };
        self.lock().insert(session.key.clone(), Arc::new(slot));
    }

    /// Forgets a session, or a slot whose session could not be opened.
    pub fn forget(&self, key: &SessionKey, slot_of: Option<&Arc<Session>>) {
        let mut slots = self.lock();
        let Some(slot) = slots.get(key) else { return };
        let same = match (slot.session.get(), slot_of) {
            (Some(there), Some(given)) => Arc::ptr_eq(there, given),
            (there, given) => there.is_none() && given.is_none() && Arc::strong_count(slot) == 1,
        };
        if same {
            slots.remove(key);
        }
        drop(slots);
        if let Some(handle) = slot_of.and_then(|session| session.meta().terms.handle.clone()) {
            self.handles().remove(&handle);
        }
    }

    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock()
            .values()
            .filter_map(|slot| slot.session.get().cloned())
            .collect()
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<String, SessionKey>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    pub fn touch(&self) {
        self.last_activity
            .0
            .store(SteadyMs::now().0, Ordering::Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        *self.stage.borrow() != Stage::Open
    }

    /// Takes the session out of use; false if somebody else has done so already.
    pub fn close(&self) -> bool {
        self.stage.send_if_modified(|stage| {
            let was_open = *stage == Stage::Open;
            if was_open {
                *stage = Stage::Closing;
            }
            was_open
        })
    }

    /// After a removal that could not be carried out.
    pub fn reopen(&self) {
        self.stage.send_replace(Stage::Open);
    }

    /// A place among those who work on the files of an open session.
    pub async fn enter(&self) -> Result<tokio::sync::RwLockReadGuard<'_, ()>, CoreError> {
        let place = self.in_use.read().await;
        if self.is_closed() {
            let text = "the session was removed meanwhile; try again";
            return Err(CoreError::Unavailable(text.to_owned()));
        }
        Ok(place)
    }

    /// The same, for work that goes on by itself.
    pub async fn enter_owned(&self) -> Result<tokio::sync::OwnedRwLockReadGuard<()>, CoreError> {
        let place = self.in_use.clone().read_owned().await;
        if self.is_closed() {
            let text = "the session was removed meanwhile; try again";
            return Err(CoreError::Unavailable(text.to_owned()));
        }
        Ok(place)
    }

    pub fn meta(&self) -> MutexGuard<'_, Meta> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the metadata and puts it on disk.
    pub fn save_meta(&self, change: impl FnOnce(&mut Meta)) -> Result<(), CoreError> {
        let mut meta = self.meta();
        change(&mut meta);
        self.folder.write_meta(&meta).map_err(CoreError::workspace)
    }

    /// Resolves when a closing session is gone, or open again.
    pub async fn wait_until_settled(&self) {
        let mut stage = self.stage.subscribe();
        let _sender_dropped = stage.wait_for(|stage| *stage != Stage::Closing).await;
    }
}
