//! Cells in a session that is up: the warm execute, the same beside 1,000 unchanged files, and 100 kB of output.
//! Never makes a session while it times. Invariant: one round asks everybody.

use super::{Sheet, timed};
use crate::Bench;
use crate::report::figures::{Contender, Work};

const CELL: &str = "x += 1; x";
const PRINT: &str = "print('x' * 99_999)";
const FILES: &str = "x = 0\nfor i in range(1000): open(f'f{i}', 'w').write('x')";

/// Slow contenders are asked less often, so that a round stays short.
fn times_per_round(contender: Contender) -> usize {
    match contender {
        Contender::Ipykernel | Contender::KernelGateway => 10,
        _ => 3,
    }
}

pub fn measure_warm(bench: &mut Bench) {
    for own in &mut bench.owns {
        own.client.run("files", FILES);
        own.client.run("files", CELL);
    }
    let (mut warm, mut files) = (Sheet::of(Work::Warm), Sheet::of(Work::UnchangedFiles));
    for _ in 0..bench.effort.rounds(20) {
        for _ in 0..100 {
            let time = timed(|| drop(bench.raw.run(CELL)));
            warm.note(Contender::RawSocket, time);
        }
        for own in &mut bench.owns {
            for _ in 0..100 {
                let time = timed(|| drop(own.client.run("warm", CELL)));
                warm.note(own.contender, time);
            }
            for _ in 0..20 {
                let time = timed(|| drop(own.client.run("files", CELL)));
                files.note(own.contender, time);
            }
        }
        warm.ask_peers(bench, "warm", times_per_round);
    }
    warm.write(bench);
    files.write(bench);
    for own in &mut bench.owns {
        own.client.stop("files");
    }
}

pub fn measure_print(bench: &mut Bench) {
    let mut sheet = Sheet::of(Work::Print);
    for _ in 0..bench.effort.rounds(10) {
        for _ in 0..20 {
            let time = timed(|| assert!(bench.raw.run(PRINT).len() > 100_000));
            sheet.note(Contender::RawSocket, time);
        }
        for own in &mut bench.owns {
            for _ in 0..20 {
                let time = timed(|| assert!(own.client.run("warm", PRINT).len() > 100_000));
                sheet.note(own.contender, time);
            }
        }
        sheet.ask_peers(bench, "print", |contender| {
            times_per_round(contender).min(5)
        });
    }
    sheet.write(bench);
}
