//! Walks a bucket and gives one page of its keys in byte order, grouped by a delimiter if asked.
//! Never reads directories the prefix or the starting point rule out, and opens only the objects it lists.
//! Invariant: pages joined by their `next` positions name every object that was there throughout exactly once.

use std::io;
use std::vec;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::directory::Directory;
use super::error::StoreError;
use super::layout::{Entry, EntryKind, ObjectPath, join_directories};
use super::object_file::ObjectRecord;
use super::object_store::read_object;

/// Where a page starts: behind a key, or behind everything that shares a common prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Position {
    Start,
    AfterKey(String),
    AfterPrefix(String),
}

impl Position {
    /// The opaque continuation token of ListObjectsV2.
    pub(super) fn to_token(&self) -> String {
        let text = match self {
            Self::Start => String::new(),
            Self::AfterKey(key) => format!("k{key}"),
            Self::AfterPrefix(prefix) => format!("p{prefix}"),
        };
        URL_SAFE_NO_PAD.encode(text)
    }

    pub(super) fn from_token(token: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        if let Some(key) = text.strip_prefix('k') {
            return Some(Self::AfterKey(key.to_owned()));
        }
        text.strip_prefix('p')
            .map(|prefix| Self::AfterPrefix(prefix.to_owned()))
    }

    /// Whether a key comes after this position.
    fn is_before(&self, key: &[u8]) -> bool {
        match self {
            Self::Start => true,
            Self::AfterKey(marker) => key > marker.as_bytes(),
            Self::AfterPrefix(prefix) => {
                key > prefix.as_bytes() && !key.starts_with(prefix.as_bytes())
            }
        }
    }

    /// Whether some key that starts with `stem` can come after this position.
    fn is_before_some_of(&self, stem: &[u8]) -> bool {
        match self {
            Self::Start => true,
            Self::AfterKey(marker) => {
                stem > marker.as_bytes() || marker.as_bytes().starts_with(stem)
            }
            Self::AfterPrefix(prefix) => {
                let prefix = prefix.as_bytes();
                !stem.starts_with(prefix) && (stem > prefix || prefix.starts_with(stem))
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct ListQuery {
    pub(super) prefix: String,
    pub(super) delimiter: Option<String>,
    pub(super) position: Position,
    pub(super) max_keys: usize,
}

#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<ObjectRecord>,
    pub(super) common_prefixes: Vec<String>,
    /// Where the next page starts; `None` when this is the last.
    pub(super) next: Option<Position>,
}

/// Blocking.
pub(super) fn list(bucket: &Directory, query: &ListQuery) -> Result<Page, StoreError> {
    let mut collector = Collector {
        bucket,
        query,
        page: Page::default(),
        last: query.position.clone(),
    };
    if query.max_keys == 0 {
        return Ok(collector.page);
    }
    let mut walk = Walk::start(bucket, &query.prefix)?;
    while let Some((kind, key)) = walk.next_entry() {
        match kind {
            EntryKind::Directory if collector.wants_below(key) => walk.enter()?,
            EntryKind::Directory => {}
            EntryKind::Object => {
                if collector.add(key)? == Progress::PageIsFull {
                    break;
                }
            }
        }
    }
    Ok(collector.page)
}

/// A depth-first walk that yields entries in the byte order of the keys they stand for.
struct Walk<'a> {
    bucket: &'a Directory,
    levels: Vec<Level>,
    directories: Vec<String>,
    key: Vec<u8>,
    entered_name: String,
}

struct Level {
    entries: vec::IntoIter<Entry>,
    key_bytes: usize,
}

impl<'a> Walk<'a> {
    /// Starts in the innermost directory that holds every key with this prefix.
    fn start(bucket: &'a Directory, prefix: &str) -> io::Result<Self> {
        let directories = ObjectPath::of_key(prefix).directories;
        let entries = directories.iter().filter_map(|name| Entry::from_name(name));
        let key = entries.flat_map(|entry| entry.sort_bytes).collect();
        let mut walk = Self {
            bucket,
            levels: Vec::new(),
            directories,
            key,
            entered_name: String::new(),
        };
        walk.push_level()?;
        Ok(walk)
    }

    fn next_entry(&mut self) -> Option<(EntryKind, &[u8])> {
        loop {
            let level = self.levels.last_mut()?;
            self.key.truncate(level.key_bytes);
            if let Some(entry) = level.entries.next() {
                self.key.extend_from_slice(&entry.sort_bytes);
                self.entered_name = entry.name;
                return Some((entry.kind, &self.key));
            }
            self.levels.pop();
            self.directories.pop();
        }
    }

    /// Goes into the directory that `next_entry` gave last.
    fn enter(&mut self) -> io::Result<()> {
        self.directories
            .push(std::mem::take(&mut self.entered_name));
        self.push_level()
    }

    fn push_level(&mut self) -> io::Result<()> {
        let names = match self
            .bucket
            .subdirectory(&join_directories(&self.directories))
        {
            Ok(directory) => directory.names()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut entries: Vec<Entry> = names
            .iter()
            .filter_map(|name| Entry::from_name(name))
            .collect();
        entries.sort_unstable_by(|left, right| left.sort_bytes.cmp(&right.sort_bytes));
        self.levels.push(Level {
            entries: entries.into_iter(),
            key_bytes: self.key.len(),
        });
        Ok(())
    }
}

#[derive(PartialEq, Eq)]
enum Progress {
    GoOn,
    PageIsFull,
}

struct Collector<'a> {
    bucket: &'a Directory,
    query: &'a ListQuery,
    page: Page,
    /// The key or common prefix that was added last, or where the page started.
    last: Position,
}

impl Collector<'_> {
    fn wants_below(&self, stem: &[u8]) -> bool {
        let prefix = self.query.prefix.as_bytes();
        let may_match = stem.starts_with(prefix) || prefix.starts_with(stem);
        may_match && self.last.is_before_some_of(stem)
    }

    fn add(&mut self, key: &[u8]) -> Result<Progress, StoreError> {
        if !key.starts_with(self.query.prefix.as_bytes()) || !self.last.is_before(key) {
            return Ok(Progress::GoOn);
        }
        let Ok(key) = str::from_utf8(key) else {
            return Ok(Progress::GoOn);
        };
        let record = match read_object(self.bucket, key) {
            Ok(object) => object.record,
            Err(StoreError::NoSuchKey) => return Ok(Progress::GoOn),
            Err(error) => return Err(error),
        };
        if self.page.objects.len() + self.page.common_prefixes.len() >= self.query.max_keys {
            self.page.next = Some(self.last.clone());
            return Ok(Progress::PageIsFull);
        }
        match common_prefix(key, &self.query.prefix, self.query.delimiter.as_deref()) {
            Some(prefix) => {
                self.last = Position::AfterPrefix(prefix.to_owned());
                self.page.common_prefixes.push(prefix.to_owned());
            }
            None => {
                self.last = Position::AfterKey(key.to_owned());
                self.page.objects.push(record);
            }
        }
        Ok(Progress::GoOn)
    }
}

/// The part of a key up to the first delimiter behind the prefix.
pub(super) fn common_prefix<'a>(
    key: &'a str,
    prefix: &str,
    delimiter: Option<&str>,
) -> Option<&'a str> {
    let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty())?;
    let rest = key.strip_prefix(prefix)?;
    let found_at = rest.find(delimiter)?;
    Some(&key[..prefix.len() + found_at + delimiter.len()])
}

#[cfg(test)]
mod tests;
