//! Reset: the session gets a fresh interpreter.
//! Never counts the cell that makes the variable again. Invariant: the variable is gone after every reset.

use super::{Sheet, timed};
use crate::Bench;
use crate::report::figures::{Contender, Work};

pub fn measure(bench: &mut Bench) {
    let mut sheet = Sheet::of(Work::Reset);
    for round in 0..bench.effort.rounds(30) {
        for own in &mut bench.owns {
            own.client.run("warm", "x = 0");
            let body = r#"{"user_id":"u","session_id":"warm"}"#;
            let time = timed(|| drop(own.client.post("/v1/sandbox/reset", body)));
            own.client.run("warm", "assert 'x' not in globals()");
            own.client.run("warm", "x = 0");
            sheet.note(own.contender, time);
        }
        // A restart of the kernel takes a second or so.
        if round % 5 == 0 {
            sheet.ask_peers(bench, "reset", |contender| {
                usize::from(contender == Contender::Ipykernel)
            });
        }
    }
    sheet.write(bench);
}
