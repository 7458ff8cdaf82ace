//! YAML input as the same untyped tree.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Options};

use super::{MAX_DEPTH, Raw};

/// Bytes of all scalars together, aliases written out.
const MAX_TEXT: usize = 12 << 20;

/// What was read, and the sentence about repeated keys, of which the last wins.
pub(crate) struct Read {
    pub(crate) value: Raw<'static>,
    pub(crate) duplicates: Option<String>,
}

/// Reads one YAML document: the first, where there are several.
pub(crate) fn read(text: &[u8]) -> Result<Read, String> {
    let text = std::str::from_utf8(text).map_err(|_| "yaml: invalid UTF-8".to_owned())?;
    let first = match parse(text, DuplicateKeyPolicy::Error) {
        Ok(value) => {
            return Ok(Read {
                value,
                duplicates: None,
            });
        }
        Err(error) => error,
    };
    match parse(text, DuplicateKeyPolicy::LastWins) {
        Ok(value) => Ok(Read {
            value,
            duplicates: Some(first),
        }),
        Err(error) => Err(error),
    }
}

fn parse(text: &str, duplicates: DuplicateKeyPolicy) -> Result<Raw<'static>, String> {
    let read = match serde_saphyr::from_str_with_options::<Owned>(text, options(duplicates)) {
        Err(error) if is_about_others(&error) => {
            let mut text = text.as_bytes();
            let mut documents = serde_saphyr::read_with_options(&mut text, options(duplicates));
            documents.next().unwrap_or(Err(error))
        }
        read => read,
    };
    read.map(|o| o.0).map_err(|error| sentence(&error))
}

/// Whether all that is wrong is that more documents follow.
fn is_about_others(error: &serde_saphyr::Error) -> bool {
    matches!(
        error.without_snippet(),
        serde_saphyr::Error::MultipleDocuments { .. }
    )
}

fn options(duplicates: DuplicateKeyPolicy) -> Options {
    let mut options = Options::default();
    options.duplicate_keys = duplicates;
    // y and n, yes and no, on and off are booleans, as in YAML 1.1 and the libraries of Kubernetes
    options.strict_booleans = false;
    options.legacy_octal_numbers = true;
    options.emit_comments = false;
    if let Some(budget) = &mut options.budget {
        budget.max_depth = MAX_DEPTH;
        // what aliases repeat counts: a text of the largest size the API takes may say its own size a few times over
        budget.max_total_scalar_bytes = MAX_TEXT;
    }
    options
}

/// What is wrong; repeated keys in the words of the Kubernetes libraries, which name their line.
fn sentence(error: &serde_saphyr::Error) -> String {
    if let serde_saphyr::Error::DuplicateMappingKey { key, location } = error.without_snippet() {
        let (line, key) = (location.line(), key.as_deref().unwrap_or_default());
        return format!("yaml: unmarshal errors:\n  line {line}: key \"{key}\" already set in map");
    }
    let text = error.to_string();
    format!("yaml: {}", text.lines().next().unwrap_or_default())
}

struct Owned(Raw<'static>);

impl<'de> Deserialize<'de> for Owned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor).map(Owned)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw<'static>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Self::Value, E> {
        Ok(Raw::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Self::Value, E> {
        Ok(Raw::Number(Cow::Owned(v.to_string())))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Self::Value, E> {
        Ok(Raw::Number(Cow::Owned(v.to_string())))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Self::Value, E> {
        Ok(Raw::Number(Cow::Owned(v.to_string())))
    }

    fn visit_str<E>(self, v: &str) -> Result<Self::Value, E> {
        Ok(Raw::String(Cow::Owned(v.to_owned())))
    }

    fn visit_string<E>(self, v: String) -> Result<Self::Value, E> {
        Ok(Raw::String(Cow::Owned(v)))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(RawVisitor)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Owned>()? {
            items.push(item.0);
        }
        Ok(Raw::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<String>()? {
            entries.push((Cow::Owned(key), access.next_value::<Owned>()?.0));
        }
        Ok(Raw::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> serde_json::Value {
        read(text.as_bytes()).unwrap().value.into_value().unwrap()
    }

    #[test]
    fn words_mean_what_yaml_1_1_says() {
        assert_eq!(
            value(
                "a: y\nb: no\nc: true\nd: 0644\ne: '1'\nf: 1.5\ng: ~\nh: Off\ni: 'on'\nj: yes!\n1: x\n"
            ),
            json!({"a": true, "b": false, "c": true, "d": 420, "e": "1", "f": 1.5, "g": null,
                "h": false, "i": "on", "j": "yes!", "1": "x"})
        );
    }

    #[test]
    fn of_several_documents_the_first_counts() {
        for text in ["a: 1\n---\na: 2\n", "---\na: 1\n---\nb: [\n"] {
            let first = value(text);
            assert_eq!(first, json!({"a": 1}), "{text}");
        }
        assert!(read(b"a: [\n---\na: 2\n").is_err());
    }

    #[test]
    fn json_is_yaml() {
        assert_eq!(
            value("{\"a\": [1, {\"b\": null}]}"),
            json!({"a": [1, {"b": null}]})
        );
    }

    #[test]
    fn repetitions_do_not_multiply() {
        let mut laughs = "a0: &a0 [ha]\n".to_owned();
        for n in 1..12 {
            let line = format!(
                "a{n}: &a{n} [{}]\n",
                vec![format!("*a{}", n - 1); 9].join(",")
            );
            laughs.push_str(&line);
        }
        assert!(read(laughs.as_bytes()).is_err());
        let long = format!(
            "a: &a {}\nb: [{}]\n",
            "x".repeat(1 << 20),
            vec!["*a"; 90].join(",")
        );
        assert!(read(long.as_bytes()).is_err());
    }

    #[test]
    fn anchors_and_repetitions() {
        assert_eq!(value("a: &x [1]\nb: *x\n"), json!({"a": [1], "b": [1]}));
        let read = read(b"a: 1\na: 2\n").unwrap();
        assert_eq!(
            read.duplicates.as_deref(),
            Some("yaml: unmarshal errors:\n  line 2: key \"a\" already set in map")
        );
        assert_eq!(read.value.into_value().unwrap(), json!({"a": 2}));
    }

    #[test]
    fn refusals() {
        for bad in ["a: [", "a: b: c", "a\n b: c"] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
        let deep = "[".repeat(10_000);
        assert!(read(deep.as_bytes()).is_err());
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
        assert!(read(bomb.as_bytes()).is_err());
    }
}
