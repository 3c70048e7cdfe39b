//! The words of the domain as types: ids, keys, paths, what goes into the core and what comes out.
//! Never does I/O. Invariant: a value of these types has already been validated.

pub mod execution;
pub mod ids;
pub mod json_depth;
pub mod path;
pub mod process;
