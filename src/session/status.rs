//! What can be said of a session without disturbing it.
//! Never creates, touches or restores anything. Invariant: unknown is said as unknown (None), never as zero.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::clock::now_ms;
use super::error::CoreError;
use super::registry::Session;
use crate::model::ids::SessionIds;

#[derive(Debug, Clone, PartialEq)]
pub struct SessionStatus {
    pub ids: SessionIds,
    pub state: &'static str,
    pub container_id: Option<String>,
    pub backend: &'static str,
    pub created_ms: u64,
    pub last_activity_ms: u64,
    pub expires_ms: u64,
    pub queued_cells: usize,
    /// Whether the kernel's supervisor answers a ping; unknown without a sandbox.
    pub kernel_answers: Option<bool>,
    pub memory_bytes: Option<u64>,
    pub cpu_seconds: Option<f64>,
    pub files: usize,
    pub size_bytes: u64,
    /// How the size is limited: `hard` or `soft`.
    pub quota: &'static str,
}

impl Core {
    pub async fn status(&self, ids: &SessionIds) -> Result<SessionStatus, CoreError> {
        let session = self
            .registry
            .find(&ids.key())
            .filter(|session| !session.is_closed());
        let session = session.ok_or_else(|| CoreError::NotFound("no such session".to_owned()))?;
        self.status_of(&session).await
    }

    pub async fn statuses(&self) -> Vec<SessionStatus> {
        let mut statuses = Vec::new();
        for session in self
            .registry
            .all()
            .into_iter()
            .filter(|session| !session.is_closed())
        {
            // One that is removed just now is not worth failing the list for.
            statuses.extend(self.status_of(&session).await);
        }
        statuses.sort_by_key(|status| status.created_ms);
        statuses
    }

    pub fn open_sessions(&self) -> usize {
        self.registry.all().len()
    }

    async fn status_of(&self, session: &Arc<Session>) -> Result<SessionStatus, CoreError> {
        // Being made or removed right now: the lock is held by whoever does that.
        let live = session.sandbox.try_lock().map(|state| state.live.clone());
        let (live, starting) = (live.as_ref().ok().cloned().flatten(), live.is_err());
        let usage = match &live {
            Some(live) => self.backend().usage(&live.handle).await,
            None => crate::sandbox::Usage::default(),
        };
        let kernel_answers = match &live {
            Some(live) => Some(live.kernel.answers().await),
            None => None,
        };
        let report = self.walk(session, usize::MAX).await?;
        let left = self.life_left(session).unwrap_or_default();
        let expires_ms = now_ms() + left.as_millis() as u64;
        let created_ms = session.meta().created_ms;
        let last_activity_ms = session.last_activity.moment().to_wall_ms();
        let state = match (&live, starting) {
            (_, true) => "starting",
            (Some(live), _) if session.running().is_some() || !live.kernel.worker_is_idle() => {
                "running"
            }
            (Some(_), _) => "idle",
            (None, _) => "no_sandbox",
        };
        Ok(SessionStatus {
            ids: session.ids.clone(),
            state,
            container_id: live.map(|live| live.handle.container_id.clone()),
            backend: self.backend().name(),
            created_ms,
            last_activity_ms,
            expires_ms,
            queued_cells: session.waiting.load(Ordering::Relaxed),
            kernel_answers,
            memory_bytes: usage.memory_bytes,
            cpu_seconds: usage.cpu_seconds,
            files: report.total_files,
            size_bytes: report.total_bytes,
            quota: match session.has_volume {
                true => "hard",
                false => "soft",
            },
        })
    }
}
