//! Operations that read single objects: GetObject and HeadObject, with ranges and preconditions.
//! Never reads an object into memory: bodies are streams over the open file.
//! Invariant: headers and bytes of one answer come from the same open file, even if the object is replaced meanwhile.

use std::ops::Range as ByteRange;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{CONTENT_RANGE, ETAG, HeaderValue, LAST_MODIFIED};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Response, S3Result, s3_error};

use super::super::conditions::{ReadCondition, ReadDecision};
use super::super::error::blocking;
use super::super::object_body::ObjectBody;
use super::super::object_file::ObjectRecord;
use super::super::object_store::StoredObject;
use super::{Answer, S3Operations, etag_of, last_modified_of, signed_bytes};

const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

impl S3Operations {
    pub(super) async fn read_object(&self, input: GetObjectInput) -> Answer<GetObjectOutput> {
        refuse_versions_and_parts(input.version_id.as_deref(), input.part_number)?;
        let condition = ReadCondition {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let store = Arc::clone(&self.store);
        // The outer error is the store's, the inner one already an answer of S3 (304, 412, 416).
        let opened = blocking(move || {
            let StoredObject { record, file } = store.read(&input.bucket, &input.key)?;
            let range = match check_request(&condition, input.range, &record) {
                Ok(range) => range,
                Err(answer) => return Ok(Err(answer)),
            };
            let wanted = range.clone().unwrap_or(0..record.size_bytes);
            let body = ObjectBody::open(file, wanted)?;
            Ok(Ok((record, range, body)))
        });
        let (record, range, body) = opened.await??;
        let checksums = ShownChecksums::new(&record, input.checksum_mode.as_ref(), range.as_ref());
        let length = range
            .as_ref()
            .map_or(record.size_bytes, |range| range.end - range.start);
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            body: Some(body.into_blob()),
            content_length: Some(signed_bytes(length)),
            content_range: range.map(|range| content_range(&range, record.size_bytes)),
            e_tag: Some(etag_of(&record)),
            last_modified: Some(last_modified_of(&record)),
            checksum_crc32: checksums.get("x-amz-checksum-crc32"),
            checksum_crc32c: checksums.get("x-amz-checksum-crc32c"),
            checksum_crc64nvme: checksums.get("x-amz-checksum-crc64nvme"),
            checksum_sha1: checksums.get("x-amz-checksum-sha1"),
            checksum_sha256: checksums.get("x-amz-checksum-sha256"),
            content_type: Some(content_type_of(&record)),
            content_disposition: record.headers.content_disposition,
            content_encoding: record.headers.content_encoding,
            content_language: record.headers.content_language,
            cache_control: record.headers.cache_control,
            metadata: Some(record.headers.user_metadata.into_iter().collect()),
            ..GetObjectOutput::default()
        }))
    }

    pub(super) async fn describe_object(&self, input: HeadObjectInput) -> Answer<HeadObjectOutput> {
        refuse_versions_and_parts(input.version_id.as_deref(), input.part_number)?;
        let condition = ReadCondition {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let store = Arc::clone(&self.store);
        let record = blocking(move || Ok(store.read(&input.bucket, &input.key)?.record)).await?;
        let range = check_request(&condition, input.range, &record)?;
        let checksums = ShownChecksums::new(&record, input.checksum_mode.as_ref(), range.as_ref());
        let length = range
            .as_ref()
            .map_or(record.size_bytes, |range| range.end - range.start);
        let headers = &record.headers;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(signed_bytes(length)),
            content_range: range.map(|range| content_range(&range, record.size_bytes)),
            e_tag: Some(etag_of(&record)),
            last_modified: Some(last_modified_of(&record)),
            checksum_crc32: checksums.get("x-amz-checksum-crc32"),
            checksum_crc32c: checksums.get("x-amz-checksum-crc32c"),
            checksum_crc64nvme: checksums.get("x-amz-checksum-crc64nvme"),
            checksum_sha1: checksums.get("x-amz-checksum-sha1"),
            checksum_sha256: checksums.get("x-amz-checksum-sha256"),
            content_type: input
                .response_content_type
                .or_else(|| Some(content_type_of(&record))),
            content_disposition: input
                .response_content_disposition
                .or_else(|| headers.content_disposition.clone()),
            content_encoding: input
                .response_content_encoding
                .or_else(|| headers.content_encoding.clone()),
            content_language: input
                .response_content_language
                .or_else(|| headers.content_language.clone()),
            cache_control: input
                .response_cache_control
                .or_else(|| headers.cache_control.clone()),
            metadata: Some(record.headers.user_metadata.into_iter().collect()),
            ..HeadObjectOutput::default()
        }))
    }
}

