//! Executing a cell for a caller: its turn in the queue, its sandbox, its inputs, the run, the sync, the answer.
//! Never speaks HTTP. Invariant: once the turn is taken, exactly one answer comes, and it is true.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{MutexGuard, Notify, watch};
use tracing::Instrument;

use super::Core;
use super::answer;
use super::cell::{self, CellEnd, CellRequest, CellRun};
use super::error::CoreError;
use super::events::EventSink;
use super::quota::QuotaWatch;
use super::registry::{Live, Running, Session};
use crate::kernel::CellStatus;
use crate::metrics::METRICS;
use crate::model::execution::{ExecuteCommand, ExecutionAnswer, VariableState};
use crate::model::ids::SessionIds;
use crate::model::path::WorkspacePath;
use crate::store;
use crate::volume;

/// How long interrupted cells may take to end when the service shuts down.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(5);

impl Core {
    pub async fn execute(
        &self,
        ids: &SessionIds,
        command: ExecuteCommand,
        events: EventSink,
    ) -> Result<ExecutionAnswer, CoreError> {
        if !fits_a_frame(&command.code) {
            let text = "the code is larger than 500000 bytes, or a megabyte when it is escaped";
            return Err(CoreError::TooLarge(text.to_owned()));
        }
        self.require_disk()?;
        loop {
            if self.is_shutting_down() {
                return Err(CoreError::Unavailable(
                    "the service is shutting down".to_owned(),
                ));
            }
            let session = self.open_session(ids).await?;
            let turn = self.wait_for_turn(&session, &events).await?;
            // Stopped while this cell waited: the ids get a new session, and the cell runs there.
            if session.is_closed() || self.is_shutting_down() {
                drop(turn);
                continue;
            }
            let answer = self.execute_in_turn(&session, &command, &events).await;
            session.touch();
            drop(turn);
            return answer;
        }
    }

