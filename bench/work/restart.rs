//! Many live sandboxes: what they and the service weigh while idle, and how soon a restarted service has them again.
//! Never counts the making of a sandbox. Invariant: after a restart every session answers with the variable it had.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Bench;
use crate::bare::memory;
use crate::own::Service;
use crate::report::figures::{Contender, Results, Unit, Work};

const ADOPTED: usize = 200;
const CALLERS: usize = 4;
/// Sessions that come and go before the first look at the service's memory: threads and buffers are there then.
const REHEARSAL: usize = 8;

pub fn session(number: usize) -> String {
    format!("s{number}")
}

pub fn measure_adoption(bench: &mut Bench) {
    let count = match bench.effort {
        crate::Effort::Full => ADOPTED,
        crate::Effort::Quick => 20,
    };
    let settings = [("SANDBOX_MAX_TOTAL", "210"), ("SANDBOX_POOL_SIZE", "0")];
    let contender = Contender::Embedded;
    let mut service = Service::start(&bench.folder, "adopt", contender, &settings);
    open_sessions(&mut bench.results, &service, contender, count);
    bench.say("the sandboxes live; restart");
    let works = (Work::AdoptServes, Work::AdoptAnswers);
    measure_restarts(bench, contender, &mut service, count, works);
}

/// Opens that many sessions with a variable each, and notes what they weigh.
pub fn open_sessions(results: &mut Results, service: &Service, contender: Contender, count: usize) {
    for_each_session(service, REHEARSAL, CALLERS, |client, number| {
        client.run(&session(number), "1 + 1");
        client.stop(&session(number));
    });
    let before = memory::pss_of_process(service.pid());
    for_each_session(service, count, CALLERS, |client, number| {
        client.run(&session(number), &format!("x = 0; y = {number}"));
    });
    let grown = memory::pss_of_process(service.pid()).saturating_sub(before);
    let per_session = grown as f64 / count as f64;
    results.add(Work::ServiceMemory, contender, Unit::Bytes, &[per_session]);
    let sandboxes = service.client().get("/v1/sandboxes");
    let sandboxes: Value = serde_json::from_str(&sandboxes).unwrap();
    let sandboxes = sandboxes["sandboxes"].as_array().unwrap().iter();
    let ids: Vec<String> = sandboxes
        .map(|sandbox| sandbox["container_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), count);
    let weights = memory::pss_of_containers(&ids);
    let mean = weights.iter().sum::<u64>() as f64 / count as f64;
    results.add(Work::SandboxMemory, contender, Unit::Bytes, &[mean]);
}

/// Restarts the service a few times: until it serves, and until every session has answered.
pub fn measure_restarts(
    bench: &mut Bench,
    contender: Contender,
    service: &mut Service,
    count: usize,
    (serves, answers): (Work, Work),
) {
    let (mut until_serving, mut until_answered): (Vec<Duration>, Vec<Duration>) =
        (Vec::new(), Vec::new());
    for _ in 0..bench.effort.rounds(3) {
        service.terminate();
        let started = Instant::now();
        until_serving.push(service.launch());
        for_each_session(service, count, CALLERS, |client, number| {
            let answer = client.run(&session(number), "y");
            let expected = format!(r#""output":"{number}\n""#);
            assert!(answer.contains(&expected), "{answer}");
        });
        until_answered.push(started.elapsed());
    }
    bench.results.add_times(serves, contender, &until_serving);
    bench.results.add_times(answers, contender, &until_answered);
}

/// Shares the sessions out among a few connections.
fn for_each_session(
    service: &Service,
    count: usize,
    callers: usize,
    work: impl Fn(&mut crate::own::Client, usize) + Sync,
) {
    std::thread::scope(|scope| {
        for first in 0..callers {
            let work = &work;
            scope.spawn(move || {
                let mut client = service.client();
                for number in (first..count).step_by(callers) {
                    work(&mut client, number);
                }
            });
        }
    });
}
