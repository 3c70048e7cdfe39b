//! Opens a hostile URL: parse, resolve, check every address, connect to a checked one, check the peer, redirect by hand.
//! It never trusts a redirect, a proxy setting, a cookie or the HTTP client's own name resolution.
//! Invariant: each hop starts over with `Target::parse`'s checks and one lookup; nothing is carried from hop to hop.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_DISPOSITION, CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, redirect, retry};
use tokio::time::{Instant, timeout_at};

use super::address::{may_fetch_public, may_fetch_public_or_private};
use super::download::Download;
use super::error::IngestError;
use super::filename::{NameSources, suggested_name};
use super::resolve::{Pinned, Resolver, system_resolver};
use super::target::{Target, TargetHost};

const USER_AGENT: &str = concat!("cellblock/", env!("CARGO_PKG_VERSION"));

#[derive(Debug, Clone)]
pub struct FetchPolicy {
    /// `ALLOW_PRIVATE_URLS=1`: loopback, RFC 1918, carrier-grade NAT and unique local addresses may be fetched from.
    /// Link-local (cloud metadata), 0/8, multicast and tunnels stay closed, because nobody keeps files there while
    /// the metadata services keep credentials there.
    pub allow_private: bool,
    pub max_bytes: u64,
    /// From the call of `open` to the last byte, all redirects and lookups included.
    pub total_timeout: Duration,
    /// One TCP and TLS handshake.
    pub connect_timeout: Duration,
    /// Averaged over each `rate_window` of waiting for the body; 0 turns it off.
    pub min_rate_bytes_per_sec: u64,
    /// More than zero.
    pub rate_window: Duration,
    pub max_redirects: usize,
}

impl Default for FetchPolicy {
    fn default() -> Self {
        Self {
            allow_private: false,
            max_bytes: 50 * 1024 * 1024,
            total_timeout: Duration::from_secs(120),
            connect_timeout: Duration::from_secs(10),
            min_rate_bytes_per_sec: 1024,
            rate_window: Duration::from_secs(20),
            max_redirects: 5,
        }
    }
}

impl FetchPolicy {
    pub(super) fn timed_out(&self) -> IngestError {
        IngestError::TimedOut {
            limit_secs: self.total_timeout.as_secs(),
        }
    }
}

/// Cheap to share by reference; holds no connection between calls.
#[derive(Clone)]
pub struct Fetcher {
    policy: FetchPolicy,
    resolver: Resolver,
    may_fetch: fn(IpAddr) -> bool,
}

impl Fetcher {
    pub fn new(policy: FetchPolicy) -> Self {
        Self::with_resolver(policy, system_resolver())
    }

    pub fn with_resolver(policy: FetchPolicy, resolver: Resolver) -> Self {
        let may_fetch = if policy.allow_private {
            may_fetch_public_or_private
        } else {
            may_fetch_public
        };
        Self {
            policy,
            resolver,
            may_fetch,
        }
    }

    /// Lets a test tell loopback addresses apart as "public" and "private".
    #[cfg(test)]
    pub(super) fn with_address_rule(mut self, may_fetch: fn(IpAddr) -> bool) -> Self {
        self.may_fetch = may_fetch;
        self
    }

    /// Follows redirects by hand and returns the first 2xx response, its body still unread.
    pub async fn open(&self, url: &str) -> Result<Download, IngestError> {
        let deadline = Instant::now() + self.policy.total_timeout;
        let asked = Target::parse(url).map_err(IngestError::InvalidUrl)?;
        let following = timeout_at(deadline, self.follow(&asked)).await;
        let (target, response) = following.map_err(|_| self.policy.timed_out())??;
        let name = response_name(&response, &[&target.url, &asked.url]);
        Download::start(response, name, self.policy.clone(), deadline)
    }

    /// A step from https down to http is followed: plain http URLs are accepted to begin with, and no hop is sent
    /// anything that the one before knew (no cookie, credential or referrer).
    async fn follow(&self, asked: &Target) -> Result<(Target, Response), IngestError> {
        let mut target = asked.clone();
        for _ in 0..=self.policy.max_redirects {
            let response = self.request(&target).await?;
            match redirect_location(&response) {
                Some(location) => {
                    target = target
                        .redirect(location)
                        .map_err(IngestError::BadRedirect)?
                }
                None => return accepted(response).map(|response| (target, response)),
            }
        }
        Err(IngestError::TooManyRedirects {
            limit: self.policy.max_redirects,
        })
    }

