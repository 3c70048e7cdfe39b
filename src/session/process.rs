//! A program run for a caller beside the session's cells: its start, its output, its time limit, its end.
//! Never queues behind a cell or another process. Deadlines are the host's own.
//! Invariant: when the answer is out, the program and everything it started are gone, or it ended by itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::OwnedRwLockReadGuard;
use tokio::time::{sleep_until, timeout};
use tracing::Instrument;

use super::Core;
use super::cell;
use super::error::CoreError;
use super::events::EventSink;
use super::output::Output;
use super::quota::QuotaWatch;
use super::registry::{Live, Session};
use crate::kernel::{CellFrame, Death, KernelError, ProcessLink, Program, StreamName};
use crate::metrics::METRICS;
use crate::model::ids::SessionIds;
use crate::model::process::{ProcessAnswer, ProcessCommand, ProcessEnd};
use crate::volume;

/// Of one sandbox at a time; what they start themselves is limited by SANDBOX_PIDS.
const MAX_PROCESSES: usize = 64;
const START_WAIT: Duration = Duration::from_secs(30);
/// After a kill, until the news of the end.
const KILL_WAIT: Duration = Duration::from_secs(5);
const QUOTA_CHECK_INTERVAL: Duration = Duration::from_millis(500);
const SIGKILL: i64 = 9;
const KILLED_IN_A_SHELL: i64 = 128 + SIGKILL;

/// A program that runs, and what keeps its session from going away under it.
pub(super) struct Started {
    session: Arc<Session>,
    live: Arc<Live>,
    process: u64,
    /// None if there is no such program; why not.
    link: Result<ProcessLink, String>,
    since: Instant,
    _in_use: OwnedRwLockReadGuard<()>,
    _place: ProcessPlace,
}

impl Started {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

/// Takes output as it comes.
pub(super) type OutputSink<'s> = &'s mut (dyn FnMut(StreamName, &str) + Send);

impl Core {
    /// Runs a program in the session's sandbox to its end, its time limit, or its caller's hanging up.
    pub async fn run_process(
        &self,
        ids: &SessionIds,
        command: ProcessCommand,
        events: EventSink,
    ) -> Result<ProcessAnswer, CoreError> {
        let limit = command.timeout;
        let started = self.start_program(ids, command).await?;
        let mut output = Output::new(self.parts.files.max_output_bytes);
        let mut sink = |stream: StreamName, text: &str| _ = output.push_stream(stream, text);
        let (end, duration) = self.follow(started, limit, &events, &mut sink).await;
        Ok(ProcessAnswer {
            end,
            stdout: output.stdout,
            stderr: output.stderr,
            truncated: output.truncated,
            duration,
        })
    }

    pub(super) async fn start_program(
        &self,
        ids: &SessionIds,
        command: ProcessCommand,
    ) -> Result<Started, CoreError> {
        if self.is_shutting_down() {
            let text = "the service is shutting down";
            return Err(CoreError::Unavailable(text.to_owned()));
        }
        self.require_disk()?;
        let session = self.open_session(ids).await?;
        // A volume that failed is mended when its sandbox is made, and only while nobody is in the folder.
        self.ensure_live(&session).await?;
        // Keeps the folder, and with it the session, from being removed as idle.
        let in_use = session.enter_owned().await?;
        let place = ProcessPlace::take(&session)?;
        let live = self.ensure_live(&session).await?;
        let process = self.next_execution.fetch_add(1, Ordering::Relaxed);
        let program = Program {
            argv: command.argv,
            cwd: command.cwd.map(|path| path.to_text()).unwrap_or_default(),
            env: command.env,
        };
        let since = Instant::now();
        let link = match self.spawn(&live, process, &program).await {
            Ok(link) => Ok(link),
            Err(KernelError::NotStarted(reason)) => Err(reason),
            Err(KernelError::TooLong) => {
                let text = "the command with its arguments and variables is larger than a megabyte";
                return Err(CoreError::TooLarge(text.to_owned()));
            }
            Err(error) => {
                self.discard_sandbox(&session, &live).await;
                tracing::warn!(%error, session = %session.key, "a process could not be started");
                let text = "the sandbox did not answer and was given up; try again";
                return Err(CoreError::Unavailable(text.to_owned()));
            }
        };
        Ok(Started {
            session,
            live,
            process,
            link,
            since,
            _in_use: in_use,
            _place: place,
        })
    }

