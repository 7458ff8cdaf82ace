//! The kinds of storage.k8s.io.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::status::MOST_CAUSES;
use serde_json::Value;

use super::fields::choice;
use super::json::{at, default, is_empty, list_at, repeats, same, str_at};
use super::{Generic, KindInfo, Strategy, meta};

mod attachments;
mod csi;

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "StorageClass" => Box::new(StorageClass(info)),
        "CSIDriver" => Box::new(csi::CsiDriver(info)),
        "CSINode" => Box::new(csi::CsiNode(info)),
        "CSIStorageCapacity" => Box::new(csi::CsiStorageCapacity(info)),
        "VolumeAttachment" => Box::new(attachments::VolumeAttachment(info)),
        "VolumeAttributesClass" => Box::new(VolumeAttributesClass(info)),
        _ => Box::new(Generic::new(info)),
    }
}

/// A kind whose only rule is that parts of it never change.
pub(super) struct Fixed {
    pub(super) info: KindInfo,
    pub(super) paths: &'static [&'static [&'static str]],
}

impl Strategy for Fixed {
    fn kind(&self) -> &KindInfo {
        &self.info
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.info, new, old);
        for path in self.paths {
            meta::immutable_at(new, old, path, &mut errors);
        }
        errors
    }
}

struct StorageClass(KindInfo);

impl Strategy for StorageClass {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        default(obj, "reclaimPolicy", "Delete");
        default(obj, "volumeBindingMode", "Immediate");
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        storage_class(obj, &mut errors);
        allowed_topologies(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        for key in [
            "parameters",
            "provisioner",
            "reclaimPolicy",
            "volumeBindingMode",
        ] {
            meta::immutable_at(new, old, &[key], &mut errors);
        }
        if !errors.is_empty() {
            // nobody gets so far with what was stored
            storage_class(new, &mut errors);
        }
        // what was stored may stay, whatever is asked for today
        let key = "allowedTopologies";
        if !same(at(new, &[key]), at(old, &[key])) {
            allowed_topologies(new, &mut errors);
        }
        errors
    }
}

fn storage_class(obj: &Value, errors: &mut ErrorList) {
    let root = Path::root();
    provisioner(obj, "provisioner", errors);
    parameters(obj, errors);
    choice(obj, "reclaimPolicy", &["Delete", "Retain"], &root, errors);
    choice(
        obj,
        "volumeBindingMode",
        &["Immediate", "WaitForFirstConsumer"],
        &root,
        errors,
    );
}

/// Terms of which one must fit the node that a volume is for.
fn allowed_topologies(obj: &Value, errors: &mut ErrorList) {
    let terms = list_at(obj, &["allowedTopologies"]);
    let meaning = |term: &Value| -> BTreeMap<String, BTreeSet<String>> {
        let expressions = list_at(term, &["matchLabelExpressions"]).iter();
        let texts = |of: &Value| -> BTreeSet<String> {
            let values = list_at(of, &["values"]).iter();
            values
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect()
        };
        expressions
            .map(|of| (str_at(of, &["key"]).to_owned(), texts(of)))
            .collect()
    };
    let mut earlier = HashMap::new();
    for (i, term) in terms.iter().enumerate() {
        let path = Path::new("allowedTopologies")
            .index(i)
            .child("matchLabelExpressions");
        let expressions = list_at(term, &["matchLabelExpressions"]);
        let twins = repeats(expressions.iter().map(|e| str_at(e, &["key"])));
        for ((i, of), is_twin) in expressions.iter().enumerate().zip(twins) {
            topology_requirement(of, is_twin, &path.index(i), errors);
        }
        let this = meaning(term);
        // one without requirements is like the places not filled yet, as in the original
        let blanks = if this.is_empty() { terms.len() } else { 0 };
        let twins = earlier.entry(this).or_insert(0_usize);
        // As many as there are pairs of terms are neither told nor kept.
        let room = MOST_CAUSES.saturating_sub(errors.len()).max(1);
        for _ in 0..(blanks + *twins).min(room) {
            errors.push(FieldError::duplicate(&path, ""));
        }
        *twins += 1;
    }
}

