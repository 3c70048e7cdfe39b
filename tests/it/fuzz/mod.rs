//! Fuzz targets for everything pure that reads hostile bytes. Each starts from its corpus in this folder and mutates it.
//! The search is guided by outcomes: an input that makes a target say something new joins the corpus of that run.
//! Invariant: a failing input is written to the corpus before the test fails, so that it is tried first ever after.

mod mutation;
mod targets;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mutation::Mutator;

/// Enough for a regular run; FUZZ_SECONDS=600 is for a machine that has nothing else to do.
const DEFAULT_SECONDS: u64 = 2;
const MAX_POOL: usize = 5_000;

/// Runs `check` on the corpus of `target`, then on mutations of it until the time is over. `check` panics if a property
/// does not hold, and else gives the outcome in a few words.
fn fuzz(target: &str, dictionary: &[&str], check: fn(&[u8]) -> String) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/fuzz/corpus")
        .join(target);
    let mut pool = corpus(&folder);
    assert!(!pool.is_empty(), "{target} has no corpus");
    let seed =
        variable("FUZZ_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20 | now_ns());
    let mut mutator = Mutator::new(seed, dictionary);
    let mut outcomes: HashSet<String> = pool
        .iter()
        .map(|input| attempt(&folder, check, input))
        .collect();
    let until =
        Instant::now() + Duration::from_secs(variable("FUZZ_SECONDS").unwrap_or(DEFAULT_SECONDS));
    let mut tried = 0_u64;
    while Instant::now() < until {
        let input = mutator.mutate(&pool);
        tried += 1;
        let is_new = outcomes.insert(attempt(&folder, check, &input));
        if is_new && pool.len() < MAX_POOL {
            pool.push(input);
        }
    }
    assert!(tried > 100, "{target}: only {tried} inputs were tried");
}

fn corpus(folder: &PathBuf) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// The outcome; an input that breaks a property is kept.
fn attempt(folder: &std::path::Path, check: fn(&[u8]) -> String, input: &[u8]) -> String {
    let checked = catch_unwind(AssertUnwindSafe(|| check(input)));
    checked.unwrap_or_else(|panic| {
        let name = format!("failing-{:016x}", hash_of(input));
        std::fs::write(folder.join(&name), input).unwrap();
        eprintln!("the input is kept as {}", folder.join(name).display());
        std::panic::resume_unwind(panic)
    })
}

fn hash_of(input: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    hasher.finish()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::from(since.unwrap().subsec_nanos())
}
