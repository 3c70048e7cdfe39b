//! The host's half of the kernel protocol (docs/PROTOCOL.md): packets, links, typed frames.
//! Never starts sandboxes and never decides what a death or a deadline means.
//! Invariant: everything that comes from a sandbox is bounded and checked before it is used.

pub mod frame;
mod link;
mod listener;
mod message;
mod raw_packets;
mod socket;

pub use frame::MAX_PACKET_BYTES;
pub use link::{CellLink, Kernel, KernelError, ProcessLink, Program};
pub use message::{CellFrame, CellStatus, Death, StreamName};
pub use raw_packets::RawPackets;
