//! The subcommands of the binary: each reads its arguments, does its work, and ends with an exit code.
//! Speaks to people, on the terminal. Invariant: a failure says what to do about it.
#![expect(
    clippy::print_stdout,
    reason = "this is where the program speaks to the terminal"
)]

pub mod doctor;
pub mod prepare;
pub mod purge;
pub mod serve;

use std::process::ExitCode;

const HELP: &str = "\
cellblock: a persistent REPL kernel service with S3 artifact sync

usage: cellblock <command>

  serve     run the service (settings come from the environment and .env)
  prepare   install the Python packages that sandboxes have; done once
  purge     end every sandbox that this WORK_ROOT's service left behind; files stay
  doctor    say what this machine offers and what is missing
  version   print the version
";

pub fn version() -> ExitCode {
    println!("cellblock {}", env!("CARGO_PKG_VERSION"));
    ExitCode::SUCCESS
}

pub fn help() -> ExitCode {
    print!("{HELP}");
    ExitCode::SUCCESS
}

pub fn unknown(word: &str) -> ExitCode {
    eprintln!("cellblock: there is no command {word:?}\n\n{HELP}");
    ExitCode::from(2)
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("cellblock: {error:#}");
    ExitCode::FAILURE
}
