//! Defaults and patches of a kind, by its schema.

use davit_api::kinds::{TypeId, TypeTable};
use davit_schema::decode::{self, Encoding};
use davit_schema::defaults;
use davit_schema::patch::{JsonPatch, PatchError, PatchType, merge_patch, strategic_merge_patch};
use serde_json::Value;

/// Fills in the static defaults.
pub(crate) fn default(types: &TypeTable, root: TypeId, value: &mut Value) {
    defaults::apply(types, root, value);
}

/// A patch, parsed once and applied as often as races are lost.
#[derive(Debug)]
pub(crate) enum Patch {
    Json(JsonPatch),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub(crate) fn parse(kind: PatchType, body: &[u8]) -> Result<Self, PatchError> {
        let document = |body| {
            decode::parse(body, Encoding::Json)
                .map_err(|error| PatchError::Malformed(error.to_string()))
        };
        Ok(match kind {
            PatchType::Json => Self::Json(JsonPatch::parse(body)?),
            PatchType::Merge => Self::Merge(document(body)?),
            PatchType::StrategicMerge => Self::Strategic(document(body)?),
        })
    }

    pub(crate) fn apply(
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
