//! Opening sessions and giving them a sandbox.
//! Never runs code. Invariant: whoever gets a `Live` has a sandbox whose kernel is connected or about to be.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::Core;
use super::background::Execs;
use super::clock::{self, HostMoment, SteadyMs, now_ms};
use super::error::CoreError;
use super::folder::{Meta, NewFolder, SessionFolder, Terms};
use super::pool::Member;
use super::registry::{Activity, Live, Session, Stage};
use super::stored::{Stored, read_stored_manifest};
use super::tombstone;
use crate::kernel::Kernel;
use crate::metrics::METRICS;
use crate::model::ids::{SessionIds, SessionKey};
use crate::sandbox::{Limits, SandboxHandle, SandboxSpec};
use crate::store::SessionPrefix;
use crate::volume;
use crate::workspace::Workspace;

/// How long a living sandbox may take to dial back after a restart of the service.
const REDIAL_WAIT: Duration = Duration::from_secs(5);

impl Core {
    /// The session of these ids, opened if needed, for somebody who is going to work with it: a new one gets a sandbox
    /// from the pool at once, because its folder has to be the one that the sandbox has mounted.
    pub(super) async fn open_session(&self, ids: &SessionIds) -> Result<Arc<Session>, CoreError> {
        if ids.must_be_created() {
            let session = self.registry.find(&ids.key());
            let session = session.filter(|session| !session.is_closed());
            let session =
                session.ok_or_else(|| CoreError::NotFound("no such session".to_owned()))?;
            session.touch();
            METRICS
                .sessions_reused
                .with_label_values(&[ids.dialect()])
                .inc();
            return Ok(session);
        }
        self.open_session_with(ids, &Terms::default(), || self.pool.take())
            .await
    }

