//! Defaults and patches of a kind, by its schema.

use davit_api::field::ErrorList;
use davit_api::kinds::{TypeId, TypeTable};
use davit_schema::decode::{self, DecodeError, Decoded, Encoding};
use davit_schema::patch::{JsonPatch, PatchError, PatchType, merge_patch, strategic_merge_patch};
use davit_schema::structural::Structural;
use davit_schema::{defaults, validate};
use serde_json::Value;

/// Fills in the static defaults.
pub(crate) fn default(types: &TypeTable, root: TypeId, value: &mut Value) {
    defaults::apply(types, root, value);
}

/// What the objects of a kind look like: the types of a built-in kind, or the structural schema of
/// a custom one. Decoding, defaults, limits and patches are asked of it.
#[derive(Debug, Clone, Copy)]
pub enum Shape<'a> {
    /// The table and the type in it.
    Typed(&'a TypeTable, TypeId),
    /// The schema of a version.
    Custom(&'a Structural),
}

impl Shape<'_> {
    /// Decodes a text body.
    pub fn decode(self, body: &[u8], encoding: Encoding) -> Result<Decoded, DecodeError> {
        match self {
            Self::Typed(types, root) => decode::decode(types, root, body, encoding),
            Self::Custom(schema) => schema.decode(body, encoding),
        }
    }

    /// Decodes what already is JSON.
    pub fn decode_value(self, value: Value) -> Result<Decoded, DecodeError> {
        match self {
            Self::Typed(types, root) => decode::decode_value(types, root, value),
            Self::Custom(schema) => schema.decode_value(value),
        }
    }

    /// Fills in the defaults the kind declares.
    pub fn default(self, value: &mut Value) {
        match self {
            Self::Typed(types, root) => default(types, root, value),
            Self::Custom(schema) => {
                schema.default(value);
            }
        }
    }

    /// As [`Shape::default`] for the result of an apply, in which a null that is no value is a fault.
    pub fn default_applied(self, value: &mut Value) {
        match self {
            Self::Typed(..) => self.default(value),
            Self::Custom(schema) => schema.fill(value),
        }
    }

    /// Declared limits. Those of custom kinds are the business of their strategy.
    pub fn validate(self, new: &Value, old: Option<&Value>) -> ErrorList {
        match (self, old) {
            (Self::Typed(types, root), None) => validate::validate(types, root, new),
            (Self::Typed(types, root), Some(old)) => {
                validate::validate_update(types, root, new, old)
            }
            (Self::Custom(_), _) => ErrorList::new(),
        }
    }

    /// Applies a patch.
    pub fn patch(self, patch: &Patch, document: Value) -> Result<Value, PatchError> {
        match self {
            Self::Typed(types, root) => patch.apply(types, root, document),
            // strategic merge is refused before
            Self::Custom(_) => patch.apply(&TypeTable::default(), TypeId(0), document),
        }
    }
}

/// A patch, parsed once and applied as often as races are lost.
#[derive(Debug)]
pub enum Patch {
    /// A list of operations (RFC 6902).
    Json(JsonPatch),
    /// What replaces fields (RFC 7386).
    Merge(Value),
    /// As a merge patch, with the merge keys of the kind's lists.
    Strategic(Value),
}

impl Patch {
    /// Reads a body.
    ///
    /// # Errors
    /// When it is no patch of this type.
    pub fn parse(kind: PatchType, body: &[u8]) -> Result<Self, PatchError> {
        let document = |body| {
            decode::parse(body, Encoding::Json)
                .map_err(|error| PatchError::of_parser(error, str::to_owned))
        };
        Ok(match kind {
            PatchType::Json => Self::Json(JsonPatch::parse(body)?),
            PatchType::Merge => Self::Merge(merge(body)?),
            PatchType::StrategicMerge => Self::Strategic(document(body)?),
        })
    }

    /// The document as the patch leaves it.
    ///
    /// # Errors
    /// When the patch does not fit the document.
    pub fn apply(
        &self,
        types: &TypeTable,
        root: TypeId,
        document: Value,
    ) -> Result<Value, PatchError> {
        match self {
            Self::Json(patch) => patch.apply(&document),
            Self::Merge(patch) => merge_patch(document, patch.clone()),
            Self::Strategic(patch) => strategic_merge_patch(types, root, document, patch.clone()),
        }
    }
}

/// A merge patch, which is an object.
fn merge(body: &[u8]) -> Result<Value, PatchError> {
    let malformed = |why: &dyn std::fmt::Display| format!("error decoding patch: {why}");
    let parsed = decode::parse(body, Encoding::Json).map_err(|error| {
        PatchError::of_parser(error, |text| {
            let detail = text.rsplit_once("json parse error: ").map(|(_, why)| why);
            malformed(&detail.unwrap_or(text))
        })
    })?;
    let word = match parsed {
        Value::Object(_) | Value::Null => return Ok(parsed),
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
    };
    Err(PatchError::Malformed(malformed(&format_args!(
        "json: cannot unmarshal {word} into Go value of type map[string]interface {{}}"
    ))))
}
