//! Classes of container runtimes.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use serde_json::{Value, json};

use super::super::fields;
use super::super::json::{at, list_at, repeats, str_at};
use super::super::{KindInfo, Strategy, meta, resources, scheduling};

pub(super) struct RuntimeClass(pub(super) KindInfo);

impl Strategy for RuntimeClass {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        content(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["handler"], &mut errors);
        content(new, &mut errors);
        errors
    }
}

fn content(obj: &Value, errors: &mut ErrorList) {
    let check = names::check_dns1123_label;
    fields::name(obj, "handler", check, &Path::root(), errors);
    let limits = json!({"limits": at(obj, &["overhead", "podFixed"])});
    resources::container(&limits, &HashSet::new(), &Path::new("overhead"), errors);
    scheduling_faults(at(obj, &["scheduling"]), errors);
}

fn scheduling_faults(of: &Value, errors: &mut ErrorList) {
    let path = Path::new("scheduling");
    meta::labels(
        at(of, &["nodeSelector"]),
        &path.child("nodeSelector"),
        errors,
    );
    let tolerations = list_at(of, &["tolerations"]);
    let path = path.child("tolerations");
    scheduling::tolerations(tolerations, &path, errors);
    let meaning = |t| ["key", "operator", "value", "effect"].map(|key| str_at(t, &[key]));
    let twins = repeats(tolerations.iter().map(meaning));
    for ((i, toleration), is_twin) in tolerations.iter().enumerate().zip(twins) {
        if is_twin {
            // in the original's spelling, which is what clients see
            let text = |key: &str| str_at(toleration, &[key]);
            let shown = json!({"Key": text("key"), "Operator": text("operator"), "Value": text("value"),
                "Effect": text("effect"), "TolerationSeconds": at(toleration, &["tolerationSeconds"])});
            errors.push(FieldError::duplicate(&path.index(i), shown));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, none, update_faults};

    #[test]
    fn faults_of_runtime_classes() {
        let of = |mut part: Value| {
            part["metadata"] = json!({"name": "r"});
            part
        };
        let cases = [
            (json!({}), "handler: Required value"),
            (
                json!({"handler": "h", "overhead": {"podFixed": {"foo": "1"}}}),
                "overhead.limits[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified",
            ),
            (
                json!({"handler": "h", "overhead": {"podFixed": {"cpu": "-1"}}}),
                "overhead.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
            ),
            (
                json!({"handler": "h", "scheduling": {"tolerations": [{"key": "k"}, {"key": "k"}]}}),
                "scheduling.tolerations[1]: Duplicate value: {\"Effect\":\"\",\"Key\":\"k\",\"Operator\":\"\",\"TolerationSeconds\":null,\"Value\":\"\"}",
            ),
        ];
        for (part, wanted) in cases {
            let found = faults("node.k8s.io", "v1", "RuntimeClass", &of(part));
            assert!(found.starts_with(wanted), "{found}");
        }
        let old = of(json!({"handler": "h"}));
        let new = of(json!({"handler": "h", "scheduling": {"nodeSelector": {"a": "b c"}}}));
        let found = update_faults("node.k8s.io", "v1", "RuntimeClass", &new, &old);
        assert!(
            found.starts_with("scheduling.nodeSelector: Invalid value: \"b c\""),
            "an update is looked at as a whole: {found}"
        );
        none(
            "node.k8s.io",
            "v1",
            "RuntimeClass",
            &of(json!({"handler": "h", "overhead": {"podFixed": {"cpu": "1"}}})),
        );
    }
}
