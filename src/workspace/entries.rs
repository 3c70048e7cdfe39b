//! A folder of the workspace as a caller may list it: files and folders, with size, permissions and time.
//! Never follows a link, and lists neither links nor anything else that is not a file or a folder.
//! Invariant: it ends, whatever tree the sandbox built: entries, depth and time are bounded.

use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::{FileFacts, Workspace, is_internal};
use crate::model::path::WorkspacePath;

const MAX_ENTRIES: usize = 10_000;
const MAX_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: WorkspacePath,
    pub kind: EntryKind,
    pub facts: FileFacts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Folder,
}

impl Workspace {
    /// What is in `folder` (the workspace itself if there is none), sorted by path. `NotFound` if it is no folder.
    pub fn entries(
        &self,
        folder: Option<&WorkspacePath>,
        recursive: bool,
    ) -> io::Result<Vec<Entry>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |folder: Option<&WorkspacePath>| {
            let path = folder.map_or(&b"."[..], WorkspacePath::as_bytes);
            self.open_beneath(path, flags, Mode::empty())
        };
        let started = Instant::now();
        let mut entries = Vec::new();
        let mut opened = Some(open(folder)?);
        // Folders wait as paths, not as descriptors: the sandbox decides how many there are.
        let mut folders: Vec<Option<WorkspacePath>> = vec![folder.cloned()];
        while let Some(path) = folders.pop() {
            // One that has vanished meanwhile, or been closed to us, has nothing to list.
            let Some(fd) = opened.take().or_else(|| open(path.as_ref()).ok()) else {
                continue;
            };
            for entry in Dir::read_from(&fd)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") || is_internal(name) {
                    continue;
                }
                if entries.len() >= MAX_ENTRIES || started.elapsed() > MAX_TIME {
                    let text = "the folder holds more than can be listed; list a smaller one";
                    return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
                }
                let Ok(path) = WorkspacePath::in_folder(path.as_ref(), name) else {
                    continue;
                };
                let Ok(stat) =
                    rustix::fs::statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                else {
                    continue;
                };
                let kind = match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile => EntryKind::File,
                    FileType::Directory => EntryKind::Folder,
                    _ => continue,
                };
                if recursive && kind == EntryKind::Folder {
                    folders.push(Some(path.clone()));
                }
                entries.push(Entry {
                    path,
                    kind,
                    facts: FileFacts::of(&stat),
                });
            }
        }
        entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Ok(entries)
    }
}
