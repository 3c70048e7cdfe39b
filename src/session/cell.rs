//! One cell on one kernel: frames in, deadlines kept, interrupts passed on, the end recognised.
//! Never touches files. Deadlines and causes are the host's own; the kernel's word decides only the result.
//! Invariant: it ends within the time limit plus the grace periods, whatever the sandbox does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::events::EventSink;
use super::output::Output;
use super::quota::QuotaWatch;
use super::registry::Live;
use crate::kernel::{CellFrame, CellLink, CellStatus, KernelError};
use crate::model::execution::{CellError, ExecutionEvent};

/// After SIGINT, before SIGKILL.
const INTERRUPT_GRACE: Duration = Duration::from_secs(2);
/// After SIGKILL through the supervisor, before the whole sandbox goes.
const RESTART_GRACE: Duration = Duration::from_secs(1);
/// How long a kernel that starts may take to say hello, preload included.
const START_WAIT: Duration = Duration::from_secs(30);
/// A worker may die just when it is given a cell; its successor gets it then.
const START_TRIES: usize = 2;
/// How long a worker may leave a cell unread.
const SEND_WAIT: Duration = Duration::from_secs(5);
const HANG_UP_CHECK_INTERVAL: Duration = Duration::from_millis(500);
const SIGKILL: i64 = 9;
const QUOTA_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Why a running cell was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Timeout,
    Caller,
    Quota,
}

#[derive(Debug)]
pub enum CellEnd {
    Done {
        status: CellStatus,
        error: Option<CellError>,
        execution_count: u64,
    },
    /// The worker died; a new one is on its way.
    Died { by_exit: bool, code: i64 },
    /// The sandbox itself is gone or no longer makes sense.
    SandboxLost,
    /// The sandbox was gone before the code was sent, so another one may run it.
    NotStarted,
    /// The caller took it back before it began.
    Withdrawn,
}

#[derive(Debug)]
pub struct CellRun {
    pub end: CellEnd,
    pub cause: Option<Cause>,
    pub output: Output,
    /// The variables of earlier cells were gone before this one began.
    pub lost_before: bool,
}

pub struct CellRequest<'a> {
    pub id: u64,
    pub code: &'a str,
    pub timeout: Duration,
    pub max_output_bytes: usize,
    pub interrupt: Arc<Notify>,
    pub quota: &'a QuotaWatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Interrupted,
    Killed,
}

pub async fn run_cell(live: &Arc<Live>, request: CellRequest<'_>, events: &EventSink) -> CellRun {
    let mut run = CellRun {
        end: CellEnd::NotStarted,
        cause: None,
        output: Output::new(request.max_output_bytes),
        lost_before: false,
    };
    for _ in 0..START_TRIES {
        let cell = match start_cell(live, &request, events, &mut run).await {
            Ok(Some(cell)) => cell,
            Ok(None) => {
                run.end = CellEnd::Withdrawn;
                break;
            }
            Err(_) => break,
        };
        finish_cell(live, cell, &request, events, &mut run).await;
        match run.end {
            // It was told to stop before its worker took it up: it must not run after all.
            CellEnd::NotStarted if run.cause.is_some() => {
                run.end = CellEnd::Died {
                    by_exit: false,
                    code: SIGKILL,
                };
                break;
            }
            CellEnd::NotStarted => run.lost_before = true,
            _ => break,
        }
    }
    run
}

async fn finish_cell(
    live: &Arc<Live>,
    mut cell: CellLink,
    request: &CellRequest<'_>,
    events: &EventSink,
    run: &mut CellRun,
) {
    match drive(live, &mut cell, request, events, run).await {
        Ok(end) => {
            let kept = matches!(end, CellEnd::Done { .. });
            live.generation
                .store(if kept { cell.generation } else { 0 }, Ordering::Release);
            if kept {
                live.kernel.give_back_cell(cell);
            }
            run.end = end;
        }
        Err(error) => {
            // This answer says that the variables are lost.
            live.generation.store(0, Ordering::Release);
            run.end = CellEnd::SandboxLost;
            tracing::warn!(%error, container = live.handle.container_id, "a sandbox was lost during a cell");
        }
    }
}

