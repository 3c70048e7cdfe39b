//! What callers were told, and whether it is still so in the end: nothing acknowledged is lost, nothing runs twice,
//! and nothing is left of what was removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::{TestApp, backend, wait_for};

/// Writes to one file or one list of runs: each has a number, and later ones have greater ones.
#[derive(Debug, Default, Clone)]
pub struct Writes {
    pub sent: BTreeSet<u64>,
    pub acknowledged: BTreeSet<u64>,
}

impl Writes {
    /// Whether `found` can be what is there: the last acknowledged write, or one sent later whose answer was lost.
    fn allow(&self, found: Option<u64>) -> bool {
        match (found, self.acknowledged.last()) {
            (Some(found), Some(last)) => found >= *last && self.sent.contains(&found),
            (Some(found), None) => self.sent.contains(&found),
            (None, last) => last.is_none(),
        }
    }
}

/// Everything that one session's callers sent and heard.
#[derive(Debug, Default, Clone)]
pub struct History {
    pub runs: Writes,
    pub files: BTreeMap<String, Writes>,
    pub lost_said: u64,
}

impl History {
    /// Compares with what the session has now: its list `runs`, and each file's content, which is its writer's number.
    pub async fn check(&self, app: &TestApp, session: &str) {
        let answer = app.run(session, "print(*runs)").await;
        assert_eq!(
            (self.lost_said, &answer["state"]),
            (0, &json!("kept")),
            "{session}: {answer}"
        );
        let words = answer["output"].as_str().unwrap().split_whitespace();
        let runs: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        let distinct: BTreeSet<u64> = runs.iter().copied().collect();
        assert_eq!(
            distinct.len(),
            runs.len(),
            "{session}: a cell ran twice: {runs:?}"
        );
        let missing: Vec<_> = self.runs.acknowledged.difference(&distinct).collect();
        assert!(
            missing.is_empty(),
            "{session}: acknowledged cells are gone: {missing:?}"
        );
        let invented: Vec<_> = distinct.difference(&self.runs.sent).collect();
        assert!(invented.is_empty(), "{session}: nobody sent {invented:?}");
        for (path, writes) in &self.files {
            let found = download(app, session, path).await;
            assert!(
                writes.allow(found),
                "{session}/{path} has {found:?} of {:?}, acknowledged {:?}",
                writes.sent.iter().rev().take(5).collect::<Vec<_>>(),
                writes.acknowledged.last()
            );
        }
    }
}

async fn download(app: &TestApp, session: &str, path: &str) -> Option<u64> {
    let query = format!("/v1/files/download?user_id=u&session_id={session}&path={path}");
    let response = app.get(&query).send().await.unwrap();
    if response.status() == 404 {
        return None;
    }
    assert_eq!(response.status(), 200, "{path}");
    let text = response.text().await.unwrap();
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{path} holds {text:?}")),
    )
}

/// Waits until the host holds exactly what these many sessions and waiting sandboxes need, and not a thing more.
pub async fn wait_for_nothing_more(app: &TestApp, sessions: usize, waiting: usize) {
    let expected = sessions + waiting;
    let mut last = String::new();
    let settled = wait_for("everything else to go", || {
        let found = [
            ("containers", app.containers().len(), expected),
            ("mounts", app.mounts().len(), expected),
            ("loop devices", app.attached_images().len(), expected),
            ("cgroups", cgroups(app).unwrap_or(expected), expected),
            (
                "session folders",
                folders(&app.work_root().join("sessions"), 2),
                sessions,
            ),
            (
                "pool folders",
                folders(&app.work_root().join("pool"), 1),
                waiting,
            ),
            ("trash", folders(&app.work_root().join("trash"), 1), 0),
            (
                "tombstones",
                entries(&app.work_root().join("tombstones")).len(),
                0,
            ),
        ];
        last = format!("{found:?}");
        found
            .iter()
            .all(|(_, found, wanted)| found == wanted)
            .then_some(())
    });
    let patience = std::time::Duration::from_secs(60);
    if tokio::time::timeout(patience, settled).await.is_err() {
        panic!("not everything went: {last}");
    }
}

/// Files in the embedded store, whatever they are.
pub fn stored_files(app: &TestApp) -> Vec<PathBuf> {
    files_below(&app.work_root().join("s3/buckets"))
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (folders, files): (Vec<_>, Vec<_>) =
        entries(folder).into_iter().partition(|path| path.is_dir());
    files
        .into_iter()
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("o-")
        })
        .chain(folders.iter().flat_map(|folder| files_below(folder)))
        .collect()
}

/// Of the embedded backend; an engine looks after its own.
fn cgroups(app: &TestApp) -> Option<usize> {
    if backend() != "embedded" {
        return None;
    }
    let deployment = std::fs::read_to_string(app.work_root().join("deployment")).unwrap();
    let roots = [
        "/sys/fs/cgroup/memory/cellblock",
        "/sys/fs/cgroup/cellblock",
    ];
    let root = roots.iter().map(Path::new).find(|root| root.exists())?;
    let own = entries(root).into_iter().filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        path.is_dir() && name.starts_with(&format!("{deployment}."))
    });
    Some(own.count())
}

fn folders(root: &Path, depth: usize) -> usize {
    let inner = entries(root).into_iter().filter(|path| path.is_dir());
    match depth {
        1 => inner.count(),
        _ => inner.map(|folder| folders(&folder, depth - 1)).sum(),
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_and_an_invented_write_are_both_seen() {
        let writes = Writes {
            sent: BTreeSet::from([1, 2, 3]),
            acknowledged: BTreeSet::from([1, 2]),
        };
        assert!(writes.allow(Some(2)) && writes.allow(Some(3)));
        assert!(!writes.allow(Some(1)), "an acknowledged write is gone");
        assert!(!writes.allow(Some(4)), "nobody wrote that");
        assert!(!writes.allow(None), "an acknowledged file is gone");
        assert!(Writes::default().allow(None));
    }
}
