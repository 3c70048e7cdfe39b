//! What a caller asks of an execution, what happens while it runs, and what it came to.
//! Never speaks of HTTP. Invariant: the answer says what really happened to code, variables and files.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::path::WorkspacePath;

/// One value in several shapes, by MIME type. Pictures are base64, everything else is text.
pub type MimeBundle = BTreeMap<String, String>;

#[derive(Debug, Clone)]
pub struct ExecuteCommand {
    pub code: String,
    pub inputs: Vec<WorkspacePath>,
    pub timeout: Duration,
    pub link_expires_in: Duration,
}

/// What a caller may see before the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecutionEvent {
    Stdout(String),
    Stderr(String),
    Display(MimeBundle),
    Result(MimeBundle),
    Error(CellError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionStatus {
    Ok,
    Error,
    Timeout,
    Interrupted,
    Died,
}

impl ExecutionStatus {
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
            Self::Died => "died",
        }
    }
}

/// What became of the variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VariableState {
    Kept,
    Lost,
}

/// Why a worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeathReason {
    Oom,
    Signal,
    Exit,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Artifact {
    pub path: String,
    pub size_bytes: u64,
    pub mime_type: String,
    /// None when the store could not be reached; the file is safe in the workspace and will be stored later.
    pub download_url: Option<String>,
    pub sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    pub path: String,
    pub reason: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SyncReport {
    pub uploaded: usize,
    pub unchanged: usize,
    pub skipped: Vec<Skipped>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExecutionAnswer {
    pub output: String,
    pub artifacts: Vec<Artifact>,
    pub status: ExecutionStatus,
    pub state: VariableState,
    pub error: Option<CellError>,
    pub stdout: String,
    pub stderr: String,
    pub results: Vec<MimeBundle>,
    pub execution_count: u64,
    pub duration_ms: f64,
    pub truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeathReason>,
    pub sync: SyncReport,
}