    async fn request(&self, target: &Target) -> Result<Response, IngestError> {
        let addresses = self.checked_addresses(target).await?;
        let client = self.client_for(target, addresses.clone()).await?;
        let request = client
            .get(target.url.clone())
            .header(ACCEPT, "*/*")
            .header(ACCEPT_ENCODING, "identity");
        let response = request
            .send()
            .await
            .map_err(|error| request_error(&error, target))?;
        // A response without a known peer is refused like one from a wrong peer.
        match response.remote_addr() {
            Some(peer) if addresses.iter().any(|checked| is_same(*checked, peer)) => Ok(response),
            _ => Err(IngestError::Refused {
                host: target.host_text(),
            }),
        }
    }

    /// All addresses of the host, or an error if there is none or if any of them may not be fetched from: a mixed
    /// answer is how a name is bent from a public to a private address between check and use.
    async fn checked_addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, IngestError> {
        let found = match &target.host {
            TargetHost::Address(ip) => vec![*ip],
            TargetHost::Name(name) => (self.resolver)(name).await.unwrap_or_default(),
        };
        if found.is_empty() {
            return Err(IngestError::Unresolved {
                host: target.host_text(),
            });
        }
        if !found.iter().all(|ip| (self.may_fetch)(*ip)) {
            return Err(IngestError::Refused {
                host: target.host_text(),
            });
        }
        Ok(found
            .into_iter()
            .map(|ip| SocketAddr::new(ip, target.port))
            .collect())
    }

    /// One client per hop, so that no pooled connection outlives the check that it was opened under. What is switched
    /// off here stays off even if another dependency turns the matching feature of reqwest on.
    async fn client_for(
        &self,
        target: &Target,
        addresses: Vec<SocketAddr>,
    ) -> Result<Client, IngestError> {
        let builder = Client::builder()
            .user_agent(USER_AGENT)
            .dns_resolver(Pinned(addresses))
            .connect_timeout(self.policy.connect_timeout)
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            .no_proxy()
            .no_gzip()
            .no_brotli()
            .no_deflate()
            .no_zstd()
            .http1_only()
            .pool_max_idle_per_host(0);
        if target.url.scheme() == "http" {
            // Without roots, plain http also works where no certificates are installed.
            return builder
                .tls_certs_only([])
                .build()
                .map_err(no_certificate_roots);
        }
        // Reads the system's certificate files: about 3 ms.
        let building = tokio::task::spawn_blocking(|| builder.build());
        building
            .await
            .map_err(no_certificate_roots)?
            .map_err(no_certificate_roots)
    }
}

fn is_same(checked: SocketAddr, peer: SocketAddr) -> bool {
    checked.ip().to_canonical() == peer.ip().to_canonical() && checked.port() == peer.port()
}

fn redirect_location(response: &Response) -> Option<&[u8]> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    response
        .headers()
        .get(LOCATION)
        .map(|location| location.as_bytes())
}

/// 206 answers a range that was never asked for, so the body would be a part passed off as the whole.
fn accepted(response: Response) -> Result<Response, IngestError> {
    match response.status().as_u16() {
        204 | 205 => Err(IngestError::NoContent),
        206 => Err(IngestError::BadStatus(206)),
        200..=299 => Ok(response),
        status => Err(IngestError::BadStatus(status)),
    }
}

fn response_name(response: &Response, urls: &[&url::Url]) -> String {
    let headers = response.headers();
    suggested_name(&NameSources {
        content_disposition: headers
            .get(CONTENT_DISPOSITION)
            .map(|value| value.as_bytes()),
        urls,
        content_type: headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok()),
    })
}

/// reqwest's own texts contain the whole URL and are dropped.
fn request_error(error: &reqwest::Error, target: &Target) -> IngestError {
    let host = target.host_text();
    if error.is_builder() {
        return IngestError::InvalidUrl("it cannot be sent as a request");
    }
    if error.is_connect() {
        return IngestError::Connect { host };
    }
    IngestError::BadResponse { host }
}

fn no_certificate_roots(error: impl std::error::Error) -> IngestError {
    tracing::error!(%error, source = ?error.source(), "no HTTP client for URL ingestion");
    IngestError::NoCertificateRoots
}
