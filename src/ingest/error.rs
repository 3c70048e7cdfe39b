//! What can go wrong with one URL, sorted by what the caller can do about it.
//! It never carries a query, credentials, a path or the address that a name resolved to.
//! Invariant: every text is safe to show to the caller as it is.

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IngestError {
    #[error("the URL is not valid: {0}")]
    InvalidUrl(&'static str),
    #[error("the server redirects to a URL that is not allowed: {0}")]
    BadRedirect(&'static str),
    #[error("the server redirects more than {limit} times")]
    TooManyRedirects { limit: usize },
    #[error(
        "the host {host} is refused: it is not, or not only, at addresses that may be fetched from"
    )]
    Refused { host: String },
    #[error("the host {host} could not be resolved")]
    Unresolved { host: String },
    #[error(
        "no connection to the host {host}: refused, unreachable, too slow or no valid certificate"
    )]
    Connect { host: String },
    #[error("the host {host} did not send a valid HTTP response")]
    BadResponse { host: String },
    #[error("the server answered with status {0}")]
    BadStatus(u16),
    #[error("the server answered that there is no content")]
    NoContent,
    #[error("the body is larger than {limit_bytes} bytes")]
    TooLarge { limit_bytes: u64 },
    #[error("the download did not finish within {limit_secs} seconds")]
    TimedOut { limit_secs: u64 },
    #[error("the download is slower than {min_rate_bytes_per_sec} bytes per second")]
    TooSlow { min_rate_bytes_per_sec: u64 },
    #[error("the connection ended after {received_bytes} bytes, before the whole body had arrived")]
    Truncated { received_bytes: u64 },
    /// The cause is logged where it happens: on Linux, no certificate roots are installed.
    #[error(
        "this service cannot open https connections: its certificate roots could not be loaded"
    )]
    NoCertificateRoots,
}
