//! Revisions of controllers.

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

use super::super::fields::not_negative;
use super::super::json::at;
use super::super::{KindInfo, Strategy, meta};

pub(super) struct ControllerRevision(pub(super) KindInfo);

impl Strategy for ControllerRevision {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        not_negative(obj, "revision", &Path::root(), &mut errors);
        let why = match at(obj, &["data"]) {
            Value::Object(_) => return errors,
            Value::Null => "data is mandatory",
            _ => "data must be a valid JSON object",
        };
        errors.push(FieldError::required(&Path::new("data"), why));
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        not_negative(new, "revision", &Path::root(), &mut errors);
        meta::immutable_at(new, old, &["data"], &mut errors);
        errors
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::faults;

    #[test]
    fn faults_of_revisions() {
        for (part, wanted) in [
            (json!({}), "data: Required value: data is mandatory"),
            (
                json!({"data": [1]}),
                "data: Required value: data must be a valid JSON object",
            ),
            (
                json!({"data": {}, "revision": -1}),
                "revision: Invalid value: -1: must be greater than or equal to 0",
            ),
            (json!({"data": {"a": 1}}), ""),
        ] {
            let mut obj = part;
            obj["metadata"] = json!({"name": "r", "namespace": "default"});
            assert_eq!(faults("apps", "v1", "ControllerRevision", &obj), wanted);
        }
    }
}
