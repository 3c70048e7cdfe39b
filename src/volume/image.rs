//! Image files with an empty ext4 in them: made by `mkfs.ext4`, or copied from one that was made before.
//! Never mounts anything. Invariant: an image appears under its name whole, or not at all.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::VolumeSize;
use super::loop_device::BLOCK_BYTES;

/// The smallest that ext4 accepts; it holds metadata only.
const JOURNAL_MIB: u64 = 4;
const SMALLEST_WITH_JOURNAL: u64 = 8 << 20;
/// The older ones, of 128 bytes, have no fractions of a second in their times, by which changed files are told.
const INODE_BYTES: u64 = 256;

/// Where new images come from.
#[derive(Debug)]
pub struct Template {
    size: VolumeSize,
    path: PathBuf,
}

impl Template {
    /// Makes the template for workspaces of the usual size, unless it is there.
    pub fn prepare(folder: &Path, size: VolumeSize) -> io::Result<Self> {
        let name = format!("workspace-{}-{}.img", size.bytes, size.inodes);
        let path = folder.join(name);
        if !path.exists() {
            make(&path, size)?;
        }
        Ok(Self { size, path })
    }

    /// A new image; one of another size than the template's takes longer.
    pub fn instantiate(&self, path: &Path, size: VolumeSize) -> io::Result<()> {
        if size != self.size {
            return make(path, size);
        }
        let temporary = temporary_name(path);
        copy_sparsely(&self.path, &temporary)?;
        fs::rename(temporary, path)
    }
}

fn temporary_name(path: &Path) -> PathBuf {
    path.with_extension("img.tmp")
}

fn make(path: &Path, size: VolumeSize) -> io::Result<()> {
    let temporary = temporary_name(path);
    create(&temporary)?.set_len(image_bytes(size))?;
    let journal = match journal_mib(size) {
        0 => "-O^has_journal".to_owned(),
        mib => format!("-Jsize={mib}"),
    };
    let arguments = [
        "-q".to_owned(),
        "-F".to_owned(),
        format!("-b{BLOCK_BYTES}"),
        format!("-I{INODE_BYTES}"),
        format!("-N{}", size.inodes),
        // Nothing is kept back for root, and nothing for growing later.
        "-m0".to_owned(),
        "-O^resize_inode".to_owned(),
        journal,
        "-Elazy_itable_init=1,lazy_journal_init=1,nodiscard".to_owned(),
    ];
    let output = output_of("mkfs.ext4", &arguments, &temporary)?;
    if !output.status.success() {
        return Err(failure("mkfs.ext4", &output));
    }
    fs::rename(temporary, path)
}

/// What a check of an image came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// As far as the check can tell; it may also not have recognised what is in there.
    Tried,
    BeyondRepair,
}

/// Mends what a host that died in the middle of a write left, as far as the journal did not. An error if the check itself
/// could not be made, which says nothing about the image.
pub fn repair(image: &Path) -> io::Result<Repair> {
    const ERRORS_LEFT: i32 = 4;
    const NOT_CARRIED_OUT: i32 = 8;
    let arguments = ["-f".to_owned(), "-y".to_owned()];
    let output = output_of("e2fsck", &arguments, image)?;
    match output.status.code() {
        Some(code) if code & ERRORS_LEFT != 0 => Ok(Repair::BeyondRepair),
        // Errors were corrected; or nothing was found that could be checked, and mounting it has the last word.
        Some(0..=3 | NOT_CARRIED_OUT) => Ok(Repair::Tried),
        _ => Err(failure("e2fsck", &output)),
    }
}

/// What the file system itself needs comes on top, so that files may have all of what the limit says and hardly more:
/// journal, inodes, a fiftieth that ext4 keeps back for itself (at most 16 MiB), a bitmap or two for every 128 MiB.
fn image_bytes(size: VolumeSize) -> u64 {
    let base = size.bytes + (journal_mib(size) << 20) + size.inodes * INODE_BYTES;
    let bookkeeping = (base / 48).min(16 << 20) + base / 8192 + (256 << 10);
    (base + bookkeeping).next_multiple_of(u64::from(BLOCK_BYTES))
}

/// A file system of a few megabytes cannot have one; it is checked before it is mounted again.
fn journal_mib(size: VolumeSize) -> u64 {
    match size.bytes {
        0..SMALLEST_WITH_JOURNAL => 0,
        _ => JOURNAL_MIB,
    }
}

fn output_of(program: &str, arguments: &[String], image: &Path) -> io::Result<Output> {
    Command::new(program)
        .args(arguments)
        .arg(image)
        // Debian keeps such programs where only root looks by default.
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))
}

fn failure(program: &str, output: &Output) -> io::Error {
    let complaint = String::from_utf8_lossy(&output.stderr);
    io::Error::other(format!("{program} failed: {}", complaint.trim()))
}

fn create(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

/// Copies what is really there; holes stay holes, so that a new image takes up next to nothing.
fn copy_sparsely(from: &Path, to: &Path) -> io::Result<()> {
    let (source, target) = (File::open(from)?, create(to)?);
    let length = source.metadata()?.len();
    target.set_len(length)?;
    let mut position = 0;
    while let Some(start) = seek(&source, SeekFrom::Data(position))? {
        let end = seek(&source, SeekFrom::Hole(start))?.unwrap_or(length);
        copy_range(&source, &target, start, end)?;
        position = end;
    }
    Ok(())
}

fn seek(file: &File, to: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(position) => Ok(Some(position)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn copy_range(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let left = usize::try_from(end - from).unwrap_or(usize::MAX);
        let copied =
            rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), left)?;
        if copied == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_has_the_same_bytes_and_the_same_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let file = create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        for position in [0, 1 << 20, (64 << 20) - 4096] {
            std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], position).unwrap();
        }
        copy_sparsely(&from, &to).unwrap();
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 1 << 20);
    }
}
