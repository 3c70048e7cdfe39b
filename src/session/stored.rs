//! A session's side of the store: its manifest, when it is synced, links to what is stored.
//! Never fails a cell because the store is down: it says so and tries again.
//! Invariant: a link is signed only for what the manifest names as stored.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::clock::now_ms;
use super::error::CoreError;
use super::registry::Session;
use crate::model::execution::{Artifact, Skipped, SyncReport};
use crate::model::path::WorkspacePath;
use crate::store::{self, Manifest, ObjectStore, SessionPrefix, StoreError, SyncOutcome};
use crate::workspace::{WalkBudget, WalkReport};

/// A workspace of more files is walked on a thread of its own, so that it does not hold up other requests.
const WALK_INLINE_MAX_FILES: usize = 100;
const MAX_WALK_TIME: Duration = Duration::from_secs(5);
const MAX_SYNC_TIME: Duration = Duration::from_secs(120);
const MAX_MANIFEST_BYTES: usize = 64 << 20;

#[derive(Default)]
pub struct Stored {
    pub manifest: Manifest,
    /// The store has not been asked yet what it holds for this session.
    pub restore_pending: bool,
    /// Something is not stored yet, or the stored manifest is behind.
    pub behind: bool,
}

impl Core {
    /// Brings back what an earlier life of the session stored. Gives the reason if the store cannot be asked now.
    pub(super) async fn restore_if_pending(
        &self,
        session: &Session,
        stored: &mut Stored,
    ) -> Result<bool, StoreError> {
        if !stored.restore_pending {
            return Ok(false);
        }
        Box::pin(self.restore(session, stored)).await
    }

    async fn restore(&self, session: &Session, stored: &mut Stored) -> Result<bool, StoreError> {
        let Some(manifest) = read_stored_manifest(&self.parts.store, &session.prefix).await? else {
            stored.restore_pending = false;
            return Ok(false);
        };
        let (restored, outcome) = store::restore_all(
            &self.parts.store,
            &session.prefix,
            &session.workspace,
            manifest,
        )
        .await;
        // What was made since stays; what was stored before fills the gaps.
        for (path, entry) in restored {
            stored.manifest.entries.entry(path).or_insert(entry);
        }
        let count = outcome?;
        stored.restore_pending = false;
        self.keep_manifest(session, stored);
        tracing::info!(session = %session.key, files = count, "files restored from the store");
        Ok(true)
    }

    /// The largest that the session's workspace may be.
    pub(super) fn workspace_limit(&self, session: &Session) -> u64 {
        let own = session.meta().terms.limits.workspace_bytes;
        own.unwrap_or(self.parts.files.max_workspace_bytes)
    }

    pub(super) fn walk_budget(&self, session: &Session) -> WalkBudget {
        WalkBudget {
            max_files: self.parts.files.max_total_files,
            max_bytes: self.workspace_limit(session),
            max_time: MAX_WALK_TIME,
        }
    }

    pub(super) async fn walk(
        &self,
        session: &Session,
        expected_files: usize,
    ) -> Result<WalkReport, CoreError> {
        let budget = self.walk_budget(session);
        if expected_files <= WALK_INLINE_MAX_FILES {
            return session.workspace.walk(budget).map_err(CoreError::workspace);
        }
        let workspace = session.workspace.clone();
        let walked = tokio::task::spawn_blocking(move || workspace.walk(budget)).await;
        walked
            .map_err(CoreError::internal)?
            .map_err(CoreError::workspace)
    }

    /// Syncs the whole workspace; what the last cell touched comes back as artifacts with links.
    pub(super) async fn sync_workspace(
        &self,
        session: &Arc<Session>,
        link_expires_in: Duration,
    ) -> Result<(Vec<Artifact>, SyncReport), CoreError> {
        let mut stored = session.stored.lock().await;
        let restore_error = self.restore_if_pending(session, &mut stored).await.err();
        let report = self.walk(session, stored.manifest.entries.len()).await?;
        let was_behind = std::mem::replace(&mut stored.behind, true);
        let mut outcome = self.sync_report(session, &mut stored, report).await;
        self.finish_sync(session, &mut stored, &mut outcome, was_behind)
            .await;
        if let Some(error) = restore_error {
            outcome.error.get_or_insert_with(|| error.to_string());
        }
        let touched = std::mem::take(&mut outcome.touched);
        let artifacts = self
            .artifacts(session, &stored, touched, link_expires_in)
            .await;
        Ok((artifacts, into_report(outcome)))
    }

    async fn sync_report(
        &self,
        session: &Session,
        stored: &mut Stored,
        report: WalkReport,
    ) -> SyncOutcome {
        let sync = store::sync_all(
            &self.parts.store,
            &session.prefix,
            &session.workspace,
            &mut stored.manifest,
            report,
        );
        match tokio::time::timeout(MAX_SYNC_TIME, sync).await {
            Ok(outcome) => outcome,
            Err(_) => SyncOutcome {
                error: Some(StoreError::TimedOut.to_string()),
                manifest_changed: true,
                ..SyncOutcome::default()
            },
        }
    }

