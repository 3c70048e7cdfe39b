//! One libFuzzer binary for all targets; `FUZZ_TARGET` names one. `./ctl.sh fuzz` builds it and runs them.
//! Never decides what is right: the targets do, in a module each. Invariant: every folder of the corpus is a target.
#![no_main]
#![expect(
    clippy::unwrap_used,
    reason = "what does not hold shall end the process: that is how libFuzzer learns of it"
)]

mod addresses;
mod commands;
mod frames;
mod ids;
mod manifests;
mod names;
mod paths;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

type Check = fn(&[u8]);

/// Named like the folder of its corpus.
const TARGETS: &[(&str, Check)] = &[
    ("addresses", addresses::check),
    ("commands", commands::check),
    ("frames", frames::check),
    ("ids", ids::check),
    ("manifests", manifests::check),
    ("names", names::check),
    ("paths", paths::check),
];

static CHOSEN: LazyLock<Check> = LazyLock::new(|| {
    let chosen = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|(name, _)| *name == chosen);
    let (_, check) = target.expect("FUZZ_TARGET names a folder of fuzz/corpus");
    *check
});

fuzz_target!(|input: &[u8]| CHOSEN(input));
