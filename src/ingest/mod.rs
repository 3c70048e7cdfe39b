//! URL ingestion: turns a hostile URL into a checked connection, a safe file name and a capped stream of bytes.
//! It never writes a file, follows a redirect unchecked, uses a proxy or sends credentials of any kind.
//! Invariant: every connection goes to an address that passed the address rule within the same hop.

pub mod address;
mod disposition;
mod download;
mod error;
mod fetch;
pub mod filename;
mod resolve;
mod target;

#[cfg(test)]
mod tests;

pub use download::Download;
pub use error::IngestError;
pub use fetch::{FetchPolicy, Fetcher};
pub use resolve::{Resolver, system_resolver};
