//! Where an object's file lies: object key → directories and file name, and back.
//! Never touches the disk and never yields a name that is empty, `.`, `..` or longer than 255 bytes.
//! Invariant: no two keys share a path, and names sort (by `Entry::sort_bytes`) in the byte order of their keys.

/// A name is closed and continued in a directory below once its escaped form has this many bytes.
/// Where it is closed depends only on the bytes before, so no other name in the same directory starts with the same bytes.
const CONTINUE_AT_BYTES: usize = 240;

pub(super) const OBJECT_PREFIX: &str = "o-";
const DIRECTORY_PREFIX: &str = "d-";
const LONG_PREFIX: &str = "l-";

/// The place of one object, relative to its bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ObjectPath {
    pub(super) directories: Vec<String>,
    pub(super) file_name: String,
}

impl ObjectPath {
    pub(super) fn of_key(key: &str) -> Self {
        let mut directories = Vec::new();
        let mut segments = key.split('/').peekable();
        loop {
            let segment = segments
                .next()
                .expect("split yields at least one segment and the loop ends at the last");
            let rest = escape_segment(segment, &mut directories);
            if segments.peek().is_none() {
                let file_name = format!("{OBJECT_PREFIX}{rest}");
                return Self {
                    directories,
                    file_name,
                };
            }
            directories.push(format!("{DIRECTORY_PREFIX}{rest}"));
        }
    }

    /// The directory of the object relative to the bucket; `.` for the bucket itself.
    pub(super) fn parent(&self) -> String {
        join_directories(&self.directories)
    }

    pub(super) fn relative(&self) -> String {
        if self.directories.is_empty() {
            return self.file_name.clone();
        }
        format!("{}/{}", self.directories.join("/"), self.file_name)
    }
}

/// Directory names as one path relative to the bucket; `.` for none.
pub(super) fn join_directories(directories: &[String]) -> String {
    if directories.is_empty() {
        return ".".to_owned();
    }
    directories.join("/")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    Object,
    /// A whole segment and its slash, or the first part of a long segment.
    Directory,
}

/// One name found in a directory of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: EntryKind,
    pub(super) name: String,
    /// The bytes this name adds to the key; for a whole segment with its slash.
    pub(super) sort_bytes: Vec<u8>,
}

impl Entry {
    /// Reads a name back; `None` for a name this module would not have made.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let (prefix, escaped) = name.split_at_checked(2)?;
        let mut sort_bytes = unescape(escaped)?;
        let is_long = escaped.len() >= CONTINUE_AT_BYTES;
        let kind = match prefix {
            OBJECT_PREFIX if !is_long => EntryKind::Object,
            LONG_PREFIX if is_long => EntryKind::Directory,
            DIRECTORY_PREFIX if !is_long => {
                sort_bytes.push(b'/');
                EntryKind::Directory
            }
            _ => return None,
        };
        Some(Self {
            kind,
            name: name.to_owned(),
            sort_bytes,
        })
    }
}

/// Escapes a segment, moves full pieces of a long one into `directories` and returns the rest.
fn escape_segment(segment: &str, directories: &mut Vec<String>) -> String {
    let mut piece = String::new();
    for byte in segment.bytes() {
        push_escaped(byte, &mut piece);
        if piece.len() >= CONTINUE_AT_BYTES {
            directories.push(format!("{LONG_PREFIX}{piece}"));
            piece.clear();
        }
    }
    piece
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

fn push_escaped(byte: u8, out: &mut String) {
    if is_plain(byte) {
        out.push(char::from(byte));
    } else {
        out.push('%');
        out.push_str(&hex::encode_upper([byte]));
    }
}

fn unescape(escaped: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let [first, tail @ ..] = rest {
        if is_plain(*first) {
            out.push(*first);
            rest = tail;
            continue;
        }
        let [b'%', high, low, tail @ ..] = rest else {
            return None;
        };
        let mut byte = [0_u8];
        hex::decode_to_slice([*high, *low], &mut byte).ok()?;
        let canonical =
            !is_plain(byte[0]) && !high.is_ascii_lowercase() && !low.is_ascii_lowercase();
        if !canonical {
            return None;
        }
        out.push(byte[0]);
        rest = tail;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rebuilds the key the way a listing does: by adding up the bytes of every name on the way.
    fn key_of_path(path: &ObjectPath) -> String {
        let names = path.directories.iter().chain([&path.file_name]);
        let bytes = names.flat_map(|name| Entry::from_name(name).unwrap().sort_bytes);
        String::from_utf8(bytes.collect()).unwrap()
    }

    fn sort_path(path: &ObjectPath) -> Vec<Vec<u8>> {
        let names = path.directories.iter().chain([&path.file_name]);
        names
            .map(|name| Entry::from_name(name).unwrap().sort_bytes)
            .collect()
    }

    fn odd_key() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            "[ab/%.!~0-]{0,12}",
            Just("a".repeat(239)),
            Just("a".repeat(240)),
            Just("é".repeat(40)),
            Just("/".to_owned()),
            Just("..".to_owned()),
            Just("%2F".to_owned()),
            any::<String>(),
        ];
        proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn every_key_can_be_read_back_from_its_path(key in odd_key()) {
            prop_assert_eq!(key_of_path(&ObjectPath::of_key(&key)), key);
        }

        #[test]
        fn names_on_disk_are_short_and_harmless(key in odd_key()) {
            let path = ObjectPath::of_key(&key);
            for name in path.directories.iter().chain([&path.file_name]) {
                prop_assert!(name.len() <= 255 && name.len() >= 2);
                prop_assert!(name != ".." && !name.contains('/') && !name.contains('\0'));
            }
        }

        #[test]
        fn different_keys_never_share_a_path(left in odd_key(), right in odd_key()) {
            let same_path = ObjectPath::of_key(&left) == ObjectPath::of_key(&right);
            prop_assert_eq!(same_path, left == right);
        }

        #[test]
        fn no_object_is_where_another_key_needs_a_directory(left in odd_key(), right in odd_key()) {
            let file = ObjectPath::of_key(&left).relative();
            let directories = ObjectPath::of_key(&right).directories;
            for depth in 1..=directories.len() {
                prop_assert_ne!(&file, &directories[..depth].join("/"));
            }
        }

        #[test]
        fn walking_in_name_order_gives_keys_in_byte_order(left in odd_key(), right in odd_key()) {
            let by_name = sort_path(&ObjectPath::of_key(&left)).cmp(&sort_path(&ObjectPath::of_key(&right)));
            prop_assert_eq!(by_name, left.as_bytes().cmp(right.as_bytes()));
        }
    }

    #[test]
    fn the_longest_key_of_slashes_stays_below_the_path_limit() {
        for key in ["/".repeat(1024), "%".repeat(1024), "é/".repeat(341)] {
            assert!(ObjectPath::of_key(&key).relative().len() < 4000);
        }
    }

    #[test]
    fn names_this_module_would_not_write_are_not_read() {
        for name in [
            "", "o", "x-a", "o-%2f", "o-%61", "o-a b", "l-short", "o-%", "d-%4",
        ] {
            assert_eq!(Entry::from_name(name), None, "{name}");
        }
    }
}
