//! The aims and whether this run met them. Pure: a verdict is computed from the figures of one run, never typed.
//! Never decides what is measured. Invariant: an aim whose figures are missing is "not measured", never met.

use super::figures::{BACKENDS, Contender, Noise, Results, Work};
use super::table::{bytes, ratio, seconds};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    pub fn is_met_by(self, value: f64) -> bool {
        match self {
            Bound::AtMost(limit) => value <= limit,
            Bound::AtLeast(limit) => value >= limit,
        }
    }
}

type Measure = fn(&Results, Contender) -> Option<f64>;

pub struct Aim {
    text: &'static str,
    bound: Bound,
    measure: Measure,
    shown: fn(f64) -> String,
    /// The backends that it speaks of.
    of: &'static [Contender],
}

const EMBEDDED: &[Contender] = &[Contender::Embedded];
const DOCKER: &[Contender] = &[Contender::Docker];

fn slower(results: &Results, peer: Contender, own: Contender) -> Option<f64> {
    Some(results.p50(Work::Warm, peer)? / results.p50(Work::Warm, own)?)
}

fn above_warm(results: &Results, work: Work, own: Contender) -> Option<f64> {
    Some(results.p50(work, own)? - results.p50(Work::Warm, own)?)
}

pub const AIMS: &[Aim] = &[
    Aim {
        text: "warm execute over HTTP at most 3× the raw socket",
        bound: Bound::AtMost(3.0),
        measure: |results, own| slower(results, Contender::RawSocket, own).map(|part| 1.0 / part),
        shown: ratio,
        of: &BACKENDS,
    },
    Aim {
        text: "at least 10× faster than ipykernel over ZMQ",
        bound: Bound::AtLeast(10.0),
        measure: |results, own| slower(results, Contender::Ipykernel, own),
        shown: ratio,
        of: &BACKENDS,
    },
    Aim {
        text: "at least 150× faster than the `docker exec` design",
        bound: Bound::AtLeast(150.0),
        measure: |results, own| slower(results, Contender::DockerExec, own),
        shown: ratio,
        of: &BACKENDS,
    },
    Aim {
        text: "at least 100× faster than AutoGen",
        bound: Bound::AtLeast(100.0),
        measure: |results, own| slower(results, Contender::Autogen, own),
        shown: ratio,
        of: &BACKENDS,
    },
    Aim {
        text: "at least 250× faster than llm-sandbox",
        bound: Bound::AtLeast(250.0),
        measure: |results, own| slower(results, Contender::LlmSandbox, own),
        shown: ratio,
        of: &BACKENDS,
    },
    Aim {
        text: "50 sessions at once: at least 60% of the raw sockets' throughput",
        bound: Bound::AtLeast(0.6),
        measure: |results, own| {
            let raw = results.p50(Work::CrowdRate, Contender::RawSocket)?;
            Some(results.p50(Work::CrowdRate, own)? / raw)
        },
        shown: percent,
        of: &BACKENDS,
    },
    Aim {
        text: "50 sessions at once: p99 at most 5× p50",
        bound: Bound::AtMost(5.0),
        measure: |results, own| {
            let figure = results.get(Work::CrowdTime, own)?;
            Some(figure.p99? / figure.p50)
        },
        shown: ratio,
        of: &BACKENDS,
    },
    Aim {
        text: "first answer from the pool, pandas preloaded, at most 5 ms above a warm one",
        bound: Bound::AtMost(0.005),
        measure: |results, own| above_warm(results, Work::PoolPandas, own),
        shown: seconds,
        of: &BACKENDS,
    },
    Aim {
        text: "cold first answer at most 12× libcontainer's own create + start",
        bound: Bound::AtMost(12.0),
        measure: |results, own| {
            let alone = results.p50(Work::Cold, Contender::Libcontainer)?;
            Some(results.p50(Work::Cold, own)? / alone)
        },
        shown: ratio,
        of: EMBEDDED,
    },
    Aim {
        text: "cold first answer at most 1.5× `docker run` until the kernel speaks",
        bound: Bound::AtMost(1.5),
        measure: |results, own| {
            let by_hand = results.p50(Work::Cold, Contender::DockerRun)?;
            Some(results.p50(Work::Cold, own)? / by_hand)
        },
        shown: ratio,
        of: DOCKER,
    },
    Aim {
        text: "a program at least 10× faster than by `docker exec`",
        bound: Bound::AtLeast(10.0),
        measure: |results, own| {
            let by_exec = results.p50(Work::Program, Contender::DockerExec)?;
            Some(by_exec / results.p50(Work::Program, own)?)
        },
        shown: ratio,
        of: &BACKENDS,
    },
    Aim {
        text: "reset at most 15 ms",
        bound: Bound::AtMost(0.015),
        measure: |results, own| results.p50(Work::Reset, own),
        shown: seconds,
        of: &BACKENDS,
    },
    Aim {
        text: "1,000 unchanged files add at most 2 ms to an execute",
        bound: Bound::AtMost(0.002),
        measure: |results, own| above_warm(results, Work::UnchangedFiles, own),
        shown: seconds,
        of: &BACKENDS,
    },
    Aim {
        text: "a 500 MB file syncs at no less than 80% of a plain multipart upload's rate",
        bound: Bound::AtLeast(0.8),
        measure: |results, own| {
            let plain = results.p50(Work::SyncLarge, Contender::PlainSdk)?;
            Some(results.p50(Work::SyncLarge, own)? / plain)
        },
        shown: percent,
        of: EMBEDDED,
    },
    Aim {
        text: "memory of the service per idle session at most 200 kB",
        bound: Bound::AtMost(200e3),
        measure: |results, own| results.p50(Work::ServiceMemory, own),
        shown: bytes,
        of: &BACKENDS,
    },
    Aim {
        text: "service with 200 sandboxes to adopt serves in under 2 s",
        bound: Bound::AtMost(2.0),
        measure: |results, own| results.p50(Work::AdoptServes, own),
        shown: seconds,
        of: EMBEDDED,
    },
    Aim {
        text: "beside a fork bomb, a memory hog, a flood and a full disk: p99 of a quiet session at most 2× its own, plus scheduling",
        bound: Bound::AtMost(2.0),
        measure: |results, own| {
            let quiet = results.get(Work::Beside(Noise::Nobody), own)?.p99?;
            Some(results.get(Work::BesideOnCore(Noise::All), own)?.p99? / quiet)
        },
        shown: ratio,
        of: &BACKENDS,
    },
];

fn percent(value: f64) -> String {
    format!("{:.0}%", value * 100.0)
}

/// One line of Markdown per aim, one column per backend.
pub fn verdicts(results: &Results) -> String {
    let mut text = String::from("| aim | embedded | docker |\n|---|---|---|\n");
    for aim in AIMS {
        let columns = BACKENDS.map(|own| verdict(aim, results, own));
        text += &format!("| {} | {} | {} |\n", aim.text, columns[0], columns[1]);
    }
    text
}

fn verdict(aim: &Aim, results: &Results, own: Contender) -> String {
    if !aim.of.contains(&own) {
        return "–".to_owned();
    }
    match (aim.measure)(results, own) {
        None => "not measured".to_owned(),
        Some(value) if aim.bound.is_met_by(value) => format!("{}: met", (aim.shown)(value)),
        Some(value) => format!("{}: **not met**", (aim.shown)(value)),
    }
}
