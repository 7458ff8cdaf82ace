//! Field selectors: `metadata.name=a,status.phase!=Running`.

use std::fmt;

use crate::labels::SelectorError;

/// One condition on one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldTerm {
    /// Field label, e.g. `spec.nodeName`.
    pub field: String,
    /// The value compared with.
    pub value: String,
    /// Whether the field must have the value; otherwise it must have another.
    pub equal: bool,
}

/// Conditions that must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Matches everything.
    pub fn everything() -> Self {
        FieldSelector::default()
    }

    /// Matches objects for which all terms hold.
    pub fn new(terms: Vec<FieldTerm>) -> Self {
        FieldSelector { terms }
    }

    /// Parses the query language of `fieldSelector`: `=`, `==` and `!=` joined by commas, with
    /// backslash before `\`, `,` and `=` in values. Whether a field label is supported depends on
    /// the kind and is for the caller to check.
    ///
    /// # Errors
    /// With the texts of Kubernetes.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            let (field, operator, value) = split_term(term).ok_or_else(|| {
                SelectorError(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                ))
            })?;
            // an operator alone says nothing
            if field.is_empty() && value.is_empty() {
                continue;
            }
            terms.push(FieldTerm {
                field: field.to_owned(),
                value: unescape(value)?,
                equal: operator != "!=",
            });
        }
        Ok(FieldSelector { terms })
    }

    /// The conditions.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// Whether there is no condition.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether an object matches whose field values are looked up by `value_of`; a field that is
    /// not there counts as empty.
    pub fn matches<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms
            .iter()
            .all(|t| (value_of(&t.field).unwrap_or_default() == t.value) == t.equal)
    }

    /// The one value that a field must have, if the selector demands one.
    pub fn requires_exact_match(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|t| t.equal && t.field == field)
            .map(|t| t.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let operator = if term.equal { "=" } else { "!=" };
            write!(f, "{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

/// Splits at commas that no backslash escapes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, b) in text.bytes().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Splits at the first operator.
fn split_term(term: &str) -> Option<(&str, &str, &str)> {
    for (i, _) in term.char_indices() {
        for operator in ["!=", "==", "="] {
            if let Some(value) = term[i..].strip_prefix(operator) {
                return Some((&term[..i], operator, value));
            }
        }
    }
    None
}

/// Puts a backslash before `\`, `,` and `=`.
pub fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => {
                    return Err(SelectorError(format!(
                        "invalid field selector: invalid escape sequence: \\{c}"
                    )));
                }
                None => {
                    return Err(SelectorError(
                        "invalid field selector: invalid escape sequence: \\".to_owned(),
                    ));
                }
            },
            ',' | '=' => {
                return Err(SelectorError(format!(
                    "invalid field selector: unescaped character in value: {c}"
                )));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn language() {
        let s = FieldSelector::parse("metadata.name=a,spec.nodeName!=b,x==c\\,d").unwrap();
        assert_eq!(s.terms().len(), 3);
        assert_eq!(s.requires_exact_match("metadata.name"), Some("a"));
        let fields = [("metadata.name", "a"), ("x", "c,d")];
        let get = |k: &str| fields.iter().find(|(n, _)| *n == k).map(|(_, v)| *v);
        assert!(s.matches(get));
        assert!(!FieldSelector::parse("x!=c\\,d").unwrap().matches(get));
        for nothing in ["", ",", "=", "!="] {
            assert!(FieldSelector::parse(nothing).unwrap().is_empty());
        }
        assert!(FieldSelector::parse("gone=").unwrap().matches(get));
    }

    #[test]
    fn refusals() {
        assert_eq!(
            FieldSelector::parse("a=b,c").unwrap_err().to_string(),
            "invalid selector: 'a=b,c'; can't understand 'c'"
        );
        assert!(FieldSelector::parse("a=b\\x").is_err());
        assert!(FieldSelector::parse("a=b=c").is_err());
    }

    proptest! {
        #[test]
        fn parse_never_panics(s in "\\PC*") {
            let _ = FieldSelector::parse(&s);
        }

        #[test]
        fn printing_round_trips(f in "[a-z.]{1,8}", v in "\\PC{0,8}", equal: bool) {
            let s = FieldSelector::new(vec![FieldTerm { field: f, value: v, equal }]);
            prop_assert_eq!(FieldSelector::parse(&s.to_string()).unwrap(), s);
        }
    }
}
