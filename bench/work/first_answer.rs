//! The first answer of a new session with nothing prepared, and what its container alone takes.
//! Never counts the removal. Invariant: every session is new.

use super::{Sheet, timed};
use crate::Bench;
use crate::bare::{docker, libcontainer};
use crate::report::figures::{Contender, Work};

pub fn measure(bench: &mut Bench) {
    let mut sheet = Sheet::of(Work::Cold);
    let bundle = bench.folder.join("libcontainer");
    let embedded = &bench.owns[0].service;
    libcontainer::prepare_bundle(&embedded.work_root, &bundle);
    for round in 0..bench.effort.rounds(20) {
        let session = format!("first{round}");
        sheet.note(Contender::Libcontainer, libcontainer::time_of_one(&bundle));
        for own in &mut bench.owns {
            let time = timed(|| drop(own.client.run(&session, "1 + 1")));
            own.client.stop(&session);
            sheet.note(own.contender, time);
        }
        if bench.has_docker() {
            let time = docker::run_until_the_kernel_speaks(&bench.folder);
            sheet.note(Contender::DockerRun, time);
        }
        if round % 2 == 0 {
            sheet.ask_peers(bench, "first", |_| 1);
        }
    }
    sheet.write(bench);
}
