//! Processes of the host by pid and start time: is it still that one, kill it, wait for its end, reap it.
//! Never signals a bare pid number; every kill goes through a pidfd whose start time was checked.
//! Invariant: a zombie counts as dead, and a reused pid is never mistaken for a sandbox's init.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::process::{pidfd_open, pidfd_send_signal, waitid};

/// Start time of a process in clock ticks since boot; none if it is gone or a zombie.
pub fn start_ticks(pid: i32) -> Option<u64> {
    if pid <= 0 {
        return None;
    }
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of a `stat` line. The command name may hold spaces and brackets, so counting starts after the last bracket.
fn parse_stat(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A process that is certainly the one that was started at that time.
pub struct Process {
    pidfd: OwnedFd,
}

impl Process {
    /// None if the process has ended, or if the pid belongs to another one by now.
    pub fn open(pid: i32, expected_start_ticks: u64) -> Option<Self> {
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        // Read after the pidfd is held: if it matches now, the pidfd is that process.
        if start_ticks(pid) == Some(expected_start_ticks) {
            return Some(Self { pidfd });
        }
        reap(&pidfd);
        None
    }

    /// SIGKILL, then waits for the end. False if it is still there when the time is up.
    pub fn kill_and_wait(&self, limit: Duration) -> bool {
        // ESRCH: it ended by itself, and the wait below sees that at once.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let ended = wait_for_exit(&self.pidfd, limit);
        reap(&self.pidfd);
        ended
    }
}

fn wait_for_exit(pidfd: &OwnedFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(Errno::INTR) => continue,
            Err(_) => return false,
        }
    }
}

/// Collects the zombie if it is our child, which it is when the service is pid 1 of its own container. Otherwise ECHILD.
fn reap(pidfd: &OwnedFd) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let _ = waitid(WaitId::PidFd(pidfd.as_fd()), options);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_read_past_a_hostile_command_name() {
        let stat = "42 (a) R 1 (b) S 1 42 42 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 987654 1000 5 18446744073709551615";
        assert_eq!(parse_stat(stat), Some(987_654));
    }

    #[test]
    fn zombies_are_dead() {
        let stat = "42 (python3) Z 1 42 42 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 987654 0 0";
        assert_eq!(parse_stat(stat), None);
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "reaping it is what is tested")]
    fn a_child_is_killed_and_reaped_but_never_one_with_another_start_time() {
        let child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let ticks = start_ticks(pid).unwrap();
        assert!(Process::open(pid, ticks + 1).is_none());
        assert!(
            Process::open(pid, ticks)
                .unwrap()
                .kill_and_wait(Duration::from_secs(5))
        );
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
