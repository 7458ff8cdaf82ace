//! Lexer and parser of the selector language.

use std::collections::HashSet;

use super::{Operator, Requirement, SelectorError, check_key};
use crate::field::{self, Path};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Error,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Word,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

fn literal_token(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "in" => Token::In,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "notin" => Token::NotIn,
        "(" => Token::Open,
        _ => return None,
    })
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_special(b: u8) -> bool {
    matches!(b, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

fn scan(text: &str) -> Vec<(Token, String)> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        while at < bytes.len() && is_space(bytes[at]) {
            at += 1;
        }
        // A NUL ends the text, as in the original.
        if at >= bytes.len() || bytes[at] == 0 {
            out.push((Token::End, String::new()));
            return out;
        }
        let start = at;
        if is_special(bytes[at]) {
            let mut last = None;
            while at < bytes.len() && is_special(bytes[at]) {
                match literal_token(&text[start..=at]) {
                    Some(token) => last = Some((token, at + 1)),
                    None if last.is_some() => break,
                    None => {}
                }
                at += 1;
            }
            match last {
                Some((token, end)) => {
                    at = end;
                    out.push((token, text[start..end].to_owned()));
                }
                None => out.push((
                    Token::Error,
                    format!("error expected: keyword found '{}'", &text[start..at]),
                )),
            }
        } else {
            while at < bytes.len()
                && bytes[at] != 0
                && !is_special(bytes[at])
                && !is_space(bytes[at])
            {
                at += 1;
            }
            let word = &text[start..at];
            out.push((literal_token(word).unwrap_or(Token::Word), word.to_owned()));
        }
    }
}

struct Parser {
    items: Vec<(Token, String)>,
    at: usize,
}

pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser {
        items: scan(text),
        at: 0,
    };
    parser.selector().map_err(SelectorError)
}

impl Parser {
    /// The next item; where values are expected `in` and `notin` are words.
    fn peek(&self, values: bool) -> (Token, String) {
        let (token, text) = &self.items[self.at.min(self.items.len() - 1)];
        let token = match token {
            Token::In | Token::NotIn if values => Token::Word,
            other => *other,
        };
        (token, text.clone())
    }

    fn next(&mut self, values: bool) -> (Token, String) {
        let item = self.peek(values);
        self.at += 1;
        item
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            let (token, text) = self.peek(true);
            match token {
                Token::Word | Token::Not => {
                    let requirement = self
                        .requirement()
                        .map_err(|e| format!("unable to parse requirement: {e}"))?;
                    requirements.push(requirement);
                    let (token, text) = self.next(true);
                    match token {
                        Token::End => return Ok(requirements),
                        Token::Comma => {
                            let (token, text) = self.peek(true);
                            if !matches!(token, Token::Word | Token::Not) {
                                return Err(format!(
                                    "found '{text}', expected: identifier after ','"
                                ));
                            }
                        }
                        _ => {
                            return Err(format!(
                                "found '{text}', expected: ',' or 'end of string'"
                            ));
                        }
                    }
                }
                Token::End => return Ok(requirements),
                _ => {
                    return Err(format!(
                        "found '{text}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let (mut token, mut key) = self.next(true);
        let absent = token == Token::Not;
        if absent {
            (token, key) = self.next(true);
        }
        if token != Token::Word {
            return Err(format!("found '{key}', expected: identifier"));
        }
        let errors = check_key(&key, &Path::root());
        if !errors.is_empty() {
            return Err(field::aggregate(&errors));
        }
        let build = |operator, values| {
            Requirement::new(key.clone(), operator, values).map_err(|e| e.to_string())
        };
        if absent {
            return build(Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(true).0, Token::End | Token::Comma) {
            return build(Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        build(operator, values)
    }

    fn operator(&mut self) -> Result<Operator, String> {
        let (token, text) = self.next(false);
        Ok(match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => {
                return Err(format!(
                    "found '{text}', expected: in, notin, =, ==, !=, gt, lt"
                ));
            }
        })
    }

    fn exact_value(&mut self) -> Result<String, String> {
        if matches!(self.peek(true).0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next(true) {
            (Token::Word, text) => Ok(text),
            (_, text) => Err(format!("found '{text}', expected: identifier")),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        let (token, text) = self.next(true);
        if token != Token::Open {
            return Err(format!("found '{text}' expected: '('"));
        }
        let (token, text) = self.peek(true);
        match token {
            Token::Word | Token::Comma => {
                let values = self.list()?;
                let (token, text) = self.next(true);
                if token != Token::Close {
                    return Err(format!("found '{text}', expected: ')'"));
                }
                Ok(values)
            }
            // nothing between the brackets is the empty word
            Token::Close => {
                self.next(true);
                Ok(vec![String::new()])
            }
            _ => Err(format!("found '{text}', expected: ',', ')' or identifier")),
        }
    }

    /// Words separated by commas; nothing between two commas is the empty word.
    fn list(&mut self) -> Result<Vec<String>, String> {
        let mut values: Vec<String> = Vec::new();
        let mut known = HashSet::new();
        let mut add = |word: String| {
            if known.insert(word.clone()) {
                values.push(word);
            }
        };
        let mut first = true;
        loop {
            let (token, text) = self.next(true);
            match token {
                Token::Word => {
                    add(text);
                    let (token, text) = self.peek(true);
                    match token {
                        Token::Comma => {}
                        Token::Close => return Ok(values),
                        _ => return Err(format!("found '{text}', expected: ',' or ')'")),
                    }
                }
                Token::Comma => {
                    if first {
                        add(String::new());
                    }
                    match self.peek(true).0 {
                        Token::Close => {
                            add(String::new());
                            return Ok(values);
                        }
                        Token::Comma => {
                            self.next(true);
                            add(String::new());
                        }
                        _ => {}
                    }
                }
                _ => return Err(format!("found '{text}', expected: ',', or identifier")),
            }
            first = false;
        }
    }
}
