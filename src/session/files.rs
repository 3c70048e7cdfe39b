//! File commands of callers: upload, download, list, delete, links.
//! Never queues behind a cell. Invariant: an acknowledged upload is on disk, whole, under the name that was answered.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use serde::Serialize;

use super::Core;
use super::error::CoreError;
use super::registry::Session;
use crate::ingest::filename;
use crate::model::ids::SessionIds;
use crate::model::path::WorkspacePath;
use crate::settings::FileSettings;
use crate::workspace::{Entry, NewFile, OpenedFile, is_internal};

/// How many other names are tried for one that is taken.
const MAX_NAME_TRIES: u32 = 1000;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    pub path: String,
    pub size_bytes: u64,
    pub mtime: f64,
    #[serde(skip)]
    pub mode: u32,
}

/// A file that a caller may read.
#[derive(Debug)]
pub struct Download {
    pub path: WorkspacePath,
    pub opened: OpenedFile,
}

/// A file on its way in. It appears in the workspace when it is finished, not before.
pub struct Upload {
    session: Arc<Session>,
    path: WorkspacePath,
    new_file: NewFile,
    written_bytes: u64,
    max_bytes: u64,
    room: Arc<Room>,
}

/// What a workspace may still take, shared by the uploads of one request.
pub(super) struct Room {
    bytes_left: AtomicU64,
    files_left: AtomicU64,
    limits: FileSettings,
}

impl Core {
    /// All files of the workspace, sorted by path; none if there is no such session.
    pub async fn list_files(&self, ids: &SessionIds) -> Result<Vec<Listed>, CoreError> {
        let Some(session) = self.find_session(ids).await? else {
            return Ok(Vec::new());
        };
        let mut report = self.walk(&session, usize::MAX).await?;
        let mut files = report.files;
        files.append(&mut report.left_out);
        files.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let listed = files.into_iter().map(|(path, facts)| Listed {
            path: path.to_text(),
            size_bytes: facts.size_bytes,
            mtime: facts.mtime_seconds(),
            mode: facts.mode,
        });
        Ok(listed.collect())
    }

    pub async fn open_download(
        &self,
        ids: &SessionIds,
        path: &WorkspacePath,
    ) -> Result<Download, CoreError> {
        let not_found =
            || CoreError::NotFound(format!("file {:?} is not in the workspace", path.to_text()));
        let session = self.find_session(ids).await?.ok_or_else(not_found)?;
        match session.workspace.open_file(path) {
            Ok(opened) => Ok(Download {
                path: path.clone(),
                opened,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(not_found()),
            Err(error) => Err(CoreError::workspace(error)),
        }
    }

    /// A presigned link; a file that changed since the last sync is stored first.
    pub async fn download_link(
        &self,
        ids: &SessionIds,
        path: &WorkspacePath,
        expires_in: Duration,
    ) -> Result<String, CoreError> {
        let not_found = || {
            CoreError::NotFound(format!(
                "file {:?} is neither in the workspace nor stored",
                path.to_text()
            ))
        };
        let session = self.find_session(ids).await?.ok_or_else(not_found)?;
        let _not_removed_meanwhile = session.enter().await?;
        if session.workspace.facts(path).is_ok() {
            let report = self.sync_files(&session, std::slice::from_ref(path)).await;
            if let Some(error) = report.error {
                return Err(CoreError::Unavailable(error));
            }
            if let Some(skipped) = report.skipped.first() {
                return Err(CoreError::invalid(
                    "path",
                    format!("path: {}", skipped.reason),
                ));
            }
        }
        if !session.stored.lock().await.manifest.is_stored(path) {
            return Err(not_found());
        }
        self.link(&session, path, expires_in).await
    }

    /// How much room a session has: files and bytes that are there.
    pub async fn workspace_use(&self, ids: &SessionIds) -> Result<(usize, u64), CoreError> {
        let session = self.open_session(ids).await?;
        let report = self.walk(&session, usize::MAX).await?;
        Ok((report.total_files, report.allocated_bytes))
    }

    /// Starts an upload of `path`, in place of a file that is there, after a look at the quotas.
    pub async fn begin_upload(
        &self,
        ids: &SessionIds,
        path: WorkspacePath,
    ) -> Result<Upload, CoreError> {
        let session = self.open_session(ids).await?;
        let room = self.room(&session).await?;
        if session.workspace.facts(&path).is_err() {
            room.take_file()?;
        }
        self.begin_upload_in(session, room, path)
    }

    pub(super) async fn room(&self, session: &Session) -> Result<Arc<Room>, CoreError> {
        self.require_disk()?;
        let report = self.walk(session, usize::MAX).await?;
        let limits = FileSettings {
            max_workspace_bytes: self.workspace_limit(session),
            ..self.parts.files.clone()
        };
        let files_left = limits.max_total_files.saturating_sub(report.total_files) as u64;
        let bytes_left = limits
            .max_workspace_bytes
            .saturating_sub(report.allocated_bytes);
        Ok(Arc::new(Room {
            bytes_left: AtomicU64::new(bytes_left),
            files_left: AtomicU64::new(files_left),
            limits,
        }))
    }

    pub(super) fn begin_upload_in(
        &self,
        session: Arc<Session>,
        room: Arc<Room>,
        path: WorkspacePath,
    ) -> Result<Upload, CoreError> {
        is_nobody_elses(&path)?;
        let new_file = session.workspace.begin_file(&path);
        let new_file = new_file.map_err(|error| no_way_to(&session, error))?;
        Ok(Upload {
            session,
            path,
            new_file,
            written_bytes: 0,
            max_bytes: self.parts.files.max_upload_bytes,
            room,
        })
    }

    /// Writes a whole file with these permissions; one that is there is replaced only if that is wanted.
    pub async fn write_file(
        &self,
        ids: &SessionIds,
        path: &WorkspacePath,
        bytes: &[u8],
        mode: u32,
        overwrite: bool,
    ) -> Result<(), CoreError> {
        let upload = self.begin_upload(ids, path.clone()).await?;
        let mut upload = upload.limited_to(u64::MAX);
        upload.write(bytes)?;
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        upload
            .new_file
            .file
            .set_permissions(permissions)
            .map_err(CoreError::workspace)?;
        if overwrite {
            return self.finish_upload(upload).await.map(drop);
        }
        let mut upload = upload.forced_to_disk().await?;
        let session = upload.session.clone();
        let _not_removed_meanwhile = session.enter().await?;
        match upload.new_file.publish_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let text = format!(
                    "path: {:?} is there already; overwrite is false",
                    path.to_text()
                );
                return Err(CoreError::invalid("path", text));
            }
            published => published.map_err(|error| session.file_trouble(error))?,
        }
        self.sync_files(&session, std::slice::from_ref(path)).await;
        Ok(())
    }

