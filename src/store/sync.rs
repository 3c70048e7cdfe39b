//! Bringing the store up to date with a workspace, incrementally.
//! Never decides when to sync and never fails a cell: what could not be stored is said and tried again.
//! Invariant: the manifest changes only after the object it speaks of is stored.

use std::sync::Arc;

use futures_util::StreamExt;

use super::client::{ObjectStore, StoreError};
use super::manifest::{Entry, Manifest};
use super::{SessionPrefix, upload};
use crate::model::execution::Skipped;
use crate::model::path::WorkspacePath;
use crate::workspace::{FileFacts, WalkReport, Workspace};

const FILES_AT_ONCE: usize = 8;

/// What one sync did.
#[derive(Debug, Default)]
pub struct SyncOutcome {
    /// Files that were made or touched since the last sync, stored or not.
    pub touched: Vec<WorkspacePath>,
    pub uploaded: usize,
    pub unchanged: usize,
    pub skipped: Vec<Skipped>,
    /// Why some content is not stored yet.
    pub error: Option<String>,
    /// Whether the manifest differs from before.
    pub manifest_changed: bool,
}

/// What became of one file that had to be read.
enum FileOutcome {
    Same(Entry),
    Stored(Entry),
    NotStored(Entry, StoreError),
    Skipped(&'static str),
}

/// Brings everything a walk found into the store.
pub async fn sync_all(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    manifest: &mut Manifest,
    report: WalkReport,
) -> SyncOutcome {
    let plan = manifest.plan(&report.files, report.complete);
    let mut outcome = SyncOutcome {
        unchanged: plan.unchanged,
        skipped: report.skipped,
        ..SyncOutcome::default()
    };
    if !plan.gone.is_empty() {
        delete_objects_in_the_way(store, prefix, manifest, &plan.gone, &plan.to_read).await;
        manifest.mark_gone(&plan.gone);
        outcome.manifest_changed = true;
    }
    sync_files(
        store,
        prefix,
        workspace,
        manifest,
        plan.to_read,
        &mut outcome,
    )
    .await;
    outcome
}

/// Brings just these files into the store; the others are left as they are known.
pub async fn sync_paths(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    manifest: &mut Manifest,
    paths: &[WorkspacePath],
) -> SyncOutcome {
    let with_facts = paths
        .iter()
        .filter_map(|path| Some((path.clone(), workspace.facts(path).ok()?)));
    let mut outcome = SyncOutcome::default();
    let mut files: Vec<_> = with_facts.collect();
    files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let plan = manifest.plan(&files, false);
    outcome.unchanged = plan.unchanged;
    sync_files(
        store,
        prefix,
        workspace,
        manifest,
        plan.to_read,
        &mut outcome,
    )
    .await;
    outcome
}

async fn sync_files(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    manifest: &mut Manifest,
    files: Vec<(WorkspacePath, FileFacts)>,
    outcome: &mut SyncOutcome,
) {
    let jobs = files.into_iter().map(|(path, facts)| {
        let known = manifest.entries.get(&path).cloned();
        async move {
            let touched = known.as_ref().is_none_or(|entry| entry.was_touched(&facts));
            let result = sync_file(store, prefix, workspace, &path, known).await;
            (path, touched, result)
        }
    });
    // Collected first: the jobs borrow nothing of the manifest, which the results change.
    let jobs: Vec<_> = jobs.collect();
    let mut results = futures_util::stream::iter(jobs).buffered(FILES_AT_ONCE);
    while let Some((path, touched, result)) = results.next().await {
        let entry = match result {
            FileOutcome::Same(entry) => {
                outcome.unchanged += 1;
                entry
            }
            FileOutcome::Stored(entry) => {
                outcome.uploaded += 1;
                entry
            }
            FileOutcome::NotStored(entry, error) => {
                outcome.error.get_or_insert_with(|| error.to_string());
                entry
            }
            FileOutcome::Skipped(reason) => {
                outcome.skipped.push(Skipped {
                    path: path.to_text(),
                    reason: reason.to_owned(),
                });
                continue;
            }
        };
        if touched {
            outcome.touched.push(path.clone());
        }
        outcome.manifest_changed = true;
        manifest.entries.insert(path, entry);
    }
}

async fn sync_file(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    path: &WorkspacePath,
    known: Option<Entry>,
) -> FileOutcome {
    let Ok(key) = prefix.object(path) else {
        return FileOutcome::Skipped("the name is too long for an S3 key");
    };
    let Ok(_buffer) = store.file_buffers.acquire().await else {
        return FileOutcome::Skipped("the store is closing");
    };
    let snapshot = match upload::snapshot(workspace.clone(), path.clone()).await {
        Ok(snapshot) => snapshot,
        Err(reason) => return FileOutcome::Skipped(reason),
    };
    let entry = |etag| Entry {
        facts: snapshot.facts,
        sha256: snapshot.sha256.clone(),
        etag,
        settled: snapshot.settled,
        present: true,
    };
    if let Some(known) =
        known.filter(|known| known.etag.is_some() && known.sha256 == snapshot.sha256)
    {
        return FileOutcome::Same(entry(known.etag));
    }
    match store.upload(&key, safe_content_type(path), &snapshot).await {
        Ok(Some(etag)) => FileOutcome::Stored(entry(Some(etag))),
        Ok(None) => FileOutcome::Skipped("the file kept changing while it was read"),
        Err(error) => FileOutcome::NotStored(entry(None), error),
    }
}

/// A file that became a folder, or the other way round: some S3 servers cannot hold both names.
async fn delete_objects_in_the_way(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    manifest: &mut Manifest,
    gone: &[WorkspacePath],
    new: &[(WorkspacePath, FileFacts)],
) {
    let in_the_way = |old: &WorkspacePath| {
        new.iter()
            .any(|(path, _)| old.is_ancestor_of(path) || path.is_ancestor_of(old))
    };
    let old: Vec<_> = gone
        .iter()
        .filter(|path| manifest.is_stored(path) && in_the_way(path))
        .collect();
    let keys: Vec<_> = old
        .iter()
        .filter_map(|path| prefix.object(path).ok())
        .collect();
    if keys.is_empty() {
        return;
    }
    match store.delete(&keys).await {
        Ok(_) => old.into_iter().for_each(|path| {
            manifest.entries.remove(path);
        }),
        Err(error) => tracing::warn!(%error, "objects in the way of new ones could not be deleted"),
    }
}

pub fn mime_type(path: &WorkspacePath) -> String {
    let name = String::from_utf8_lossy(path.file_name()).into_owned();
    mime_guess::from_path(name)
        .first_raw()
        .unwrap_or("application/octet-stream")
        .to_owned()
}

/// What a browser may be told: nothing that it would run or render as a page.
fn safe_content_type(path: &WorkspacePath) -> &'static str {
    let name = String::from_utf8_lossy(path.file_name()).into_owned();
    let guess = mime_guess::from_path(name)
        .first_raw()
        .unwrap_or("application/octet-stream");
    let active = ["html", "svg", "xml", "javascript", "xsl"];
    if active.iter().any(|word| guess.contains(word)) {
        "application/octet-stream"
    } else {
        guess
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_drawings_are_stored_as_plain_bytes() {
        for (name, expected) in [
            ("a.html", "application/octet-stream"),
            ("a.SVG", "application/octet-stream"),
            ("a.xhtml", "application/octet-stream"),
            ("a.xml", "application/octet-stream"),
            ("a.png", "image/png"),
            ("a.csv", "text/csv"),
            ("a", "application/octet-stream"),
        ] {
            assert_eq!(
                safe_content_type(&WorkspacePath::parse(name).unwrap()),
                expected,
                "{name}"
            );
        }
        assert_eq!(
            mime_type(&WorkspacePath::parse("a.html").unwrap()),
            "text/html"
        );
    }
}
