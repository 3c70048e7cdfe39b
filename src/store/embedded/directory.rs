//! One open directory of the store and the few file operations allowed below it.
//! Never follows a symbolic link and never leaves the directory, whatever the path says.
//! Invariant: every path is resolved from the open directory with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags};

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

#[derive(Debug)]
pub(super) struct Directory {
    file: File,
}

impl Directory {
    /// Opens the store's root, which the operator chose and which may be reached through links.
    pub(super) fn open_root(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { file: fd.into() })
    }

    pub(super) fn subdirectory(&self, relative: &str) -> io::Result<Self> {
        let fd = self.open(relative, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { file: fd.into() })
    }

    /// Makes one directory below this one; `false` if it was there already.
    pub(super) fn make_subdirectory(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::mkdirat(&self.file, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a regular file for reading; anything else there is an error.
    pub(super) fn open_file(&self, relative: &str) -> io::Result<File> {
        let fd = self.open(
            relative,
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        )?;
        let file = File::from(fd);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        Ok(file)
    }

    pub(super) fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        Ok(self.open(name, flags)?.into())
    }

    /// Opens a file for its lock only; makes it if it is not there.
    pub(super) fn open_lock_file(&self, name: &str) -> io::Result<File> {
        Ok(self
            .open(name, OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW)?
            .into())
    }

    pub(super) fn rename(
        &self,
        name: &str,
        target: &Directory,
        target_name: &str,
    ) -> io::Result<()> {
        Ok(rustix::fs::renameat(
            &self.file,
            name,
            &target.file,
            target_name,
        )?)
    }

    pub(super) fn remove_file(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.file, name, AtFlags::empty())?)
    }

    /// Fails with `DirectoryNotEmpty` where something is in it.
    pub(super) fn remove_empty_subdirectory(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.file, name, AtFlags::REMOVEDIR)?)
    }

    /// All names in this directory, without `.` and `..`; names that are not UTF-8 are not ours.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.file)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    /// Makes renames, new names and removals in this directory survive a crash.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    pub(super) fn metadata(&self) -> io::Result<std::fs::Metadata> {
        self.file.metadata()
    }

    fn open(&self, relative: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let creates = flags.contains(OFlags::CREATE);
        let mode = if creates {
            Mode::from_raw_mode(FILE_MODE)
        } else {
            Mode::empty()
        };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(
            &self.file,
            relative,
            flags | OFlags::CLOEXEC,
            mode,
            resolve,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_symbolic_link_is_never_followed() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let inside = tempfile::tempdir().unwrap();
        symlink(outside.path(), inside.path().join("directory")).unwrap();
        symlink(outside.path().join("secret"), inside.path().join("file")).unwrap();

        let directory = Directory::open_root(inside.path()).unwrap();
        assert!(directory.open_file("file").is_err());
        assert!(directory.open_file("directory/secret").is_err());
        assert!(directory.subdirectory("directory").is_err());
    }

    #[test]
    fn a_path_cannot_climb_out_of_the_directory() {
        let outer = tempfile::tempdir().unwrap();
        std::fs::write(outer.path().join("secret"), "s").unwrap();
        std::fs::create_dir(outer.path().join("inner")).unwrap();
        let directory = Directory::open_root(&outer.path().join("inner")).unwrap();
        assert!(directory.open_file("../secret").is_err());
        let absolute = outer.path().join("secret");
        assert!(directory.open_file(absolute.to_str().unwrap()).is_err());
    }

    #[test]
    fn only_regular_files_are_opened() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        let directory = Directory::open_root(root.path()).unwrap();
        assert!(directory.open_file("d").is_err());
    }
}
