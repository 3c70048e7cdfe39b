//! Which command lines may run in a dialect that has a command policy: the line is parsed as bash, and every program in it must be allowed.
//! Pure; hostile lines are judged by it in a process of its own (`judge.rs`). A second fence, not the wall: the sandbox is the wall, and `python3`, which is on the list, can do what it likes in there.
//! Invariant: what cannot be parsed, or whose program names are not plain words, is refused.

pub mod judge;
mod programs;
mod words;

use std::collections::BTreeSet;

use brush_parser::ast::{
    Assignment, AssignmentName, AssignmentValue, Command, CommandPrefixOrSuffixItem,
    CompoundCommand, CompoundList, ExtendedTestExpr, IoFileRedirectTarget, IoRedirect, Pipeline,
    RedirectList, SimpleCommand, UnexpandedArithmeticExpr, Word,
};
use brush_parser::word::WordPiece;
use brush_parser::{Parser, ParserOptions};
use serde::{Deserialize, Serialize};

use words::Literal;

/// Builtins that start nothing, whatever their arguments.
const BUILTINS: &[&str] = &[
    ":", "[", "break", "cd", "continue", "declare", "echo", "exit", "export", "false", "getopts",
    "let", "local", "printf", "pwd", "read", "readonly", "return", "set", "shift", "test", "times",
    "true", "type", "typeset", "umask", "unset", "wait",
];
/// Of these, the ones that only ever print or compare their arguments.
const HARMLESS: &[&str] = &[
    ":", "echo", "exit", "false", "pwd", "return", "true", "type",
];
/// Variables that decide which program a name means, or hold code that bash runs by itself.
const POWERFUL: &[&str] = &[
    "PATH",
    "BASH_ENV",
    "ENV",
    "IFS",
    "PS4",
    "PROMPT_COMMAND",
    "SHELLOPTS",
    "BASHOPTS",
    "BASH_CMDS",
    "BASH_ALIASES",
    "CDPATH",
    "GCONV_PATH",
    "BASH_LOADABLES_PATH",
    "EXECIGNORE",
];
/// The longest argument that a program can be given, and so the longest line of `bash -c`.
const MAX_LINE_BYTES: usize = 128 * 1024 - 1;
/// Command substitutions within each other.
const MAX_NESTING: usize = 40;
const STACK_BYTES: usize = 64 << 20;

/// Why a line may not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub reason: String,
    /// The forbidden word, if it was one.
    pub word: Option<String>,
}

impl Refused {
    fn because(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            word: None,
        }
    }
}

type Verdict = Result<(), Refused>;

/// The operator's two lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandPolicy {
    allowed: BTreeSet<String>,
    forbidden: BTreeSet<String>,
}

impl CommandPolicy {
    pub fn new(
        allowed: impl IntoIterator<Item = String>,
        forbidden: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            allowed: allowed.into_iter().collect(),
            forbidden: forbidden.into_iter().collect(),
        }
    }

    /// For lines of one's own; a hostile one may take for ever, or the whole stack.
    pub fn check(&self, line: &str) -> Verdict {
        if line.len() > MAX_LINE_BYTES {
            return Err(Refused::because(format!(
                "the command is longer than {MAX_LINE_BYTES} bytes"
            )));
        }
        if line.contains('\0') {
            return Err(Refused::because("the command contains a NUL character"));
        }
        let walk = || {
            let mut walk = Walk {
                policy: self,
                functions: BTreeSet::new(),
                depth: 0,
                source: String::new(),
            };
            walk.script(line)
        };
        // The parser descends as deep as the line does, so it gets a stack on which that is not too deep.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            match thread.spawn_scoped(scope, walk).map(|thread| thread.join()) {
                Ok(Ok(verdict)) => verdict,
                _ => Err(Refused::because("the command could not be looked at")),
            }
        })
    }
}

struct Walk<'p> {
    policy: &'p CommandPolicy,
    /// Defined in this line; what is in them has been looked at.
    functions: BTreeSet<String>,
    depth: usize,
    /// What is being looked at, as it was written.
    source: String,
}