/// Takes the worker's link and sends the code; None if the caller took it back while the worker was busy. A worker that
/// died between two cells has left its place to a new one.
async fn start_cell(
    live: &Live,
    request: &CellRequest<'_>,
    events: &EventSink,
    run: &mut CellRun,
) -> Result<Option<CellLink>, KernelError> {
    let mut last_error = KernelError::NoAnswer;
    for _ in 0..START_TRIES {
        let taken = tokio::select! {
            taken = take_cell(live, request.timeout) => taken,
            () = request.interrupt.notified() => return withdraw(live, run).await,
            () = events.hung_up() => return withdraw(live, run).await,
        };
        let mut cell = match taken {
            Err(KernelError::NoAnswer) if live.kernel.is_connected() => {
                make_way(live, &mut run.lost_before).await?
            }
            taken => taken?,
        };
        let sent = cell.execute(request.id, request.code, request.max_output_bytes);
        match timeout(SEND_WAIT, sent)
            .await
            .unwrap_or(Err(KernelError::NoAnswer))
        {
            Ok(()) => {
                run.lost_before |= live.lost_its_worker(&cell);
                return Ok(Some(cell));
            }
            Err(KernelError::NoAnswer) => {
                // The worker does not even read: nothing but a new one will help.
                run.lost_before = true;
                live.kernel.restart().await?;
            }
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// The caller does not want the cell any more that has not begun. Neither, then, what an earlier service left running.
async fn withdraw(live: &Live, run: &mut CellRun) -> Result<Option<CellLink>, KernelError> {
    run.cause = Some(Cause::Caller);
    if live.kernel.is_connected() {
        let cell = make_way(live, &mut run.lost_before).await?;
        live.kernel.give_back_cell(cell);
    }
    Ok(None)
}

/// Ends a cell that an earlier service left running: with an interrupt, and if that does not help, with its worker.
pub async fn make_way(live: &Live, lost: &mut bool) -> Result<CellLink, KernelError> {
    live.kernel.interrupt_whatever_runs().await?;
    if let Ok(cell) = live.kernel.take_cell(INTERRUPT_GRACE).await {
        return Ok(cell);
    }
    *lost = true;
    live.kernel.restart().await?;
    live.kernel.take_cell(START_WAIT).await
}

/// Waits for the worker's link: as long as there is a kernel that may bring it, but a connected one that is busy only
/// as long as the cell itself may take.
async fn take_cell(live: &Live, busy_wait: Duration) -> Result<CellLink, KernelError> {
    let started = Instant::now();
    while started.elapsed() < START_WAIT {
        match live
            .kernel
            .take_cell(HANG_UP_CHECK_INTERVAL.min(busy_wait))
            .await
        {
            Err(KernelError::NoAnswer) if live.kernel.has_hung_up() => {
                return Err(KernelError::NotConnected);
            }
            Err(KernelError::NoAnswer)
                if live.kernel.is_connected() && started.elapsed() >= busy_wait =>
            {
                break;
            }
            Err(KernelError::NoAnswer) => {}
            taken => return taken,
        }
    }
    Err(KernelError::NoAnswer)
}

async fn drive(
    live: &Arc<Live>,
    cell: &mut CellLink,
    request: &CellRequest<'_>,
    events: &EventSink,
    run: &mut CellRun,
) -> Result<CellEnd, KernelError> {
    let mut phase = Phase::Running;
    let mut deadline = Instant::now() + request.timeout;
    let mut next_quota_check = Instant::now() + QUOTA_CHECK_INTERVAL;
    // While the worker is at it: nobody waits for this look.
    request.quota.begin();
    loop {
        let stop = tokio::select! {
            // Frames come last: a flood of them must not keep a deadline or an interrupt from being seen.
            biased;
            () = sleep_until(deadline.min(next_quota_check)) => match phase {
                Phase::Running if Instant::now() < deadline => {
                    next_quota_check = Instant::now() + QUOTA_CHECK_INTERVAL;
                    if !request.quota.is_exceeded() { continue }
                    Cause::Quota
                }
                Phase::Running => Cause::Timeout,
                Phase::Interrupted => {
                    let live = live.clone();
                    tokio::spawn(async move { live.kernel.restart().await });
                    phase = Phase::Killed;
                    deadline = Instant::now() + RESTART_GRACE;
                    next_quota_check = deadline;
                    continue;
                }
                Phase::Killed => return Ok(CellEnd::SandboxLost),
            },
            () = request.interrupt.notified(), if phase == Phase::Running => Cause::Caller,
            () = events.hung_up(), if phase == Phase::Running => Cause::Caller,
            frame = cell.next(request.id) => {
                match take_frame(frame?, events, run) {
                    // It came through at last, but its worker is being killed: the variables are gone.
                    Some(CellEnd::Done { .. }) if phase == Phase::Killed => {
                        return Ok(CellEnd::Died { by_exit: false, code: SIGKILL });
                    }
                    Some(end) => return Ok(end),
                    None => continue,
                }
            }
        };
        run.cause = Some(stop);
        phase = Phase::Interrupted;
        deadline = Instant::now() + INTERRUPT_GRACE;
        next_quota_check = deadline;
        let (live, execution) = (live.clone(), request.id);
        tokio::spawn(async move { live.kernel.interrupt(execution).await });
    }
}

fn take_frame(frame: CellFrame, events: &EventSink, run: &mut CellRun) -> Option<CellEnd> {
    match frame {
        CellFrame::Stream { stream, text, .. } => {
            let kept = run.output.push_stream(stream, &text);
            if !kept.is_empty() {
                events.send_stream(stream, kept);
            }
            None
        }
        CellFrame::Display { data, .. } => {
            if run.output.push_bundle(data.clone()) {
                events.send(ExecutionEvent::Display(data));
            }
            None
        }
        CellFrame::Done {
            status,
            execution_count,
            truncated,
            result,
            error,
            ..
        } => {
            run.output.truncated |= truncated;
            if let Some(bundle) = result {
                events.send_with(|| ExecutionEvent::Result(bundle.clone()));
                run.output.push_result(bundle);
            }
            Some(CellEnd::Done {
                status,
                error,
                execution_count,
            })
        }
        // It died before it took this cell up, so the next worker may have it.
        CellFrame::Died { id: 0, .. } => Some(CellEnd::NotStarted),
        CellFrame::Died { reason, code, .. } => Some(CellEnd::Died {
            by_exit: reason == crate::kernel::Death::Exit,
            code,
        }),
        CellFrame::Unknown => None,
    }
}

/// True if the kernel's OOM killer has struck in this sandbox since the last time this was asked.
pub async fn oom_struck(backend: &dyn crate::sandbox::Backend, live: &Live) -> bool {
    let kills = backend.usage(&live.handle).await.oom_kills;
    live.oom_kills_seen.swap(kills, Ordering::AcqRel) < kills
}
