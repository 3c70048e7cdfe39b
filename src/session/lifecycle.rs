//! Opening sessions, giving them a sandbox, taking over those an earlier service left.
//! Never runs code. Invariant: whoever gets a `Live` has a sandbox whose kernel is connected or about to be.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::Core;
use super::error::CoreError;
use super::folder::{self, Meta, SessionFolder, now_ms};
use super::registry::{Live, SandboxState, Session, Stage};
use super::stored::{Stored, read_stored_manifest};
use super::tombstone;
use crate::kernel::Kernel;
use crate::model::ids::SessionIds;
use crate::sandbox::{Limits, SandboxHandle, SandboxSpec};
use crate::store::{Manifest, SessionPrefix};
use crate::workspace::Workspace;

/// How long a living sandbox may take to dial back after a restart of the service.
const REDIAL_WAIT: Duration = Duration::from_secs(5);

impl Core {
    /// The session of these ids, opened if needed.
    pub(super) async fn open_session(&self, ids: &SessionIds) -> Result<Arc<Session>, CoreError> {
        loop {
            let key = ids.key();
            let slot = self.registry.slot(&key);
            let opened = slot
                .session
                .get_or_try_init(|| self.create_session(ids))
                .await
                .cloned();
            drop(slot);
            let session = opened.inspect_err(|_| self.registry.forget(&key, None))?;
            if !session.is_closed() {
                session.touch();
                return Ok(session);
            }
            session.wait_until_settled().await;
        }
    }

    /// The session of these ids if it is open or the store still has its files.
    pub(super) async fn find_session(
        &self,
        ids: &SessionIds,
    ) -> Result<Option<Arc<Session>>, CoreError> {
        if let Some(session) = self
            .registry
            .find(&ids.key())
            .filter(|session| !session.is_closed())
        {
            session.touch();
            return Ok(Some(session));
        }
        let prefix = SessionPrefix::new(&self.parts.s3.prefix_root, &ids.key());
        if tombstone::hides_manifest(&self.parts.work_root, ids) {
            return Ok(None);
        }
        match read_stored_manifest(&self.parts.store, &prefix).await? {
            Some(_) => self.open_session(ids).await.map(Some),
            None => Ok(None),
        }
    }

    async fn create_session(&self, ids: &SessionIds) -> Result<Arc<Session>, CoreError> {
        let folder = SessionFolder::new(&self.parts.work_root, &ids.key());
        let meta = Meta {
            ids: ids.clone(),
            created_ms: now_ms(),
            sandbox: None,
            generation: 0,
            links_until_ms: 0,
        };
        folder
            .create()
            .and_then(|()| folder.write_meta(&meta))
            .map_err(CoreError::workspace)?;
        // A stopped session whose stored files are yet to be deleted does not come back with them.
        let stored = Stored {
            restore_pending: !tombstone::hides_manifest(&self.parts.work_root, ids),
            ..Stored::default()
        };
        let session = self.session_of(folder, meta, stored)?;
        let restored = {
            let mut stored = session.stored.lock().await;
            // A store that is down must not keep anybody from working; it is asked again at the next sync.
            self.restore_if_pending(&session, &mut stored)
                .await
                .unwrap_or(false)
        };
        session.sandbox.lock().await.lost = restored;
        tracing::info!(session = %session.key, user_id = ids.user_id(), session_id = ids.session_id(), restored, "session opened");
        Ok(session)
    }

