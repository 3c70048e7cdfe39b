//! 50 sessions at once against as many raw REPLs on the same cores, with as many client threads; then their memory and a restart.
//! Never opens a session while it times. Invariant: one thread, one connection, one session.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::{restart, timed};
use crate::Bench;
use crate::bare::raw_repl::RawRepl;
use crate::own::{Service, cell};
use crate::peer::Peer;
use crate::report::figures::{Contender, Unit, Work};

const SESSIONS: usize = 50;
const WINDOW: Duration = Duration::from_secs(3);
const CELL: &str = "x += 1; x";

type Caller<'a> = Box<dyn FnMut() + Send + 'a>;

pub fn measure(bench: &mut Bench) {
    let mut services = Vec::new();
    for contender in bench.owns.iter().map(|own| own.contender) {
        let settings = [("SANDBOX_MAX_TOTAL", "60"), ("SANDBOX_POOL_SIZE", "0")];
        let service = Service::start(&bench.folder, "crowd", contender, &settings);
        restart::open_sessions(&mut bench.results, &service, contender, SESSIONS);
        services.push((contender, service));
    }
    note_memory_of_peers(bench);
    bench.say("50 sessions are up on each backend; 50 raw REPLs beside them");
    measure_throughput(bench, &services);
    for (contender, service) in &mut services {
        bench.say("restart");
        let works = (Work::RestartServes, Work::RestartAnswers);
        restart::measure_restarts(bench, *contender, service, SESSIONS, works);
    }
}

/// Of the peers only ipykernel has processes of its own that can be told apart and weighed.
fn note_memory_of_peers(bench: &mut Bench) {
    let is_ipykernel = |peer: &&mut Peer| peer.contender == Contender::Ipykernel;
    let Some(peer) = bench.peers.iter_mut().find(is_ipykernel) else {
        return;
    };
    match peer.number("memory") {
        Ok(bytes) => bench.results.add(
            Work::SandboxMemory,
            Contender::Ipykernel,
            Unit::Bytes,
            &[bytes as f64],
        ),
        Err(reason) => bench
            .results
            .left_out
            .push(format!("memory of ipykernel: {reason}")),
    }
}

fn measure_throughput(bench: &mut Bench, services: &[(Contender, Service)]) {
    let mut parties: Vec<(Contender, Vec<Caller>)> = vec![(Contender::RawSocket, Vec::new())];
    for number in 0..SESSIONS {
        let mut repl = RawRepl::start(
            &bench.python,
            &bench.folder.join(format!("raw-{number}.sock")),
        );
        parties[0].1.push(Box::new(move || drop(repl.run(CELL))));
    }
    for (contender, service) in services {
        let callers = (0..SESSIONS).map(|number| {
            let mut client = service.client();
            let body = cell(&restart::session(number), CELL);
            Box::new(move || {
                let answer = client.post("/v1/execute", &body);
                assert!(answer.contains(r#""status":"ok""#), "{answer}");
            }) as Caller
        });
        parties.push((*contender, callers.collect()));
    }
    let mut rates = vec![Vec::new(); parties.len()];
    let mut times = vec![Vec::new(); parties.len()];
    for _ in 0..bench.effort.rounds(4) {
        for (index, (_, callers)) in parties.iter_mut().enumerate() {
            let (rate, of_cells) = window(callers);
            rates[index].push(rate);
            times[index].extend(of_cells);
        }
    }
    for (index, (contender, _)) in parties.iter().enumerate() {
        let results = &mut bench.results;
        results.add(Work::CrowdRate, *contender, Unit::PerSecond, &rates[index]);
        results.add_times(Work::CrowdTime, *contender, &times[index]);
    }
}

/// All callers at once for a while: cells per second, and the time of each.
fn window(callers: &mut [Caller]) -> (f64, Vec<Duration>) {
    let start = Barrier::new(callers.len() + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = callers
            .iter_mut()
            .map(|call| {
                let start = &start;
                scope.spawn(move || {
                    let mut times = Vec::new();
                    start.wait();
                    let end = Instant::now() + WINDOW;
                    while Instant::now() < end {
                        times.push(timed(&mut *call));
                    }
                    times
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        let mut times = Vec::new();
        for thread in threads {
            times.extend(thread.join().unwrap());
        }
        (times.len() as f64 / started.elapsed().as_secs_f64(), times)
    })
}
