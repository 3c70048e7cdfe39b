//! Cellblock: a persistent REPL kernel service with S3 artifact sync.
//! docs/ARCHITECTURE.md says where everything is; `app` is where it is put together.

pub mod api;
pub mod app;
pub mod cli;
mod http_server;
pub mod ingest;
pub mod kernel;
mod metrics;
pub mod model;
pub mod policy;
mod polled_at_once;
pub mod sandbox;
pub mod session;
pub mod settings;
pub mod store;
pub mod volume;
pub mod workspace;
