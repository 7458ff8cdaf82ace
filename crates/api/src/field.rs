//! Paths of fields and what can be wrong with them, with the texts of Kubernetes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde_json::Value;

/// Where a field stands, e.g. `spec.containers[0].name` or `metadata.labels[key]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    /// The root of an object, of which [`Path::child`] makes a first field.
    pub fn root() -> Self {
        Path::default()
    }

    /// A field of the root.
    pub fn new(name: &str) -> Self {
        Path(name.to_owned())
    }

    /// A field of the struct at this path.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            return Path::new(name);
        }
        Path(format!("{}.{name}", self.0))
    }

    /// An element of the list at this path.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Path(format!("{}[{index}]", self.0))
    }

    /// An entry of the map at this path.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Path(format!("{}[{key}]", self.0))
    }

    /// The text of the path; empty at the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorType {
    /// A value that is referred to does not exist.
    NotFound,
    /// The value is missing.
    Required,
    /// A value that must be unique is not.
    Duplicate,
    /// The value is malformed or out of bounds.
    Invalid,
    /// The value has the wrong type.
    TypeInvalid,
    /// The value is none of a closed set.
    NotSupported,
    /// The value may not be given under these circumstances.
    Forbidden,
    /// The value is too long.
    TooLong,
    /// The value is too short.
    TooShort,
    /// The list has too many elements.
    TooMany,
    /// The list has too few elements.
    TooFew,
    /// The check itself failed.
    Internal,
}

impl ErrorType {
    /// The cause reason in a Status, e.g. `FieldValueInvalid`.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorType::NotFound => "FieldValueNotFound",
            ErrorType::Required => "FieldValueRequired",
            ErrorType::Duplicate => "FieldValueDuplicate",
            ErrorType::Invalid => "FieldValueInvalid",
            ErrorType::TypeInvalid => "FieldValueTypeInvalid",
            ErrorType::NotSupported => "FieldValueNotSupported",
            ErrorType::Forbidden => "FieldValueForbidden",
            ErrorType::TooLong => "FieldValueTooLong",
            ErrorType::TooShort => "FieldValueTooShort",
            ErrorType::TooMany => "FieldValueTooMany",
            ErrorType::TooFew => "FieldValueTooFew",
            ErrorType::Internal => "InternalError",
        }
    }

    fn label(self) -> &'static str {
        match self {
            ErrorType::NotFound => "Not found",
            ErrorType::Required => "Required value",
            ErrorType::Duplicate => "Duplicate value",
            ErrorType::Invalid | ErrorType::TypeInvalid => "Invalid value",
            ErrorType::NotSupported => "Unsupported value",
            ErrorType::Forbidden => "Forbidden",
            ErrorType::TooLong => "Too long",
            ErrorType::TooShort => "Too short",
            ErrorType::TooMany => "Too many",
            ErrorType::TooFew => "Too few",
            ErrorType::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(
            self,
            ErrorType::Required
                | ErrorType::Forbidden
                | ErrorType::TooLong
                | ErrorType::TooShort
                | ErrorType::Internal
        )
    }
}

/// One fault of one field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// What is wrong.
    pub error_type: ErrorType,
    /// The path of the field.
    pub field: String,
    /// The bad value, where it is shown.
    pub value: Option<Value>,
    /// What would be right.
    pub detail: String,
}

/// The faults of one object, in the order in which they were found.
pub type ErrorList = Vec<FieldError>;

impl FieldError {
    fn new(
        error_type: ErrorType,
        path: &Path,
        value: Option<Value>,
        detail: impl Into<String>,
    ) -> Self {
        FieldError {
            error_type,
            field: path.to_string(),
            value,
            detail: detail.into(),
        }
    }

