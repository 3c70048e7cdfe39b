//! Sandboxes that wait for a session: started, their kernel connected, `SANDBOX_PRELOAD` imported.
//! Never gives one to two sessions, and never takes one back: code has run in it.
//! Invariant: a member's folder lies under `pool/` until it becomes its session's folder by one rename.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Core;
use super::error::CoreError;
use super::folder::{self, Meta, SessionFolder, Terms};
use super::registry::Live;
use crate::sandbox::SandboxHandle;
use crate::workspace::Workspace;

/// How long a new member may take until its worker waits for a cell, preload included.
const READY_WAIT: Duration = Duration::from_secs(60);
/// The caller who has just taken a member needs the processor first.
const REFILL_DELAY: Duration = Duration::from_millis(100);
/// How long somebody who needs a place waits for a member that is being made and has one.
const MAKING_PATIENCE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Pool {
    ready: Mutex<VecDeque<Member>>,
    /// Ids of sandboxes that are neither in `ready` nor in a session, but on their way between them.
    on_the_way: Mutex<HashSet<String>>,
    /// Held while a member is being made.
    making: tokio::sync::Mutex<()>,
    wanted: Notify,
}

/// A sandbox without a session.
pub struct Member {
    pub live: Arc<Live>,
    folder: SessionFolder,
}

/// A member that has become a session's; on its way until this is dropped.
pub struct MovedIn<'p> {
    pub live: Arc<Live>,
    pool: &'p Pool,
}

impl Drop for MovedIn<'_> {
    fn drop(&mut self) {
        self.pool.arrived(&self.live.handle);
    }
}

impl Pool {
    /// The longest waiting member that still answers.
    pub fn take(&self) -> Option<Member> {
        let mut ready = self.ready();
        let position = ready.iter().position(|member| member.is_ready())?;
        let member = ready.remove(position)?;
        self.leaves(&member.live.handle);
        self.wanted.notify_one();
        Some(member)
    }

    /// Like `take`, but waits for one that is just being made.
    pub async fn take_or_wait(&self) -> Option<Member> {
        if let Some(member) = self.take() {
            return Some(member);
        }
        if self.making.try_lock().is_err() {
            let _made_or_not = tokio::time::timeout(MAKING_PATIENCE, self.making.lock()).await;
        }
        self.take()
    }

    pub fn available(&self) -> usize {
        self.ready()
            .iter()
            .filter(|member| member.is_ready())
            .count()
    }

    /// Takes out the members that `wanted` names; they are on their way until they are put back or discarded.
    fn take_out(&self, wanted: impl Fn(&Member) -> bool) -> Vec<Member> {
        let mut ready = self.ready();
        let (out, keep): (VecDeque<Member>, _) = ready.drain(..).partition(|member| wanted(member));
        *ready = keep;
        for member in &out {
            self.leaves(&member.live.handle);
        }
        Vec::from(out)
    }

    fn put_back(&self, member: Member) {
        let handle = member.live.handle.clone();
        self.ready().push_back(member);
        self.arrived(&handle);
    }

    /// The containers that are the pool's own affair. Waits for one that is being made, which has no known id yet.
    pub async fn container_ids(&self) -> HashSet<String> {
        let _nothing_is_made = self.making.lock().await;
        let mut ids = self.on_the_way().clone();
        let ready = self.ready();
        ids.extend(
            ready
                .iter()
                .map(|member| member.live.handle.container_id.clone()),
        );
        ids
    }

    fn leaves(&self, handle: &SandboxHandle) {
        self.on_the_way().insert(handle.container_id.clone());
    }

    fn arrived(&self, handle: &SandboxHandle) {
        self.on_the_way().remove(&handle.container_id);
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<Member>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_the_way(&self) -> MutexGuard<'_, HashSet<String>> {
        self.on_the_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    fn is_ready(&self) -> bool {
        self.live.kernel.is_connected() && self.live.kernel.worker_is_idle()
    }
}

impl Core {
    /// How many sandboxes should wait, and how many do.
    pub fn pool_counts(&self) -> (usize, usize) {
        (self.parts.sandbox.pool_size, self.pool.available())
    }

