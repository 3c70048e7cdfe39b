//! A session's folder on the host: workspace, control folder, metadata, manifest; and the work root above them.
//! Never lets the sandbox near the metadata: only `workspace/` and `control/` are mounted.
//! Invariant: metadata is written whole (temporary file, fsync, rename) or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, TryLockError};

use serde::{Deserialize, Serialize};
use tokio::task::block_in_place;

use super::clock::HostMoment;
use crate::model::ids::{SessionIds, SessionKey};
use crate::sandbox::SandboxHandle;
use crate::volume;

/// What must survive a restart of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub ids: SessionIds,
    pub created_ms: u64,
    /// The same on a clock that nobody can set; by this one it expires.
    #[serde(default)]
    pub born: Option<HostMoment>,
    /// The sandbox that last served this session, dead or alive.
    pub sandbox: Option<SandboxHandle>,
    /// The worker of that sandbox that holds variables; 0 if none does.
    #[serde(default)]
    pub generation: u64,
    /// Variables were lost since the last answer; the next one says so.
    #[serde(default)]
    pub lost: bool,
    /// No link handed out for this session works after this moment.
    pub links_until_ms: u64,
    #[serde(default)]
    pub terms: Terms,
}

impl Meta {
    /// The worker that may have held variables is gone; if it did hold some, the next answer says so.
    pub fn lose_variables(&mut self) {
        self.lost |= self.generation != 0;
        self.generation = 0;
    }
}

/// What a dialect settled for a session when it was created.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Another name by which callers know it, handed out once.
    pub handle: Option<String>,
    /// It dies after so long without activity, whatever the settings say.
    pub idle_secs: Option<u64>,
    /// Whom logs and metrics name as its user.
    pub user_id: Option<String>,
    /// The workflow run that it belongs to, and ends with.
    #[serde(default)]
    pub workflow: Option<String>,
    #[serde(default)]
    pub limits: OwnLimits,
    /// It asked for a network and may have one.
    #[serde(default)]
    pub network: bool,
    /// For one call only: nothing of it is kept anywhere when it is stopped.
    #[serde(default)]
    pub ephemeral: bool,
    /// Another image than the operator's.
    #[serde(default)]
    pub image: Option<String>,
}

/// Limits of one session where they are tighter than the settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnLimits {
    pub cpu_millicores: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub workspace_bytes: Option<u64>,
}

impl Terms {
    /// Whether a sandbox like all others will do.
    pub fn fit_the_pool(&self) -> bool {
        self.limits == OwnLimits::default() && self.image.is_none() && !self.network
    }
}

