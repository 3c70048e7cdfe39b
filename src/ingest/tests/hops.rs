//! From the URL to the accepted response: addresses, lookups, redirects, statuses, broken servers.
//! It never reads a body for its own sake.
//! Invariant: 127.0.0.2 plays the public address wherever public and private are told apart.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpSocket;

use super::server::{TestServer, answer_with, response};
use super::{answers, failure, local_fetcher, local_policy, read_all, refused};
use crate::ingest::{FetchPolicy, Fetcher, IngestError, Resolver};

#[tokio::test]
async fn the_request_carries_nothing_but_what_it_needs() {
    let server = TestServer::answering(|path| match path {
        "/from?token=1" => response(302, "Location: /to\r\nSet-Cookie: a=b\r\n", b""),
        _ => response(200, "", b"ok"),
    })
    .await;
    local_fetcher()
        .open(&server.url("/from?token=1#part"))
        .await
        .unwrap();
    let expected = |path: &str| {
        let mut lines = vec![
            format!("get {path} http/1.1"),
            "accept: */*".to_owned(),
            "accept-encoding: identity".to_owned(),
            format!("host: {}", server.address),
            concat!("user-agent: cellblock/", env!("CARGO_PKG_VERSION")).to_owned(),
        ];
        lines.sort();
        lines
    };
    let sent = server.requests().into_iter().map(|head| {
        let mut lines: Vec<_> = head
            .trim_end()
            .lines()
            .map(str::to_ascii_lowercase)
            .collect();
        lines.sort();
        lines
    });
    assert_eq!(
        sent.collect::<Vec<_>>(),
        [expected("/from?token=1"), expected("/to")]
    );
}

#[tokio::test]
async fn case_27_every_spelling_of_loopback_is_refused_without_a_connection() {
    let server = TestServer::answering(|_| response(200, "", b"secret")).await;
    let port = server.address.port();
    let fetcher = Fetcher::with_resolver(FetchPolicy::default(), answers(&[]));
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "127.1",
        "127.0.0.1.",
        "[::ffff:127.0.0.1]",
        "[::1]",
        "[::ffff:7f00:1]",
        "0",
        "[::]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
    ] {
        let error = failure(&fetcher, &format!("http://{host}:{port}/")).await;
        assert!(
            matches!(error, IngestError::Refused { .. }),
            "{host}: {error:?}"
        );
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn case_27_the_system_resolver_finds_localhost_and_the_rule_refuses_it() {
    let error = failure(&Fetcher::new(FetchPolicy::default()), "http://LOCALHOST./").await;
    assert_eq!(error, refused("localhost"));
}

#[tokio::test]
async fn case_28_a_name_with_any_closed_address_is_refused() {
    for set in [
        &["8.8.8.8", "127.0.0.1"][..],
        &["127.0.0.1", "8.8.8.8"],
        &["2606:4700::1111", "::ffff:10.0.0.1"],
        &["169.254.169.254"],
    ] {
        let fetcher = Fetcher::with_resolver(FetchPolicy::default(), answers(&[set]));
        assert_eq!(
            failure(&fetcher, "http://mixed.example/").await,
            refused("mixed.example"),
            "{set:?}"
        );
    }
    let error = refused("mixed.example").to_string();
    assert!(
        !error.contains("127.") && !error.contains("169."),
        "{error}"
    );
}

#[tokio::test]
async fn case_27_metadata_stays_refused_when_private_urls_are_allowed() {
    for url in [
        "http://169.254.169.254/latest",
        "http://[fe80::1]/",
        "http://0.0.0.0/",
        "http://[fd00:ec2::254]/",
    ] {
        assert!(
            matches!(
                failure(&local_fetcher(), url).await,
                IngestError::Refused { .. }
            ),
            "{url}"
        );
    }
}

/// In the tests below 127.0.0.2 plays the public address and every other one a private one.
fn only_127_0_0_2(ip: IpAddr) -> bool {
    ip == IpAddr::from([127, 0, 0, 2])
}

async fn public_and_private_servers(answer: fn(&str) -> Vec<u8>) -> (TestServer, TestServer) {
    loop {
        let public = TestServer::start("127.0.0.2:0", answer_with(answer)).await;
        let same_port = format!("127.0.0.3:{}", public.address.port());
        let secret = answer_with(|_| response(200, "", b"secret"));
        // Another test may hold that port on the second address.
        if let Ok(private) = TestServer::try_start(&same_port, secret).await {
            return (public, private);
        }
    }
}

#[tokio::test]
async fn case_28_the_connection_goes_to_the_address_that_was_checked_and_the_name_is_looked_up_once()
 {
    let (public, private) = public_and_private_servers(|_| response(200, "", b"public")).await;
    let lookups = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lookups);
    let rebinding: Resolver = Arc::new(move |host| {
        assert_eq!(host, "rebind.example");
        let last_octet = if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            2
        } else {
            3
        };
        Box::pin(std::future::ready(Ok(vec![IpAddr::from([
            127, 0, 0, last_octet,
        ])])))
    });
    let fetcher =
        Fetcher::with_resolver(local_policy(), rebinding).with_address_rule(only_127_0_0_2);
    let url = format!("http://Rebind.Example.:{}/", public.address.port());
    let mut download = fetcher.open(&url).await.unwrap();
    assert_eq!(read_all(&mut download).await.unwrap(), b"public");
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
    assert!(
        public.requests()[0]
            .to_ascii_lowercase()
            .contains("host: rebind.example:")
    );
    assert_eq!(failure(&fetcher, &url).await, refused("rebind.example"));
    assert_eq!((public.requests().len(), private.requests().len()), (1, 0));
}

