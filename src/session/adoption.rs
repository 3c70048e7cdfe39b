//! Taking over what an earlier service left: sessions on disk, and sandboxes that live with their variables.
//! Never makes a sandbox. Invariant: a session that cannot be taken over is left as it is, and keeps no other from being served.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::oneshot;

use super::Core;
use super::error::CoreError;
use super::folder::{self, Meta, SessionFolder};
use super::registry::{Live, Session};
use super::stored::Stored;
use crate::kernel::Kernel;
use crate::sandbox::SandboxHandle;
use crate::store::Manifest;
use crate::volume::Adopted;

/// Sessions that are taken over at the same time, so that one whose engine or disk is slow does not hold up the others.
const ADOPTIONS_AT_ONCE: usize = 16;

impl Core {
    /// Takes over what an earlier service left: living sandboxes with their variables, and sessions without one.
    pub(super) async fn adopt_sessions(&self) -> Result<(), CoreError> {
        let left = folder::left_sessions(&self.parts.work_root).map_err(CoreError::internal)?;
        let adoptions = futures_util::stream::iter(left)
            .map(|(folder, meta)| self.adopt_session(folder, meta))
            .buffer_unordered(ADOPTIONS_AT_ONCE);
        let with_sandbox = adoptions
            .fold(0, |count, alive| async move { count + usize::from(alive) })
            .await;
        tracing::info!(
            sessions = self.registry.all().len(),
            sandboxes = with_sandbox,
            "sessions taken over"
        );
        Ok(())
    }

    /// Whether the session still has a living sandbox. One that cannot be taken over is no reason not to serve the others.
    async fn adopt_session(&self, folder: SessionFolder, meta: Meta) -> bool {
        let adopted_volume = match self.adopt_volume(&folder, &meta) {
            Ok(adopted) => adopted,
            Err(error) => {
                tracing::error!(session = %meta.ids.key(), %error, "a session's workspace cannot be mounted; left alone");
                return false;
            }
        };
        let manifest = folder
            .read_manifest()
            .and_then(|bytes| Manifest::from_json(&bytes))
            .filter(|_| adopted_volume != Adopted::Empty);
        // No manifest: the earlier service may have ended before it asked the store.
        let stored = Stored {
            restore_pending: manifest.is_none(),
            manifest: manifest.unwrap_or_default(),
            behind: true,
        };
        let handle = meta.sandbox.clone();
        let key = meta.ids.key();
        let session = match self.session_of(folder, meta, stored) {
            Ok(session) => session,
            Err(error) => {
                tracing::error!(session = %key, ?error, "a session's workspace cannot be opened; left alone");
                return false;
            }
        };
        if adopted_volume == Adopted::MountedAgain {
            self.drop_damaged_files(&session, &mut *session.stored.lock().await);
        }
        self.remove_unfinished_uploads(&session).await;
        let live = match handle {
            Some(handle) => self.adopt_sandbox(&session, handle).await,
            None => None,
        };
        let alive = live.is_some();
        if !alive {
            session.meta().lose_variables();
        }
        session.sandbox.lock().await.live = live;
        self.registry.insert(session);
        alive
    }

    /// What uploads left that the earlier service did not finish.
    async fn remove_unfinished_uploads(&self, session: &Session) {
        let (workspace, budget) = (session.workspace.clone(), self.walk_budget(session));
        let walked = tokio::task::spawn_blocking(move || workspace.walk(budget)).await;
        let Ok(Ok(report)) = walked else {
            return;
        };
        for path in report.unfinished {
            if let Err(error) = session.workspace.delete_file(&path) {
                tracing::warn!(session = %session.key, %error, "the rest of an upload could not be removed");
            }
        }
    }

    /// None if it is gone.
    async fn adopt_sandbox(&self, session: &Session, handle: SandboxHandle) -> Option<Arc<Live>> {
        if handle.backend != self.backend().name() {
            // Whoever put the service together has seen to it; here it is just gone.
            return None;
        }
        if self.backend().is_alive(&handle).await {
            match self.listen_again(session, &handle).await {
                Ok(kernel) => {
                    // The earlier service may have ended between taking it from the pool and naming it.
                    self.name_sandbox(&handle, &session.key);
                    let generation = session.meta().generation;
                    let live = self
                        .live(
                            handle,
                            kernel,
                            self.capacity.clone().try_acquire_owned().ok(),
                            Some(generation),
                        )
                        .await;
                    return Some(live);
                }
                Err(error) => {
                    tracing::error!(session = %session.key, %error, "a living sandbox cannot be listened to")
                }
            }
        }
        self.remove_sandbox(&handle).await;
        None
    }

    async fn listen_again(
        &self,
        session: &Session,
        handle: &SandboxHandle,
    ) -> anyhow::Result<Kernel> {
        let control_dir = session.folder.control();
        let (pid, pid_known) = oneshot::channel();
        let kernel = Kernel::listen(&control_dir, pid_known)?;
        let dialling = self.backend().connect(handle, &control_dir).await?;
        let _kernel_listens = pid.send(dialling);
        Ok(kernel)
    }
}
