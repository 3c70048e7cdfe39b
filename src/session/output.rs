//! What a person at a REPL would have seen, gathered frame by frame and capped.
//! Pure. Invariant: never keeps more than the limit plus one mark, whatever the sandbox sends.

use crate::kernel::StreamName;
use crate::model::execution::MimeBundle;

/// Pictures and tables of one execution; beyond this they are left out and `truncated` says so.
const MAX_RESULT_BYTES: usize = 8 << 20;
/// What an empty bundle or value costs all the same.
const OVERHEAD_BYTES: usize = 128;

#[derive(Debug)]
pub struct Output {
    limit: usize,
    used: usize,
    results_used: usize,
    pub all: String,
    pub stdout: String,
    pub stderr: String,
    pub results: Vec<MimeBundle>,
    pub truncated: bool,
}

impl Output {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            used: 0,
            results_used: 0,
            all: String::new(),
            stdout: String::new(),
            stderr: String::new(),
            results: Vec::new(),
            truncated: false,
        }
    }

    /// Takes what fits; gives back that part, for those who watch.
    pub fn push_stream<'t>(&mut self, stream: StreamName, text: &'t str) -> &'t str {
        let kept = self.fit(text);
        self.all.push_str(kept);
        match stream {
            StreamName::Stdout => self.stdout.push_str(kept),
            StreamName::Stderr => self.stderr.push_str(kept),
        }
        kept
    }

    /// The echo of a last expression, on a line of its own.
    pub fn push_result(&mut self, bundle: MimeBundle) -> bool {
        if let Some(text) = bundle.get("text/plain") {
            self.push_line(text);
        }
        self.push_bundle(bundle)
    }

    /// A picture or other display: seen, but not as text.
    pub fn push_bundle(&mut self, bundle: MimeBundle) -> bool {
        let size: usize = bundle
            .iter()
            .map(|(mime, value)| mime.len() + value.len() + OVERHEAD_BYTES)
            .sum();
        let size = size + OVERHEAD_BYTES;
        if self.results_used + size > MAX_RESULT_BYTES {
            self.truncated = true;
            return false;
        }
        self.results_used += size;
        self.results.push(bundle);
        true
    }

    /// Text that is not the program's own: a traceback, a note. It begins on a new line.
    pub fn push_line(&mut self, text: &str) {
        if !self.all.is_empty() && !self.all.ends_with('\n') {
            self.all.push('\n');
        }
        let kept = self.fit(text);
        self.all.push_str(kept);
        if !self.all.ends_with('\n') {
            self.all.push('\n');
        }
    }

    /// Ends the output: with a mark if something was cut, and with notes of the service, which always fit.
    pub fn finish(&mut self, notes: &[String]) {
        if self.truncated {
            let mark = format!("[output truncated: more than {} bytes]", self.limit);
            self.push_note(&mark);
        }
        for note in notes {
            self.push_note(note);
        }
    }

    fn push_note(&mut self, note: &str) {
        if !self.all.is_empty() && !self.all.ends_with('\n') {
            self.all.push('\n');
        }
        self.all.push_str(note);
        self.all.push('\n');
    }

    fn fit<'t>(&mut self, text: &'t str) -> &'t str {
        let room = self.limit - self.used;
        if text.len() <= room {
            self.used += text.len();
            return text;
        }
        self.truncated = true;
        let cut = (0..=room)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        self.used = self.limit;
        &text[..cut]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_between_characters_and_marked() {
        let mut output = Output::new(5);
        assert_eq!(output.push_stream(StreamName::Stdout, "abé"), "abé");
        assert_eq!(output.push_stream(StreamName::Stderr, "éé"), "");
        assert_eq!(output.push_stream(StreamName::Stdout, "x"), "");
        output.finish(&[]);
        assert!(output.truncated);
        assert_eq!(output.all, "abé\n[output truncated: more than 5 bytes]\n");
        assert_eq!(
            (output.stdout.as_str(), output.stderr.as_str()),
            ("abé", "")
        );
    }

    #[test]
    fn an_echo_stands_on_a_line_of_its_own() {
        let mut output = Output::new(100);
        output.push_stream(StreamName::Stdout, "no newline");
        output.push_result([("text/plain".to_owned(), "15".to_owned())].into());
        assert_eq!(output.all, "no newline\n15\n");
    }

    #[test]
    fn pictures_beyond_the_bound_are_left_out_and_said_so() {
        let mut output = Output::new(100);
        let big: MimeBundle = [("image/png".to_owned(), "x".repeat(5 << 20))].into();
        assert!(output.push_bundle(big.clone()) && !output.push_bundle(big));
        assert!(output.truncated && output.results.len() == 1);
    }
}
