//! Reading one setting after the other from a source of names and values.
//! Knows kinds of values, not settings. Invariant: every name asked for is remembered, every bad value is a problem.

use std::collections::BTreeMap;

use super::SettingInfo;

pub(super) struct Reader<'a> {
    source: &'a BTreeMap<String, String>,
    pub(super) seen: Vec<SettingInfo>,
    pub(super) problems: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a BTreeMap<String, String>) -> Self {
        Self {
            source,
            seen: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(super) fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    /// An empty value means the default, as `NAME=` in a copied `.env.example` does.
    fn raw(&mut self, name: &'static str, default: &str, help: &'static str) -> String {
        self.seen.push(SettingInfo {
            name,
            default: default.to_owned(),
            help,
        });
        let given = self
            .source
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty());
        given.unwrap_or(default).to_owned()
    }

    fn refuse(&mut self, name: &str, value: &str, allowed: &str) {
        self.problems
            .push(format!("{name}={value:?} is not allowed: use {allowed}"));
    }

    pub(super) fn text(&mut self, name: &'static str, default: &str, help: &'static str) -> String {
        self.raw(name, default, help)
    }

    pub(super) fn optional(&mut self, name: &'static str, help: &'static str) -> Option<String> {
        Some(self.raw(name, "", help)).filter(|value| !value.is_empty())
    }

    pub(super) fn value<T: std::str::FromStr>(
        &mut self,
        name: &'static str,
        default: &str,
        help: &'static str,
        allowed: &str,
    ) -> T {
        let text = self.raw(name, default, help);
        text.parse().unwrap_or_else(|_| {
            self.refuse(name, &text, allowed);
            default
                .parse()
                .unwrap_or_else(|_| unreachable!("the default of {name} is valid"))
        })
    }

    pub(super) fn integer(
        &mut self,
        name: &'static str,
        default: u64,
        min: u64,
        max: u64,
        help: &'static str,
    ) -> u64 {
        let text = self.raw(name, &default.to_string(), help);
        match text.parse() {
            Ok(number) if (min..=max).contains(&number) => number,
            _ => {
                self.refuse(name, &text, &format!("a whole number from {min} to {max}"));
                default
            }
        }
    }

    pub(super) fn decimal(
        &mut self,
        name: &'static str,
        default: &str,
        min: f64,
        max: f64,
        help: &'static str,
    ) -> f64 {
        let text = self.raw(name, default, help);
        match text.parse() {
            Ok(number) if (min..=max).contains(&number) => number,
            _ => {
                self.refuse(name, &text, &format!("a number from {min} to {max}"));
                min
            }
        }
    }

    pub(super) fn switch(&mut self, name: &'static str, default: bool, help: &'static str) -> bool {
        let text = self.raw(name, if default { "1" } else { "0" }, help);
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => true,
            "0" | "false" | "no" | "off" => false,
            _ => {
                self.refuse(name, &text, "1 or 0");
                default
            }
        }
    }

    /// The first choice is the default.
    pub(super) fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&str, T)],
        help: &'static str,
    ) -> T {
        let text = self.raw(name, choices[0].0, help);
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
            return *value;
        }
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        self.refuse(name, &text, &format!("one of {}", words.join(", ")));
        choices[0].1
    }

    pub(super) fn url(&mut self, name: &'static str, help: &'static str) -> Option<String> {
        let text = self.optional(name, help)?;
        match url::Url::parse(&text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {}
            _ => self.refuse(name, &text, "an address such as http://127.0.0.1:9000"),
        }
        Some(text)
    }

    pub(super) fn prefix(
        &mut self,
        name: &'static str,
        default: &str,
        help: &'static str,
    ) -> String {
        let text = self.raw(name, default, help);
        let trimmed = text.trim_matches('/').to_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if trimmed.is_empty()
            || trimmed.len() > 100
            || !trimmed.chars().all(plain)
            || trimmed.split('/').any(|s| matches!(s, "" | "." | ".."))
        {
            self.refuse(name, &text, "letters, digits, - _ . and / (100 at most)");
        }
        trimmed
    }

    pub(super) fn list(&mut self, name: &'static str, help: &'static str) -> Vec<String> {
        self.words(name, "", help)
    }

    pub(super) fn words(
        &mut self,
        name: &'static str,
        default: &str,
        help: &'static str,
    ) -> Vec<String> {
        let text = self.raw(name, default, help);
        let parts = text.split(',').map(|part| part.trim().to_owned());
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// A word that is safe as a label, a file name and a cgroup name.
    pub(super) fn identifier(&mut self, name: &'static str, help: &'static str) -> Option<String> {
        let text = self.optional(name, help)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if text.len() > 64 || !text.chars().all(plain) {
            self.refuse(name, &text, "1 to 64 letters, digits, '-' and '_'");
        }
        Some(text)
    }

    pub(super) fn modules(&mut self, name: &'static str, help: &'static str) -> Vec<String> {
        let names = self.list(name, help);
        let is_module = |part: &String| {
            part.split('.')
                .all(|p| !p.is_empty() && p.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        };
        if !names.iter().all(is_module) {
            self.refuse(
                name,
                &names.join(","),
                "module names separated by commas, such as numpy,pandas",
            );
        }
        names
    }
}
