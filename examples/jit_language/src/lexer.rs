//! Text to tokens.

use std::fmt;

use crate::error::{Error, Position, Result};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// Without its sign: `-9223372036854775808` is a minus and a number that only fits unsigned.
    Int(u64),
    Float(f64),
    Name(String),
    /// A word of [`KEYWORDS`].
    Keyword(&'static str),
    /// An operator or bracket of [`SYMBOLS`].
    Symbol(&'static str),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Int(value) => write!(f, "`{value}`"),
            Token::Float(value) => write!(f, "`{value:?}`"),
            Token::Name(name) => write!(f, "`{name}`"),
            Token::Keyword(text) | Token::Symbol(text) => write!(f, "`{text}`"),
            Token::End => write!(f, "the end of the file"),
        }
    }
}

/// A token and where it starts.
#[derive(Clone, Debug)]
pub(crate) struct Spanned {
    pub(crate) token: Token,
    pub(crate) at: Position,
}

const KEYWORDS: &[&str] = &[
    "as", "break", "const", "continue", "else", "false", "fn", "for", "if", "in", "let", "print",
    "return", "struct", "true", "while",
];

/// A symbol comes before those that it starts with.
const SYMBOLS: &[&str] = &[
    "<<=", ">>=", "->", "..", "==", "!=", "<=", ">=", "&&", "||", "<<", ">>", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=", "(", ")", "{", "}", "[", "]", ",", ";", ":", ".", "=", "<", ">",
    "+", "-", "*", "/", "%", "&", "|", "^", "!",
];

struct Lexer<'a> {
    rest: &'a str,
    at: Position,
}

/// All tokens of `source`, with [`Token::End`] as the last one.
pub(crate) fn lex(source: &str) -> Result<Vec<Spanned>> {
    let mut lexer = Lexer {
        rest: source,
        at: Position { line: 1, column: 1 },
    };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blank();
        let at = lexer.at;
        let token = lexer.token()?;
        let end = token == Token::End;
        tokens.push(Spanned { token, at });
        if end {
            return Ok(tokens);
        }
    }
}

impl<'a> Lexer<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Steps over `bytes` of the text.
    fn advance(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        for char in taken.chars() {
            if char == '\n' {
                self.at.line += 1;
                self.at.column = 1;
            } else {
                self.at.column += 1;
            }
        }
        self.rest = rest;
        taken
    }

    fn advance_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|char| !keep(char));
        self.advance(end.unwrap_or(self.rest.len()))
    }

    fn skip_blank(&mut self) {
        loop {
            self.advance_while(char::is_whitespace);
            if !self.rest.starts_with("//") {
                return;
            }
            self.advance_while(|char| char != '\n');
        }
    }

    fn token(&mut self) -> Result<Token> {
        let Some(first) = self.peek() else {
            return Ok(Token::End);
        };
        if first.is_ascii_digit() {
            return self.number();
        }
        if is_name_start(first) {
            let text = self.advance_while(|char| is_name_start(char) || char.is_ascii_digit());
            let keyword = KEYWORDS.iter().find(|&&keyword| keyword == text);
            return Ok(match keyword {
                Some(keyword) => Token::Keyword(keyword),
                None => Token::Name(text.to_string()),
            });
        }
        let symbol = SYMBOLS
            .iter()
            .find(|&&symbol| self.rest.starts_with(symbol));
        match symbol {
            Some(symbol) => {
                self.advance(symbol.len());
                Ok(Token::Symbol(symbol))
            }
            None => Err(Error::new(
                self.at,
                format!("unexpected character `{}`", first.escape_debug()),
            )),
        }
    }

    /// `12`, `1_000`, `0.5`, `1.5e-3`, `1e9`. In `0..9` the dots are no part of the number.
    fn number(&mut self) -> Result<Token> {
        let at = self.at;
        let mut text = self.digits();
        let mut float = false;
        let mut next = self.rest.chars();
        if next.next() == Some('.') && next.next().is_some_and(|char| char.is_ascii_digit()) {
            float = true;
            text += self.advance(1);
            text += &self.digits();
        }
        if self.rest.starts_with(['e', 'E']) {
            float = true;
            text += self.advance(1);
            if self.rest.starts_with(['+', '-']) {
                text += self.advance(1);
            }
            text += &self.digits();
        }
        if self.peek().is_some_and(is_name_start) {
            let message = format!("a letter follows the number `{text}`");
            return Err(Error::new(self.at, message));
        }
        if float {
            match text.parse() {
                Ok(value) => Ok(Token::Float(value)),
                Err(_) => Err(Error::new(at, format!("`{text}` is not a number"))),
            }
        } else {
            let value = text.parse().ok().filter(|&value| value <= 1 << 63);
            value
                .map(Token::Int)
                .ok_or_else(|| Error::new(at, format!("the number {text} does not fit an i64")))
        }
    }

    fn digits(&mut self) -> String {
        self.advance_while(|char| char.is_ascii_digit() || char == '_')
            .replace('_', "")
    }
}

fn is_name_start(char: char) -> bool {
    char.is_ascii_alphabetic() || char == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(source: &str) -> Vec<Token> {
        let tokens = lex(source).unwrap();
        tokens.into_iter().map(|spanned| spanned.token).collect()
    }

    #[test]
    fn numbers_and_ranges() {
        assert_eq!(
            tokens("0..1_0 1.5e-3 2e1"),
            [
                Token::Int(0),
                Token::Symbol(".."),
                Token::Int(10),
                Token::Float(1.5e-3),
                Token::Float(20.0),
                Token::End
            ]
        );
    }

    #[test]
    fn places_are_lines_and_characters() {
        let tokens = lex("// ä\n\tx // y\n  >>= é").unwrap_err();
        assert_eq!(tokens.at, Position { line: 3, column: 7 });
        let tokens = lex("\n  a\n b").unwrap();
        assert_eq!(tokens[1].at, Position { line: 3, column: 2 });
    }

    #[test]
    fn numbers_that_do_not_fit() {
        assert!(lex("9223372036854775809").is_err());
        assert!(lex("1x").is_err());
        assert!(lex("1e").is_err());
    }
}
