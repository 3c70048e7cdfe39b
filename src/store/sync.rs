//! Bringing the store up to date with a workspace, incrementally.
//! Never decides when to sync and never fails a cell: what could not be stored is said and tried again.
//! Invariant: the manifest changes only after the object it speaks of is stored.

use std::sync::Arc;

use futures_util::StreamExt;

use super::client::{ObjectStore, StoreError};
use super::manifest::{Entry, Manifest};
use super::upload::Uploaded;
use super::{SessionPrefix, upload};
use crate::metrics::METRICS;
use crate::model::execution::Skipped;
use crate::model::path::WorkspacePath;
use crate::workspace::{FileFacts, WalkReport, Workspace};

const FILES_AT_ONCE: usize = 8;
/// A large file that changes on its way to the store is read again.
const UPLOAD_TRIES: usize = 3;

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
    /// No entry if the file is not what it was any more.
    NotStored(Option<Entry>, StoreError),
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
        let delete = delete_objects_in_the_way(store, prefix, manifest, &plan.gone, &plan.to_read);
        Box::pin(delete).await;
        manifest.mark_gone(&plan.gone);
        outcome.manifest_changed = true;
    }
    if !plan.to_read.is_empty() {
        // Boxed, here and on the way here: what most executions do not need should not make their futures larger.
        let sync = sync_files(
            store,
            prefix,
            workspace,
            manifest,
            plan.to_read,
            &mut outcome,
        );
        Box::pin(sync).await;
    }
    outcome
}

/// Brings just these files into the store, as far as they are not over `max_bytes`; the others are left as they are known.
pub async fn sync_paths(
    store: &ObjectStore,
    prefix: &SessionPrefix,
    workspace: &Arc<Workspace>,
    manifest: &mut Manifest,
    paths: &[WorkspacePath],
    max_bytes: u64,
) -> SyncOutcome {
    let mut outcome = SyncOutcome::default();
    let mut files = Vec::new();
    for path in paths {
        let Ok(facts) = workspace.facts(path) else {
            continue;
        };
        match facts.reason_to_leave_out(max_bytes) {
            Some(reason) => outcome.skipped.push(Skipped {
                path: path.to_text(),
                reason: reason.to_owned(),
            }),
            None => files.push((path.clone(), facts)),
        }
    }
    files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    files.dedup_by(|a, b| a.0 == b.0);
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
                METRICS.synced_files.inc();
                METRICS.synced_bytes.inc_by(entry.facts.size_bytes);
                entry
            }
            FileOutcome::NotStored(entry, error) => {
                outcome.error.get_or_insert_with(|| error.to_string());
                let Some(entry) = entry else { continue };
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
    let known = known.filter(|known| known.etag.is_some());
    for _ in 0..UPLOAD_TRIES {
        let stored_bytes = known.as_ref().map(|known| known.facts.size_bytes);
        let snapshot = upload::snapshot(workspace.clone(), path.clone(), stored_bytes).await;
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(reason) => return FileOutcome::Skipped(reason),
        };
        let entry = |sha256, etag| Entry {
            facts: snapshot.facts,
            sha256,
            etag,
            settled: snapshot.settled,
            present: true,
        };
        if let Some(known) = &known
            && snapshot.sha256() == Some(&known.sha256)
        {
            return FileOutcome::Same(entry(known.sha256.clone(), known.etag.clone()));
        }
        match store.upload(&key, safe_content_type(path), &snapshot).await {
            Ok(Uploaded::Whole { etag, sha256 }) => {
                return FileOutcome::Stored(entry(sha256, Some(etag)));
            }
            Ok(Uploaded::Changed) => {}
            Err(error) => {
                let sha256 = snapshot.hash_now().await;
                return FileOutcome::NotStored(sha256.map(|sha256| entry(sha256, None)), error);
            }
        }
    }
    FileOutcome::Skipped("the file kept changing while it was read")
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
