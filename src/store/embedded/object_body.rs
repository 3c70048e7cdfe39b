//! The body of a GET: a range of an object file as a stream of buffers.
//! Never reads on a tokio worker and never past the range, so the record behind the body stays private.
//! Invariant: a small body is one buffer read together with the record; a large one is read ahead by one buffer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use s3s::StdError;
use s3s::dto::StreamingBlob;
use s3s::stream::{ByteStream, RemainingLength};
use tokio::task::JoinHandle;

const BUFFER_BYTES: u64 = 256 * 1024;

/// The part of an object a client asked for.
#[derive(Debug)]
pub(super) struct ObjectBody {
    file: Arc<File>,
    unread: Range<u64>,
    ready: Option<Bytes>,
    pending: Option<JoinHandle<io::Result<Bytes>>>,
}

impl ObjectBody {
    /// Blocking: reads the first buffer.
    pub(super) fn open(file: File, range: Range<u64>) -> io::Result<Self> {
        let first = first_buffer(&range);
        let bytes = read_range(&file, first.clone())?;
        Ok(Self {
            file: Arc::new(file),
            unread: first.end..range.end,
            ready: Some(bytes),
            pending: None,
        })
    }

    pub(super) fn into_blob(self) -> StreamingBlob {
        StreamingBlob::new(self)
    }

    fn read_ahead(&mut self) {
        if self.unread.is_empty() || self.pending.is_some() {
            return;
        }
        let next = first_buffer(&self.unread);
        self.unread.start = next.end;
        let file = Arc::clone(&self.file);
        self.pending = Some(tokio::task::spawn_blocking(move || read_range(&file, next)));
    }
}

impl Stream for ObjectBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(bytes) = self.ready.take() {
            self.read_ahead();
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(bytes)));
            }
        }
        let Some(pending) = self.pending.as_mut() else {
            return Poll::Ready(None);
        };
        let outcome = ready!(Pin::new(pending).poll(context));
        self.pending = None;
        let bytes = match outcome {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Poll::Ready(Some(Err(Box::new(error)))),
            Err(error) => return Poll::Ready(Some(Err(Box::new(error)))),
        };
        self.read_ahead();
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl ByteStream for ObjectBody {
    fn remaining_length(&self) -> RemainingLength {
        if self.pending.is_some() {
            return RemainingLength::unknown();
        }
        let ready = self.ready.as_ref().map_or(0, Bytes::len) as u64;
        let remaining = ready + (self.unread.end - self.unread.start);
        usize::try_from(remaining)
            .map_or_else(|_| RemainingLength::unknown(), RemainingLength::new_exact)
    }
}

fn first_buffer(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min(range.start + BUFFER_BYTES)
}

fn read_range(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, range.start)?;
    Ok(buffer.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::TryStreamExt as _;
    use std::io::Write;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    async fn collect(body: ObjectBody) -> Vec<u8> {
        let chunks: Vec<Bytes> = body.try_collect().await.unwrap();
        chunks.concat()
    }

    #[tokio::test]
    async fn a_range_over_many_buffers_arrives_in_order() {
        let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let range = 3..3_500_001;
        let body = ObjectBody::open(file_of(&bytes), range.clone()).unwrap();
        assert_eq!(body.remaining_length().exact(), Some(3_499_998));
        assert_eq!(collect(body).await, bytes[3..3_500_001]);
    }

    #[tokio::test]
    async fn an_empty_range_is_an_empty_body() {
        let body = ObjectBody::open(file_of(b"trailer"), 0..0).unwrap();
        assert!(collect(body).await.is_empty());
    }

    #[tokio::test]
    async fn a_file_that_lost_its_end_ends_the_body_with_an_error() {
        let file = file_of(&vec![1; 600_000]);
        let body = ObjectBody::open(file.try_clone().unwrap(), 0..600_000).unwrap();
        file.set_len(300_000).unwrap();
        let outcome: Result<Vec<Bytes>, _> = body.try_collect().await;
        assert!(outcome.is_err());
    }
}
