//! How long threads were ready to run and had no core: the scheduler's own count, from `/proc/*/task/*/schedstat`.
//! Never knows which of the service's threads served a request, only how many can have. Invariant: no more threads of a kind are
//! counted than a request passes through.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Everybody who takes part in a request: the caller's thread, the sandbox's processes, the service's threads, and those of the
/// operating system that deliver packets when there is much else to do.
pub struct RunQueue([Vec<Thread>; 4]);

/// How many of each kind a request passes through: the service is woken twice, for the request and for the worker's answer, and
/// two packets are delivered.
const TAKE_PART: [usize; 4] = [1, 1, 2, 2];

/// What each of them had waited when this was read.
pub struct Waits([Vec<u64>; 4]);

impl RunQueue {
    /// For requests of the thread that asks for this.
    pub fn of(service: u32, container_id: &str) -> Self {
        let in_container = |pid: &u32| {
            let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            cgroup.contains(container_id)
        };
        let delivers_packets = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.starts_with("ksoftirqd/")
        };
        let threads_of = |wanted: &dyn Fn(&u32) -> bool| {
            let pids = numbers_in("/proc").into_iter().filter(wanted);
            pids.flat_map(Thread::all_of).collect()
        };
        let caller = File::open("/proc/thread-self/schedstat").map(Thread);
        Self([
            vec![caller.expect("the kernel counts waits (CONFIG_SCHED_INFO)")],
            threads_of(&in_container),
            Thread::all_of(service),
            threads_of(&delivers_packets),
        ])
    }

    pub fn read(&self) -> Waits {
        let all = |threads: &Vec<Thread>| threads.iter().map(Thread::waited_ns).collect();
        Waits(self.0.each_ref().map(all))
    }
}

impl Waits {
    /// What a request between the two looks waited for a core, at most: of each kind those that waited longest.
    pub fn until(&self, later: &Waits) -> Duration {
        let kinds = self.0.iter().zip(&later.0).zip(TAKE_PART);
        let waited = kinds.map(|((before, after), count)| {
            let waits = after.iter().zip(before);
            let mut waits: Vec<u64> = waits
                .map(|(after, before)| after.saturating_sub(*before))
                .collect();
            waits.sort_unstable_by(|a, b| b.cmp(a));
            waits.into_iter().take(count).sum::<u64>()
        });
        Duration::from_nanos(waited.sum())
    }
}

struct Thread(File);

impl Thread {
    fn all_of(pid: u32) -> Vec<Self> {
        let folder = format!("/proc/{pid}/task");
        let files = numbers_in(&folder)
            .into_iter()
            .filter_map(|tid| File::open(format!("{folder}/{tid}/schedstat")).ok());
        files.map(Self).collect()
    }

    /// The second of three numbers; that of a thread that has ended stays what it was to us: nothing.
    fn waited_ns(&self) -> u64 {
        let mut text = [0; 96];
        let length = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..length]);
        let waited = text
            .split(' ')
            .nth(1)
            .and_then(|number| number.parse().ok());
        waited.unwrap_or(0)
    }
}

fn numbers_in(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
