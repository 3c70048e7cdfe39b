//! What a session has stored: path by path, with the facts that tell whether a file changed since.
//! Pure: no I/O, no clock. Invariant: an entry with an ETag is in the store with that content.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::path::WorkspacePath;
use crate::workspace::FileFacts;

/// Stored objects whose file is gone are remembered, so that links and inputs find them; beyond this some are forgotten.
const MAX_ABSENT: usize = 2000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub facts: FileFacts,
    pub sha256: String,
    /// None while the content is not stored yet.
    pub etag: Option<String>,
    /// False if the file was touched so shortly before it was hashed that the clock may hide a later change.
    pub settled: bool,
    /// False once the file is gone from the workspace while its object is still stored.
    pub present: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    pub entries: BTreeMap<WorkspacePath, Entry>,
}

/// What a look at the workspace means for the store.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Files that must be read: new, changed, unsettled or not stored yet.
    pub to_read: Vec<(WorkspacePath, FileFacts)>,
    pub gone: Vec<WorkspacePath>,
    pub unchanged: usize,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    files: Vec<StoredEntry>,
}

#[derive(Serialize, Deserialize)]
struct StoredEntry {
    path: String,
    #[serde(flatten)]
    entry: Entry,
}

const VERSION: u32 = 1;

impl Entry {
    /// Whether a cell that left `facts` behind has touched the file since this entry was made.
    pub fn was_touched(&self, facts: &FileFacts) -> bool {
        !self.present
            || self.facts.mtime_ns != facts.mtime_ns
            || self.facts.size_bytes != facts.size_bytes
            || self.facts.inode != facts.inode
    }

    fn is_current(&self, facts: &FileFacts) -> bool {
        self.present
            && self.settled
            && self.etag.is_some()
            && self.facts.ctime_ns == facts.ctime_ns
            && !self.was_touched(facts)
    }
}

impl Manifest {
    /// Compares with files of the workspace, which are in the order of their paths, each once, so that one pass over both is
    /// enough. `complete` says whether `files` really is all of them.
    pub fn plan(&self, files: &[(WorkspacePath, FileFacts)], complete: bool) -> Plan {
        let mut plan = Plan::default();
        let mut known = self.entries.iter().peekable();
        let gone = |(path, entry): (&WorkspacePath, &Entry)| {
            (complete && entry.present).then(|| path.clone())
        };
        for (path, facts) in files {
            while let Some(missing) = known.next_if(|(other, _)| *other < path) {
                plan.gone.extend(gone(missing));
            }
            match known.next_if(|(other, _)| *other == path) {
                Some((_, entry)) if entry.is_current(facts) => plan.unchanged += 1,
                _ => plan.to_read.push((path.clone(), *facts)),
            }
        }
        plan.gone.extend(known.filter_map(gone));
        plan
    }

    /// Marks files as gone from the workspace; what was never stored is forgotten.
    pub fn mark_gone(&mut self, gone: &[WorkspacePath]) {
        for path in gone {
            if let Some(entry) = self.entries.get_mut(path) {
                entry.present = false;
            }
        }
        self.entries
            .retain(|_, entry| entry.present || entry.etag.is_some());
        let absent = self.entries.values().filter(|entry| !entry.present).count();
        let mut to_drop = absent.saturating_sub(MAX_ABSENT);
        self.entries.retain(|_, entry| {
            let drop = !entry.present && to_drop > 0;
            to_drop -= usize::from(drop);
            !drop
        });
    }

    pub fn is_stored(&self, path: &WorkspacePath) -> bool {
        self.entries
            .get(path)
            .is_some_and(|entry| entry.etag.is_some())
    }

