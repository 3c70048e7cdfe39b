//! Removing a whole tree by an `unlinkat` walk from a directory fd.
//! Never follows a link, never enters a mount and never leaves the tree.
//! Invariant: what lies outside the tree is untouched, whatever links the sandbox planted.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Workspace;
use crate::model::path::WorkspacePath;

/// A sandbox that lives can make files as fast as they are removed.
const MAX_TIME_IN_LIVING_WORKSPACE: Duration = Duration::from_secs(10);

/// Removes `path` and all below it. True if something was there.
pub fn remove_tree(path: &Path) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no folder name",
        ));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
        Ok(parent) => parent,
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let name = std::os::unix::ffi::OsStrExt::as_bytes(name);
    match open_folder(&parent, name) {
        Ok(folder) => empty_folder(folder, None)?,
        Err(Errno::NOENT) => return Ok(false),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
            return Ok(true);
        }
        Err(error) => return Err(error.into()),
    }
    rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?;
    Ok(true)
}

impl Workspace {
    /// Removes a folder of the workspace and all below it. True if it was there. `DirectoryNotEmpty` if the sandbox keeps
    /// filling it.
    pub fn delete_folder(&self, path: &WorkspacePath) -> io::Result<bool> {
        let (parent, name) = self.open_parent(path)?;
        let until = Instant::now() + MAX_TIME_IN_LIVING_WORKSPACE;
        match open_folder(&parent, name) {
            Ok(folder) => empty_folder(folder, Some(until))?,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?;
        Ok(true)
    }
}

/// One open folder on the way down: its files are gone, its folders still to do.
struct Level {
    fd: OwnedFd,
    name: Vec<u8>,
    folders: Vec<Vec<u8>>,
}

/// Depth first with an explicit stack of open folders, so that a deep tree cannot overflow ours.
/// Below `MAX_OPEN` levels, what is left is moved up to the top and emptied from there.
fn empty_folder(folder: OwnedFd, until: Option<Instant>) -> io::Result<()> {
    const MAX_OPEN: usize = 64;
    let mut stack = vec![enter(folder, Vec::new(), until)?];
    while let Some(mut level) = stack.pop() {
        let Some(inner) = level.folders.pop() else {
            if let Some(parent) = stack.last() {
                rustix::fs::unlinkat(&parent.fd, level.name.as_slice(), AtFlags::REMOVEDIR)?;
            }
            continue;
        };
        if stack.len() < MAX_OPEN {
            let opened = open_folder(&level.fd, &inner)?;
            stack.push(level);
            stack.push(enter(opened, inner, until)?);
        } else {
            let moved = format!(".cellblock-delete-{}", uuid::Uuid::new_v4().simple()).into_bytes();
            rustix::fs::renameat(&level.fd, inner.as_slice(), &stack[0].fd, moved.as_slice())?;
            stack[0].folders.push(moved);
            stack.push(level);
        }
    }
    Ok(())
}

fn enter(fd: OwnedFd, name: Vec<u8>, until: Option<Instant>) -> io::Result<Level> {
    let folders = remove_files(&fd, until)?;
    Ok(Level { fd, name, folders })
}

/// Removes everything but folders, and names those.
fn remove_files(folder: &OwnedFd, until: Option<Instant>) -> io::Result<Vec<Vec<u8>>> {
    let mut folders = Vec::new();
    let mut entries = Dir::read_from(folder)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if until.is_some_and(|until| Instant::now() > until) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        if entry.file_type() == FileType::Directory {
            folders.push(name.to_bytes().to_vec());
            continue;
        }
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => folders.push(name.to_bytes().to_vec()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(folders)
}

/// Opens a folder for emptying; one without permissions for us is given them first. One on which something is mounted is
/// refused (`XDEV`): what is in there is not this tree's.
fn open_folder(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat2(&parent, name, flags, Mode::empty(), ResolveFlags::NO_XDEV);
    match open() {
        Err(Errno::ACCESS) => {
            open_up(parent.as_fd(), name)?;
            open()
        }
        opened => opened,
    }
}

/// Gives us all permissions on a folder that the sandbox closed; root needs none. By its descriptor: by its name, a link
/// that the sandbox puts there meanwhile would be followed.
pub(super) fn open_up(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&folder)?.st_mode) | Mode::RWXU;
    rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), mode)
}
