//! The benchmark: the same work on Cellblock and on everything a user could pick instead, interleaved, in one run. `./ctl.sh bench`.
//! Asserts that the work was done, never how long it took. Invariant: when it ends, however it ends, nothing of it is left.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark speaks to the terminal and stops where something is wrong"
)]

mod bare;
mod machine;
mod own;
mod peer;
mod report;
mod supervise;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use report::figures::{Contender, Results};

/// `cargo bench` adds this word to the arguments.
const ADDED_BY_CARGO: &str = "--bench";

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != ADDED_BY_CARGO)
        .collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    match given[..] {
        [] => supervise::run(Effort::Full),
        ["quick"] => supervise::run(Effort::Quick),
        [supervise::MEASURE, folder, effort] => {
            measure(Path::new(folder), Effort::of(effort));
            ExitCode::SUCCESS
        }
        [bare::libcontainer::SUBCOMMAND, bundle] => {
            bare::libcontainer::create_and_start(Path::new(bundle))
        }
        _ => {
            println!("usage: cargo bench --bench compare [-- quick]");
            ExitCode::FAILURE
        }
    }
}

/// A quick run shows that everything works; only a full one is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Full,
    Quick,
}

impl Effort {
    fn word(self) -> &'static str {
        match self {
            Effort::Full => "full",
            Effort::Quick => "quick",
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "quick" => Effort::Quick,
            _ => Effort::Full,
        }
    }

    /// So many rounds of a full run, fewer of a quick one.
    fn rounds(self, full: usize) -> usize {
        match self {
            Effort::Full => full,
            Effort::Quick => full.div_ceil(10),
        }
    }
}

/// Who takes part in this run, and what was measured so far.
pub struct Bench {
    pub folder: PathBuf,
    pub effort: Effort,
    pub results: Results,
    pub owns: Vec<own::Own>,
    /// The interpreter of embedded sandboxes.
    pub python: PathBuf,
    pub raw: bare::raw_repl::RawRepl,
    pub peers: Vec<peer::Peer>,
    started: Instant,
}

impl Bench {
    pub fn say(&self, what: &str) {
        println!("[{:4.0} s] {what}", self.started.elapsed().as_secs_f64());
    }

    pub fn has_docker(&self) -> bool {
        let is_docker = |own: &own::Own| own.contender == Contender::Docker;
        self.owns.iter().any(is_docker)
    }
}

fn measure(folder: &Path, effort: Effort) {
    let mut bench = assemble(folder, effort);
    for (name, measure) in work::ALL {
        bench.say(name);
        measure(&mut bench);
    }
    let machine = machine::description(&bench);
    bench.say("done");
    let text = report::document(&bench.results, &machine);
    println!("\n{text}");
    if effort == Effort::Full {
        write_down(&bench.results, &text);
    }
}

fn assemble(folder: &Path, effort: Effort) -> Bench {
    let started = Instant::now();
    let mut embedded = own::Own::start(folder, Contender::Embedded);
    let python = embedded.interpreter();
    let mut bench = Bench {
        folder: folder.to_owned(),
        effort,
        results: Results::default(),
        owns: vec![embedded],
        raw: bare::raw_repl::RawRepl::start(&python, &folder.join("raw.sock")),
        python,
        peers: Vec::new(),
        started,
    };
    bench.say("starting its peers");
    let image = bare::docker::peers_image(folder);
    if let Err(reason) = &image {
        let all = "everything that needs Docker";
        bench.results.left_out.push(format!("{all}: {reason}"));
    }
    if image.is_ok() {
        bench.owns.push(own::Own::start(folder, Contender::Docker));
    }
    for (contender, script, needs_docker) in peer::SCRIPTS {
        if *needs_docker && image.is_err() {
            continue;
        }
        match peer::Peer::start(folder, *contender, script, image.as_deref().ok()) {
            Ok(peer) => bench.peers.push(peer),
            Err(reason) => {
                let line = format!("{}: {reason}", contender.name());
                bench.results.left_out.push(line);
            }
        }
    }
    for reason in &bench.results.left_out {
        bench.say(&format!("left out: {reason}"));
    }
    bench
}

fn write_down(results: &Results, text: &str) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let path = docs.join("PERFORMANCE.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let written = report::table::replaced(&document, text).expect("the document has both markers");
    std::fs::write(&path, written).unwrap();
    if let Some(picture) = report::picture::warm_execute(results) {
        std::fs::write(docs.join("performance.svg"), picture).unwrap();
    }
    println!("written to docs/PERFORMANCE.md and docs/performance.svg");
}
