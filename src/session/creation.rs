//! Sessions that a caller creates, finds and closes by name, for dialects in which a session is not just there.
//! Never brings a session back that was closed. Invariant: of callers who create the same session at once, one does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Core;
use super::error::CoreError;
use super::folder::Terms;
use super::registry::Session;
use super::removal::note_expiry;
use crate::metrics::METRICS;
use crate::model::ids::SessionIds;

/// What is known of a session without looking into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFacts {
    pub ids: SessionIds,
    pub terms: Terms,
    pub created_ms: u64,
    pub last_activity_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    New(SessionFacts),
    /// It was there already.
    Existing(SessionFacts),
}

impl Core {
    /// Creates a session with its sandbox, unless there is one of these ids.
    pub async fn create(&self, ids: &SessionIds, terms: Terms) -> Result<Created, CoreError> {
        self.require_disk()?;
        let new = AtomicBool::new(false);
        let ready = || {
            new.store(true, Ordering::Relaxed);
            terms.fit_the_pool().then(|| self.pool.take()).flatten()
        };
        if let Some(earlier) = self.registry.find(&ids.key()) {
            if !self.has_died(&earlier) {
                let facts = facts(&earlier);
                earlier.touch();
                METRICS
                    .sessions_reused
                    .with_label_values(&[ids.dialect()])
                    .inc();
                return Ok(Created::Existing(facts));
            }
            // Its time was up before the reaper came by.
            if let Some(stopped) = self.stop_session(&earlier).await {
                stopped?;
                note_expiry(&earlier);
            }
        }
        let session = self.open_session_with(ids, &terms, ready).await?;
        if !new.load(Ordering::Relaxed) {
            return Ok(Created::Existing(facts(&session)));
        }
        if let Err(error) = self.ensure_live(&session).await {
            // Nobody has heard of it yet.
            self.stop(ids).await?;
            return Err(error);
        }
        Ok(Created::New(facts(&session)))
    }

    /// An open session of these ids; unlike a use of it, this is no activity.
    pub fn find_open(&self, ids: &SessionIds) -> Option<SessionFacts> {
        let session = self.registry.find(&ids.key())?;
        (!self.has_died(&session)).then(|| facts(&session))
    }

    /// Ends what single runs of an earlier service left: nobody can ask for them any more.
    pub(super) async fn end_left_runs(&self) {
        let sessions = self.registry.all().into_iter();
        for session in sessions.filter(|session| session.meta().terms.ephemeral) {
            if let Some(Err(error)) = self.stop_session(&session).await {
                tracing::warn!(session = %session.key, %error, "the sandbox of a single run could not be removed yet");
            }
        }
    }

    /// Every open session of a workflow run.
    pub fn sessions_of_workflow(&self, run_id: &str) -> Vec<SessionFacts> {
        let sessions = self.registry.all().into_iter();
        let open = sessions.filter(|session| !session.is_closed());
        open.map(|session| facts(&session))
            .filter(|facts| facts.terms.workflow.as_deref() == Some(run_id))
            .collect()
    }

    /// Lets a session live for so long from now, if nobody uses it, and then go.
    pub fn retain(&self, ids: &SessionIds, idle_secs: u64) -> Result<(), CoreError> {
        let Some(session) = self.registry.find(&ids.key()) else {
            return Ok(());
        };
        session.touch();
        session.save_meta(|meta| meta.terms.idle_secs = Some(idle_secs))
    }

    /// An open session by the name that was handed out for it. What one dialect handed out is no name in another: each has
    /// rules of its own for what may be done.
    pub fn find_by_handle(&self, dialect: &str, handle: &str) -> Option<SessionFacts> {
        let session = self.registry.find_by_handle(handle)?;
        (session.ids.dialect() == dialect && !self.has_died(&session)).then(|| facts(&session))
    }

    /// How many files an open session has; unlike a list of them, this is no activity.
    pub async fn count_files(&self, ids: &SessionIds) -> Result<usize, CoreError> {
        match self.registry.find(&ids.key()) {
            Some(session) => Ok(self.walk(&session, usize::MAX).await?.total_files),
            None => Ok(0),
        }
    }

    /// Closed, or its time is up and nothing runs in it, whether or not the reaper has been here.
    fn has_died(&self, session: &Session) -> bool {
        let in_use = session.processes.load(Ordering::Acquire) > 0 || session.running().is_some();
        session.is_closed() || (self.is_expired(session) && !in_use)
    }
}

fn facts(session: &Arc<Session>) -> SessionFacts {
    let meta = session.meta();
    SessionFacts {
        ids: meta.ids.clone(),
        terms: meta.terms.clone(),
        created_ms: meta.created_ms,
        last_activity_ms: session.last_activity.moment().to_wall_ms(),
    }
}
