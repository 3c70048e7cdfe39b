//! The integration suite: one binary, real parts. Every test starts the service as a user would and talks HTTP to it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod command_policy;
mod contract;
mod docker;
mod embedded_s3;
mod faults;
mod ingestion;
mod input;
mod observability;
mod security;
mod settings;
mod support;