    /// Stays with a program until it is gone.
    pub(super) async fn follow(
        &self,
        started: Started,
        limit: Duration,
        events: &EventSink,
        sink: OutputSink<'_>,
    ) -> (ProcessEnd, Duration) {
        let Started {
            session,
            live,
            process,
            link,
            since,
            _in_use,
            _place,
        } = started;
        let mut link = match link {
            Ok(link) => link,
            Err(reason) => {
                let end = ProcessEnd::NotStarted(reason);
                METRICS.command(session.ids.dialect(), end.word(), since.elapsed());
                return (end, since.elapsed());
            }
        };
        let quota = QuotaWatch::new(self, &session);
        let deadline = tokio::time::Instant::now() + limit;
        let span = tracing::debug_span!("process", session = %session.key);
        let watched = watch(&mut link, deadline, events, &quota, sink).instrument(span);
        let end =
            match watched.await {
                // A shell tells of a child's SIGKILL by its own exit code.
                Watched::Ended(
                    ProcessEnd::Signal(SIGKILL) | ProcessEnd::Exit(KILLED_IN_A_SHELL),
                ) if cell::oom_struck(self.backend(), &live).await => ProcessEnd::OutOfMemory,
                Watched::Ended(end) => end,
                stopped => {
                    self.end_process(&session, &live, process, &mut link, sink)
                        .await;
                    stopped.into_end(limit)
                }
            };
        if end != ProcessEnd::Exit(0) && volume::has_failed(session.folder.path()) {
            // The next one gets a sandbox whose volume was mended.
            self.discard_sandbox(&session, &live).await;
        }
        METRICS.command(session.ids.dialect(), end.word(), since.elapsed());
        session.touch();
        // The files it made are stored by the reaper's next look, or with the next cell.
        session.stored.lock().await.behind = true;
        (end, since.elapsed())
    }

    /// A kernel that has just been started may not be there yet.
    async fn spawn(
        &self,
        live: &Live,
        process: u64,
        program: &Program,
    ) -> Result<ProcessLink, KernelError> {
        if !live.kernel.wait_connected(START_WAIT).await {
            return Err(KernelError::NotConnected);
        }
        live.kernel.spawn(process, program).await
    }

    /// Ends it and takes its last output. A sandbox that does not manage that is given up.
    async fn end_process(
        &self,
        session: &Session,
        live: &Arc<Live>,
        process: u64,
        link: &mut ProcessLink,
        sink: OutputSink<'_>,
    ) {
        let last_words = async {
            live.kernel.kill(process).await?;
            loop {
                match link.next().await? {
                    CellFrame::Stream { stream, text, .. } => sink(stream, &text),
                    CellFrame::Died { .. } => return Ok::<(), KernelError>(()),
                    _ => {}
                }
            }
        };
        if !matches!(timeout(KILL_WAIT, last_words).await, Ok(Ok(()))) {
            tracing::warn!(session = %session.key, "a process could not be ended; its sandbox is given up");
            self.discard_sandbox(session, live).await;
        }
    }
}

enum Watched {
    Ended(ProcessEnd),
    TimeIsUp,
    CallerIsGone,
    OverQuota,
}

impl Watched {
    fn into_end(self, limit: Duration) -> ProcessEnd {
        match self {
            Self::Ended(end) => end,
            Self::TimeIsUp => ProcessEnd::TimedOut { limit },
            Self::CallerIsGone => ProcessEnd::Signal(9),
            Self::OverQuota => ProcessEnd::OverQuota,
        }
    }
}

async fn watch(
    link: &mut ProcessLink,
    deadline: tokio::time::Instant,
    events: &EventSink,
    quota: &QuotaWatch,
    sink: OutputSink<'_>,
) -> Watched {
    let mut next_quota_check = tokio::time::Instant::now() + QUOTA_CHECK_INTERVAL;
    loop {
        tokio::select! {
            // Output comes last: a flood of it must not keep the time limit from being seen.
            biased;
            () = sleep_until(deadline.min(next_quota_check)) => {
                if tokio::time::Instant::now() >= deadline {
                    return Watched::TimeIsUp;
                }
                next_quota_check = tokio::time::Instant::now() + QUOTA_CHECK_INTERVAL;
                if quota.is_exceeded() {
                    return Watched::OverQuota;
                }
            }
            () = events.hung_up() => return Watched::CallerIsGone,
            frame = link.next() => match frame {
                Ok(CellFrame::Stream { stream, text, .. }) => sink(stream, &text),
                Ok(CellFrame::Died { reason: Death::Exit, code, .. }) => {
                    return Watched::Ended(ProcessEnd::Exit(code));
                }
                Ok(CellFrame::Died { code, .. }) => return Watched::Ended(ProcessEnd::Signal(code)),
                Ok(_) => {}
                Err(_) => return Watched::Ended(ProcessEnd::SandboxLost),
            },
        }
    }
}

/// One of the processes that a sandbox may run at once, given back when dropped.
struct ProcessPlace(Arc<Session>);

impl ProcessPlace {
    fn take(session: &Arc<Session>) -> Result<Self, CoreError> {
        let running = session.processes.fetch_add(1, Ordering::AcqRel);
        let place = Self(session.clone());
        if running >= MAX_PROCESSES {
            return Err(CoreError::Busy {
                count: running,
                what: "programs of this session run",
            });
        }
        Ok(place)
    }
}

impl Drop for ProcessPlace {
    fn drop(&mut self) {
        self.0.processes.fetch_sub(1, Ordering::AcqRel);
    }
}
