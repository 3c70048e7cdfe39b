//! The on-disk form of one object: body, JSON record, length of the record (u32), magic (8 bytes).
//! Never decides where the file lies or when it becomes visible.
//! Invariant: a file whose end does not describe its whole length is damaged and is never served.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"CELLOBJ1";
const FOOTER_BYTES: usize = size_of::<u32>() + MAGIC.len();
/// Far above what HTTP headers of one request can hold.
const MAX_RECORD_BYTES: usize = 256 * 1024;
/// Most records fit, so that opening an object costs one read.
const FIRST_READ_BYTES: u64 = 4096;

/// What is known of an object beside its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectRecord {
    pub(super) key: String,
    pub(super) size_bytes: u64,
    pub(super) etag: String,
    pub(super) last_modified_unix_ms: i64,
    #[serde(flatten)]
    pub(super) headers: ObjectHeaders,
    /// Header name (`x-amz-checksum-crc32`) to base64, as the client sent and this server checked it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) checksums: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) part_count: Option<u32>,
    /// The multipart upload this object came from, so that a repeated completion is recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) upload_id: Option<String>,
}

/// Headers a client stores with an object and gets back with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectHeaders {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content_disposition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content_encoding: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content_language: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cache_control: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) user_metadata: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectFileError {
    #[error("object file is damaged: {0}")]
    Damaged(&'static str),
    #[error("object file could not be read")]
    Io(#[from] io::Error),
}

/// The bytes that follow the body.
pub(super) fn encode_trailer(record: &ObjectRecord) -> io::Result<Vec<u8>> {
    let mut trailer = serde_json::to_vec(record)?;
    if trailer.len() > MAX_RECORD_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "object record is too large",
        ));
    }
    let record_bytes = u32::try_from(trailer.len()).expect("the record was just bounded");
    trailer.extend_from_slice(&record_bytes.to_le_bytes());
    trailer.extend_from_slice(MAGIC);
    Ok(trailer)
}

/// Reads and checks the record at the end of an object file.
pub(super) fn read_record(file: &File) -> Result<ObjectRecord, ObjectFileError> {
    let file_bytes = file.metadata()?.len();
    let mut tail = read_tail(file, file_bytes, FIRST_READ_BYTES)?;
    let record_bytes = record_length(&tail)?;
    let trailer_bytes = record_bytes + FOOTER_BYTES;
    if trailer_bytes > tail.len() {
        tail = read_tail(file, file_bytes, trailer_bytes as u64)?;
    }
    let record_start = tail
        .len()
        .checked_sub(trailer_bytes)
        .ok_or(ObjectFileError::Damaged("record is longer than the file"))?;
    let record: ObjectRecord = serde_json::from_slice(&tail[record_start..][..record_bytes])
        .map_err(|_| ObjectFileError::Damaged("record does not parse"))?;
    if record.size_bytes.checked_add(trailer_bytes as u64) != Some(file_bytes) {
        return Err(ObjectFileError::Damaged("size does not match the record"));
    }
    Ok(record)
}

fn read_tail(file: &File, file_bytes: u64, wanted_bytes: u64) -> io::Result<Vec<u8>> {
    let tail_bytes = wanted_bytes.min(file_bytes);
    let mut tail = vec![0; usize::try_from(tail_bytes).map_err(io::Error::other)?];
    file.read_exact_at(&mut tail, file_bytes - tail_bytes)?;
    Ok(tail)
}

fn record_length(tail: &[u8]) -> Result<usize, ObjectFileError> {
    let footer = tail
        .last_chunk::<FOOTER_BYTES>()
        .ok_or(ObjectFileError::Damaged("file is too short"))?;
    let (length, magic) = footer
        .split_first_chunk::<4>()
        .expect("the footer is longer than the length field");
    if magic != MAGIC {
        return Err(ObjectFileError::Damaged("magic is missing"));
    }
    let record_bytes = u32::from_le_bytes(*length) as usize;
    if record_bytes > MAX_RECORD_BYTES {
        return Err(ObjectFileError::Damaged("record length is out of bounds"));
    }
    Ok(record_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn record_for(body: &[u8]) -> ObjectRecord {
        ObjectRecord {
            key: "a/b".to_owned(),
            size_bytes: body.len() as u64,
            etag: "e".to_owned(),
            ..ObjectRecord::default()
        }
    }

    fn file_with(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn object_bytes(body: &[u8]) -> Vec<u8> {
        [body, &encode_trailer(&record_for(body)).unwrap()].concat()
    }

    #[test]
    fn a_record_is_read_back_from_behind_the_body() {
        let file = file_with(&object_bytes(b"hello"));
        assert_eq!(read_record(&file).unwrap(), record_for(b"hello"));
    }

    #[test]
    fn a_record_larger_than_the_first_read_is_read_back() {
        let mut record = record_for(b"x");
        record
            .headers
            .user_metadata
            .insert("k".to_owned(), "v".repeat(20_000));
        let file = file_with(&[b"x", encode_trailer(&record).unwrap().as_slice()].concat());
        assert_eq!(read_record(&file).unwrap(), record);
    }

    #[test]
    fn every_truncation_of_an_object_is_damage() {
        let whole = object_bytes(b"some body");
        for length in 0..whole.len() {
            let outcome = read_record(&file_with(&whole[..length]));
            assert!(
                matches!(outcome, Err(ObjectFileError::Damaged(_))),
                "{length}"
            );
        }
    }

    #[test]
    fn a_body_that_looks_like_a_trailer_does_not_fool_the_reader() {
        let body = object_bytes(b"inner");
        assert!(read_record(&file_with(&body)).is_ok());
        let file = file_with(&object_bytes(&body));
        assert_eq!(read_record(&file).unwrap().size_bytes, body.len() as u64);
    }

    #[test]
    fn a_record_length_out_of_bounds_is_damage() {
        let mut bytes = object_bytes(b"x");
        let length_at = bytes.len() - FOOTER_BYTES;
        bytes[length_at..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(
            read_record(&file_with(&bytes)),
            Err(ObjectFileError::Damaged(_))
        ));
    }
}
