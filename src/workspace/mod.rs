//! A session's files, reached only beneath one directory fd, link-free (`openat2`).
//! Never follows a path that the sandbox controls, never blocks on a FIFO, never trusts a name.
//! Invariant: whatever the sandbox does to its tree, the host opens regular files of that tree or nothing.

mod delete;
mod files;
mod walk;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

pub use delete::remove_tree;
pub use files::{FileFacts, NewFile, OpenedFile};
pub use walk::{WalkBudget, WalkReport, is_internal};

/// The files of one session.
#[derive(Debug)]
pub struct Workspace {
    root: OwnedFd,
    owner: Option<Owner>,
}

/// Who owns new files, when the service may say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Workspace {
    /// Opens a workspace folder, making it if needed. `path` is host-owned up to its last part.
    pub fn open(path: &Path, owner: Option<Owner>) -> io::Result<Self> {
        match std::fs::create_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        if let Some(owner) = owner {
            files::give_to(&root, owner)?;
        }
        rustix::fs::fchmod(&root, Mode::from_raw_mode(0o755))?;
        Ok(Self { root, owner })
    }
}