    /// What is in a folder of the workspace, folders included.
    pub async fn list_entries(
        &self,
        ids: &SessionIds,
        folder: Option<&WorkspacePath>,
        recursive: bool,
    ) -> Result<Vec<Entry>, CoreError> {
        let session = self.open_session(ids).await?;
        let (workspace, folder) = (session.workspace.clone(), folder.cloned());
        let listed =
            tokio::task::spawn_blocking(move || workspace.entries(folder.as_ref(), recursive));
        match listed.await.map_err(CoreError::internal)? {
            Ok(entries) => Ok(entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CoreError::NotFound(
                "no such folder in the workspace".to_owned(),
            )),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(CoreError::invalid("path", format!("path: {error}")))
            }
            Err(error) => Err(CoreError::workspace(error)),
        }
    }

    /// Deletes a file, or a folder with all that is in it if that is wanted. False if there was nothing.
    pub async fn delete_path(
        &self,
        ids: &SessionIds,
        path: &WorkspacePath,
        recursive: bool,
    ) -> Result<bool, CoreError> {
        let session = self.open_session(ids).await?;
        let _not_removed_meanwhile = session.enter().await?;
        let deleted = match session.workspace.delete_file(path) {
            Err(error) if is_a_folder(&error) && recursive => {
                let (workspace, path) = (session.workspace.clone(), path.clone());
                let deleted = tokio::task::spawn_blocking(move || workspace.delete_folder(&path));
                deleted.await.map_err(CoreError::internal)?
            }
            Err(error) if is_a_folder(&error) => {
                let text = format!("path: {:?} is a folder; set recursive", path.to_text());
                return Err(CoreError::invalid("path", text));
            }
            deleted => deleted,
        };
        session.stored.lock().await.behind = true;
        deleted.map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty => CoreError::invalid(
                "path",
                format!(
                    "path: {:?} is being filled while it is deleted; stop what writes there first",
                    path.to_text()
                ),
            ),
            _ => CoreError::workspace(error),
        })
    }

    /// Puts an upload under its name, replacing a file of that name, and stores it.
    pub async fn finish_upload(&self, upload: Upload) -> Result<WorkspacePath, CoreError> {
        let Upload {
            session,
            path,
            new_file,
            ..
        } = upload.forced_to_disk().await?;
        let _not_removed_meanwhile = session.enter().await?;
        new_file
            .publish(&path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::IsADirectory | io::ErrorKind::DirectoryNotEmpty => {
                    CoreError::invalid(
                        "file",
                        format!("{:?} is a folder in the workspace", path.to_text()),
                    )
                }
                _ => session.file_trouble(error),
            })?;
        self.sync_files(&session, std::slice::from_ref(&path)).await;
        session.touch();
        Ok(path.clone())
    }

    /// Puts an upload that is on disk under a free name: one that is taken gets a number, `name (1).ext`. Not stored yet.
    pub(super) fn publish_numbered(upload: Upload) -> Result<WorkspacePath, CoreError> {
        let Upload {
            session,
            path,
            mut new_file,
            ..
        } = upload;
        let name = String::from_utf8_lossy(path.file_name()).into_owned();
        let folder_length = path.as_bytes().len() - path.file_name().len();
        let folder = path.as_bytes()[..folder_length].to_vec();
        for number in 0..MAX_NAME_TRIES {
            let name = if number == 0 {
                name.clone()
            } else {
                filename::numbered(&name, number)
            };
            let candidate =
                WorkspacePath::from_bytes([folder.as_slice(), name.as_bytes()].concat())?;
            match new_file.publish_new(&candidate) {
                Ok(()) => return Ok(candidate),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(session.file_trouble(error)),
            }
        }
        Err(CoreError::invalid(
            "dest_dir",
            format!("{name:?} and all its numbered names are taken"),
        ))
    }

    /// Which of the files were there and are gone now. Folders are refused, after the files are gone.
    pub async fn delete_files(
        &self,
        ids: &SessionIds,
        paths: &[WorkspacePath],
    ) -> Result<Vec<WorkspacePath>, CoreError> {
        let Some(session) = self.find_session(ids).await? else {
            return Ok(Vec::new());
        };
        let _not_removed_meanwhile = session.enter().await?;
        let mut deleted = Vec::new();
        let mut refused = None;
        for path in paths {
            match session.workspace.delete_file(path) {
                Ok(true) => deleted.push(path.clone()),
                Ok(false) => {}
                Err(error) if is_a_folder(&error) => {
                    let problem = format!("paths: {:?} is a folder; name files", path.to_text());
                    refused = Some(CoreError::invalid("paths", problem));
                }
                Err(error) => refused = Some(CoreError::workspace(error)),
            }
        }
        self.forget_files(&session, &deleted).await?;
        refused.map_or(Ok(deleted), Err)
    }
}

