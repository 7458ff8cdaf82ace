//! Query strings, decoded once per request.

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
}
