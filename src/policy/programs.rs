//! Programs that start others, or that have a language in which to: what of their arguments is looked at.
//! Pure. Invariant: a program that another one is told to start is judged like any other.

use super::words::Literal;
use super::{Refused, Verdict};

/// They run the program that is their first argument after options and settings.
const STARTERS: &[&str] = &[
    "env", "xargs", "nice", "nohup", "timeout", "stdbuf", "setsid", "command", "time",
];
const FIND_STARTS: &[&str] = &["-exec", "-execdir", "-ok", "-okdir"];
/// Tests of find that take one argument, which may then be anything.
const FIND_VALUES: &[&str] = &[
    "-name",
    "-iname",
    "-path",
    "-ipath",
    "-wholename",
    "-iwholename",
    "-regex",
    "-iregex",
    "-type",
    "-size",
    "-newer",
    "-mtime",
    "-mmin",
    "-atime",
    "-amin",
    "-ctime",
    "-cmin",
    "-maxdepth",
    "-mindepth",
    "-perm",
    "-user",
    "-group",
    "-printf",
];

/// `arguments` holds None where an argument is not plain. `may_start` judges another program.
pub fn check(
    program: &str,
    arguments: &[Option<Literal>],
    may_start: &dyn Fn(&str) -> Verdict,
) -> Verdict {
    match program {
        "find" => find(arguments, may_start),
        "awk" | "gawk" | "mawk" => awk(arguments),
        "sed" => sed(arguments),
        "sort" => sort(arguments),
        starter if STARTERS.contains(&starter) => started(starter, arguments, may_start),
        _ => Ok(()),
    }
}

/// find starts programs with -exec and its like. An argument that is not plain might become one of these.
fn find(arguments: &[Option<Literal>], may_start: &dyn Fn(&str) -> Verdict) -> Verdict {
    let mut previous = "";
    let mut index = 0;
    while index < arguments.len() {
        let Some(Literal(word)) = &arguments[index] else {
            if FIND_VALUES.contains(&previous) {
                index += 1;
                continue;
            }
            return Err(Refused::because(
                "find: its arguments must be plain words, but for what -name and its like look for",
            ));
        };
        if FIND_STARTS.contains(&word.as_str()) {
            match arguments.get(index + 1) {
                Some(Some(Literal(program))) => may_start(program)?,
                _ => {
                    return Err(Refused::because(format!(
                        "find: {word} needs a plain program name"
                    )));
                }
            }
        }
        previous = word;
        index += 1;
    }
    Ok(())
}

/// The first argument that is neither an option nor a setting is what they start.
fn started(
    starter: &str,
    arguments: &[Option<Literal>],
    may_start: &dyn Fn(&str) -> Verdict,
) -> Verdict {
    for argument in arguments {
        let Some(Literal(word)) = argument else {
            return Err(Refused::because(format!(
                "{starter}: what it starts must be a plain word"
            )));
        };
        let is_number = word
            .trim_end_matches(['s', 'm', 'h', 'd'])
            .parse::<f64>()
            .is_ok();
        if word.starts_with('-') || word.contains('=') || is_number {
            continue;
        }
        return may_start(word);
    }
    Ok(())
}

fn sort(arguments: &[Option<Literal>]) -> Verdict {
    let starts = |word: &String| word.starts_with("--comp");
    if arguments.iter().flatten().any(|Literal(word)| starts(word)) {
        return Err(Refused::because(
            "sort: --compress-program starts another program",
        ));
    }
    Ok(())
}

/// awk starts programs with system(), with a pipe, and with getline from a pipe.
fn awk(arguments: &[Option<Literal>]) -> Verdict {
    for Literal(text) in arguments.iter().flatten() {
        let code = without_strings_and_patterns(text);
        if code.contains("system") {
            return Err(Refused::because("awk: system() starts another program"));
        }
        if code.contains('@') {
            return Err(Refused::because(
                "awk: @ calls a function by a name that is not known yet, or loads another program",
            ));
        }
        if code.replace("||", "  ").contains('|') {
            return Err(Refused::because(
                "awk: a pipe inside a program starts another program",
            ));
        }
    }
    Ok(())
}

