//! The parent of the measurement: waits for it, and cleans up after it whether it ended, failed, hung or was interrupted.
//! Never measures. Invariant: no process, container, image or folder of a run outlives it, unless this process is killed outright.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

use crate::Effort;
use crate::own::{BINARY, SERVICES};

/// The word by which this program runs itself to measure.
pub const MEASURE: &str = "measure";

/// Twice what a run takes on two slow cores.
const LIMIT: Duration = Duration::from_secs(1500);

pub fn run(effort: Effort) -> ExitCode {
    // Without the program that started this one nobody would see the outcome.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).unwrap();
    let folder = tempfile::Builder::new()
        .prefix("cellblock-bench-")
        .tempdir()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let outcome = runtime.block_on(outcome_of(folder.path(), effort));
    if let Err(reason) = &outcome {
        println!("{reason}; cleaning up");
    }
    clean_up(folder.path());
    if let Err(error) = folder.close() {
        println!("the folder of the run could not be removed: {error}");
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Runs the measurement in a process group of its own, and ends that group.
async fn outcome_of(folder: &Path, effort: Effort) -> Result<(), &'static str> {
    let mut interrupt = signal(SignalKind::interrupt()).unwrap();
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(MEASURE)
        .arg(folder)
        .arg(effort.word())
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let group = Pid::from_child(&child);
    let ended = async {
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let outcome = tokio::select! {
        status = ended => match status.success() {
            true => Ok(()),
            false => Err("the measurement failed"),
        },
        _ = interrupt.recv() => Err("interrupted"),
        _ = terminate.recv() => Err("ended"),
        () = tokio::time::sleep(LIMIT) => Err("the measurement took too long"),
    };
    let _nobody_left = kill_process_group(group, Signal::KILL);
    reap(&mut child);
    outcome
}

fn reap(child: &mut Child) {
    let _reaped = child.wait();
}

/// Sandboxes outlive their service, and containers their client: each is ended by its own means.
fn clean_up(folder: &Path) {
    for service in std::fs::read_dir(folder.join(SERVICES))
        .into_iter()
        .flatten()
    {
        let purged = Command::new(BINARY)
            .arg("purge")
            .env("WORK_ROOT", service.unwrap().path())
            .current_dir(folder)
            .stdout(Stdio::null())
            .status();
        if !purged.is_ok_and(|status| status.success()) {
            println!("sandboxes may be left: cellblock purge failed");
        }
    }
    crate::bare::docker::remove_all(folder);
}
