//! One artifact: a cell that writes 10 kB, stored and linked when the answer comes, against a plain upload of as much.
//! Never lets two cells write the same content. Invariant: every answer carries a signed link.

use super::{Sheet, timed};
use crate::Bench;
use crate::bare::plain_sdk::PlainSdk;
use crate::report::figures::{Contender, Work};

const SIZE_BYTES: usize = 10_240;

pub fn measure(bench: &mut Bench) {
    let mut sheet = Sheet::of(Work::Artifact);
    let plain = PlainSdk::of(&bench.owns[0].service);
    for round in 0..bench.effort.rounds(100) {
        let bytes = format!("{round:04}").repeat(SIZE_BYTES / 4).into_bytes();
        let time = plain.put("bench/artifact", bytes);
        let code = format!(
            "open('out.bin', 'wb').write(b'{round:04}' * {}); None",
            SIZE_BYTES / 4
        );
        let mut times = vec![(Contender::PlainSdk, time)];
        for own in &mut bench.owns {
            let time = timed(|| {
                let answer = own.client.run("artifact", &code);
                assert!(answer.contains("X-Amz-Signature"), "{answer}");
            });
            times.push((own.contender, time));
        }
        // The first one of each also makes the session and the connection.
        if round > 0 {
            for (contender, time) in times {
                sheet.note(contender, time);
            }
        }
    }
    sheet.write(bench);
    plain.delete("bench/artifact");
    for own in &mut bench.owns {
        own.client.stop("artifact");
    }
}
