//! Bringing stored files back into a workspace.
//! Never overwrites a file that is there. Invariant: a restored file has the content the manifest names.

use std::io::{self, Write};
use std::sync::Arc;

use futures_util::StreamExt;
use sha2::{Digest, Sha256};

use super::SessionPrefix;
use super::client::{ObjectStore, StoreError, broken_body};
use super::manifest::{Entry, Manifest};
use crate::model::path::WorkspacePath;
use crate::workspace::Workspace;

const FILES_AT_ONCE: usize = 8;

/// Restores every file the manifest says is present. An object that is missing is dropped from the manifest with a
/// warning; a store that fails is an error, and nothing is forgotten.
pub async fn restore_all(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    manifest: &mut Manifest,
) -> Result<usize, StoreError> {
    let wanted: Vec<_> = manifest
        .entries
        .iter()
        .filter(|(_, entry)| entry.present)
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    let jobs: Vec<_> = wanted
        .into_iter()
        .map(|(path, entry)| async move {
            let restored = restore_file(store, prefix, workspace, &path, &entry).await;
            (path, restored)
        })
        .collect();
    let mut results = futures_util::stream::iter(jobs).buffer_unordered(FILES_AT_ONCE);
    let mut count = 0;
    while let Some((path, restored)) = results.next().await {
        match restored {
            Ok(entry) => {
                count += 1;
                manifest.entries.insert(path, entry);
            }
            Err(StoreError::NotFound) => {
                tracing::warn!(
                    path = path.to_text(),
                    "an object that the manifest names is missing"
                );
                manifest.entries.remove(&path);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Restores one stored file, also one that is no longer present in the workspace.
pub async fn restore_one(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    manifest: &mut Manifest,
    path: &WorkspacePath,
) -> Result<(), StoreError> {
    let entry = manifest
        .entries
        .get(path)
        .filter(|entry| entry.etag.is_some())
        .cloned();
    let entry = entry.ok_or(StoreError::NotFound)?;
    let restored = restore_file(store, prefix, workspace, path, &entry).await?;
    manifest.entries.insert(path.clone(), restored);
    Ok(())
}

async fn restore_file(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    path: &WorkspacePath,
    entry: &Entry,
) -> Result<Entry, StoreError> {
    let key = prefix.object(path).map_err(|_| StoreError::NotFound)?;
    let mut body = store.get(&key).await?;
    let (workspace, path) = (workspace.clone(), path.clone());
    let mut new_file = workspace.begin_file(&path)?;
    let mut hasher = Sha256::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| broken_body(&error))?;
        hasher.update(&chunk);
        new_file.file.write_all(&chunk)?;
    }
    let sha256 = hex::encode(hasher.finalize());
    if sha256 != entry.sha256 {
        let reason = "the stored content is not what the manifest names".to_owned();
        return Err(StoreError::Failed {
            action: "restore a file",
            reason,
        });
    }
    match new_file.publish_new(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    // Not settled: whoever put another file there meanwhile gets it read again.
    Ok(Entry {
        facts: workspace.facts(&path)?,
        settled: false,
        present: true,
        ..entry.clone()
    })
}
