//! The regular look for what has had its time: expired sessions, dead and ownerless sandboxes, stored files to delete,
//! syncs to try again. Never touches what it does not own or what is in use.
//! Invariant: a sandbox without a session is removed only after two looks found it so.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;

use super::folder::now_ms;
use super::registry::Session;
use super::{Core, folder, tombstone};
use crate::sandbox::SandboxHandle;

/// A slow store must not put off the end of one session because of another.
const SESSIONS_AT_ONCE: usize = 8;

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
        let sessions = futures_util::stream::iter(self.registry.all());
        let looks = sessions.for_each_concurrent(SESSIONS_AT_ONCE, |session| async move {
            self.look_after(&session).await
        });
        looks.await;
        self.remove_orphans().await;
        self.delete_due_objects().await;
        let work_root = self.parts.work_root.clone();
        let _emptied = tokio::task::spawn_blocking(move || folder::empty_trash(&work_root)).await;
    }

    async fn look_after(&self, session: &Arc<Session>) {
        if session.is_closed() {
            return;
        }
        if !self.is_expired(session) {
            self.drop_dead_sandbox(session).await;
            self.catch_up(session).await;
            return;
        }
        if let Err(error) = self.expire(session).await {
            tracing::error!(session = %session.key, ?error, "an expired session could not be removed");
        }
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

    /// Deletes what removed sessions stored, once no link to it works any more.
    async fn delete_due_objects(&self) {
        for note in tombstone::due(&self.parts.work_root, now_ms()) {
            if let Err(error) = self.delete_stored(&note).await {
                tracing::warn!(session = %note.ids.key(), %error, "stored files of a removed session cannot be deleted yet");
            }
        }
    }
}
