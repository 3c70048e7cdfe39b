//! A file on its way to becoming visible: written in the temporary directory, hashed, sealed, then renamed by the store.
//! Never shows itself under a key: only `SealedFile::move_to` does that, and only after the bytes are on disk.
//! Invariant: a staged file that is dropped before it was moved is removed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Md5};
use uuid::Uuid;

use super::directory::Directory;
use super::error::StoreError;
use super::object_file::{ObjectRecord, encode_trailer};

/// S3's limit for one object written in one request.
pub(super) const MAX_BODY_BYTES: u64 = 5 * 1024 * 1024 * 1024;

/// Removes its file when dropped, unless the file was moved to its place.
#[derive(Debug)]
struct TemporaryName {
    directory: Arc<Directory>,
    name: String,
    is_moved: bool,
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        if self.is_moved {
            return;
        }
        let directory = Arc::clone(&self.directory);
        let name = std::mem::take(&mut self.name);
        let remove = move || {
            if let Err(error) = directory.remove_file(&name) {
                tracing::warn!(%error, "embedded object store: temporary file could not be removed");
            }
        };
        // A dropped connection drops this on a tokio worker, and to unlink gigabytes takes a while.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

/// A file that takes a body and hashes it on the way.
pub(super) struct StagedFile {
    temporary: TemporaryName,
    file: File,
    size_bytes: u64,
    md5: Md5,
    checksums: ChecksumHasher,
}

impl StagedFile {
    pub(super) fn create(
        directory: &Arc<Directory>,
        checksums: ChecksumHasher,
    ) -> io::Result<Self> {
        let name = Uuid::new_v4().simple().to_string();
        let file = directory.create_file(&name)?;
        let temporary = TemporaryName {
            directory: Arc::clone(directory),
            name,
            is_moved: false,
        };
        Ok(Self {
            temporary,
            file,
            size_bytes: 0,
            md5: Md5::new(),
            checksums,
        })
    }

    pub(super) fn write_all(&mut self, chunks: &[Bytes]) -> Result<(), StoreError> {
        for chunk in chunks {
            self.size_bytes += chunk.len() as u64;
            if self.size_bytes > MAX_BODY_BYTES {
                return Err(StoreError::TooLarge);
            }
            self.md5.update(chunk);
            self.checksums.update(chunk);
            self.file.write_all(chunk)?;
        }
        Ok(())
    }

    /// Appends the body of another object file; the kernel copies, so nothing is hashed.
    pub(super) fn append_body(&mut self, source: &File, size_bytes: u64) -> io::Result<()> {
        let copied = io::copy(&mut source.take(size_bytes), &mut self.file)?;
        if copied != size_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.size_bytes += size_bytes;
        Ok(())
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Hands out the digests of all bytes written so far and starts new ones.
    pub(super) fn take_digests(&mut self) -> ([u8; 16], s3s::dto::Checksum) {
        let md5 = std::mem::replace(&mut self.md5, Md5::new());
        let checksums = std::mem::take(&mut self.checksums);
        (md5.finalize(), checksums.finalize())
    }

    /// Adds the record and waits until all is on disk.
    pub(super) fn seal(mut self, record: &ObjectRecord) -> io::Result<SealedFile> {
        self.file.write_all(&encode_trailer(record)?)?;
        self.file.sync_all()?;
        Ok(SealedFile {
            temporary: self.temporary,
        })
    }
}

/// A complete object file, durable but not visible yet.
#[derive(Debug)]
pub(super) struct SealedFile {
    temporary: TemporaryName,
}

impl SealedFile {
    /// Shows the file under its name; on failure it stays staged and may be moved again.
    pub(super) fn move_to(&mut self, target: &Directory, target_name: &str) -> io::Result<()> {
        let temporary = &mut self.temporary;
        temporary
            .directory
            .rename(&temporary.name, target, target_name)?;
        temporary.is_moved = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staging_directory() -> (tempfile::TempDir, Arc<Directory>) {
        let folder = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::open_root(folder.path()).unwrap());
        (folder, directory)
    }

    #[test]
    fn a_dropped_staged_file_leaves_nothing() {
        let (_folder, directory) = staging_directory();
        let mut staged = StagedFile::create(&directory, ChecksumHasher::default()).unwrap();
        staged.write_all(&[Bytes::from_static(b"half")]).unwrap();
        assert_eq!(directory.names().unwrap().len(), 1);
        drop(staged);
        assert!(directory.names().unwrap().is_empty());
    }

    #[test]
    fn a_sealed_file_that_cannot_be_moved_is_removed_as_well() {
        let (folder, directory) = staging_directory();
        let staged = StagedFile::create(&directory, ChecksumHasher::default()).unwrap();
        let mut sealed = staged.seal(&ObjectRecord::default()).unwrap();
        std::fs::create_dir(folder.path().join("target")).unwrap();
        let target = directory.subdirectory("target").unwrap();
        std::fs::remove_dir(folder.path().join("target")).unwrap();
        assert!(sealed.move_to(&target, "o-a").is_err());
        drop(sealed);
        assert!(directory.names().unwrap().is_empty());
    }

    #[test]
    fn the_md5_covers_all_chunks() {
        let (_folder, directory) = staging_directory();
        let mut staged = StagedFile::create(&directory, ChecksumHasher::default()).unwrap();
        staged
            .write_all(&[Bytes::from_static(b"hello "), Bytes::from_static(b"world")])
            .unwrap();
        let (md5, _) = staged.take_digests();
        assert_eq!(hex::encode(md5), "5eb63bbbe01eeed093cb22bb8f5acdc3");
        assert_eq!(staged.size_bytes(), 11);
    }
}
