//! The regular look for what has had its time: expired sessions, dead and ownerless sandboxes, stored files to delete,
//! syncs to try again. Never touches what it does not own or what is in use.
//! Invariant: a sandbox without a session is removed only after two looks found it so.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::folder::now_ms;
use super::registry::Session;
use super::{Core, folder, tombstone};
use crate::sandbox::SandboxHandle;
use crate::store::SessionPrefix;

impl Core {
    /// Runs until the service ends.
    pub async fn reap_for_ever(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(self.parts.sandbox.reaper_interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.reap_once().await;
        }
    }

    pub async fn reap_once(&self) {
        for session in self.registry.all() {
            if session.is_closed() {
                continue;
            }
            if self.is_expired(&session) {
                if let Err(error) = self.expire(&session).await {
                    tracing::error!(session = %session.key, ?error, "an expired session could not be removed");
                }
                continue;
            }
            self.drop_dead_sandbox(&session).await;
            self.catch_up(&session).await;
        }
        self.remove_orphans().await;
        self.delete_due_objects().await;
        folder::empty_trash(&self.parts.work_root);
    }

    fn is_expired(&self, session: &Session) -> bool {
        let passed = |since_ms: u64| Duration::from_millis(now_ms().saturating_sub(since_ms));
        let created_ms = session.meta().created_ms;
        passed(created_ms) > self.parts.sandbox.ttl
            || passed(session.last_activity_ms.load(Ordering::Relaxed)) > self.parts.sandbox.idle
    }

    /// A sandbox that ended behind our back frees its place now; the session hears of it with its next answer.
    async fn drop_dead_sandbox(&self, session: &Session) {
        let Ok(mut state) = session.sandbox.try_lock() else {
            return;
        };
        let Some(live) = state.live.clone() else {
            return;
        };
        if !self.backend().is_alive(&live.handle).await {
            tracing::warn!(session = %session.key, container = live.handle.container_id, "a sandbox ended by itself");
            state.live = None;
            state.lost = true;
            self.remove_sandbox(&live.handle).await;
        }
    }

    /// Tries again to store what could not be stored, unless a cell is running, whose end will do it.
    async fn catch_up(&self, session: &Arc<Session>) {
        let Ok(_turn) = session.turn.try_lock() else {
            return;
        };
        let behind = session
            .stored
            .try_lock()
            .is_ok_and(|stored| stored.behind || stored.restore_pending);
        if behind
            && let Err(error) = self
                .sync_workspace(session, self.parts.s3.presign_expires)
                .await
        {
            tracing::warn!(session = %session.key, ?error, "a session could not be synced");
        }
    }

    async fn remove_orphans(&self) {
        let containers = match self.backend().list().await {
            Ok(containers) => containers,
            Err(error) => return tracing::warn!(%error, "sandboxes cannot be listed"),
        };
        let owned = self.owned_containers().await;
        let ownerless: Vec<SandboxHandle> = containers
            .into_iter()
            .map(|(_, handle)| handle)
            .filter(|handle| !owned.contains(&handle.container_id))
            .collect();
        let names = ownerless
            .iter()
            .map(|handle| handle.container_id.clone())
            .collect();
        let suspects = std::mem::replace(
            &mut *self.suspects.lock().unwrap_or_else(PoisonError::into_inner),
            names,
        );
        for handle in ownerless
            .iter()
            .filter(|handle| suspects.contains(&handle.container_id))
        {
            tracing::warn!(
                container = handle.container_id,
                "removing a sandbox that no session owns"
            );
            self.remove_sandbox(handle).await;
        }
    }

    async fn owned_containers(&self) -> HashSet<String> {
        let mut owned = HashSet::new();
        for session in self.registry.all() {
            owned.extend(
                session
                    .sandbox
                    .lock()
                    .await
                    .live
                    .as_ref()
                    .map(|live| live.handle.container_id.clone()),
            );
        }
        owned
    }

    /// Deletes what expired sessions stored, once no link to it works any more. A new session of the same ids keeps its own.
    async fn delete_due_objects(&self) {
        for note in tombstone::due(&self.parts.work_root, now_ms()) {
            let key = note.ids.key();
            let prefix = SessionPrefix::new(&self.parts.s3.prefix_root, &key);
            let outcome = match self.registry.find(&key) {
                None => self.delete_prefix(&prefix).await.map(|_| ()),
                Some(session) => self.delete_all_but_current(&session).await,
            };
            match outcome {
                Ok(()) => {
                    if let Err(error) = note.remove(&self.parts.work_root) {
                        tracing::warn!(%error, "a tombstone could not be removed");
                    }
                }
                Err(error) => {
                    tracing::warn!(session = %key, %error, "stored files of a removed session cannot be deleted yet")
                }
            }
        }
    }

    async fn delete_all_but_current(&self, session: &Session) -> Result<(), super::CoreError> {
        // Held during the deletion, so that nothing is stored between the look and the deed.
        let stored = session.stored.lock().await;
        let current: HashSet<String> = stored
            .manifest
            .entries
            .keys()
            .filter_map(|path| session.prefix.object(path).ok())
            .collect();
        let keys = self.parts.store.list(&session.prefix.objects()).await?;
        let old: Vec<String> = keys
            .into_iter()
            .filter(|key| !current.contains(key))
            .collect();
        self.parts.store.delete(&old).await?;
        Ok(())
    }
}