    /// The manifest as it may be kept in the store: only what is stored there.
    pub fn stored_only(&self) -> Self {
        let entries = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.etag.is_some());
        Self {
            entries: entries
                .map(|(path, entry)| (path.clone(), entry.clone()))
                .collect(),
        }
    }

    pub fn to_json(&self) -> Vec<u8> {
        let files = self.entries.iter().filter_map(|(path, entry)| {
            Some(StoredEntry {
                path: path.to_key().ok()?,
                entry: entry.clone(),
            })
        });
        let stored = Stored {
            version: VERSION,
            files: files.collect(),
        };
        serde_json::to_vec(&stored).expect("a manifest has only string keys")
    }

    /// None if the bytes are not a manifest of this version; then every file is simply read again.
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        let stored: Stored = serde_json::from_slice(bytes).ok()?;
        if stored.version != VERSION {
            return None;
        }
        let entries = stored.files.into_iter().filter_map(|file| {
            let path: Vec<u8> = percent_encoding::percent_decode_str(&file.path).collect();
            Some((WorkspacePath::from_bytes(path).ok()?, file.entry))
        });
        Some(Self {
            entries: entries.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(stamp: i64) -> FileFacts {
        FileFacts {
            size_bytes: 1,
            mtime_ns: stamp,
            ctime_ns: stamp,
            inode: 1,
            allocated_bytes: 4096,
            mode: 0o100_644,
        }
    }

    fn entry(stamp: i64) -> Entry {
        Entry {
            facts: facts(stamp),
            sha256: "s".into(),
            etag: Some("e".into()),
            settled: true,
            present: true,
        }
    }

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text).unwrap()
    }

    #[test]
    fn a_file_whose_mtime_was_set_back_is_read_again() {
        let manifest = Manifest {
            entries: [(path("a"), entry(5))].into(),
        };
        let sneaky = FileFacts {
            ctime_ns: 9,
            ..facts(5)
        };
        assert_eq!(manifest.plan(&[(path("a"), sneaky)], true).to_read.len(), 1);
        assert!(!manifest.entries[&path("a")].was_touched(&sneaky));
    }

    #[test]
    fn what_is_not_stored_yet_is_tried_again() {
        let manifest = Manifest {
            entries: [(
                path("a"),
                Entry {
                    etag: None,
                    ..entry(5)
                },
            )]
            .into(),
        };
        assert_eq!(
            manifest.plan(&[(path("a"), facts(5))], true).to_read.len(),
            1
        );
        assert!(manifest.stored_only().entries.is_empty());
    }

    #[test]
    fn an_incomplete_walk_never_makes_a_file_gone() {
        let manifest = Manifest {
            entries: [(path("a"), entry(5))].into(),
        };
        assert!(manifest.plan(&[], false).gone.is_empty());
        assert_eq!(manifest.plan(&[], true).gone, vec![path("a")]);
    }

    #[test]
    fn a_deleted_file_stays_known_as_long_as_its_object_is_stored() {
        let mut manifest = Manifest {
            entries: [
                (path("a"), entry(5)),
                (
                    path("b"),
                    Entry {
                        etag: None,
                        ..entry(5)
                    },
                ),
            ]
            .into(),
        };
        manifest.mark_gone(&[path("a"), path("b")]);
        assert!(manifest.is_stored(&path("a")) && !manifest.entries.contains_key(&path("b")));
        assert!(manifest.plan(&[], true).gone.is_empty());
    }

    proptest! {
        #[test]
        fn every_file_is_either_unchanged_or_read_and_every_missing_one_is_gone(
            before in prop::collection::btree_map("[a-d]{1,3}", 0i64..3, 0..12),
            after in prop::collection::btree_map("[a-d]{1,3}", 0i64..3, 0..12),
        ) {
            let manifest = Manifest { entries: before.iter().map(|(p, s)| (path(p), entry(*s))).collect() };
            let files: Vec<_> = after.iter().map(|(p, s)| (path(p), facts(*s))).collect();
            let plan = manifest.plan(&files, true);
            prop_assert_eq!(plan.unchanged + plan.to_read.len(), after.len());
            let same = after.iter().filter(|(p, s)| before.get(*p) == Some(s)).count();
            prop_assert_eq!(plan.unchanged, same);
            let gone = before.keys().filter(|p| !after.contains_key(*p)).count();
            prop_assert_eq!(plan.gone.len(), gone);
        }

        #[test]
        fn a_manifest_survives_being_written_and_read(names in prop::collection::btree_set(prop::collection::vec(1u8..=255, 1..12), 0..10)) {
            let entries = names.into_iter().filter_map(|n| Some((WorkspacePath::from_bytes(n).ok()?, entry(7))));
            let manifest = Manifest { entries: entries.collect() };
            prop_assert_eq!(Manifest::from_json(&manifest.to_json()), Some(manifest));
        }

        #[test]
        fn arbitrary_bytes_are_no_manifest_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Manifest::from_json(&bytes);
        }
    }
}
