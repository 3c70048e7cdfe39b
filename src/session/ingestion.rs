//! Taking files in from URLs, several at a time, into one session's workspace.
//! Never decides which addresses are allowed; `ingest` does. Invariant: a download that fails leaves nothing behind.

use std::sync::Arc;

use futures_util::StreamExt;

use super::Core;
use super::error::CoreError;
use super::files::{Room, Upload};
use super::registry::Session;
use crate::model::ids::SessionIds;
use crate::model::path::WorkspacePath;

const DOWNLOADS_AT_ONCE: usize = 8;

#[derive(Debug, Default)]
pub struct IngestReport {
    pub uploaded: Vec<String>,
    /// The URL as the caller gave it, and what went wrong.
    pub errors: Vec<(String, String)>,
}

impl Core {
    pub async fn ingest_urls(
        &self,
        ids: &SessionIds,
        urls: &[String],
        folder: Option<&WorkspacePath>,
    ) -> Result<IngestReport, CoreError> {
        let session = self.open_session(ids).await?;
        let room = self.room(&session).await?;
        let downloads: Vec<_> = urls
            .iter()
            .map(|url| async { (url.clone(), self.fetch(&session, &room, url, folder).await) })
            .collect();
        let fetched: Vec<_> = futures_util::stream::iter(downloads)
            .buffered(DOWNLOADS_AT_ONCE)
            .collect()
            .await;
        let _not_removed_meanwhile = session.enter().await?;
        let mut report = IngestReport::default();
        let mut paths = Vec::new();
        // Named one after the other in the caller's order, so that the same request always gives the same names.
        for (url, fetched) in fetched {
            match fetched.and_then(|upload| {
                Self::publish_numbered(upload).map_err(|error| error.to_string())
            }) {
                Ok(path) => {
                    report.uploaded.push(path.to_text());
                    paths.push(path);
                }
                Err(problem) => report.errors.push((url, problem)),
            }
        }
        if !paths.is_empty() {
            self.sync_files(&session, &paths).await;
        }
        session.touch();
        Ok(report)
    }

    async fn fetch(
        &self,
        session: &Arc<Session>,
        room: &Arc<Room>,
        url: &str,
        folder: Option<&WorkspacePath>,
    ) -> Result<Upload, String> {
        let mut download = self
            .parts
            .fetcher
            .open(url)
            .await
            .map_err(|error| error.to_string())?;
        let name = download.suggested_name.clone();
        // Always another file: what has this name already stays.
        let begun = || {
            room.take_file()?;
            let path = WorkspacePath::in_folder(folder, name.as_bytes())?;
            self.begin_upload_in(session.clone(), room.clone(), path)
        };
        let mut upload = begun().map_err(|error: CoreError| error.to_string())?;
        while let Some(chunk) = download
            .next_chunk()
            .await
            .map_err(|error| error.to_string())?
        {
            upload.write(&chunk).map_err(|error| error.to_string())?;
        }
        upload
            .forced_to_disk()
            .await
            .map_err(|error| error.to_string())
    }
}
