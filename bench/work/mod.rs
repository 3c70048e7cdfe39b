//! The pieces of work, one file each. Every one asks its contenders in turns, so that a slow moment of the machine hits all of them.
//! Never asserts a time. Invariant: what is timed is checked to have been done.

mod artifact;
mod cells;
mod crowd;
mod first_answer;
mod neighbours;
mod pool;
mod program;
mod reset;
mod restart;
mod sync;

use std::time::{Duration, Instant};

use crate::Bench;
use crate::report::figures::{Contender, Work};

type Measure = fn(&mut Bench);

/// In the order in which they are done: what needs the machine to itself comes before what fills it.
pub const ALL: &[(&str, Measure)] = &[
    ("warm execute, 1,000 unchanged files", cells::measure_warm),
    ("print of 100 kB", cells::measure_print),
    ("one artifact", artifact::measure),
    ("a bash true", program::measure),
    ("reset", reset::measure),
    ("first answer, cold", first_answer::measure),
    ("first answer from the pool", pool::measure),
    ("noisy neighbours", neighbours::measure),
    ("sync of 1,000 files", sync::measure_many),
    ("sync of 500 MB", sync::measure_large),
    ("50 sessions at once, their memory, restart", crowd::measure),
    ("adoption of 200 sandboxes", restart::measure_adoption),
];

pub fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

/// The times of one work while its rounds go on.
struct Sheet {
    work: Work,
    times: Vec<(Contender, Vec<Duration>)>,
    failed: Vec<Contender>,
}

impl Sheet {
    fn of(work: Work) -> Self {
        Self {
            work,
            times: Vec::new(),
            failed: Vec::new(),
        }
    }

    fn note(&mut self, contender: Contender, time: Duration) {
        match self.times.iter_mut().find(|(who, _)| *who == contender) {
            Some((_, times)) => times.push(time),
            None => self.times.push((contender, vec![time])),
        }
    }

    /// Asks each peer as often as `times` says. One that fails is not asked again.
    fn ask_peers(&mut self, bench: &mut Bench, word: &str, times: fn(Contender) -> usize) {
        for peer in &mut bench.peers {
            for _ in 0..times(peer.contender) {
                if self.failed.contains(&peer.contender) {
                    break;
                }
                match peer.time(word) {
                    Ok(time) => self.note(peer.contender, time),
                    Err(reason) => {
                        let line = format!("{} at \"{word}\": {reason}", peer.contender.name());
                        println!("left out: {line}");
                        bench.results.left_out.push(line);
                        self.failed.push(peer.contender);
                    }
                }
            }
        }
    }

    fn write(self, bench: &mut Bench) {
        for (contender, times) in &self.times {
            bench.results.add_times(self.work, *contender, times);
        }
    }
}
