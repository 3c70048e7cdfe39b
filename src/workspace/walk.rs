//! Looking through a whole workspace within budgets: how many entries, how deep, how long.
//! Never opens a file, only folders, and those link-free.
//! Invariant: it ends, whatever tree the sandbox built, and says what it left out.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::{FileFacts, Workspace};
use crate::model::execution::Skipped;
use crate::model::path::WorkspacePath;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const READ_BUFFER_BYTES: usize = 8192;
/// The clock is looked at once for so many entries.
const ENTRIES_PER_LOOK: usize = 64;
const MAX_SKIPPED_REPORTED: usize = 100;

#[derive(Debug, Clone, Copy)]
pub struct WalkBudget {
    pub max_files: usize,
    pub max_bytes: u64,
    pub max_time: Duration,
}

/// What a walk found: the files within budget, sorted by path, and what was left out and why.
#[derive(Debug, Default)]
pub struct WalkReport {
    pub files: Vec<(WorkspacePath, FileFacts)>,
    /// Files that are there but are not to be read: sparse, or beyond a limit.
    pub left_out: Vec<(WorkspacePath, FileFacts)>,
    pub skipped: Vec<Skipped>,
    pub total_bytes: u64,
    /// Really allocated on disk, files over budget included.
    pub allocated_bytes: u64,
    pub total_files: usize,
    /// False if a file or folder was left out; what `files` lacks may then still be there.
    pub complete: bool,
    /// There was more than the walk was allowed to look at.
    pub out_of_budget: bool,
    /// Uploads that were under way.
    pub unfinished: Vec<WorkspacePath>,
}

struct Walk {
    budget: WalkBudget,
    started: Instant,
    entries_left: usize,
    report: WalkReport,
}

impl Workspace {
    pub fn walk(&self, budget: WalkBudget) -> io::Result<WalkReport> {
        let mut walk = Walk {
            budget,
            started: Instant::now(),
            // Folders, links and files over the limit cost time too, so they are counted, generously.
            entries_left: budget.max_files * 4 + 4096,
            report: WalkReport {
                complete: true,
                ..WalkReport::default()
            },
        };
        self.open_up()?;
        self.walk_root(&mut walk)?;
        let mut report = walk.report;
        report.files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        apply_limits(&mut report, budget);
        Ok(report)
    }

    /// From the descriptor that is open anyway, unless somebody else is reading through it: most walks find nothing new, and
    /// opening and closing another one would be half of their work.
    fn walk_root(&self, walk: &mut Walk) -> io::Result<()> {
        match self.reads_root.try_lock() {
            Ok(_until_read) => {
                let root = self.root.read().unwrap_or_else(PoisonError::into_inner);
                rustix::fs::seek(&*root, SeekFrom::Start(0))?;
                walk.folder(root.as_fd(), None)
            }
            Err(_) => {
                let root = self.open_beneath(b".", FOLDER, Mode::empty())?;
                walk.folder(root.as_fd(), None)
            }
        }
    }
}

