//! Notes that stored files of a removed session are still to be deleted, and not before when.
//! Never touches the store itself. Invariant: a note survives restarts until its work is done.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folder::{tombstones_root, write_whole};
use crate::model::ids::SessionIds;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    pub ids: SessionIds,
    pub delete_after_ms: u64,
    /// The stored manifest could not be deleted yet; it must not bring the session's files back.
    #[serde(default)]
    pub hides_manifest: bool,
}

impl Tombstone {
    pub fn new(ids: &SessionIds, delete_after_ms: u64) -> Self {
        Self {
            ids: ids.clone(),
            delete_after_ms,
            hides_manifest: true,
        }
    }

    /// One note per session: a later one may only put the moment off.
    pub fn write(&self, work_root: &Path) -> io::Result<()> {
        let root = tombstones_root(work_root);
        let earlier =
            read(&root.join(self.file_name())).map_or(0, |tombstone| tombstone.delete_after_ms);
        let merged = Self {
            delete_after_ms: self.delete_after_ms.max(earlier),
            ..self.clone()
        };
        let bytes = serde_json::to_vec(&merged).map_err(io::Error::other)?;
        write_whole(&root, &self.file_name(), &bytes)
    }

    /// From here on the session's manifest is a new one's.
    pub fn reveal_manifest(mut self, work_root: &Path) -> io::Result<()> {
        self.hides_manifest = false;
        self.write(work_root)
    }

    pub fn remove(&self, work_root: &Path) -> io::Result<()> {
        match fs::remove_file(tombstones_root(work_root).join(self.file_name())) {
            // Not every removal needed a note.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn file_name(&self) -> String {
        format!("{}.json", self.ids.key().session_key)
    }
}

/// Whether what the store has of a session is only waiting to be deleted.
pub fn hides_manifest(work_root: &Path, ids: &SessionIds) -> bool {
    let path = tombstones_root(work_root).join(Tombstone::new(ids, 0).file_name());
    read(&path).is_some_and(|tombstone| tombstone.hides_manifest)
}

/// The notes whose time has come.
pub fn due(work_root: &Path, now_ms: u64) -> Vec<Tombstone> {
    let Ok(entries) = fs::read_dir(tombstones_root(work_root)) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let notes = paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .filter_map(|path: PathBuf| read(&path));
    notes
        .filter(|note| note.delete_after_ms <= now_ms)
        .collect()
}

fn read(path: &Path) -> Option<Tombstone> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_due_only_after_its_moment_and_never_moves_forward() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(tombstones_root(root.path())).unwrap();
        let ids = SessionIds::parse("u", "s").unwrap();
        Tombstone::new(&ids, 2000).write(root.path()).unwrap();
        Tombstone::new(&ids, 1000).write(root.path()).unwrap();
        assert!(due(root.path(), 1999).is_empty());
        let found = due(root.path(), 2000);
        assert_eq!(found, vec![Tombstone::new(&ids, 2000)]);
        found[0].remove(root.path()).unwrap();
        assert!(due(root.path(), 9999).is_empty());
    }
}
