//! Reading one workspace file, hashing it, and storing its content if the store does not have it.
//! Never reads a large file into memory. Invariant: the stored bytes are exactly those that were hashed,
//! and a file that changes while it is read is read again or left out, never stored half and half.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sha2::{Digest, Sha256};

use super::client::{ObjectStore, StoreError, failed};
use crate::model::path::WorkspacePath;
use crate::workspace::{FileFacts, OpenedFile, Workspace};

/// Larger files go up in parts of this size, a few at a time.
const PART_BYTES: u64 = 8 * 1024 * 1024;
const PARTS_AT_ONCE: usize = 4;
const READ_TRIES: usize = 3;
/// File time stamps tick with the kernel's clock, at worst every 10 ms.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// A file's content at one moment.
pub(super) struct Snapshot {
    pub facts: FileFacts,
    pub sha256: String,
    pub settled: bool,
    content: Content,
}

enum Content {
    Small(Bytes),
    Large(Arc<File>),
}

/// A file's content at this moment, or why there is none to be had.
pub(super) async fn snapshot(
    workspace: Arc<Workspace>,
    path: WorkspacePath,
) -> Result<Snapshot, &'static str> {
    let read = tokio::task::spawn_blocking(move || {
        for _ in 0..READ_TRIES {
            match read_once(&workspace, &path) {
                Ok(Some(snapshot)) => return Ok(snapshot),
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err("the file vanished while it was read");
                }
                Err(_) => return Err("the file cannot be read"),
            }
        }
        Err("the file kept changing while it was read")
    });
    read.await.unwrap_or(Err("the file cannot be read"))
}

fn read_once(workspace: &Workspace, path: &WorkspacePath) -> io::Result<Option<Snapshot>> {
    let started = SystemTime::now();
    let mut opened = workspace.open_file(path)?;
    let size = opened.facts.size_bytes;
    let (sha256, content) = if size <= PART_BYTES {
        let bytes = read_small(&mut opened, size)?;
        (
            hex::encode(Sha256::digest(&bytes)),
            Content::Small(Bytes::from(bytes)),
        )
    } else {
        (
            hash_large(&mut opened.file, size)?,
            Content::Large(Arc::new(opened.file.try_clone()?)),
        )
    };
    if opened.facts_now()? != opened.facts {
        return Ok(None);
    }
    Ok(Some(Snapshot {
        settled: is_settled(&opened.facts, started),
        facts: opened.facts,
        sha256,
        content,
    }))
}

fn read_small(opened: &mut OpenedFile, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size as usize + 1);
    // One byte more than expected shows a file that grew; `facts_now` then asks for another try.
    (&mut opened.file).take(size + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn hash_large(file: &mut File, size: u64) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        left = left.saturating_sub(count as u64);
    }
    Ok(hex::encode(hasher.finalize()))
}

fn is_settled(facts: &FileFacts, read_started: SystemTime) -> bool {
    let started_ns = read_started
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as i64);
    started_ns - facts.ctime_ns.max(facts.mtime_ns) > CLOCK_TICK.as_nanos() as i64
}

impl ObjectStore {
    /// Stores the snapshot's bytes under `key`; None if they changed on the way.
    pub(super) async fn upload(
        &self,
        key: &str,
        content_type: &str,
        snapshot: &Snapshot,
    ) -> Result<Option<String>, StoreError> {
        match &snapshot.content {
            Content::Small(bytes) => self.put(key, bytes.clone(), content_type).await.map(Some),
            Content::Large(file) => {
                self.upload_parts(key, content_type, file.clone(), snapshot)
                    .await
            }
        }
    }

    async fn upload_parts(
        &self,
        key: &str,
        content_type: &str,
        file: Arc<File>,
        snapshot: &Snapshot,
    ) -> Result<Option<String>, StoreError> {
        let begin = self
            .client
            .create_multipart_upload()
            .bucket(&self.bucket)
            .key(key)
            .content_type(content_type);
        let begun = begin
            .send()
            .await
            .map_err(|error| failed("begin an upload", error))?;
        let upload_id = begun.upload_id().unwrap_or_default().to_owned();
        let outcome = self
            .send_parts(key, &upload_id, file, snapshot.facts.size_bytes)
            .await;
        match outcome {
            Ok((parts, sha256)) if sha256 == snapshot.sha256 => {
                let parts = CompletedMultipartUpload::builder()
                    .set_parts(Some(parts))
                    .build();
                let complete = self
                    .client
                    .complete_multipart_upload()
                    .bucket(&self.bucket)
                    .key(key);
                let complete = complete
                    .upload_id(&upload_id)
                    .multipart_upload(parts)
                    .send()
                    .await;
                let complete = complete.map_err(|error| failed("complete an upload", error))?;
                Ok(Some(complete.e_tag().unwrap_or_default().to_owned()))
            }
            other => {
                let abort = self
                    .client
                    .abort_multipart_upload()
                    .bucket(&self.bucket)
                    .key(key);
                if let Err(error) = abort.upload_id(&upload_id).send().await {
                    tracing::warn!(error = %failed("abort an upload", error), "parts of an upload stay behind");
                }
                other.map(|_| None)
            }
        }
    }

    /// Reads the parts one after the other, hashing them, while earlier ones are still on their way.
    async fn send_parts(
        &self,
        key: &str,
        upload_id: &str,
        file: Arc<File>,
        size: u64,
    ) -> Result<(Vec<CompletedPart>, String), StoreError> {
        let mut hasher = Sha256::new();
        let mut sending = FuturesUnordered::new();
        let mut parts = Vec::new();
        for number in 1..=size.div_ceil(PART_BYTES) {
            let buffer = self.part_buffers.acquire().await;
            let bytes;
            (hasher, bytes) = read_part(file.clone(), hasher, number, size).await?;
            let part = self.send_part(key, upload_id, number as i32, bytes);
            sending.push(async move {
                let _until_sent = buffer;
                part.await
            });
            if sending.len() >= PARTS_AT_ONCE
                && let Some(part) = sending.next().await
            {
                parts.push(part?);
            }
        }
        while let Some(part) = sending.next().await {
            parts.push(part?);
        }
        parts.sort_by_key(|part: &CompletedPart| part.part_number());
        Ok((parts, hex::encode(hasher.finalize())))
    }

    async fn send_part(
        &self,
        key: &str,
        upload_id: &str,
        number: i32,
        bytes: Bytes,
    ) -> Result<CompletedPart, StoreError> {
        let part = self
            .client
            .upload_part()
            .bucket(&self.bucket)
            .key(key)
            .upload_id(upload_id)
            .part_number(number);
        let sent = part
            .body(ByteStream::from(bytes))
            .send()
            .await
            .map_err(|error| failed("store a part", error))?;
        Ok(CompletedPart::builder()
            .part_number(number)
            .set_e_tag(sent.e_tag().map(str::to_owned))
            .build())
    }
}

async fn read_part(
    file: Arc<File>,
    mut hasher: Sha256,
    number: u64,
    size: u64,
) -> io::Result<(Sha256, Bytes)> {
    let read = tokio::task::spawn_blocking(move || {
        let offset = (number - 1) * PART_BYTES;
        let mut bytes = vec![0; PART_BYTES.min(size - offset) as usize];
        file.read_exact_at(&mut bytes, offset)?;
        hasher.update(&bytes);
        Ok((hasher, Bytes::from(bytes)))
    });
    read.await.map_err(io::Error::other)?
}
