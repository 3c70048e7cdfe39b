//! What every backend must do. `./ctl.sh test` runs this suite once per backend: CELLBLOCK_TEST_BACKEND picks it.

mod execute;
mod expiry;
mod file_limits;
mod files;
mod large_files;
mod pool;
mod processes;
mod quota;
mod restart;
mod sandbox;
pub mod sessions;
mod soft_quota;
mod streaming;
mod threads;
mod tools;
mod tools_inside;
