//! The targets: what must hold for any bytes at all, checked without the code's own words where that can be done.
//! Each gives its outcome in a few words, which guide the search.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use cellblock::ingest::address;
use cellblock::ingest::filename;
use cellblock::kernel::CellFrame;
use cellblock::kernel::frame::{self, Assembler};
use cellblock::model::ids::SessionIds;
use cellblock::model::path::WorkspacePath;
use cellblock::policy::judge::Judge;
use cellblock::store::{Manifest, attachment_header};

use super::fuzz;

/// From docs/PROTOCOL.md, not from the code.
const PROTOCOL_DEPTH: usize = 64;
const PROTOCOL_FRAME_BYTES: usize = 1_048_576;

/// Packets as `times, length (2 bytes), bytes`, so that a short input can be a long conversation.
fn packets_in(mut input: &[u8]) -> Vec<(usize, &[u8])> {
    let mut packets = Vec::new();
    while let [times, high, low, rest @ ..] = input {
        let length = (usize::from(*high) << 8 | usize::from(*low)).min(rest.len());
        packets.push((usize::from(*times).max(1), &rest[..length]));
        input = &rest[length..];
    }
    packets
}

fn depth_of(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        serde_json::Value::Object(items) => 1 + items.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

#[test]
fn the_frame_decoder_takes_any_packets() {
    fuzz(
        "frames",
        &[
            "\0{\"op\":\"done\",\"id\":1,\"status\":\"ok\"}",
            "\u{1}",
            "\u{2}",
            "[[[[",
            "{\"x\":",
            "\"op\":",
            "\"stream\"",
            "\"died\"",
        ],
        |input| {
            let mut assembler = Assembler::default();
            let mut outcome = String::new();
            for (times, packet) in packets_in(input) {
                for _ in 0..times {
                    let taken = match assembler.push(packet) {
                        Err(error) => return format!("{outcome}{error}"),
                        Ok(None) => continue,
                        Ok(Some(taken)) => taken,
                    };
                    assert!(taken.len() <= PROTOCOL_FRAME_BYTES);
                    if let Ok(value) = serde_json::from_slice(&taken) {
                        assert!(depth_of(&value) <= PROTOCOL_DEPTH);
                    }
                    let typed = serde_json::from_slice::<CellFrame>(&taken);
                    outcome = format!(
                        "{:?} ",
                        typed.ok().map(|frame| std::mem::discriminant(&frame))
                    );
                }
            }
            outcome
        },
    );
}

#[test]
fn frames_of_any_bytes_come_out_as_they_went_in() {
    fuzz("frames", &[], |input| {
        let long = input.repeat(1 + 70_000 / input.len().max(1));
        let opening = long.iter().filter(|byte| b"[{".contains(byte)).count();
        for sent in [input, &long] {
            let mut assembler = Assembler::default();
            let mut received = Vec::new();
            for packet in frame::packets(sent).unwrap() {
                match assembler.push(&packet) {
                    Ok(frame) => received.extend(frame),
                    Err(error) => {
                        assert!(opening > frame::MAX_DEPTH, "{error}");
                        return "too deep".to_owned();
                    }
                }
            }
            assert_eq!(received, [sent.to_vec()]);
        }
        "same".to_owned()
    });
}

#[test]
fn the_path_policy_lets_no_path_out_of_the_workspace() {
    fuzz(
        "paths",
        &[
            "..",
            "../",
            "./",
            "/workspace/",
            "%2e%2e",
            "%2f",
            "%00",
            "%ff",
            "%25",
            "//",
            "\u{0}",
            "\\",
        ],
        |input| {
            if let Ok(path) = WorkspacePath::from_bytes(input.to_vec()) {
                check_path(&path);
                if let Ok(again) = WorkspacePath::parse(&path.to_text()) {
                    assert_eq!(again, path, "another file is meant");
                }
            }
            match WorkspacePath::parse(&String::from_utf8_lossy(input)) {
                Ok(path) => {
                    check_path(&path);
                    let decoded =
                        percent_encoding::percent_decode(path.as_bytes()).collect::<Vec<u8>>();
                    let climbs = decoded
                        .split(|byte| *byte == b'/')
                        .all(|segment| segment != b"..");
                    assert!(climbs || path.segments().all(|segment| segment != b".."));
                    format!("{} segments", path.segments().count())
                }
                Err(error) => error
                    .to_string()
                    .rsplit('"')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            }
        },
    );
}

fn check_path(path: &WorkspacePath) {
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

#[test]
fn different_ids_have_different_keys() {
    fuzz(
        "ids",
        &["/", "\\", ":", "..", "\u{202e}", "\u{0}", "é", "e\u{301}"],
        |input| {
            let text = String::from_utf8_lossy(input);
            let (user, session) = text.split_once('\n').unwrap_or((&text, "s"));
            let ids = match SessionIds::parse(user, session) {
                Ok(ids) => ids,
                Err(error) => return error.problem.chars().take(20).collect(),
            };
            let key = ids.key();
            for part in [&key.user_key, &key.session_key] {
                let is_hex = part
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                assert!(is_hex && part.len() == 32, "{part}");
            }
            assert_eq!((ids.user_id(), ids.session_id()), (user, session));
            // The same characters, cut elsewhere or the other way round.
            let glued = format!("{user}{session}");
            for (cut, _) in glued.char_indices().skip(1) {
                let other = SessionIds::parse(&glued[..cut], &glued[cut..]);
                if let Ok(other) = other.filter_ids(&ids) {
                    assert_ne!(other.key(), key, "{user:?} {session:?}");
                }
            }
            format!(
                "{} and {} characters",
                user.chars().count(),
                session.chars().count()
            )
        },
    );
}

/// Leaves out the very same ids.
trait FilterIds {
    fn filter_ids(self, same: &SessionIds) -> Result<SessionIds, ()>;
}

impl<E> FilterIds for Result<SessionIds, E> {
    fn filter_ids(self, same: &SessionIds) -> Result<SessionIds, ()> {
        self.ok().filter(|ids| ids != same).ok_or(())
    }
}

#[test]
fn any_file_name_makes_one_whole_header() {
    fuzz(
        "names",
        &[
            "\r\n",
            "\"",
            "\\",
            ";",
            "filename=",
            "%0d%0a",
            "\u{202e}",
            "../",
            ".html",
        ],
        |input| {
            let header = attachment_header(input);
            assert!(
                header.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
                "{header}"
            );
            let value = reqwest::header::HeaderValue::from_str(&header);
            assert!(value.is_ok(), "{header}");
            let inside = header.strip_prefix("attachment; filename=\"").unwrap();
            let (plain, rest) = inside.split_once('"').unwrap();
            assert!(!plain.contains('\\'));
            let encoded = rest.strip_prefix("; filename*=UTF-8''").unwrap();
            assert!(
                !encoded.contains(['"', ';', ' ', ',', '\\', '/']),
                "{encoded}"
            );
            let decoded: Vec<u8> = percent_encoding::percent_decode_str(encoded).collect();
            assert_eq!(
                String::from_utf8(decoded).unwrap(),
                String::from_utf8_lossy(input)
            );
            match filename::sanitise(&String::from_utf8_lossy(input)) {
                Some(name) => {
                    assert!(
                        !name.contains(['/', '\\', '\0', '\n', '\r', '\u{202e}']),
                        "{name:?}"
                    );
                    assert!(
                        !matches!(name.as_str(), "" | "." | "..")
                            && name.len() <= filename::MAX_NAME_BYTES
                    );
                    WorkspacePath::from_bytes(name.clone().into_bytes()).unwrap();
                    format!("{} bytes", name.len())
                }
                None => "no name".to_owned(),
            }
        },
    );
}

/// What the standard library says of an address, where it has something to say.
fn is_surely_closed(ip: Ipv4Addr) -> bool {
    ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_broadcast()
        || ip.is_documentation()
        || ip.is_multicast()
        || ip.is_unspecified()
        || ip.octets()[0] == 0
        || ip.octets()[0] >= 240
}

fn check_address(ip: IpAddr) -> String {
    let open = address::may_fetch_public(ip);
    match ip {
        IpAddr::V4(ip) => {
            assert!(!(open && is_surely_closed(ip)), "{ip}");
            let mapped = IpAddr::V6(ip.to_ipv6_mapped());
            assert_eq!(address::may_fetch_public(mapped), open, "{mapped}");
            let [a, b, c, d] = ip.octets();
            let (high, low) = (
                u16::from(a) << 8 | u16::from(b),
                u16::from(c) << 8 | u16::from(d),
            );
            for wrapped in [
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 0),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
            ] {
                assert!(!address::may_fetch_public(wrapped.into()), "{wrapped}");
            }
        }
        IpAddr::V6(ip) => {
            let closed = ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_unique_local()
                || ip.is_unicast_link_local();
            assert!(!(open && closed), "{ip}");
            let global = ip.segments()[0] & 0xe000 == 0x2000 || ip.to_ipv4_mapped().is_some();
            assert!(!open || global, "{ip}");
        }
    }
    if address::may_fetch_public_or_private(ip) {
        let link_local = match ip.to_canonical() {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_unspecified() || ip.is_multicast(),
            IpAddr::V6(ip) => {
                ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast()
            }
        };
        assert!(!link_local, "{ip}");
    }
    format!("{open} {} {:?}", ip.is_ipv4(), address::is_private(ip))
}

#[test]
fn the_address_policy_opens_no_special_address() {
    fuzz(
        "addresses",
        &[
            "127.0.0.1",
            "0x7f",
            "[::ffff:",
            "169.254.169.254",
            "64:ff9b::",
            "2002:",
            ".",
        ],
        |input| {
            if let Ok(octets) = <[u8; 4]>::try_from(input) {
                return check_address(octets.into());
            }
            if let Ok(octets) = <[u8; 16]>::try_from(input) {
                return check_address(octets.into());
            }
            // As text, as a URL would have it.
            let text = format!("http://{}/", String::from_utf8_lossy(input));
            match url::Url::parse(&text)
                .ok()
                .and_then(|url| url.host().map(|host| host.to_owned()))
            {
                Some(url::Host::Ipv4(ip)) => check_address(ip.into()),
                Some(url::Host::Ipv6(ip)) => check_address(ip.into()),
                Some(url::Host::Domain(_)) => "a name".to_owned(),
                None => "no URL".to_owned(),
            }
        },
    );
}

#[test]
fn the_command_policy_lets_no_forbidden_program_start() {
    fuzz(
        "commands",
        &[
            "rm x",
            ";",
            "|",
            "&&",
            "$(",
            ")",
            "`",
            "\n",
            "'",
            "\"",
            "<<",
            "find . -exec ",
            "xargs ",
            "if ",
            "then ",
            "fi",
            "do ",
            "done",
            "env ",
            "awk ",
            "sed ",
        ],
        |input| {
            let line = String::from_utf8_lossy(input).into_owned();
            static JUDGE: LazyLock<Judge> = LazyLock::new(crate::command_policy::judge);
            let policy = &*JUDGE;
            let began = Instant::now();
            let verdict = policy.check(&line);
            assert!(
                began.elapsed() < Duration::from_secs(5),
                "{:?}",
                began.elapsed()
            );
            assert!(policy.check(&format!("rm x\n{line}")).is_err(), "{line:?}");
            if let Err(refused) = verdict {
                return refused.reason.chars().take(30).collect();
            }
            // What was whole before is still whole, and what comes on a line of its own is seen.
            let goes_on = line.ends_with('\\') || line.contains("<<");
            if !goes_on {
                for more in [
                    "rm x",
                    "$(rm x)",
                    "echo `rm x`",
                    "sudo ls",
                    "/bin/rm x",
                    "find . -exec rm {} ;",
                ] {
                    assert!(
                        policy.check(&format!("{line}\n{more}")).is_err(),
                        "{line:?} {more}"
                    );
                }
            }
            format!("allowed, {} words", line.split_whitespace().count())
        },
    );
}

#[test]
fn the_manifest_parser_gives_valid_paths_or_nothing() {
    fuzz(
        "manifests",
        &[
            "\"path\":",
            "%2e%2e",
            "../x",
            "%00",
            "\"version\":1",
            "null",
            "-1",
            "1e99",
            "\"size_bytes\":",
        ],
        |input| {
            let Some(manifest) = Manifest::from_json(input) else {
                return "no manifest".to_owned();
            };
            for path in manifest.entries.keys() {
                check_path(path);
            }
            let again =
                Manifest::from_json(&manifest.to_json()).expect("what was written can be read");
            let storable = |manifest: &Manifest| -> Vec<WorkspacePath> {
                let paths = manifest.entries.keys();
                paths
                    .filter(|path| path.to_key().is_ok())
                    .cloned()
                    .collect()
            };
            assert_eq!(storable(&again), storable(&manifest));
            format!("{} files", manifest.entries.len())
        },
    );
}
