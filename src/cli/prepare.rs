//! `cellblock prepare`: the Python packages of the sandboxes, installed once into a private folder.
//! Never touches the host's own packages. Invariant: without network it ends well and says what is missing.
#![expect(
    clippy::print_stdout,
    reason = "this is where the program speaks to the terminal"
)]

use std::process::ExitCode;

use crate::app::backend::REQUIREMENTS;
use crate::sandbox::embedded::{Python, packages};

pub fn run() -> ExitCode {
    let python = match Python::find() {
        Ok(python) => python,
        Err(error) => return super::fail(&error.into()),
    };
    if let Some(folder) = packages::locate(REQUIREMENTS, &python) {
        println!("Python packages are ready in {}", folder.display());
        return ExitCode::SUCCESS;
    }
    println!(
        "Installing the sandboxes' Python packages for Python {} (once)",
        python.version_text()
    );
    match packages::prepare(REQUIREMENTS, &python, |line| println!("  {line}")) {
        Ok(folder) => println!("Python packages are ready in {}", folder.display()),
        Err(error) => println!(
            "Python packages were not installed: {error}\nSandboxes will have the standard library only."
        ),
    }
    ExitCode::SUCCESS
}
