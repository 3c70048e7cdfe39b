//! The path policy: no text and no bytes name a place outside the workspace, and a name means one file.

use cellblock::model::path::WorkspacePath;

pub fn check(input: &[u8]) {
    if let Ok(path) = WorkspacePath::from_bytes(input.to_vec()) {
        check_path(&path);
        if let Ok(again) = WorkspacePath::parse(&path.to_text()) {
            assert_eq!(again, path, "another file is meant");
        }
    }
    if let Ok(path) = WorkspacePath::parse(&String::from_utf8_lossy(input)) {
        check_path(&path);
        let decoded: Vec<u8> = percent_encoding::percent_decode(path.as_bytes()).collect();
        let climbs = decoded
            .split(|byte| *byte == b'/')
            .any(|segment| segment == b"..");
        assert!(!climbs || path.segments().all(|segment| segment != b".."));
    }
}

pub fn check_path(path: &WorkspacePath) {
    let bytes = path.as_bytes();
    assert!(!bytes.starts_with(b"/") && !bytes.contains(&0));
    for segment in path.segments() {
        assert!(!matches!(segment, b"" | b"." | b"..") && segment.len() <= 255);
    }
    if let Ok(key) = path.to_key() {
        let decoded: Vec<u8> = percent_encoding::percent_decode_str(&key).collect();
        assert_eq!(decoded, bytes, "the key names another path");
        assert!(!key.chars().any(char::is_control));
    }
}
