//! Lists of objects and buckets, in pages and in batches.
//! Never checks the walk in depth; the property tests beside the code do.
//! Invariant: keys come in byte order.

use aws_sdk_s3::types::Delete;
use aws_sdk_s3::types::EncodingType;
use aws_sdk_s3::types::ObjectIdentifier;

use super::{BUCKET, TestServer, code_of, status_of};

#[tokio::test]
async fn listings_come_in_pages_in_order_with_prefix_and_delimiter() {
    let server = TestServer::start().await;
    let keys = [
        "a",
        "photos/2024/x",
        "photos/2024/y",
        "photos/2025/z",
        "photos/top",
        "photos!",
        "z",
    ];
    for key in keys {
        server.put(key, b"1").await;
    }
    let mut sorted = keys.map(str::to_owned).to_vec();
    sorted.sort();
    assert_eq!(server.keys("").await, sorted);

    let list = || {
        server
            .client
            .list_objects_v2()
            .bucket(BUCKET)
            .max_keys(1)
            .delimiter("/")
            .prefix("photos/")
    };
    let mut token = None;
    let mut found = Vec::new();
    loop {
        let page = list().set_continuation_token(token).send().await.unwrap();
        assert_eq!(page.key_count(), Some(1));
        found.extend(
            page.contents()
                .iter()
                .map(|object| object.key().unwrap().to_owned()),
        );
        found.extend(
            page.common_prefixes()
                .iter()
                .map(|prefix| prefix.prefix().unwrap().to_owned()),
        );
        token = page.next_continuation_token().map(str::to_owned);
        if page.is_truncated() != Some(true) {
            break;
        }
    }
    assert_eq!(found, ["photos/2024/", "photos/2025/", "photos/top"]);

    let list = server
        .client
        .list_objects_v2()
        .bucket(BUCKET)
        .start_after("photos/2024/x")
        .max_keys(2);
    let page = list.send().await.unwrap();
    let after: Vec<_> = page
        .contents()
        .iter()
        .filter_map(|object| object.key())
        .collect();
    assert_eq!(after, ["photos/2024/y", "photos/2025/z"]);
    assert_eq!(page.contents()[0].size(), Some(1));

    let list = || {
        server
            .client
            .list_objects()
            .bucket(BUCKET)
            .delimiter("/")
            .max_keys(2)
    };
    let first = list().send().await.unwrap();
    assert_eq!(first.next_marker(), Some("photos!"));
    let second = list().marker("photos!").send().await.unwrap();
    assert_eq!(second.common_prefixes()[0].prefix(), Some("photos/"));
    let third = list().marker("photos/").send().await.unwrap();
    assert_eq!(third.contents()[0].key(), Some("z"));

    server.put("odd key/ü", b"1").await;
    let list = server
        .client
        .list_objects_v2()
        .bucket(BUCKET)
        .prefix("odd")
        .encoding_type(EncodingType::Url);
    assert_eq!(
        list.send().await.unwrap().contents()[0].key(),
        Some("odd%20key/%C3%BC")
    );
}

#[tokio::test]
async fn fifteen_hundred_objects_are_listed_and_deleted_in_batches() {
    let server = TestServer::start().await;
    let keys: Vec<String> = (0..1500).map(|index| format!("batch/{index:04}")).collect();
    for chunk in keys.chunks(50) {
        futures_util::future::join_all(chunk.iter().map(|key| server.put(key, b"x"))).await;
    }
    assert_eq!(server.keys("batch/").await, keys);
    for chunk in keys.chunks(1000) {
        let objects = chunk
            .iter()
            .map(|key| ObjectIdentifier::builder().key(key).build().unwrap());
        let delete = Delete::builder()
            .set_objects(Some(objects.collect()))
            .build()
            .unwrap();
        let answer = server
            .client
            .delete_objects()
            .bucket(BUCKET)
            .delete(delete)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.deleted().len(), chunk.len());
        assert!(answer.errors().is_empty());
    }
    assert!(server.keys("").await.is_empty());
    assert!(server.files("buckets").is_empty());
}

#[tokio::test]
async fn buckets_can_be_made_twice_found_listed_and_deleted_when_empty() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.create_bucket().bucket(BUCKET).send().await.unwrap();
    client.head_bucket().bucket(BUCKET).send().await.unwrap();
    client
        .get_bucket_location()
        .bucket(BUCKET)
        .send()
        .await
        .unwrap();
    let buckets = client.list_buckets().send().await.unwrap();
    assert_eq!(buckets.buckets()[0].name(), Some(BUCKET));

    server.put("held", b"x").await;
    server.start_upload("unfinished").await;
    let error = client
        .delete_bucket()
        .bucket(BUCKET)
        .send()
        .await
        .unwrap_err();
    assert_eq!(code_of(&error), "BucketNotEmpty");
    client
        .delete_object()
        .bucket(BUCKET)
        .key("held")
        .send()
        .await
        .unwrap();
    client.delete_bucket().bucket(BUCKET).send().await.unwrap();
    assert!(server.files("uploads").is_empty());
    assert_eq!(
        status_of(
            &client
                .head_bucket()
                .bucket(BUCKET)
                .send()
                .await
                .unwrap_err()
        ),
        404
    );
    let put = client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .send()
        .await
        .unwrap_err();
    assert_eq!(code_of(&put), "NoSuchBucket");
}
