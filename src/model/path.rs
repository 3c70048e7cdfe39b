//! Paths inside a workspace: how callers write them, and how they are named in S3.
//! Never touches a file system. Invariant: a `WorkspacePath` is relative, has no `.`/`..`/empty segment, no NUL.

use std::fmt;

use percent_encoding::percent_decode_str;

const MAX_PATH_BYTES: usize = 1024;
const MAX_SEGMENT_BYTES: usize = 255;
const MAX_DEPTH: usize = 64;
/// S3 allows keys of 1024 bytes; the session prefix takes a part of that.
const MAX_KEY_BYTES: usize = 900;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPath(String);

/// A validated path relative to the workspace. Names are bytes, as Linux has them.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspacePath(Vec<u8>);

impl WorkspacePath {
    /// Reads what a caller wrote. A leading `/workspace/` and `./` are accepted, because models write them.
    pub fn parse(text: &str) -> Result<Self, InvalidPath> {
        let stripped = text.strip_prefix("/workspace/").unwrap_or(text);
        let stripped = stripped.strip_prefix("./").unwrap_or(stripped);
        if stripped.starts_with('/') {
            return refuse(text, "is absolute; give a path relative to the workspace");
        }
        for segment in stripped.split('/') {
            let decoded = percent_decode_str(segment).collect::<Vec<u8>>();
            if decoded == b"." || decoded == b".." {
                return refuse(text, "contains a \".\" or \"..\" segment");
            }
        }
        Self::from_bytes(unescape(stripped))
            .map_err(|InvalidPath(problem)| InvalidPath(format!("path {} {problem}", quoted(text))))
    }

    /// A folder given by a caller: as `parse`, but a trailing slash and "the workspace itself" are fine.
    pub fn parse_folder(text: &str) -> Result<Option<Self>, InvalidPath> {
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        if matches!(trimmed, "" | "." | "/workspace") && text != "/" {
            return Ok(None);
        }
        Self::parse(trimmed).map(Some)
    }

    /// For names that come from the workspace itself.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, InvalidPath> {
        // A walk asks this for every file, so what is fine is found so in one pass.
        if is_fine(&bytes) {
            return Ok(Self(bytes));
        }
        let problem = if bytes.is_empty() {
            "is empty"
        } else if bytes.len() > MAX_PATH_BYTES {
            "is longer than 1024 bytes"
        } else if bytes.contains(&0) {
            "contains a NUL byte"
        } else if bytes.split(|b| *b == b'/').any(<[u8]>::is_empty) {
            "has an empty segment"
        } else if bytes.split(|b| *b == b'/').any(|s| s == b"." || s == b"..") {
            "contains a \".\" or \"..\" segment"
        } else if bytes
            .split(|b| *b == b'/')
            .any(|s| s.len() > MAX_SEGMENT_BYTES)
        {
            "has a name longer than 255 bytes"
        } else {
            "is deeper than 64 folders"
        };
        Err(InvalidPath(problem.to_owned()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/')
    }

    pub fn file_name(&self) -> &[u8] {
        self.segments().last().unwrap_or_default()
    }

    pub fn join(&self, name: &[u8]) -> Result<Self, InvalidPath> {
        Self::from_bytes([self.as_bytes(), b"/", name].concat())
    }

    /// `folder/name`, or just `name` when there is no folder.
    pub fn in_folder(folder: Option<&Self>, name: &[u8]) -> Result<Self, InvalidPath> {
        match folder {
            Some(folder) => folder.join(name),
            None => Self::from_bytes(name.to_vec()),
        }
    }

    /// True if `self` is a folder on the way to `other`.
    pub fn is_ancestor_of(&self, other: &Self) -> bool {
        other.0.len() > self.0.len()
            && other.0.starts_with(&self.0)
            && other.0[self.0.len()] == b'/'
    }

    /// How the path is written in answers: the name itself, or percent-encoded if it is not UTF-8 or could be mistaken
    /// for one that is not. `parse` gives the same path again.
    pub fn to_text(&self) -> String {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !must_be_escaped(&self.0) => text.to_owned(),
            _ => encode(&self.0),
        }
    }

    /// The path as the tail of an S3 key. Injective: `%`, control characters and bytes that are not UTF-8 are escaped.
    pub fn to_key(&self) -> Result<String, InvalidPath> {
        let key = encode(&self.0);
        if key.len() > MAX_KEY_BYTES {
            return Err(InvalidPath("gives an S3 key that is too long".to_owned()));
        }
        Ok(key)
    }
}

impl fmt::Debug for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_text())
    }
}

