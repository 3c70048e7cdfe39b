//! The end of a session: stopped by a caller or expired. Container first, then its note, its folder, what is stored.
//! Never deletes a folder whose files should live on in the store before they are stored.
//! Invariant: after a crash at any point the next start finishes the job or finds the session whole.

use std::sync::Arc;

use futures_util::StreamExt;

use super::Core;
use super::clock::now_ms;
use super::error::CoreError;
use super::folder::empty_trash;
use super::registry::{Session, Stage};
use super::tombstone::Tombstone;
use crate::metrics::METRICS;
use crate::model::ids::SessionIds;
use crate::store::SessionPrefix;

const SANDBOXES_AT_ONCE: usize = 8;

/// What a stop took away.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Deleted {
    pub container: bool,
    pub workspace: bool,
    pub objects: usize,
    /// The store could not be reached: its objects are deleted as soon as it can.
    pub objects_pending: bool,
}

impl Core {
    /// Removes a session at once, its stored files too if `DELETE_S3_ON_CLEANUP` says so.
    pub async fn stop(&self, ids: &SessionIds) -> Result<Deleted, CoreError> {
        loop {
            let Some(session) = self.registry.find(&ids.key()) else {
                let mut deleted = Deleted::default();
                if self.parts.s3.delete_on_cleanup {
                    self.delete_stored_now(ids, &mut deleted).await?;
                }
                return Ok(deleted);
            };
            if let Some(deleted) = self.stop_session(&session).await {
                return deleted;
            }
            session.wait_until_settled().await;
        }
    }

    /// Removes this very session; none if somebody else is doing so.
    pub(super) async fn stop_session(
        &self,
        session: &Arc<Session>,
    ) -> Option<Result<Deleted, CoreError>> {
        if !session.close() {
            return None;
        }
        let deleted = self.stop_closed(session).await;
        if deleted.is_err() && *session.stage.borrow() == Stage::Closing {
            session.reopen();
        }
        Some(deleted)
    }

    async fn stop_closed(&self, session: &Arc<Session>) -> Result<Deleted, CoreError> {
        let mut deleted = Deleted {
            container: self.end_sandbox(session).await?,
            ..Deleted::default()
        };
        let _no_cell_runs = session.turn.lock().await;
        let _no_file_comes = session.in_use.write().await;
        let keeps_nothing = self.keeps_nothing(session);
        if keeps_nothing {
            self.write_tombstone(&session.ids, now_ms())?;
        } else {
            self.store_everything(session).await?;
        }
        deleted.workspace = self.remove_folder(session)?;
        if keeps_nothing {
            self.delete_stored_now(&session.ids, &mut deleted).await?;
        }
        tracing::info!(session = %session.key, ?deleted, "session stopped");
        Ok(deleted)
    }

