//! Group D: URLs that callers pass on, over real sockets on loopback, through the whole service.
//! What needs a resolver of its own (28, and parts of 27, 29, 30) is tested beside the code, in src/ingest/tests.
//! Invariant: a refused download leaves no file and no request at the server that it was after.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::TestApp;

pub(super) struct HostileServer {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl HostileServer {
    /// Hands each connection, its request's head read, to `answer`, until the test ends.
    pub(super) fn start(answer: fn(&str, TcpStream)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(AtomicUsize::new(0));
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                seen.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let mut head = [0; 4096];
                    let length = stream.read(&mut head).unwrap_or(0);
                    let text = String::from_utf8_lossy(&head[..length]).into_owned();
                    let path = text.split(' ').nth(1).unwrap_or("/").to_owned();
                    answer(&path, stream);
                });
            }
        });
        Self { port, requests }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

pub(super) fn send(mut stream: TcpStream, bytes: &[u8]) {
    let _hung_up = stream.write_all(bytes);
}

pub(super) fn response(headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

pub(super) async fn ingest(app: &TestApp, urls: &[String]) -> Value {
    let body = json!({"user_id": "u", "session_id": "s", "urls": urls});
    let (status, answer) = app.post("/v1/files/upload-urls", body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn assert_all_refused(answer: &Value, urls: &[String]) {
    assert_eq!(answer["status"], "error", "{answer}");
    assert_eq!(answer["uploaded"], json!([]));
    let refused: Vec<&str> = answer["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["source_url"].as_str().unwrap())
        .collect();
    assert_eq!(refused, urls, "{answer}");
}

fn assert_nothing_left(app: &TestApp) {
    let left = std::fs::read_dir(app.only_workspace()).unwrap().next();
    assert!(left.is_none(), "{left:?}");
}

#[tokio::test]
async fn case_27_loopback_and_private_addresses_are_refused_in_every_spelling() {
    let app = TestApp::start().await;
    let server = HostileServer::start(|_, stream| send(stream, &response("", b"secret")));
    let hosts = [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0X7F.0.0.1",
        "017700000001",
        "0177.0.0.1",
        "0177.0.0.01",
        "127.000.000.001",
        "127.8.8.8",
        "0",
        "0.0.0.0",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "①②⑦.0.0.1",
        "127。0。0。1",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[fe80::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fec0::1]",
        "[ff02::1]",
        "10.0.0.1",
        "0xa.1",
        "167772161",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "3232235777",
        "100.64.0.1",
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "[::ffff:a9fe:a9fe]",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
    ];
    let mut urls: Vec<String> = hosts
        .iter()
        .map(|host| format!("http://{host}:{}/x", server.port))
        .collect();
    urls.extend(
        [
            "http:127.0.0.1/",
            "http:\\\\127.0.0.1\\x",
            "http:///127.0.0.1/",
            "HTTP://127.0.0.1/",
            "http://a@127.0.0.1/",
            "http://example.com:80@127.0.0.1/",
            "http://127.0.0.1#@example.com/",
            "http://user:pass@example.com/",
            "file:///etc/passwd",
            "file://localhost/etc/passwd",
            "gopher://127.0.0.1/",
            "ftp://127.0.0.1/",
            "data:,x",
            "javascript:1",
            "unix:/run/docker.sock",
            "not a url",
            "",
            "//127.0.0.1/",
            "http://",
            "http://[::1",
            "http://127.0.0.1:99999/",
        ]
        .map(str::to_owned),
    );
    let answer = ingest(&app, &urls).await;
    assert_all_refused(&answer, &urls);
    assert_eq!(server.requests(), 0, "a connection was made");
    let told = answer["errors"].to_string();
    assert!(!told.contains("secret"), "{told}");
    assert_eq!(app.list("s").await, Vec::<String>::new());
}

#[tokio::test]
async fn case_29_redirects_to_closed_addresses_other_schemes_and_loops_end() {
    let app =
        TestApp::start_with(&[("ALLOW_PRIVATE_URLS", "1"), ("MAX_UPLOAD_BYTES", "1000")]).await;
    let server = HostileServer::start(|path, stream| {
        let location = match path {
            "/metadata" => "http://169.254.169.254/latest/meta-data/",
            "/v4-in-v6" => "http://[::ffff:169.254.169.254]/",
            "/zero" => "http://0.0.0.0/",
            "/file" => "file:///etc/passwd",
            "/gopher" => "gopher://127.0.0.1:6379/_FLUSHALL",
            "/userinfo" => "http://a:b@127.0.0.1/",
            _ => "/loop",
        };
        let head = format!(
            "HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        send(stream, head.as_bytes());
    });
    let paths = [
        "/metadata",
        "/v4-in-v6",
        "/zero",
        "/file",
        "/gopher",
        "/userinfo",
        "/loop",
    ];
    let urls = paths.map(|path| server.url(path));
    let answer = ingest(&app, &urls).await;
    assert_all_refused(&answer, &urls);
    assert_eq!(
        server.requests(),
        6 + 1 + 5,
        "one each, and five more round the loop"
    );
    assert_nothing_left(&app);
}

/// Answers for as long as the client listens.
fn for_ever(mut stream: TcpStream, head: &str, chunk: &[u8], pause: Duration) {
    if stream.write_all(head.as_bytes()).is_err() {
        return;
    }
    while stream.write_all(chunk).is_ok() {
        std::thread::sleep(pause);
    }
}

#[tokio::test]
async fn case_30_bombs_endless_slow_and_false_bodies_are_capped_and_leave_nothing() {
    let app =
        TestApp::start_with(&[("ALLOW_PRIVATE_URLS", "1"), ("MAX_UPLOAD_BYTES", "1000000")]).await;
    let server = HostileServer::start(|path, stream| {
        let plain = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunk = [b"1000\r\n".as_slice(), &[b'x'; 0x1000], b"\r\n"].concat();
        match path {
            "/endless" => for_ever(stream, plain, &[0; 4096], Duration::ZERO),
            "/endless-chunks" => for_ever(stream, chunked, &chunk, Duration::ZERO),
            "/one-byte-a-second" => for_ever(stream, plain, b"x", Duration::from_secs(1)),
            "/headers" => for_ever(
                stream,
                "HTTP/1.1 200 OK\r\n",
                b"x-more: 1\r\n",
                Duration::ZERO,
            ),
            "/large" => send(stream, &response("", &[0; 1_000_001])),
            "/announced" => send(
                stream,
                b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n",
            ),
            "/short" => send(
                stream,
                b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\nconnection: close\r\n\r\nshort",
            ),
            "/two-lengths" => send(
                stream,
                b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nshort.",
            ),
            "/bad-chunk" => send(
                stream,
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
            ),
            _ => send(stream, b"\x16\x03\x01 not http"),
        }
    });
    let paths = [
        "/endless",
        "/endless-chunks",
        "/one-byte-a-second",
        "/headers",
        "/large",
        "/announced",
        "/short",
        "/two-lengths",
        "/bad-chunk",
        "/other",
    ];
    let urls = paths.map(|path| server.url(path));
    let began = Instant::now();
    let before_kb = app.service_memory_kb();
    let answer = ingest(&app, &urls).await;
    assert_all_refused(&answer, &urls);
    assert!(
        began.elapsed() < Duration::from_secs(45),
        "{:?}",
        began.elapsed()
    );
    let grown_kb = app.service_memory_kb().saturating_sub(before_kb);
    assert!(grown_kb < 32 << 10, "the service grew by {grown_kb} KiB");
    assert_nothing_left(&app);
}

#[tokio::test]
async fn case_30_a_compressed_bomb_is_stored_as_the_few_bytes_that_it_is() {
    let app =
        TestApp::start_with(&[("ALLOW_PRIVATE_URLS", "1"), ("MAX_UPLOAD_BYTES", "100000")]).await;
    // The beginning of a gzip stream: a client that unpacked it would fail on it or grow.
    let server = HostileServer::start(|_, stream| {
        let body = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &[0xed; 5000]].concat();
        send(stream, &response("content-encoding: gzip\r\n", &body));
    });
    let answer = ingest(&app, &[server.url("/bomb.csv")]).await;
    assert_eq!(answer["uploaded"], json!(["bomb.csv"]), "{answer}");
    let size = std::fs::metadata(app.only_workspace().join("bomb.csv"))
        .unwrap()
        .len();
    assert_eq!(size, 5010);
}

#[tokio::test]
async fn case_31_a_hostile_disposition_becomes_a_plain_name_in_the_workspace() {
    let app = TestApp::start_with(&[("ALLOW_PRIVATE_URLS", "1")]).await;
    let server = HostileServer::start(|path, stream| {
        let value = match path {
            "/up" => "attachment; filename=\"../../../etc/passwd\"",
            "/absolute" => "attachment; filename=/etc/cron.d/job",
            "/windows" => "attachment; filename=\"C:\\\\Windows\\\\evil.dll\"",
            "/encoded" => "attachment; filename*=UTF-8''..%2F..%2Fetc%2Fshadow%00%0A",
            "/both" => "attachment; filename=a.txt; filename*=UTF-8''%2e%2e%2fb.txt",
            "/dots" => "attachment; filename=\"..\"",
            "/internal" => "attachment; filename=\".cellblock-upload-1\"",
            "/long" => {
                return send(
                    stream,
                    &response(
                        &format!(
                            "content-disposition: attachment; filename=\"{}\"\r\n",
                            "n".repeat(3000)
                        ),
                        b"x",
                    ),
                );
            }
            "/bidi" => "attachment; filename*=UTF-8''photo%E2%80%AEgpj.exe",
            "/bytes" => {
                return send(
                    stream,
                    &response_bytes(b"content-disposition: attachment; filename=\"\xff\xfe\"\r\n"),
                );
            }
            _ => "attachment; filename=\"never closed",
        };
        send(
            stream,
            &response(&format!("content-disposition: {value}\r\n"), b"x"),
        );
    });
    let paths = [
        "/up",
        "/absolute",
        "/windows",
        "/encoded",
        "/both",
        "/dots",
        "/internal",
        "/long",
        "/bidi",
        "/bytes",
        "/open",
    ];
    let urls = paths.map(|path| server.url(path));
    let answer = ingest(&app, &urls).await;
    let uploaded: Vec<&str> = answer["uploaded"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| path.as_str().unwrap())
        .collect();
    let refused = answer["errors"].as_array().unwrap().len();
    assert_eq!(uploaded.len() + refused, paths.len(), "{answer}");
    assert!(uploaded.len() >= paths.len() - 2, "{answer}");
    for name in &uploaded {
        let plain = !name.contains(['/', '\\', '\0', '\n', '\u{202e}'])
            && *name != ".."
            && name.len() <= 255;
        assert!(plain, "{name:?}");
    }
    assert_eq!(
        app.list("s").await.len(),
        uploaded.len(),
        "all of them in the workspace itself"
    );
}

fn response_bytes(header: &[u8]) -> Vec<u8> {
    let start = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n";
    [start, header, b"\r\nx"].concat()
}
