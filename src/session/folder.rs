//! A session's folder on the host: workspace, control folder, metadata, manifest; and the work root above them.
//! Never lets the sandbox near the metadata: only `workspace/` and `control/` are mounted.
//! Invariant: metadata is written whole (temporary file, fsync, rename) or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::model::ids::{SessionIds, SessionKey};
use crate::sandbox::SandboxHandle;

/// What must survive a restart of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub ids: SessionIds,
    pub created_ms: u64,
    /// The sandbox that last served this session, dead or alive.
    pub sandbox: Option<SandboxHandle>,
    /// The worker of that sandbox that holds variables; 0 if none does, or its loss has been said.
    #[serde(default)]
    pub generation: u64,
    /// No link handed out for this session works after this moment.
    pub links_until_ms: u64,
}

#[derive(Debug, Clone)]
pub struct SessionFolder {
    path: PathBuf,
}

impl SessionFolder {
    pub fn new(work_root: &Path, key: &SessionKey) -> Self {
        Self {
            path: sessions_root(work_root)
                .join(&key.user_key)
                .join(&key.session_key),
        }
    }

    pub fn workspace(&self) -> PathBuf {
        self.path.join("workspace")
    }

    pub fn control(&self) -> PathBuf {
        self.path.join("control")
    }

    pub fn create(&self) -> io::Result<()> {
        match self.try_create() {
            // The user's folder went with the last of the user's other sessions just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.try_create(),
            created => created,
        }
    }

    fn try_create(&self) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)?;
        match fs::DirBuilder::new().mode(0o755).create(self.control()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    pub fn read_meta(&self) -> io::Result<Meta> {
        let bytes = fs::read(self.path.join("meta.json"))?;
        serde_json::from_slice(&bytes).map_err(io::Error::other)
    }

    pub fn write_meta(&self, meta: &Meta) -> io::Result<()> {
        let bytes = serde_json::to_vec(meta).map_err(io::Error::other)?;
        write_whole(&self.path, "meta.json", &bytes)
    }

    pub fn read_manifest(&self) -> Option<Vec<u8>> {
        fs::read(self.path.join("manifest.json")).ok()
    }

    /// Not forced to disk: a lost manifest only means that files are hashed again.
    pub fn write_manifest(&self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.join("manifest.json.tmp");
        fs::write(&temporary, bytes)?;
        fs::rename(&temporary, self.path.join("manifest.json"))
    }

    /// Takes the folder out of sight at once; `empty_trash` deletes it. False if there was none.
    pub fn move_to_trash(&self, work_root: &Path) -> io::Result<bool> {
        let target = trash_root(work_root).join(uuid::Uuid::new_v4().simple().to_string());
        match fs::rename(&self.path, target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        if let Some(user_folder) = self.path.parent() {
            let _other_sessions_may_be_there = fs::remove_dir(user_folder);
        }
        Ok(true)
    }
}

/// Makes the folders the service needs, closed to other users of the host.
pub fn prepare_work_root(work_root: &Path) -> io::Result<()> {
    for folder in [
        work_root.to_owned(),
        sessions_root(work_root),
        trash_root(work_root),
        tombstones_root(work_root),
    ] {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
    }
    fs::set_permissions(work_root, fs::Permissions::from_mode(0o700))?;
    empty_trash(work_root);
    Ok(())
}

pub fn empty_trash(work_root: &Path) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(entries) = fs::read_dir(trash_root(work_root)) else {
        return;
    };
    for entry in entries.flatten() {
        if let Err(error) = crate::workspace::remove_tree(&entry.path()) {
            tracing::warn!(%error, "a removed session's folder could not be deleted yet");
        }
    }
}

/// The folders of all sessions that were left on disk. One without metadata never got as far as a file: it goes.
pub fn left_sessions(work_root: &Path) -> io::Result<Vec<(SessionFolder, Meta)>> {
    let mut found = Vec::new();
    for user in fs::read_dir(sessions_root(work_root))?.flatten() {
        for session in fs::read_dir(user.path())?.flatten() {
            let folder = SessionFolder {
                path: session.path(),
            };
            match folder.read_meta() {
                Ok(meta) if folder.path == SessionFolder::new(work_root, &meta.ids.key()).path => {
                    found.push((folder, meta))
                }
                Ok(_) => {
                    tracing::error!(folder = ?session.path(), "a session folder does not belong to the ids in it; left alone")
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    folder.move_to_trash(work_root)?;
                }
                Err(error) => {
                    tracing::error!(folder = ?session.path(), %error, "a session's metadata cannot be read; left alone")
                }
            }
        }
    }
    Ok(found)
}

fn sessions_root(work_root: &Path) -> PathBuf {
    work_root.join("sessions")
}

fn trash_root(work_root: &Path) -> PathBuf {
    work_root.join("trash")
}

pub fn tombstones_root(work_root: &Path) -> PathBuf {
    work_root.join("tombstones")
}

pub fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = folder.join(format!("{name}.tmp"));
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, folder.join(name))?;
    File::open(folder)?.sync_all()
}

pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
