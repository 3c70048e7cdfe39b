//! The bare things below Cellblock and its peers: a socket, a container, an upload, with nothing around them.
//! Never uses Cellblock. Invariant: each times only its own work.

pub mod docker;
pub mod libcontainer;
pub mod memory;
pub mod plain_sdk;
pub mod raw_repl;
pub mod run_queue;
