//! The session's side of its volume: made with its folder, mounted again after a restart, healed after an error.
//! Never touches a volume while code can write to it. Invariant: below the free-space floor no work begins that would write.

use std::io;
use std::time::Duration;

use tokio::time::timeout;

use super::Core;
use super::error::CoreError;
use super::folder::{Meta, NewFolder, SessionFolder, Terms};
use super::registry::Session;
use super::stored::Stored;
use crate::model::path::WorkspacePath;
use crate::volume::{self, Adopted, VolumeSize};
use crate::workspace::FileFacts;

/// How long files of a volume that failed may stay in use.
const HEAL_PATIENCE: Duration = Duration::from_secs(10);

impl Core {
    /// A new folder with its place for files. What fails leaves nothing behind, and nothing that was there is touched:
    /// `AlreadyExists` then.
    pub(super) async fn prepare_folder(
        &self,
        folder: &SessionFolder,
        terms: &Terms,
    ) -> io::Result<()> {
        folder.create()?;
        let new = NewFolder::of(folder, &self.parts.work_root);
        folder.create_control()?;
        let size = self.volume_size(terms);
        tokio::task::block_in_place(|| self.parts.volumes.provide(folder.path(), size))
            .inspect_err(|error| tracing::error!(%error, "a workspace could not be made"))?;
        new.keep();
        Ok(())
    }

    pub(super) fn adopt_volume(&self, folder: &SessionFolder, meta: &Meta) -> io::Result<Adopted> {
        let size = self.volume_size(&meta.terms);
        volume::adopt(&self.parts.volumes, folder.path(), size)
    }

    /// A file system that had an error, for example because the host's disk was full, takes no more writes until it is
    /// mounted anew. The session's sandbox is gone.
    pub(super) async fn heal_volume(&self, session: &Session) -> Result<(), CoreError> {
        if !volume::has_failed(session.folder.path()) {
            return Ok(());
        }
        let Ok(_no_file_comes) = timeout(HEAL_PATIENCE, session.in_use.write()).await else {
            let text = "the workspace cannot be mended while its files are in use; try again later";
            return Err(CoreError::Unavailable(text.to_owned()));
        };
        let mount_anew = || volume::mount_anew(session.folder.path());
        let healed = tokio::task::block_in_place(|| session.workspace.remount(mount_anew));
        healed.map_err(|error| {
            tracing::error!(session = %session.key, %error, "a workspace cannot be mounted anew");
            let text = "the workspace takes no writes after an error of its disk; try again later";
            CoreError::Unavailable(text.to_owned())
        })?;
        tracing::warn!(session = %session.key, "a workspace was mounted anew after an error");
        self.drop_damaged_files(session, &mut *session.stored.lock().await);
        Ok(())
    }

    /// What a cell wrote reaches the disk some seconds later, its copy in the store at once. A file whose bytes never came to
    /// the disk is shorter now than it was when it was stored: it is brought back, not stored in place of the whole one.
    pub(super) fn drop_damaged_files(&self, session: &Session, stored: &mut Stored) {
        let entries = stored.manifest.entries.iter();
        let kept = entries.filter(|(_, entry)| entry.present && entry.etag.is_some());
        let damaged: Vec<WorkspacePath> = kept
            .filter(|(path, entry)| {
                let found = session.workspace.facts(path);
                found.is_ok_and(|found| is_damaged(&found, &entry.facts))
            })
            .map(|(path, _)| path.clone())
            .collect();
        for path in damaged {
            tracing::warn!(session = %session.key, "a file of a workspace did not reach the disk; it comes back from the store");
            stored.manifest.entries.remove(&path);
            stored.restore_pending = true;
            if let Err(error) = session.workspace.delete_file(&path) {
                tracing::error!(session = %session.key, %error, "a damaged file cannot be removed");
            }
        }
    }

    /// Which limit new sessions get: `hard` or `soft`.
    pub fn workspace_quota(&self) -> &'static str {
        self.parts.volumes.word()
    }

    /// Why no work begins at the moment, if the disk is the reason.
    pub fn disk_shortage(&self) -> Option<String> {
        let free = self.parts.disk.shortage()?;
        Some(format!(
            "the disk of the service has {} MB left, less than MIN_FREE_DISK_MB={}",
            free >> 20,
            self.parts.disk.floor_bytes() >> 20
        ))
    }

    /// For work that would write: rather refused than half done.
    pub(super) fn require_disk(&self) -> Result<(), CoreError> {
        match self.disk_shortage() {
            None => Ok(()),
            Some(problem) => Err(CoreError::QuotaExceeded {
                problem,
                limit: self.parts.disk.floor_bytes(),
                current: self.parts.disk.shortage().unwrap_or(0),
            }),
        }
    }

    /// Largest single file. Where the volume is the limit it comes first, so that code gets `ENOSPC` like on any full disk.
    pub(super) fn file_size_limit(&self, folder: &SessionFolder, terms: &Terms) -> u64 {
        let limit = self.volume_size(terms).bytes;
        match volume::is_hard(folder.path()) {
            true => limit * 2,
            false => limit,
        }
    }

    fn volume_size(&self, terms: &Terms) -> VolumeSize {
        let files = &self.parts.files;
        let bytes = terms.limits.workspace_bytes;
        VolumeSize::new(
            bytes.unwrap_or(files.max_workspace_bytes),
            files.max_total_files,
        )
    }
}

/// Shorter, or with fewer bytes on disk, than it was when it was stored, and not written to since.
fn is_damaged(found: &FileFacts, stored: &FileFacts) -> bool {
    let unchanged_since = found.mtime_ns <= stored.mtime_ns;
    unchanged_since
        && (found.size_bytes < stored.size_bytes || found.allocated_bytes == 0)
        && stored.size_bytes > 0
}

impl Session {
    /// Trouble with a file of this session's. A volume that is full is the caller's to mend, a disk the operator's.
    pub(super) fn file_trouble(&self, error: io::Error) -> CoreError {
        let full = error.kind() == io::ErrorKind::StorageFull;
        match self.workspace.room() {
            Some(room) if full && room.is_used_up() => CoreError::QuotaExceeded {
                problem: "the workspace is full: it has as many bytes or files as it may"
                    .to_owned(),
                limit: room.total_bytes,
                current: room.total_bytes - room.free_bytes,
            },
            _ => CoreError::workspace(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(size_bytes: u64, allocated_bytes: u64, mtime_ns: i64) -> FileFacts {
        FileFacts {
            size_bytes,
            mtime_ns,
            ctime_ns: mtime_ns,
            inode: 12,
            allocated_bytes,
            mode: 0o100_644,
        }
    }

    #[test]
    fn a_file_that_lost_its_bytes_is_damaged_and_one_that_was_rewritten_is_not() {
        let stored = facts(6, 4096, 100);
        assert!(is_damaged(&facts(0, 0, 100), &stored));
        assert!(is_damaged(&facts(0, 0, 90), &stored));
        assert!(
            is_damaged(&facts(6, 0, 100), &stored),
            "only a hole is left"
        );
        assert!(!is_damaged(&facts(6, 4096, 100), &stored));
        assert!(!is_damaged(&facts(0, 0, 101), &stored), "emptied since");
        assert!(!is_damaged(&facts(0, 0, 100), &facts(0, 0, 100)));
    }
}
