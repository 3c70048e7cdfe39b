//! Digests a client sends with a body (`Content-MD5`, `x-amz-checksum-*` as header or trailer), and their check.
//! Never computes over the body itself; `staging` does that with the hasher made here.
//! Invariant: a digest that was announced is compared, or the body is refused.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::Checksum as _;
use s3s::dto::Checksum;

use super::error::StoreError;

const ALGORITHMS: [&str; 5] = [
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];

/// What the client says the body's digests are.
#[derive(Debug, Default)]
pub(super) struct ExpectedDigests {
    content_md5: Option<Vec<u8>>,
    /// By header name; `None` where the value follows in a trailer of the body.
    checksums: BTreeMap<&'static str, Option<String>>,
}

impl ExpectedDigests {
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, StoreError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let content_md5 = text("content-md5").map(decode_md5).transpose()?;
        let announced = headers.get_all("x-amz-trailer").iter();
        let announced: Vec<String> = announced
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        let mut checksums = BTreeMap::new();
        for name in ALGORITHMS {
            if let Some(value) = text(name) {
                checksums.insert(name, Some(value.to_owned()));
            } else if announced.iter().any(|trailer| trailer == name) {
                checksums.insert(name, None);
            }
        }
        Ok(Self {
            content_md5,
            checksums,
        })
    }

    /// Computes just what was announced.
    pub(super) fn hasher(&self) -> ChecksumHasher {
        let wants = |name| self.checksums.contains_key(name);
        ChecksumHasher {
            crc32: wants("x-amz-checksum-crc32").then(s3s::crypto::Crc32::new),
            crc32c: wants("x-amz-checksum-crc32c").then(s3s::crypto::Crc32c::new),
            crc64nvme: wants("x-amz-checksum-crc64nvme").then(s3s::crypto::Crc64Nvme::new),
            sha1: wants("x-amz-checksum-sha1").then(s3s::crypto::Sha1::new),
            sha256: wants("x-amz-checksum-sha256").then(s3s::crypto::Sha256::new),
        }
    }

    pub(super) fn add_trailers(&mut self, trailers: &HeaderMap) {
        for (name, expected) in &mut self.checksums {
            if expected.is_none() {
                *expected = trailers
                    .get(*name)
                    .and_then(|value| value.to_str().ok())
                    .map(str::to_owned);
            }
        }
    }

    /// Compares with what was computed; the checksums worth keeping, by header name.
    pub(super) fn verify(
        &self,
        md5: [u8; 16],
        computed: &Checksum,
    ) -> Result<BTreeMap<String, String>, StoreError> {
        if self
            .content_md5
            .as_ref()
            .is_some_and(|expected| expected != &md5)
        {
            return Err(StoreError::BadDigest("content-md5"));
        }
        let mut verified = BTreeMap::new();
        for (name, expected) in &self.checksums {
            let computed = checksum_field(computed, name).ok_or(StoreError::BadDigest(name))?;
            if expected.as_ref() != Some(computed) {
                return Err(StoreError::BadDigest(name));
            }
            verified.insert((*name).to_owned(), computed.clone());
        }
        Ok(verified)
    }
}

fn decode_md5(value: &str) -> Result<Vec<u8>, StoreError> {
    let digest = STANDARD.decode(value.trim());
    digest
        .ok()
        .filter(|digest| digest.len() == 16)
        .ok_or(StoreError::InvalidDigest("content-md5"))
}

fn checksum_field<'a>(checksum: &'a Checksum, name: &str) -> Option<&'a String> {
    match name {
        "x-amz-checksum-crc32" => checksum.checksum_crc32.as_ref(),
        "x-amz-checksum-crc32c" => checksum.checksum_crc32c.as_ref(),
        "x-amz-checksum-crc64nvme" => checksum.checksum_crc64nvme.as_ref(),
        "x-amz-checksum-sha1" => checksum.checksum_sha1.as_ref(),
        "x-amz-checksum-sha256" => checksum.checksum_sha256.as_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn check(
        expected: &ExpectedDigests,
        body: &[u8],
    ) -> Result<BTreeMap<String, String>, StoreError> {
        let mut hasher = expected.hasher();
        hasher.update(body);
        expected.verify(s3s::crypto::Md5::checksum(body), &hasher.finalize())
    }

    #[test]
    fn a_right_content_md5_passes_and_a_wrong_one_does_not() {
        let expected =
            ExpectedDigests::from_headers(&headers(&[("content-md5", "XrY7u+Ae7tCTyyK7j1rNww==")]))
                .unwrap();
        assert!(check(&expected, b"hello world").is_ok());
        assert!(matches!(
            check(&expected, b"hello"),
            Err(StoreError::BadDigest("content-md5"))
        ));
    }

    #[test]
    fn a_content_md5_that_is_none_is_refused() {
        for value in ["no base64!", "YWJj"] {
            let outcome = ExpectedDigests::from_headers(&headers(&[("content-md5", value)]));
            assert!(matches!(outcome, Err(StoreError::InvalidDigest(_))));
        }
    }

    #[test]
    fn a_checksum_in_a_header_is_compared_and_kept() {
        let expected =
            ExpectedDigests::from_headers(&headers(&[("x-amz-checksum-crc32", "DUoRhQ==")]))
                .unwrap();
        let kept = check(&expected, b"hello world").unwrap();
        assert_eq!(kept["x-amz-checksum-crc32"], "DUoRhQ==");
        assert!(check(&expected, b"other").is_err());
    }

    #[test]
    fn an_announced_trailer_must_arrive_and_match() {
        let mut expected =
            ExpectedDigests::from_headers(&headers(&[("x-amz-trailer", "X-Amz-Checksum-Crc32")]))
                .unwrap();
        assert!(check(&expected, b"hello world").is_err());
        expected.add_trailers(&headers(&[("x-amz-checksum-crc32", "DUoRhQ==")]));
        assert!(check(&expected, b"hello world").is_ok());
        assert!(check(&expected, b"altered").is_err());
    }
}
