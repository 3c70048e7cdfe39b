//! Multipart uploads, from the first part to completion or abort.
//! Never relies on how parts are stored, only on that nothing is left over.
//! Invariant: an object appears whole, at completion.

use aws_sdk_s3::types::CompletedPart;

use super::{BUCKET, PART_BYTES, TestServer, code_of};

#[tokio::test]
async fn three_parts_become_one_object_with_s3s_etag() {
    let server = TestServer::start().await;
    let bodies = [
        vec![b'a'; PART_BYTES],
        vec![b'b'; PART_BYTES + 1],
        b"end".to_vec(),
    ];
    let upload_id = server.start_upload("joined").await;
    let mut parts = Vec::new();
    for (index, body) in bodies.iter().enumerate() {
        parts.push(
            server
                .upload_part("joined", &upload_id, index as i32 + 1, body.clone())
                .await,
        );
    }
    assert_eq!(
        server.get("joined").await,
        None,
        "nothing is visible before completion"
    );
    let listed = server
        .client
        .list_parts()
        .bucket(BUCKET)
        .key("joined")
        .upload_id(&upload_id)
        .send()
        .await
        .unwrap();
    assert_eq!(listed.parts().len(), 3);
    assert_eq!(listed.parts()[1].size(), Some(PART_BYTES as i64 + 1));
    let uploads = server
        .client
        .list_multipart_uploads()
        .bucket(BUCKET)
        .send()
        .await
        .unwrap();
    assert_eq!(uploads.uploads()[0].upload_id(), Some(upload_id.as_str()));

    // md5 of the three part md5s, computed beside this test with md5sum.
    let etag = server
        .complete("joined", &upload_id, parts.clone())
        .await
        .unwrap();
    assert_eq!(etag, "\"980b540ca472d3f60bd761b501daa9ce-3\"");
    assert_eq!(server.get("joined").await.unwrap(), bodies.concat());
    let head = server
        .client
        .head_object()
        .bucket(BUCKET)
        .key("joined")
        .send()
        .await
        .unwrap();
    assert_eq!(head.content_type(), Some("text/csv"));
    assert!(server.files("uploads").is_empty());
    // A client that did not hear the answer asks again.
    assert_eq!(
        server.complete("joined", &upload_id, parts).await.unwrap(),
        etag
    );
}

#[tokio::test]
async fn a_completion_that_does_not_fit_the_parts_is_refused() {
    let server = TestServer::start().await;
    let upload_id = server.start_upload("k").await;
    let first = server
        .upload_part("k", &upload_id, 1, b"too small".to_vec())
        .await;
    let second = server
        .upload_part("k", &upload_id, 2, b"last".to_vec())
        .await;
    let complete = |parts: Vec<CompletedPart>| server.complete("k", &upload_id, parts);
    assert_eq!(
        complete(vec![first.clone(), second.clone()])
            .await
            .unwrap_err(),
        "EntityTooSmall"
    );
    assert_eq!(
        complete(vec![second.clone(), first.clone()])
            .await
            .unwrap_err(),
        "InvalidPartOrder"
    );
    let altered = CompletedPart::builder()
        .part_number(1)
        .e_tag("\"00\"")
        .build();
    assert_eq!(complete(vec![altered]).await.unwrap_err(), "InvalidPart");
    let missing = CompletedPart::builder()
        .part_number(9)
        .e_tag(first.e_tag().unwrap())
        .build();
    assert_eq!(complete(vec![missing]).await.unwrap_err(), "InvalidPart");
    assert_eq!(
        server
            .complete("other", &upload_id, vec![first.clone()])
            .await
            .unwrap_err(),
        "NoSuchUpload"
    );
    assert_eq!(
        server
            .complete("k", "../../escape", vec![first.clone()])
            .await
            .unwrap_err(),
        "NoSuchUpload"
    );
    assert_eq!(server.get("k").await, None);
    complete(vec![first]).await.unwrap();
    assert_eq!(server.get("k").await.unwrap(), b"too small");
}

#[tokio::test]
async fn an_aborted_upload_leaves_no_files() {
    let server = TestServer::start().await;
    let upload_id = server.start_upload("never").await;
    let part = server
        .upload_part("never", &upload_id, 1, vec![1; 100_000])
        .await;
    let abort = || {
        server
            .client
            .abort_multipart_upload()
            .bucket(BUCKET)
            .key("never")
            .upload_id(&upload_id)
            .send()
    };
    abort().await.unwrap();
    assert!(server.files("uploads").is_empty());
    assert!(server.files("tmp").is_empty());
    assert_eq!(code_of(&abort().await.unwrap_err()), "NoSuchUpload");
    assert_eq!(
        server
            .complete("never", &upload_id, vec![part])
            .await
            .unwrap_err(),
        "NoSuchUpload"
    );
}

#[tokio::test]
async fn an_upload_goes_on_after_a_restart() {
    let server = TestServer::start().await;
    let upload_id = server.start_upload("k").await;
    let part = server
        .upload_part("k", &upload_id, 1, b"body".to_vec())
        .await;
    let server = server.restart().await;
    server.complete("k", &upload_id, vec![part]).await.unwrap();
    assert_eq!(server.get("k").await.unwrap(), b"body");
}