/// Checksums of the whole object, shown only when asked for and only with the whole object.
struct ShownChecksums<'a> {
    record: Option<&'a ObjectRecord>,
}

impl<'a> ShownChecksums<'a> {
    fn new(
        record: &'a ObjectRecord,
        mode: Option<&ChecksumMode>,
        range: Option<&ByteRange<u64>>,
    ) -> Self {
        let is_shown =
            mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED) && range.is_none();
        Self {
            record: is_shown.then_some(record),
        }
    }

    fn get(&self, name: &str) -> Option<String> {
        self.record?.checksums.get(name).cloned()
    }
}

fn refuse_versions_and_parts(version_id: Option<&str>, part_number: Option<i32>) -> S3Result<()> {
    if part_number.is_some() {
        return Err(s3_error!(
            NotImplemented,
            "single parts of an object cannot be read"
        ));
    }
    match version_id {
        None | Some("" | "null") => Ok(()),
        Some(_) => Err(s3_error!(NoSuchVersion)),
    }
}

/// The range to answer with, or the answer that says why not.
fn check_request(
    condition: &ReadCondition,
    range: Option<Range>,
    record: &ObjectRecord,
) -> S3Result<Option<ByteRange<u64>>> {
    match condition.decide(record) {
        ReadDecision::Proceed => {}
        ReadDecision::PreconditionFailed => return Err(s3_error!(PreconditionFailed)),
        ReadDecision::NotModified => return Err(not_modified(record)),
    }
    let Some(range) = range else {
        return Ok(None);
    };
    match range.check(record.size_bytes) {
        Ok(range) if !range.is_empty() => Ok(Some(range)),
        _ => Err(range_not_satisfiable(record.size_bytes)),
    }
}

fn content_type_of(record: &ObjectRecord) -> String {
    let stored = record.headers.content_type.clone();
    stored.unwrap_or_else(|| DEFAULT_CONTENT_TYPE.to_owned())
}

fn content_range(range: &ByteRange<u64>, size_bytes: u64) -> String {
    format!("bytes {}-{}/{size_bytes}", range.start, range.end - 1)
}

fn not_modified(record: &ObjectRecord) -> S3Error {
    let mut headers = HeaderMap::new();
    if let Ok(etag) = etag_of(record).to_http_header() {
        headers.insert(ETAG, etag);
    }
    let mut date = Vec::new();
    let formatted = last_modified_of(record).format(TimestampFormat::HttpDate, &mut date);
    if let (Ok(()), Ok(date)) = (formatted, HeaderValue::from_bytes(&date)) {
        headers.insert(LAST_MODIFIED, date);
    }
    let mut answer = S3Error::new(S3ErrorCode::NotModified);
    answer.set_headers(headers);
    answer
}

fn range_not_satisfiable(size_bytes: u64) -> S3Error {
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::try_from(format!("bytes */{size_bytes}")) {
        headers.insert(CONTENT_RANGE, value);
    }
    headers.insert(
        hyper::header::CONTENT_TYPE,
        HeaderValue::from_static("application/xml"),
    );
    let mut answer = S3Error::new(S3ErrorCode::InvalidRange);
    answer.set_headers(headers);
    answer
}
