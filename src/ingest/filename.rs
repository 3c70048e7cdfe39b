//! File names for downloads: picks the best name that a response offers and makes it safe to create.
//! It never touches the disk and never decides about clashes, it only counts names up.
//! Invariant: a name is one visible path segment of 1 to 200 bytes, with no separator, control or bidi character.

use url::Url;

use super::disposition::name_in_disposition;

/// Leaves room below the usual 255 for what callers add.
pub const MAX_NAME_BYTES: usize = 200;
const FALLBACK_NAME: &str = "download";
/// A longer "extension" is a sentence with a dot in it.
const MAX_EXTENSION_BYTES: usize = 16;

const EXTENSIONS: [(&str, &str); 26] = [
    ("application/gzip", ".gz"),
    ("application/json", ".json"),
    ("application/msword", ".doc"),
    ("application/pdf", ".pdf"),
    ("application/vnd.apache.parquet", ".parquet"),
    ("application/vnd.ms-excel", ".xls"),
    (
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        ".pptx",
    ),
    (
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        ".xlsx",
    ),
    (
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ".docx",
    ),
    ("application/x-ndjson", ".ndjson"),
    ("application/xml", ".xml"),
    ("application/zip", ".zip"),
    ("audio/mpeg", ".mp3"),
    ("audio/wav", ".wav"),
    ("image/gif", ".gif"),
    ("image/jpeg", ".jpg"),
    ("image/png", ".png"),
    ("image/svg+xml", ".svg"),
    ("image/webp", ".webp"),
    ("text/css", ".css"),
    ("text/csv", ".csv"),
    ("text/html", ".html"),
    ("text/markdown", ".md"),
    ("text/plain", ".txt"),
    ("text/tab-separated-values", ".tsv"),
    ("video/mp4", ".mp4"),
];

/// What a response says about its name. `urls` has the URL that answered first, then the one that was asked for.
#[derive(Debug, Default)]
pub struct NameSources<'a> {
    pub content_disposition: Option<&'a [u8]>,
    pub urls: &'a [&'a Url],
    pub content_type: Option<&'a str>,
}

/// The first source that leaves something after sanitising: header, disposition in a query, last path segment.
pub fn suggested_name(sources: &NameSources<'_>) -> String {
    let header = sources.content_disposition.and_then(name_in_disposition);
    let queries = sources.urls.iter().filter_map(|url| name_in_query(url));
    let segments = sources.urls.iter().filter_map(|url| name_in_path(url));
    let offered = header.into_iter().chain(queries).chain(segments);
    let chosen = offered.filter_map(|name| sanitise(&name)).next();
    chosen.unwrap_or_else(|| format!("{FALLBACK_NAME}{}", extension_for(sources.content_type)))
}

/// `name (1).ext`, for a sanitised name that is taken; still within the limit.
pub fn numbered(name: &str, number: u32) -> String {
    let (stem, extension) = split_extension(name);
    let ending = format!(" ({number}){extension}");
    format!(
        "{}{ending}",
        cut(stem, MAX_NAME_BYTES.saturating_sub(ending.len()))
    )
}

/// One safe path segment, or `None` where nothing is left. Leading dots go, because a caller does not expect a
/// download to become a hidden file such as `.bashrc`.
pub fn sanitise(name: &str) -> Option<String> {
    let visible: String = name
        .chars()
        .filter(|character| !is_unwanted(*character))
        .collect();
    let mut segments = visible.rsplit(['/', '\\']).map(trim);
    let kept = segments
        .find(|segment| !segment.is_empty())?
        .replace('\u{fffd}', "_");
    if kept.len() <= MAX_NAME_BYTES {
        return Some(kept);
    }
    let (stem, extension) = split_extension(&kept);
    let shorter = cut(stem, MAX_NAME_BYTES - extension.len());
    Some(trim(&format!("{shorter}{extension}")).to_owned())
}

fn name_in_query(url: &Url) -> Option<String> {
    let is_disposition = |key: &str| {
        key.eq_ignore_ascii_case("content-disposition")
            || key.eq_ignore_ascii_case("response-content-disposition")
    };
    let mut pairs = url.query_pairs().filter(|(key, _)| is_disposition(key));
    pairs.find_map(|(_, value)| name_in_disposition(value.as_bytes()))
}

