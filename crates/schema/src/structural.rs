//! The structural schema of a custom kind: what its objects look like and what happens to them.
//!
//! A schema is read once from the `openAPIV3Schema` of a CustomResourceDefinition
//! ([`Structural::parse`]) into a tree that is cheap to walk. Objects of custom kinds are JSON
//! values in which unset, null and zero differ; they are pruned to what is declared, get declared
//! defaults, and are checked against declared limits, with the sentences of the original. Types for
//! server-side apply are derived from the same tree ([`Structural::types`]).
//!
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>

use std::sync::{Arc, OnceLock};

use davit_api::field::ErrorList;
use davit_api::kinds::{ListType, MapType, Text, TypeId, TypeTable};
use regex::Regex;
use serde_json::Value;

use crate::decode::{DecodeError, Decoded, Encoding};

mod check;
mod compat;
mod decode;
mod defaults;
mod formats;
mod lists;
mod meta;
mod numbers;
mod parse;
mod paths;
mod prune;
mod types;
mod validate;

pub use check::{SchemaCheck, check_schema};
pub use decode::parse_bytes;
pub use lists::duplicates;
pub use meta::embedded_errors;
pub use numbers::canonical;
pub use paths::{SimplePath, is_selectable, selectable};
pub use prune::Pruned;
pub use validate::blocks_rules;

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `object`.
    Object,
    /// `array`.
    Array,
    /// `string`.
    String,
    /// `integer`.
    Integer,
    /// `number`.
    Number,
    /// `boolean`.
    Boolean,
}

impl Kind {
    /// The word in schemas.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Object => "object",
            Kind::Array => "array",
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Boolean => "boolean",
        }
    }
}

/// What may stand in an object beside its declared properties.
#[derive(Debug, Default)]
pub enum Additional {
    /// Nothing is said: other properties are unknown.
    #[default]
    Unset,
    /// `true`: other properties are there, of which nothing is known.
    Any,
    /// A schema for each other property.
    Schema(Box<Node>),
}

/// One schema and those below it.
#[derive(Debug, Default)]
pub struct Node {
    /// The declared type; none for `x-kubernetes-int-or-string` and unknown values.
    pub kind: Option<Kind>,
    /// null is a value.
    pub nullable: bool,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded: bool,
    /// Declared properties, sorted by name.
    pub properties: Box<[(Text, Node)]>,
    /// Other properties.
    pub additional: Additional,
    /// Elements of a list.
    pub items: Option<Box<Node>>,
    /// The default; a default of null is like none.
    pub default: Option<Box<Value>>,
    /// `x-kubernetes-list-type`.
    pub list_type: Option<ListType>,
    /// `x-kubernetes-list-map-keys`.
    pub list_map_keys: Box<[Text]>,
    /// `x-kubernetes-map-type`.
    pub map_type: Option<MapType>,
    /// What values must satisfy.
    pub limits: Option<Box<Limits>>,
    /// `x-kubernetes-validations`.
    pub rules: Box<[Rule]>,
}

impl Node {
    /// The schema of a declared property.
    pub fn property(&self, name: &str) -> Option<&Node> {
        self.properties
            .binary_search_by(|(key, _)| key.as_str().cmp(name))
            .ok()
            .map(|at| &self.properties[at].1)
    }

    /// The schema of a property, declared or additional.
    pub fn entry(&self, name: &str) -> Option<&Node> {
        self.property(name).or(match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        })
    }

    /// The schema of additional properties.
    pub fn additional(&self) -> Option<&Node> {
        match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        }
    }

    /// The declared format.
    pub fn format(&self) -> Option<&str> {
        self.limits.as_ref()?.format.as_deref()
    }

    /// Whether a rule stands here or below.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
            || self.items.as_ref().is_some_and(|items| items.has_rules())
            || self.additional().is_some_and(Node::has_rules)
            || self.properties.iter().any(|(_, node)| node.has_rules())
    }
}

/// Limits of values.
#[derive(Debug, Default)]
pub struct Limits {
    /// Named format.
    pub format: Option<Text>,
    /// Least number.
    pub minimum: Option<f64>,
    /// The least number itself is too small.
    pub exclusive_minimum: bool,
    /// Greatest number.
    pub maximum: Option<f64>,
    /// The greatest number itself is too large.
    pub exclusive_maximum: bool,
    /// Numbers are multiples of this.
    pub multiple_of: Option<f64>,
    /// Fewest characters.
    pub min_length: Option<u64>,
    /// Most characters.
    pub max_length: Option<u64>,
    /// Fewest elements.
    pub min_items: Option<u64>,
    /// Most elements.
    pub max_items: Option<u64>,
    /// Fewest properties.
    pub min_properties: Option<u64>,
    /// Most properties.
    pub max_properties: Option<u64>,
    /// Regular expression that texts match somewhere.
    pub pattern: Option<Pattern>,
    /// The only values.
    pub values: Box<[Value]>,
    /// Properties that must be there.
    pub required: Box<[Text]>,
    /// All of these hold.
    pub all_of: Box<[Node]>,
    /// One of these holds, or more.
    pub any_of: Box<[Node]>,
    /// Exactly one of these holds.
    pub one_of: Box<[Node]>,
    /// This does not hold.
    pub not: Option<Box<Node>>,
}

