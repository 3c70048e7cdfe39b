//! ListObjects and ListObjectsV2 over the same walk.
//! Never lists more than 1000 entries in one answer.
//! Invariant: with `encoding-type=url` every key and prefix in the answer is percent-encoded, otherwise none.

use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3Response, S3Result, s3_error};

use super::super::error::{StoreError, blocking};
use super::super::listing::{ListQuery, Page, Position, common_prefix, list};
use super::super::object_file::ObjectRecord;
use super::{Answer, S3Operations, etag_of, last_modified_of, signed_bytes};

const MAX_ENTRIES: usize = 1000;
const URL_KEPT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

impl S3Operations {
    pub(super) async fn list_by_token(
        &self,
        input: ListObjectsV2Input,
    ) -> Answer<ListObjectsV2Output> {
        let encoder = NameEncoder::new(input.encoding_type.as_ref())?;
        let max_keys = bounded_entries(input.max_keys)?;
        let position = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => Position::from_token(token).ok_or_else(|| {
                s3_error!(
                    InvalidArgument,
                    "the continuation token is not one of this server"
                )
            })?,
            (None, Some(key)) => Position::AfterKey(key.clone()),
            (None, None) => Position::Start,
        };
        let query = ListQuery {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone(),
            position,
            max_keys,
        };
        let page = self.list_page(input.bucket.clone(), query).await?;
        let next_token = page.next.as_ref().map(Position::to_token);
        let (contents, common_prefixes) = encoder.entries(page);
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: encoder.optional(input.prefix),
            delimiter: encoder.optional(input.delimiter),
            start_after: encoder.optional(input.start_after),
            encoding_type: input.encoding_type,
            max_keys: i32::try_from(max_keys).ok(),
            key_count: i32::try_from(contents.len() + common_prefixes.len()).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(next_token.is_some()),
            next_continuation_token: next_token,
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            ..ListObjectsV2Output::default()
        }))
    }

    pub(super) async fn list_by_marker(
        &self,
        input: ListObjectsInput,
    ) -> Answer<ListObjectsOutput> {
        let encoder = NameEncoder::new(input.encoding_type.as_ref())?;
        let max_keys = bounded_entries(input.max_keys)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let query = ListQuery {
            position: marker_position(input.marker.as_deref(), &prefix, input.delimiter.as_deref()),
            prefix,
            delimiter: input.delimiter.clone(),
            max_keys,
        };
        let page = self.list_page(input.bucket.clone(), query).await?;
        let next_marker = match page.next.clone() {
            Some(Position::AfterKey(marker) | Position::AfterPrefix(marker)) => Some(marker),
            Some(Position::Start) | None => None,
        };
        let is_truncated = page.next.is_some();
        let (contents, common_prefixes) = encoder.entries(page);
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: encoder.optional(input.prefix),
            delimiter: encoder.optional(input.delimiter),
            marker: encoder.optional(input.marker),
            next_marker: encoder.optional(next_marker),
            encoding_type: input.encoding_type,
            max_keys: i32::try_from(max_keys).ok(),
            is_truncated: Some(is_truncated),
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            ..ListObjectsOutput::default()
        }))
    }

    async fn list_page(&self, bucket: String, query: ListQuery) -> Result<Page, StoreError> {
        let store = Arc::clone(&self.store);
        blocking(move || list(&store.bucket(&bucket)?, &query)).await
    }
}

/// A marker that is a common prefix (as `NextMarker` gives it) stands for all keys below it.
fn marker_position(marker: Option<&str>, prefix: &str, delimiter: Option<&str>) -> Position {
    match marker {
        None | Some("") => Position::Start,
        Some(marker) if common_prefix(marker, prefix, delimiter) == Some(marker) => {
            Position::AfterPrefix(marker.to_owned())
        }
        Some(marker) => Position::AfterKey(marker.to_owned()),
    }
}

/// S3's `max-keys`, `max-parts` and `max-uploads`: at most 1000, which is also the default.
pub(super) fn bounded_entries(asked: Option<i32>) -> S3Result<usize> {
    let Some(asked) = asked else {
        return Ok(MAX_ENTRIES);
    };
    let asked = usize::try_from(asked)
        .map_err(|_| s3_error!(InvalidArgument, "a limit must not be negative"))?;
    Ok(asked.min(MAX_ENTRIES))
}

/// Writes names the way the client asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum NameEncoder {
    Plain,
    Url,
}

impl NameEncoder {
    pub(super) fn new(encoding_type: Option<&EncodingType>) -> S3Result<Self> {
        match encoding_type.map(EncodingType::as_str) {
            None | Some("") => Ok(Self::Plain),
            Some(EncodingType::URL) => Ok(Self::Url),
            Some(_) => Err(s3_error!(InvalidArgument, "the only encoding type is url")),
        }
    }

    pub(super) fn encode(self, name: String) -> String {
        match self {
            Self::Plain => name,
            Self::Url => utf8_percent_encode(&name, URL_KEPT).to_string(),
        }
    }

    pub(super) fn optional(self, name: Option<String>) -> Option<String> {
        name.map(|name| self.encode(name))
    }

    pub(super) fn prefixes(self, prefixes: Vec<String>) -> Vec<CommonPrefix> {
        let prefixes = prefixes.into_iter().map(|prefix| CommonPrefix {
            prefix: Some(self.encode(prefix)),
        });
        prefixes.collect()
    }

    fn entries(self, page: Page) -> (Vec<Object>, Vec<CommonPrefix>) {
        let objects = page.objects.into_iter().map(|record| self.object(record));
        (objects.collect(), self.prefixes(page.common_prefixes))
    }

    fn object(self, record: ObjectRecord) -> Object {
        Object {
            e_tag: Some(etag_of(&record)),
            last_modified: Some(last_modified_of(&record)),
            size: Some(signed_bytes(record.size_bytes)),
            storage_class: Some(ObjectStorageClass::from_static(
                ObjectStorageClass::STANDARD,
            )),
            key: Some(self.encode(record.key)),
            ..Object::default()
        }
    }
}
