//! Rules of custom kinds: `x-kubernetes-validations`.

use davit_api::field::{ErrorList, Path};
use davit_schema::structural::{Node, Structural};
use serde_json::Value;

/// The rules of one schema, compiled.
#[derive(Debug)]
pub(crate) struct Rules {
    present: bool,
}

impl Rules {
    pub(super) fn new(schema: &Structural) -> Self {
        Self {
            present: schema.root().has_rules(),
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        !self.present
    }

    pub(super) fn check(&self, _root: &Node, _new: &Value, _old: Option<&Value>) -> ErrorList {
        ErrorList::new()
    }
}

/// What is wrong with the rules of a schema that stands at `path`. `old` is the schema as it was
/// before an update.
pub(crate) fn check_rules(_schema: &Value, _old: Option<&Value>, _path: &Path) -> ErrorList {
    ErrorList::new()
}
