//! Multipart uploads on disk: `uploads/<bucket>/<upload id>/`, one object file per part. Blocking calls.
//! Never shows anything under a key before completion, and never trusts an upload id as a path.
//! Invariant: a completed object is built from parts whose ETags the client named, checked on the very files that are copied.

use std::io;

use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Md5};
use uuid::Uuid;

use super::conditions::WriteCondition;
use super::directory::Directory;
use super::error::StoreError;
use super::incoming_body::VerifiedBody;
use super::object_file::{ObjectHeaders, ObjectRecord, read_record};
use super::object_store::{ObjectStore, StoredObject, or_absent};
use super::staging::StagedFile;
use super::unix_ms_now;

pub(super) const MAX_PART_NUMBER: u32 = 10_000;
const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;
const UPLOAD_FILE: &str = "upload";
const MAX_REMOVAL_ATTEMPTS: u32 = 100;

/// One entry of the list a client completes an upload with.
#[derive(Debug, Clone)]
pub(super) struct NamedPart {
    pub(super) number: u32,
    pub(super) etag: String,
}

/// What names an upload: all three must fit together.
#[derive(Debug, Clone)]
pub(super) struct UploadName {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) upload_id: String,
}

impl ObjectStore {
    pub(super) fn create_upload(
        &self,
        bucket: &str,
        key: &str,
        headers: ObjectHeaders,
    ) -> Result<String, StoreError> {
        self.bucket(bucket)?;
        let upload_id = Uuid::new_v4().simple().to_string();
        if self.uploads.make_subdirectory(bucket)? {
            self.uploads.sync()?;
        }
        let of_bucket = self.uploads.subdirectory(bucket)?;
        of_bucket.make_subdirectory(&upload_id)?;
        of_bucket.sync()?;
        let record = ObjectRecord {
            key: key.to_owned(),
            last_modified_unix_ms: unix_ms_now(),
            headers,
            upload_id: Some(upload_id.clone()),
            ..ObjectRecord::default()
        };
        let staged = StagedFile::create(&self.temporary, ChecksumHasher::default())?;
        let directory = of_bucket.subdirectory(&upload_id)?;
        staged.seal(&record)?.move_to(&directory, UPLOAD_FILE)?;
        directory.sync()?;
        Ok(upload_id)
    }

    pub(super) fn place_part(
        &self,
        name: &UploadName,
        number: u32,
        body: VerifiedBody,
    ) -> Result<ObjectRecord, StoreError> {
        let (directory, _) = self.open_upload(name)?;
        let record = ObjectRecord {
            key: name.key.clone(),
            size_bytes: body.staged.size_bytes(),
            etag: hex::encode(body.md5),
            last_modified_unix_ms: unix_ms_now(),
            checksums: body.checksums,
            ..ObjectRecord::default()
        };
        let mut sealed = body.staged.seal(&record)?;
        sealed
            .move_to(&directory, &part_file(number))
            .map_err(|error| or_absent(error, StoreError::NoSuchUpload))?;
        directory.sync()?;
        Ok(record)
    }