    /// Syncs files that the service itself put there, so that no later cell is credited with them.
    pub(super) async fn sync_files(
        &self,
        session: &Session,
        paths: &[WorkspacePath],
    ) -> SyncReport {
        let mut stored = session.stored.lock().await;
        let restore_error = self.restore_if_pending(session, &mut stored).await.err();
        let was_behind = std::mem::replace(&mut stored.behind, true);
        let sync = store::sync_paths(
            &self.parts.store,
            &session.prefix,
            &session.workspace,
            &mut stored.manifest,
            paths,
            self.workspace_limit(session),
        );
        let mut outcome = sync.await;
        outcome.error = outcome
            .error
            .or(restore_error.map(|error| error.to_string()));
        self.finish_sync(session, &mut stored, &mut outcome, was_behind)
            .await;
        into_report(outcome)
    }

    /// Puts the manifest where the next service and the next sandbox find it; the stored copy goes last.
    /// While it is under way the session counts as behind, so that a sync cut short is done again. As long as the store
    /// has not been asked what it holds, neither copy is written: it would hide what is stored from the next service.
    async fn finish_sync(
        &self,
        session: &Session,
        stored: &mut Stored,
        outcome: &mut SyncOutcome,
        was_behind: bool,
    ) {
        if (outcome.manifest_changed || was_behind) && !stored.restore_pending {
            self.keep_manifest(session, stored);
            let json = stored.manifest.stored_only().to_json();
            let key = session.prefix.manifest();
            let put = self.parts.store.put(&key, json.into(), "application/json");
            if let Err(error) = Box::pin(put).await {
                outcome.error.get_or_insert_with(|| error.to_string());
            }
        }
        stored.behind = outcome.error.is_some() || stored.restore_pending;
        if outcome.error.is_some() {
            tracing::warn!(session = %session.key, "the store is behind; it will be tried again");
        }
    }

    pub(super) fn keep_manifest(&self, session: &Session, stored: &Stored) {
        if let Err(error) = session.folder.write_manifest(&stored.manifest.to_json()) {
            tracing::warn!(session = %session.key, %error, "the manifest could not be kept on disk");
        }
    }

    async fn artifacts(
        &self,
        session: &Session,
        stored: &Stored,
        touched: Vec<WorkspacePath>,
        expires_in: Duration,
    ) -> Vec<Artifact> {
        let mut artifacts = Vec::with_capacity(touched.len());
        for path in touched {
            let Some(entry) = stored.manifest.entries.get(&path) else {
                continue;
            };
            let link = match entry.etag {
                Some(_) => self.link(session, &path, expires_in).await,
                None => Err(CoreError::Unavailable("not stored yet".to_owned())),
            };
            artifacts.push(Artifact {
                path: path.to_text(),
                size_bytes: entry.facts.size_bytes,
                mime_type: store::mime_type(&path),
                download_url: link.ok(),
                sha256: entry.sha256.clone(),
            });
        }
        artifacts
    }

    /// Signs a link and remembers until when it works. The caller has checked that the object is stored.
    pub(super) async fn link(
        &self,
        session: &Session,
        path: &WorkspacePath,
        expires_in: Duration,
    ) -> Result<String, CoreError> {
        let key = session.prefix.object(path)?;
        let needed_ms = now_ms() + expires_in.as_millis() as u64;
        let until_ms = needed_ms + expires_in.as_millis() as u64 / 2;
        if session.meta().links_until_ms < needed_ms {
            // Half as long again, so that not every link costs a write to disk.
            session.save_meta(|meta| meta.links_until_ms = meta.links_until_ms.max(until_ms))?;
        }
        Ok(self
            .parts
            .store
            .presign(&key, path.file_name(), expires_in)
            .await?)
    }

    /// Forgets files that a caller deleted; their objects too, if that is the setting.
    pub(super) async fn forget_files(
        &self,
        session: &Session,
        paths: &[WorkspacePath],
    ) -> Result<(), CoreError> {
        let mut stored = session.stored.lock().await;
        let was_behind = std::mem::replace(&mut stored.behind, true);
        let mut outcome = SyncOutcome {
            manifest_changed: true,
            ..SyncOutcome::default()
        };
        if self.parts.s3.delete_on_delete {
            let stored_paths = paths.iter().filter(|path| stored.manifest.is_stored(path));
            let keys: Vec<_> = stored_paths
                .filter_map(|path| session.prefix.object(path).ok())
                .collect();
            self.parts.store.delete(&keys).await?;
            paths.iter().for_each(|path| {
                stored.manifest.entries.remove(path);
            });
        } else {
            stored.manifest.mark_gone(paths);
        }
        self.finish_sync(session, &mut stored, &mut outcome, was_behind)
            .await;
        Ok(())
    }
}

fn into_report(outcome: SyncOutcome) -> SyncReport {
    let mut skipped: Vec<Skipped> = outcome.skipped;
    skipped.sort_by(|a, b| a.path.cmp(&b.path));
    SyncReport {
        uploaded: outcome.uploaded,
        unchanged: outcome.unchanged,
        skipped,
        error: outcome.error,
    }
}

/// What the store holds for a session; None if nothing.
pub(super) async fn read_stored_manifest(
    store: &ObjectStore,
    prefix: &SessionPrefix,
) -> Result<Option<Manifest>, StoreError> {
    match store.get_all(&prefix.manifest(), MAX_MANIFEST_BYTES).await {
        // One that cannot be read is not none: writing over it would lose what it names.
        Ok(bytes) => Manifest::from_json(&bytes)
            .map(Some)
            .ok_or(StoreError::Failed {
                action: "give a manifest of this version",
                reason: "it cannot be parsed".to_owned(),
            }),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}
