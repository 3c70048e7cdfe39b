//! Objects and buckets on disk: read, make visible, delete. Blocking calls, for the blocking pool only.
//! Never shows half an object: what becomes visible was sealed (complete and on disk) before.
//! Invariant: conditions are checked and the rename done under the key's lock, so of racing conditional writes one wins.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::conditions::WriteCondition;
use super::directory::Directory;
use super::error::StoreError;
use super::layout::{self, ObjectPath, join_directories};
use super::object_file::{ObjectFileError, ObjectRecord, read_record};
use super::staging::SealedFile;

const MAX_KEY_BYTES: usize = 1024;
const KEY_LOCKS: usize = 256;
/// Each retry means that a concurrent delete removed an empty directory in between; that many in a row is a fault.
const MAX_PLACEMENT_ATTEMPTS: u32 = 1000;

/// A key can have a thousand directories; that many are not kept open.
const MAX_UNSYNCED_PARENTS: usize = 32;

#[derive(Debug)]
pub(super) struct ObjectStore {
    pub(super) temporary: Arc<Directory>,
    pub(super) uploads: Directory,
    buckets: Directory,
    key_locks: Vec<Mutex<()>>,
    key_hasher: RandomState,
    /// Held while directories are made and flushed; whoever used a directory another request made waits for it.
    directory_making: Mutex<()>,
}

/// An object that was found, open for reading; its body is bytes `0..size_bytes` of the file.
#[derive(Debug)]
pub(super) struct StoredObject {
    pub(super) record: ObjectRecord,
    pub(super) file: File,
}

impl ObjectStore {
    pub(super) fn open(root: &Directory) -> io::Result<Self> {
        for name in ["tmp", "uploads", "buckets"] {
            root.make_subdirectory(name)?;
        }
        root.sync()?;
        Ok(Self {
            temporary: Arc::new(root.subdirectory("tmp")?),
            uploads: root.subdirectory("uploads")?,
            buckets: root.subdirectory("buckets")?,
            key_locks: (0..KEY_LOCKS).map(|_| Mutex::new(())).collect(),
            key_hasher: RandomState::new(),
            directory_making: Mutex::new(()),
        })
    }

    /// Removes what writes under way left behind when the service last ended.
    pub(super) fn remove_temporary_files(&self) -> io::Result<usize> {
        let names = self.temporary.names()?;
        let removed = names.iter().filter(|name| {
            let outcome = self.temporary.remove_file(name);
            if let Err(error) = &outcome {
                tracing::warn!(%error, "embedded object store: a temporary file could not be removed");
            }
            outcome.is_ok()
        });
        Ok(removed.count())
    }

    pub(super) fn create_bucket(&self, bucket: &str) -> Result<(), StoreError> {
        check_bucket_name(bucket)?;
        if self.buckets.make_subdirectory(bucket)? {
            self.buckets.sync()?;
        }
        Ok(())
    }

