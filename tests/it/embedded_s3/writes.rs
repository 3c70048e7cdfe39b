//! Writes with conditions and digests, copies, and what is refused.
//! Never reads more than it needs to tell what was stored.
//! Invariant: a write that was refused leaves nothing.

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::ChecksumAlgorithm;
use aws_sdk_s3::types::ChecksumMode;
use aws_sdk_s3::types::MetadataDirective;
use aws_sdk_s3::types::ServerSideEncryption;

use super::{BUCKET, TestServer, code_of, eventually, status_of};

#[tokio::test]
async fn exactly_one_of_twenty_racing_creations_wins() {
    let server = TestServer::start().await;
    let puts = (0..20).map(|index| {
        let put = server
            .client
            .put_object()
            .bucket(BUCKET)
            .key("lease")
            .if_none_match("*");
        put.body(ByteStream::from(format!("owner {index}").into_bytes()))
            .send()
    });
    let outcomes = futures_util::future::join_all(puts).await;
    let winners: Vec<usize> = (0..20).filter(|index| outcomes[*index].is_ok()).collect();
    assert_eq!(winners.len(), 1);
    for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert_eq!(status_of(error), 412);
    }
    let owner = format!("owner {}", winners[0]);
    assert_eq!(server.get("lease").await.unwrap(), owner.as_bytes());
}

#[tokio::test]
async fn exactly_one_of_twenty_racing_replacements_wins() {
    let server = TestServer::start().await;
    server.put("lease", b"hello world").await;
    let puts = (0..20).map(|index| {
        let put = server.client.put_object().bucket(BUCKET).key("lease");
        let put = put.if_match("\"5eb63bbbe01eeed093cb22bb8f5acdc3\"");
        put.body(ByteStream::from(format!("owner {index}").into_bytes()))
            .send()
    });
    let outcomes = futures_util::future::join_all(puts).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);

    let put = server
        .client
        .put_object()
        .bucket(BUCKET)
        .key("absent")
        .if_match("\"x\"");
    assert_eq!(status_of(&put.send().await.unwrap_err()), 404);
}

#[tokio::test]
async fn a_body_that_does_not_match_its_digest_is_not_stored() {
    let server = TestServer::start().await;
    let put = |key: &str| {
        server
            .client
            .put_object()
            .bucket(BUCKET)
            .key(key)
            .body(ByteStream::from_static(b"hello world"))
    };
    let error = put("md5")
        .content_md5("1B2M2Y8AsgTpgAmY7PhCfg==")
        .send()
        .await
        .unwrap_err();
    assert_eq!(code_of(&error), "BadDigest");
    put("md5-right")
        .content_md5("XrY7u+Ae7tCTyyK7j1rNww==")
        .send()
        .await
        .unwrap();
    let error = put("crc")
        .checksum_crc32("AAAAAA==")
        .send()
        .await
        .unwrap_err();
    assert_eq!(code_of(&error), "BadDigest");
    assert_eq!(server.keys("").await, ["md5-right"]);
    eventually(|| server.files("tmp").is_empty()).await;
}

#[tokio::test]
async fn every_checksum_algorithm_is_verified_kept_and_shown() {
    let server = TestServer::start().await;
    for algorithm in [
        ChecksumAlgorithm::Crc32,
        ChecksumAlgorithm::Crc32C,
        ChecksumAlgorithm::Crc64Nvme,
        ChecksumAlgorithm::Sha1,
        ChecksumAlgorithm::Sha256,
    ] {
        let key = algorithm.as_str();
        let put = server
            .client
            .put_object()
            .bucket(BUCKET)
            .key(key)
            .checksum_algorithm(algorithm.clone());
        put.body(ByteStream::from_static(b"hello world"))
            .send()
            .await
            .unwrap();
        let head = server
            .client
            .head_object()
            .bucket(BUCKET)
            .key(key)
            .checksum_mode(ChecksumMode::Enabled);
        let head = head.send().await.unwrap();
        let shown = [
            head.checksum_crc32(),
            head.checksum_crc32_c(),
            head.checksum_crc64_nvme(),
            head.checksum_sha1(),
            head.checksum_sha256(),
        ];
        assert_eq!(shown.iter().flatten().count(), 1, "{key}");
        // The SDK checks the body against the checksum it is shown.
        assert_eq!(server.get(key).await.unwrap(), b"hello world");
    }
}

#[tokio::test]
async fn a_body_from_a_file_is_streamed_and_checked_by_its_trailer() {
    let server = TestServer::start().await;
    let file = server.folder.path().join("source");
    let body: Vec<u8> = (0..3_000_000_u32)
        .map(|index| (index % 253) as u8)
        .collect();
    std::fs::write(&file, &body).unwrap();
    let put = server.client.put_object().bucket(BUCKET).key("large");
    put.body(ByteStream::from_path(&file).await.unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(server.get("large").await.unwrap(), body);
}

#[tokio::test]
async fn a_copy_has_the_bytes_and_the_headers_of_its_source_or_new_ones() {
    let server = TestServer::start().await;
    let put = server
        .client
        .put_object()
        .bucket(BUCKET)
        .key("from ä/1")
        .content_type("text/plain");
    put.body(ByteStream::from_static(b"copied"))
        .send()
        .await
        .unwrap();
    let source = format!("{BUCKET}/from%20%C3%A4/1");
    let copy = |key: &str| {
        server
            .client
            .copy_object()
            .bucket(BUCKET)
            .key(key)
            .copy_source(&source)
    };
    copy("to").send().await.unwrap();
    assert_eq!(server.get("to").await.unwrap(), b"copied");
    let head = server
        .client
        .head_object()
        .bucket(BUCKET)
        .key("to")
        .send()
        .await
        .unwrap();
    assert_eq!(head.content_type(), Some("text/plain"));

    let replacing = copy("from ä/1")
        .metadata_directive(MetadataDirective::Replace)
        .content_type("text/html");
    replacing.send().await.unwrap();
    let head = server
        .client
        .head_object()
        .bucket(BUCKET)
        .key("from ä/1")
        .send()
        .await
        .unwrap();
    assert_eq!(head.content_type(), Some("text/html"));
    assert_eq!(
        code_of(&copy("from ä/1").send().await.unwrap_err()),
        "InvalidRequest"
    );
    assert_eq!(
        status_of(
            &copy("to")
                .copy_source_if_match("\"x\"")
                .send()
                .await
                .unwrap_err()
        ),
        412
    );
}

#[tokio::test]
async fn what_the_server_cannot_do_is_refused_and_not_ignored() {
    let server = TestServer::start().await;
    let put = server.client.put_object().bucket(BUCKET).key("k");
    let encrypted = put
        .server_side_encryption(ServerSideEncryption::Aes256)
        .send()
        .await
        .unwrap_err();
    assert_eq!(code_of(&encrypted), "NotImplemented");
    let policy = server
        .client
        .get_bucket_policy()
        .bucket(BUCKET)
        .send()
        .await
        .unwrap_err();
    assert_eq!(code_of(&policy), "NotImplemented");
}
