//! A filetest as read: its `test`, `set` and `target` lines, its functions, and the comments and
//! directives that belong to them, each with its line.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_reader::{
    Location, ParseError, ParseOptions, TestCommand, TestOption, parse_options, parse_test,
};
use target_lexicon::Triple;

/// The target of a file that names none.
const DEFAULT_TARGET: &str = "x86_64";

/// A `test` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its line in the file, from 1.
    pub line: usize,
    /// The command's name.
    pub name: String,
    /// What follows the name.
    pub options: Vec<CommandOption>,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "test {}", self.name)
    }
}

/// An option of a `test` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOption {
    /// `name`
    Flag(String),
    /// `name=value`
    Value(String, String),
}

impl fmt::Display for CommandOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandOption::Flag(name) => f.write_str(name),
            CommandOption::Value(name, value) => write!(f, "{name}={value}"),
        }
    }
}

/// A `target` line, with the `set` lines above it applied.
#[derive(Clone)]
pub struct Target {
    /// Its line in the file, from 1; 0 for the default target.
    pub line: usize,
    /// The triple as written.
    pub name: String,
    /// The target.
    pub isa: OwnedTargetIsa,
}

/// A comment line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Its line in the file, from 1.
    pub line: usize,
    /// Its text, from the first `;`.
    pub text: String,
}

/// The kinds of comment that tell the runner something and that bless never touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectiveKind {
    Run,
    Mem,
    Stats,
    Remark,
    Check,
}

/// What a comment line is to the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommentKind<'a> {
    /// `;; ...`: for the reader.
    Prose,
    /// `; keyword: rest`
    Directive(DirectiveKind, &'a str),
    /// A line of expected text, without the leading `; `.
    Expected(&'a str),
}

impl<'a> CommentKind<'a> {
    /// Classifies a comment, given from its first `;`.
    pub(crate) fn of(comment: &'a str) -> CommentKind<'a> {
        let Some(body) = comment.strip_prefix(';') else {
            return CommentKind::Prose;
        };
        if body.starts_with(';') {
            return CommentKind::Prose;
        }
        match directive(body.trim()) {
            Some((kind, rest)) => CommentKind::Directive(kind, rest),
            None => CommentKind::Expected(body.strip_prefix(' ').unwrap_or(body)),
        }
    }
}

fn directive(body: &str) -> Option<(DirectiveKind, &str)> {
    let (keyword, rest) = body.split_once(':')?;
    let kind = match keyword {
        "run" | "print" => DirectiveKind::Run,
        "mem" => DirectiveKind::Mem,
        "stats" => DirectiveKind::Stats,
        "remark" => DirectiveKind::Remark,
        "check" | "sameln" | "nextln" | "unordered" | "not" | "regex" => DirectiveKind::Check,
        _ => return None,
    };
    Some((kind, rest.trim()))
}

/// A function of the file.
#[derive(Clone, Debug)]
pub struct TestFunction {
    /// The line of its `function` keyword, from 1.
    pub line: usize,
    /// The function.
    pub function: Function,
    /// The comments inside and after it.
    pub comments: Vec<Comment>,
    /// The lines between its closing brace and the next function, from 1.
    pub trailer: Range<usize>,
}

impl TestFunction {
    pub(crate) fn directives(&self, kind: DirectiveKind) -> impl Iterator<Item = (usize, &str)> {
        directives_of(&self.comments, kind)
    }
}

/// Context of an error: the function of the file that it is about.
#[derive(Debug)]
pub(crate) struct InFunction {
    index: usize,
    name: String,
}

impl InFunction {
    /// The function with this index in the file.
    pub(crate) fn new(index: usize, function: &Function) -> InFunction {
        InFunction {
            index,
            name: function.name.to_string(),
        }
    }
}

impl fmt::Display for InFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function {}", self.name)
    }
}

/// A filetest, parsed.
pub struct TestSource {
    /// The path or other name that errors show.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// The `test` lines.
    pub commands: Vec<Command>,
    /// The `target` lines, or the default target.
    pub targets: Vec<Target>,
    /// The comments before the first function.
    pub preamble: Vec<Comment>,
    /// The functions.
    pub functions: Vec<TestFunction>,
}