    fn session_of(
        &self,
        folder: SessionFolder,
        meta: Meta,
        stored: Stored,
    ) -> Result<Arc<Session>, CoreError> {
        let workspace = Workspace::open(&folder.workspace(), Some(self.parts.sandbox_user))
            .map_err(CoreError::workspace)?;
        let key = meta.ids.key();
        Ok(Arc::new(Session {
            ids: meta.ids.clone(),
            prefix: SessionPrefix::new(&self.parts.s3.prefix_root, &key),
            key,
            folder,
            workspace: Arc::new(workspace),
            meta: Mutex::new(meta),
            last_activity_ms: AtomicU64::new(now_ms()),
            turn: tokio::sync::Mutex::default(),
            waiting: AtomicUsize::new(0),
            running: Mutex::default(),
            sandbox: tokio::sync::Mutex::default(),
            stored: tokio::sync::Mutex::new(stored),
            in_use: tokio::sync::RwLock::default(),
            stage: watch::Sender::new(Stage::Open),
        }))
    }

    /// Takes over what an earlier service left: living sandboxes with their variables, and sessions without one.
    pub(super) async fn adopt_sessions(&self) -> Result<(), CoreError> {
        let left = folder::left_sessions(&self.parts.work_root).map_err(CoreError::internal)?;
        let mut adopted = 0;
        for (folder, meta) in left {
            let manifest = folder
                .read_manifest()
                .and_then(|bytes| Manifest::from_json(&bytes));
            // No manifest: the earlier service may have ended before it asked the store.
            let stored = Stored {
                restore_pending: manifest.is_none(),
                manifest: manifest.unwrap_or_default(),
                behind: true,
            };
            let handle = meta.sandbox.clone();
            let session = self.session_of(folder, meta, stored)?;
            self.remove_unfinished_uploads(&session);
            if let Some(handle) = handle {
                let state = self.adopt_sandbox(&session, handle).await;
                adopted += usize::from(state.live.is_some());
                *session.sandbox.lock().await = state;
            }
            self.registry.insert(session);
        }
        tracing::info!(
            sessions = self.registry.all().len(),
            sandboxes = adopted,
            "sessions taken over"
        );
        Ok(())
    }

    /// What uploads left that the earlier service did not finish.
    fn remove_unfinished_uploads(&self, session: &Session) {
        let Ok(report) = session.workspace.walk(self.walk_budget()) else {
            return;
        };
        for path in report.unfinished {
            if let Err(error) = session.workspace.delete_file(&path) {
                tracing::warn!(session = %session.key, %error, "the rest of an upload could not be removed");
            }
        }
    }

    async fn adopt_sandbox(&self, session: &Session, handle: SandboxHandle) -> SandboxState {
        let generation = session.meta().generation;
        if self.backend().is_alive(&handle).await {
            match Kernel::listen(&session.folder.control(), ready_pid(handle.init_pid)) {
                Ok(kernel) => {
                    let live = self
                        .live(
                            handle,
                            kernel,
                            self.capacity.clone().try_acquire_owned().ok(),
                            Some(generation),
                        )
                        .await;
                    return SandboxState {
                        live: Some(live),
                        lost: false,
                    };
                }
                Err(error) => {
                    tracing::error!(session = %session.key, %error, "a living sandbox cannot be listened to")
                }
            }
        }
        self.remove_sandbox(&handle).await;
        SandboxState {
            live: None,
            lost: true,
        }
    }

    /// The session's sandbox, made if there is none. Held under the lock, so that 500 first calls make one.
    pub(super) async fn ensure_live(&self, session: &Session) -> Result<Arc<Live>, CoreError> {
        let mut state = session.sandbox.lock().await;
        if let Some(live) = state.live.clone() {
            if live.kernel.is_connected()
                || self.is_starting(&live).await
                || self.wait_for_redial(&live).await
            {
                return Ok(live);
            }
            tracing::warn!(session = %session.key, container = live.handle.container_id, "the sandbox is gone; a new one takes its place");
            state.live = None;
            state.lost = true;
            self.remove_sandbox(&live.handle).await;
        }
        if session.is_closed() {
            return Err(CoreError::Unavailable(
                "the session is being removed; try again".to_owned(),
            ));
        }
        let live = self.make_sandbox(session).await?;
        state.live = Some(live.clone());
        Ok(live)
    }

