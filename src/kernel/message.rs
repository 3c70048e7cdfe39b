//! The typed frames of both links, and their reading from untrusted JSON.
//! Does no I/O. Invariant: a frame that does not fit its type is an error, never a guess;
//! nesting is bounded by serde_json's own limit and bundles by what the frame limit lets through.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::execution::{CellError, MimeBundle};

pub const PROTOCOL_VERSION: u64 = 1;

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum HostFrame<'a> {
    Ping {
        id: u64,
    },
    Interrupt {
        id: u64,
        execution: u64,
    },
    Restart {
        id: u64,
    },
    Spawn {
        id: u64,
        process: u64,
        argv: &'a [String],
        cwd: &'a str,
        env: &'a BTreeMap<String, String>,
    },
    Kill {
        id: u64,
        process: u64,
    },
    Execute {
        id: u64,
        code: &'a str,
        max_output_bytes: usize,
    },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Hello {
    Control {
        protocol: u64,
        #[serde(default)]
        python: String,
        #[serde(default)]
        preload_failed: Vec<String>,
    },
    Cell {
        generation: u64,
        #[serde(default)]
        execution_count: u64,
    },
    Process {
        process: u64,
    },
}

/// The supervisor's answer to a control request.
#[derive(Debug, Deserialize)]
pub struct ControlReply {
    pub id: u64,
    /// To an interrupt: whether the execution was running.
    #[serde(default)]
    pub running: bool,
    /// To a spawn: why there is no process; empty if there is one.
    #[serde(default)]
    pub error: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamName {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CellStatus {
    Ok,
    Error,
    Interrupted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Death {
    Exit,
    Signal,
}

/// What a cell link brings.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum CellFrame {
    Stream {
        id: u64,
        stream: StreamName,
        text: String,
    },
    Display {
        id: u64,
        data: MimeBundle,
    },
    Done {
        id: u64,
        status: CellStatus,
        #[serde(default)]
        execution_count: u64,
        #[serde(default)]
        truncated: bool,
        result: Option<MimeBundle>,
        error: Option<CellError>,
    },
    Died {
        id: u64,
        reason: Death,
        #[serde(default)]
        code: i64,
    },
    #[serde(other)]
    Unknown,
}

impl CellFrame {
    /// The execution the frame belongs to; none for frames of a later protocol.
    pub fn execution(&self) -> Option<u64> {
        match self {
            Self::Stream { id, .. }
            | Self::Display { id, .. }
            | Self::Done { id, .. }
            | Self::Died { id, .. } => Some(*id),
            Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_done_frame_is_read_with_and_without_its_optional_parts() {
        let short: CellFrame =
            serde_json::from_str(r#"{"op":"done","id":3,"status":"ok"}"#).unwrap();
        assert_eq!(short.execution(), Some(3));
        let long = r#"{"op":"done","id":3,"status":"error","execution_count":2,"truncated":true,
            "result":{"text/plain":"1"},"error":{"name":"E","value":"v","traceback":"t"}}"#;
        assert!(matches!(
            serde_json::from_str(long),
            Ok(CellFrame::Done {
                truncated: true,
                ..
            })
        ));
    }

    #[test]
    fn unknown_words_are_ignored_and_wrong_types_are_refused() {
        assert_eq!(
            serde_json::from_str::<CellFrame>(r#"{"op":"news"}"#).unwrap(),
            CellFrame::Unknown
        );
        assert!(
            serde_json::from_str::<CellFrame>(
                r#"{"op":"stream","id":"1","stream":"stdout","text":""}"#
            )
            .is_err()
        );
        assert!(
            serde_json::from_str::<CellFrame>(r#"{"op":"display","id":1,"data":{"a":{"b":1}}}"#)
                .is_err()
        );
        let deep = format!(r#"{{"op":"stream","id":1,"x":{}}}"#, "[".repeat(5000));
        assert!(serde_json::from_str::<CellFrame>(&deep).is_err());
    }
}
