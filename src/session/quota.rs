//! The size of a workspace while code runs in it.
//! Never blocks the cell's task: a look takes place on another thread, one at a time.
//! Invariant: what a walk could not see counts as too much. A volume limits itself; there only the host's disk is looked at.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::Core;
use super::registry::Session;
use crate::volume::HostDisk;
use crate::workspace::{Room, WalkBudget};

/// Code that has written less since it began is not what fills the disk.
const WRITES_MUCH_BYTES: u64 = 1 << 20;

/// Looks at the size of a workspace while code runs.
pub struct QuotaWatch {
    session: Arc<Session>,
    budget: WalkBudget,
    /// What its volume had left at the beginning; none if it has none.
    room_before: OnceLock<Option<Room>>,
    disk: HostDisk,
    /// What a workspace without a volume held at the first look.
    held_before: Arc<OnceLock<u64>>,
    exceeded: Arc<AtomicBool>,
    looking: Arc<AtomicBool>,
}

impl QuotaWatch {
    pub fn new(core: &Core, session: &Arc<Session>) -> Self {
        Self {
            session: session.clone(),
            budget: core.walk_budget(session),
            room_before: OnceLock::new(),
            disk: core.parts.disk.clone(),
            held_before: Arc::default(),
            exceeded: Arc::default(),
            looking: Arc::default(),
        }
    }

    /// The cell has begun: what it writes from now on counts.
    pub fn begin(&self) {
        self.room_before();
    }

    fn room_before(&self) -> Option<&Room> {
        let look = || {
            self.session
                .has_volume
                .then(|| self.session.workspace.room())
        };
        self.room_before.get_or_init(|| look().flatten()).as_ref()
    }

    /// What the last look said; starts the next one.
    pub fn is_exceeded(&self) -> bool {
        match self.room_before() {
            Some(before) => self.fills_the_disk(before),
            None => self.has_outgrown_its_limit(),
        }
    }

    /// Images are sparse: what is promised to a volume may not be there. It is stopped before its writes fail half-way.
    fn fills_the_disk(&self, before: &Room) -> bool {
        let wrote_much = |now: Room| now.free_bytes + WRITES_MUCH_BYTES < before.free_bytes;
        self.disk.is_nearly_full() && self.session.workspace.room().is_some_and(wrote_much)
    }

    fn has_outgrown_its_limit(&self) -> bool {
        if !self.looking.swap(true, Ordering::AcqRel) {
            let (workspace, budget) = (self.session.workspace.clone(), self.budget);
            let (disk, held_before) = (self.disk.clone(), self.held_before.clone());
            let (exceeded, looking) = (self.exceeded.clone(), self.looking.clone());
            tokio::task::spawn_blocking(move || {
                let too_much = workspace.walk(budget).map_or(true, |report| {
                    let held = report.allocated_bytes;
                    let before = *held_before.get_or_init(|| held);
                    let wrote_much = held > before + WRITES_MUCH_BYTES;
                    report.out_of_budget
                        || held > budget.max_bytes
                        || (wrote_much && disk.is_nearly_full())
                });
                exceeded.store(too_much, Ordering::Release);
                looking.store(false, Ordering::Release);
            });
        }
        self.exceeded.load(Ordering::Acquire)
    }
}
