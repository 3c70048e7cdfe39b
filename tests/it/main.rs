//! The integration suite: one binary, real parts. Every test starts the service as a user would and talks HTTP to it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod embedded_s3;
mod execute;
mod expiry;
mod files;
mod hostile_files;
mod ingestion;
mod input;
mod isolation;
mod restart;
mod sandbox;
mod settings;
mod store_faults;
mod streaming;
mod support;
