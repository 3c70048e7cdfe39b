//! Ids to keys: different id pairs never share a key, however their characters are cut.

use cellblock::model::ids::SessionIds;

pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (user, session) = text.split_once('\n').unwrap_or((&text, "s"));
    let Ok(ids) = SessionIds::parse(user, session) else {
        return;
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
        let other = SessionIds::parse(&glued[..cut], &glued[cut..]).ok();
        if let Some(other) = other.filter(|other| *other != ids) {
            assert_ne!(other.key(), key, "{user:?} {session:?}");
        }
    }
}
