//! Words of a command line: which are plain, and what their pieces are.
//! Pure. Invariant: a `Literal` is exactly what bash would make of the word, whatever variables and files there are.

use brush_parser::ParserOptions;
use brush_parser::ast::Word;
use brush_parser::word::{Parameter, ParameterExpr, WordPiece, WordPieceWithSource};

use super::{Refused, Verdict, unreadable, variable_is_harmless};

/// A word without expansions, its quotes taken off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal(pub String);

impl Literal {
    /// None if the word is not plain.
    pub fn of(word: &Word) -> Result<Option<Self>, Refused> {
        let mut text = String::new();
        for piece in pieces(&word.value)? {
            if !append(&piece.piece, false, &mut text) {
                return Ok(None);
            }
        }
        Ok(Some(Self(text)))
    }
}

pub fn pieces(text: &str) -> Result<Vec<WordPieceWithSource>, Refused> {
    brush_parser::word::parse(text, &ParserOptions::default()).map_err(unreadable)
}

/// Adds what the piece always is; false if that depends on anything.
fn append(piece: &WordPiece, quoted: bool, text: &mut String) -> bool {
    match piece {
        WordPiece::Text(part) => {
            // Unquoted these make other words: files that match, several words, a home folder.
            let expands = |c: char| matches!(c, '*' | '?' | '~' | '!' | '\\' | '$' | '`');
            let braces = part.contains('{') && (part.contains(',') || part.contains(".."));
            let is_test = part == "[" || part == "]";
            if !quoted && !is_test && (part.contains(expands) || part.contains('[') || braces) {
                return false;
            }
            text.push_str(part);
            true
        }
        WordPiece::SingleQuotedText(part) => {
            text.push_str(part);
            true
        }
        WordPiece::DoubleQuotedSequence(parts) => {
            parts.iter().all(|part| append(&part.piece, true, text))
        }
        WordPiece::EscapeSequence(part) => {
            // A backslash at the end of a line is no character at all.
            match part.strip_prefix('\\') {
                Some("\n") => true,
                Some(rest) => {
                    text.push_str(rest);
                    true
                }
                None => false,
            }
        }
        _ => false,
    }
}

/// A parameter expansion that runs nothing: no command inside, no detour over a name in a variable, no prompt expansion.
pub fn plain_expansion(expansion: &ParameterExpr, source: &str) -> Verdict {
    if source.contains("$(") || source.contains('`') {
        return Err(Refused::because(
            "a command substitution inside ${…} is not allowed",
        ));
    }
    if source.starts_with("${!") {
        return Err(Refused::because(
            "an indirect expansion ${!…} is not allowed",
        ));
    }
    match expansion {
        ParameterExpr::Transform { .. } => {
            Err(Refused::because("a transformation ${…@…} is not allowed"))
        }
        ParameterExpr::AssignDefaultValues {
            parameter: Parameter::Named(name) | Parameter::NamedWithIndex { name, .. },
            ..
        } => variable_is_harmless(name),
        _ => Ok(()),
    }
}

/// The text that an inner piece of double quotes is checked by. Positions of inner pieces are relative to a text that is
/// not at hand, so the whole of the quotes stands for an expansion, which is stricter.
pub fn source_of(piece: &WordPiece, quotes: &str) -> String {
    match piece {
        WordPiece::ParameterExpansion(ParameterExpr::Parameter {
            indirect: false, ..
        }) => String::new(),
        WordPiece::ParameterExpansion(_) => quotes.to_owned(),
        _ => String::new(),
    }
}
