//! The end of a session: stopped by a caller or expired. Container first, then what is stored, then the folder.
//! Never deletes a folder whose files should live on in the store before they are stored.
//! Invariant: after a crash at any point the next start finishes the job or finds the session whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::error::CoreError;
use super::folder::now_ms;
use super::registry::Session;
use super::tombstone::Tombstone;
use crate::model::ids::SessionIds;
use crate::store::SessionPrefix;

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
        let mut deleted = Deleted::default();
        let found = self.registry.find(&ids.key());
        if let Some(session) = &found {
            if session.closed.swap(true, Ordering::AcqRel) {
                session.wait_until_gone().await;
                return Ok(deleted);
            }
            deleted.container = self.end_sandbox(session).await;
        }
        let _no_cell_runs = match &found {
            Some(session) => Some(session.turn.lock().await),
            None => None,
        };
        if self.parts.s3.delete_on_cleanup {
            let prefix = SessionPrefix::new(&self.parts.s3.prefix_root, &ids.key());
            match self.delete_prefix(&prefix).await {
                Ok(count) => deleted.objects = count,
                Err(error) => {
                    tracing::warn!(%error, "stored files cannot be deleted now; the reaper will");
                    Tombstone::new(ids, now_ms())
                        .write(&self.parts.work_root)
                        .map_err(CoreError::workspace)?;
                    deleted.objects_pending = true;
                }
            }
        }
        if let Some(session) = &found {
            deleted.workspace = self.remove_folder(session)?;
            tracing::info!(session = %session.key, ?deleted, "session stopped");
        }
        Ok(deleted)
    }

    /// Removes an expired session. False if it must stay for now, because its files are not stored yet.
    pub(super) async fn expire(&self, session: &Arc<Session>) -> Result<bool, CoreError> {
        let Ok(_no_cell_runs) = session.turn.try_lock() else {
            return Ok(false);
        };
        if session.closed.swap(true, Ordering::AcqRel) {
            return Ok(false);
        }
        self.end_sandbox(session).await;
        if let Err(error) = self.settle_store(session).await {
            tracing::warn!(session = %session.key, %error, "an expired session keeps its folder until the store can be reached");
            session.sandbox.lock().await.lost = true;
            session.closed.store(false, Ordering::Release);
            return Ok(false);
        }
        self.remove_folder(session)?;
        tracing::info!(session = %session.key, "session expired");
        Ok(true)
    }

    /// What expiry means for the store: everything in it, or everything out of it once the links have run out.
    async fn settle_store(&self, session: &Arc<Session>) -> Result<(), CoreError> {
        if !self.parts.s3.delete_on_cleanup {
            let (_, report) = self
                .sync_workspace(session, self.parts.s3.presign_expires)
                .await?;
            return report
                .error
                .map_or(Ok(()), |error| Err(CoreError::Unavailable(error)));
        }
        let links_until_ms = session.meta().links_until_ms;
        let nothing_stored = {
            let stored = session.stored.lock().await;
            stored.manifest.entries.is_empty() && !stored.behind && !stored.restore_pending
        };
        if nothing_stored {
            return Ok(());
        }
        Tombstone::new(&session.ids, links_until_ms)
            .write(&self.parts.work_root)
            .map_err(CoreError::workspace)?;
        // Without its manifest the prefix is just what old links point to: a new session of these ids starts empty.
        self.parts
            .store
            .delete(&[session.prefix.manifest()])
            .await?;
        Ok(())
    }

    async fn end_sandbox(&self, session: &Session) -> bool {
        let Some(live) = session.sandbox.lock().await.live.take() else {
            return false;
        };
        self.remove_sandbox(&live.handle).await
    }

    fn remove_folder(&self, session: &Arc<Session>) -> Result<bool, CoreError> {
        let removed = session
            .folder
            .move_to_trash(&self.parts.work_root)
            .map_err(CoreError::workspace);
        self.registry.forget(&session.key, Some(session));
        session.gone.send_replace(true);
        let work_root = self.parts.work_root.clone();
        tokio::task::spawn_blocking(move || super::folder::empty_trash(&work_root));
        removed
    }

    pub(super) async fn delete_prefix(&self, prefix: &SessionPrefix) -> Result<usize, CoreError> {
        let keys = self.parts.store.list(&prefix.objects()).await?;
        let deleted = self.parts.store.delete(&keys).await?;
        self.parts.store.delete(&[prefix.manifest()]).await?;
        Ok(deleted)
    }
}