impl Upload {
    /// Another limit than MAX_UPLOAD_BYTES.
    pub fn limited_to(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Another name than the one that it began with. One that began in place of a file has taken no room for one more.
    pub fn rename(&mut self, path: WorkspacePath) -> Result<(), CoreError> {
        is_nobody_elses(&path)?;
        let is_there = |path| self.session.workspace.facts(path).is_ok();
        if is_there(&self.path) && !is_there(&path) {
            self.room.take_file()?;
        }
        let led = self.session.workspace.lead_to(&mut self.new_file, &path);
        led.map_err(|error| no_way_to(&self.session, error))?;
        self.path = path;
        Ok(())
    }

    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Waits, on a thread that may wait, until the bytes are on disk.
    pub(super) async fn forced_to_disk(self) -> Result<Self, CoreError> {
        let session = self.session.clone();
        let forced =
            tokio::task::spawn_blocking(move || self.new_file.file.sync_all().map(|()| self)).await;
        forced
            .map_err(CoreError::internal)?
            .map_err(|error| session.file_trouble(error))
    }

    /// Takes the next bytes, within the limits of one file and of the workspace.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CoreError> {
        self.written_bytes += bytes.len() as u64;
        if self.written_bytes > self.max_bytes {
            return Err(CoreError::TooLarge(format!(
                "file {:?} is larger than {} bytes (MAX_UPLOAD_BYTES)",
                self.path.to_text(),
                self.max_bytes
            )));
        }
        self.room.take_bytes(bytes.len() as u64)?;
        self.new_file
            .file
            .write_all(bytes)
            .map_err(|error| self.session.file_trouble(error))
    }
}

fn is_nobody_elses(path: &WorkspacePath) -> Result<(), CoreError> {
    match is_internal(path.file_name()) {
        true => Err(CoreError::invalid(
            "file",
            "file: names that begin so are the service's own",
        )),
        false => Ok(()),
    }
}

fn no_way_to(session: &Session, error: io::Error) -> CoreError {
    let code = error.raw_os_error();
    let in_the_way = [Errno::NOTDIR, Errno::LOOP];
    if in_the_way
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
    {
        let text = "dest_dir: a file or a link of the workspace is in the way";
        return CoreError::invalid("dest_dir", text);
    }
    session.file_trouble(error)
}

impl Room {
    pub(super) fn take_file(&self) -> Result<(), CoreError> {
        take(&self.files_left, 1).ok_or_else(|| CoreError::QuotaExceeded {
            problem: "the workspace has as many files as MAX_TOTAL_FILES allows".to_owned(),
            limit: self.limits.max_total_files as u64,
            current: self.limits.max_total_files as u64,
        })
    }

    fn take_bytes(&self, count: u64) -> Result<(), CoreError> {
        take(&self.bytes_left, count).ok_or_else(|| CoreError::QuotaExceeded {
            problem: "the workspace would grow over MAX_WORKSPACE_SIZE_MB".to_owned(),
            limit: self.limits.max_workspace_bytes,
            current: self
                .limits
                .max_workspace_bytes
                .saturating_sub(self.bytes_left.load(Ordering::Relaxed)),
        })
    }
}

fn take(left: &AtomicU64, count: u64) -> Option<()> {
    let taken = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
        left.checked_sub(count)
    });
    taken.ok().map(drop)
}

fn is_a_folder(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code == Some(Errno::ISDIR.raw_os_error()) || code == Some(Errno::PERM.raw_os_error())
}
