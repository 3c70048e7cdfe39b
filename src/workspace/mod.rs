//! A session's files, reached only beneath one directory fd, link-free (`openat2`).
//! Never follows a path that the sandbox controls, never blocks on a FIFO, never trusts a name.
//! Invariant: whatever the sandbox does to its tree, the host opens regular files of that tree or nothing.

mod delete;
mod entries;
mod files;
mod walk;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError, RwLock};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use delete::remove_tree;
pub use entries::{Entry, EntryKind};
pub use files::{FileFacts, NewFile, OpenedFile};
pub use walk::{WalkBudget, WalkReport, is_internal};

const ROOT_MODE: u32 = 0o755;
/// Whom no permissions shut out. Asked once: every walk wants to know.
static IS_ROOT: LazyLock<bool> = LazyLock::new(|| rustix::process::geteuid().is_root());

/// The files of one session.
#[derive(Debug)]
pub struct Workspace {
    root: RwLock<OwnedFd>,
    /// Held by whoever reads the folder through `root` itself, whose position all would share.
    reads_root: Mutex<()>,
    path: PathBuf,
    owner: Option<Owner>,
}

/// Who owns new files, when the service may say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Of a whole file system, which is this workspace's own where it has a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub free_inodes: u64,
}

impl Room {
    /// Less than one more file with a page of content needs.
    pub fn is_used_up(&self) -> bool {
        const LITTLE_BYTES: u64 = 1 << 20;
        self.free_bytes < LITTLE_BYTES || self.free_inodes == 0
    }
}

impl Workspace {
    /// Opens a workspace folder, making it if needed. `path` is host-owned up to its last part.
    pub fn open(path: &Path, owner: Option<Owner>) -> io::Result<Self> {
        match std::fs::create_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(Self {
            root: RwLock::new(open_root(path, owner)?),
            reads_root: Mutex::default(),
            path: path.to_owned(),
            owner,
        })
    }

    /// What the file system of this workspace has left.
    pub fn room(&self) -> Option<Room> {
        let root = self.root.read().unwrap_or_else(PoisonError::into_inner);
        let found = rustix::fs::fstatvfs(&*root).ok()?;
        Some(Room {
            total_bytes: found.f_blocks * found.f_frsize,
            free_bytes: found.f_bavail * found.f_frsize,
            free_inodes: found.f_favail,
        })
    }

    /// Makes sure that what is in the workspace can be seen, whatever permissions code in the sandbox left on it.
    fn open_up(&self) -> io::Result<()> {
        if *IS_ROOT {
            return Ok(());
        }
        let root = self.root.read().unwrap_or_else(PoisonError::into_inner);
        if !is_closed_to_us(rustix::fs::fstat(&*root)?.st_mode) {
            return Ok(());
        }
        Ok(rustix::fs::fchmod(&*root, Mode::from_raw_mode(ROOT_MODE))?)
    }

    /// Lets go of the folder while `mount` puts something else in its place, and opens what is there then.
    pub fn remount(&self, mount: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut root = self.root.write().unwrap_or_else(PoisonError::into_inner);
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        *root = rustix::fs::open(parent, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let mounted = mount();
        *root = open_root(&self.path, self.owner)?;
        mounted
    }
}

/// Whether a folder of this mode keeps its owner, who we are unless we are root, from seeing all of it.
fn is_closed_to_us(mode: u32) -> bool {
    !*IS_ROOT && !Mode::from_raw_mode(mode).contains(Mode::RWXU)
}

fn open_root(path: &Path, owner: Option<Owner>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::open(path, flags, Mode::empty());
    let root = match open() {
        // Code in the sandbox may close its own workspace, and a service without root is shut out too.
        Err(Errno::ACCESS) => {
            delete::open_up(rustix::fs::CWD, path.as_os_str().as_bytes())?;
            open()?
        }
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&root)?;
    if let Some(owner) = owner
        && (stat.st_uid, stat.st_gid) != (owner.uid, owner.gid)
    {
        files::give_to(&root, owner)?;
    }
    if stat.st_mode & 0o7777 != ROOT_MODE {
        match rustix::fs::fchmod(&root, Mode::from_raw_mode(ROOT_MODE)) {
            // One that takes no more writes can still be read.
            Ok(()) | Err(Errno::ROFS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(root)
}
