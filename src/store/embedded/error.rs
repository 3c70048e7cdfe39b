//! What can go wrong in the store, and the one table that turns it into S3 error codes.
//! Never carries a path, a key or a secret to the client.
//! Invariant: a failure of the disk is logged here once and leaves as `InternalError` or 507, nothing more.

use std::io;

use s3s::{S3Error, S3ErrorCode, s3_error};

use super::object_file::ObjectFileError;

#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("bucket does not exist")]
    NoSuchBucket,
    #[error("bucket still holds objects")]
    BucketNotEmpty,
    #[error("object does not exist")]
    NoSuchKey,
    #[error("key is empty or longer than 1024 bytes")]
    InvalidKey,
    #[error("a precondition of the request does not hold")]
    PreconditionFailed,
    #[error("multipart upload does not exist")]
    NoSuchUpload,
    #[error("part {0} is missing or its etag differs")]
    InvalidPart(u32),
    #[error("parts are not in ascending order")]
    InvalidPartOrder,
    #[error("a part other than the last is smaller than 5 MiB")]
    PartTooSmall,
    #[error("object is larger than 5 GiB")]
    TooLarge,
    #[error("headers of the object are too large")]
    HeadersTooLarge,
    #[error("body ended early, was altered or is longer than announced")]
    IncompleteBody,
    #[error("sha256 of the body does not match the signed one")]
    SignedHashMismatch,
    #[error("body stalled")]
    BodyTimeout,
    #[error("digest of the body does not match {0}")]
    BadDigest(&'static str),
    #[error("{0} is not a valid digest")]
    InvalidDigest(&'static str),
    #[error("object store operation failed")]
    Io(#[from] io::Error),
    #[error("object store task ended early")]
    TaskFailed,
}

impl From<ObjectFileError> for StoreError {
    fn from(error: ObjectFileError) -> Self {
        match error {
            ObjectFileError::Damaged(_) => Self::NoSuchKey,
            ObjectFileError::Io(error) => Self::Io(error),
        }
    }
}

impl From<StoreError> for S3Error {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::NoSuchBucket => S3ErrorCode::NoSuchBucket,
            StoreError::BucketNotEmpty => S3ErrorCode::BucketNotEmpty,
            StoreError::NoSuchKey => S3ErrorCode::NoSuchKey,
            StoreError::InvalidKey => S3ErrorCode::KeyTooLongError,
            StoreError::PreconditionFailed => S3ErrorCode::PreconditionFailed,
            StoreError::NoSuchUpload => S3ErrorCode::NoSuchUpload,
            StoreError::InvalidPart(_) => S3ErrorCode::InvalidPart,
            StoreError::InvalidPartOrder => S3ErrorCode::InvalidPartOrder,
            StoreError::PartTooSmall => S3ErrorCode::EntityTooSmall,
            StoreError::TooLarge => S3ErrorCode::EntityTooLarge,
            StoreError::HeadersTooLarge => S3ErrorCode::MetadataTooLarge,
            StoreError::IncompleteBody => S3ErrorCode::IncompleteBody,
            StoreError::SignedHashMismatch => {
                S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into())
            }
            StoreError::BodyTimeout => S3ErrorCode::RequestTimeout,
            StoreError::BadDigest(_) => S3ErrorCode::BadDigest,
            StoreError::InvalidDigest(_) => S3ErrorCode::InvalidDigest,
            StoreError::Io(source) if is_storage_full(source) => return storage_full(),
            StoreError::Io(source) => {
                tracing::error!(error = %source, "embedded object store: disk operation failed");
                return s3_error!(InternalError, "the object store could not use its disk");
            }
            StoreError::TaskFailed => S3ErrorCode::InternalError,
        };
        let needs_status = matches!(code, S3ErrorCode::Custom(_));
        let mut answer = S3Error::with_message(code, error.to_string());
        if needs_status {
            answer.set_status_code(hyper::StatusCode::BAD_REQUEST);
        }
        answer
    }
}

fn is_storage_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

fn storage_full() -> S3Error {
    tracing::error!("embedded object store: the disk is full");
    let code = S3ErrorCode::Custom("InsufficientStorage".into());
    let mut answer = S3Error::with_message(code, "the object store has no space left");
    answer.set_status_code(hyper::StatusCode::INSUFFICIENT_STORAGE);
    answer
}

/// Runs file work on the blocking pool, where it may wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => {
            tracing::error!(%error, "embedded object store: file task ended early");
            Err(StoreError::TaskFailed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_507_and_says_so() {
        let full = io::Error::from_raw_os_error(28);
        let answer = S3Error::from(StoreError::Io(full));
        assert_eq!(
            answer.status_code(),
            Some(hyper::StatusCode::INSUFFICIENT_STORAGE)
        );
        assert_eq!(answer.code().as_str(), "InsufficientStorage");
    }

    #[test]
    fn other_disk_errors_reveal_nothing() {
        let denied = io::Error::other("/secret/path");
        let answer = S3Error::from(StoreError::Io(denied));
        assert_eq!(answer.code(), &S3ErrorCode::InternalError);
        assert!(!answer.to_string().contains("secret"));
    }
}
