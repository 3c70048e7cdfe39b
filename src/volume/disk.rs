//! The host's disk below the work root: images are sparse, so together they may promise more than there is.
//! Never deletes anything to make room. Invariant: below the floor no work begins that would write.

use std::path::{Path, PathBuf};

/// Room on the file system that holds the work root.
#[derive(Debug, Clone)]
pub struct HostDisk {
    path: PathBuf,
    floor_bytes: u64,
}

impl HostDisk {
    pub fn new(path: &Path, floor_bytes: u64) -> Self {
        Self {
            path: path.to_owned(),
            floor_bytes,
        }
    }

    pub fn floor_bytes(&self) -> u64 {
        self.floor_bytes
    }

    /// What is left if that is less than the floor. What cannot be asked is not called low.
    pub fn shortage(&self) -> Option<u64> {
        self.free_bytes().filter(|free| *free < self.floor_bytes)
    }

    /// So little left that writing must end at once: what is on its way to the disk needs the rest.
    pub fn is_nearly_full(&self) -> bool {
        self.free_bytes()
            .is_some_and(|free| free < self.floor_bytes / 2)
    }

    fn free_bytes(&self) -> Option<u64> {
        if self.floor_bytes == 0 {
            return None;
        }
        let found = rustix::fs::statvfs(&self.path).ok()?;
        // What only root may use is not counted, whoever the service is.
        Some(found.f_bavail * found.f_frsize)
    }
}
