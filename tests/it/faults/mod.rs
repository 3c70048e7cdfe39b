//! Group G of the battery: real faults, and a checker that remembers what was acknowledged. Where a container is involved
//! the tests run once per backend (CELLBLOCK_TEST_BACKEND); the number in a name is the case of docs/SECURITY.md.

mod clock;
mod disk;
mod docker;
mod history;
mod kills;
mod outside_s3;
mod store;
mod vanished;