    /// Made by this service and never heard of yet: it may be busy importing SANDBOX_PRELOAD.
    async fn is_starting(&self, live: &Live) -> bool {
        !live.adopted && !live.kernel.has_hung_up() && self.backend().is_alive(&live.handle).await
    }

    async fn wait_for_redial(&self, live: &Live) -> bool {
        let deadline = tokio::time::Instant::now() + REDIAL_WAIT;
        while tokio::time::Instant::now() < deadline && self.backend().is_alive(&live.handle).await
        {
            if live.kernel.wait_connected(Duration::from_millis(250)).await {
                return true;
            }
        }
        false
    }

    async fn make_sandbox(&self, session: &Session) -> Result<Arc<Live>, CoreError> {
        let permit = self.capacity.clone().try_acquire_owned();
        let permit = permit.map_err(|_| CoreError::Capacity {
            max_total: self.parts.sandbox.max_total,
        })?;
        let (init_pid, init_pid_known) = oneshot::channel();
        let kernel = Kernel::listen(&session.folder.control(), init_pid_known)
            .map_err(CoreError::workspace)?;
        let handle = self.backend().create(&self.spec(session)).await?;
        let _kernel_listens = init_pid.send(handle.init_pid);
        if let Err(error) =
            session.save_meta(|meta| (meta.sandbox, meta.generation) = (Some(handle.clone()), 0))
        {
            self.remove_sandbox(&handle).await;
            return Err(error);
        }
        tracing::info!(session = %session.key, container = handle.container_id, "sandbox started");
        Ok(self.live(handle, kernel, Some(permit), None).await)
    }

    async fn live(
        &self,
        handle: SandboxHandle,
        kernel: Kernel,
        permit: Option<OwnedSemaphorePermit>,
        adopted_generation: Option<u64>,
    ) -> Arc<Live> {
        let oom_kills = self.backend().usage(&handle).await.oom_kills;
        Arc::new(Live {
            handle,
            kernel,
            oom_kills_seen: AtomicU64::new(oom_kills),
            generation: AtomicU64::new(adopted_generation.unwrap_or(0)),
            adopted: adopted_generation.is_some(),
            _permit: permit,
        })
    }

    /// Takes a sandbox away from its session after it failed; the session goes on with its files.
    pub(super) async fn discard_sandbox(&self, session: &Session, failed: &Arc<Live>) {
        let mut state = session.sandbox.lock().await;
        if state
            .live
            .as_ref()
            .is_some_and(|live| Arc::ptr_eq(live, failed))
        {
            state.live = None;
        }
        self.remove_sandbox(&failed.handle).await;
    }

    pub(super) async fn remove_sandbox(&self, handle: &SandboxHandle) -> bool {
        match self.backend().remove(handle).await {
            Ok(removed) => removed,
            Err(error) => {
                tracing::error!(%error, "a sandbox could not be removed; the reaper tries again");
                false
            }
        }
    }

    fn spec(&self, session: &Session) -> SandboxSpec {
        let settings = &self.parts.sandbox;
        SandboxSpec {
            name: session.key.sandbox_name(),
            workspace_dir: session.folder.workspace(),
            control_dir: session.folder.control(),
            uid: self.parts.sandbox_user.uid,
            gid: self.parts.sandbox_user.gid,
            limits: Limits {
                cpus: settings.cpus,
                memory_bytes: settings.memory_bytes,
                pids: settings.pids,
                open_files: 1024,
                file_size_bytes: self.parts.files.max_workspace_bytes,
                tmp_bytes: 64 << 20,
                tmp_inodes: 16_384,
                shm_bytes: 32 << 20,
            },
            preload: settings.preload.clone(),
        }
    }

    /// Whether new work is still accepted.
    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Acquire)
    }
}

fn ready_pid(pid: i32) -> oneshot::Receiver<i32> {
    let (sender, receiver) = oneshot::channel();
    let _receiver_is_here = sender.send(pid);
    receiver
}
