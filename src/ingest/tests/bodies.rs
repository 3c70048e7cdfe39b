//! From the accepted response to the last byte: names, caps, deadlines, rates, false lengths.
//! It never looks at addresses or redirects.
//! Invariant: every server that could send for ever stops when its client hangs up.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::server::{Handler, TestServer, response};
use super::{failure, local_fetcher, local_policy, read_all};
use crate::ingest::{FetchPolicy, Fetcher, IngestError, Resolver};

#[tokio::test]
async fn a_file_arrives_whole_with_its_name() {
    let server = TestServer::answering(|_| {
        response(
            200,
            "Content-Disposition: attachment; filename=\"a.csv\"\r\n",
            b"x,y\n1,2\n",
        )
    })
    .await;
    let mut download = local_fetcher()
        .open(&server.url("/k?secret=1"))
        .await
        .unwrap();
    assert_eq!(
        (download.suggested_name.as_str(), download.content_length),
        ("a.csv", Some(8))
    );
    assert_eq!(read_all(&mut download).await.unwrap(), b"x,y\n1,2\n");
    assert_eq!(download.next_chunk().await, Ok(None));
    assert_eq!(download.received_bytes(), 8);
}

#[tokio::test]
async fn case_30_an_endless_body_ends_at_the_cap() {
    let handler: Handler = Arc::new(|_, mut stream| {
        Box::pin(async move {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let mut sending = stream.write_all(head).await;
            let chunk = [b"1000\r\n".as_slice(), &[b'x'; 0x1000], b"\r\n"].concat();
            while sending.is_ok() {
                sending = stream.write_all(&chunk).await;
            }
        })
    });
    let server = TestServer::start("127.0.0.1:0", handler).await;
    let mut download = local_fetcher().open(&server.url("/")).await.unwrap();
    let mut delivered = 0;
    let too_large = Err(IngestError::TooLarge {
        limit_bytes: 1_000_000,
    });
    let end = loop {
        match download.next_chunk().await {
            Ok(Some(chunk)) => delivered += chunk.len(),
            end => break end,
        }
    };
    assert_eq!(end, too_large);
    assert!(delivered <= 1_000_000, "{delivered} bytes were handed out");
    assert_eq!(download.next_chunk().await, too_large);
}

#[tokio::test]
async fn a_body_of_exactly_the_cap_is_accepted_and_one_byte_more_is_refused_by_its_length() {
    let server =
        TestServer::answering(|path| response(200, "", &vec![b'x'; path[1..].parse().unwrap()]))
            .await;
    let mut download = local_fetcher().open(&server.url("/1000000")).await.unwrap();
    assert_eq!(read_all(&mut download).await.unwrap().len(), 1_000_000);
    let refusal = local_fetcher().open(&server.url("/1000001")).await.err();
    assert_eq!(
        refusal,
        Some(IngestError::TooLarge {
            limit_bytes: 1_000_000
        })
    );
}

/// The head of a gzip stream is enough: a client that decompressed would fail on it or change it.
#[tokio::test]
async fn case_30_a_compressed_body_is_stored_as_it_is() {
    const GZIP: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xec, 0xc1, 1, 1];
    let server = TestServer::answering(|path| {
        response(200, &format!("Content-Encoding: {}\r\n", &path[1..]), GZIP)
    })
    .await;
    for encoding in ["gzip", "deflate", "br", "zstd", "identity"] {
        let mut download = local_fetcher()
            .open(&server.url(&format!("/{encoding}")))
            .await
            .unwrap();
        assert_eq!(read_all(&mut download).await.unwrap(), GZIP, "{encoding}");
    }
}

