//! Faults that only an engine can have, or that somebody with its client can cause. They need a Docker engine.

mod behind_our_back;
mod engine;
