//! `cellblock serve`: settings, logging, signals, and the app.
//! Never goes on with a bad setting. Invariant: SIGTERM and SIGINT end it gracefully, a second one at once.

use std::io::IsTerminal;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::app;
use crate::settings::{LogFormat, Settings};

pub fn run() -> ExitCode {
    let (settings, unknown) = match Settings::load() {
        Ok(loaded) => loaded,
        Err(error) => return super::fail(&error.into()),
    };
    if let Err(error) = start_logging(&settings) {
        return super::fail(&error);
    }
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

fn start_logging(settings: &Settings) -> anyhow::Result<()> {
    let level = settings.log_level.as_str();
    // A plain word is about this service; what its libraries have to say at that level would drown it.
    let plain = level.chars().all(|c| c.is_ascii_alphabetic());
    let directives = if plain {
        format!("warn,s3s=off,cellblock={level}")
    } else {
        level.to_owned()
    };
    let filter = EnvFilter::builder().parse(directives).map_err(|error| {
        anyhow::anyhow!("LOG_LEVEL={:?} is not allowed: use error, warn, info, debug, trace or a filter ({error})", settings.log_level)
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match settings.log_format {
        LogFormat::Text => lines.with_target(false).init(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .init(),
    }
    Ok(())
}