#[tokio::test]
async fn case_30_a_body_shorter_than_announced_is_an_error() {
    let server = TestServer::answering(|path| match path {
        "/length" => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort".to_vec(),
        _ => {
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n64\r\nno".to_vec()
        }
    })
    .await;
    for path in ["/length", "/chunked"] {
        let error = failure(&local_fetcher(), &server.url(path)).await;
        assert!(
            matches!(error, IngestError::Truncated { .. }),
            "{path}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_body_longer_than_announced_ends_at_its_length() {
    let server = TestServer::answering(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright and wrong".to_vec()
    })
    .await;
    let mut download = local_fetcher().open(&server.url("/")).await.unwrap();
    assert_eq!(read_all(&mut download).await.unwrap(), b"right");
}

/// Sends the head, then one byte per tick for as long as the client listens.
fn trickling(tick: Duration) -> Handler {
    Arc::new(move |_, mut stream| {
        Box::pin(async move {
            let mut ticks = tokio::time::interval(tick);
            let mut sending = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                .await;
            while sending.is_ok() {
                ticks.tick().await;
                sending = stream.write_all(b"x").await;
            }
        })
    })
}

#[tokio::test]
async fn case_30_a_body_that_trickles_is_too_slow() {
    let server = TestServer::start("127.0.0.1:0", trickling(Duration::from_millis(10))).await;
    let policy = FetchPolicy {
        rate_window: Duration::from_millis(200),
        ..local_policy()
    };
    let error = failure(&Fetcher::new(policy), &server.url("/")).await;
    assert_eq!(
        error,
        IngestError::TooSlow {
            min_rate_bytes_per_sec: 1024
        }
    );
}

#[tokio::test]
async fn case_30_a_body_that_stops_is_too_slow() {
    let server = TestServer::start("127.0.0.1:0", trickling(Duration::from_secs(3600))).await;
    let policy = FetchPolicy {
        rate_window: Duration::from_millis(100),
        ..local_policy()
    };
    let error = failure(&Fetcher::new(policy), &server.url("/")).await;
    assert_eq!(
        error,
        IngestError::TooSlow {
            min_rate_bytes_per_sec: 1024
        }
    );
}

#[tokio::test]
async fn case_30_the_total_deadline_ends_lookups_silent_servers_and_bodies() {
    let policy = FetchPolicy {
        total_timeout: Duration::from_millis(150),
        min_rate_bytes_per_sec: 0,
        ..local_policy()
    };
    let timed_out = IngestError::TimedOut { limit_secs: 0 };

    let never: Resolver = Arc::new(|_| Box::pin(std::future::pending()));
    let fetcher = Fetcher::with_resolver(policy.clone(), never);
    assert_eq!(failure(&fetcher, "http://slow.example/").await, timed_out);

    let silent: Handler = Arc::new(|_, stream| {
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop(stream);
        })
    });
    let server = TestServer::start("127.0.0.1:0", silent).await;
    assert_eq!(failure(&fetcher, &server.url("/")).await, timed_out);

    let server = TestServer::start("127.0.0.1:0", trickling(Duration::from_millis(10))).await;
    assert_eq!(failure(&fetcher, &server.url("/")).await, timed_out);
}

#[tokio::test]
async fn case_31_a_hostile_disposition_becomes_a_plain_name() {
    let server = TestServer::answering(|path| {
        let value = match path {
            "/up" => "attachment; filename=\"../../etc/passwd\"",
            "/encoded" => "attachment; filename*=UTF-8''..%2F..%2Fetc%2Fcron.d%2Fjob%00%0A",
            "/dots" => "attachment; filename=\"..\"",
            "/bidi" => "attachment; filename*=UTF-8''photo%E2%80%AEgpj.exe",
            _ => "attachment; filename=\"never closed",
        };
        response(200, &format!("Content-Disposition: {value}\r\n"), b"")
    })
    .await;
    let expected = [
        ("/up", "passwd"),
        ("/encoded", "job"),
        ("/dots", "dots"),
        ("/bidi", "photogpj.exe"),
        ("/open", "never closed"),
    ];
    for (path, name) in expected {
        let download = local_fetcher().open(&server.url(path)).await.unwrap();
        assert_eq!(download.suggested_name, name, "{path}");
    }
}