impl Walk<'_> {
    fn script(&mut self, text: &str) -> Verdict {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(Refused::because("the command is nested too deeply"));
        }
        let program = Parser::new(text.as_bytes(), &ParserOptions::default())
            .parse_program()
            .map_err(|error| Refused::because(format!("the command cannot be parsed: {error}")))?;
        let outer = std::mem::replace(&mut self.source, text.to_owned());
        for list in &program.complete_commands {
            self.list(list)?;
        }
        self.source = outer;
        self.depth -= 1;
        Ok(())
    }

    fn list(&mut self, list: &CompoundList) -> Verdict {
        for item in &list.0 {
            for (_, pipeline) in &item.0 {
                self.pipeline(pipeline)?;
            }
        }
        Ok(())
    }

    fn pipeline(&mut self, pipeline: &Pipeline) -> Verdict {
        pipeline
            .seq
            .iter()
            .try_for_each(|command| self.command(command))
    }

    fn command(&mut self, command: &Command) -> Verdict {
        match command {
            Command::Simple(simple) => self.simple(simple),
            Command::Compound(compound, redirects) => {
                self.compound(compound)?;
                self.redirects(redirects.as_ref())
            }
            Command::Function(function) => {
                let name = function.fname.value.clone();
                self.name_is_not_forbidden(&name)?;
                self.functions.insert(name);
                self.compound(&function.body.0)?;
                self.redirects(function.body.1.as_ref())
            }
            Command::ExtendedTest(test, redirects) => {
                self.test(&test.expr)?;
                self.redirects(redirects.as_ref())
            }
        }
    }

    fn compound(&mut self, compound: &CompoundCommand) -> Verdict {
        match compound {
            CompoundCommand::Arithmetic(command) => {
                // Bash sees two subshells in `( (`, also with a comment between; the parser sees arithmetic.
                let second = self.source.chars().nth(command.loc.start.index + 1);
                if second != Some('(') {
                    return Err(Refused::because(
                        "write nested subshells without a space between their brackets",
                    ));
                }
                self.arithmetic(&command.expr)
            }
            CompoundCommand::ArithmeticForClause(command) => {
                let parts = [&command.initializer, &command.condition, &command.updater];
                for part in parts.into_iter().flatten() {
                    self.arithmetic(part)?;
                }
                self.list(&command.body.list)
            }
            CompoundCommand::BraceGroup(group) => self.list(&group.list),
            CompoundCommand::Subshell(subshell) => self.list(&subshell.list),
            CompoundCommand::ForClause(command) => {
                variable_is_harmless(&command.variable_name)?;
                for word in command.values.iter().flatten() {
                    self.word(word)?;
                }
                self.list(&command.body.list)
            }
            CompoundCommand::CaseClause(command) => {
                self.word(&command.value)?;
                for case in &command.cases {
                    case.patterns.iter().try_for_each(|word| self.word(word))?;
                    if let Some(list) = &case.cmd {
                        self.list(list)?;
                    }
                }
                Ok(())
            }
            CompoundCommand::IfClause(command) => {
                self.list(&command.condition)?;
                self.list(&command.then)?;
                for clause in command.elses.iter().flatten() {
                    if let Some(condition) = &clause.condition {
                        self.list(condition)?;
                    }
                    self.list(&clause.body)?;
                }
                Ok(())
            }
            CompoundCommand::WhileClause(command) | CompoundCommand::UntilClause(command) => {
                self.list(&command.0)?;
                self.list(&command.1.list)
            }
            CompoundCommand::Coprocess(command) => self.command(&command.body),
        }
    }

    fn simple(&mut self, command: &SimpleCommand) -> Verdict {
        let prefix = command.prefix.iter().flat_map(|prefix| &prefix.0);
        for item in prefix {
            self.item(item)?;
        }
        let suffix = command.suffix.iter().flat_map(|suffix| &suffix.0);
        let mut arguments = Vec::new();
        for item in suffix {
            self.item(item)?;
            match item {
                CommandPrefixOrSuffixItem::Word(word)
                | CommandPrefixOrSuffixItem::AssignmentWord(_, word) => arguments.push(word),
                _ => {}
            }
        }
        match &command.word_or_name {
            Some(name) => self.program(name, &arguments),
            None => Ok(()),
        }
    }

    fn item(&mut self, item: &CommandPrefixOrSuffixItem) -> Verdict {
        match item {
            CommandPrefixOrSuffixItem::IoRedirect(redirect) => self.redirect(redirect),
            CommandPrefixOrSuffixItem::Word(word) => self.word(word),
            CommandPrefixOrSuffixItem::AssignmentWord(assignment, _) => self.assignment(assignment),
            CommandPrefixOrSuffixItem::ProcessSubstitution(_, subshell) => {
                self.list(&subshell.list)
            }
        }
    }

    fn assignment(&mut self, assignment: &Assignment) -> Verdict {
        let name = match &assignment.name {
            AssignmentName::VariableName(name) => name,
            AssignmentName::ArrayElementName(name, index) => {
                self.text(index)?;
                nothing_hidden(index)?;
                name
            }
        };
        variable_is_harmless(name)?;
        let values: Vec<&Word> = match &assignment.value {
            AssignmentValue::Scalar(word) => vec![word],
            AssignmentValue::Array(items) => items
                .iter()
                .flat_map(|(index, value)| index.iter().chain([value]))
                .collect(),
        };
        for word in values {
            self.word(word)?;
            nothing_hidden(&word.value)?;
        }
        Ok(())
    }

    /// A program may start if its name is a plain word on the list, and if it starts no other that is not.
    fn program(&mut self, name: &Word, arguments: &[&Word]) -> Verdict {
        let Some(program) = Literal::of(name)? else {
            return Err(Refused::because(format!(
                "the program name {:?} is not a plain word",
                name.value
            )));
        };
        self.may_start(&program.0)?;
        if BUILTINS.contains(&program.0.as_str()) && !HARMLESS.contains(&program.0.as_str()) {
            for argument in arguments {
                nothing_hidden(&argument.value)?;
                names_no_powerful_variable(&argument.value)?;
            }
        }
        let arguments: Vec<Option<Literal>> = arguments
            .iter()
            .map(|word| Literal::of(word))
            .collect::<Result<_, _>>()?;
        programs::check(&program.0, &arguments, &|name| self.may_start(name))
    }

    fn may_start(&self, name: &str) -> Verdict {
        self.name_is_not_forbidden(name)?;
        let known = self.policy.allowed.contains(name)
            || BUILTINS.contains(&name)
            || self.functions.contains(name);
        if known {
            return Ok(());
        }
        Err(Refused::because(format!(
            "{name:?} is not an allowed command"
        )))
    }

    /// By its last part too: a path is another way to write a name.
    fn name_is_not_forbidden(&self, name: &str) -> Verdict {
        let last = name.rsplit('/').next().unwrap_or(name);
        match self.policy.forbidden.contains(last) {
            true => Err(Refused {
                reason: format!("command contains a forbidden word: {last}"),
                word: Some(last.to_owned()),
            }),
            false => Ok(()),
        }
    }

    fn redirects(&mut self, redirects: Option<&RedirectList>) -> Verdict {
        let mut all = redirects.into_iter().flat_map(|list| &list.0);
        all.try_for_each(|redirect| self.redirect(redirect))
    }

    fn redirect(&mut self, redirect: &IoRedirect) -> Verdict {
        match redirect {
            IoRedirect::File(_, _, target) => match target {
                IoFileRedirectTarget::Filename(word) | IoFileRedirectTarget::Duplicate(word) => {
                    self.word(word)
                }
                IoFileRedirectTarget::Fd(_) => Ok(()),
                IoFileRedirectTarget::ProcessSubstitution(_, subshell) => self.list(&subshell.list),
            },
            IoRedirect::HereDocument(_, document) if document.requires_expansion => {
                let pieces = brush_parser::word::parse_heredoc(
                    &document.doc.value,
                    &ParserOptions::default(),
                );
                let pieces = pieces.map_err(unreadable)?;
                pieces.iter().try_for_each(|piece| {
                    self.piece(
                        &piece.piece,
                        &document.doc.value[piece.start_index..piece.end_index],
                    )
                })
            }
            IoRedirect::HereDocument(..) => Ok(()),
            IoRedirect::HereString(_, word) | IoRedirect::OutputAndError(word, _) => {
                self.word(word)
            }
        }
    }

    fn test(&mut self, expression: &ExtendedTestExpr) -> Verdict {
        match expression {
            ExtendedTestExpr::And(one, other) | ExtendedTestExpr::Or(one, other) => {
                self.test(one)?;
                self.test(other)
            }
            ExtendedTestExpr::Not(inner) | ExtendedTestExpr::Parenthesized(inner) => {
                self.test(inner)
            }
            ExtendedTestExpr::UnaryTest(_, word) => self.evaluated(word),
            ExtendedTestExpr::BinaryTest(_, one, other) => {
                self.evaluated(one)?;
                self.evaluated(other)
            }
        }
    }

    /// A word that bash may evaluate as arithmetic, quotes or not.
    fn evaluated(&mut self, word: &Word) -> Verdict {
        self.word(word)?;
        nothing_hidden(&word.value)
    }

    fn arithmetic(&mut self, expression: &UnexpandedArithmeticExpr) -> Verdict {
        looks_like_arithmetic(&expression.value)?;
        self.text(&expression.value)?;
        nothing_hidden(&expression.value)
    }

    fn word(&mut self, word: &Word) -> Verdict {
        self.text(&word.value)
    }

    fn text(&mut self, text: &str) -> Verdict {
        let pieces = words::pieces(text)?;
        pieces.iter().try_for_each(|piece| {
            self.piece(&piece.piece, &text[piece.start_index..piece.end_index])
        })
    }

    fn piece(&mut self, piece: &WordPiece, source: &str) -> Verdict {
        match piece {
            WordPiece::CommandSubstitution(script) => self.script(script),
            WordPiece::BackquotedCommandSubstitution(script) => {
                // Inside backquotes a backslash hides the next `, $ or \.
                let script = script
                    .replace("\\`", "`")
                    .replace("\\$", "$")
                    .replace("\\\\", "\\");
                self.script(&script)
            }
            WordPiece::DoubleQuotedSequence(pieces)
            | WordPiece::GettextDoubleQuotedSequence(pieces) => {
                for inner in pieces {
                    // What an inner piece was written as is known only by its own kind.
                    self.piece(&inner.piece, &words::source_of(&inner.piece, source))?;
                }
                Ok(())
            }
            WordPiece::ArithmeticExpression(expression) => self.arithmetic(expression),
            WordPiece::ParameterExpansion(expansion) => words::plain_expansion(expansion, source),
            WordPiece::Text(_)
            | WordPiece::SingleQuotedText(_)
            | WordPiece::AnsiCQuotedText(_)
            | WordPiece::TildeExpansion(_)
            | WordPiece::EscapeSequence(_) => Ok(()),
        }
    }
}

