//! `cellblock mcp`: an MCP server on standard input and output for a desktop agent, with a core of its own.
//! Never writes anything but MCP to standard output. Invariant: it ends when its client does; sandboxes stay for the next start.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::app;
use crate::settings::Settings;

const MAX_AGENTS: usize = 16;

pub fn run() -> ExitCode {
    let (mut settings, _) = match Settings::load() {
        Ok(loaded) => loaded,
        Err(error) => return super::fail(&error.into()),
    };
    // Beside a service on this host, or other agents' servers, nothing may collide.
    let work_roots = match std::env::var_os("WORK_ROOT") {
        Some(_) => vec![settings.work_root.clone()],
        None => own_work_roots(),
    };
    if std::env::var_os("EMBEDDED_S3_ADDR").is_none() {
        settings.s3.embedded_addr.set_port(0);
    }
    let _tracing = match super::logging::start(&settings) {
        Ok(tracing) => tracing,
        Err(error) => return super::fail(&error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return super::fail(&error.into()),
    };
    let outcome = runtime.block_on(app::run_mcp(settings, &work_roots));
    // A read of standard input may still wait in a thread that nobody can end.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::fail(&error),
    }
}

/// One for each agent that runs at the same time.
fn own_work_roots() -> Vec<PathBuf> {
    let first = app::own_data_folder().join("mcp");
    let others = (2..=MAX_AGENTS).map(|number| first.with_file_name(format!("mcp-{number}")));
    std::iter::once(first.clone()).chain(others).collect()
}