fn name_in_path(url: &Url) -> Option<String> {
    let segment = url.path_segments()?.next_back()?;
    Some(
        percent_encoding::percent_decode_str(segment)
            .decode_utf8_lossy()
            .into_owned(),
    )
}

fn extension_for(content_type: Option<&str>) -> &'static str {
    let essence = content_type
        .and_then(|value| value.split(';').next())
        .unwrap_or_default()
        .trim();
    let known = EXTENSIONS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(essence));
    known.map_or("", |(_, extension)| extension)
}

/// The extension keeps its dot; `.tar.gz` and its like count as one.
fn split_extension(name: &str) -> (&str, &str) {
    let Some(last) = extension_start(name) else {
        return (name, "");
    };
    let before_tar = last.checked_sub(".tar".len()).filter(|start| *start > 0);
    let is_tar = |start: &usize| {
        name.get(*start..last)
            .is_some_and(|part| part.eq_ignore_ascii_case(".tar"))
    };
    name.split_at(before_tar.filter(is_tar).unwrap_or(last))
}

fn extension_start(name: &str) -> Option<usize> {
    let start = name.rfind('.').filter(|start| *start > 0)?;
    let letters = &name[start + 1..];
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'+');
    let plausible = !letters.is_empty()
        && letters.len() <= MAX_EXTENSION_BYTES
        && letters.bytes().all(is_letter);
    plausible.then_some(start)
}

