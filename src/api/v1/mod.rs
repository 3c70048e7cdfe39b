//! Dialect v1, the Agent Sandbox API: one file per group of routes.
//! Parses, asks the core, shapes the answer. Invariant: shapes and codes are those of the contract.

pub mod download;
pub mod execute;
pub mod files;
pub mod sandbox;
pub mod upload;
