//! Sets of one pod on each node.

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::{Value, json};

use super::super::fields::choice;
use super::super::json::{at, at_mut, default, default_unset, has, object_mut, same, str_at};
use super::super::{KindInfo, Strategy, access, meta};
use super::{
    at_most_all, controller, count_or_percent, is_zero, status, template, template_warnings,
};

pub(super) struct DaemonSet(pub(super) KindInfo);

/// How often the template has changed; of use to nobody any more, and always there.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(obj: &Value) -> i64 {
    let text = str_at(obj, &["metadata", "annotations", TEMPLATE_GENERATION]);
    text.parse().unwrap_or(0)
}

fn set_template_generation(obj: &mut Value, to: i64) {
    if let Some(meta) = at_mut(obj, &["metadata"])
        && let Some(annotations) = object_mut(meta, "annotations")
    {
        annotations.insert(TEMPLATE_GENERATION.to_owned(), json!(to.to_string()));
    }
}

impl Strategy for DaemonSet {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        access::reset_status(&self.0, obj);
        access::first_generation(&self.0, obj);
        let given = template_generation(obj);
        set_template_generation(obj, given.max(1));
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        access::keep_status(&self.0, new, old);
        access::next_generation(&self.0, new, old);
        let path = ["spec", "template"];
        let changed = !same(at(new, &path), at(old, &path));
        set_template_generation(new, template_generation(old) + i64::from(changed));
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        access::keep_all_but_status_and_metadata(new, old);
        set_template_generation(new, template_generation(old));
    }

    fn default(&self, obj: &mut Value) {
        let given = template_generation(obj);
        set_template_generation(obj, given);
        template(obj);
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default_unset(spec, "revisionHistoryLimit", 10);
        default_unset(spec, "updateStrategy", json!({}));
        if let Some(strategy) = at_mut(spec, &["updateStrategy"]) {
            default(strategy, "type", "RollingUpdate");
            if str_at(strategy, &["type"]) == "RollingUpdate" {
                default_unset(strategy, "rollingUpdate", json!({}));
                if let Some(rolling) = at_mut(strategy, &["rollingUpdate"]) {
                    default_unset(rolling, "maxUnavailable", 1);
                    default_unset(rolling, "maxSurge", 0);
                }
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        daemon_set(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        errors.extend(super::template_faults(new, old, daemon_set));
        meta::immutable_at(new, old, &["spec", "selector"], &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        status::daemon_set(new, old, &mut errors);
        errors
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        template_warnings(obj)
    }
}

fn daemon_set(obj: &Value, errors: &mut ErrorList) {
    controller(obj, "daemonset", errors);
    let path = Path::new("spec").child("updateStrategy");
    let strategy = at(obj, &["spec", "updateStrategy"]);
    choice(
        strategy,
        "type",
        &["OnDelete", "RollingUpdate"],
        &path,
        errors,
    );
    if str_at(strategy, &["type"]) != "RollingUpdate" {
        return;
    }
    let rolling = at(strategy, &["rollingUpdate"]);
    let path = path.child("rollingUpdate");
    for key in ["maxUnavailable", "maxSurge"] {
        count_or_percent(rolling, key, &path, errors);
    }
    for key in ["maxUnavailable", "maxSurge"] {
        at_most_all(rolling, key, &path, errors);
    }
    let [none, surge] = ["maxUnavailable", "maxSurge"].map(|k| is_zero(at(rolling, &[k])));
    if none && surge {
        let why = "cannot be 0 when maxSurge is 0";
        errors.push(FieldError::required(&path.child("maxUnavailable"), why));
    } else if !none && !surge && has(rolling, &["maxSurge"]) {
        let fault = "may not be set when maxUnavailable is non-zero";
        let value = at(rolling, &["maxSurge"]).clone();
        errors.push(FieldError::invalid(&path.child("maxSurge"), value, fault));
    }
}
