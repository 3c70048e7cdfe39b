//! Name resolution for ingestion: one lookup gives all addresses of a name, for the caller to judge.
//! It never filters, caches or orders addresses, and never opens a connection.
//! Invariant: hostile names hold at most `MAX_LOOKUPS` threads of the blocking pool, whatever their servers do.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

const MAX_LOOKUPS: usize = 32;

/// Looks up a host name. Tests hand in their own.
pub type Resolver = Arc<dyn Fn(&str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// The operating system's resolver. The permit goes into the blocking call: a lookup that its caller has given up
/// still occupies a thread until it ends.
pub fn system_resolver() -> Resolver {
    let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS));
    Arc::new(move |host| {
        let host = host.to_owned();
        let lookups = Arc::clone(&lookups);
        async move {
            let permit = lookups.acquire_owned().await.map_err(io::Error::other)?;
            let lookup = move || {
                let _permit = permit;
                let found = (host.as_str(), 0).to_socket_addrs()?;
                Ok(found.map(|socket| socket.ip()).collect())
            };
            tokio::task::spawn_blocking(lookup).await?
        }
        .boxed()
    })
}

/// Answers every name with the same checked addresses, so that the HTTP client cannot look anything up by itself,
/// not even if it spelled the name differently from the check.
pub(super) struct Pinned(pub(super) Vec<SocketAddr>);

impl Resolve for Pinned {
    fn resolve(&self, _name: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(std::future::ready(Ok(addresses)))
    }
}
