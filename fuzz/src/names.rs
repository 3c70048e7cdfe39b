//! File names to headers and to workspace names: one whole header, one plain name, whatever the bytes.

use cellblock::ingest::filename;
use cellblock::model::path::WorkspacePath;
use cellblock::store::attachment_header;

pub fn check(input: &[u8]) {
    check_header(input);
    let Some(name) = filename::sanitise(&String::from_utf8_lossy(input)) else {
        return;
    };
    let hostile = ['/', '\\', '\0', '\n', '\r', '\u{202e}'];
    assert!(!name.contains(hostile), "{name:?}");
    assert!(!matches!(name.as_str(), "" | "." | "..") && name.len() <= filename::MAX_NAME_BYTES);
    WorkspacePath::from_bytes(name.into_bytes()).unwrap();
}

fn check_header(input: &[u8]) {
    let header = attachment_header(input);
    let is_plain = header.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    assert!(is_plain, "{header}");
    http::HeaderValue::from_str(&header).unwrap();
    let inside = header.strip_prefix("attachment; filename=\"").unwrap();
    let (plain, rest) = inside.split_once('"').unwrap();
    assert!(!plain.contains('\\'));
    let encoded = rest.strip_prefix("; filename*=UTF-8''").unwrap();
    let breaks_out = encoded.contains(['"', ';', ' ', ',', '\\', '/']);
    assert!(!breaks_out, "{encoded}");
    let decoded: Vec<u8> = percent_encoding::percent_decode_str(encoded).collect();
    assert_eq!(
        String::from_utf8(decoded).unwrap(),
        String::from_utf8_lossy(input)
    );
}