    pub(super) async fn open_session_with(
        &self,
        ids: &SessionIds,
        terms: &Terms,
        ready: impl Fn() -> Option<Member>,
    ) -> Result<Arc<Session>, CoreError> {
        loop {
            let key = ids.key();
            let slot = self.registry.slot(&key);
            if slot.session.get().is_some() {
                METRICS
                    .sessions_reused
                    .with_label_values(&[ids.dialect()])
                    .inc();
            }
            let opened = slot
                .session
                .get_or_try_init(|| Box::pin(self.create_session(ids, terms, ready())))
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
        if ids.must_be_created() || tombstone::hides_manifest(&self.parts.work_root, ids) {
            return Ok(None);
        }
        match read_stored_manifest(&self.parts.store, &prefix).await? {
            // Whoever only looks needs no sandbox.
            Some(_) => {
                let terms = Terms::default();
                let session = self.open_session_with(ids, &terms, || None).await?;
                Ok(Some(session))
            }
            None => Ok(None),
        }
    }

    async fn create_session(
        &self,
        ids: &SessionIds,
        terms: &Terms,
        ready: Option<Member>,
    ) -> Result<Arc<Session>, CoreError> {
        let folder = SessionFolder::new(&self.parts.work_root, &ids.key());
        let mut meta = Meta {
            ids: ids.clone(),
            created_ms: now_ms(),
            born: HostMoment::now(),
            sandbox: None,
            generation: 0,
            lost: false,
            links_until_ms: 0,
            terms: terms.clone(),
        };
        let moved_in = match ready {
            Some(member) => self.move_in(member, &folder, &mut meta).await,
            None => None,
        };
        if moved_in.is_none() {
            let prepared = self.prepare_folder(&folder, terms).await;
            prepared.map_err(folder_trouble)?;
        }
        // From here on the folder is this call's own; if it fails, a sandbox that came with the folder is left to the reaper.
        let new_folder = NewFolder::of(&folder, &self.parts.work_root);
        if moved_in.is_none() {
            folder.write_meta(&meta).map_err(CoreError::workspace)?;
        }
        // A stopped session whose stored files are yet to be deleted does not come back with them.
        let stored = Stored {
            restore_pending: !tombstone::hides_manifest(&self.parts.work_root, ids),
            ..Stored::default()
        };
        let session = self.session_of(folder.clone(), meta, stored)?;
        let restored = {
            let mut stored = session.stored.lock().await;
            // A store that is down must not keep anybody from working; it is asked again at the next sync.
            self.restore_if_pending(&session, &mut stored)
                .await
                .unwrap_or(false)
        };
        if restored {
            session.save_meta(|meta| meta.lost = true)?;
        }
        new_folder.keep();
        self.registry.note_handle(&session);
        let from_pool = moved_in.is_some();
        METRICS
            .sessions_created
            .with_label_values(&[ids.dialect()])
            .inc();
        METRICS.sandboxes_from_pool.inc_by(u64::from(from_pool));
        session.sandbox.lock().await.live = moved_in.as_ref().map(|moved_in| moved_in.live.clone());
        tracing::info!(session = %session.key, user_id = ids.user_id(), session_id = ids.session_id(), restored, from_pool, "session opened");
        Ok(session)
    }

    pub(super) fn session_of(
        &self,
        folder: SessionFolder,
        meta: Meta,
        stored: Stored,
    ) -> Result<Arc<Session>, CoreError> {
        let workspace = Workspace::open(&folder.workspace(), Some(self.parts.sandbox_user))
            .map_err(CoreError::workspace)?;
        let key = meta.ids.key();
        let now = HostMoment::now();
        let age = clock::age(meta.born.as_ref(), meta.created_ms, now.as_ref(), now_ms());
        Ok(Arc::new(Session {
            ids: meta.ids.clone(),
            prefix: SessionPrefix::new(&self.parts.s3.prefix_root, &key),
            key,
            has_volume: volume::is_hard(folder.path()),
            folder,
            workspace: Arc::new(workspace),
            meta: Mutex::new(meta),
            born: SteadyMs::before_now(age),
            last_activity: Activity::now(),
            turn: tokio::sync::Mutex::default(),
            waiting: AtomicUsize::new(0),
            processes: AtomicUsize::new(0),
            running: Mutex::default(),
            sandbox: tokio::sync::Mutex::default(),
            stored: tokio::sync::Mutex::new(stored),
            in_use: Arc::default(),
            execs: Execs::default(),
            stage: watch::Sender::new(Stage::Open),
        }))
    }

    /// Shows outsiders whose a sandbox is; nobody waits for it, and nothing depends on it.
    pub(super) fn name_sandbox(&self, handle: &SandboxHandle, key: &SessionKey) {
        let (backend, handle, name) = (
            self.parts.backend.clone(),
            handle.clone(),
            key.sandbox_name(),
        );
        tokio::spawn(async move {
            if let Err(error) = backend.rename(&handle, &name).await {
                tracing::debug!(%error, name, "a sandbox keeps the name it has");
            }
        });
    }

    /// The session's sandbox, made if there is none. Held under the lock, so that 500 first calls make one.
    pub(super) async fn ensure_live(&self, session: &Session) -> Result<Arc<Live>, CoreError> {
        let mut state = session.sandbox.lock().await;
        if let Some(live) = state.live.clone() {
            if live.kernel.is_connected()
                || self.is_starting(&live).await
                || self.dials_again(&live).await?
            {
                return Ok(live);
            }
            tracing::warn!(session = %session.key, container = live.handle.container_id, "the sandbox is gone; a new one takes its place");
            state.give_up(session);
        }
        if session.is_closed() {
            return Err(CoreError::Unavailable(
                "the session is being removed; try again".to_owned(),
            ));
        }
        let live = Box::pin(self.make_sandbox(session)).await?;
        state.live = Some(live.clone());
        Ok(live)
    }

    /// Made by this service and never heard of yet: it may be busy importing SANDBOX_PRELOAD.
    async fn is_starting(&self, live: &Live) -> bool {
        !live.adopted && !live.kernel.has_hung_up() && self.backend().is_alive(&live.handle).await
    }

    /// False if the sandbox can be given up. One that lives is not, as long as whoever may have to carry its links does not
    /// answer, or did not when the wait began.
    async fn dials_again(&self, live: &Live) -> Result<bool, CoreError> {
        let backend = self.backend();
        let (checked, connected) = tokio::join!(backend.check(), self.wait_for_redial(live));
        if !connected && backend.is_alive(&live.handle).await {
            checked?;
            backend.check().await?;
        }
        Ok(connected)
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
        self.remove_previous(session).await?;
        self.heal_volume(session).await?;
        let permit = self.take_place().await?;
        let terms = session.meta().terms.clone();
        let spec = SandboxSpec {
            session: Some(session.ids.clone()),
            ..self.spec(session.key.sandbox_name(), &session.folder, &terms)
        };
        let note = |handle: &SandboxHandle| {
            session.save_meta(|meta| {
                meta.lose_variables();
                meta.sandbox = Some(handle.clone());
            })
        };
        let live = self.start_sandbox(&spec, permit, note).await?;
        METRICS.sandboxes_cold.inc();
        tracing::info!(session = %session.key, container = live.handle.container_id, "sandbox started");
        Ok(live)
    }

    /// Ends the sandbox that last served the session, if it is still there: no two may ever have one workspace, and no
    /// folder may go while code runs in it. False if there was nothing left.
    pub(super) async fn remove_previous(&self, session: &Session) -> Result<bool, CoreError> {
        let previous = session.meta().sandbox.clone();
        match previous {
            Some(handle) if handle.backend == self.backend().name() => {
                Ok(self.backend().remove(&handle).await?)
            }
            _ => Ok(false),
        }
    }

    /// One of `SANDBOX_MAX_TOTAL` places. A sandbox that only waits in the pool makes room for one that is needed.
    async fn take_place(&self) -> Result<OwnedSemaphorePermit, CoreError> {
        loop {
            if let Ok(permit) = self.capacity.clone().try_acquire_owned() {
                return Ok(permit);
            }
            let Some(spare) = self.pool.take_or_wait().await else {
                return Err(CoreError::Capacity {
                    max_total: self.parts.sandbox.max_total,
                });
            };
            self.discard_member(spare).await;
        }
    }

    /// Makes a sandbox and listens to its kernel. `note` puts it on record before anything relies on it.
    pub(super) async fn start_sandbox(
        &self,
        spec: &SandboxSpec,
        permit: OwnedSemaphorePermit,
        note: impl FnOnce(&SandboxHandle) -> Result<(), CoreError>,
    ) -> Result<Arc<Live>, CoreError> {
        let (init_pid, init_pid_known) = oneshot::channel();
        let kernel =
            Kernel::listen(&spec.control_dir, init_pid_known).map_err(CoreError::workspace)?;
        let handle = self.backend().create(spec).await?;
        let connected = match note(&handle) {
            Ok(()) => self
                .backend()
                .connect(&handle, &spec.control_dir)
                .await
                .map_err(CoreError::from),
            Err(error) => Err(error),
        };
        match connected {
            Ok(pid) => _ = init_pid.send(pid),
            Err(error) => {
                self.remove_sandbox(&handle).await;
                return Err(error);
            }
        }
        Ok(self.live(handle, kernel, Some(permit), None).await)
    }

    pub(super) async fn live(
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
            state.give_up(session);
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

    pub(super) fn spec(&self, name: String, folder: &SessionFolder, terms: &Terms) -> SandboxSpec {
        let (settings, own) = (&self.parts.sandbox, &terms.limits);
        let cpus = own
            .cpu_millicores
            .map_or(settings.cpus, |millis| millis as f64 / 1000.0);
        SandboxSpec {
            name,
            session: None,
            image: terms.image.clone(),
            network: terms.network,
            workspace_dir: folder.workspace(),
            control_dir: folder.control(),
            uid: self.parts.sandbox_user.uid,
            gid: self.parts.sandbox_user.gid,
            limits: Limits {
                cpus,
                memory_bytes: own.memory_bytes.unwrap_or(settings.memory_bytes),
                pids: settings.pids,
                open_files: 1024,
                file_size_bytes: self.file_size_limit(folder, terms),
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

fn folder_trouble(error: io::Error) -> CoreError {
    if error.kind() != io::ErrorKind::AlreadyExists {
        return CoreError::workspace(error);
    }
    let text = "an earlier session of these ids could not be taken over and was left alone; the log of the service says why";
    CoreError::Unavailable(text.to_owned())
}
