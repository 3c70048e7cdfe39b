//! Removing a whole tree by an `unlinkat` walk from a directory fd.
//! Never follows a link and never leaves the tree. Used only after the sandbox is dead.
//! Invariant: what lies outside the tree is untouched, whatever links the sandbox planted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

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
        Ok(folder) => empty_folder(folder)?,
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

/// One open folder on the way down: its files are gone, its folders still to do.
struct Level {
    fd: OwnedFd,
    name: Vec<u8>,
    folders: Vec<Vec<u8>>,
}

/// Depth first with an explicit stack of open folders, so that a deep tree cannot overflow ours.
/// Below `MAX_OPEN` levels, what is left is moved up to the top and emptied from there.
fn empty_folder(folder: OwnedFd) -> io::Result<()> {
    const MAX_OPEN: usize = 64;
    let mut stack = vec![enter(folder, Vec::new())?];
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
            stack.push(enter(opened, inner)?);
        } else {
            let moved = format!(".cellblock-delete-{}", uuid::Uuid::new_v4().simple()).into_bytes();
            rustix::fs::renameat(&level.fd, inner.as_slice(), &stack[0].fd, moved.as_slice())?;
            stack[0].folders.push(moved);
            stack.push(level);
        }
    }
    Ok(())
}

fn enter(fd: OwnedFd, name: Vec<u8>) -> io::Result<Level> {
    let folders = remove_files(&fd)?;
    Ok(Level { fd, name, folders })
}

/// Removes everything but folders, and names those.
fn remove_files(folder: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut folders = Vec::new();
    let mut entries = Dir::read_from(folder)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
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

/// Opens a folder for emptying; one without permissions for us is given them first.
fn open_folder(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&parent, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(&parent, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(&parent, name, flags, Mode::empty())
        }
        opened => opened,
    }
}
