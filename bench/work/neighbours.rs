//! A quiet session beside noisy ones: its warm execute alone, and while others fork, hoard memory, flood output or fill their disk; with it
//! the raw REPL, which shows what the scheduler alone does to two processes beside the same neighbours. Never lets a neighbour outlive its turn. Invariant: neighbours are at work before the first time is taken, and until the last.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::timed;
use crate::Bench;
use crate::bare::raw_repl::RawRepl;
use crate::bare::run_queue::RunQueue;
use crate::own::{Client, Service};
use crate::report::figures::{Contender, Noise, Work};

const WINDOW: Duration = Duration::from_secs(8);
/// A caller has something else to do between two calls; so has the scheduler.
const PAUSE: Duration = Duration::from_millis(2);
const WARM_UP: usize = 200;
const CELL: &str = "x += 1; x";

const FORKS: &str = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
const MEMORY: &str = "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))";
const OUTPUT: &str = "while True: print('x' * 1000)";
const DISK: &str = "import os\nblock = os.urandom(1 << 20)\nwhile True:\n    try:\n        with open('big', 'ab', buffering=0) as file:\n            while True: file.write(block)\n    except OSError: os.remove('big')";

const SCENES: &[(Noise, &[&str])] = &[
    (Noise::Nobody, &[]),
    (Noise::Forks, &[FORKS]),
    (Noise::Memory, &[MEMORY]),
    (Noise::Output, &[OUTPUT]),
    (Noise::Disk, &[DISK]),
    (Noise::All, &[FORKS, MEMORY, OUTPUT, DISK]),
];

pub fn measure(bench: &mut Bench) {
    let contenders: Vec<_> = bench.owns.iter().map(|own| own.contender).collect();
    for contender in contenders {
        // What is left of a filled disk is stored after each cell: little, so that a cell ends.
        let settings = [("SANDBOX_POOL_SIZE", "0"), ("MAX_WORKSPACE_SIZE_MB", "100")];
        let service = Service::start(&bench.folder, "neighbours", contender, &settings);
        let mut quiet = service.client();
        quiet.run("quiet", "x = 0");
        (0..WARM_UP).for_each(|_| drop(quiet.run("quiet", CELL)));
        let container = container_of(&mut quiet, "quiet");
        let queue = RunQueue::of(service.pid(), &container);
        for (noise, codes) in SCENES {
            let raw = &mut bench.raw;
            let times = beside(&service, &mut quiet, codes, |quiet| {
                quiet_times(quiet, raw, &queue)
            });
            let results = &mut bench.results;
            results.add_times(Work::Beside(*noise), contender, &times.whole);
            results.add_times(Work::BesideOnCore(*noise), contender, &times.on_core);
            if contender == Contender::Embedded {
                results.add_times(Work::Beside(*noise), Contender::RawSocket, &times.raw);
            }
        }
    }
}

fn container_of(client: &mut Client, session: &str) -> String {
    let status = client.get(&format!(
        "/v1/sandbox/status?user_id=u&session_id={session}"
    ));
    let status: Value = serde_json::from_str(&status).unwrap();
    status["container_id"].as_str().unwrap().to_owned()
}

/// What the quiet ones saw while these cells ran in sessions of their own.
fn beside(
    service: &Service,
    quiet: &mut Client,
    codes: &[&str],
    look: impl FnOnce(&mut Client) -> Times,
) -> Times {
    let (stop, at_work) = (AtomicBool::new(false), AtomicUsize::new(0));
    let times = std::thread::scope(|scope| {
        for (number, code) in codes.iter().enumerate() {
            let (mut client, stop, at_work) = (service.client(), &stop, &at_work);
            scope.spawn(move || be_loud(&mut client, &name(number), code, stop, at_work));
        }
        while at_work.load(Ordering::Acquire) < codes.len() {
            std::thread::sleep(PAUSE);
        }
        let times = look(quiet);
        stop.store(true, Ordering::Release);
        times
    });
    (0..codes.len()).for_each(|number| quiet.stop(&name(number)));
    times
}

#[derive(Default)]
struct Times {
    whole: Vec<Duration>,
    /// Less what it waited for a core.
    on_core: Vec<Duration>,
    raw: Vec<Duration>,
}

/// Warm executes and cells of the raw REPL, in turns.
fn quiet_times(quiet: &mut Client, raw: &mut RawRepl, queue: &RunQueue) -> Times {
    let started = Instant::now();
    let mut times = Times::default();
    while started.elapsed() < WINDOW {
        let before = queue.read();
        let whole = timed(|| drop(quiet.run("quiet", CELL)));
        let waited = before.until(&queue.read());
        times.whole.push(whole);
        times.on_core.push(whole.saturating_sub(waited));
        std::thread::sleep(PAUSE);
        times.raw.push(timed(|| drop(raw.run(CELL))));
        std::thread::sleep(PAUSE);
    }
    times
}

fn name(number: usize) -> String {
    format!("loud-{number}")
}

/// Runs the cell again whenever it has ended: by its time limit, by the OOM killer or otherwise.
fn be_loud(
    client: &mut Client,
    session: &str,
    code: &str,
    stop: &AtomicBool,
    at_work: &AtomicUsize,
) {
    client.run(session, "1");
    at_work.fetch_add(1, Ordering::AcqRel);
    let body = json!({"user_id": "u", "session_id": session, "code": code, "timeout_seconds": 2});
    while !stop.load(Ordering::Acquire) {
        client.post("/v1/execute", &body.to_string());
    }
}