fn topology_requirement(of: &Value, is_twin: bool, path: &Path, errors: &mut ErrorList) {
    let values = list_at(of, &["values"]);
    let at_values = path.child("values");
    if values.is_empty() {
        errors.push(FieldError::required(&at_values, ""));
    }
    let twins = values.iter().enumerate().zip(repeats(values));
    for ((i, value), _) in twins.filter(|(_, is_twin)| *is_twin) {
        errors.push(FieldError::duplicate(&at_values.index(i), value.clone()));
    }
    let key = str_at(of, &["key"]);
    let faults = names::check_qualified_name(key);
    errors.extend(invalid_each(&path.child("key"), key, faults));
    if is_twin {
        errors.push(FieldError::duplicate(&path.child("key"), key));
    }
}

/// Members of which a change is refused with a sentence of its own.
fn fixed(keys: &[&str], new: &Value, old: &Value, errors: &mut ErrorList) {
    for key in keys {
        if !same(at(new, &[key]), at(old, &[key])) {
            let why = format!("updates to {key} are forbidden.");
            errors.push(FieldError::forbidden(&Path::new(key), why));
        }
    }
}

fn provisioner(obj: &Value, key: &str, errors: &mut ErrorList) {
    let name = str_at(obj, &[key]);
    let path = Path::new(key);
    if name.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else {
        let name = name.to_lowercase();
        let faults = names::check_qualified_name(&name);
        errors.extend(invalid_each(&path, name.as_str(), faults));
    }
}

fn parameters(obj: &Value, errors: &mut ErrorList) {
    const ENTRIES: usize = 512;
    const BYTES: usize = 256 << 10;
    let path = Path::new("parameters");
    let (mut entries, mut bytes) = (0, 0);
    for (key, value) in super::json::entries_at(obj, &["parameters"]) {
        entries += 1;
        bytes += key.len() + value.as_str().unwrap_or_default().len();
        if key.is_empty() && entries <= ENTRIES {
            errors.push(FieldError::invalid(&path, "", "field can not be empty."));
        }
    }
    if entries > ENTRIES {
        errors.push(FieldError::too_long(&path, ENTRIES));
    } else if bytes > BYTES {
        errors.push(FieldError::too_long(&path, BYTES));
    }
}

struct VolumeAttributesClass(KindInfo);

impl Strategy for VolumeAttributesClass {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        attributes_class(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        fixed(&["driverName", "parameters"], new, old, &mut errors);
        attributes_class(new, &mut errors);
        errors
    }
}

fn attributes_class(obj: &Value, errors: &mut ErrorList) {
    provisioner(obj, "driverName", errors);
    parameters(obj, errors);
    if is_empty(at(obj, &["parameters"])) {
        let why = "must contain at least one key/value pair";
        errors.push(FieldError::required(&Path::new("parameters"), why));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, none, update_faults};

    const KIND: (&str, &str, &str) = ("storage.k8s.io", "v1", "StorageClass");

    fn class(topologies: Value) -> Value {
        json!({"metadata": {"name": "c"}, "provisioner": "a.io/b", "allowedTopologies": topologies})
    }

    #[test]
    fn faults_of_topologies() {
        let path = "allowedTopologies[0].matchLabelExpressions";
        let zone = json!({"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]});
        let cases = [
            (
                json!([{"matchLabelExpressions": [{"key": "zone", "values": []}]}]),
                format!("{path}[0].values: Required value"),
            ),
            (
                json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "a"]}]}]),
                format!("{path}[0].values[1]: Duplicate value: \"a\""),
            ),
            (
                json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}, {"key": "zone", "values": ["b"]}]}]),
                format!("{path}[1].key: Duplicate value: \"zone\""),
            ),
            (
                json!([zone, zone]),
                "allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\"".to_owned(),
            ),
            (json!([{}]), format!("{path}: Duplicate value: \"\"")),
        ];
        for (topologies, wanted) in cases {
            assert_eq!(faults(KIND.0, KIND.1, KIND.2, &class(topologies)), wanted);
        }
        none(KIND.0, KIND.1, KIND.2, &class(json!([zone])));
        let mut new = class(json!([{}]));
        new["allowVolumeExpansion"] = json!(true);
        assert_eq!(
            update_faults(KIND.0, KIND.1, KIND.2, &new, &class(json!([{}]))),
            ""
        );
        new["provisioner"] = json!("a.io/c");
        let wanted = "provisioner: Invalid value: \"a.io/c\": field is immutable";
        assert_eq!(
            update_faults(KIND.0, KIND.1, KIND.2, &new, &class(json!([{}]))),
            wanted
        );
    }
}
