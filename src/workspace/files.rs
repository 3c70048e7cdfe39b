//! Opening, making and deleting single files beneath the workspace fd.
//! Never canonicalises and then opens; the kernel resolves beneath the fd or refuses.
//! Invariant: what `open_file` returns is a regular file of this workspace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::PoisonError;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use super::{Owner, Workspace};
use crate::model::path::WorkspacePath;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A file this large of which less than an eighth is allocated is a hole, not data.
const SPARSE_FROM_BYTES: u64 = 16 * 1024 * 1024;

/// What `stat` says of a file, as far as change detection needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileFacts {
    pub size_bytes: u64,
    pub mtime_ns: i64,
    /// The sandbox can set mtime to anything, ctime to nothing.
    pub ctime_ns: i64,
    pub inode: u64,
    #[serde(default)]
    pub allocated_bytes: u64,
    /// Type and permissions.
    #[serde(default)]
    pub mode: u32,
}

impl FileFacts {
    pub fn of(stat: &Stat) -> Self {
        Self {
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            mtime_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
            ctime_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64),
            inode: stat.st_ino,
            allocated_bytes: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
            mode: stat.st_mode,
        }
    }

    /// Why a file is not to be read, if it is not: reading a hole takes as long as reading data.
    pub fn reason_to_leave_out(&self, max_bytes: u64) -> Option<&'static str> {
        if self.size_bytes > SPARSE_FROM_BYTES && self.allocated_bytes < self.size_bytes / 8 {
            Some("the file is sparse: it is mostly holes")
        } else if self.size_bytes > max_bytes {
            Some("the file is larger than the workspace may be")
        } else {
            None
        }
    }

    /// Seconds since 1970, as listings show it.
    pub fn mtime_seconds(&self) -> f64 {
        self.mtime_ns as f64 / 1e9
    }
}

fn nanoseconds(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// A regular file, opened for reading.
#[derive(Debug)]
pub struct OpenedFile {
    pub file: File,
    pub facts: FileFacts,
}

impl OpenedFile {
    /// The facts as they are now; differs from `facts` if somebody wrote meanwhile.
    pub fn facts_now(&self) -> io::Result<FileFacts> {
        Ok(FileFacts::of(&rustix::fs::fstat(&self.file)?))
    }
}

/// A file being written under a temporary name; it appears whole under its own name, or not at all.
#[derive(Debug)]
pub struct NewFile {
    pub file: File,
    folder: OwnedFd,
    /// Where it shall appear, if that is another folder.
    destination: Option<OwnedFd>,
    temporary_name: String,
    published: bool,
}

impl Workspace {
    /// Opens a regular file. Anything else (link, FIFO, device, folder) is `NotFound`.
    pub fn open_file(&self, path: &WorkspacePath) -> io::Result<OpenedFile> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = self.open_beneath(path.as_bytes(), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_a_file());
        }
        Ok(OpenedFile {
            facts: FileFacts::of(&stat),
            file: File::from(fd),
        })
    }

    pub fn facts(&self, path: &WorkspacePath) -> io::Result<FileFacts> {
        let (folder, name) = self.open_parent(path)?;
        let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_a_file());
        }
        Ok(FileFacts::of(&stat))
    }

    /// Starts a new file in the folder of `path`, making folders on the way.
    pub fn begin_file(&self, path: &WorkspacePath) -> io::Result<NewFile> {
        let folder = self.make_parents(path)?;
        let temporary_name = format!(".cellblock-upload-{}", uuid::Uuid::new_v4().simple());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(
            &folder,
            temporary_name.as_str(),
            flags,
            Mode::from_raw_mode(0o644),
        )?;
        if let Some(owner) = self.owner {
            give_to(&fd, owner)?;
        }
        Ok(NewFile {
            file: File::from(fd),
            folder,
            destination: None,
            temporary_name,
            published: false,
        })
    }

    /// Lets a new file appear in the folder of `path`, which is made as needed.
    pub fn lead_to(&self, new_file: &mut NewFile, path: &WorkspacePath) -> io::Result<()> {
        new_file.destination = Some(self.make_parents(path)?);
        Ok(())
    }

    /// True if a file, link or other non-folder was there and is now gone.
    pub fn delete_file(&self, path: &WorkspacePath) -> io::Result<bool> {
        let removed = self
            .open_parent(path)
            .and_then(|(folder, name)| Ok(rustix::fs::unlinkat(&folder, name, AtFlags::empty())?));
        match removed {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn open_parent<'p>(
        &self,
        path: &'p WorkspacePath,
    ) -> io::Result<(OwnedFd, &'p [u8])> {
        let name = path.file_name();
        let folder_bytes = &path.as_bytes()[..path.as_bytes().len() - name.len()];
        let folder = folder_bytes.strip_suffix(b"/").unwrap_or(b".");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok((self.open_beneath(folder, flags, Mode::empty())?, name))
    }

    fn make_parents(&self, path: &WorkspacePath) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut folder = self.open_beneath(b".", flags, Mode::empty())?;
        let depth = path.segments().count();
        for segment in path.segments().take(depth - 1) {
            match rustix::fs::mkdirat(&folder, segment, Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    let made =
                        rustix::fs::openat2(&folder, segment, flags, Mode::empty(), BENEATH)?;
                    if let Some(owner) = self.owner {
                        give_path_to(&made, owner)?;
                    }
                    folder = made;
                }
                Err(Errno::EXIST) => {
                    folder = rustix::fs::openat2(&folder, segment, flags, Mode::empty(), BENEATH)?
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(folder)
    }

    pub(super) fn open_beneath(
        &self,
        path: &[u8],
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<OwnedFd> {
        let root = self.root.read().unwrap_or_else(PoisonError::into_inner);
        rustix::fs::openat2(root.as_fd(), path, flags, mode, BENEATH).map_err(|errno| {
            match errno {
                // A link in the way, a way out of the tree, a FIFO with no reader: for callers, no such file.
                Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::NOTDIR => not_a_file(),
                other => other.into(),
            }
        })
    }
}

impl NewFile {
    /// Puts the file under a name that is free; `AlreadyExists` if it is not, and another may be tried.
    pub fn publish_new(&mut self, path: &WorkspacePath) -> io::Result<()> {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let name = path.file_name();
        rustix::fs::renameat_with(
            &self.folder,
            self.temporary_name.as_str(),
            self.destination.as_ref().unwrap_or(&self.folder),
            name,
            flags,
        )?;
        self.published = true;
        Ok(())
    }

    /// Puts the file under its name in place of what was there. A link there is replaced, never followed.
    pub fn publish(mut self, path: &WorkspacePath) -> io::Result<()> {
        rustix::fs::renameat(
            &self.folder,
            self.temporary_name.as_str(),
            self.destination.as_ref().unwrap_or(&self.folder),
            path.file_name(),
        )?;
        self.published = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.published {
            let _best_effort =
                rustix::fs::unlinkat(&self.folder, self.temporary_name.as_str(), AtFlags::empty());
        }
    }
}

pub(super) fn give_to(fd: impl AsFd, owner: Owner) -> io::Result<()> {
    Ok(rustix::fs::fchown(
        fd,
        Some(Uid::from_raw(owner.uid)),
        Some(Gid::from_raw(owner.gid)),
    )?)
}

fn give_path_to(fd: impl AsFd, owner: Owner) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    Ok(rustix::fs::chownat(
        fd,
        c"",
        Some(uid),
        Some(gid),
        AtFlags::EMPTY_PATH,
    )?)
}

fn not_a_file() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "not a regular file of the workspace",
    )
}
