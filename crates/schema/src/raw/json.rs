//! A JSON reader that refuses with the sentences of Go's, which users of Kubernetes know.

use std::borrow::Cow;

use super::{MAX_DEPTH, MAX_VALUES, Raw, ReadError};

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
    values: usize,
}

/// Reads one JSON value and nothing after it.
pub(crate) fn read(text: &[u8]) -> Result<Raw<'_>, ReadError> {
    let mut reader = Reader {
        text,
        at: 0,
        depth: 0,
        values: 0,
    };
    reader.document().map_err(|why| match reader.values {
        MAX_VALUES.. => ReadError::TooMany,
        _ => ReadError::Syntax(why),
    })
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// The sentence about the byte at hand, or about the missing rest.
    fn refuse(&self, context: &str) -> String {
        match self.peek() {
            None => "unexpected end of JSON input".to_owned(),
            Some(b) => format!("invalid character {} {context}", quote_byte(b)),
        }
    }

    fn document(&mut self) -> Result<Raw<'a>, String> {
        let value = self.value()?;
        self.skip_space();
        match self.peek() {
            None => Ok(value),
            Some(_) => Err(self.refuse("after top-level value")),
        }
    }

    fn value(&mut self) -> Result<Raw<'a>, String> {
        if self.values >= MAX_VALUES {
            return Err("too many values".to_owned());
        }
        self.values += 1;
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.string().map(Raw::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true", Raw::Bool(true)),
            Some(b'f') => self.literal("false", Raw::Bool(false)),
            Some(b'n') => self.literal("null", Raw::Null),
            _ => Err(self.refuse("looking for beginning of value")),
        }
    }

    fn nested(
        &mut self,
        read: fn(&mut Self) -> Result<Raw<'a>, String>,
    ) -> Result<Raw<'a>, String> {
        if self.depth >= MAX_DEPTH {
            return Err(self.refuse("exceeded max depth"));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self) -> Result<Raw<'a>, String> {
        let mut entries = Vec::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Raw::Object(entries));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.refuse("looking for beginning of object key string"));
            }
            let key = self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(self.refuse("after object key"));
            }
            self.at += 1;
            let value = self.value()?;
            entries.push((key, value));
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Raw::Object(entries));
                }
                _ => return Err(self.refuse("after object key:value pair")),
            }
        }
    }

    fn array(&mut self) -> Result<Raw<'a>, String> {
        let mut items = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Raw::Array(items));
        }
        loop {
            items.push(self.value()?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Raw::Array(items));
                }
                _ => return Err(self.refuse("after array element")),
            }
        }
    }

    fn literal(&mut self, word: &'static str, value: Raw<'a>) -> Result<Raw<'a>, String> {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                return Err(self.refuse(&format!(
                    "in literal {word} (expecting '{}')",
                    char::from(expected)
                )));
            }
            self.at += 1;
        }
        Ok(value)
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Raw<'a>, String> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => {
                self.digits();
            }
            _ => return Err(self.refuse("in numeric literal")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.refuse("after decimal point in numeric literal"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.refuse("in exponent of numeric literal"));
            }
        }
        Ok(Raw::Number(String::from_utf8_lossy(
            &self.text[start..self.at],
        )))
    }

    fn string(&mut self) -> Result<Cow<'a, str>, String> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek() {
                Some(b'"') => {
                    let text = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(String::from_utf8_lossy(text));
                }
                Some(b'\\') => break,
                Some(0x20..) => self.at += 1,
                _ => return Err(self.refuse("in string literal")),
            }
        }
        let mut bytes = self.text[start..self.at].to_vec();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => {
                    self.at += 1;
                    let c = self.escape()?;
                    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                Some(b @ 0x20..) => {
                    bytes.push(b);
                    self.at += 1;
                }
                _ => return Err(self.refuse("in string literal")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, String> {
        let c = match self.peek() {
            Some(b @ (b'"' | b'\\' | b'/')) => char::from(b),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.refuse("in string escape code")),
        };
        self.at += 1;
        Ok(c)
    }

    fn hex(&mut self) -> Result<u32, String> {
        let mut value = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|b| char::from(b).to_digit(16)) else {
                return Err(self.refuse("in \\u hexadecimal character escape"));
            };
            value = value * 16 + digit;
            self.at += 1;
        }
        Ok(value)
    }

    /// One or two `\u` escapes; half a pair becomes the replacement character.
    fn unicode(&mut self) -> Result<char, String> {
        let first = self.hex()?;
        if let Some(c) = char::from_u32(first) {
            return Ok(c);
        }
        let second = self.text[self.at..].starts_with(b"\\u") && first < 0xdc00;
        if second {
            let before = self.at;
            self.at += 2;
            let low = self.hex()?;
            if (0xdc00..0xe000).contains(&low) {
                let pair = 0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = before;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }
}

fn quote_byte(b: u8) -> String {
    match b {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        _ => {
            let quoted = davit_api::field::quote(&char::from(b).to_string());
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sentences_of_go() {
        for (text, sentence) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{\"a\":1", "unexpected end of JSON input"),
            ("x", "invalid character 'x' looking for beginning of value"),
            (
                "{a",
                "invalid character 'a' looking for beginning of object key string",
            ),
            (
                "{\"a\":1,}",
                "invalid character '}' looking for beginning of object key string",
            ),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            (
                "{\"a\":1 \"b\"}",
                "invalid character '\"' after object key:value pair",
            ),
            ("[1 2]", "invalid character '2' after array element"),
            (
                "[1,]",
                "invalid character ']' looking for beginning of value",
            ),
            ("1 2", "invalid character '2' after top-level value"),
            ("01", "invalid character '1' after top-level value"),
            (
                "tru1",
                "invalid character '1' in literal true (expecting 'e')",
            ),
            ("-x", "invalid character 'x' in numeric literal"),
            (
                "1.x",
                "invalid character 'x' after decimal point in numeric literal",
            ),
            (
                "1ex",
                "invalid character 'x' in exponent of numeric literal",
            ),
            ("\"\n\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            (
                "\"\\u00x\"",
                "invalid character 'x' in \\u hexadecimal character escape",
            ),
        ] {
            let refused = ReadError::Syntax(sentence.to_owned());
            assert_eq!(read(text.as_bytes()), Err(refused), "{text}");
        }
        let deep = "[".repeat(100_000);
        let refused = "invalid character '[' exceeded max depth".to_owned();
        assert_eq!(read(deep.as_bytes()), Err(ReadError::Syntax(refused)));
    }

    #[test]
    fn values_have_an_end() {
        let list = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
        assert!(read(list(MAX_VALUES - 1).as_bytes()).is_ok());
        assert_eq!(read(list(MAX_VALUES).as_bytes()), Err(ReadError::TooMany));
    }

    #[test]
    fn strings() {
        let value = |s: &str| match read(s.as_bytes()).unwrap() {
            Raw::String(s) => s.into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(value(r#""a\"\\\/\b\f\n\r\té""#), "a\"\\/\u{8}\u{c}\n\r\té");
        assert_eq!(value(r#""\u00e9\ud83d\ude00""#), "é😀");
        assert_eq!(value(r#""\ud83d\u0041\ude00""#), "\u{fffd}A\u{fffd}");
        assert_eq!(
            read(b"\"\xff\"").unwrap(),
            Raw::String(Cow::Owned("\u{fffd}".to_owned()))
        );
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = read(&bytes);
        }

        #[test]
        fn agrees_with_serde(text in "[\\[\\]{}\",:0-9a-e.tru\\\\ -]{0,24}") {
            let ours = read(text.as_bytes()).ok().and_then(|r| r.into_value().ok());
            let theirs: Option<serde_json::Value> = serde_json::from_str(&text).ok();
            // A lone surrogate is an error there and the replacement character here.
            if !text.contains("\\u") {
                prop_assert_eq!(ours.is_some(), theirs.is_some());
            }
        }
    }
}