    /// Makes members one after the other whenever some are missing. Runs until the service ends.
    pub(super) async fn keep_pool_filled(&self) {
        if self.parts.sandbox.pool_size == 0 {
            return;
        }
        let mut pause = FIRST_PAUSE;
        loop {
            match self.fill_pool().await {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => {
                    tracing::warn!(%error, "the pool of sandboxes cannot be filled; trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            }
            // Members may also die where nobody sees it.
            let look_again = self.parts.sandbox.reaper_interval;
            let _wanted_or_not =
                tokio::time::timeout(look_again, self.pool.wanted.notified()).await;
            tokio::time::sleep(REFILL_DELAY).await;
            self.drop_dead_members(None).await;
        }
    }

    async fn fill_pool(&self) -> Result<(), CoreError> {
        self.require_disk()?;
        while self.pool.ready().len() < self.parts.sandbox.pool_size && !self.is_shutting_down() {
            // At the limit of sandboxes there is no room for one that only waits.
            let Ok(permit) = self.capacity.clone().try_acquire_owned() else {
                break;
            };
            // Until the member is in its place: whoever waits for this lock shall not miss it.
            let _making = self.pool.making.lock().await;
            let id = uuid::Uuid::new_v4().simple().to_string();
            let folder = SessionFolder::in_pool(&self.parts.work_root, &id[..16]);
            let member = self.make_member(&folder, &id[..16], permit).await;
            match member {
                Ok(member) => self.pool.ready().push_back(member),
                Err(error) => {
                    let _reaper_empties_it = folder.move_to_trash(&self.parts.work_root);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn make_member(
        &self,
        folder: &SessionFolder,
        id: &str,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<Member, CoreError> {
        self.prepare_folder(folder, &Terms::default())
            .await
            .map_err(CoreError::workspace)?;
        Workspace::open(&folder.workspace(), Some(self.parts.sandbox_user))
            .map_err(CoreError::workspace)?;
        let spec = self.spec(format!("sb_pool_{id}"), folder, &Terms::default());
        let note =
            |handle: &SandboxHandle| folder.write_pool_note(handle).map_err(CoreError::workspace);
        let live = self.start_sandbox(&spec, permit, note).await?;
        match live.kernel.take_cell(READY_WAIT).await {
            Ok(cell) => live.kernel.give_back_cell(cell),
            Err(error) => {
                self.remove_sandbox(&live.handle).await;
                return Err(CoreError::Unavailable(format!("a new sandbox: {error}")));
            }
        }
        Ok(Member {
            live,
            folder: folder.clone(),
        })
    }

    /// Makes a member the sandbox of a session: its folder, its metadata, its name. None if that failed.
    pub(super) async fn move_in(
        &self,
        member: Member,
        folder: &SessionFolder,
        meta: &mut Meta,
    ) -> Option<MovedIn<'_>> {
        let handle = member.live.handle.clone();
        meta.sandbox = Some(handle.clone());
        // On disk before the folder is the session's, so that a service that dies now still knows the sandbox.
        let moved = member
            .folder
            .write_meta(meta)
            .and_then(|()| member.folder.move_to(folder));
        if let Err(error) = moved {
            tracing::warn!(%error, "a sandbox of the pool could not be given to a session");
            meta.sandbox = None;
            self.discard_member(member).await;
            return None;
        }
        self.name_sandbox(&handle, &meta.ids.key());
        Some(MovedIn {
            live: member.live,
            pool: &self.pool,
        })
    }

    /// Of a member that was taken; nobody gets it any more.
    pub(super) async fn discard_member(&self, member: Member) {
        self.remove_sandbox(&member.live.handle).await;
        let _reaper_empties_it = member.folder.move_to_trash(&self.parts.work_root);
        self.pool.arrived(&member.live.handle);
    }

    /// Looks at every member, or at those of one container: one that was frozen looks ready, and only the backend knows
    /// better; one that is not ready may just be dialling again.
    pub(super) async fn drop_dead_members(&self, container_id: Option<&str>) {
        let asked_for =
            |member: &Member| container_id.is_none_or(|id| member.live.handle.container_id == id);
        for member in self.pool.take_out(asked_for) {
            if self.backend().is_alive(&member.live.handle).await
                && member.live.kernel.wait_connected(FIRST_PAUSE).await
            {
                self.pool.put_back(member);
                continue;
            }
            tracing::warn!(
                container = member.live.handle.container_id,
                "a sandbox of the pool ended by itself"
            );
            self.discard_member(member).await;
            self.pool.wanted.notify_one();
        }
    }

    /// Nobody can use what waits once the service has ended.
    pub(super) async fn empty_pool(&self) {
        let emptied = async {
            let _nothing_is_made = self.pool.making.lock().await;
            let members = self.pool.take_out(|_| true);
            let removals = members
                .into_iter()
                .map(|member| self.discard_member(member));
            futures_util::future::join_all(removals).await;
        };
        let _the_next_start_does_the_rest = tokio::time::timeout(SHUTDOWN_LIMIT, emptied).await;
    }

    /// Removes what an earlier service left in its pool: its settings may have been others.
    pub(super) async fn clear_left_pool(&self) {
        let left = folder::left_pool(&self.parts.work_root).unwrap_or_else(|error: io::Error| {
            tracing::warn!(%error, "the pool's folder cannot be read");
            Vec::new()
        });
        let removals = left.into_iter().map(|(folder, handle)| async move {
            if let Some(handle) = handle.filter(|handle| handle.backend == self.backend().name()) {
                self.remove_sandbox(&handle).await;
            }
            let _reaper_empties_it = folder.move_to_trash(&self.parts.work_root);
        });
        futures_util::future::join_all(removals).await;
    }
}
