//! Who may do what: presigned links, bad signatures, other origins, odd requests.
//! Never sends a request this server should trust without a signature.
//! Invariant: what is not signed with the right key is refused.

use aws_sdk_s3::presigning::PresigningConfig;
use std::time::Duration;
use std::time::SystemTime;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{BUCKET, TestServer, client_for, code_of};

#[tokio::test]
async fn a_presigned_link_works_in_a_plain_client_with_the_headers_it_asks_for() {
    let server = TestServer::start().await;
    server.put("plots/figure ü.html", b"<p>hi</p>").await;
    let lifetime = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
    let request = server
        .client
        .get_object()
        .bucket(BUCKET)
        .key("plots/figure ü.html");
    let request = request.response_content_disposition("attachment; filename=\"figure.html\"");
    let request = request
        .response_content_type("text/html")
        .presigned(lifetime)
        .await
        .unwrap();

    let answer = reqwest::get(request.uri()).await.unwrap();
    assert_eq!(answer.status(), 200);
    let headers = answer.headers();
    assert_eq!(
        headers["content-disposition"],
        "attachment; filename=\"figure.html\""
    );
    assert_eq!(headers["content-type"], "text/html");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["access-control-allow-origin"], "*");
    assert!(
        headers["content-security-policy"]
            .to_str()
            .unwrap()
            .starts_with("sandbox")
    );
    assert_eq!(answer.bytes().await.unwrap().as_ref(), b"<p>hi</p>");
}

#[tokio::test]
async fn a_presigned_upload_works_in_a_plain_client() {
    let server = TestServer::start().await;
    let lifetime = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
    let put = server
        .client
        .put_object()
        .bucket(BUCKET)
        .key("upload")
        .presigned(lifetime)
        .await
        .unwrap();
    let answer = reqwest::Client::new()
        .put(put.uri())
        .body("sent")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(server.get("upload").await.unwrap(), b"sent");
}

#[tokio::test]
async fn case_37_expired_altered_and_unsigned_requests_are_refused() {
    let server = TestServer::start().await;
    server.put("secret", b"s").await;
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    let expired = PresigningConfig::builder()
        .start_time(hour_ago)
        .expires_in(Duration::from_secs(60))
        .build()
        .unwrap();
    let expired = server
        .client
        .get_object()
        .bucket(BUCKET)
        .key("secret")
        .presigned(expired)
        .await
        .unwrap();
    let valid = server.presigned_get("secret").await;
    let other_key = valid.replace("/secret?", "/other?");
    let longer = valid.replace("X-Amz-Expires=60", "X-Amz-Expires=6000");
    let (head, signature) = valid.split_once("X-Amz-Signature=").unwrap();
    let flipped = if signature.starts_with('0') { '1' } else { '0' };
    let altered = format!("{head}X-Amz-Signature={flipped}{}", &signature[1..]);
    let wrong_secret = client_for(&server.endpoint, "wrong");
    let lifetime = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
    let forged = wrong_secret
        .get_object()
        .bucket(BUCKET)
        .key("secret")
        .presigned(lifetime)
        .await
        .unwrap();
    let unsigned = format!("{}/{BUCKET}/secret", server.endpoint);
    let added = format!("{valid}&response-content-type=text/html");

    assert_eq!(reqwest::get(&valid).await.unwrap().status(), 200);
    let urls = [
        expired.uri(),
        &other_key,
        &longer,
        &altered,
        forged.uri(),
        &unsigned,
        &added,
        &server.endpoint,
    ];
    for url in urls {
        let answer = reqwest::get(url).await.unwrap();
        assert_eq!(answer.status(), 403, "{url}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        assert!(answer.text().await.unwrap().contains("<Error><Code>"));
    }
    let error = wrong_secret.list_buckets().send().await.unwrap_err();
    assert_eq!(code_of(&error), "SignatureDoesNotMatch");
    let posted = reqwest::Client::new()
        .put(&valid)
        .body("x")
        .send()
        .await
        .unwrap();
    assert_eq!(
        posted.status(),
        403,
        "a link to read does not allow a write"
    );
}

#[tokio::test]
async fn other_origins_may_read_presigned_links_and_nothing_else() {
    let server = TestServer::start().await;
    server.put("k", b"x").await;
    let url = server.presigned_get("k").await;
    let preflight = |method: &'static str| {
        let request = reqwest::Client::new().request(reqwest::Method::OPTIONS, &url);
        request
            .header("origin", "https://app.example")
            .header("access-control-request-method", method)
            .send()
    };
    let allowed = preflight("GET").await.unwrap();
    assert_eq!(allowed.status(), 204);
    assert_eq!(allowed.headers()["access-control-allow-origin"], "*");
    assert_eq!(
        allowed.headers()["access-control-allow-methods"],
        "GET, HEAD"
    );
    assert!(
        !allowed
            .headers()
            .contains_key("access-control-allow-credentials")
    );
    assert_eq!(preflight("PUT").await.unwrap().status(), 403);
}

#[tokio::test]
async fn a_form_upload_is_refused_before_its_body_is_read() {
    let server = TestServer::start().await;
    let address = server.endpoint.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /{BUCKET} HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: 5000000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 501");
}

#[tokio::test]
async fn odd_request_lines_do_not_leave_the_root_or_break_the_server() {
    let server = TestServer::start().await;
    std::fs::write(server.folder.path().join("buckets/outside"), "secret").unwrap();
    let address = server.endpoint.strip_prefix("http://").unwrap();
    for target in [
        "/artifacts/../outside",
        "/..%2f..%2fetc",
        "/%2e%2e/lock",
        "/artifacts/%00",
        "/artifacts/%ff",
        "/artifacts/%",
        "//",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 4"), "{target}: {answer}");
    }
    server.put("still-alive", b"x").await;
}
