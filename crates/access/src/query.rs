//! Query strings, decoded once per request.

use std::num::{IntErrorKind, ParseIntError};

use davit_api::field::quote;
use percent_encoding::percent_decode;

/// The decoded pairs of a query string, in order.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=b&c=d`; `+` is a space. Bad escapes stay as they are.
    pub fn parse(query: &str) -> Self {
        let pairs = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(name), decode(value))
            })
            .collect();
        Self(pairs)
    }

    /// The first value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(held, _)| held == name)
            .map(|(_, value)| value.as_str())
    }

    /// The first value of `name` unless it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// The first value of `name`, a whole number, unless it is empty.
    ///
    /// # Errors
    /// What Go's `strconv` says of a text that is none.
    pub fn number(&self, name: &str) -> Result<Option<i64>, String> {
        let number = |text: &str| {
            let number = text.parse::<i64>();
            number.map_err(|error| no_number("ParseInt", text, &error))
        };
        self.text(name).map(number).transpose()
    }

    /// All values of `name`.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(held, _)| held == name)
            .map(|(_, value)| value.as_str())
    }

    /// A flag as Kubernetes' query conversion reads it: absent, `false` and `0` are false,
    /// everything else (also the empty value of `?watch`) is true.
    pub fn flag(&self, name: &str) -> bool {
        self.optional_flag(name).unwrap_or(false)
    }

    /// As [`Query::flag`], telling absence from false.
    pub fn optional_flag(&self, name: &str) -> Option<bool> {
        self.get(name)
            .map(|value| !(value.eq_ignore_ascii_case("false") || value == "0"))
    }
}

/// What Go's `strconv` says of a text that its `function` (`ParseInt`, `ParseUint`) does not take for a number.
pub fn no_number(function: &str, text: &str, error: &ParseIntError) -> String {
    let why = match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    };
    format!("strconv.{function}: parsing {}: {why}", quote(text))
}

fn decode(text: &str) -> String {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        percent_decode(spaced.as_bytes())
            .decode_utf8_lossy()
            .into_owned()
    } else {
        percent_decode(text.as_bytes())
            .decode_utf8_lossy()
            .into_owned()
    }
}

/// Encodes a query value.
pub fn encode(text: &str) -> String {
    const KEPT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~');
    percent_encoding::utf8_percent_encode(text, KEPT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_and_flags_follow_kubernetes() {
        let query = Query::parse("a=b%2Fc&watch=1&x&follow=false&a=d+e&t=true");
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["b/c", "d e"]);
        assert!(query.flag("watch") && query.flag("x") && query.flag("t"));
        assert!(!query.flag("follow") && !query.flag("missing"));
    }

    #[test]
    fn numbers_are_refused_in_the_words_of_strconv() {
        let query = Query::parse("a=-1&b=&c=x&d=99999999999999999999");
        assert_eq!(query.number("a"), Ok(Some(-1)));
        assert_eq!((query.number("b"), query.number("e")), (Ok(None), Ok(None)));
        let why = |name| query.number(name).unwrap_err();
        assert_eq!(why("c"), "strconv.ParseInt: parsing \"x\": invalid syntax");
        assert!(why("d").ends_with("value out of range"));
    }
}
