//! `cellblock serve`, also called `run`: settings, logging, signals, and the app.
//! Never goes on with a bad setting. Invariant: SIGTERM and SIGINT end it gracefully, a second one at once.
#![expect(
    clippy::print_stdout,
    reason = "this is where the program speaks to the terminal"
)]

use std::ffi::OsString;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::logging;
use crate::app;
use crate::settings::Settings;

const HELP: &str = "\
usage: cellblock run [--host ADDRESS] [--port PORT]

Runs the service, on 127.0.0.1:8000 unless told otherwise. All settings come from the environment and .env.
";

pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    if arguments
        .iter()
        .any(|word| word == "--help" || word == "-h")
    {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let given = match super::given(arguments.into_iter(), &["host", "port"]) {
        Ok(given) => given,
        Err(problem) => {
            eprintln!("cellblock: {problem}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let (settings, unknown) = match Settings::load_with(given) {
        Ok(loaded) => loaded,
        Err(error) => return super::fail(&error.into()),
    };
    let _tracing = match logging::start(&settings) {
        Ok(tracing) => tracing,
        Err(error) => return super::fail(&error),
    };
    for name in unknown {
        tracing::warn!(name, "a name in .env is not a setting of this version");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return super::fail(&error.into()),
    };
    match runtime.block_on(serve(settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::fail(&error),
    }
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    app::run(settings, async move {
        either(&mut terminate, &mut interrupt).await;
        tokio::spawn(async move {
            either(&mut terminate, &mut interrupt).await;
            std::process::exit(130);
        });
    })
    .await
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
