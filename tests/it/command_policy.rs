//! The command policy as the service asks it: in a process of its own, with lines that are made to break it.
//! Bash itself is the judge of what is let through.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cellblock::policy::CommandPolicy;
use cellblock::policy::judge::Judge;

use crate::support::BINARY;

const ALLOWED: &str =
    "jq awk grep sed sort uniq head tail wc cut tr cat echo date find ls python3 python";
const FORBIDDEN: &str = "rm mv dd curl wget ssh sudo";

/// With the lists that a service has by default.
pub fn judge() -> Judge {
    let words = |list: &str| list.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let policy = CommandPolicy::new(words(ALLOWED), words(FORBIDDEN));
    Judge::new(policy, BINARY.into())
}

const TOKENS: &[&str] = &[
    "rm",
    "rm",
    "rm",
    "ls",
    "echo",
    "jq",
    "x",
    "a",
    "=",
    "'",
    "\"",
    "\\",
    "`",
    "$(",
    "(",
    ")",
    "((",
    "))",
    "{",
    "}",
    "[",
    "]",
    "[[",
    "]]",
    ";",
    ";;",
    "&",
    "&&",
    "|",
    "||",
    "!",
    "<",
    ">",
    "<<",
    "<<<",
    "<(",
    "$",
    "${",
    ":-",
    "$((",
    "\n",
    " ",
    " ",
    " ",
    " ",
    "if",
    "then",
    "else",
    "fi",
    "for",
    "in",
    "do",
    "done",
    "while",
    "case",
    "esac",
    "f()",
    "f",
    "E",
    "#",
    "*",
    ",",
    "..",
    "~",
    "$'",
    "test",
    "let",
    "1",
    "find",
    ".",
    "-exec",
    "awk",
    "BEGIN{system(\"rm\")}",
    "sed",
    "1e rm",
    "eval",
    "time",
    "coproc",
    "function",
    "@P",
    "@",
    "%",
    "+",
];

fn program(folder: &Path, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A line out of a number, the same each time.
fn line(mut seed: u64) -> String {
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize
    };
    let length = 2 + next() % 12;
    (0..length).map(|_| TOKENS[next() % TOKENS.len()]).collect()
}

#[test]
fn what_is_let_through_starts_nothing_forbidden() {
    let home = tempfile::tempdir().unwrap();
    let (bin, work) = (home.path().join("bin"), home.path().join("work"));
    std::fs::create_dir(&bin).unwrap();
    std::fs::create_dir(&work).unwrap();
    let mark = home.path().join("started");
    for name in FORBIDDEN.split(' ') {
        program(&bin, name, &format!("echo {name} >> {}", mark.display()));
    }
    // `find` and its like are the real ones, so that what they start is really started.
    for name in ["find", "awk", "sed", "sort", "cat", "ls"] {
        let real = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
        if let Some(real) = real.iter().find(|path| path.exists()) {
            std::os::unix::fs::symlink(real, bin.join(name)).unwrap();
        }
    }
    let rounds: u64 = std::env::var("CELLBLOCK_POLICY_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(30_000);
    let judge = judge();
    let mut let_through = 0;
    for seed in 1..=rounds {
        let line = line(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        if !line.contains("rm") || judge.check(&line).is_err() {
            continue;
        }
        let_through += 1;
        let _ended = Command::new("/usr/bin/timeout")
            .args(["1", "/bin/bash", "-c", &line])
            .env("PATH", &bin)
            .current_dir(&work)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(
            !mark.exists(),
            "{line:?} started {:?}",
            std::fs::read_to_string(&mark)
        );
    }
    assert!(
        let_through > 50,
        "only {let_through} lines were worth a try"
    );
}

#[test]
fn lines_that_break_the_parser_are_refused_in_time_and_the_next_one_is_judged() {
    let judge = judge();
    for (opening, times) in [
        // Deep enough to end any stack.
        ("$(", 60_000),
        ("${x#\\}", 20_000),
        ("if ", 40_000),
        ("[[ ! ", 25_000),
        ("( ", 60_000),
        // Short, and looked at once more for each bracket.
        ("(", 34),
        ("((;", 34),
        ("x[\\)", 34),
        ("x[')'", 34),
    ] {
        let began = Instant::now();
        assert!(judge.check(&opening.repeat(times)).is_err(), "{opening}");
        assert!(began.elapsed() < Duration::from_secs(30), "{opening}");
        assert_eq!(judge.check("ls | head"), Ok(()), "after {opening}");
    }
}

#[test]
fn many_lines_at_once_get_their_own_verdicts_even_if_some_break_the_parser() {
    let judge = judge();
    std::thread::scope(|scope| {
        for number in 0..24 {
            let judge = &judge;
            scope.spawn(move || match number % 3 {
                0 => assert!(judge.check(&"(".repeat(34)).is_err()),
                1 => assert_eq!(judge.check("ls | head"), Ok(())),
                _ => {
                    let refused = judge.check("ls; rm x").unwrap_err();
                    assert_eq!(refused.word.as_deref(), Some("rm"));
                }
            });
        }
    });
}

#[test]
fn a_program_that_is_not_the_helper_lets_nothing_through() {
    let words = || ["ls".to_owned()];
    for program in ["/nonexistent", "/bin/true", "/bin/cat"] {
        let judge = Judge::new(CommandPolicy::new(words(), []), program.into());
        assert!(judge.check("ls").is_err(), "{program}");
    }
}
