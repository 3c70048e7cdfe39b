//! Bringing stored files back into a workspace.
//! Never overwrites a file that is there. Invariant: a restored file has the content the manifest names.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use futures_util::StreamExt;
use sha2::{Digest, Sha256};

use super::SessionPrefix;
use super::client::{ObjectStore, StoreError, next_chunk};
use super::manifest::{Entry, Manifest};
use crate::model::path::WorkspacePath;
use crate::workspace::Workspace;

const FILES_AT_ONCE: usize = 8;

/// Restores every file that the manifest says is present and that is not there. Gives the entries it dealt with, and
/// why it stopped if the store failed. A file that cannot be restored is no reason to keep the others away: its entry
/// stays, as one whose file is gone.
pub async fn restore_all(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    manifest: Manifest,
) -> (BTreeMap<WorkspacePath, Entry>, Result<usize, StoreError>) {
    let jobs: Vec<_> = manifest
        .entries
        .into_iter()
        .map(|(path, entry)| async move {
            let restored = match entry.present {
                true => restore_file(store, prefix, workspace, &path, &entry).await,
                false => Ok(entry.clone()),
            };
            (path, entry, restored)
        })
        .collect();
    let mut results = futures_util::stream::iter(jobs).buffer_unordered(FILES_AT_ONCE);
    let mut entries = BTreeMap::new();
    let mut count = 0;
    while let Some((path, entry, restored)) = results.next().await {
        match restored {
            Ok(restored) => {
                count += usize::from(restored.present);
                entries.insert(path, restored);
            }
            Err(StoreError::NotFound) => {
                tracing::warn!(
                    path = path.to_text(),
                    "an object that the manifest names is missing"
                );
            }
            Err(StoreError::File(error)) => {
                tracing::warn!(path = path.to_text(), %error, "a stored file could not be restored");
                entries.insert(
                    path,
                    Entry {
                        present: false,
                        ..entry
                    },
                );
            }
            Err(error) => return (entries, Err(error)),
        }
    }
    (entries, Ok(count))
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
    if let Ok(facts) = workspace.facts(path) {
        // Made since, and newer than what is stored: the next sync reads it.
        return Ok(Entry {
            facts,
            settled: false,
            present: true,
            ..entry.clone()
        });
    }
    let key = prefix.object(path).map_err(|_| StoreError::NotFound)?;
    let mut body = store.get(&key).await?;
    let (workspace, path) = (workspace.clone(), path.clone());
    let mut new_file = workspace.begin_file(&path)?;
    let mut hasher = Sha256::new();
    while let Some(chunk) = next_chunk(&mut body).await? {
        hasher.update(&chunk);
        new_file.file.write_all(&chunk)?;
    }
    let sha256 = hex::encode(hasher.finalize());
    if sha256 != entry.sha256 {
        let problem = "the stored content is not what the manifest names";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem).into());
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
