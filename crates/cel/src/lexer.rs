//! Splits an expression into tokens.

use crate::error::CompileError;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Ident(String),
    Int(String),
    Uint(String),
    Float(String),
    Str(String),
    Bytes(Vec<u8>),
    /// An operator, a bracket or one of `in`, `true`, `false`, `null`.
    Symbol(&'static str),
    End,
}

#[derive(Debug, Clone)]
pub(crate) struct Spanned {
    pub(crate) token: Token,
    pub(crate) at: usize,
    pub(crate) text: String,
}

const SYMBOLS: [&str; 27] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",",
    "(", ")", "[", "]", "{", "}", "in", "true", "false",
];

pub(crate) fn lex(source: &[char]) -> Result<Vec<Spanned>, CompileError> {
    let mut lexer = Lexer { source, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blank();
        let start = lexer.at;
        let token = lexer.next()?;
        let end = token == Token::End;
        let text = if end {
            "<EOF>".to_owned()
        } else {
            source[start..lexer.at].iter().collect()
        };
        tokens.push(Spanned {
            token,
            at: start,
            text,
        });
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    source: &'a [char],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.source.get(self.at + ahead).copied()
    }

    fn skip_blank(&mut self) {
        while let Some(c) = self.peek(0) {
            if matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}') {
                self.at += 1;
            } else if c == '/' && self.peek(1) == Some('/') {
                while self.peek(0).is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
            } else {
                return;
            }
        }
    }

    fn next(&mut self) -> Result<Token, CompileError> {
        let Some(c) = self.peek(0) else {
            return Ok(Token::End);
        };
        if c.is_ascii_digit() || (c == '.' && self.peek(1).is_some_and(|d| d.is_ascii_digit())) {
            return Ok(self.number());
        }
        if let Some((raw, bytes, skip)) = self.string_prefix() {
            self.at += skip;
            return self.string(raw, bytes);
        }
        if c.is_ascii_alphabetic() || c == '_' {
            return Ok(self.word());
        }
        for symbol in SYMBOLS {
            let mut chars = symbol.chars().enumerate();
            if !symbol.starts_with(|c: char| c.is_ascii_alphabetic())
                && chars.all(|(n, c)| self.peek(n) == Some(c))
            {
                self.at += symbol.len();
                return Ok(Token::Symbol(symbol));
            }
        }
        Err(self.error(self.at, &format!("token recognition error at: '{c}'")))
    }

    fn error(&self, at: usize, text: &str) -> CompileError {
        CompileError::new(self.source, at, format!("Syntax error: {text}"))
    }

    fn word(&mut self) -> Token {
        let start = self.at;
        while self
            .peek(0)
            .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            self.at += 1;
        }
        let word: String = self.source[start..self.at].iter().collect();
        match word.as_str() {
            "in" => Token::Symbol("in"),
            "true" => Token::Symbol("true"),
            "false" => Token::Symbol("false"),
            "null" => Token::Symbol("null"),
            _ => Token::Ident(word),
        }
    }

    fn number(&mut self) -> Token {
        let start = self.at;
        if self.peek(0) == Some('0') && matches!(self.peek(1), Some('x' | 'X')) {
            self.at += 2;
            while self.peek(0).is_some_and(|c| c.is_ascii_hexdigit()) {
                self.at += 1;
            }
            return self.integer(start);
        }
        let digits = |lexer: &mut Self| {
            while lexer.peek(0).is_some_and(|c| c.is_ascii_digit()) {
                lexer.at += 1;
            }
        };
        digits(self);
        let mut float = false;
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|c| c.is_ascii_digit()) {
            float = true;
            self.at += 1;
            digits(self);
        }
        if matches!(self.peek(0), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
            if self.peek(1 + sign).is_some_and(|c| c.is_ascii_digit()) {
                float = true;
                self.at += 1 + sign;
                digits(self);
            }
        }
        if float {
            return Token::Float(self.source[start..self.at].iter().collect());
        }
        self.integer(start)
    }

    fn integer(&mut self, start: usize) -> Token {
        let text = self.source[start..self.at].iter().collect();
        if matches!(self.peek(0), Some('u' | 'U')) {
            self.at += 1;
            return Token::Uint(text);
        }
        Token::Int(text)
    }

    /// Raw?, bytes?, and how many characters the prefix takes.
    fn string_prefix(&self) -> Option<(bool, bool, usize)> {
        let (mut raw, mut bytes) = (false, false);
        for ahead in 0..3 {
            match self.peek(ahead)? {
                '"' | '\'' => return Some((raw, bytes, ahead)),
                'r' | 'R' if !raw => raw = true,
                'b' | 'B' if !bytes && !raw => bytes = true,
                _ => return None,
            }
        }
        None
    }

    fn string(&mut self, raw: bool, bytes: bool) -> Result<Token, CompileError> {
        let start = self.at;
        let quote = self.source[self.at];
        let triple = self.peek(1) == Some(quote) && self.peek(2) == Some(quote);
        self.at += if triple { 3 } else { 1 };
        let mut text: Vec<u8> = Vec::new();
        let unclosed = |lexer: &Self| {
            let rest: String = lexer.source[start..].iter().collect();
            lexer.error(start, &format!("token recognition error at: '{rest}'"))
        };
        loop {
            let c = self.peek(0).ok_or_else(|| unclosed(self))?;
            if c == quote
                && (!triple || (self.peek(1) == Some(quote) && self.peek(2) == Some(quote)))
            {
                self.at += if triple { 3 } else { 1 };
                break;
            }
            if !triple && matches!(c, '\n' | '\r') {
                return Err(unclosed(self));
            }
            self.at += 1;
            if c == '\\' && !raw {
                self.escape(bytes, &mut text)?;
            } else {
                push(&mut text, c);
            }
        }
        if bytes {
            return Ok(Token::Bytes(text));
        }
        String::from_utf8(text)
            .map(Token::Str)
            .map_err(|_| self.error(start, "invalid UTF-8 in string literal"))
    }

    fn escape(&mut self, bytes: bool, text: &mut Vec<u8>) -> Result<(), CompileError> {
        let at = self.at;
        let bad = |lexer: &Self| lexer.error(at, "unable to unescape string");
        let c = self.peek(0).ok_or_else(|| bad(self))?;
        self.at += 1;
        let simple = match c {
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            '\\' | '\'' | '"' | '`' | '?' => Some(c),
            _ => None,
        };
        if let Some(c) = simple {
            push(text, c);
            return Ok(());
        }
        let (digits, radix) = match c {
            'x' | 'X' => (2, 16),
            'u' if !bytes => (4, 16),
            'U' if !bytes => (8, 16),
            '0'..='3' => {
                self.at -= 1;
                (3, 8)
            }
            _ => return Err(bad(self)),
        };
        let mut value = 0u32;
        for _ in 0..digits {
            let digit = self
                .peek(0)
                .and_then(|c| c.to_digit(radix))
                .ok_or_else(|| bad(self))?;
            value = value
                .checked_mul(radix)
                .and_then(|v| v.checked_add(digit))
                .ok_or_else(|| bad(self))?;
            self.at += 1;
        }
        if bytes {
            text.push(u8::try_from(value).map_err(|_| bad(self))?);
        } else {
            push(text, char::from_u32(value).ok_or_else(|| bad(self))?);
        }
        Ok(())
    }
}

fn push(text: &mut Vec<u8>, c: char) {
    text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