#[tokio::test]
async fn case_28_each_redirect_is_looked_up_and_checked_again() {
    let (public, private) =
        public_and_private_servers(|_| response(302, "Location: /again\r\n", b"")).await;
    let resolver = answers(&[&["127.0.0.2"], &["127.0.0.3"]]);
    let fetcher =
        Fetcher::with_resolver(local_policy(), resolver).with_address_rule(only_127_0_0_2);
    let error = failure(
        &fetcher,
        &format!("http://rebind.example:{}/", public.address.port()),
    )
    .await;
    assert_eq!(error, refused("rebind.example"));
    assert_eq!((public.requests().len(), private.requests().len()), (1, 0));
}

#[tokio::test]
async fn case_29_a_redirect_to_a_private_address_is_refused_without_a_connection() {
    let (public, private) = public_and_private_servers(|path| {
        response(
            307,
            &format!("Location: http://127.0.0.3:{}/\r\n", &path[1..]),
            b"",
        )
    })
    .await;
    let fetcher = local_fetcher().with_address_rule(only_127_0_0_2);
    let error = failure(
        &fetcher,
        &public.url(&format!("/{}", private.address.port())),
    )
    .await;
    assert_eq!(error, refused("127.0.0.3"));
    assert!(private.requests().is_empty());
}

#[tokio::test]
async fn case_29_a_redirect_to_another_scheme_or_with_credentials_is_refused() {
    let server = TestServer::answering(|path| {
        let location = match path {
            "/file" => "file:///etc/passwd",
            "/gopher" => "gopher://127.0.0.1:6379/_FLUSHALL",
            "/data" => "data:text/plain,x",
            "/login" => "http://user:hunter2@127.0.0.1/",
            _ => "http://[broken",
        };
        response(301, &format!("Location: {location}\r\n"), b"")
    })
    .await;
    for path in ["/file", "/gopher", "/data", "/login", "/broken"] {
        let error = failure(&local_fetcher(), &server.url(path)).await;
        assert!(
            matches!(error, IngestError::BadRedirect(_)),
            "{path}: {error:?}"
        );
        assert!(!error.to_string().contains("hunter2"));
    }
}

#[tokio::test]
async fn case_29_redirects_are_followed_five_times_and_loops_end() {
    let server = TestServer::answering(|path| match path[1..].parse::<u32>() {
        Ok(0) => response(200, "", b"arrived"),
        Ok(left) => response(302, &format!("Location: {}\r\n", left - 1), b""),
        Err(_) => response(302, "Location: ?\r\n", b""),
    })
    .await;
    let mut download = local_fetcher().open(&server.url("/5")).await.unwrap();
    assert_eq!(read_all(&mut download).await.unwrap(), b"arrived");
    let limit = IngestError::TooManyRedirects { limit: 5 };
    assert_eq!(failure(&local_fetcher(), &server.url("/6")).await, limit);
    let before = server.requests().len();
    assert_eq!(failure(&local_fetcher(), &server.url("/loop")).await, limit);
    assert_eq!(server.requests().len() - before, 6);
}

#[tokio::test]
async fn only_a_whole_2xx_response_is_accepted() {
    let server = TestServer::answering(|path| response(path[1..].parse().unwrap(), "", b"")).await;
    for status in [206, 300, 302, 304, 400, 401, 404, 500, 503] {
        let error = failure(&local_fetcher(), &server.url(&format!("/{status}"))).await;
        assert_eq!(error, IngestError::BadStatus(status));
    }
    for status in [204, 205] {
        assert_eq!(
            failure(&local_fetcher(), &server.url(&format!("/{status}"))).await,
            IngestError::NoContent
        );
    }
}

#[tokio::test]
async fn case_30_a_server_that_speaks_no_http_or_floods_headers_is_a_bad_response() {
    let server = TestServer::answering(|path| match path {
        "/flood" => [
            b"HTTP/1.1 200 OK\r\n".as_slice(),
            &b"X-Flood: 1\r\n".repeat(100_000),
        ]
        .concat(),
        "/long" => [
            b"HTTP/1.1 200 OK\r\nX-Long: ".as_slice(),
            &[b'x'; 2_000_000],
        ]
        .concat(),
        "/empty" => Vec::new(),
        _ => b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
    })
    .await;
    for path in ["/flood", "/long", "/empty", "/ssh"] {
        let error = failure(&local_fetcher(), &server.url(path)).await;
        assert_eq!(
            error,
            IngestError::BadResponse {
                host: "127.0.0.1".to_owned()
            },
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_host_that_is_down_or_unknown_is_named_without_the_query() {
    // Bound but not listening: connections are refused and no other test can get the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let free = socket.local_addr().unwrap();
    let error = failure(
        &local_fetcher(),
        &format!("http://{free}/path?token=hunter2"),
    )
    .await;
    assert_eq!(
        error,
        IngestError::Connect {
            host: "127.0.0.1".to_owned()
        }
    );
    let error = failure(
        &local_fetcher(),
        "http://nowhere.example/path?token=hunter2",
    )
    .await;
    assert_eq!(
        error,
        IngestError::Unresolved {
            host: "nowhere.example".to_owned()
        }
    );
    assert!(!error.to_string().contains("hunter2") && !error.to_string().contains("path"));
    let error = failure(&local_fetcher(), "http://user:hunter2@127.0.0.1/").await;
    assert!(matches!(error, IngestError::InvalidUrl(_)) && !error.to_string().contains("hunter2"));
}