    /// All parts by number, in order.
    pub(super) fn parts(&self, name: &UploadName) -> Result<Vec<(u32, ObjectRecord)>, StoreError> {
        let (directory, _) = self.open_upload(name)?;
        let numbers = directory.names()?;
        let mut numbers: Vec<u32> = numbers
            .iter()
            .filter_map(|name| name.strip_prefix("part-")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let parts = numbers
            .into_iter()
            .filter_map(|number| Some((number, open_part(&directory, number).ok()?.record)));
        Ok(parts.collect())
    }

    /// Joins the named parts into the object. Repeating a completion that went through gives the same answer.
    pub(super) fn complete_upload(
        &self,
        name: &UploadName,
        parts: &[NamedPart],
        condition: &WriteCondition,
    ) -> Result<ObjectRecord, StoreError> {
        let (directory, upload) = match self.open_upload(name) {
            Err(StoreError::NoSuchUpload) => return self.completed_before(name),
            outcome => outcome?,
        };
        check_order(parts)?;
        let staged = self.join_parts(&directory, parts)?;
        let record = ObjectRecord {
            size_bytes: staged.size_bytes(),
            etag: joined_etag(parts)?,
            last_modified_unix_ms: unix_ms_now(),
            part_count: u32::try_from(parts.len()).ok(),
            ..upload
        };
        let sealed = staged.seal(&record)?;
        self.place(&name.bucket, &name.key, sealed, condition)?;
        match self.abort_upload(name) {
            Ok(()) | Err(StoreError::NoSuchUpload) => {}
            Err(error) => {
                tracing::warn!(%error, "embedded object store: parts of a completed upload remain")
            }
        }
        Ok(record)
    }

    fn completed_before(&self, name: &UploadName) -> Result<ObjectRecord, StoreError> {
        match self.read(&name.bucket, &name.key) {
            Ok(object) if object.record.upload_id.as_ref() == Some(&name.upload_id) => {
                Ok(object.record)
            }
            Ok(_) | Err(StoreError::NoSuchKey) => Err(StoreError::NoSuchUpload),
            Err(error) => Err(error),
        }
    }

    fn join_parts(
        &self,
        directory: &Directory,
        parts: &[NamedPart],
    ) -> Result<StagedFile, StoreError> {
        for (index, part) in parts.iter().enumerate() {
            let is_last = index + 1 == parts.len();
            let record = open_named_part(directory, part)?.record;
            if !is_last && record.size_bytes < MIN_PART_BYTES {
                return Err(StoreError::PartTooSmall);
            }
        }
        let mut staged = StagedFile::create(&self.temporary, ChecksumHasher::default())?;
        for part in parts {
            let stored = open_named_part(directory, part)?;
            staged.append_body(&stored.file, stored.record.size_bytes)?;
        }
        Ok(staged)
    }

    pub(super) fn abort_upload(&self, name: &UploadName) -> Result<(), StoreError> {
        self.open_upload(name)?;
        let of_bucket = self.uploads.subdirectory(&name.bucket)?;
        Ok(remove_upload(&of_bucket, &name.upload_id)?)
    }

    /// The records of all uploads under way in a bucket, by key and then by start.
    pub(super) fn uploads_of(&self, bucket: &str) -> Result<Vec<ObjectRecord>, StoreError> {
        self.bucket(bucket)?;
        let of_bucket = match self.uploads.subdirectory(bucket) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            outcome => outcome?,
        };
        let ids = of_bucket.names()?;
        let mut records: Vec<ObjectRecord> = ids
            .iter()
            .filter_map(|id| read_upload(&of_bucket, id).ok())
            .collect();
        records.sort_by(|left, right| sort_key(left).cmp(&sort_key(right)));
        Ok(records)
    }

