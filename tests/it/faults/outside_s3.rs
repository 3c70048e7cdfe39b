//! An S3 service that the tests own, and a proxy before it that behaves as badly as it is told to.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellblock::store::embedded::{Credentials, EmbeddedS3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// An S3 server of our own on a fixed port, as "any S3" that the service is pointed at.
pub struct OutsideS3 {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl OutsideS3 {
    pub async fn start(root: &Path, port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let server = EmbeddedS3::open(root).unwrap();
        let credentials = Credentials {
            access_key_id: "outside".into(),
            secret_access_key: "outside-secret".into(),
        };
        let task = tokio::spawn(async move {
            server
                .serve(
                    listener,
                    credentials,
                    async move { stopped.cancelled().await },
                )
                .await
        });
        Self { stop, task }
    }

    pub async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// What the proxy does with each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    Passing,
    /// Answers with this status and nothing else.
    Status(u16),
    /// Takes the request and hangs up without a word.
    Reset,
    /// Passes the request on and hangs up in the middle of the answer: it was carried out, but nobody hears of it.
    CutAnswer,
    /// Passes everything on, late.
    Slow,
    /// One connection out of three gets this status.
    EveryThird(u16),
}

pub struct S3Proxy {
    pub port: u16,
    behaviour: watch::Sender<Behaviour>,
}

impl S3Proxy {
    pub async fn start(target_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let behaviour = watch::Sender::new(Behaviour::Passing);
        let current = behaviour.subscribe();
        let count = Arc::new(AtomicU64::new(0));
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let (current, count) = (current.clone(), count.clone());
                tokio::spawn(async move { serve(caller, target_port, current, &count).await });
            }
        });
        Self { port, behaviour }
    }

    /// From the next request on; connections that are open are closed before it.
    pub fn set(&self, behaviour: Behaviour) {
        self.behaviour.send_replace(behaviour);
    }
}

/// One request per connection, so that each is treated as it should be: a kept connection ends with its first answer.
async fn serve(
    mut caller: TcpStream,
    target_port: u16,
    behaviour: watch::Receiver<Behaviour>,
    count: &AtomicU64,
) -> Option<()> {
    let request = read_request(&mut caller).await?;
    let mut now = *behaviour.borrow();
    if let Behaviour::EveryThird(status) = now {
        let third = count.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
        now = if third {
            Behaviour::Status(status)
        } else {
            Behaviour::Passing
        };
    }
    let answer = match now {
        Behaviour::Reset => return None,
        Behaviour::Status(status) => {
            format!("HTTP/1.1 {status} Trouble\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                .into_bytes()
        }
        _ => ask(target_port, &request).await?,
    };
    let part = match now {
        Behaviour::CutAnswer => &answer[..answer.len() / 2],
        Behaviour::Slow => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            &answer[..]
        }
        _ => &answer[..],
    };
    caller.write_all(part).await.ok()?;
    caller.shutdown().await.ok()
}

/// Head and body, the body as long as the head says or in chunks; the server is told to close afterwards.
async fn read_request(caller: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = find(&bytes, b"\r\n\r\n") {
            break end + 4;
        }
        if caller.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).to_lowercase();
    if head.contains("expect: 100-continue") {
        caller
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
            .await
            .ok()?;
    }
    let length = head.lines().find_map(|line| {
        line.strip_prefix("content-length:")?
            .trim()
            .parse::<usize>()
            .ok()
    });
    let chunked = head.contains("transfer-encoding: chunked");
    let complete = |bytes: &[u8]| match (length, chunked) {
        (Some(length), _) => bytes.len() >= head_end + length,
        (None, true) => bytes.ends_with(b"0\r\n\r\n"),
        (None, false) => true,
    };
    while !complete(&bytes) {
        if caller.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8_lossy(&bytes[..head_end - 2]).into_owned();
    let head = head
        .lines()
        .filter(|line| {
            let line = line.to_lowercase();
            !line.starts_with("connection:") && !line.starts_with("expect:")
        })
        .fold(String::new(), |text, line| text + line + "\r\n");
    let mut request = format!("{head}Connection: close\r\n\r\n").into_bytes();
    request.extend(&bytes[head_end..]);
    Some(request)
}

async fn ask(port: u16, request: &[u8]) -> Option<Vec<u8>> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    server.write_all(request).await.ok()?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await.ok()?;
    Some(answer)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}
