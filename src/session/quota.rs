//! The size of a workspace while a cell runs.
//! Never blocks the cell's task: a look takes place on another thread, one at a time.
//! Invariant: what a walk could not see counts as too much.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Core;
use super::registry::Session;
use crate::workspace::WalkBudget;

/// Looks at the size of a workspace while a cell runs, on another thread, one look at a time.
pub struct QuotaWatch {
    session: Arc<Session>,
    budget: WalkBudget,
    exceeded: Arc<AtomicBool>,
    looking: Arc<AtomicBool>,
}

impl QuotaWatch {
    pub fn new(core: &Core, session: &Arc<Session>) -> Self {
        Self {
            session: session.clone(),
            budget: core.walk_budget(),
            exceeded: Arc::default(),
            looking: Arc::default(),
        }
    }

    /// What the last look said; starts the next one.
    pub fn is_exceeded(&self) -> bool {
        if !self.looking.swap(true, Ordering::AcqRel) {
            let (workspace, budget) = (self.session.workspace.clone(), self.budget);
            let (exceeded, looking) = (self.exceeded.clone(), self.looking.clone());
            tokio::task::spawn_blocking(move || {
                if let Ok(report) = workspace.walk(budget) {
                    exceeded.store(
                        report.out_of_budget || report.allocated_bytes > budget.max_bytes,
                        Ordering::Release,
                    );
                }
                looking.store(false, Ordering::Release);
            });
        }
        self.exceeded.load(Ordering::Acquire)
    }
}