    async fn wait_for_turn<'s>(
        &self,
        session: &'s Session,
        events: &EventSink,
    ) -> Result<MutexGuard<'s, ()>, CoreError> {
        if let Ok(turn) = session.turn.try_lock() {
            return Ok(turn);
        }
        let _place = QueuePlace::take(session, self.parts.sandbox.queue_max)?;
        tokio::select! {
            turn = session.turn.lock() => Ok(turn),
            () = events.hung_up() => Err(CoreError::Cancelled),
        }
    }

    async fn execute_in_turn(
        &self,
        session: &Arc<Session>,
        command: &ExecuteCommand,
        events: &EventSink,
    ) -> Result<ExecutionAnswer, CoreError> {
        if !command.inputs.is_empty() {
            Box::pin(self.provide_inputs(session, &command.inputs)).await?;
        }
        let started = Instant::now();
        let mut outcome = self.run(session, command, events).await?;
        if matches!(outcome.0.end, CellEnd::NotStarted) {
            let lost_before = outcome.0.lost_before;
            outcome = self.run(session, command, events).await?;
            outcome.0.lost_before |= lost_before;
        }
        let (mut run, reason_oom) = outcome;
        // Looked at only now: whatever happened to earlier variables until this answer is said with it.
        let (lost_before, generation) = {
            let meta = session.meta();
            (meta.lost, meta.generation)
        };
        let duration = started.elapsed();
        run.lost_before |= lost_before;
        let mut answer = answer::from_run(run, reason_oom, command.timeout, duration, events);
        METRICS.execution(session.ids.dialect(), answer.status.word(), duration);
        if !session.is_closed() {
            let sync = self.sync_workspace(session, command.link_expires_in);
            let span = tracing::debug_span!("sync", session = %session.key);
            match sync.instrument(span).await {
                Ok((artifacts, sync)) => (answer.artifacts, answer.sync) = (artifacts, sync),
                Err(error) => {
                    tracing::error!(session = %session.key, ?error, "the workspace could not be looked through");
                    answer.sync.error =
                        Some("the workspace could not be looked through".to_owned());
                }
            }
        }
        if answer.state == VariableState::Lost {
            note_what_was_said(session, generation, events);
        }
        Ok(answer)
    }

    async fn run(
        &self,
        session: &Arc<Session>,
        command: &ExecuteCommand,
        events: &EventSink,
    ) -> Result<(CellRun, bool), CoreError> {
        let live = &self.ensure_live(session).await?;
        let id = self.next_execution.fetch_add(1, Ordering::Relaxed);
        let interrupt = Arc::new(Notify::new());
        let (outcome_sender, outcome) = watch::channel(None);
        *session.running() = Some(Running {
            interrupt: interrupt.clone(),
            outcome,
        });
        let quota = QuotaWatch::new(self, session);
        let request = CellRequest {
            id,
            code: &command.code,
            timeout: command.timeout,
            max_output_bytes: self.parts.files.max_output_bytes,
            interrupt,
            quota: &quota,
        };
        let span = tracing::debug_span!("kernel", session = %session.key);
        let run = cell::run_cell(live, request, events).instrument(span).await;
        let died = !matches!(run.end, CellEnd::Done { .. } | CellEnd::Withdrawn);
        // Only SIGKILL is the OOM killer's; a count that rose may also be an earlier child's.
        let by_sigkill = !matches!(run.end, CellEnd::Died { by_exit: true, .. });
        let oom = died && cell::oom_struck(self.backend(), live).await && by_sigkill;
        self.note_generation(session, live)?;
        let ended_well =
            matches!(&run.end, CellEnd::Done { status, .. } if *status == CellStatus::Ok);
        if matches!(run.end, CellEnd::SandboxLost | CellEnd::NotStarted)
            || (!ended_well && volume::has_failed(session.folder.path()))
        {
            Box::pin(self.discard_sandbox(session, live)).await;
        }
        *session.running() = None;
        outcome_sender.send_replace(Some(if died || run.lost_before {
            VariableState::Lost
        } else {
            VariableState::Kept
        }));
        Ok((run, oom))
    }

    /// Keeps on disk which worker holds variables, so that the next service knows when it was replaced.
    fn note_generation(&self, session: &Session, live: &Live) -> Result<(), CoreError> {
        let generation = live.generation.load(Ordering::Acquire);
        if session.meta().generation == generation {
            return Ok(());
        }
        session.save_meta(|meta| {
            meta.lose_variables();
            meta.generation = generation;
        })
    }

    /// Inputs that are missing in the workspace but stored come back; one that is nowhere is an error.
    async fn provide_inputs(
        &self,
        session: &Arc<Session>,
        inputs: &[WorkspacePath],
    ) -> Result<(), CoreError> {
        for path in inputs {
            if session.workspace.facts(path).is_ok() {
                continue;
            }
            let mut stored = session.stored.lock().await;
            self.restore_if_pending(session, &mut stored).await?;
            if session.workspace.facts(path).is_ok() {
                continue;
            }
            match store::restore_one(
                self.store(),
                &session.prefix,
                &session.workspace,
                &mut stored.manifest,
                path,
            )
            .await
            {
                Ok(()) => self.keep_manifest(session, &stored),
                Err(store::StoreError::NotFound) => {
                    return Err(CoreError::NotFound(format!(
                        "input {:?} is neither in the workspace nor stored",
                        path.to_text()
                    )));
                }
                Err(store::StoreError::File(error)) if is_full(&error) => {
                    return Err(session.file_trouble(error));
                }
                Err(store::StoreError::File(_)) => {
                    let problem = format!(
                        "inputs: {:?} is in the way of the stored file",
                        path.to_text()
                    );
                    return Err(CoreError::invalid("inputs", problem));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Stops the running cell; gives what became of the variables, or None if nothing ran.
    pub async fn interrupt(&self, ids: &SessionIds) -> Option<VariableState> {
        let session = self.registry.find(&ids.key())?;
        let Some(mut running) = session.running().clone() else {
            return self.interrupt_leftover(&session).await;
        };
        running.interrupt.notify_one();
        let outcome = running.outcome.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| *outcome)
    }

    /// A cell of an earlier service may still run in a sandbox that was taken over.
    async fn interrupt_leftover(&self, session: &Session) -> Option<VariableState> {
        let live = session.sandbox.try_lock().ok()?.live.clone()?;
        // In any other sandbox a worker that is not idle has just been started and runs nothing.
        if !live.adopted || live.kernel.worker_is_idle() || !live.kernel.is_connected() {
            return None;
        }
        let mut lost = false;
        let cell = cell::make_way(&live, &mut lost).await.ok()?;
        live.kernel.give_back_cell(cell);
        Some(if lost {
            VariableState::Lost
        } else {
            VariableState::Kept
        })
    }

    /// Throws the variables away: a new worker takes the place of the old. Does not wait for a running cell; it ends it.
    pub async fn reset(&self, ids: &SessionIds) -> Result<String, CoreError> {
        let session = self.open_session(ids).await?;
        let live = self.ensure_live(&session).await?;
        // A kernel that has not said hello yet has nothing to throw away.
        if live.kernel.wait_connected(Duration::from_secs(30)).await
            && live.kernel.restart().await.is_ok()
        {
            live.generation.store(0, Ordering::Release);
            session.save_meta(|meta| (meta.generation, meta.lost) = (0, false))?;
            return Ok(live.handle.container_id.clone());
        }
        self.discard_sandbox(&session, &live).await;
        let live = self.ensure_live(&session).await?;
        session.save_meta(|meta| meta.lost = false)?;
        Ok(live.handle.container_id.clone())
    }

    /// Waits until nobody executes any more, so that nothing is written behind whoever removes the folders now. An
    /// execution is over when what its cell left is stored too.
    pub async fn wait_until_idle(&self, limit: Duration) {
        let sessions = self.registry.all();
        let turns = sessions
            .iter()
            .map(|session| async { drop(session.turn.lock().await) });
        let _idle = tokio::time::timeout(limit, futures_util::future::join_all(turns)).await;
    }

    /// Lets running cells finish until `wait` has passed, then interrupts them. Sandboxes stay alive.
    pub async fn shut_down(&self, wait: Duration) {
        self.shutting_down.store(true, Ordering::Release);
        let running = || {
            self.registry
                .all()
                .into_iter()
                .filter_map(|session| session.running().clone())
                .collect::<Vec<_>>()
        };
        let all_done = async {
            for mut cell in running() {
                let _ended = cell.outcome.wait_for(Option::is_some).await;
            }
        };
        let (ended, ()) = tokio::join!(tokio::time::timeout(wait, all_done), self.empty_pool());
        if ended.is_ok() {
            return;
        }
        let mut cells = running();
        cells.iter().for_each(|cell| cell.interrupt.notify_one());
        let all_ended = cells
            .iter_mut()
            .map(|cell| async { drop(cell.outcome.wait_for(Option::is_some).await) });
        let _ended = tokio::time::timeout(
            INTERRUPT_PATIENCE,
            futures_util::future::join_all(all_ended),
        )
        .await;
    }
}

/// After an answer that says that variables are lost: the next one, of this service or of its successor, says so again only
/// if nobody heard this one, or if those of this cell, in worker `generation`, were lost while it was on its way.
fn note_what_was_said(session: &Session, generation: u64, events: &EventSink) {
    let still_to_say = events.is_hung_up() || session.meta().generation != generation;
    if let Err(error) = session.save_meta(|meta| meta.lost = still_to_say) {
        tracing::warn!(session = %session.key, ?error, "a loss of variables may be said twice");
    }
}

fn is_full(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::StorageFull
}

/// Whether code fits into one frame of the kernel protocol, whose JSON escapes some characters.
fn fits_a_frame(code: &str) -> bool {
    const MAX_CODE_BYTES: usize = 500_000;
    const MAX_ESCAPED_BYTES: usize = 1_000_000;
    let escaped = || serde_json::to_string(code).map_or(usize::MAX, |text| text.len());
    // A character grows to six at most.
    code.len() <= MAX_CODE_BYTES
        && (code.len() <= MAX_ESCAPED_BYTES / 6 || escaped() <= MAX_ESCAPED_BYTES)
}

/// A place in a session's queue, given back when dropped.
struct QueuePlace<'s>(&'s Session);

impl<'s> QueuePlace<'s> {
    fn take(session: &'s Session, queue_max: usize) -> Result<Self, CoreError> {
        let waiting = session.waiting.fetch_add(1, Ordering::AcqRel);
        let place = Self(session);
        if waiting >= queue_max {
            return Err(CoreError::Busy {
                count: waiting,
                what: "cells of this session are waiting",
            });
        }
        Ok(place)
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