impl TestSource {
    /// Reads and parses the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or as [`TestSource::parse`].
    pub fn read(path: &Path) -> Result<TestSource> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| anyhow!("{name}: {error}"))?;
        TestSource::parse(&name, &text)
    }

    /// Parses `text`; `name` stands for the file in errors.
    ///
    /// # Errors
    /// A syntax error, an unknown target or an unknown setting, as `name:line: message`.
    pub fn parse(name: &str, text: &str) -> Result<TestSource> {
        let header = Header::parse(name, text)?;
        let lines = LineTable::of(text);
        let file = parse_test(text, ParseOptions::default()).map_err(|e| located(name, e))?;
        let starts: Vec<usize> = file
            .functions
            .iter()
            .map(|(_, details)| details.location.line_number)
            .collect();
        let comments_of = |comments: &[cranelift_reader::Comment]| -> Vec<Comment> {
            comments
                .iter()
                .map(|comment| Comment {
                    line: lines.line_of(text, comment.text),
                    text: comment.text.trim_end().to_string(),
                })
                .collect()
        };
        let functions = file
            .functions
            .iter()
            .enumerate()
            .map(|(index, (function, details))| {
                let next = starts.get(index + 1).copied();
                TestFunction {
                    line: starts[index],
                    function: function.clone(),
                    comments: comments_of(&details.comments),
                    trailer: lines.trailer(text, starts[index], next),
                }
            })
            .collect();
        Ok(TestSource {
            name: name.to_string(),
            text: text.to_string(),
            commands: header.commands,
            targets: header.targets,
            preamble: comments_of(&file.preamble_comments),
            functions,
        })
    }

    /// The functions alone.
    pub fn functions(&self) -> Vec<Function> {
        self.functions.iter().map(|f| f.function.clone()).collect()
    }

    /// An error at a line of this file.
    pub(crate) fn error_at(&self, line: usize, message: impl fmt::Display) -> anyhow::Error {
        anyhow!("{}:{line}: {message}", self.name)
    }

    /// Puts the file, and the line of the function that `error` is about or else `line`, before its
    /// message.
    pub(crate) fn locate(&self, error: &anyhow::Error, line: Option<usize>) -> anyhow::Error {
        match error.downcast_ref::<InFunction>() {
            Some(InFunction { index, .. }) => {
                self.error_at(self.functions[*index].line, format!("{error:#}"))
            }
            None => match line {
                Some(line) => self.error_at(line, format!("{error:#}")),
                None => anyhow!("{}: {error:#}", self.name),
            },
        }
    }

    pub(crate) fn preamble_directives(
        &self,
        kind: DirectiveKind,
    ) -> impl Iterator<Item = (usize, &str)> {
        directives_of(&self.preamble, kind)
    }
}

fn directives_of(comments: &[Comment], kind: DirectiveKind) -> impl Iterator<Item = (usize, &str)> {
    comments
        .iter()
        .filter_map(move |comment| match CommentKind::of(&comment.text) {
            CommentKind::Directive(found, rest) if found == kind => Some((comment.line, rest)),
            _ => None,
        })
}

fn located(name: &str, error: ParseError) -> anyhow::Error {
    anyhow!("{name}:{}: {}", error.location.line_number, error.message)
}

/// The lines before the first function. Cranelift's own parser gives no lines for them and starts
/// from `opt_level=none`.
struct Header {
    commands: Vec<Command>,
    targets: Vec<Target>,
}

impl Header {
    fn parse(name: &str, text: &str) -> Result<Header> {
        let mut flags = default_flags()?;
        let mut commands = Vec::new();
        let mut targets = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let location = Location {
                line_number: index + 1,
            };
            let code = line.split(';').next().unwrap_or_default();
            let mut words = code.split_whitespace();
            match words.next() {
                Some("test") => {
                    commands.push(command_of(
                        code.trim_start()["test".len()..].trim(),
                        index + 1,
                    ));
                }
                Some("set") => parse_options(words, &mut flags, location)
                    .map_err(|e| located(name, ParseError::from(e)))?,
                Some("target") => targets.push(target_of(name, words, &flags, location)?),
                Some("function") => break,
                _ => {}
            }
        }
        if targets.is_empty() {
            let location = Location { line_number: 0 };
            targets.push(target_of(
                name,
                std::iter::once(DEFAULT_TARGET),
                &flags,
                location,
            )?);
        }
        Ok(Header { commands, targets })
    }
}

fn default_flags() -> Result<settings::Builder> {
    let mut flags = settings::builder();
    for (flag, value) in [
        ("opt_level", "speed"),
        ("unwind_info", "false"),
        ("machine_code_cfg_info", "false"),
        ("use_colocated_libcalls", "false"),
    ] {
        flags.set(flag, value)?;
    }
    Ok(flags)
}

