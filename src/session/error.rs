//! Why a command could not be carried out, by what the caller can do about it.
//! Never carries a secret, a host path or a sandbox's words to the caller: `Internal` is logged, not sent.

use crate::model::ids::InvalidId;
use crate::model::path::InvalidPath;
use crate::sandbox::BackendError;
use crate::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    #[error("{problem}")]
    InvalidArgument { field: String, problem: String },
    #[error("{0}")]
    NotFound(String),
    #[error("{count} {what} already; try again later")]
    Busy { count: usize, what: &'static str },
    #[error("all {max_total} sandboxes are in use (SANDBOX_MAX_TOTAL); try again later")]
    Capacity { max_total: usize },
    #[error("{0}")]
    TooLarge(String),
    #[error("{problem}")]
    QuotaExceeded {
        problem: String,
        limit: u64,
        current: u64,
    },
    #[error("{0}")]
    Unavailable(String),
    /// The caller went away while its cell waited for its turn.
    #[error("the caller hung up before the cell began")]
    Cancelled,
    #[error("something went wrong inside the service")]
    Internal(#[source] anyhow::Error),
}

const DISK_FAILED: &str = "the disk of the service is full or failed; nothing was kept";

impl CoreError {
    pub fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::Internal(error.into())
    }

    pub fn invalid(field: &str, problem: impl Into<String>) -> Self {
        Self::InvalidArgument {
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    fn disk(problem: &str) -> Self {
        Self::QuotaExceeded {
            problem: problem.to_owned(),
            limit: 0,
            current: 0,
        }
    }

    /// Workspace trouble: a full disk is the operator's to mend, and said as such.
    pub fn workspace(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::disk("the disk of the service is full")
            }
            // A workspace's image could not grow: its file system hears of that as a failing device.
            std::io::ErrorKind::ReadOnlyFilesystem => Self::disk(DISK_FAILED),
            _ if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                tracing::error!(%error, "the disk under a workspace failed");
                Self::disk(DISK_FAILED)
            }
            _ => Self::internal(anyhow::Error::new(error).context("workspace access failed")),
        }
    }
}

impl From<InvalidId> for CoreError {
    fn from(error: InvalidId) -> Self {
        Self::invalid(error.field, error.to_string())
    }
}

impl From<InvalidPath> for CoreError {
    fn from(error: InvalidPath) -> Self {
        Self::invalid("path", error.to_string())
    }
}

impl From<BackendError> for CoreError {
    fn from(error: BackendError) -> Self {
        if let BackendError::Silent(_) = error {
            return Self::Unavailable(error.to_string());
        }
        tracing::error!(%error, "the sandbox backend failed");
        Self::Unavailable("a sandbox could not be made; the log of the service says why".to_owned())
    }
}

impl From<StoreError> for CoreError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound => Self::NotFound("no such file".to_owned()),
            StoreError::File(error) => Self::workspace(error),
            other => Self::Unavailable(other.to_string()),
        }
    }
}
