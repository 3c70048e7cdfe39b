//! A core inside somebody else's process: no address, no key, and sandboxes that end with it.
//! Never serves anybody but its owner. What a crash left in a private work root is cleared by the next core of this user.
//! Invariant: a private work root is in use exactly as long as its lock is held.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;

use super::{Parts, assemble, end_left_sandboxes, lock_work_root, open_work_root, own_data_folder};
use crate::api;
use crate::settings::Settings;
use crate::volume::unmount_workspaces;
use crate::workspace::remove_tree;

/// How long executions whose sandbox has ended may take to store what there is.
const IDLE_PATIENCE: Duration = Duration::from_secs(5);

pub struct LocalCore {
    parts: Parts,
    work_root: PathBuf,
    lock: File,
    is_private: bool,
}

impl LocalCore {
    /// With no work root of the caller's choice it gets a private one, which is gone when the core has ended.
    pub async fn start(mut settings: Settings, work_root: Option<PathBuf>) -> anyhow::Result<Self> {
        let is_private = work_root.is_none();
        let (work_root, lock) = match work_root {
            Some(path) => {
                let path = open_work_root(&path)?;
                let lock = lock_work_root(&path).await?;
                (path, lock)
            }
            None => {
                // Each private work root is a deployment of its own, whatever the environment says.
                settings.deployment_id = None;
                private_work_root(&settings).await?
            }
        };
        // Callers in this process need no key, and there is no other way in.
        settings.api_key = None;
        match assemble(settings, &work_root).await {
            Ok(parts) => Ok(Self {
                parts,
                work_root,
                lock,
                is_private,
            }),
            Err(error) => {
                if is_private {
                    let _left_to_the_next_start = remove_tree(&work_root);
                }
                Err(error)
            }
        }
    }

    /// Every route of every dialect, to be called in-process; requests say `Host: localhost`.
    pub fn router(&self) -> Router {
        api::router(self.parts.state.clone())
    }

    pub fn work_root(&self) -> &Path {
        &self.work_root
    }

    /// For a fork's child to close: as long as it has it open, the work root looks used.
    pub fn lock_fd(&self) -> RawFd {
        self.lock.as_raw_fd()
    }

    /// Interrupts what runs and ends every sandbox. Files stay, unless the work root was a private one.
    pub async fn end(self) {
        let core = self.parts.state.core.clone();
        core.shut_down(Duration::ZERO).await;
        core.end_all_sandboxes().await;
        core.wait_until_idle(IDLE_PATIENCE).await;
        drop(self.parts);
        let cleared = unmount_workspaces(&self.work_root).and_then(|_| match self.is_private {
            true => remove_tree(&self.work_root).map(drop),
            false => Ok(()),
        });
        if let Err(error) = cleared {
            tracing::warn!(%error, "a work root is left to the next start");
        }
        drop(self.lock);
    }
}

/// A new work root, locked. Those that have lost their owner are cleared in the background.
async fn private_work_root(settings: &Settings) -> anyhow::Result<(PathBuf, File)> {
    let home = open_work_root(&own_data_folder().join("local"))?;
    // Held while one is made, so that nobody takes it for a dead one before it is locked.
    let _nobody_else_looks = lock_work_root(&home).await?;
    let dead = dead_work_roots(&home);
    let path = open_work_root(&home.join(uuid::Uuid::new_v4().simple().to_string()))?;
    let lock = lock_work_root(&path).await?;
    tokio::spawn(clear(settings.clone(), dead));
    Ok((path, lock))
}

fn dead_work_roots(home: &Path) -> Vec<(PathBuf, File)> {
    let entries = std::fs::read_dir(home).into_iter().flatten().flatten();
    let folders = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir());
    let free = folders.filter_map(|path| {
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("lock"))
            .ok()?;
        lock.try_lock().ok().map(|()| (path, lock))
    });
    free.collect()
}

async fn clear(settings: Settings, dead: Vec<(PathBuf, File)>) {
    for (path, _lock) in dead {
        let cleared = match end_left_sandboxes(&settings, &path).await {
            Ok(count) => remove_tree(&path).map(|_| count).map_err(Into::into),
            Err(error) => Err(error),
        };
        match cleared {
            Ok(sandboxes) => tracing::info!(sandboxes, "cleared what a crashed process left"),
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "what a crashed process left is left to the next start");
            }
        }
    }
}