    /// Ends the sandbox and keeps the session with its files; the next use makes a new one. Waits for no cell: it ends it.
    pub async fn end_sandbox_only(&self, ids: &SessionIds) -> Result<(), CoreError> {
        match self.registry.find(&ids.key()) {
            Some(session) => {
                self.end_sandbox(&session).await?;
                session.execs.forget_all();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Ends every sandbox and keeps the sessions with their files, for a core whose sandboxes must not outlive it.
    pub async fn end_all_sandboxes(&self) {
        let sessions = futures_util::stream::iter(self.registry.all());
        let ends = sessions.for_each_concurrent(SANDBOXES_AT_ONCE, |session| async move {
            if let Err(error) = self.end_sandbox(&session).await {
                tracing::warn!(session = %session.key, %error, "a sandbox could not be ended");
            }
        });
        ends.await;
    }

    /// Deletes what is stored of a session that has just ended, or leaves a note to do so later.
    async fn delete_stored_now(
        &self,
        ids: &SessionIds,
        deleted: &mut Deleted,
    ) -> Result<(), CoreError> {
        let note = Tombstone::new(ids, now_ms());
        match self.delete_stored(&note).await {
            Ok(count) => deleted.objects = count,
            Err(error) => {
                tracing::warn!(%error, "stored files cannot be deleted now; the reaper will");
                note.write(&self.parts.work_root)
                    .map_err(CoreError::workspace)?;
                deleted.objects_pending = true;
            }
        }
        Ok(())
    }

    /// Removes an expired session. False if it must stay for now: it is in use, or its files are not stored yet.
    pub(super) async fn expire(&self, session: &Arc<Session>) -> Result<bool, CoreError> {
        let (Ok(_no_cell_runs), Ok(_no_file_comes)) =
            (session.turn.try_lock(), session.in_use.try_write())
        else {
            return Ok(false);
        };
        if !session.close() {
            return Ok(false);
        }
        if let Err(error) = self.take_away(session).await {
            tracing::warn!(session = %session.key, %error, "an expired session stays until it can be removed");
            session.reopen();
            return Ok(false);
        }
        note_expiry(session);
        Ok(true)
    }

    async fn take_away(&self, session: &Arc<Session>) -> Result<(), CoreError> {
        self.end_sandbox(session).await?;
        match self.keeps_nothing(session) {
            true => self.leave_to_links(session).await?,
            false => self.store_everything(session).await?,
        }
        self.remove_folder(session).map(drop)
    }

    /// Whether what is stored of a session goes with it.
    fn keeps_nothing(&self, session: &Session) -> bool {
        self.parts.s3.delete_on_cleanup || session.meta().terms.ephemeral
    }

    /// Nothing is to be lost with the folder: whatever is in it must be stored.
    async fn store_everything(&self, session: &Arc<Session>) -> Result<(), CoreError> {
        let (_, report) = self
            .sync_workspace(session, self.parts.s3.presign_expires)
            .await?;
        report
            .error
            .map_or(Ok(()), |error| Err(CoreError::Unavailable(error)))
    }

    /// What is stored stays just as long as links to it work; without its manifest it does not come back.
    async fn leave_to_links(&self, session: &Session) -> Result<(), CoreError> {
        let links_until_ms = session.meta().links_until_ms;
        let note = self.write_tombstone(&session.ids, links_until_ms)?;
        self.parts
            .store
            .delete(&[session.prefix.manifest()])
            .await?;
        note.reveal_manifest(&self.parts.work_root)
            .map_err(CoreError::workspace)
    }

    fn write_tombstone(
        &self,
        ids: &SessionIds,
        delete_after_ms: u64,
    ) -> Result<Tombstone, CoreError> {
        let note = Tombstone::new(ids, delete_after_ms);
        note.write(&self.parts.work_root)
            .map_err(CoreError::workspace)?;
        Ok(note)
    }

    /// Whether there was one. If it cannot be ended now, the session keeps it.
    async fn end_sandbox(&self, session: &Session) -> Result<bool, CoreError> {
        let mut state = session.sandbox.lock().await;
        // Also one that was given up before and could not be removed then.
        let removed = self.remove_previous(session).await?;
        state.give_up(session);
        Ok(removed)
    }

    fn remove_folder(&self, session: &Arc<Session>) -> Result<bool, CoreError> {
        let work_root = self.parts.work_root.clone();
        let removed = session
            .folder
            .move_to_trash(&work_root)
            .map_err(CoreError::workspace)?;
        let lived = session.born.elapsed();
        METRICS.session_lifetime.observe(lived.as_secs_f64());
        self.registry.forget(&session.key, Some(session));
        session.stage.send_replace(Stage::Gone);
        tokio::task::spawn_blocking(move || empty_trash(&work_root));
        Ok(removed)
    }

    /// Carries a note out and removes it. A session of the same ids that is open by now keeps what is its own, and
    /// none can be opened while the prefix of a closed one is being deleted.
    pub(super) async fn delete_stored(&self, note: &Tombstone) -> Result<usize, CoreError> {
        let key = note.ids.key();
        let prefix = SessionPrefix::new(&self.parts.s3.prefix_root, &key);
        let slot = self.registry.slot(&key);
        let opened = slot
            .session
            .get_or_try_init(|| async { Err(self.delete_prefix(&prefix).await) })
            .await
            .cloned();
        drop(slot);
        let deleted = match opened {
            Ok(session) => self.delete_all_but_current(&session).await,
            Err(deleted) => {
                self.registry.forget(&key, None);
                deleted
            }
        }?;
        note.remove(&self.parts.work_root)
            .map_err(CoreError::workspace)?;
        Ok(deleted)
    }

    /// The manifest goes first: what it names must not come back half deleted.
    async fn delete_prefix(&self, prefix: &SessionPrefix) -> Result<usize, CoreError> {
        self.parts.store.delete(&[prefix.manifest()]).await?;
        let keys = self.parts.store.list(&prefix.objects()).await?;
        Ok(self.parts.store.delete(&keys).await?)
    }

    async fn delete_all_but_current(&self, session: &Session) -> Result<usize, CoreError> {
        // Held during the deletion, so that nothing is stored between the look and the deed.
        let stored = session.stored.lock().await;
        let current = stored.manifest.entries.keys();
        let current: std::collections::HashSet<String> = current
            .filter_map(|path| session.prefix.object(path).ok())
            .collect();
        let keys = self.parts.store.list(&session.prefix.objects()).await?;
        let old: Vec<String> = keys
            .into_iter()
            .filter(|key| !current.contains(key))
            .collect();
        Ok(self.parts.store.delete(&old).await?)
    }
}

/// A session's time was up: the event, with the names that its dialect's callers know it by.
pub(super) fn note_expiry(session: &Session) {
    METRICS.sessions_expired.inc();
    let (dialect, terms) = (session.ids.dialect(), session.meta().terms.clone());
    let user_id = terms.user_id.as_deref().unwrap_or(session.ids.user_id());
    let id = session.ids.session_id();
    let session_id = terms.handle.as_deref().unwrap_or(id);
    let thread_id = (dialect == "threads").then_some(id);
    tracing::info!(event = "session_expired", session = %session.key, dialect, user_id, thread_id, session_id, "session_expired");
}
