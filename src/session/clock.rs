//! How long ago something was, for expiry. The wall clock is only for showing.
//! Never measures with a clock that somebody can set. Invariant: a jump of the wall clock neither ends a session early nor
//! keeps it for ever; only a restart of the host, of which no other clock tells, is measured by it.

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A moment on the host's own clock: since when it runs, and which run that is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMoment {
    boot_id: String,
    uptime_ms: u64,
}

impl HostMoment {
    /// None on a host that does not tell.
    pub fn now() -> Option<Self> {
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let seconds: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Self {
            boot_id: boot_id.trim().to_owned(),
            uptime_ms: (seconds * 1000.0) as u64,
        })
    }
}

/// The age of what was made at `created_ms` of the wall clock and at `born` of the host's.
pub fn age(
    born: Option<&HostMoment>,
    created_ms: u64,
    now: Option<&HostMoment>,
    now_ms: u64,
) -> Duration {
    match (born, now) {
        (Some(born), Some(now)) if born.boot_id == now.boot_id => {
            Duration::from_millis(now.uptime_ms.saturating_sub(born.uptime_ms))
        }
        _ => Duration::from_millis(now_ms.saturating_sub(created_ms)),
    }
}

/// A moment of this process, possibly before its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SteadyMs(pub i64);

impl SteadyMs {
    pub fn now() -> Self {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Self(i64::try_from(START.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    pub fn before_now(ago: Duration) -> Self {
        Self(Self::now().0 - i64::try_from(ago.as_millis()).unwrap_or(i64::MAX))
    }

    pub fn elapsed(self) -> Duration {
        Duration::from_millis(u64::try_from(Self::now().0 - self.0).unwrap_or(0))
    }

    /// What the wall clock says of that moment, as it goes now.
    pub fn to_wall_ms(self) -> u64 {
        now_ms().saturating_sub(self.elapsed().as_millis() as u64)
    }
}

/// The wall clock: for showing, for links, which S3 judges by it, and for notes that outlive the host's run.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot_id: &str, uptime_ms: u64) -> Option<HostMoment> {
        let boot_id = boot_id.to_owned();
        Some(HostMoment { boot_id, uptime_ms })
    }

    #[test]
    fn a_jump_of_the_wall_clock_changes_no_age_in_either_direction() {
        let (born, now) = (moment("a", 1000), moment("a", 5000));
        for wall_now in [0, 1_000_000, 4_000_000_000_000] {
            let found = age(born.as_ref(), 1_000_000, now.as_ref(), wall_now);
            assert_eq!(found, Duration::from_secs(4));
        }
    }

    #[test]
    fn across_a_restart_of_the_host_the_wall_clock_is_all_there_is() {
        let (born, now) = (moment("a", 900_000), moment("b", 5000));
        let found = age(born.as_ref(), 1_000_000, now.as_ref(), 1_007_000);
        assert_eq!(found, Duration::from_secs(7));
        let set_back = age(born.as_ref(), 1_000_000, now.as_ref(), 0);
        assert_eq!(set_back, Duration::ZERO);
        assert_eq!(age(None, 1000, now.as_ref(), 3000), Duration::from_secs(2));
    }

    #[test]
    fn a_moment_before_the_start_of_the_process_is_that_long_ago() {
        let found = SteadyMs::before_now(Duration::from_secs(3600)).elapsed();
        assert!(found >= Duration::from_secs(3600) && found < Duration::from_secs(3660));
    }
}