    pub(super) fn delete_bucket(&self, bucket: &str) -> Result<(), StoreError> {
        let directory = self.bucket(bucket)?;
        remove_empty_directories(&directory, &mut Vec::new())?;
        match self.buckets.remove_empty_subdirectory(bucket) {
            Ok(()) => {
                self.buckets.sync()?;
                Ok(self.remove_uploads_of(bucket)?)
            }
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Err(StoreError::BucketNotEmpty)
            }
            Err(error) => Err(or_absent(error, StoreError::NoSuchBucket)),
        }
    }

    pub(super) fn bucket_names(&self) -> Result<Vec<String>, StoreError> {
        let mut names = self.buckets.names()?;
        names.retain(|name| check_bucket_name(name).is_ok());
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn bucket(&self, bucket: &str) -> Result<Directory, StoreError> {
        check_bucket_name(bucket)?;
        self.buckets
            .subdirectory(bucket)
            .map_err(|error| or_absent(error, StoreError::NoSuchBucket))
    }

    pub(super) fn read(&self, bucket: &str, key: &str) -> Result<StoredObject, StoreError> {
        check_key(key)?;
        read_object(&self.bucket(bucket)?, key)
    }

    /// Makes a sealed file the object of its key, if the condition holds, and waits until that is on disk.
    pub(super) fn place(
        &self,
        bucket: &str,
        key: &str,
        mut sealed: SealedFile,
        condition: &WriteCondition,
    ) -> Result<(), StoreError> {
        check_key(key)?;
        let path = ObjectPath::of_key(key);
        for _ in 0..MAX_PLACEMENT_ATTEMPTS {
            let bucket = self.bucket(bucket)?;
            match self.try_place(&bucket, &path, key, &mut sealed, condition) {
                Err(StoreError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    prune(&bucket, &path.directories);
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
        Err(StoreError::Io(io::ErrorKind::NotFound.into()))
    }

    /// One attempt; `NotFound` if a directory was removed meanwhile because it was empty.
    fn try_place(
        &self,
        bucket: &Directory,
        path: &ObjectPath,
        key: &str,
        sealed: &mut SealedFile,
        condition: &WriteCondition,
    ) -> Result<(), StoreError> {
        let (parent, made) = self.make_directories(bucket, path)?;
        let key_lock = self.lock_key(key);
        check_present(bucket, key, condition)?;
        sealed.move_to(&parent, &path.file_name)?;
        drop(key_lock);
        parent.sync()?;
        match made {
            Some(mut made) => made.sync_parents()?,
            // A directory on the way may have been made by another request that is still flushing it.
            None => drop(ignore_poison(&self.directory_making)),
        }
        Ok(())
    }

    /// Opens the directory of an object and makes what is missing of it.
    fn make_directories(
        &self,
        bucket: &Directory,
        path: &ObjectPath,
    ) -> io::Result<(Directory, Option<MadeDirectories<'_>>)> {
        match bucket.subdirectory(&path.parent()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => return Ok((outcome?, None)),
        }
        let mut made = MadeDirectories {
            _making: ignore_poison(&self.directory_making),
            unsynced_parents: Vec::new(),
        };
        let mut current = bucket.subdirectory(".")?;
        for name in &path.directories {
            let is_new = current.make_subdirectory(name)?;
            let below = current.subdirectory(name)?;
            let parent = std::mem::replace(&mut current, below);
            if is_new {
                made.add_parent(parent)?;
            }
        }
        Ok((current, Some(made)))
    }

    pub(super) fn delete(
        &self,
        bucket: &str,
        key: &str,
        condition: &WriteCondition,
    ) -> Result<(), StoreError> {
        check_key(key)?;
        let bucket = self.bucket(bucket)?;
        let path = ObjectPath::of_key(key);
        if let Some(parent) = self.unlink(&bucket, &path, key, condition)? {
            parent.sync()?;
            prune(&bucket, &path.directories);
        }
        Ok(())
    }

    /// Deletes many keys and flushes each of their directories once; the outcome of every key in order.
    pub(super) fn delete_many(
        &self,
        bucket: &str,
        keys: &[String],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let bucket = self.bucket(bucket)?;
        let mut parents = BTreeMap::new();
        let mut outcomes = Vec::with_capacity(keys.len());
        for key in keys {
            let outcome = check_key(key).and_then(|()| {
                let path = ObjectPath::of_key(key);
                let parent = self.unlink(&bucket, &path, key, &WriteCondition::default())?;
                if let Some(parent) = parent {
                    parents.insert(path.directories, parent);
                }
                Ok(())
            });
            outcomes.push(outcome);
        }
        for parent in parents.values() {
            parent.sync()?;
        }
        for directories in parents.keys() {
            prune(&bucket, directories);
        }
        Ok(outcomes)
    }

    /// Removes the object's name; the directory it was in, or `None` if there was no such object.
    fn unlink(
        &self,
        bucket: &Directory,
        path: &ObjectPath,
        key: &str,
        condition: &WriteCondition,
    ) -> Result<Option<Directory>, StoreError> {
        let Some(parent) = optional_io(bucket.subdirectory(&path.parent()))? else {
            return Ok(None);
        };
        let _key_lock = self.lock_key(key);
        check_present(bucket, key, condition)?;
        let removed = optional_io(parent.remove_file(&path.file_name))?;
        Ok(removed.map(|()| parent))
    }

    fn lock_key(&self, key: &str) -> MutexGuard<'_, ()> {
        let hash = self.key_hasher.hash_one(key);
        let shard = usize::try_from(hash % KEY_LOCKS as u64).expect("the number of locks is small");
        ignore_poison(&self.key_locks[shard])
    }
}

/// Directories that were made for an object. They are flushed after the object is in place, which costs
/// little then: a journal that has written the object has written them too.
struct MadeDirectories<'a> {
    _making: MutexGuard<'a, ()>,
    unsynced_parents: Vec<Directory>,
}

impl MadeDirectories<'_> {
    fn add_parent(&mut self, parent: Directory) -> io::Result<()> {
        self.unsynced_parents.push(parent);
        if self.unsynced_parents.len() >= MAX_UNSYNCED_PARENTS {
            return self.sync_parents();
        }
        Ok(())
    }

    fn sync_parents(&mut self) -> io::Result<()> {
        self.unsynced_parents
            .drain(..)
            .try_for_each(|parent| parent.sync())
    }
}

