//! The regular look for what has had its time: expired sessions, dead and ownerless sandboxes, stored files to delete,
//! syncs to try again. Never touches what it does not own or what is in use.
//! Invariant: a sandbox is removed as an orphan only if it is older than a grace period and two looks, a moment apart, found it
//! without an owner.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;

use super::clock::now_ms;
use super::registry::Session;
use super::{Core, folder, tombstone};
use crate::sandbox::{ListedSandbox, SandboxHandle};

/// A slow store must not put off the end of one session because of another.
const SESSIONS_AT_ONCE: usize = 8;
/// How old a sandbox must be, or how long known to be without an owner, before it is removed.
const ORPHAN_GRACE: Duration = Duration::from_secs(10);
/// One that is just changing hands has its owner by then.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(1);

/// Sandboxes that nobody owns, by container id, and when they were first seen.
#[derive(Default)]
pub struct Suspects(HashMap<String, Instant>);

impl Suspects {
    /// Takes the result of one look; gives those whose time is up. It runs since they were made, or since they were first
    /// seen here if the clock by which they were made is ahead.
    fn due(&mut self, ownerless: Vec<ListedSandbox>, now: Instant) -> Vec<SandboxHandle> {
        let known = std::mem::take(&mut self.0);
        let mut due = Vec::new();
        for ListedSandbox { handle, age } in ownerless {
            let since = known.get(&handle.container_id).copied().unwrap_or(now);
            self.0.insert(handle.container_id.clone(), since);
            if age.max(now.duration_since(since)) >= ORPHAN_GRACE {
                due.push(handle);
            }
        }
        due
    }
}

impl Core {
    /// Runs until the service ends. A store that hangs holds up what needs it, and nothing else.
    pub(super) async fn reap_for_ever(&self) {
        tokio::join!(
            self.at_each_interval(|| self.look_at_sandboxes()),
            self.at_each_interval(|| self.for_each_session(|session| self.expire_if_due(session))),
            self.at_each_interval(|| self.catch_up_with_the_store()),
        );
    }

    async fn at_each_interval<F: Future<Output = ()>>(&self, look: impl Fn() -> F) {
        let mut ticks = tokio::time::interval(self.parts.sandbox.reaper_interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            look().await;
        }
    }

    async fn for_each_session<F: Future<Output = ()>>(&self, look: impl Fn(Arc<Session>) -> F) {
        let sessions = self.registry.all().into_iter();
        let open = sessions.filter(|session| !session.is_closed());
        futures_util::stream::iter(open)
            .for_each_concurrent(SESSIONS_AT_ONCE, look)
            .await;
    }

    async fn look_at_sandboxes(&self) {
        self.for_each_session(|session| async move { self.drop_dead_sandbox(&session).await })
            .await;
        self.remove_orphans().await;
        let work_root = self.parts.work_root.clone();
        // Not waited for: a large workspace takes long to delete.
        tokio::task::spawn_blocking(move || folder::empty_trash(&work_root));
    }

    async fn catch_up_with_the_store(&self) {
        self.for_each_session(|session| async move { self.catch_up(&session).await })
            .await;
        self.delete_due_objects().await;
    }

    async fn expire_if_due(&self, session: Arc<Session>) {
        if !self.is_expired(&session) {
            return;
        }
        if let Err(error) = self.expire(&session).await {
            tracing::error!(session = %session.key, ?error, "an expired session could not be removed");
        }
    }

    pub(super) fn is_expired(&self, session: &Session) -> bool {
        self.life_left(session).is_none()
    }

    /// How long the session has to live if nobody uses it; none if its time is up.
    pub(super) fn life_left(&self, session: &Session) -> Option<Duration> {
        let unused = session.last_activity.moment().elapsed();
        match session.meta().terms.idle_secs {
            Some(seconds) => Duration::from_secs(seconds).checked_sub(unused),
            None => {
                let by_age = self.parts.sandbox.ttl.checked_sub(session.born.elapsed())?;
                Some(by_age.min(self.parts.sandbox.idle.checked_sub(unused)?))
            }
        }
    }

    /// A sandbox that ended behind our back frees its place now; the session hears of it with its next answer.
    pub(super) async fn drop_dead_sandbox(&self, session: &Session) {
        let mut state = session.sandbox.lock().await;
        let Some(live) = state.live.clone() else {
            return;
        };
        if !self.backend().is_alive(&live.handle).await {
            tracing::warn!(session = %session.key, container = live.handle.container_id, "a sandbox ended by itself");
            state.give_up(session);
            self.remove_sandbox(&live.handle).await;
        }
    }

    /// Tries again to store what could not be stored, unless a cell is running, whose end will do it.
    async fn catch_up(&self, session: &Arc<Session>) {
        if self.is_expired(session) {
            return;
        }
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
        let ownerless = containers
            .into_iter()
            .filter(|listed| !owned.contains(&listed.handle.container_id))
            .collect();
        let due = self
            .suspects
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .due(ownerless, Instant::now());
        if due.is_empty() {
            return;
        }
        tokio::time::sleep(SECOND_LOOK_AFTER).await;
        for handle in due {
            // Looked at again just before the deed: it may have found its owner meanwhile.
            if self.owned_containers().await.contains(&handle.container_id) {
                continue;
            }
            tracing::warn!(
                container = handle.container_id,
                "removing a sandbox that no session owns"
            );
            self.remove_sandbox(&handle).await;
        }
    }

    /// Waits for sandboxes that are being made, so that each one in an earlier list has its owner by now.
    async fn owned_containers(&self) -> HashSet<String> {
        let mut owned = self.pool.container_ids().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(id: &str) -> SandboxHandle {
        SandboxHandle {
            backend: "docker".to_owned(),
            container_id: id.to_owned(),
            init_pid: 0,
            init_start_ticks: 0,
        }
    }

    fn listed(id: &str, age_secs: u64) -> ListedSandbox {
        ListedSandbox {
            handle: handle(id),
            age: Duration::from_secs(age_secs),
        }
    }

    #[test]
    fn an_orphan_is_due_after_the_grace_period_and_never_with_an_owner_in_between() {
        let mut suspects = Suspects::default();
        let start = Instant::now();
        let at = |secs: u64| start + Duration::from_secs(secs);
        // The clock by which they were made says nothing of use.
        let look = |ids: &[&str]| ids.iter().map(|id| listed(id, 0)).collect();
        assert!(suspects.due(look(&["a"]), at(0)).is_empty());
        assert!(suspects.due(look(&["a", "b"]), at(9)).is_empty());
        assert_eq!(suspects.due(look(&["a", "b"]), at(10)), [handle("a")]);
        // Owned for one look: its time starts anew.
        assert!(suspects.due(look(&["b"]), at(11)).is_empty());
        assert_eq!(suspects.due(look(&["a", "b"]), at(20)), [handle("b")]);
    }

    #[test]
    fn an_orphan_that_is_old_when_it_is_first_seen_is_due_at_once() {
        let mut suspects = Suspects::default();
        let now = Instant::now();
        let found = vec![listed("young", 9), listed("old", 10)];
        assert_eq!(suspects.due(found, now), [handle("old")]);
    }
}
