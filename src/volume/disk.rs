//! The host's disk below the work root: images are sparse, so together they may promise more than there is.
//! Never deletes anything to make room. Invariant: below the floor no work begins that would write.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whoever begins work may go by a look that is this old: it is far shorter than a disk takes to fill from the floor.
const LOOK_IS_FRESH: Duration = Duration::from_millis(20);

/// Room on the file system that holds the work root.
#[derive(Debug, Clone)]
pub struct HostDisk {
    path: PathBuf,
    floor_bytes: u64,
    last_look: Arc<Mutex<Option<Look>>>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    free_bytes: u64,
}

impl HostDisk {
    pub fn new(path: &Path, floor_bytes: u64) -> Self {
        Self {
            path: path.to_owned(),
            floor_bytes,
            last_look: Arc::default(),
        }
    }

    pub fn floor_bytes(&self) -> u64 {
        self.floor_bytes
    }

    /// What is left if that is less than the floor. What cannot be asked is not called low.
    pub fn shortage(&self) -> Option<u64> {
        let free = self.recent_look().or_else(|| self.free_bytes());
        free.filter(|free| *free < self.floor_bytes)
    }

    /// So little left that writing must end at once: what is on its way to the disk needs the rest.
    pub fn is_nearly_full(&self) -> bool {
        self.free_bytes()
            .is_some_and(|free| free < self.floor_bytes / 2)
    }

    fn recent_look(&self) -> Option<u64> {
        let look = (*self
            .last_look
            .lock()
            .unwrap_or_else(PoisonError::into_inner))?;
        (look.at.elapsed() < LOOK_IS_FRESH).then_some(look.free_bytes)
    }

    fn free_bytes(&self) -> Option<u64> {
        if self.floor_bytes == 0 {
            return None;
        }
        let found = rustix::fs::statvfs(&self.path).ok()?;
        // What only root may use is not counted, whoever the service is.
        let free_bytes = found.f_bavail * found.f_frsize;
        let look = Look {
            at: Instant::now(),
            free_bytes,
        };
        *self
            .last_look
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(look);
        Some(free_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_used_again_while_it_is_fresh_and_not_longer() {
        let disk = HostDisk::new(Path::new("/"), 1);
        let last_look =
            |at, free_bytes| *disk.last_look.lock().unwrap() = Some(Look { at, free_bytes });
        last_look(Instant::now(), 0);
        assert_eq!(disk.shortage(), Some(0));
        last_look(Instant::now() - 2 * LOOK_IS_FRESH, 0);
        assert_eq!(disk.shortage(), None, "there is room, as a new look shows");
    }
}
