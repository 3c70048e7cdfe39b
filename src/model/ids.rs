//! Caller-given ids, and the keys that name their session on disk, in S3 and as a container.
//! Never touches the outside world. Invariant: two different id pairs have two different keys.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const MAX_ID_CHARS: usize = 128;
/// 128 bits of SHA-256: short enough for container names, far beyond any chance of a collision.
const KEY_BYTES: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct InvalidId {
    pub field: &'static str,
    pub problem: String,
}

/// The pair of ids that owns one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionIds {
    user_id: String,
    session_id: String,
}

impl SessionIds {
    pub fn parse(user_id: &str, session_id: &str) -> Result<Self, InvalidId> {
        check_id("user_id", user_id)?;
        check_id("session_id", session_id)?;
        Ok(Self {
            user_id: user_id.to_owned(),
            session_id: session_id.to_owned(),
        })
    }

    /// The session of a dialect that has ids of its own. No caller of another dialect can name it: its user id holds a
    /// character that ids may not have.
    pub fn of_dialect(
        dialect: &'static str,
        field: &'static str,
        id: &str,
    ) -> Result<Self, InvalidId> {
        check_id(field, id)?;
        Ok(Self {
            user_id: format!("/{dialect}"),
            session_id: id.to_owned(),
        })
    }

    /// Like `of_dialect`, for sessions that several ids name together, each with the field it came from.
    pub fn of_dialect_parts(
        dialect: &'static str,
        kind: &'static str,
        parts: &[(&'static str, &str)],
    ) -> Result<Self, InvalidId> {
        let mut session_id = kind.to_owned();
        for (field, part) in parts {
            check_id(field, part)?;
            // With their lengths, so that ("a:b", "c") and ("a", "b:c") differ.
            session_id.push_str(&format!(":{}:{part}", part.len()));
        }
        Ok(Self {
            user_id: format!("/{dialect}"),
            session_id,
        })
    }

    /// Which dialect's session it is.
    pub fn dialect(&self) -> &'static str {
        match self.user_id.as_str() {
            "/threads" => "threads",
            "/sessions" => "sessions",
            "/tools" => "tools",
            _ => "v1",
        }
    }

    /// Whether using it is not enough to open it: dialects with ids of their own create their sessions.
    pub fn must_be_created(&self) -> bool {
        self.user_id.starts_with('/')
    }

    pub fn user_id(&self) -> &str {
        &self.user_id
    }

    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    pub fn key(&self) -> SessionKey {
        SessionKey {
            user_key: hash_parts(&[&self.user_id]),
            session_key: hash_parts(&[&self.user_id, &self.session_id]),
        }
    }
}

/// The name of a session wherever arbitrary Unicode is unwelcome: lower-case hex only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    pub user_key: String,
    pub session_key: String,
}

impl SessionKey {
    pub fn sandbox_name(&self) -> String {
        format!("sb_{}_{}", self.user_key, self.session_key)
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.user_key, self.session_key)
    }
}

fn check_id(field: &'static str, value: &str) -> Result<(), InvalidId> {
    let refuse = |problem: &str| {
        Err(InvalidId {
            field,
            problem: problem.to_owned(),
        })
    };
    if value.is_empty() {
        return refuse("is empty; give 1 to 128 characters");
    }
    if value.chars().count() > MAX_ID_CHARS {
        return refuse("is longer than 128 characters");
    }
    if value == "." || value == ".." {
        return refuse("may not be \".\" or \"..\"");
    }
    if let Some(bad) = value.chars().find(|c| !is_allowed_in_id(*c)) {
        return Err(InvalidId {
            field,
            problem: format!(
                "contains {:?}; any printable character but / and \\ is allowed",
                bad
            ),
        });
    }
    Ok(())
}

/// Printable: no control, no line or paragraph separators, no invisible direction marks, no unassigned specials.
fn is_allowed_in_id(c: char) -> bool {
    let invisible = matches!(c,
        '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    !(c == '/' || c == '\\' || c.is_control() || invisible)
}

/// Each part goes in with its length first, so that ("ab","c") and ("a","bc") differ.
fn hash_parts(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hex::encode(&hasher.finalize()[..KEY_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_dialects_sessions_cannot_be_named_by_other_callers() {
        let own = SessionIds::of_dialect("threads", "thread_id", "t").unwrap();
        assert!(own.must_be_created());
        assert!(SessionIds::parse(own.user_id(), "t").is_err());
        assert_ne!(own.key(), SessionIds::parse("threads", "t").unwrap().key());
        assert!(SessionIds::of_dialect("threads", "thread_id", "a/b").is_err());
        let of = |run, key| {
            SessionIds::of_dialect_parts("tools", "workflow", &[("run", run), ("key", key)])
        };
        assert_ne!(of("a:b", "c").unwrap(), of("a", "b:c").unwrap());
        assert!(of("a", "/").is_err());
    }

    #[test]
    fn ids_that_could_be_read_as_paths_or_break_a_log_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a\\b",
            "a\0b",
            "a\nb",
            "a\u{7f}",
            "a\u{202e}b",
            "a\u{2028}b",
        ] {
            let error = SessionIds::parse(bad, "s").unwrap_err();
            assert_eq!(error.field, "user_id", "{bad:?}");
            assert_eq!(SessionIds::parse("u", bad).unwrap_err().field, "session_id");
        }
        assert!(SessionIds::parse(&"é".repeat(128), "s").is_ok());
        assert!(SessionIds::parse(&"é".repeat(129), "s").is_err());
    }

    #[test]
    fn odd_but_printable_ids_are_accepted() {
        for good in ["a b", "…", "日本", "a:b", "~", "-x", "a%2f", "💡", "con"] {
            assert!(SessionIds::parse(good, good).is_ok(), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn different_id_pairs_never_share_a_key(a in ".{1,12}", b in ".{1,12}", c in ".{1,12}", d in ".{1,12}") {
            if let (Ok(one), Ok(two)) = (SessionIds::parse(&a, &b), SessionIds::parse(&c, &d)) {
                prop_assert_eq!(one == two, one.key() == two.key());
                prop_assert_eq!(one == two, one.key().session_key == two.key().session_key);
                prop_assert_eq!(a == c, one.key().user_key == two.key().user_key);
            }
        }

        #[test]
        fn moving_the_border_between_the_ids_changes_the_key(text in "[a-z]{2,10}", cut in 1usize..9, other in 1usize..9) {
            prop_assume!(cut < text.len() && other < text.len() && cut != other);
            let one = SessionIds::parse(&text[..cut], &text[cut..]).unwrap();
            let two = SessionIds::parse(&text[..other], &text[other..]).unwrap();
            prop_assert_ne!(one.key().session_key, two.key().session_key);
        }
    }
}
