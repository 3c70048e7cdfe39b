//! The subcommands of the binary: each reads its arguments, does its work, and ends with an exit code.
//! Speaks to people, on the terminal. Invariant: a failure says what to do about it.
#![expect(
    clippy::print_stdout,
    reason = "this is where the program speaks to the terminal"
)]

pub mod doctor;
pub mod logging;
pub mod mcp;
pub mod prepare;
pub mod purge;
pub mod serve;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;

const HELP: &str = "\
cellblock: a persistent REPL kernel service with S3 artifact sync

usage: cellblock <command>

  serve, run    run the service; --host and --port win over the environment and .env, where settings come from
  mcp           serve one MCP client on standard input and output, with no server running
  prepare       install the Python packages of embedded sandboxes; done once
  purge         end every sandbox that this WORK_ROOT's service left behind; files stay
  doctor        say what this machine offers and what is missing
  image-stamp   print what a sandbox image of this version is labelled with
  version       print the version
";

/// Settings that may be given on the command line, as `--name value` or `--name=value`.
fn given(
    arguments: impl Iterator<Item = OsString>,
    names: &[&str],
) -> Result<BTreeMap<String, String>, String> {
    let mut given = BTreeMap::new();
    let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    while let Some(argument) = arguments.next() {
        let (option, value) = match argument.split_once('=') {
            Some((option, value)) => (option, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let name = option.strip_prefix("--").unwrap_or_default();
        if !names.contains(&name) {
            return Err(format!("there is no option {argument:?}"));
        }
        let value = value.or_else(|| arguments.next());
        let value = value.filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| format!("--{name} needs a value"))?;
        given.insert(name.to_uppercase(), value);
    }
    Ok(given)
}

pub fn version() -> ExitCode {
    println!("cellblock {}", env!("CARGO_PKG_VERSION"));
    ExitCode::SUCCESS
}

pub fn image_stamp() -> ExitCode {
    println!("{}", crate::app::backend::image_stamp());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<BTreeMap<String, String>, String> {
        given(arguments.iter().map(OsString::from), &["host", "port"])
    }

    #[test]
    fn options_name_settings_in_both_spellings() {
        let both = read(&["--host", "::1", "--port=8001"]).unwrap();
        assert_eq!(
            (both["HOST"].as_str(), both["PORT"].as_str()),
            ("::1", "8001")
        );
        assert!(read(&[]).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_option_or_lacks_its_value_is_refused_by_name() {
        for (arguments, part) in [
            (&["--prot", "1"][..], "--prot"),
            (&["8001"], "8001"),
            (&["--port"], "--port needs"),
            (&["--port="], "--port needs"),
        ] {
            let refused = read(arguments).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
