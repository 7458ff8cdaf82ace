//! Reading as much of an object as its row is made of. A list of thousands of objects is read for its table, and most of
//! what was written about each (who owns which field, the details of containers) is on no row.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// What is kept of a value; of a list, what is kept of each of its elements.
enum Keep {
    /// Everything.
    All,
    /// Nothing.
    Nothing,
    /// Of an object these fields.
    Only(&'static [(&'static str, Keep)]),
    /// Of an object everything, of these fields as much as is said.
    Except(&'static [(&'static str, Keep)]),
}

static ALL: Keep = Keep::All;
static NOTHING: Keep = Keep::Nothing;

static OBJECT: Keep = Keep::Except(&[(
    "metadata",
    Keep::Except(&[("managedFields", Keep::Nothing)]),
)]);

const CONTAINER: Keep = Keep::Only(&[("name", Keep::All), ("restartPolicy", Keep::All)]);

const CONTAINER_STATUSES: Keep = Keep::Only(&[
    ("name", Keep::All),
    ("ready", Keep::All),
    ("started", Keep::All),
    ("restartCount", Keep::All),
    ("state", Keep::All),
    ("lastState", Keep::All),
]);

const CONDITIONS: Keep = Keep::Only(&[
    ("type", Keep::All),
    ("status", Keep::All),
    ("reason", Keep::All),
]);

static POD: Keep = Keep::Only(&[
    (
        "metadata",
        Keep::Only(&[
            ("name", Keep::All),
            ("creationTimestamp", Keep::All),
            ("deletionTimestamp", Keep::All),
        ]),
    ),
    (
        "spec",
        Keep::Only(&[
            ("nodeName", Keep::All),
            ("readinessGates", Keep::All),
            ("containers", CONTAINER),
            ("initContainers", CONTAINER),
        ]),
    ),
    (
        "status",
        Keep::Only(&[
            ("phase", Keep::All),
            ("reason", Keep::All),
            ("podIP", Keep::All),
            ("podIPs", Keep::All),
            ("nominatedNodeName", Keep::All),
            ("conditions", CONDITIONS),
            ("initContainerStatuses", CONTAINER_STATUSES),
            ("containerStatuses", CONTAINER_STATUSES),
        ]),
    ),
]);

/// What the cells of a built-in kind and the conditions of its row are made of, read from an object's JSON.
///
/// # Errors
/// When it isn't JSON.
pub fn read(group: &str, kind: &str, json: &[u8]) -> Result<Value, serde_json::Error> {
    let keep = match (group, kind) {
        ("", "Pod") => &POD,
        _ => &OBJECT,
    };
    let mut input = serde_json::Deserializer::from_slice(json);
    let value = keep.deserialize(&mut input)?;
    input.end()?;
    Ok(value)
}

impl Keep {
    fn of(&self, key: &str) -> &Keep {
        let (fields, rest) = match self {
            Keep::All | Keep::Nothing => return self,
            Keep::Only(fields) => (fields, &NOTHING),
            Keep::Except(fields) => (fields, &ALL),
        };
        let found = fields.iter().find(|(name, _)| *name == key);
        found.map_or(rest, |(_, keep)| keep)
    }
}

impl<'de> DeserializeSeed<'de> for &Keep {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        match self {
            Keep::All => serde::Deserialize::deserialize(input),
            _ => input.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for &Keep {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(kept) = object.next_key_seed(KeyOf(self))? {
            match kept {
                Some((key, keep)) => {
                    fields.insert(key, object.next_value_seed(keep)?);
                }
                None => {
                    object.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(fields))
    }
}

/// A key, and what is kept of its value; nothing is made of keys whose values are not kept.
struct KeyOf<'k>(&'k Keep);

impl<'de, 'k> DeserializeSeed<'de> for KeyOf<'k> {
    type Value = Option<(String, &'k Keep)>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_str(self)
    }
}

impl<'k> Visitor<'_> for KeyOf<'k> {
    type Value = Option<(String, &'k Keep)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        let keep = self.0.of(key);
        let is_kept = !matches!(keep, Keep::Nothing);
        Ok(is_kept.then(|| (key.to_owned(), keep)))
    }
}
