//! From how a cell ended to the answer a caller gets: status, state, error, and notes in the output.
//! Pure. Invariant: `state` is `lost` exactly when the variables are gone.

use std::time::Duration;

use super::cell::{Cause, CellEnd, CellRun};
use super::events::EventSink;
use crate::kernel::CellStatus;
use crate::model::execution::{
    CellError, DeathReason, ExecutionAnswer, ExecutionEvent, ExecutionStatus, SyncReport,
    VariableState,
};

pub fn from_run(
    run: CellRun,
    oom: bool,
    timeout: Duration,
    duration: Duration,
    events: &EventSink,
) -> ExecutionAnswer {
    let CellRun {
        end,
        cause,
        mut output,
        lost_before,
    } = run;
    let died = !matches!(end, CellEnd::Done { .. } | CellEnd::Withdrawn);
    let mut execution_count = 0;
    let reason = match (&end, oom) {
        (CellEnd::Done { .. } | CellEnd::Withdrawn, _) => None,
        (_, true) => Some(DeathReason::Oom),
        (CellEnd::Died { by_exit: true, .. }, _) => Some(DeathReason::Exit),
        _ => Some(DeathReason::Signal),
    };
    let (mut status, mut error) = match end {
        CellEnd::Done {
            status,
            error,
            execution_count: count,
        } => {
            execution_count = count;
            (status_of(status), error)
        }
        CellEnd::Died { by_exit, code } => (ExecutionStatus::Died, Some(death(by_exit, code, oom))),
        CellEnd::Withdrawn => (ExecutionStatus::Interrupted, None),
        CellEnd::SandboxLost | CellEnd::NotStarted => {
            (ExecutionStatus::Died, Some(sandbox_lost(oom)))
        }
    };
    if let Some(traceback) = error
        .as_ref()
        .map(|error| error.traceback.clone())
        .filter(|text| !text.is_empty())
    {
        output.push_line(&traceback);
    }
    let mut notes = Vec::new();
    if let Some(cause) = cause {
        (status, error) = stopped(cause, status, error, timeout);
    }
    if let Some(error) = error.as_ref().filter(|_| died || cause.is_some()) {
        let kept = if died || lost_before {
            "variables are lost, files are kept"
        } else {
            "variables are kept"
        };
        notes.push(format!("[{}; {kept}]", error.value));
    }
    if let Some(error) = &error {
        events.send_with(|| ExecutionEvent::Error(error.clone()));
    }
    output.finish(&notes);
    ExecutionAnswer {
        artifacts: Vec::new(),
        status,
        state: if died || lost_before {
            VariableState::Lost
        } else {
            VariableState::Kept
        },
        error,
        stdout: output.stdout,
        stderr: output.stderr,
        output: output.all,
        results: output.results,
        execution_count,
        duration_ms: (duration.as_secs_f64() * 1e6).round() / 1e3,
        truncated: output.truncated,
        reason,
        sync: SyncReport::default(),
    }
}

fn status_of(status: CellStatus) -> ExecutionStatus {
    match status {
        CellStatus::Ok => ExecutionStatus::Ok,
        CellStatus::Error => ExecutionStatus::Error,
        CellStatus::Interrupted => ExecutionStatus::Interrupted,
    }
}

fn death(by_exit: bool, code: i64, oom: bool) -> CellError {
    let value = match (oom, by_exit) {
        (true, _) => "the kernel ran out of memory and was killed".to_owned(),
        (false, true) => format!("the kernel process ended with exit code {code}"),
        (false, false) => format!("the kernel process was killed by signal {code}"),
    };
    CellError {
        name: "KernelDied".to_owned(),
        value,
        traceback: String::new(),
    }
}

fn sandbox_lost(oom: bool) -> CellError {
    let why = if oom {
        "ran out of memory"
    } else {
        "ended or stopped answering"
    };
    CellError {
        name: "SandboxLost".to_owned(),
        value: format!("the sandbox {why}"),
        traceback: String::new(),
    }
}

/// A cell that was told to stop: what the caller asked or set off comes before how it ended.
fn stopped(
    cause: Cause,
    status: ExecutionStatus,
    error: Option<CellError>,
    timeout: Duration,
) -> (ExecutionStatus, Option<CellError>) {
    let traceback = error
        .as_ref()
        .map(|error| error.traceback.clone())
        .unwrap_or_default();
    let told = |name: &str, value: String| {
        Some(CellError {
            name: name.to_owned(),
            value,
            traceback,
        })
    };
    match cause {
        Cause::Timeout => {
            let value = format!(
                "the cell was stopped after {} seconds",
                timeout.as_secs_f64()
            );
            (ExecutionStatus::Timeout, told("TimeoutError", value))
        }
        // It ended by itself just before the interrupt reached it.
        Cause::Caller if status == ExecutionStatus::Ok => (status, error),
        Cause::Caller => (
            ExecutionStatus::Interrupted,
            told("KeyboardInterrupt", "the cell was interrupted".to_owned()),
        ),
        Cause::Quota => {
            let value =
                "the workspace grew over MAX_WORKSPACE_SIZE_MB, or filled the disk of the service, and the cell was stopped".to_owned();
            (
                ExecutionStatus::Error,
                told("WorkspaceQuotaExceeded", value),
            )
        }
    }
}