fn cut(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

fn trim(segment: &str) -> &str {
    segment.trim_matches(|character: char| character == '.' || character.is_whitespace())
}

/// Control characters, and those that change how a name looks without being seen. The zero-width joiners stay:
/// Persian and emoji need them.
fn is_unwanted(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name_for(disposition: &str, url: &str, content_type: &str) -> String {
        suggested_name(&NameSources {
            content_disposition: Some(disposition.as_bytes()).filter(|value| !value.is_empty()),
            urls: &[&Url::parse(url).unwrap()],
            content_type: Some(content_type),
        })
    }

    #[test]
    fn the_header_wins_over_the_query_and_the_query_over_the_path() {
        let url = "https://h.example/path.bin?Content-Disposition=filename%3D%22query.jpg%22";
        assert_eq!(
            name_for("attachment; filename=header.txt", url, ""),
            "header.txt"
        );
        assert_eq!(name_for("attachment", url, ""), "query.jpg");
        assert_eq!(
            name_for("", "https://h.example/a/path%20name.bin?x=1", ""),
            "path name.bin"
        );
        let amazon = "https://h.example/k?response-content-disposition=attachment%3B%20filename%2A%3DUTF-8%27%27%25C3%25A9.txt";
        assert_eq!(name_for("", amazon, ""), "é.txt");
        assert_eq!(
            name_for(
                "",
                "https://h.example/k.pdf?Content-Disposition=attachment",
                ""
            ),
            "k.pdf"
        );
    }

    #[test]
    fn a_source_that_sanitises_to_nothing_is_passed_over() {
        assert_eq!(
            name_for(
                "attachment; filename=\"..\"",
                "https://h.example/real.txt",
                ""
            ),
            "real.txt"
        );
        assert_eq!(
            name_for(
                "attachment; filename=\"/\"",
                "https://h.example/%2e%2e%2f",
                "text/csv"
            ),
            "download.csv"
        );
    }

    #[test]
    fn only_a_name_from_nothing_gets_an_extension_from_the_content_type() {
        assert_eq!(
            name_for("", "https://h.example/", "text/csv; charset=utf-8"),
            "download.csv"
        );
        assert_eq!(
            name_for("", "https://h.example/", "TEXT/HTML"),
            "download.html"
        );
        assert_eq!(name_for("", "https://h.example/", "x/unknown"), "download");
        assert_eq!(name_for("", "https://h.example/data", "text/csv"), "data");
    }

    #[test]
    fn the_url_that_was_asked_for_helps_out_where_the_last_one_has_no_name() {
        let last = Url::parse("https://cdn.example/").unwrap();
        let asked = Url::parse("https://h.example/report.csv").unwrap();
        let sources = NameSources {
            urls: &[&last, &asked],
            ..NameSources::default()
        };
        assert_eq!(suggested_name(&sources), "report.csv");
    }

    #[test]
    fn hostile_names_become_one_plain_segment() {
        let table = [
            ("../../etc/passwd", "passwd"),
            ("..\\..\\windows\\system.ini", "system.ini"),
            ("/etc/cron.d/", "cron.d"),
            ("a/..", "a"),
            (".bashrc", "bashrc"),
            ("...hidden.", "hidden"),
            ("  spaced name .txt  ", "spaced name .txt"),
            ("line\r\nX-Header: 1.txt", "lineX-Header: 1.txt"),
            ("nul\0byte.txt", "nulbyte.txt"),
            ("gpj.\u{202e}exe.jpg", "gpj.exe.jpg"),
            ("\u{202e}\u{2066}", ""),
            ("broken\u{fffd}.txt", "broken_.txt"),
            ("-rf", "-rf"),
            ("\"quoted\".txt", "\"quoted\".txt"),
            ("日本語.csv", "日本語.csv"),
            (".", ""),
            ("..", ""),
            ("/", ""),
            (" . ", ""),
            ("", ""),
        ];
        for (hostile, expected) in table {
            assert_eq!(
                sanitise(hostile).unwrap_or_default(),
                expected,
                "{hostile:?}"
            );
        }
    }

    #[test]
    fn a_long_name_loses_its_middle_and_keeps_its_extension() {
        let name = sanitise(&format!("{}.tar.gz", "ä".repeat(300))).unwrap();
        assert!(name.len() <= MAX_NAME_BYTES && name.len() >= MAX_NAME_BYTES - 1);
        assert!(name.ends_with("ä.tar.gz"));
        assert_eq!(
            sanitise(&format!("x.{}", "y".repeat(500))).unwrap().len(),
            MAX_NAME_BYTES
        );
    }

    #[test]
    fn numbers_go_before_the_extension() {
        assert_eq!(numbered("name.ext", 1), "name (1).ext");
        assert_eq!(numbered("name.tar.gz", 2), "name (2).tar.gz");
        assert_eq!(numbered("NAME.TAR.XZ", 2), "NAME (2).TAR.XZ");
        assert_eq!(numbered("tar.gz", 1), "tar (1).gz");
        assert_eq!(numbered("v1.2 of the report", 3), "v1.2 of the report (3)");
        assert_eq!(numbered("Makefile", 12), "Makefile (12)");
    }

    fn is_safe(name: &str) -> bool {
        !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && !name.starts_with('.')
            && !name.contains(['/', '\\'])
            && !name.chars().any(is_unwanted)
    }

    proptest! {
        #[test]
        fn a_suggested_name_is_always_safe(
            disposition in proptest::collection::vec(any::<u8>(), 0..400),
            path in "(%[0-9a-fA-F]{2}|[./\\\\ -~]|\\PC){0,300}",
            query in "\\PC{0,80}",
            content_type in "\\PC{0,30}",
        ) {
            let mut url = Url::parse("https://h.example/").unwrap();
            url.set_path(&path);
            url.query_pairs_mut().append_pair("Content-Disposition", &format!("filename={query}"));
            let name = suggested_name(&NameSources {
                content_disposition: Some(&disposition),
                urls: &[&url],
                content_type: Some(&content_type),
            });
            prop_assert!(is_safe(&name), "{name:?}");
        }

        #[test]
        fn sanitising_twice_changes_nothing(name in any::<String>(), long in "[ .a-zé]{150,400}") {
            for name in [name, long] {
                if let Some(once) = sanitise(&name) {
                    prop_assert!(is_safe(&once), "{once:?}");
                    prop_assert_eq!(sanitise(&once), Some(once));
                }
            }
        }

        #[test]
        fn numbered_names_are_safe_and_differ(name in "\\PC{1,300}(\\.tar)?(\\.[a-z]{1,18})?", number in 1u32..) {
            if let Some(name) = sanitise(&name) {
                let counted = numbered(&name, number);
                prop_assert!(is_safe(&counted), "{counted:?}");
                prop_assert_ne!(&counted, &name);
                prop_assert_ne!(counted, numbered(&name, number - 1));
            }
        }
    }
}
