//! A mistake in a program: what it is, and where.

use std::fmt::{self, Write};

/// A place in the source, counted from 1; columns are characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// The first mistake that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) at: Position,
    pub(crate) message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.at;
        write!(f, "{line}:{column}: {}", self.message)
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn new(at: Position, message: impl Into<String>) -> Error {
        let message = message.into();
        Error { at, message }
    }

    /// A line of what and where, then the line of the source with a caret below the place.
    pub(crate) fn render(&self, name: &str, source: &str) -> String {
        /// Longer lines are not shown.
        const SHOWN_CHARS_MAX: usize = 160;

        let Position { line, column } = self.at;
        let mut text = format!("{name}:{self}");
        let shown = source.lines().nth(line as usize - 1).unwrap_or("");
        if !shown.trim().is_empty() && shown.chars().count() <= SHOWN_CHARS_MAX {
            let before = shown.chars().take(column as usize - 1);
            let blank: String = before
                .map(|char| if char == '\t' { '\t' } else { ' ' })
                .collect();
            let _ = write!(text, "\n  | {shown}\n  | {blank}^");
        }
        text
    }
}
