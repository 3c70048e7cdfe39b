//! Where artifacts live: S3, always, be it AWS, MinIO or the embedded server.
//! Never touches a session's state; it takes a workspace and a manifest and says what it did.
//! Invariant: a manifest never names an object that is not stored.

mod client;
pub mod embedded;
mod manifest;
mod restore;
mod sync;
mod upload;

pub use client::{Connection, ObjectStore, StoreError, attachment_header};
pub use manifest::{Entry, Manifest};
pub use restore::{restore_all, restore_one};
pub use sync::{SyncOutcome, mime_type, sync_all, sync_paths};

use crate::model::ids::SessionKey;
use crate::model::path::{InvalidPath, WorkspacePath};

/// The keys of one session: its objects, and beside them its manifest, so that no path can collide with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPrefix(String);

impl SessionPrefix {
    pub fn new(prefix_root: &str, key: &SessionKey) -> Self {
        Self(format!(
            "{prefix_root}/{}/{}",
            key.user_key, key.session_key
        ))
    }

    pub fn objects(&self) -> String {
        format!("{}/", self.0)
    }

    pub fn object(&self, path: &WorkspacePath) -> Result<String, InvalidPath> {
        Ok(format!("{}/{}", self.0, path.to_key()?))
    }

    pub fn manifest(&self) -> String {
        format!("{}.manifest.json", self.0)
    }
}
