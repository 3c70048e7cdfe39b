//! Objects as they are put, read, asked for in parts and deleted, under keys of every kind.
//! Never writes under a condition; `writes` does.
//! Invariant: what comes back is what was sent, byte for byte.

use aws_sdk_s3::primitives::ByteStream;
use std::collections::BTreeSet;
use std::time::Duration;
use std::time::SystemTime;

use super::{BUCKET, TestServer, status_of};

#[tokio::test]
async fn an_object_comes_back_as_it_was_put_and_is_gone_after_its_delete() {
    let server = TestServer::start().await;
    let put = server.client.put_object().bucket(BUCKET).key("report.csv");
    let put = put
        .content_type("text/csv")
        .content_disposition("inline")
        .cache_control("no-store");
    let put = put
        .metadata("run", "7")
        .body(ByteStream::from_static(b"hello world"));
    let etag = put.send().await.unwrap().e_tag().unwrap().to_owned();
    assert_eq!(etag, "\"5eb63bbbe01eeed093cb22bb8f5acdc3\"");

    let head = server
        .client
        .head_object()
        .bucket(BUCKET)
        .key("report.csv")
        .send()
        .await
        .unwrap();
    assert_eq!(head.content_length(), Some(11));
    assert_eq!(head.content_type(), Some("text/csv"));
    assert_eq!(head.content_disposition(), Some("inline"));
    assert_eq!(head.cache_control(), Some("no-store"));
    assert_eq!(head.content_encoding(), None);
    assert_eq!(head.metadata().unwrap()["run"], "7");
    assert_eq!(head.e_tag(), Some(etag.as_str()));
    assert_eq!(server.get("report.csv").await.unwrap(), b"hello world");

    let delete = || {
        server
            .client
            .delete_object()
            .bucket(BUCKET)
            .key("report.csv")
            .send()
    };
    delete().await.unwrap();
    assert_eq!(server.get("report.csv").await, None);
    delete().await.unwrap();
    assert!(server.files("buckets").is_empty());
}

#[tokio::test]
async fn objects_and_their_headers_survive_a_restart() {
    let server = TestServer::start().await;
    server.put("a/b/c", b"kept").await;
    let server = server.restart().await;
    assert_eq!(server.get("a/b/c").await.unwrap(), b"kept");
    assert_eq!(server.keys("").await, ["a/b/c"]);
}

#[tokio::test]
async fn keys_of_every_kind_live_side_by_side() {
    let server = TestServer::start().await;
    let long_segment = "s".repeat(300);
    let keys = [
        "a".to_owned(),
        "a/b".to_owned(),
        "a/".to_owned(),
        "a//b".to_owned(),
        "a/./b".to_owned(),
        "a/../b".to_owned(),
        "../../../etc/passwd".to_owned(),
        "/leading".to_owned(),
        "sp ace+plus".to_owned(),
        "per%cent%2F".to_owned(),
        "q?uestion#hash&amp".to_owned(),
        "übung/图表.png".to_owned(),
        "emoji 🎉".to_owned(),
        "quote\"'<>&".to_owned(),
        "o-a".to_owned(),
        "d-a/o-b".to_owned(),
        format!("{long_segment}/{long_segment}"),
        long_segment.clone(),
        format!("{long_segment}x"),
        "k".repeat(1024),
        "é".repeat(512),
        "x/".repeat(511),
    ];
    for key in &keys {
        server.put(key, key.as_bytes()).await;
    }
    for key in &keys {
        assert_eq!(
            server.get(key).await.as_deref(),
            Some(key.as_bytes()),
            "{key}"
        );
    }
    let expected: BTreeSet<String> = keys.iter().cloned().collect();
    assert_eq!(
        server.keys("").await,
        expected.iter().cloned().collect::<Vec<_>>()
    );
    for key in &keys {
        server
            .client
            .delete_object()
            .bucket(BUCKET)
            .key(key)
            .send()
            .await
            .unwrap();
    }
    assert!(server.keys("").await.is_empty());
    let bucket_folder = server.folder.path().join("buckets").join(BUCKET);
    assert_eq!(
        std::fs::read_dir(bucket_folder).unwrap().count(),
        0,
        "empty directories are removed"
    );
}

#[tokio::test]
async fn a_key_longer_than_1024_bytes_is_refused() {
    let server = TestServer::start().await;
    let put = server
        .client
        .put_object()
        .bucket(BUCKET)
        .key("k".repeat(1025));
    let error = put.send().await.unwrap_err();
    assert_eq!(status_of(&error), 400);
}

#[tokio::test]
async fn ranges_give_the_asked_bytes_or_416() {
    let server = TestServer::start().await;
    let body: Vec<u8> = (0..700_000_u32).map(|index| (index % 251) as u8).collect();
    server.put("ranged", &body).await;
    let get = |range: &str| {
        server
            .client
            .get_object()
            .bucket(BUCKET)
            .key("ranged")
            .range(range)
            .send()
    };

    for (range, expected) in [
        ("bytes=0-0", &body[..1]),
        ("bytes=10-19", &body[10..20]),
        ("bytes=699990-", &body[699_990..]),
        ("bytes=-5", &body[699_995..]),
        ("bytes=100-9999999", &body[100..]),
        ("bytes=-9999999", &body[..]),
    ] {
        let answer = get(range).await.unwrap();
        assert_eq!(
            answer.content_length(),
            Some(expected.len() as i64),
            "{range}"
        );
        assert!(answer.content_range().unwrap().ends_with("/700000"));
        assert_eq!(
            answer.body.collect().await.unwrap().to_vec(),
            expected,
            "{range}"
        );
    }
    let error = get("bytes=700000-").await.unwrap_err();
    assert_eq!(status_of(&error), 416);
    let raw = error.raw_response().unwrap();
    assert_eq!(raw.headers().get("content-range"), Some("bytes */700000"));
}

#[tokio::test]
async fn a_reader_that_knows_the_object_gets_304_and_one_that_expects_another_412() {
    let server = TestServer::start().await;
    server.put("known", b"hello world").await;
    let etag = "\"5eb63bbbe01eeed093cb22bb8f5acdc3\"";
    let get = || server.client.get_object().bucket(BUCKET).key("known");
    assert_eq!(
        status_of(&get().if_none_match(etag).send().await.unwrap_err()),
        304
    );
    assert!(get().if_match(etag).send().await.is_ok());
    assert_eq!(
        status_of(&get().if_match("\"other\"").send().await.unwrap_err()),
        412
    );
    let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
    assert_eq!(
        status_of(
            &get()
                .if_modified_since(tomorrow.into())
                .send()
                .await
                .unwrap_err()
        ),
        304
    );

    let url = server.presigned_get("known").await;
    let answer = reqwest::Client::new()
        .get(&url)
        .header("if-none-match", etag)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 304);
    assert_eq!(answer.headers()["etag"], etag);
    assert!(answer.bytes().await.unwrap().is_empty());
}
