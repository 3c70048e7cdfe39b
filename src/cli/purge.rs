//! `cellblock purge`: ends every sandbox of a work root whose service is not running, and unmounts its workspaces.
//! Never touches files, stored or not. Invariant: afterwards no process of this deployment's sandboxes is left, and no mount.
#![expect(
    clippy::print_stdout,
    reason = "this is where the program speaks to the terminal"
)]

use std::process::ExitCode;

use crate::app;
use crate::settings::Settings;

pub fn run() -> ExitCode {
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(purge()));
    match outcome {
        Ok(count) => {
            println!("{count} sandboxes ended");
            ExitCode::SUCCESS
        }
        Err(error) => super::fail(&error),
    }
}

async fn purge() -> anyhow::Result<usize> {
    let (settings, _) = Settings::load()?;
    let work_root = app::open_work_root(&settings.work_root)?;
    let _lock = app::lock_work_root(&work_root).await?;
    app::end_left_sandboxes(&settings, &work_root).await
}