/// A regular expression, compiled when it is first needed.
#[derive(Debug)]
pub struct Pattern {
    /// As it was written.
    pub text: Box<str>,
    regex: OnceLock<Option<Regex>>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            regex: OnceLock::new(),
        }
    }

    /// Whether a text matches. Patterns that do not compile were refused when they were written and
    /// match everything.
    pub fn matches(&self, text: &str) -> bool {
        self.regex
            .get_or_init(|| compat::regex(&self.text, compat::LARGEST).ok())
            .as_ref()
            .is_none_or(|regex| regex.is_match(text))
    }
}

/// One of `x-kubernetes-validations`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// The expression.
    pub rule: String,
    /// What is said when it does not hold.
    pub message: String,
    /// An expression that makes what is said.
    pub message_expression: String,
    /// `FieldValueInvalid` and its like; empty for the usual one.
    pub reason: String,
    /// The field that is blamed, relative to where the rule stands.
    pub field_path: String,
    /// `oldSelf` is optional.
    pub optional_old_self: Option<bool>,
}

/// Why a schema could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(pub(crate) String);

/// The schema of one version of a custom kind.
#[derive(Debug)]
pub struct Structural {
    root: Node,
    types: OnceLock<(Arc<TypeTable>, TypeId)>,
}

impl Structural {
    /// Reads an `openAPIV3Schema`.
    ///
    /// # Errors
    /// When something stands in it that structural schemas have no place for (`$ref`, lists of
    /// item schemas, ...); [`check_schema`] says where.
    pub fn parse(schema: &Value) -> Result<Self, SchemaError> {
        Ok(Self {
            root: parse::node(schema)?,
            types: OnceLock::new(),
        })
    }

    /// The schema that keeps everything.
    pub fn open() -> Self {
        let root = Node {
            kind: Some(Kind::Object),
            preserve: true,
            ..Node::default()
        };
        Self {
            root,
            types: OnceLock::new(),
        }
    }

    /// The schema of the whole object.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Decodes a body: unknown fields are dropped and told, as are repeated ones.
    ///
    /// # Errors
    /// When the body cannot be parsed or its metadata is no metadata.
    pub fn decode(&self, body: &[u8], encoding: Encoding) -> Result<Decoded, DecodeError> {
        decode::decode(self, body, encoding)
    }

    /// Decodes a value that already is JSON, such as the result of a patch.
    ///
    /// # Errors
    /// When the value nests too deeply or its metadata is no metadata.
    pub fn decode_value(&self, value: Value) -> Result<Decoded, DecodeError> {
        decode::decode_value(self, value)
    }

    /// Brings an object that was stored under an older schema into the form of this one: unknown
    /// fields go, defaults come. Tells whether anything changed.
    pub fn refresh(&self, object: &mut Value) -> bool {
        let pruned = prune::prune(object, &self.root, true);
        let changed = !pruned.is_empty();
        meta::coerce_stored(object, &self.root) | changed | self.default(object)
    }

    /// Brings a converted object into the form of this schema: unknown fields and nulls that are no values go, and
    /// nothing comes. Tells whether anything changed.
    pub fn trim(&self, object: &mut Value) -> bool {
        let pruned = prune::prune(object, &self.root, true);
        let changed = !pruned.is_empty() | defaults::drop_nulls(object, &self.root);
        meta::coerce_stored(object, &self.root) | changed
    }

    /// Writes declared defaults where nothing stands, and leaves nulls to validation: what was applied says null on
    /// purpose.
    pub fn fill(&self, object: &mut Value) {
        defaults::apply(object, &self.root);
    }

    /// Drops nulls that are no values and writes declared defaults. Doing it twice changes nothing.
    /// Tells whether anything changed.
    pub fn default(&self, object: &mut Value) -> bool {
        defaults::drop_nulls(object, &self.root) | defaults::apply(object, &self.root)
    }

    /// Drops what is not declared; tells the paths of what was dropped.
    pub fn prune(&self, object: &mut Value) -> Pruned {
        prune::prune(object, &self.root, true)
    }

    /// What is wrong with an object. With the object as it was before, values that did not change
    /// are not held against the writer (KEP-4008).
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        validate::validate(&self.root, object, old)
    }

    /// As [`Structural::validate`] where only the status was written.
    pub fn validate_status(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        validate::validate_status(&self.root, object, old)
    }

    /// The types for server-side apply; made when first asked for.
    pub fn types(&self) -> (&Arc<TypeTable>, TypeId) {
        let (table, root) = self.types.get_or_init(|| types::of(&self.root));
        (table, *root)
    }
}

#[cfg(test)]
mod tests;