/// The caller holds the key's lock.
fn check_present(
    bucket: &Directory,
    key: &str,
    condition: &WriteCondition,
) -> Result<(), StoreError> {
    if condition.is_unconditional() {
        return Ok(());
    }
    let present = match read_object(bucket, key) {
        Err(StoreError::NoSuchKey) => None,
        outcome => Some(outcome?.record),
    };
    condition.check(present.as_ref())
}

/// Opens an object and reads its record; a damaged one is logged and counts as absent.
pub(super) fn read_object(bucket: &Directory, key: &str) -> Result<StoredObject, StoreError> {
    let file = bucket
        .open_file(&ObjectPath::of_key(key).relative())
        .map_err(|error| or_absent(error, StoreError::NoSuchKey))?;
    let record = match read_record(&file) {
        Ok(record) if record.key == key => record,
        Ok(_) => {
            tracing::error!(
                "embedded object store: an object file belongs to another key; treated as absent"
            );
            return Err(StoreError::NoSuchKey);
        }
        Err(error) => {
            if let ObjectFileError::Damaged(reason) = &error {
                tracing::error!(
                    reason,
                    "embedded object store: a damaged object is treated as absent"
                );
            }
            return Err(error.into());
        }
    };
    Ok(StoredObject { record, file })
}

pub(super) fn or_absent(error: io::Error, absent: StoreError) -> StoreError {
    if error.kind() == io::ErrorKind::NotFound {
        absent
    } else {
        StoreError::Io(error)
    }
}

fn optional_io<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

fn check_key(key: &str) -> Result<(), StoreError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(StoreError::InvalidKey);
    }
    Ok(())
}

/// Names that S3 allows are harmless as directory names: no slash, no leading dot.
fn check_bucket_name(bucket: &str) -> Result<(), StoreError> {
    if s3s::path::check_bucket_name(bucket) {
        Ok(())
    } else {
        Err(StoreError::NoSuchBucket)
    }
}

/// Removes directories that became empty, from the innermost outwards; one that is in use again stays.
fn prune(bucket: &Directory, directories: &[String]) {
    let mut remaining = directories;
    while let [outer @ .., innermost] = remaining {
        let removed = bucket
            .subdirectory(&join_directories(outer))
            .and_then(|parent| parent.remove_empty_subdirectory(innermost));
        if removed.is_err() {
            return;
        }
        remaining = outer;
    }
}

/// Removes the empty directories below, by path and not by recursion over open files, as trees can be deep.
fn remove_empty_directories(
    bucket: &Directory,
    directories: &mut Vec<String>,
) -> Result<(), StoreError> {
    for name in bucket
        .subdirectory(&join_directories(directories))?
        .names()?
    {
        if name.starts_with(layout::OBJECT_PREFIX) {
            return Err(StoreError::BucketNotEmpty);
        }
        directories.push(name);
        remove_empty_directories(bucket, directories)?;
        prune(bucket, directories);
        directories.pop();
    }
    Ok(())
}

/// These locks guard no data, so a panic elsewhere does not make them unusable.
fn ignore_poison(lock: &Mutex<()>) -> MutexGuard<'_, ()> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