const POOL_NOTE: &str = "pool.json";

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

    /// The folder of a sandbox that waits for its session.
    pub fn in_pool(work_root: &Path, id: &str) -> Self {
        Self {
            path: pool_root(work_root).join(id),
        }
    }

    /// Becomes the folder `target`, with the sandbox that has it mounted: a bind mount follows its folder.
    /// Fails if there is something at `target` already.
    pub fn move_to(&self, target: &Self) -> io::Result<()> {
        let parent = target.path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
        block_in_place(|| {
            fs::rename(&self.path, &target.path)?;
            File::open(parent)?.sync_all()
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn workspace(&self) -> PathBuf {
        self.path.join("workspace")
    }

    pub fn control(&self) -> PathBuf {
        self.path.join("control")
    }

    /// `AlreadyExists` if there is one: what is in it may be all that is left of a session, and is not for a new one.
    pub fn create(&self) -> io::Result<()> {
        match self.try_create() {
            // The user's folder went with the last of the user's other sessions just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.try_create(),
            created => created,
        }
    }

    fn try_create(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        if let Some(parent) = self.path.parent() {
            builder.recursive(true).create(parent)?;
        }
        builder.recursive(false).create(&self.path)
    }

    pub fn create_control(&self) -> io::Result<()> {
        fs::create_dir(self.control())?;
        // Whatever the service's umask is: the sandbox's user must get to the socket.
        fs::set_permissions(self.control(), fs::Permissions::from_mode(0o755))
    }

    pub fn read_meta(&self) -> io::Result<Meta> {
        let bytes = fs::read(self.path.join("meta.json"))?;
        serde_json::from_slice(&bytes).map_err(io::Error::other)
    }

    pub fn write_meta(&self, meta: &Meta) -> io::Result<()> {
        let bytes = serde_json::to_vec(meta).map_err(io::Error::other)?;
        write_whole(&self.path, "meta.json", &bytes)
    }

    /// Which sandbox has this folder of the pool, so that the next service can remove both.
    pub fn write_pool_note(&self, handle: &SandboxHandle) -> io::Result<()> {
        let bytes = serde_json::to_vec(handle).map_err(io::Error::other)?;
        fs::write(self.path.join(POOL_NOTE), bytes)
    }

    fn read_pool_note(&self) -> Option<SandboxHandle> {
        serde_json::from_slice(&fs::read(self.path.join(POOL_NOTE)).ok()?).ok()
    }

    pub fn read_manifest(&self) -> Option<Vec<u8>> {
        fs::read(self.path.join("manifest.json")).ok()
    }

    /// Not forced to disk: a lost manifest only means that files are hashed again.
    pub fn write_manifest(&self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.join("manifest.json.tmp");
        block_in_place(|| {
            fs::write(&temporary, bytes)?;
            fs::rename(&temporary, self.path.join("manifest.json"))
        })
    }

    /// Takes the folder out of sight at once; `empty_trash` deletes it. False if there was none.
    pub fn move_to_trash(&self, work_root: &Path) -> io::Result<bool> {
        let target = trash_root(work_root).join(uuid::Uuid::new_v4().simple().to_string());
        match block_in_place(|| fs::rename(&self.path, target)) {
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

/// A folder that was made just now. It goes to the trash unless its maker comes to the end and keeps it.
pub struct NewFolder<'f> {
    folder: &'f SessionFolder,
    work_root: &'f Path,
    kept: bool,
}

impl<'f> NewFolder<'f> {
    pub fn of(folder: &'f SessionFolder, work_root: &'f Path) -> Self {
        Self {
            folder,
            work_root,
            kept: false,
        }
    }

    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for NewFolder<'_> {
    fn drop(&mut self) {
        if !self.kept {
            let _reaper_empties_it = self.folder.move_to_trash(self.work_root);
        }
    }
}

/// Makes the folders the service needs, closed to other users of the host.
pub fn prepare_work_root(work_root: &Path) -> io::Result<()> {
    for folder in [
        work_root.to_owned(),
        sessions_root(work_root),
        trash_root(work_root),
        tombstones_root(work_root),
        pool_root(work_root),
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

/// Deletes what is in the trash. Returns at once if somebody is at it, who then looks again; what falls in between is the
/// reaper's next look.
pub fn empty_trash(work_root: &Path) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    static LOOK_AGAIN: AtomicBool = AtomicBool::new(true);
    LOOK_AGAIN.store(true, Ordering::Release);
    let _turn = match ONE_AT_A_TIME.try_lock() {
        Ok(turn) => turn,
        Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    while LOOK_AGAIN.swap(false, Ordering::AcqRel) {
        delete_what_is_in_the_trash(work_root);
    }
}

fn delete_what_is_in_the_trash(work_root: &Path) {
    let Ok(entries) = fs::read_dir(trash_root(work_root)) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let removed = volume::unmount(&path).and_then(|()| crate::workspace::remove_tree(&path));
        if let Err(error) = removed {
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
        // A service that died while it removed a user's last session left the user's folder.
        let _has_sessions = fs::remove_dir(user.path());
    }
    Ok(found)
}

fn sessions_root(work_root: &Path) -> PathBuf {
    work_root.join("sessions")
}

fn pool_root(work_root: &Path) -> PathBuf {
    work_root.join("pool")
}

/// Every sandbox that an earlier service left on record, of sessions and of its pool.
pub fn left_sandboxes(work_root: &Path) -> Vec<SandboxHandle> {
    let sessions = left_sessions(work_root).unwrap_or_default().into_iter();
    let pool = left_pool(work_root).unwrap_or_default().into_iter();
    sessions
        .filter_map(|(_, meta)| meta.sandbox)
        .chain(pool.filter_map(|(_, handle)| handle))
        .collect()
}

/// What an earlier service had in its pool: the folders, and the sandboxes as far as they were noted.
pub fn left_pool(work_root: &Path) -> io::Result<Vec<(SessionFolder, Option<SandboxHandle>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(pool_root(work_root))?.flatten() {
        let folder = SessionFolder { path: entry.path() };
        let handle = folder.read_pool_note();
        found.push((folder, handle));
    }
    Ok(found)
}

fn trash_root(work_root: &Path) -> PathBuf {
    work_root.join("trash")
}

pub fn tombstones_root(work_root: &Path) -> PathBuf {
    work_root.join("tombstones")
}

/// While another sandbox keeps the disk busy this takes long; whoever else is served by this thread must not wait for it.
pub fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = folder.join(format!("{name}.tmp"));
    block_in_place(|| {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, folder.join(name))?;
        File::open(folder)?.sync_all()
    })
}