impl Walk {
    fn folder(&mut self, fd: BorrowedFd<'_>, path: Option<&WorkspacePath>) -> io::Result<()> {
        let mut folders = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); READ_BUFFER_BYTES];
        let mut entries = RawDir::new(fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.entries_left == 0 || self.is_late() {
                self.report.complete = false;
                self.report.out_of_budget = true;
                return Ok(());
            }
            self.entries_left -= 1;
            folders.extend(self.entry(fd, path, name));
        }
        for path in folders {
            match rustix::fs::openat(fd, path.file_name(), FOLDER, Mode::empty()) {
                Ok(inner) => self.folder(inner.as_fd(), Some(&path))?,
                Err(Errno::NOENT) => {}
                Err(_) => self.out_of_sight(path.to_text(), "the folder cannot be opened"),
            }
        }
        Ok(())
    }

    /// What cannot be looked at may be of any size, so it counts as too much.
    fn out_of_sight(&mut self, path: String, reason: &str) {
        self.skip(path, reason);
        self.report.complete = false;
        self.report.out_of_budget = true;
    }

    fn is_late(&self) -> bool {
        self.entries_left.is_multiple_of(ENTRIES_PER_LOOK)
            && self.started.elapsed() > self.budget.max_time
    }

    /// Takes note of one entry; a folder is given back, to be looked into later.
    fn entry(
        &mut self,
        folder: BorrowedFd<'_>,
        path: Option<&WorkspacePath>,
        name: &CStr,
    ) -> Option<WorkspacePath> {
        let Ok(path) = WorkspacePath::in_folder(path, name.to_bytes()) else {
            let shown = String::from_utf8_lossy(name.to_bytes()).into_owned();
            self.out_of_sight(shown, "the path is too long or too deep");
            return None;
        };
        let stat = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It vanished while we looked.
            Err(Errno::NOENT) => return None,
            Err(_) => {
                self.out_of_sight(path.to_text(), "the file cannot be looked at");
                return None;
            }
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                if super::is_closed_to_us(stat.st_mode) {
                    // What is in it counts, and is to be stored. If this fails, opening it will say so.
                    let _opened_up = super::delete::open_up(folder, name.to_bytes());
                }
                return Some(path);
            }
            FileType::RegularFile if is_internal(name.to_bytes()) => {
                self.report.allocated_bytes += FileFacts::of(&stat).allocated_bytes;
                self.report.unfinished.push(path);
            }
            FileType::RegularFile => self.file(path, FileFacts::of(&stat)),
            other => self.skip(path.to_text(), kind_in_words(other)),
        }
        None
    }

    fn file(&mut self, path: WorkspacePath, facts: FileFacts) {
        self.report.total_files += 1;
        self.report.allocated_bytes += facts.allocated_bytes;
        match facts.reason_to_leave_out(self.budget.max_bytes) {
            Some(reason) => {
                self.report.complete = false;
                self.skip(path.to_text(), reason);
                self.report.left_out.push((path, facts));
            }
            None => self.report.files.push((path, facts)),
        }
    }

    fn skip(&mut self, path: String, reason: &str) {
        if self.report.skipped.len() < MAX_SKIPPED_REPORTED {
            self.report.skipped.push(Skipped {
                path,
                reason: reason.to_owned(),
            });
        }
    }
}

/// Files beyond the count or the size limit are left out, in path order, so that the same ones stay in.
fn apply_limits(report: &mut WalkReport, budget: WalkBudget) {
    let mut kept = Vec::with_capacity(report.files.len().min(budget.max_files));
    for (path, facts) in std::mem::take(&mut report.files) {
        let reason = if kept.len() >= budget.max_files {
            "the workspace has more files than MAX_TOTAL_FILES allows"
        } else if report.total_bytes + facts.size_bytes > budget.max_bytes {
            "the workspace is larger than MAX_WORKSPACE_SIZE_MB allows"
        } else {
            report.total_bytes += facts.size_bytes;
            kept.push((path, facts));
            continue;
        };
        report.complete = false;
        if report.skipped.len() < MAX_SKIPPED_REPORTED {
            report.skipped.push(Skipped {
                path: path.to_text(),
                reason: reason.to_owned(),
            });
        }
        report.left_out.push((path, facts));
    }
    report.files = kept;
}

/// Uploads under way, under names that only the service gives.
pub fn is_internal(name: &[u8]) -> bool {
    name.starts_with(b".cellblock-upload-")
}

fn kind_in_words(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "symbolic links are not followed",
        FileType::Fifo => "a FIFO is not a file",
        FileType::Socket => "a socket is not a file",
        _ => "a device is not a file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_at_the_same_time_each_see_every_file() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..500 {
            std::fs::write(folder.path().join(format!("file-{number}")), "x").unwrap();
        }
        let workspace = Workspace::open(folder.path(), None).unwrap();
        let budget = WalkBudget {
            max_files: 1000,
            max_bytes: 1 << 20,
            max_time: Duration::from_secs(10),
        };
        let walks = || {
            for _ in 0..50 {
                assert_eq!(workspace.walk(budget).unwrap().files.len(), 500);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(walks))));
    }
}