fn command_of(text: &str, line: usize) -> Command {
    let command = TestCommand::new(text);
    let options = command.options.iter().map(|option| match *option {
        TestOption::Flag(name) => CommandOption::Flag(name.to_string()),
        TestOption::Value(name, value) => CommandOption::Value(name.to_string(), value.to_string()),
    });
    Command {
        line,
        name: command.command.to_string(),
        options: options.collect(),
    }
}

fn target_of<'a>(
    name: &str,
    mut words: impl Iterator<Item = &'a str>,
    flags: &settings::Builder,
    location: Location,
) -> Result<Target> {
    let line = location.line_number;
    let Some(triple_name) = words.next() else {
        bail!("{name}:{line}: expected target triple");
    };
    let triple: Triple = triple_name
        .parse()
        .map_err(|error| anyhow!("{name}:{line}: unknown target '{triple_name}': {error}"))?;
    let mut builder = isa::lookup(triple)
        .map_err(|error| anyhow!("{name}:{line}: unsupported target '{triple_name}': {error}"))?;
    parse_options(words, &mut builder, location)
        .map_err(|error| located(name, ParseError::from(error)))?;
    let isa = builder
        .finish(settings::Flags::new(flags.clone()))
        .map_err(|error| anyhow!("{name}:{line}: target '{triple_name}': {error}"))?;
    Ok(Target {
        line,
        name: triple_name.to_string(),
        isa,
    })
}

/// Where each line begins.
struct LineTable {
    starts: Vec<usize>,
}

impl LineTable {
    fn of(text: &str) -> LineTable {
        let after_newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        LineTable {
            starts: std::iter::once(0).chain(after_newlines).collect(),
        }
    }

    /// The line of `part`, a slice of `text`.
    fn line_of(&self, text: &str, part: &str) -> usize {
        let offset = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
        self.line_at(offset)
    }

    fn line_at(&self, offset: usize) -> usize {
        self.starts.partition_point(|&start| start <= offset)
    }

    /// The lines after the closing brace of the function that begins at line `start`, up to the
    /// function at line `next` or the end.
    fn trailer(&self, text: &str, start: usize, next: Option<usize>) -> Range<usize> {
        let from = self.starts[start - 1];
        let close = from + closing_brace(&text[from..]);
        let end = next.unwrap_or_else(|| text.lines().count() + 1);
        let first = self.line_at(close) + 1;
        first..end.max(first)
    }
}

/// The offset of the first `}` outside comments and strings. Function bodies have no other braces.
fn closing_brace(text: &str) -> usize {
    let (mut in_comment, mut in_string) = (false, false);
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' => in_comment = false,
            _ if in_comment => {}
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b';' => in_comment = true,
            b'}' => return offset,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_classified() {
        assert_eq!(CommentKind::of(";; why: so"), CommentKind::Prose);
        assert_eq!(
            CommentKind::of("; run: %f() == 1"),
            CommentKind::Directive(DirectiveKind::Run, "%f() == 1")
        );
        assert_eq!(CommentKind::of(";"), CommentKind::Expected(""));
        assert_eq!(
            CommentKind::of(";     ; 2 = MemoryDef(1)"),
            CommentKind::Expected("    ; 2 = MemoryDef(1)")
        );
    }

    #[test]
    fn trailer_runs_from_brace_to_next_function() {
        let text = "function %f() {\n    ; not a }\nblock0:\n    return\n}\n; one\n\nfunction %g() {\nblock0:\n    return\n}\n; two\n";
        let source = TestSource::parse("t.clif", text).unwrap();
        assert_eq!(source.functions[0].trailer, 6..8);
        assert_eq!(source.functions[1].trailer, 12..13);
        assert_eq!(source.functions[1].comments[0].line, 12);
    }

    #[test]
    fn target_errors_have_a_line() {
        let error = |text: &str| TestSource::parse("t.clif", text).err().unwrap().to_string();
        assert!(error("test run\ntarget pdp11\n").starts_with("t.clif:2: unknown target 'pdp11'"));
        assert!(error("target riscv64\n").starts_with("t.clif:1: unsupported target 'riscv64'"));
        assert!(error("set opt_level=3\n").starts_with("t.clif:1: invalid setting value"));
        assert!(error("test run\n\nfunction %f( {}\n").starts_with("t.clif:3: "));
    }
}