fn unreadable(error: brush_parser::WordParseError) -> Refused {
    Refused::because(format!("a word cannot be parsed: {error}"))
}

fn variable_is_harmless(name: &str) -> Verdict {
    if POWERFUL.contains(&name) || name.starts_with("LD_") || name.starts_with("BASH_FUNC") {
        return Err(Refused::because(format!(
            "the variable {name} may not be set: it decides what other names mean"
        )));
    }
    Ok(())
}

/// `((a) ; (b))` is two subshells to bash, which first looks whether the brackets of `((` close together.
fn looks_like_arithmetic(text: &str) -> Verdict {
    let mut depth = 0_i32;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ';' | '\n' | '\\' | '`' => depth = -1,
            _ => {}
        }
        if depth < 0 {
            return Err(Refused::because("an arithmetic expression is not plain"));
        }
    }
    Ok(())
}

/// For builtins that set variables by name.
fn names_no_powerful_variable(text: &str) -> Verdict {
    let mut names = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    names.try_for_each(variable_is_harmless)
}

/// Text that bash may evaluate later, as a subscript or in arithmetic, holds no command, not even in quotes.
fn nothing_hidden(text: &str) -> Verdict {
    let quoted_command = text.contains('`') || text.contains("$(");
    let in_quotes = text.contains('\'') || text.contains('\\') || text.contains("$'");
    if quoted_command && in_quotes {
        return Err(Refused::because(
            "a command substitution inside quotes may be evaluated later",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
