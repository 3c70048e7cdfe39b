//! How deep JSON is nested, seen from its bytes before anybody parses it.
//! Never judges whether it is JSON at all. Invariant: what it calls shallow cannot make a parser descend deeper.

/// Whether brackets stand within each other more than `limit` deep anywhere, strings aside.
pub fn is_deeper_than(limit: usize, json: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > limit {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brackets_outside_of_strings_count() {
        assert!(!is_deeper_than(2, br#"[{"a":"[[[[\"[[["},[1],[2]]"#));
        assert!(is_deeper_than(2, b"[[[1]]]"));
        assert!(is_deeper_than(1, br#"{"\\":{"#));
    }
}
