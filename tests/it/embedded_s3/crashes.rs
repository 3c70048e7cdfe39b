//! Lost connections, crashes, damage, links and shutdown.
//! Never sleeps for a fixed time: it waits for what it expects.
//! Invariant: nothing half-written is ever visible.

use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use cellblock::store::embedded::EmbeddedS3;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{BUCKET, TestServer, eventually};

#[tokio::test]
async fn a_connection_lost_in_the_middle_of_a_put_leaves_nothing() {
    let server = TestServer::start().await;
    let lifetime = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
    let put = server
        .client
        .put_object()
        .bucket(BUCKET)
        .key("half")
        .presigned(lifetime)
        .await
        .unwrap();
    let (address, target) = put
        .uri()
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head =
        format!("PUT /{target} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 9000000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![7; 3_000_000]).await.unwrap();
    eventually(|| !server.files("tmp").is_empty()).await;
    drop(stream);
    eventually(|| server.files("tmp").is_empty()).await;
    assert_eq!(server.get("half").await, None);
    assert!(server.keys("").await.is_empty());
}

#[tokio::test]
async fn what_a_crash_left_half_written_is_removed_at_the_next_start() {
    let server = TestServer::start().await;
    server.put("kept", b"x").await;
    let folder = server.stop().await;
    std::fs::write(folder.path().join("tmp/0123456789abcdef"), "half an object").unwrap();
    let server = TestServer::start_in(folder).await;
    assert!(server.files("tmp").is_empty());
    assert_eq!(server.keys("").await, ["kept"]);
}

#[tokio::test]
async fn a_damaged_object_counts_as_absent_and_can_be_replaced() {
    let server = TestServer::start().await;
    server.put("damaged", b"some bytes").await;
    let file = server.files("buckets").pop().unwrap();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(server.get("damaged").await, None);
    assert!(server.keys("").await.is_empty());
    let put = server
        .client
        .put_object()
        .bucket(BUCKET)
        .key("damaged")
        .if_none_match("*");
    put.body(ByteStream::from_static(b"whole"))
        .send()
        .await
        .unwrap();
    assert_eq!(server.get("damaged").await.unwrap(), b"whole");
}

#[tokio::test]
async fn a_symbolic_link_in_the_store_is_not_followed() {
    let server = TestServer::start().await;
    server.put("link", b"x").await;
    let file = server.files("buckets").pop().unwrap();
    let target = server.folder.path().join("elsewhere");
    std::fs::rename(&file, &target).unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    let answer = server
        .client
        .get_object()
        .bucket(BUCKET)
        .key("link")
        .send()
        .await;
    assert!(answer.is_err());
}

#[tokio::test]
async fn a_request_under_way_is_finished_at_shutdown() {
    let server = TestServer::start().await;
    let lifetime = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
    let put = server
        .client
        .put_object()
        .bucket(BUCKET)
        .key("late")
        .presigned(lifetime)
        .await
        .unwrap();
    let (address, target) = put
        .uri()
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head =
        format!("PUT /{target} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 3000000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![7; 2_000_000]).await.unwrap();
    eventually(|| !server.files("tmp").is_empty()).await;
    server.shutdown.send(()).unwrap();
    stream.write_all(&vec![7; 1_000_000]).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    server.task.await.unwrap();
    let server = TestServer::start_in(server.folder).await;
    assert_eq!(server.get("late").await.unwrap().len(), 3_000_000);
}

#[tokio::test]
async fn a_store_cannot_be_opened_twice() {
    let server = TestServer::start().await;
    let path = server.folder.path().to_owned();
    let second = tokio::task::spawn_blocking(move || EmbeddedS3::open(&path))
        .await
        .unwrap();
    assert!(second.unwrap_err().to_string().contains("in use"));
}
