//! Sync: how long an answer takes beyond its cell when the cell made 1,000 small files or one large one.
//! On the embedded backend only, since files do not pass through it. Invariant: all files were uploaded, and the plain upload sent as much.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Sheet;
use crate::Bench;
use crate::bare::plain_sdk::PlainSdk;
use crate::own::Client;
use crate::report::figures::{Contender, Unit, Work};

const FILES: usize = 1000;
const FILE_BYTES: usize = 10_000;
const LARGE_BYTES: usize = 500_000_000;

pub fn measure_many(bench: &mut Bench) {
    let mut sheet = Sheet::of(Work::SyncMany);
    let own = &mut bench.owns[0];
    let plain = PlainSdk::of(&own.service);
    let code = format!(
        "import os\nfor i in range({FILES}): open(f'f{{i}}', 'wb').write(os.urandom({FILE_BYTES}))"
    );
    for round in 0..bench.effort.rounds(5) {
        let session = format!("many{round}");
        sheet.note(
            own.contender,
            sync_time(&mut own.client, &session, &code, FILES),
        );
        own.client.stop(&session);
        let content = |number: usize| format!("{round:04}{number:06}").repeat(FILE_BYTES / 10);
        let contents = (0..FILES).map(|number| content(number).into_bytes());
        let time = plain.put_many(&format!("bench/many{round}"), contents.collect());
        sheet.note(Contender::PlainSdk, time);
    }
    sheet.write(bench);
}

pub fn measure_large(bench: &mut Bench) {
    let (mut synced, mut uploaded) = (Vec::new(), Vec::new());
    let file = bench.folder.join("large.bin");
    write_large(&file);
    let own = &mut bench.owns[0];
    let plain = PlainSdk::of(&own.service);
    // On disk before the sync begins, as the file of the plain upload is: neither waits for the other's dirty pages.
    let code = format!(
        "import os\nblock = os.urandom(1_000_000)\nwith open('large.bin', 'wb') as file:\n    \
         for _ in range({}): _ = file.write(block)\n    file.flush(); os.fsync(file.fileno())",
        LARGE_BYTES / 1_000_000
    );
    let rate = |time: Duration| LARGE_BYTES as f64 / time.as_secs_f64();
    for round in 0..bench.effort.rounds(4) {
        let session = format!("large{round}");
        synced.push(rate(sync_time(&mut own.client, &session, &code, 1)));
        own.client.stop(&session);
        uploaded.push(rate(plain.upload_in_parts("bench/large", &file)));
        plain.delete("bench/large");
    }
    let unit = Unit::BytesPerSecond;
    let contender = own.contender;
    let results = &mut bench.results;
    results.add(Work::SyncLarge, contender, unit, &synced);
    results.add(Work::SyncLarge, Contender::PlainSdk, unit, &uploaded);
    std::fs::remove_file(file).unwrap();
}

/// What the answer took beyond the time that the cell ran.
fn sync_time(client: &mut Client, session: &str, code: &str, files: usize) -> Duration {
    client.run(session, "1 + 1");
    let started = Instant::now();
    let answer = client.run(session, code);
    let took = started.elapsed();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["sync"]["uploaded"], files, "{}", answer["sync"]);
    let cell = Duration::from_secs_f64(answer["duration_ms"].as_f64().unwrap() / 1e3);
    took.saturating_sub(cell)
}

fn write_large(path: &std::path::Path) {
    let mut block = vec![0; 1_000_000];
    let mut random = std::fs::File::open("/dev/urandom").unwrap();
    std::io::Read::read_exact(&mut random, &mut block).unwrap();
    let mut file = std::fs::File::create(path).unwrap();
    for _ in 0..LARGE_BYTES / block.len() {
        file.write_all(&block).unwrap();
    }
    file.sync_all().unwrap();
}