    /// `Not found: value`.
    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::NotFound, path, Some(value.into()), "")
    }

    /// `Required value: detail`.
    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Required, path, None, detail)
    }

    /// `Duplicate value: value`.
    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::Duplicate, path, Some(value.into()), "")
    }

    /// `Invalid value: value: detail`.
    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Invalid, path, Some(value.into()), detail)
    }

    /// `Invalid value`, without the value: it is large, or the fault is what is not there.
    pub fn invalid_unshown(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Invalid, path, None, detail)
    }

    /// `Invalid value: value: detail` for a value of the wrong type.
    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::TypeInvalid, path, Some(value.into()), detail)
    }

    /// `Unsupported value: value: supported values: "a", "b"`, in the order given.
    pub fn not_supported<S: AsRef<str>>(
        path: &Path,
        value: impl Into<Value>,
        supported: &[S],
    ) -> Self {
        let quoted: Vec<String> = supported.iter().map(|s| quote(s.as_ref())).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(ErrorType::NotSupported, path, Some(value.into()), detail)
    }

    /// `Forbidden: detail`.
    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Forbidden, path, None, detail)
    }

    /// `Too long: may not be more than N bytes`.
    pub fn too_long(path: &Path, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max} {unit}");
        Self::new(ErrorType::TooLong, path, None, detail)
    }

    /// `Too long: may not be more than N characters`.
    pub fn too_long_characters(path: &Path, max: usize) -> Self {
        let unit = if max == 1 { "character" } else { "characters" };
        let detail = format!("may not be more than {max} {unit}");
        Self::new(ErrorType::TooLong, path, None, detail)
    }

    /// `Too many: N: must have at most M items`.
    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {unit}");
        Self::new(ErrorType::TooMany, path, Some(actual.into()), detail)
    }

    /// `Too few: N: must have at least M items`.
    pub fn too_few(path: &Path, actual: usize, min: usize) -> Self {
        let unit = if min == 1 { "item" } else { "items" };
        let detail = format!("must have at least {min} {unit}");
        Self::new(ErrorType::TooFew, path, Some(actual.into()), detail)
    }

    /// `Internal error: detail`.
    pub fn internal(path: &Path, error: impl fmt::Display) -> Self {
        Self::new(ErrorType::Internal, path, None, error.to_string())
    }

    /// The text without the field.
    pub fn body(&self) -> String {
        let mut out = self.error_type.label().to_owned();
        if self.error_type.shows_value()
            && let Some(value) = &self.value
        {
            out.push_str(": ");
            match value {
                Value::String(s) => out.push_str(&quote(s)),
                other => out.push_str(&escape_html(&other.to_string())),
            }
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl std::error::Error for FieldError {}

/// JSON as Go writes it, in which characters of HTML are escaped.
fn escape_html(json: &str) -> Cow<'_, str> {
    const ESCAPED: [(char, &str); 5] = [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ];
    let escape = |c: char| ESCAPED.iter().find(|(known, _)| *known == c);
    if !json.contains(|c| escape(c).is_some()) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 10);
    for c in json.chars() {
        match escape(c) {
            Some((_, text)) => out.push_str(text),
            None => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Wraps the sentences of a `names::check_*` function for a field.
pub fn invalid_each(
    path: &Path,
    value: &str,
    faults: Vec<String>,
) -> impl Iterator<Item = FieldError> {
    faults
        .into_iter()
        .map(move |fault| FieldError::invalid(path, value, fault))
}

/// The list as one text: alone, or `[a, b]` without repetitions.
pub fn aggregate(errors: &[FieldError]) -> String {
    // As many as a request has elements: each is looked up, not compared with all others.
    let mut told = HashSet::new();
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.retain(|text| told.insert(text.clone()));
    match texts.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// A text in quotes, escaped as Go's `%q` does.
pub fn quote(text: &str) -> String {
    use fmt::Write as _;
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if c.is_control() || c == '\u{feff}' || c == '\u{200b}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let p = Path::new("spec").child("containers").index(0).child("name");
        assert_eq!(p.to_string(), "spec.containers[0].name");
        let p = Path::root().child("metadata").child("labels").key("a/b");
        assert_eq!(p.to_string(), "metadata.labels[a/b]");
        assert_eq!(Path::root().to_string(), "<nil>");
    }

    #[test]
    fn texts() {
        let p = Path::new("f");
        for (error, text) in [
            (FieldError::not_found(&p, "v"), "f: Not found: \"v\""),
            (FieldError::required(&p, ""), "f: Required value"),
            (FieldError::required(&p, "why"), "f: Required value: why"),
            (FieldError::duplicate(&p, "v"), "f: Duplicate value: \"v\""),
            (
                FieldError::invalid(&p, 3, "bad"),
                "f: Invalid value: 3: bad",
            ),
            (
                FieldError::invalid(&p, serde_json::json!({"a": 1}), "bad"),
                "f: Invalid value: {\"a\":1}: bad",
            ),
            (
                FieldError::invalid(&p, serde_json::json!(["<a&b>"]), "bad"),
                "f: Invalid value: [\"\\u003ca\\u0026b\\u003e\"]: bad",
            ),
            (
                FieldError::invalid(&p, "<a&b>", "bad"),
                "f: Invalid value: \"<a&b>\": bad",
            ),
            (
                FieldError::not_supported(&p, "v", &["a", "b"]),
                "f: Unsupported value: \"v\": supported values: \"a\", \"b\"",
            ),
            (FieldError::forbidden(&p, "no"), "f: Forbidden: no"),
            (
                FieldError::too_long(&p, 63),
                "f: Too long: may not be more than 63 bytes",
            ),
            (
                FieldError::too_many(&p, 5, 1),
                "f: Too many: 5: must have at most 1 item",
            ),
            (FieldError::internal(&p, "x"), "f: Internal error: x"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn aggregates_without_repetitions() {
        let e = FieldError::required(&Path::new("a"), "");
        let f = FieldError::required(&Path::new("b"), "");
        assert_eq!(aggregate(std::slice::from_ref(&e)), "a: Required value");
        assert_eq!(
            aggregate(&[e.clone(), f, e]),
            "[a: Required value, b: Required value]"
        );
    }

    #[test]
    fn many_errors_are_aggregated_in_one_pass() {
        let path = Path::new("a");
        let errors: Vec<FieldError> = (0..50_000)
            .map(|n| FieldError::required(&path.index(n), ""))
            .collect();
        let (told, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(aggregate(&errors).len()));
        let length = done.recv_timeout(std::time::Duration::from_secs(60));
        assert!(length.expect("not in a minute") > 50_000);
    }

    #[test]
    fn quotes_like_go() {
        assert_eq!(quote("a\"\\\n\u{1}é"), "\"a\\\"\\\\\\n\\x01é\"");
    }
}
