//! CopyObject: a new object from the bytes of another one, without sending them over the network.
//! Never changes the source, and never lets an object be copied onto itself unchanged.
//! Invariant: the bytes are copied from one open file, so a source that is replaced meanwhile does not mix in.

use std::sync::Arc;

use s3s::checksum::ChecksumHasher;
use s3s::dto::*;
use s3s::{S3Response, S3Result, s3_error};

use super::super::conditions::{ReadCondition, ReadDecision, WriteCondition};
use super::super::error::{StoreError, blocking};
use super::super::object_file::{ObjectHeaders, ObjectRecord};
use super::super::staging::StagedFile;
use super::super::unix_ms_now;
use super::writing::{headers_from, stored_encoding};
use super::{Answer, S3Operations, etag_of, last_modified_of};

impl S3Operations {
    pub(super) async fn duplicate_object(
        &self,
        input: CopyObjectInput,
    ) -> Answer<CopyObjectOutput> {
        if input.sse_customer_algorithm.is_some()
            || input.server_side_encryption.is_some()
            || input.tagging.is_some()
        {
            return Err(s3_error!(
                NotImplemented,
                "encryption and tags are not supported"
            ));
        }
        let (source_bucket, source_key) = source_of(&input.copy_source)?;
        let replaces_headers = input
            .metadata_directive
            .is_some_and(|directive| directive.as_str() == MetadataDirective::REPLACE);
        if !replaces_headers && source_bucket == input.bucket && source_key == input.key {
            return Err(s3_error!(
                InvalidRequest,
                "an object cannot be copied onto itself unchanged"
            ));
        }
        let new_headers = headers_from(ObjectHeaders {
            content_type: input.content_type,
            content_disposition: input.content_disposition,
            content_encoding: stored_encoding(input.content_encoding),
            content_language: input.content_language,
            cache_control: input.cache_control,
            user_metadata: input.metadata.into_iter().flatten().collect(),
        })?;
        let condition = ReadCondition {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let store = Arc::clone(&self.store);
        let record = blocking(move || {
            let source = store.read(&source_bucket, &source_key)?;
            if condition.decide(&source.record) != ReadDecision::Proceed {
                return Err(StoreError::PreconditionFailed);
            }
            let mut staged = StagedFile::create(&store.temporary, ChecksumHasher::default())?;
            staged.append_body(&source.file, source.record.size_bytes)?;
            let mut record = ObjectRecord {
                key: input.key,
                last_modified_unix_ms: unix_ms_now(),
                upload_id: None,
                ..source.record
            };
            if replaces_headers {
                record.headers = new_headers;
            }
            let sealed = staged.seal(&record)?;
            store.place(
                &input.bucket,
                &record.key,
                sealed,
                &WriteCondition::default(),
            )?;
            Ok(record)
        });
        let record = record.await?;
        let result = CopyObjectResult {
            e_tag: Some(etag_of(&record)),
            last_modified: Some(last_modified_of(&record)),
            ..CopyObjectResult::default()
        };
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            ..CopyObjectOutput::default()
        }))
    }
}

fn source_of(source: &CopySource) -> S3Result<(String, String)> {
    match source {
        CopySource::Bucket {
            bucket,
            key,
            version_id: None,
        } => Ok((bucket.to_string(), key.to_string())),
        _ => Err(s3_error!(
            NotImplemented,
            "only objects of this server without a version can be copied"
        )),
    }
}