/// An awk program with its strings and regular expressions blanked out.
fn without_strings_and_patterns(text: &str) -> String {
    let mut code = String::new();
    let mut characters = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = characters.next() {
        // After a value a slash divides, anywhere else it opens a pattern.
        let opens_pattern =
            c == '/' && !(before.is_alphanumeric() || matches!(before, '_' | ')' | ']' | '$'));
        if c == '"' || opens_pattern {
            let mut in_class = false;
            while let Some(inner) = characters.next() {
                match inner {
                    '\\' => _ = characters.next(),
                    '[' if opens_pattern => in_class = true,
                    ']' if opens_pattern => in_class = false,
                    inner if inner == c && !in_class => break,
                    '\n' => break,
                    _ => {}
                }
            }
            // A string in the place of a value: a slash after it divides.
            before = ')';
            code.push(' ');
            continue;
        }
        if !c.is_whitespace() {
            before = c;
        }
        code.push(c);
    }
    code
}

/// sed starts programs with the command `e` and with the flag `e` of `s`.
fn sed(arguments: &[Option<Literal>]) -> Verdict {
    let mut arguments = arguments.iter().flatten().map(|Literal(word)| &**word);
    let mut script_seen = false;
    while let Some(word) = arguments.next() {
        let script = match sed_option(word) {
            SedOption::Script("") => arguments.next(),
            SedOption::Script(script) => Some(script),
            SedOption::Other => continue,
            SedOption::None if script_seen => continue,
            SedOption::None => Some(word),
        };
        script_seen = true;
        if script.is_some_and(sed_starts_something) {
            return Err(Refused::because(
                "sed: its e command starts another program",
            ));
        }
    }
    Ok(())
}

enum SedOption<'w> {
    /// `-e` or `--expression`, with what stands behind it in the same word.
    Script(&'w str),
    Other,
    None,
}

/// Short options may stand together (`-ne`), long ones may be cut short (`--expr=…`).
fn sed_option(word: &str) -> SedOption<'_> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').unwrap_or((long, ""));
        return match !name.is_empty() && "expression".starts_with(name) {
            true => SedOption::Script(value),
            false => SedOption::Other,
        };
    }
    let Some(short) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
        return SedOption::None;
    };
    // Behind these the word goes on with their own value.
    match short.find(['e', 'i', 'f', 'l']) {
        Some(at) if short[at..].starts_with('e') => SedOption::Script(&short[at + 1..]),
        _ => SedOption::Other,
    }
}

fn sed_starts_something(script: &str) -> bool {
    let characters: Vec<char> = script.chars().collect();
    let mut at = 0;
    while at < characters.len() {
        at = skip_addresses(&characters, at);
        let Some(&command) = characters.get(at) else {
            return false;
        };
        at += 1;
        match command {
            'e' => return true,
            's' | 'y' => {
                let Some(&delimiter) = characters.get(at) else {
                    return false;
                };
                at = skip_part(&characters, at + 1, delimiter);
                at = skip_part(&characters, at, delimiter);
                while let Some(&flag) = characters.get(at) {
                    match flag {
                        'e' if command == 's' => return true,
                        ';' | '\n' | '}' => break,
                        'w' => at = skip_line(&characters, at),
                        _ => {}
                    }
                    at += 1;
                }
            }
            // The rest of the line is a text, a file name or a label.
            'a' | 'i' | 'c' | 'r' | 'R' | 'w' | 'W' | '#' => at = skip_line(&characters, at),
            _ => {}
        }
    }
    false
}

fn skip_addresses(characters: &[char], mut at: usize) -> usize {
    while let Some(&c) = characters.get(at) {
        match c {
            '/' => at = skip_part(characters, at + 1, '/'),
            '\\' => {
                let Some(&delimiter) = characters.get(at + 1) else {
                    return at + 1;
                };
                at = skip_part(characters, at + 2, delimiter);
            }
            c if c.is_whitespace()
                || c.is_ascii_digit()
                || matches!(c, ';' | '{' | '}' | ',' | '$' | '!' | '~' | '+' | 'I' | 'M') =>
            {
                at += 1
            }
            _ => return at,
        }
    }
    at
}

/// Behind the next delimiter that is not escaped.
fn skip_part(characters: &[char], mut at: usize, delimiter: char) -> usize {
    while let Some(&c) = characters.get(at) {
        match c {
            '\\' => at += 2,
            c if c == delimiter => return at + 1,
            _ => at += 1,
        }
    }
    at
}

fn skip_line(characters: &[char], mut at: usize) -> usize {
    while characters.get(at).is_some_and(|c| *c != '\n') {
        at += 1;
    }
    at
}
