//! Multipart operations: create, upload part, complete, abort, and the two lists.
//! Never keeps state in memory: every operation starts from the files of the upload.
//! Invariant: part numbers are 1 to 10,000 and checked here, before they name a file.

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::super::conditions::WriteCondition;
use super::super::error::{StoreError, blocking};
use super::super::incoming_body::IncomingBody;
use super::super::listing::common_prefix;
use super::super::multipart::{MAX_PART_NUMBER, NamedPart, UploadName};
use super::super::object_file::{ObjectHeaders, ObjectRecord};
use super::lists::{NameEncoder, bounded_entries};
use super::writing::{headers_from, stored_encoding};
use super::{Answer, S3Operations, etag_of, last_modified_of, signed_bytes};

impl S3Operations {
    pub(super) async fn start_upload(
        &self,
        input: CreateMultipartUploadInput,
    ) -> Answer<CreateMultipartUploadOutput> {
        if input.sse_customer_algorithm.is_some()
            || input.server_side_encryption.is_some()
            || input.tagging.is_some()
        {
            return Err(s3_error!(
                NotImplemented,
                "encryption and tags are not supported"
            ));
        }
        let headers = headers_from(ObjectHeaders {
            content_type: input.content_type,
            content_disposition: input.content_disposition,
            content_encoding: stored_encoding(input.content_encoding),
            content_language: input.content_language,
            cache_control: input.cache_control,
            user_metadata: input.metadata.into_iter().flatten().collect(),
        })?;
        let store = Arc::clone(&self.store);
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let upload_id = blocking(move || store.create_upload(&bucket, &key, headers)).await?;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(upload_id),
            checksum_algorithm: input.checksum_algorithm,
            ..CreateMultipartUploadOutput::default()
        }))
    }

    pub(super) async fn write_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> Answer<UploadPartOutput> {
        let input = request.input;
        let number = part_number(Some(input.part_number))?;
        let name = UploadName {
            bucket: input.bucket,
            key: input.key,
            upload_id: input.upload_id,
        };
        // Before the body is taken: gigabytes for an upload that is not there should not be received first.
        let store = Arc::clone(&self.store);
        let name = blocking(move || store.open_upload(&name).map(|_| name)).await?;
        let body = IncomingBody {
            stream: input.body,
            content_length: input.content_length,
            headers: request.headers,
            trailing_headers: request.trailing_headers,
        };
        let received = body.receive(&self.store).await?;
        let store = Arc::clone(&self.store);
        let record = blocking(move || {
            let body = received.finish(&store)?;
            store.place_part(&name, number, body)
        });
        let record = record.await?;
        let checksum = |name: &str| record.checksums.get(name).cloned();
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(etag_of(&record)),
            checksum_crc32: checksum("x-amz-checksum-crc32"),
            checksum_crc32c: checksum("x-amz-checksum-crc32c"),
            checksum_crc64nvme: checksum("x-amz-checksum-crc64nvme"),
            checksum_sha1: checksum("x-amz-checksum-sha1"),
            checksum_sha256: checksum("x-amz-checksum-sha256"),
            ..UploadPartOutput::default()
        }))
    }

    pub(super) async fn finish_upload(
        &self,
        input: CompleteMultipartUploadInput,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let parts = input
            .multipart_upload
            .and_then(|upload| upload.parts)
            .unwrap_or_default();
        let parts = parts
            .into_iter()
            .map(named_part)
            .collect::<S3Result<Vec<_>>>()?;
        if parts.is_empty() {
            return Err(s3_error!(MalformedXML, "at least one part must be named"));
        }
        let condition = WriteCondition {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
        };
        let name = UploadName {
            bucket: input.bucket.clone(),
            key: input.key.clone(),
            upload_id: input.upload_id,
        };
        let store = Arc::clone(&self.store);
        let record = blocking(move || store.complete_upload(&name, &parts, &condition)).await?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(etag_of(&record)),
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    pub(super) async fn give_up_upload(
        &self,
        input: AbortMultipartUploadInput,
    ) -> Answer<AbortMultipartUploadOutput> {
        let name = UploadName {
            bucket: input.bucket,
            key: input.key,
            upload_id: input.upload_id,
        };
        let store = Arc::clone(&self.store);
        blocking(move || store.abort_upload(&name)).await?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    pub(super) async fn list_parts_of_upload(
        &self,
        input: ListPartsInput,
    ) -> Answer<ListPartsOutput> {
        let max_parts = bounded_entries(input.max_parts)?;
        let marker = input.part_number_marker.unwrap_or(0);
        let name = UploadName {
            bucket: input.bucket.clone(),
            key: input.key.clone(),
            upload_id: input.upload_id.clone(),
        };
        let store = Arc::clone(&self.store);
        let all = blocking(move || store.parts(&name)).await?;
        let mut parts: Vec<Part> = all.iter().map(described_part).collect();
        parts.retain(|part| part.part_number > Some(marker));
        let is_truncated = parts.len() > max_parts;
        parts.truncate(max_parts);
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            max_parts: i32::try_from(max_parts).ok(),
            part_number_marker: Some(marker),
            next_part_number_marker: parts.last().and_then(|part| part.part_number),
            is_truncated: Some(is_truncated),
            parts: Some(parts),
            ..ListPartsOutput::default()
        }))
    }

    pub(super) async fn list_uploads(
        &self,
        input: ListMultipartUploadsInput,
    ) -> Answer<ListMultipartUploadsOutput> {
        let encoder = NameEncoder::new(input.encoding_type.as_ref())?;
        let max_uploads = bounded_entries(input.max_uploads)?;
        let store = Arc::clone(&self.store);
        let bucket = input.bucket.clone();
        let mut records = blocking(move || store.uploads_of(&bucket)).await?;
        let prefix = input.prefix.clone().unwrap_or_default();
        records.retain(|record| record.key.starts_with(&prefix));
        let mut common_prefixes: Vec<String> = records
            .iter()
            .filter_map(|record| common_prefix(&record.key, &prefix, input.delimiter.as_deref()))
            .map(str::to_owned)
            .collect();
        common_prefixes.dedup();
        records.retain(|record| {
            common_prefix(&record.key, &prefix, input.delimiter.as_deref()).is_none()
        });
        skip_to_marker(
            &mut records,
            input.key_marker.as_deref(),
            input.upload_id_marker.as_deref(),
        );
        let is_truncated = records.len() > max_uploads;
        records.truncate(max_uploads);
        let last = records.last().filter(|_| is_truncated);
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: encoder.optional(input.prefix),
            delimiter: encoder.optional(input.delimiter),
            key_marker: encoder.optional(input.key_marker),
            upload_id_marker: input.upload_id_marker,
            next_key_marker: encoder.optional(last.map(|record| record.key.clone())),
            next_upload_id_marker: last.and_then(|record| record.upload_id.clone()),
            encoding_type: input.encoding_type,
            max_uploads: i32::try_from(max_uploads).ok(),
            is_truncated: Some(is_truncated),
            common_prefixes: Some(encoder.prefixes(common_prefixes)),
            uploads: Some(
                records
                    .into_iter()
                    .map(|record| described_upload(record, encoder))
                    .collect(),
            ),
            ..ListMultipartUploadsOutput::default()
        }))
    }
}

