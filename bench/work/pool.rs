//! The first answer of a new session when a sandbox waits for it, with and without pandas in it.
//! Never asks before one waits. Invariant: every session is new.

use std::time::{Duration, Instant};

use super::{Sheet, timed};
use crate::Bench;
use crate::own::{Client, Service};
use crate::report::figures::{Contender, Work};

const PANDAS: &str = "import pandas; pandas.DataFrame().size";
const REFILL_LIMIT: Duration = Duration::from_secs(30);

pub fn measure(bench: &mut Bench) {
    let (mut plain, mut pandas) = (Sheet::of(Work::Pool), Sheet::of(Work::PoolPandas));
    let mut services: Vec<(Contender, Service, Service)> = Vec::new();
    for own in &bench.owns {
        let start = |name, settings: &[(&str, &str)]| {
            Service::start(&bench.folder, name, own.contender, settings)
        };
        let size = ("SANDBOX_POOL_SIZE", "1");
        let preload = ("SANDBOX_PRELOAD", "pandas");
        let pair = (start("pool", &[size]), start("pandas", &[size, preload]));
        services.push((own.contender, pair.0, pair.1));
    }
    for round in 0..bench.effort.rounds(20) {
        for (contender, without, with) in &services {
            plain.note(*contender, first_answer(without, round, "1 + 1"));
            pandas.note(*contender, first_answer(with, round, PANDAS));
        }
        if round % 4 == 0 {
            pandas.ask_peers(bench, "pandas", |contender| {
                usize::from(contender == Contender::Ipykernel)
            });
        }
    }
    plain.write(bench);
    pandas.write(bench);
}

fn first_answer(service: &Service, round: usize, code: &str) -> Duration {
    let mut client = service.client();
    wait_until_one_waits(&mut client);
    let session = format!("first{round}");
    let time = timed(|| drop(client.run(&session, code)));
    client.stop(&session);
    // The pool fills up before somebody else is timed.
    wait_until_one_waits(&mut client);
    time
}

fn wait_until_one_waits(client: &mut Client) {
    let deadline = Instant::now() + REFILL_LIMIT;
    while !client.get("/health").contains(r#""pool_available":1"#) {
        assert!(Instant::now() < deadline, "the pool stays empty");
        std::thread::sleep(Duration::from_millis(5));
    }
}
