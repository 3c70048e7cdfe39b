//! News from the backend that a sandbox ended, was frozen or was removed behind our back.
//! Never trusts the news itself: it only looks sooner than the reaper would.
//! Invariant: what is still alive when it is looked at stays.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::registry::Session;
use crate::sandbox::Ended;

/// A running cell notices the end of its sandbox by itself, and why; what it cannot notice is a freeze.
const RUNNING_CELL_FIRST: Duration = Duration::from_secs(1);

impl Core {
    /// Runs until the service ends.
    pub(super) async fn watch_for_vanished(self: &Arc<Self>) {
        loop {
            match self.backend().next_ended().await {
                Ended::One(container_id) => {
                    let core = self.clone();
                    tokio::spawn(async move { core.look_at(&container_id).await });
                }
                Ended::Any => {
                    self.drop_dead_members(None).await;
                    for session in self.registry.all() {
                        self.drop_dead_sandbox(&session).await;
                    }
                }
            }
        }
    }

    async fn look_at(&self, container_id: &str) {
        self.drop_dead_members(Some(container_id)).await;
        let of_container = |session: &Arc<Session>| {
            let meta = session.meta();
            let sandbox = meta.sandbox.as_ref();
            sandbox.is_some_and(|handle| handle.container_id == container_id)
        };
        let Some(session) = self.registry.all().into_iter().find(of_container) else {
            return;
        };
        if session.running().is_some() {
            tokio::time::sleep(RUNNING_CELL_FIRST).await;
        }
        self.drop_dead_sandbox(&session).await;
    }
}