fn is_fine(path: &[u8]) -> bool {
    let mut depth = 0;
    let fine_name = |name: &[u8]| {
        depth += 1;
        (1..=MAX_SEGMENT_BYTES).contains(&name.len())
            && !matches!(name, b"." | b"..")
            && !name.contains(&0)
    };
    path.len() <= MAX_PATH_BYTES && path.split(|b| *b == b'/').all(fine_name) && depth <= MAX_DEPTH
}

/// The name that a text means: the text itself, or what `to_text` escaped to get it.
fn unescape(text: &str) -> Vec<u8> {
    match escaped_in(text) {
        Some(name) => name,
        None => text.as_bytes().to_vec(),
    }
}

/// What is escaped in a text, if it is just what `to_text` would write for something that must be escaped.
fn escaped_in(text: &str) -> Option<Vec<u8>> {
    let decoded: Vec<u8> = percent_decode_str(text).collect();
    (encode(&decoded) == text && must_be_escaped(&decoded)).then_some(decoded)
}

/// True for names that are not UTF-8, and for those that look like an escaped one: a file may be called `%FF`.
fn must_be_escaped(name: &[u8]) -> bool {
    match std::str::from_utf8(name) {
        Ok(text) => text.contains('%') && escaped_in(text).is_some(),
        Err(_) => true,
    }
}

fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '%' || c.is_control() {
                let mut buffer = [0; 4];
                c.encode_utf8(&mut buffer)
                    .bytes()
                    .for_each(|b| push_escaped(&mut out, b));
            } else {
                out.push(c);
            }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|b| push_escaped(&mut out, *b));
    }
    out
}

fn push_escaped(out: &mut String, byte: u8) {
    out.push('%');
    out.push_str(&hex::encode_upper([byte]));
}

fn quoted(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    format!("{short:?}")
}

fn refuse(text: &str, problem: &str) -> Result<WorkspacePath, InvalidPath> {
    Err(InvalidPath(format!("path {} {problem}", quoted(text))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_that_leave_the_workspace_are_refused() {
        for bad in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../x",
            "a/../../x",
            "a/..",
            "a//b",
            "a/",
            "%2e%2e",
            "%2e%2e/x",
            "a/%2E%2e/b",
            "./../x",
            "/workspace/../x",
            "/workspace//etc",
            "a\0b",
            ".",
            "a/./b",
        ] {
            assert!(WorkspacePath::parse(bad).is_err(), "{bad:?}");
        }
        assert!(WorkspacePath::parse(&"n".repeat(300)).is_err());
    }

    #[test]
    fn a_leading_workspace_and_dot_slash_are_stripped() {
        for text in ["/workspace/a/b.txt", "./a/b.txt", "a/b.txt"] {
            assert_eq!(WorkspacePath::parse(text).unwrap().to_text(), "a/b.txt");
        }
        assert_eq!(WorkspacePath::parse_folder("/workspace/").unwrap(), None);
        assert_eq!(
            WorkspacePath::parse_folder("data/")
                .unwrap()
                .unwrap()
                .to_text(),
            "data"
        );
        assert!(WorkspacePath::parse_folder("/").is_err());
    }

    #[test]
    fn a_name_that_is_not_utf8_can_be_asked_for_by_the_text_it_was_listed_with() {
        let path = WorkspacePath::from_bytes(b"odd\xff %.txt".to_vec()).unwrap();
        assert_eq!(path.to_text(), "odd%FF %25.txt");
        assert_eq!(WorkspacePath::parse(&path.to_text()).unwrap(), path);
        assert_eq!(
            WorkspacePath::parse("100%.txt").unwrap().as_bytes(),
            b"100%.txt"
        );
    }

    proptest! {
        #[test]
        fn no_accepted_path_can_leave_the_workspace(text in "[a./%2eEfF\\\\~\u{0}-\u{20}é]{0,40}") {
            if let Ok(path) = WorkspacePath::parse(&text) {
                prop_assert!(path.segments().all(|s| !s.is_empty() && s != b"." && s != b".."));
                prop_assert!(!path.as_bytes().starts_with(b"/") && !path.as_bytes().contains(&0));
            }
        }

        #[test]
        fn utf8_names_are_written_as_they_are(text in "[^\u{0}/%]{1,30}") {
            prop_assume!(text != "." && text != ".." && text.len() < 255);
            prop_assert_eq!(WorkspacePath::parse(&text).unwrap().to_text(), text);
        }

        #[test]
        fn different_paths_have_different_keys(a in prop::collection::vec(1u8..=255, 1..20), b in prop::collection::vec(1u8..=255, 1..20)) {
            if let (Ok(a), Ok(b)) = (WorkspacePath::from_bytes(a), WorkspacePath::from_bytes(b)) {
                prop_assert_eq!(a == b, a.to_key().unwrap() == b.to_key().unwrap());
            }
        }
    }
}
