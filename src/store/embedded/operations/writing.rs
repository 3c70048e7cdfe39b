//! Operations that write or delete single objects: PutObject, DeleteObject, DeleteObjects.
//! Never accepts a feature it would silently drop, such as encryption or object locks.
//! Invariant: the answer is given after the object is on disk under its key.

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::super::conditions::WriteCondition;
use super::super::error::{StoreError, blocking};
use super::super::incoming_body::IncomingBody;
use super::super::object_file::{ObjectHeaders, ObjectRecord};
use super::super::unix_ms_now;
use super::{Answer, S3Operations, signed_bytes};

/// As in S3: all names and values of user metadata together.
const MAX_USER_METADATA_BYTES: usize = 2048;
/// From here on it is worth a look whether the bucket is there before the body is received.
const LARGE_BODY_BYTES: i64 = 1024 * 1024;
const MAX_KEYS_PER_DELETE: usize = 1000;

impl S3Operations {
    pub(super) async fn write_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> Answer<PutObjectOutput> {
        let input = request.input;
        refuse_unsupported(&input)?;
        let headers = headers_from(ObjectHeaders {
            content_type: input.content_type,
            content_disposition: input.content_disposition,
            content_encoding: stored_encoding(input.content_encoding),
            content_language: input.content_language,
            cache_control: input.cache_control,
            user_metadata: input.metadata.into_iter().flatten().collect(),
        })?;
        let condition = WriteCondition {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
        };
        let body = IncomingBody {
            stream: input.body,
            content_length: input.content_length,
            headers: request.headers,
            trailing_headers: request.trailing_headers,
        };
        if input
            .content_length
            .is_some_and(|bytes| bytes > LARGE_BODY_BYTES)
        {
            self.find_bucket(input.bucket.clone()).await?;
        }
        let received = body.receive(&self.store).await?;
        let store = Arc::clone(&self.store);
        let record = blocking(move || {
            let body = received.finish(&store)?;
            let record = ObjectRecord {
                key: input.key,
                size_bytes: body.staged.size_bytes(),
                etag: hex::encode(body.md5),
                last_modified_unix_ms: unix_ms_now(),
                headers,
                checksums: body.checksums,
                ..ObjectRecord::default()
            };
            let sealed = body.staged.seal(&record)?;
            store.place(&input.bucket, &record.key, sealed, &condition)?;
            Ok(record)
        });
        let record = record.await?;
        let checksum = |name: &str| record.checksums.get(name).cloned();
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(super::etag_of(&record)),
            size: Some(signed_bytes(record.size_bytes)),
            checksum_crc32: checksum("x-amz-checksum-crc32"),
            checksum_crc32c: checksum("x-amz-checksum-crc32c"),
            checksum_crc64nvme: checksum("x-amz-checksum-crc64nvme"),
            checksum_sha1: checksum("x-amz-checksum-sha1"),
            checksum_sha256: checksum("x-amz-checksum-sha256"),
            ..PutObjectOutput::default()
        }))
    }

    pub(super) async fn remove_object(
        &self,
        input: DeleteObjectInput,
    ) -> Answer<DeleteObjectOutput> {
        let store = Arc::clone(&self.store);
        let condition = WriteCondition {
            if_match: input.if_match,
            if_none_match: None,
        };
        blocking(move || store.delete(&input.bucket, &input.key, &condition)).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    pub(super) async fn remove_objects(
        &self,
        input: DeleteObjectsInput,
    ) -> Answer<DeleteObjectsOutput> {
        let is_quiet = input.delete.quiet.unwrap_or(false);
        let keys: Vec<String> = input
            .delete
            .objects
            .into_iter()
            .map(|object| object.key)
            .collect();
        if keys.is_empty() || keys.len() > MAX_KEYS_PER_DELETE {
            return Err(s3_error!(
                MalformedXML,
                "a batch names between 1 and 1000 keys"
            ));
        }
        let store = Arc::clone(&self.store);
        let outcomes = blocking(move || {
            let outcomes = store.delete_many(&input.bucket, &keys)?;
            Ok(keys.into_iter().zip(outcomes).collect::<Vec<_>>())
        });
        let mut deleted = Vec::new();
        let mut errors = Vec::new();
        for (key, outcome) in outcomes.await? {
            match outcome {
                Ok(()) if is_quiet => {}
                Ok(()) => deleted.push(DeletedObject {
                    key: Some(key),
                    ..DeletedObject::default()
                }),
                Err(error) => errors.push(batch_error(key, error)),
            }
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        }))
    }
}

fn batch_error(key: String, error: StoreError) -> Error {
    let error = s3s::S3Error::from(error);
    Error {
        code: Some(error.code().as_str().to_owned()),
        key: Some(key),
        message: error.message().map(str::to_owned),
        version_id: None,
    }
}

fn refuse_unsupported(input: &PutObjectInput) -> S3Result<()> {
    let asks_for_more = input.sse_customer_algorithm.is_some()
        || input.server_side_encryption.is_some()
        || input.object_lock_mode.is_some()
        || input.object_lock_legal_hold_status.is_some()
        || input.write_offset_bytes.is_some()
        || input.tagging.is_some();
    if asks_for_more {
        return Err(s3_error!(
            NotImplemented,
            "encryption, object locks, appending and tags are not supported"
        ));
    }
    Ok(())
}

/// Checks headers a client wants stored.
pub(super) fn headers_from(headers: ObjectHeaders) -> Result<ObjectHeaders, StoreError> {
    let pairs = headers.user_metadata.iter();
    let metadata_bytes: usize = pairs.map(|(name, value)| name.len() + value.len()).sum();
    if metadata_bytes > MAX_USER_METADATA_BYTES {
        return Err(StoreError::HeadersTooLarge);
    }
    Ok(headers)
}

/// `aws-chunked` describes the transfer, not the object, and was taken off by s3s.
pub(super) fn stored_encoding(content_encoding: Option<String>) -> Option<String> {
    let content_encoding = content_encoding?;
    let kept: Vec<&str> = content_encoding
        .split(',')
        .map(str::trim)
        .filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("aws-chunked"))
        .collect();
    (!kept.is_empty()).then(|| kept.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transfer_coding_is_not_stored_as_the_objects_encoding() {
        let stored = |value: &str| stored_encoding(Some(value.to_owned()));
        assert_eq!(stored("aws-chunked"), None);
        assert_eq!(stored("gzip,aws-chunked").as_deref(), Some("gzip"));
        assert_eq!(stored("gzip").as_deref(), Some("gzip"));
    }

    #[test]
    fn user_metadata_is_bounded_as_in_s3() {
        let with_value = |bytes: usize| ObjectHeaders {
            user_metadata: [("k".to_owned(), "v".repeat(bytes))].into(),
            ..ObjectHeaders::default()
        };
        assert!(headers_from(with_value(2047)).is_ok());
        assert!(matches!(
            headers_from(with_value(2048)),
            Err(StoreError::HeadersTooLarge)
        ));
    }
}
