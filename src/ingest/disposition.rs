//! Reads the file name out of a `Content-Disposition` value (RFC 6266, RFC 8187), however broken the value is.
//! It never makes a name safe: that is `filename`'s work.
//! Invariant: every input gives a name or none, in time linear in its length.

use percent_encoding::percent_decode_str;

/// The name that the value asks for. A well-formed `filename*` wins over `filename`; a broken one comes last.
pub(super) fn name_in_disposition(value: &[u8]) -> Option<String> {
    let value = decode_header(value);
    let parameters = parameters(&value);
    let first = |wanted: &str| {
        let found = parameters.iter().find(|(name, _)| name == wanted);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    };
    let extended = first("filename*");
    extended
        .and_then(decode_extended)
        .or_else(|| first("filename").map(str::to_owned))
        .or_else(|| extended.map(decode_broken_extended))
}

/// Header bytes are UTF-8 in practice and ISO-8859-1 by the old rule.
fn decode_header(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) => text.to_owned(),
        Err(_) => decode_latin1(value),
    }
}

fn decode_latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// All `name=value` parts, names in lower case. The disposition type has no `=` and drops out by that; some services
/// leave it away.
fn parameters(value: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = value;
    while !rest.is_empty() {
        let end = rest.find(['=', ';']).unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        let Some(tail) = tail.strip_prefix('=') else {
            rest = tail.strip_prefix(';').unwrap_or_default();
            continue;
        };
        let (parameter, tail) = parameter_value(tail.trim_start());
        found.push((name.trim().to_ascii_lowercase(), parameter));
        rest = tail;
    }
    found
}

/// Splits a value from what follows its `;`. A quoted string without its closing quote runs to the end.
fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let (token, rest) = text.split_once(';').unwrap_or((text, ""));
        return (token.trim().to_owned(), rest);
    };
    let mut unquoted = String::new();
    let mut characters = quoted.char_indices();
    while let Some((position, character)) = characters.next() {
        match character {
            '"' => {
                let after = &quoted[position + 1..];
                return (unquoted, after.split_once(';').map_or("", |(_, rest)| rest));
            }
            '\\' => unquoted.extend(characters.next().map(|(_, escaped)| escaped)),
            other => unquoted.push(other),
        }
    }
    (unquoted, "")
}

/// `charset'language'percent-encoded`, only where all of it is as RFC 8187 has it.
fn decode_extended(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_language, encoded) = rest.split_once('\'')?;
    let bytes = percent_decode_str(encoded);
    let name = match charset.trim().to_ascii_lowercase().as_str() {
        "utf-8" => bytes.decode_utf8().ok()?.into_owned(),
        "iso-8859-1" => decode_latin1(&bytes.collect::<Vec<_>>()),
        _ => return None,
    };
    Some(name).filter(|name| !name.is_empty())
}

fn decode_broken_extended(value: &str) -> String {
    let encoded = value.rsplit('\'').next().unwrap_or(value);
    percent_decode_str(encoded).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read_as_the_standards_say() {
        let table: [(&[u8], Option<&str>); 29] = [
            (b"attachment; filename=report.csv", Some("report.csv")),
            (
                b"attachment; filename=\"report 1.csv\"",
                Some("report 1.csv"),
            ),
            (
                b"ATTACHMENT;FILENAME = \"a;b=c.csv\" ; size=3",
                Some("a;b=c.csv"),
            ),
            (b"filename=\"x.jpg\"", Some("x.jpg")),
            (
                b"inline; filename=\"say \\\"hi\\\" \\\\ now.txt\"",
                Some("say \"hi\" \\ now.txt"),
            ),
            (
                b"attachment; filename*=UTF-8''na%C3%AFve%20file.txt",
                Some("naïve file.txt"),
            ),
            (
                b"attachment; filename*=utf-8'en'%e2%82%ac%20rates.txt",
                Some("€ rates.txt"),
            ),
            (
                b"attachment; filename*=ISO-8859-1''na%EFve.txt",
                Some("naïve.txt"),
            ),
            (
                b"attachment; filename=plain.txt; filename*=UTF-8''b%C3%A9.txt",
                Some("bé.txt"),
            ),
            (
                b"attachment; filename*=UTF-8''b%C3%A9.txt; filename=plain.txt",
                Some("bé.txt"),
            ),
            (
                b"attachment; filename*=\"UTF-8''quoted.txt\"",
                Some("quoted.txt"),
            ),
            (
                b"attachment; filename=plain.txt; filename*=UTF-8''%FF%FE",
                Some("plain.txt"),
            ),
            (
                b"attachment; filename=plain.txt; filename*=KOI8-R''%C1",
                Some("plain.txt"),
            ),
            (
                b"attachment; filename=plain.txt; filename*=nonsense",
                Some("plain.txt"),
            ),
            (b"attachment; filename*=nonsense.txt", Some("nonsense.txt")),
            (b"attachment; filename*=UTF-8''", Some("")),
            (b"attachment; filename=\"100%25.txt\"", Some("100%25.txt")),
            (
                b"attachment; filename=first.txt; filename=second.txt",
                Some("first.txt"),
            ),
            (
                b"attachment; filename=\"never closed.txt",
                Some("never closed.txt"),
            ),
            (
                b"attachment; filename=\"ends in escape\\",
                Some("ends in escape"),
            ),
            (
                "attachment; filename=\"grüße.txt\"".as_bytes(),
                Some("grüße.txt"),
            ),
            (
                b"attachment; filename=\"gr\xfc\xdfe.txt\"",
                Some("grüße.txt"),
            ),
            (b"attachment; xfilename=no.txt", None),
            (b"attachment; filename=", None),
            (b"attachment; filename=\"\"", None),
            (b"attachment", None),
            (b";;;===;;;", None),
            (b"=filename", None),
            (b"", None),
        ];
        for (value, expected) in table {
            let found = name_in_disposition(value);
            assert_eq!(
                found.as_deref(),
                expected,
                "{}",
                String::from_utf8_lossy(value)
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_at_all_are_survived(value in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = name_in_disposition(&value);
        }

        #[test]
        fn a_quoted_name_comes_back_unchanged(name in "[^\\x00-\\x1f]{1,60}") {
            let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
            let value = format!("attachment; filename=\"{quoted}\"; size=1");
            prop_assert_eq!(name_in_disposition(value.as_bytes()), Some(name));
        }
    }
}
