//! Reading one workspace file, hashing it, and storing its content if the store does not have it.
//! Never reads a large file into memory, nor twice unless its hash may spare the upload. Invariant: the stored bytes are
//! exactly those that were hashed, and a file that changes while it is read is read again or left out, never stored half and half.

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
    pub settled: bool,
    content: Content,
}

/// What became of an upload that the store did not refuse.
pub(super) enum Uploaded {
    Whole {
        etag: String,
        sha256: String,
    },
    /// The file changed on the way, so nothing was stored.
    Changed,
}

enum Content {
    Small {
        bytes: Bytes,
        sha256: String,
    },
    /// Hashed on its way to the store, unless somebody had to know the hash before.
    Large {
        file: Arc<File>,
        sha256: Option<String>,
    },
}

/// A file's content at this moment, or why there is none to be had. `stored_bytes` is the size of what the store has: a file of
/// just that size may be the same, so it is hashed now.
pub(super) async fn snapshot(
    workspace: Arc<Workspace>,
    path: WorkspacePath,
    stored_bytes: Option<u64>,
) -> Result<Snapshot, &'static str> {
    let read = tokio::task::spawn_blocking(move || {
        for _ in 0..READ_TRIES {
            match read_once(&workspace, &path, stored_bytes) {
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

fn read_once(
    workspace: &Workspace,
    path: &WorkspacePath,
    stored_bytes: Option<u64>,
) -> io::Result<Option<Snapshot>> {
    let mut started = SystemTime::now();
    let mut opened = workspace.open_file(path)?;
    if opened.facts.size_bytes > PART_BYTES && !is_settled(&opened.facts, started) {
        // It is not read twice, so a change on the way must show in its times: let the clock tick first.
        std::thread::sleep(CLOCK_TICK);
        started = SystemTime::now();
        opened.facts = opened.facts_now()?;
    }
    let size = opened.facts.size_bytes;
    let content = if size <= PART_BYTES {
        let bytes = read_small(&mut opened, size)?;
        Content::Small {
            sha256: hex::encode(Sha256::digest(&bytes)),
            bytes: Bytes::from(bytes),
        }
    } else {
        let may_be_stored = stored_bytes == Some(size);
        Content::Large {
            sha256: match may_be_stored {
                true => Some(hash_large(&opened.file, size)?),
                false => None,
            },
            file: Arc::new(opened.file.try_clone()?),
        }
    };
    if opened.facts_now()? != opened.facts {
        return Ok(None);
    }
    Ok(Some(Snapshot {
        settled: is_settled(&opened.facts, started),
        facts: opened.facts,
        content,
    }))
}

fn read_small(opened: &mut OpenedFile, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size as usize + 1);
    // One byte more than expected shows a file that grew; `facts_now` then asks for another try.
    (&mut opened.file).take(size + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn hash_large(file: &File, size: u64) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < size {
        let count = file.read_at(&mut buffer, offset)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        offset += count as u64;
    }
    Ok(hex::encode(hasher.finalize()))
}

fn is_settled(facts: &FileFacts, read_started: SystemTime) -> bool {
    let started_ns = read_started
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as i64);
    started_ns - facts.ctime_ns.max(facts.mtime_ns) > CLOCK_TICK.as_nanos() as i64
}

impl Snapshot {
    /// The hash, if it is known before the upload.
    pub fn sha256(&self) -> Option<&str> {
        match &self.content {
            Content::Small { sha256, .. } => Some(sha256),
            Content::Large { sha256, .. } => sha256.as_deref(),
        }
    }

    /// The hash of a file that could not be uploaded; None if the file is not what it was any more.
    pub async fn hash_now(&self) -> Option<String> {
        let Content::Large { file, sha256: None } = &self.content else {
            return self.sha256().map(str::to_owned);
        };
        let (file, facts) = (file.clone(), self.facts);
        let hashed = tokio::task::spawn_blocking(move || {
            let sha256 = hash_large(&file, facts.size_bytes).ok()?;
            is_still(&file, &facts).then_some(sha256)
        });
        hashed.await.ok().flatten()
    }
}

/// Whether nobody has written since; where the blocks of a file lie may change without that.
fn is_still(file: &File, facts: &FileFacts) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        let now = FileFacts::of(&stat);
        let (allocated_bytes, mode) = (facts.allocated_bytes, facts.mode);
        *facts
            == FileFacts {
                allocated_bytes,
                mode,
                ..now
            }
    })
}

impl ObjectStore {
    /// Stores the snapshot's bytes under `key`.
    pub(super) async fn upload(
        &self,
        key: &str,
        content_type: &str,
        snapshot: &Snapshot,
    ) -> Result<Uploaded, StoreError> {
        match &snapshot.content {
            Content::Small { bytes, sha256 } => Ok(Uploaded::Whole {
                etag: self.put(key, bytes.clone(), content_type).await?,
                sha256: sha256.clone(),
            }),
            Content::Large { file, .. } => {
                self.upload_parts(key, content_type, file, snapshot).await
            }
        }
    }

    async fn upload_parts(
        &self,
        key: &str,
        content_type: &str,
        file: &Arc<File>,
        snapshot: &Snapshot,
    ) -> Result<Uploaded, StoreError> {
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
        let sent = self
            .send_parts(key, &upload_id, file, snapshot.facts.size_bytes)
            .await;
        let is_the_same = |sha256: &String| {
            snapshot.sha256().is_none_or(|known| known == sha256) && is_still(file, &snapshot.facts)
        };
        match sent {
            Ok((parts, sha256)) if is_the_same(&sha256) => {
                let etag = self.complete(key, &upload_id, parts).await?;
                Ok(Uploaded::Whole { etag, sha256 })
            }
            other => {
                self.abort(key, &upload_id).await;
                other.map(|_| Uploaded::Changed)
            }
        }
    }

    async fn complete(
        &self,
        key: &str,
        upload_id: &str,
        parts: Vec<CompletedPart>,
    ) -> Result<String, StoreError> {
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(parts))
            .build();
        let complete = self
            .client
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(key)
            .upload_id(upload_id)
            .multipart_upload(parts);
        let completed = complete.send().await;
        let completed = completed.map_err(|error| failed("complete an upload", error))?;
        Ok(completed.e_tag().unwrap_or_default().to_owned())
    }

    async fn abort(&self, key: &str, upload_id: &str) {
        let abort = self
            .client
            .abort_multipart_upload()
            .bucket(&self.bucket)
            .key(key);
        if let Err(error) = abort.upload_id(upload_id).send().await {
            tracing::warn!(error = %failed("abort an upload", error), "parts of an upload stay behind");
        }
    }

    /// Reads the parts one after the other, hashing them, while earlier ones are still on their way.
    async fn send_parts(
        &self,
        key: &str,
        upload_id: &str,
        file: &Arc<File>,
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
