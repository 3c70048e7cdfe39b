//! A hand-written HTTP server on loopback for the tests of this module: it sends exactly the bytes it is told to.
//! It never interprets a request beyond its head, and never listens outside 127/8.
//! Invariant: `requests` holds the head of every request that arrived, in order.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Gets the request's head and the connection; returning closes it.
pub(super) type Handler = Arc<dyn Fn(String, TcpStream) -> BoxFuture<'static, ()> + Send + Sync>;

pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    accepting: JoinHandle<()>,
}

impl TestServer {
    pub(super) async fn start(address: &str, handler: Handler) -> Self {
        Self::try_start(address, handler).await.unwrap()
    }

    pub(super) async fn try_start(address: &str, handler: Handler) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let accepting = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (handler, seen) = (Arc::clone(&handler), Arc::clone(&seen));
                tokio::spawn(async move {
                    let head = read_head(&mut stream).await;
                    seen.lock().unwrap().push(head.clone());
                    handler(head, stream).await;
                });
            }
        });
        Ok(Self {
            address,
            requests,
            accepting,
        })
    }

    /// Answers each request with what `answer` makes of its path, then closes the connection.
    pub(super) async fn answering(answer: fn(&str) -> Vec<u8>) -> Self {
        Self::start("127.0.0.1:0", answer_with(answer)).await
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

pub(super) fn answer_with(answer: fn(&str) -> Vec<u8>) -> Handler {
    Arc::new(move |head, mut stream| {
        Box::pin(async move {
            let path = head.split(' ').nth(1).unwrap_or_default();
            // The client may have hung up by now, which is part of some tests.
            let _ = stream.write_all(&answer(path)).await;
            let _ = stream.shutdown().await;
        })
    })
}

/// A whole response with a true length.
pub(super) fn response(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes =
        format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{headers}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}
