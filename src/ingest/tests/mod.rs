//! Tests of `Fetcher` and `Download` against real sockets on loopback (battery D 27–31), and what they share.
//! They never leave loopback: names go through an injected resolver.
//! Invariant: a refused hop is also shown not to have reached its server.

mod bodies;
mod hops;
mod server;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use super::{Download, FetchPolicy, Fetcher, IngestError, Resolver};

fn local_policy() -> FetchPolicy {
    FetchPolicy {
        allow_private: true,
        max_bytes: 1_000_000,
        ..FetchPolicy::default()
    }
}

fn local_fetcher() -> Fetcher {
    Fetcher::with_resolver(local_policy(), answers(&[]))
}

/// A resolver that gives each answer once, in order, and then fails.
fn answers(sets: &[&[&str]]) -> Resolver {
    let parse = |set: &&[&str]| {
        set.iter()
            .map(|ip| ip.parse().unwrap())
            .collect::<Vec<IpAddr>>()
    };
    let queue = Mutex::new(sets.iter().map(parse).rev().collect::<Vec<_>>());
    Arc::new(move |_host| {
        let answer = queue
            .lock()
            .unwrap()
            .pop()
            .ok_or(io::ErrorKind::NotFound.into());
        Box::pin(std::future::ready(answer))
    })
}

async fn read_all(download: &mut Download) -> Result<Vec<u8>, IngestError> {
    let mut body = Vec::new();
    while let Some(chunk) = download.next_chunk().await? {
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

async fn failure(fetcher: &Fetcher, url: &str) -> IngestError {
    match fetcher.open(url).await {
        Err(error) => error,
        Ok(mut download) => read_all(&mut download)
            .await
            .expect_err("the download should fail"),
    }
}

fn refused(host: &str) -> IngestError {
    IngestError::Refused {
        host: host.to_owned(),
    }
}