fn part_number(number: Option<i32>) -> S3Result<u32> {
    let number = number.and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| (1..=MAX_PART_NUMBER).contains(number))
        .ok_or_else(|| s3_error!(InvalidArgument, "part numbers are 1 to 10000"))
}

fn named_part(part: CompletedPart) -> S3Result<NamedPart> {
    let number = part_number(part.part_number)?;
    let etag = part.e_tag.ok_or(StoreError::InvalidPart(number))?;
    Ok(NamedPart {
        number,
        etag: etag.into_value(),
    })
}

fn described_part((number, record): &(u32, ObjectRecord)) -> Part {
    Part {
        part_number: i32::try_from(*number).ok(),
        e_tag: Some(etag_of(record)),
        last_modified: Some(last_modified_of(record)),
        size: Some(signed_bytes(record.size_bytes)),
        ..Part::default()
    }
}

fn described_upload(record: ObjectRecord, encoder: NameEncoder) -> MultipartUpload {
    MultipartUpload {
        initiated: Some(last_modified_of(&record)),
        upload_id: record.upload_id,
        key: Some(encoder.encode(record.key)),
        ..MultipartUpload::default()
    }
}

/// Records are sorted by key; within the marker's key those up to the marked upload were listed before.
fn skip_to_marker(
    records: &mut Vec<ObjectRecord>,
    key_marker: Option<&str>,
    upload_id_marker: Option<&str>,
) {
    let Some(key_marker) = key_marker else {
        return;
    };
    let marked = upload_id_marker.and_then(|marker| {
        let mut records = records.iter();
        records.position(|record| {
            record.key == key_marker && record.upload_id.as_deref() == Some(marker)
        })
    });
    match marked {
        Some(index) => drop(records.drain(..=index)),
        None => records.retain(|record| record.key.as_str() > key_marker),
    }
}
