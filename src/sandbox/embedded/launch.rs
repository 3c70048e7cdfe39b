//! The service's side of the helper: starts it with an empty environment, bounds its time, reads its one line.
//! Never forks in the service itself; the helper is a fresh exec.
//! Invariant: when this returns, the helper is gone.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;

use super::helper;
use super::record::Init;

const HELPER_LIMIT: Duration = Duration::from_secs(30);
const MAX_REASON_CHARS: usize = 500;

/// Runs the helper for one prepared container folder. The error is a reason for people.
pub async fn run(
    program: &Path,
    container_dir: &Path,
    filter_file: &Path,
    cgroup_entries: &[PathBuf],
) -> Result<Init, String> {
    let child = Command::new(program)
        .arg(helper::SUBCOMMAND)
        .args([container_dir, filter_file])
        .args(cgroup_entries)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("helper {} did not start: {error}", program.display()))?;
    // On time-out the child is dropped, and with it killed.
    match tokio::time::timeout(HELPER_LIMIT, child.wait_with_output()).await {
        Ok(Ok(output)) => read_answer(&output),
        Ok(Err(error)) => Err(format!("helper could not be awaited: {error}")),
        Err(_) => Err(format!("helper took longer than {HELPER_LIMIT:?}")),
    }
}

fn read_answer(output: &Output) -> Result<Init, String> {
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason: String = reason.trim().chars().take(MAX_REASON_CHARS).collect();
        return Err(match reason.is_empty() {
            true => format!("helper ended with {}", output.status),
            false => reason,
        });
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|_| "helper gave no usable answer; is it the cellblock binary?".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_is_not_the_helper_is_an_error() {
        let nowhere = Path::new("/nonexistent");
        let missing = run(nowhere, nowhere, nowhere, &[]).await.unwrap_err();
        assert!(missing.contains("did not start"), "{missing}");
        let wrong = run(Path::new("/bin/true"), nowhere, nowhere, &[])
            .await
            .unwrap_err();
        assert!(wrong.contains("no usable answer"), "{wrong}");
        let failing = run(Path::new("/bin/false"), nowhere, nowhere, &[])
            .await
            .unwrap_err();
        assert!(failing.contains("exit status"), "{failing}");
    }
}
