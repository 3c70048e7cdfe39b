//! Takes a request body from the network into a staged file, in bounded memory.
//! Never writes on a tokio worker, and never calls a body complete that is shorter or longer than announced.
//! Invariant: at most two buffers of `BUFFER_BYTES` are held per request; the file work of a small body is one blocking task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use hyper::HeaderMap;
use s3s::TrailingHeaders;
use s3s::dto::StreamingBlob;

use super::digests::ExpectedDigests;
use super::error::StoreError;
use super::object_store::ObjectStore;
use super::staging::{MAX_BODY_BYTES, StagedFile};

const BUFFER_BYTES: usize = 1024 * 1024;
/// A client that sends nothing for this long is gone.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// A request body and what its headers say of it.
pub(super) struct IncomingBody {
    pub(super) stream: Option<StreamingBlob>,
    pub(super) content_length: Option<i64>,
    pub(super) headers: HeaderMap,
    pub(super) trailing_headers: Option<TrailingHeaders>,
}

/// A body that arrived whole; `finish` writes what is still in memory and checks the digests.
pub(super) struct ReceivedBody {
    staged: Option<StagedFile>,
    remaining: Vec<Bytes>,
    expected: ExpectedDigests,
}

/// A staged file whose content is what the client meant to send.
pub(super) struct VerifiedBody {
    pub(super) staged: StagedFile,
    pub(super) md5: [u8; 16],
    pub(super) checksums: BTreeMap<String, String>,
}

impl IncomingBody {
    pub(super) async fn receive(
        self,
        store: &Arc<ObjectStore>,
    ) -> Result<ReceivedBody, StoreError> {
        let announced_bytes = self.content_length.map(u64::try_from);
        let announced_bytes = announced_bytes
            .transpose()
            .map_err(|_| StoreError::IncompleteBody)?;
        if announced_bytes.is_some_and(|bytes| bytes > MAX_BODY_BYTES) {
            return Err(StoreError::TooLarge);
        }
        let mut expected = ExpectedDigests::from_headers(&self.headers)?;
        let mut writer = BackgroundWriter::new(Arc::clone(store));
        let mut buffer = Vec::new();
        let mut buffered_bytes = 0;
        let mut received_bytes = 0;
        if let Some(mut stream) = self.stream {
            while let Some(chunk) = next_chunk(&mut stream).await? {
                received_bytes += chunk.len() as u64;
                buffered_bytes += chunk.len();
                buffer.push(chunk);
                if buffered_bytes >= BUFFER_BYTES {
                    writer.write(std::mem::take(&mut buffer), &expected).await?;
                    buffered_bytes = 0;
                }
            }
        }
        if announced_bytes.is_some_and(|bytes| bytes != received_bytes) {
            return Err(StoreError::IncompleteBody);
        }
        if let Some(trailers) = self.trailing_headers.and_then(|trailers| trailers.take()) {
            expected.add_trailers(&trailers);
        }
        Ok(ReceivedBody {
            staged: writer.finish().await?,
            remaining: buffer,
            expected,
        })
    }
}

impl ReceivedBody {
    /// Blocking.
    pub(super) fn finish(self, store: &ObjectStore) -> Result<VerifiedBody, StoreError> {
        let mut staged = match self.staged {
            Some(staged) => staged,
            None => StagedFile::create(&store.temporary, self.expected.hasher())?,
        };
        staged.write_all(&self.remaining)?;
        let (md5, checksums) = staged.take_digests();
        let checksums = self.expected.verify(md5, &checksums)?;
        Ok(VerifiedBody {
            staged,
            md5,
            checksums,
        })
    }
}

/// Writes one buffer while the next one is being received.
struct BackgroundWriter {
    store: Arc<ObjectStore>,
    pending: Option<tokio::task::JoinHandle<Result<StagedFile, StoreError>>>,
}

impl BackgroundWriter {
    fn new(store: Arc<ObjectStore>) -> Self {
        Self {
            store,
            pending: None,
        }
    }

    async fn write(
        &mut self,
        chunks: Vec<Bytes>,
        expected: &ExpectedDigests,
    ) -> Result<(), StoreError> {
        let staged = self.finish().await?;
        let store = Arc::clone(&self.store);
        let hasher = expected.hasher();
        self.pending = Some(tokio::task::spawn_blocking(move || {
            let mut staged = match staged {
                Some(staged) => staged,
                None => StagedFile::create(&store.temporary, hasher)?,
            };
            staged.write_all(&chunks)?;
            Ok(staged)
        }));
        Ok(())
    }

    async fn finish(&mut self) -> Result<Option<StagedFile>, StoreError> {
        let Some(pending) = self.pending.take() else {
            return Ok(None);
        };
        pending.await.map_err(|_| StoreError::TaskFailed)?.map(Some)
    }
}

async fn next_chunk(stream: &mut StreamingBlob) -> Result<Option<Bytes>, StoreError> {
    let next = tokio::time::timeout(STALL_LIMIT, stream.next());
    match next.await {
        Err(_elapsed) => Err(StoreError::BodyTimeout),
        Ok(Some(Err(error))) => Err(body_error(error.as_ref())),
        Ok(chunk) => Ok(chunk.transpose().expect("errors were handled above")),
    }
}

/// s3s keeps its body error types to itself, so the one that matters is told apart by its text.
fn body_error(error: &(dyn std::error::Error + Send + Sync + 'static)) -> StoreError {
    let text = error.to_string();
    if text.contains("Sha256Mismatch") || text.contains("SignatureMismatch") {
        return StoreError::SignedHashMismatch;
    }
    tracing::debug!(
        error = text,
        "embedded object store: request body was not received"
    );
    StoreError::IncompleteBody
}
