//! The binary `cellblock`: picks the subcommand, nothing else.
//! The hidden helpers come first; the one that makes containers must run before anything is set up, because it must be single-threaded.

use std::process::ExitCode;

use cellblock::cli;
use cellblock::policy::judge;
use cellblock::sandbox::embedded;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next();
    match command.as_ref().and_then(|word| word.to_str()) {
        Some(word) if word == embedded::SUBCOMMAND => {
            ExitCode::from(u8::try_from(embedded::run_helper(arguments)).unwrap_or(1))
        }
        Some(word) if word == judge::SUBCOMMAND => ExitCode::from(u8::from(!judge::run_helper())),
        Some("serve" | "run") => cli::serve::run(arguments),
        Some("mcp") => cli::mcp::run(),
        Some("prepare") => cli::prepare::run(),
        Some("purge") => cli::purge::run(),
        Some("doctor") => cli::doctor::run(),
        Some("image-stamp") => cli::image_stamp(),
        Some("version" | "--version" | "-V") => cli::version(),
        None | Some("help" | "--help" | "-h") => cli::help(),
        Some(other) => cli::unknown(other),
    }
}
