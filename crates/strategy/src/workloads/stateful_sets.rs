//! Sets of pods with names and volumes of their own.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use serde_json::{Value, json};

use super::super::fields;
use super::super::fields::not_negative;
use super::super::json::{
    at, at_mut, default, default_unset, has, keep, list_at, list_mut, same, set, str_at,
};
use super::super::{KindInfo, Strategy, claims, meta, pod_spec};
use super::{
    at_most_all, controller_of, count_or_percent, is_zero, status, template, template_warnings,
};

pub(super) struct StatefulSet(pub(super) KindInfo);

impl Strategy for StatefulSet {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        template(obj);
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default(spec, "podManagementPolicy", "OrderedReady");
        default_unset(spec, "replicas", 1);
        default_unset(spec, "revisionHistoryLimit", 10);
        default_unset(spec, "updateStrategy", json!({}));
        if let Some(strategy) = at_mut(spec, &["updateStrategy"]) {
            // who names the type and gives no limits has none
            if str_at(strategy, &["type"]).is_empty() {
                set(strategy, "type", "RollingUpdate");
                default_unset(strategy, "rollingUpdate", json!({}));
            }
            let rolls = str_at(strategy, &["type"]) == "RollingUpdate";
            if let Some(rolling) = at_mut(strategy, &["rollingUpdate"]).filter(|_| rolls) {
                default_unset(rolling, "partition", 0);
            }
        }
        default_unset(spec, "persistentVolumeClaimRetentionPolicy", json!({}));
        if let Some(policy) = at_mut(spec, &["persistentVolumeClaimRetentionPolicy"]) {
            default(policy, "whenDeleted", "Retain");
            default(policy, "whenScaled", "Retain");
        }
        for claim in list_mut(spec, &["volumeClaimTemplates"]) {
            set(claim, "apiVersion", "v1");
            set(claim, "kind", "PersistentVolumeClaim");
            claims::claim_defaults(claim);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        stateful_set(obj, pod_spec::validate_template, &mut errors);
        let (spec, path) = (at(obj, &["spec"]), Path::new("spec"));
        let check = names::check_dns1123_label;
        fields::optional_name(spec, "serviceName", check, &path, &mut errors);
        let templates = list_at(spec, &["volumeClaimTemplates"]);
        for (i, claim) in templates.iter().enumerate() {
            let path = path.child("volumeClaimTemplates").index(i).child("spec");
            claims::claim_spec(at(claim, &["spec"]), &path, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        const CHANGEABLE: [&str; 7] = [
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ];
        let mut errors = meta::validate_update(&self.0, new, old);
        let mut before = ErrorList::new();
        stateful_set(old, pod_spec::validate_template, &mut before);
        // of a set that was not valid before, the template is not looked at again
        let validate_template = match before.is_empty() {
            true => pod_spec::validate_template,
            false => |_: &Value, _: &Path, _: &mut ErrorList| {},
        };
        stateful_set(new, validate_template, &mut errors);
        let mut rest = at(new, &["spec"]).clone();
        for key in CHANGEABLE {
            keep(&mut rest, at(old, &["spec"]), key);
        }
        if !same(&rest, at(old, &["spec"])) {
            let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
            errors.push(FieldError::forbidden(&Path::new("spec"), why));
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        status::stateful_set(new, old, &mut errors);
        errors
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        template_warnings(obj)
    }
}

/// A stateful set whose template has the volumes that its pods will have: one more for each claim template.
fn with_claims_as_volumes(obj: &Value) -> Value {
    let mut obj = obj.clone();
    let claims = list_at(at(&obj, &["spec"]), &["volumeClaimTemplates"]).to_vec();
    let Some(pod) = obj
        .pointer_mut("/spec/template/spec")
        .and_then(Value::as_object_mut)
    else {
        return obj;
    };
    // the pods' own are made from the names of the set and of the pod
    pod.remove("hostname");
    pod.remove("subdomain");
    let mut volumes: Vec<Value> = Vec::new();
    let mut claimed = HashSet::new();
    for claim in &claims {
        let name = str_at(claim, &["metadata", "name"]);
        if claimed.insert(name) {
            volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        }
    }
    let others = pod.get("volumes").and_then(Value::as_array);
    for volume in others.into_iter().flatten() {
        if !claimed.contains(str_at(volume, &["name"])) {
            volumes.push(volume.clone());
        }
    }
    pod.insert("volumes".to_owned(), Value::Array(volumes));
    obj
}

fn stateful_set(
    obj: &Value,
    validate_template: fn(&Value, &Path, &mut ErrorList),
    errors: &mut ErrorList,
) {
    let obj = &with_claims_as_volumes(obj);
    controller_of(obj, "statefulset", validate_template, errors);
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let policy = str_at(spec, &["podManagementPolicy"]);
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let fault = "must be 'OrderedReady' or 'Parallel'";
        let path = path.child("podManagementPolicy");
        errors.push(FieldError::invalid(&path, policy, fault));
    }
    update_strategy(spec, &path.child("updateStrategy"), errors);
    let key = "persistentVolumeClaimRetentionPolicy";
    let retention = at(spec, &[key]);
    for when in ["whenDeleted", "whenScaled"] {
        let word = str_at(retention, &[when]);
        if !retention.is_null() && !matches!(word, "Retain" | "Delete") {
            let path = path.child(key).child(when);
            errors.push(FieldError::not_supported(
                &path,
                word,
                &["Retain", "Delete"],
            ));
        }
    }
    not_negative(
        at(spec, &["ordinals"]),
        "start",
        &path.child("ordinals"),
        errors,
    );
}

fn update_strategy(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let strategy = at(spec, &["updateStrategy"]);
    let rolling = at(strategy, &["rollingUpdate"]);
    // in the original's spelling, which is what clients see
    let shown = || {
        let of = |key| at(rolling, &[key]).clone();
        if rolling.is_null() {
            return Value::Null;
        }
        json!({"Partition": of("partition").as_i64().unwrap_or(0), "MaxUnavailable": of("maxUnavailable")})
    };
    let at_rolling = path.child("rollingUpdate");
    match str_at(strategy, &["type"]) {
        "RollingUpdate" => {
            not_negative(rolling, "partition", &at_rolling, errors);
            count_or_percent(rolling, "maxUnavailable", &at_rolling, errors);
            if is_zero(at(rolling, &["maxUnavailable"])) && has(rolling, &["maxUnavailable"]) {
                let path = at_rolling.child("maxUnavailable");
                let value = rolling["maxUnavailable"].clone();
                errors.push(FieldError::invalid(&path, value, "cannot be 0"));
            }
            at_most_all(rolling, "maxUnavailable", &at_rolling, errors);
        }
        "OnDelete" if rolling.is_null() => {}
        "OnDelete" => {
            let fault = "only allowed for updateStrategy 'RollingUpdate'";
            errors.push(FieldError::invalid(&at_rolling, shown(), fault));
        }
        other => {
            let fault = "must be 'RollingUpdate' or 'OnDelete'";
            // a JSON value has the names sorted, the original the type first
            let value = json!({"Type": other, "RollingUpdate": shown()});
            errors.push(FieldError::invalid(path, value, fault));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy;
    use crate::testing::{faults, none, update_faults};

    fn set_of(change: impl FnOnce(&mut Value)) -> Value {
        let mut obj = json!({"metadata": {"name": "s", "namespace": "default"}, "spec": {
            "selector": {"matchLabels": {"app": "s"}}, "serviceName": "s",
            "template": {"metadata": {"labels": {"app": "s"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}]}});
        change(&mut obj["spec"]);
        obj
    }

    #[test]
    fn faults_of_stateful_sets() {
        type Change = fn(&mut Value);
        let cases: &[(Change, &str)] = &[
            (
                |s| s["podManagementPolicy"] = json!("Some"),
                "spec.podManagementPolicy: Invalid value: \"Some\": must be 'OrderedReady' or 'Parallel'",
            ),
            (
                |s| s["updateStrategy"] = json!({"type": "x"}),
                "spec.updateStrategy: Invalid value: {\"RollingUpdate\":null,\"Type\":\"x\"}: must be 'RollingUpdate' or 'OnDelete'",
            ),
            (
                |s| s["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Keep"}),
                "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: \"Keep\": supported values: \"Retain\", \"Delete\"",
            ),
            (
                |s| s["ordinals"] = json!({"start": -1}),
                "spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                |s| s["volumeClaimTemplates"][0]["spec"] = json!({"accessModes": ["Sometimes"]}),
                "spec.volumeClaimTemplates[0].spec.accessModes: Unsupported value: \"Sometimes\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"\n\
                 spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
            ),
        ];
        for (change, wanted) in cases {
            assert_eq!(
                faults("apps", "v1", "StatefulSet", &set_of(change)),
                *wanted
            );
        }
        none("apps", "v1", "StatefulSet", &set_of(|_| {}));
        let bad = set_of(|s| s["serviceName"] = json!("Not_A_Name"));
        let found = faults("apps", "v1", "StatefulSet", &bad);
        assert!(
            found.starts_with("spec.serviceName: Invalid value: \"Not_A_Name\""),
            "{found}"
        );
        let mut new = bad.clone();
        new["spec"]["replicas"] = json!(3);
        assert_eq!(update_faults("apps", "v1", "StatefulSet", &new, &bad), "");
    }

    #[test]
    fn limits_are_filled_in_where_none_were_spoken_of() {
        let of = |given: Value| {
            let mut obj = set_of(|s| s["updateStrategy"] = given);
            strategy("apps", "v1", "StatefulSet").default(&mut obj);
            obj["spec"]["updateStrategy"].clone()
        };
        let limits = json!({"partition": 0});
        assert_eq!(
            of(json!({})),
            json!({"type": "RollingUpdate", "rollingUpdate": limits})
        );
        assert_eq!(
            of(json!({"type": "RollingUpdate"})),
            json!({"type": "RollingUpdate"})
        );
    }
}