    /// Removes what was begun in a bucket that is gone now.
    pub(super) fn remove_uploads_of(&self, bucket: &str) -> io::Result<()> {
        let of_bucket = match self.uploads.subdirectory(bucket) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            outcome => outcome?,
        };
        for id in of_bucket.names()? {
            remove_upload(&of_bucket, &id)?;
        }
        self.uploads.remove_empty_subdirectory(bucket)
    }

    /// Removes uploads that were started before a point in time, or whose record is damaged.
    pub(super) fn remove_uploads_before(&self, unix_ms: i64) -> io::Result<usize> {
        let mut removed = 0;
        for bucket in self.uploads.names()? {
            match self.remove_uploads_of_bucket_before(&bucket, unix_ms) {
                Ok(count) => removed += count,
                Err(error) => {
                    tracing::warn!(%error, "embedded object store: stale uploads of a bucket could not be removed");
                }
            }
        }
        Ok(removed)
    }

    fn remove_uploads_of_bucket_before(&self, bucket: &str, unix_ms: i64) -> io::Result<usize> {
        let of_bucket = self.uploads.subdirectory(bucket)?;
        let mut removed = 0;
        for id in of_bucket.names()? {
            let record = read_upload(&of_bucket, &id);
            if !record.is_ok_and(|record| record.last_modified_unix_ms >= unix_ms) {
                remove_upload(&of_bucket, &id)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    pub(super) fn open_upload(
        &self,
        name: &UploadName,
    ) -> Result<(Directory, ObjectRecord), StoreError> {
        self.bucket(&name.bucket)?;
        let is_ours = Uuid::try_parse(&name.upload_id)
            .is_ok_and(|id| id.simple().to_string() == name.upload_id);
        if !is_ours {
            return Err(StoreError::NoSuchUpload);
        }
        let absent = |error| or_absent(error, StoreError::NoSuchUpload);
        let of_bucket = self.uploads.subdirectory(&name.bucket).map_err(absent)?;
        let directory = of_bucket.subdirectory(&name.upload_id).map_err(absent)?;
        let record = read_upload(&of_bucket, &name.upload_id)?;
        if record.key != name.key {
            return Err(StoreError::NoSuchUpload);
        }
        Ok((directory, record))
    }
}

fn part_file(number: u32) -> String {
    format!("part-{number:05}")
}

fn sort_key(record: &ObjectRecord) -> (&str, i64, Option<&str>) {
    (
        &record.key,
        record.last_modified_unix_ms,
        record.upload_id.as_deref(),
    )
}

fn read_upload(of_bucket: &Directory, upload_id: &str) -> Result<ObjectRecord, StoreError> {
    let file = of_bucket.open_file(&format!("{upload_id}/{UPLOAD_FILE}"));
    let file = file.map_err(|error| or_absent(error, StoreError::NoSuchUpload))?;
    match read_record(&file).map_err(StoreError::from) {
        Err(StoreError::NoSuchKey) => Err(StoreError::NoSuchUpload),
        outcome => outcome,
    }
}

fn open_part(directory: &Directory, number: u32) -> Result<StoredObject, StoreError> {
    let file = directory.open_file(&part_file(number));
    let file = file.map_err(|error| or_absent(error, StoreError::InvalidPart(number)))?;
    let record = read_record(&file)?;
    Ok(StoredObject { record, file })
}

fn open_named_part(directory: &Directory, part: &NamedPart) -> Result<StoredObject, StoreError> {
    let stored = open_part(directory, part.number)?;
    if stored.record.etag != part.etag {
        return Err(StoreError::InvalidPart(part.number));
    }
    Ok(stored)
}

fn check_order(parts: &[NamedPart]) -> Result<(), StoreError> {
    let ascends = parts.is_sorted_by(|left, right| left.number < right.number);
    if ascends && !parts.is_empty() {
        Ok(())
    } else {
        Err(StoreError::InvalidPartOrder)
    }
}

/// S3's ETag of a joined object: the md5 of the parts' md5s and the number of parts.
fn joined_etag(parts: &[NamedPart]) -> Result<String, StoreError> {
    let mut md5 = Md5::new();
    for part in parts {
        let digest = hex::decode(&part.etag).map_err(|_| StoreError::InvalidPart(part.number))?;
        md5.update(&digest);
    }
    Ok(format!("{}-{}", hex::encode(md5.finalize()), parts.len()))
}

/// Removes an upload with its parts; a part that arrives meanwhile is removed as well.
fn remove_upload(of_bucket: &Directory, upload_id: &str) -> io::Result<()> {
    for _ in 0..MAX_REMOVAL_ATTEMPTS {
        let directory = match of_bucket.subdirectory(upload_id) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            outcome => outcome?,
        };
        for name in directory.names()? {
            match directory.remove_file(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match of_bucket.remove_empty_subdirectory(upload_id) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            outcome => return outcome,
        }
    }
    Err(io::ErrorKind::DirectoryNotEmpty.into())
}

#[cfg(test)]
mod tests;
