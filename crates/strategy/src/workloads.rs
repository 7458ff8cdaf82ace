//! Controllers of pods: apps, batch, autoscaling, disruption budgets, replication controllers.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::fields::{choice, not_negative, optional_choice};
use super::json::{
    at, at_mut, default, default_unset, has, int_at, is_empty, list_at, object_mut, set, str_at,
};
use super::{
    Generic, KindInfo, Propagation, Strategy, fields, meta, pod_defaults, pod_spec, pods,
    selectors, status_conditions,
};

mod autoscalers;
mod cron_jobs;
mod daemon_sets;
mod jobs;
mod revisions;
mod stateful_sets;
mod status;

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "Deployment" => Box::new(Deployment(info)),
        "ReplicaSet" => Box::new(ReplicaSet(info)),
        "StatefulSet" => Box::new(stateful_sets::StatefulSet(info)),
        "DaemonSet" => Box::new(daemon_sets::DaemonSet(info)),
        "ControllerRevision" => Box::new(revisions::ControllerRevision(info)),
        "ReplicationController" => Box::new(ReplicationController(info)),
        "PodTemplate" => Box::new(PodTemplate(info)),
        "Job" => Box::new(jobs::Job(info)),
        "CronJob" => Box::new(cron_jobs::CronJob(info)),
        "HorizontalPodAutoscaler" => Box::new(autoscalers::Autoscaler(info)),
        "PodDisruptionBudget" => Box::new(DisruptionBudget(info)),
        _ => Box::new(Generic::new(info)),
    }
}

/// Defaults of `spec.template`.
fn template(obj: &mut Value) {
    if let Some(spec) = at_mut(obj, &["spec", "template", "spec"]) {
        pod_defaults::pod_spec(spec);
    }
}

/// A percentage or a number that is not negative.
fn count_or_percent(of: &Value, key: &str, path: &Path, errors: &mut ErrorList) {
    let path = path.child(key);
    match at(of, &[key]) {
        Value::String(text) => {
            errors.extend(invalid_each(&path, text, names::check_percent(text)));
        }
        value => {
            if let Some(n) = value.as_i64().filter(|n| *n < 0) {
                let fault = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(&path, n, fault));
            }
        }
    }
}

/// A percentage of more than all.
fn at_most_all(of: &Value, key: &str, path: &Path, errors: &mut ErrorList) {
    let value = at(of, &[key]);
    let percent = value
        .as_str()
        .filter(|t| names::check_percent(t).is_empty());
    let percent = percent.and_then(|text| text.trim_end_matches('%').parse::<u64>().ok());
    if percent.is_some_and(|percent| percent > 100) {
        let fault = "must not be greater than 100%";
        errors.push(FieldError::invalid(&path.child(key), value.clone(), fault));
    }
}

fn is_zero(value: &Value) -> bool {
    value.as_i64() == Some(0) || value.as_str() == Some("0%")
}

/// Faults of selector and template of a controller that keeps its pods running.
fn controller(obj: &Value, noun: &str, errors: &mut ErrorList) {
    controller_of(obj, noun, pod_spec::validate_template, errors);
}

/// As [`controller`], with what looks at the template itself.
fn controller_of(
    obj: &Value,
    noun: &str,
    validate_template: fn(&Value, &Path, &mut ErrorList),
    errors: &mut ErrorList,
) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let selector = at(spec, &["selector"]);
    let at_selector = path.child("selector");
    not_negative(spec, "replicas", &path, errors);
    not_negative(spec, "minReadySeconds", &path, errors);
    if noun != "statefulset" {
        not_negative(spec, "revisionHistoryLimit", &path, errors);
    }
    if selector.is_null() && noun != "daemonset" {
        errors.push(FieldError::required(&at_selector, ""));
    }
    let before = errors.len();
    selectors::label_selector(selector, &at_selector, errors);
    let is_faulty = errors.len() > before;
    let is_empty = !selector.is_null() && selectors::is_empty_selector(selector);
    if is_empty {
        let fault = format!("empty selector is invalid for {noun}");
        errors.push(FieldError::invalid(&at_selector, selector.clone(), fault));
    }
    let template = at(spec, &["template"]);
    let at_template = path.child("template");
    if template.is_null() {
        errors.push(FieldError::required(&at_template, ""));
        return;
    }
    if is_faulty && noun != "daemonset" {
        // nothing is said of the template then, but of a stateful set that it must run for ever
        let fault = match noun {
            "statefulset" => "",
            _ => "invalid label selector",
        };
        errors.push(FieldError::invalid(&at_selector, selector.clone(), fault));
        if noun == "statefulset" {
            runs_for_ever(template, "StatefulSet", &at_template, errors);
        }
        return;
    }
    let labels = at(template, &["metadata", "labels"]);
    // none at all matches nothing, an empty one everything
    let matches = !selector.is_null() && selectors::matches(selector, labels);
    if !is_faulty && !is_empty && !matches {
        mismatch(labels, &at_template, errors);
    }
    validate_template(template, &at_template, errors);
    let owner = match noun {
        "statefulset" => "StatefulSet",
        "daemonset" => "DaemonSet",
        _ => "ReplicaSet",
    };
    runs_for_ever(template, owner, &at_template, errors);
}

/// Faults of an object whose pods are made from `spec.template`, but for those of the template that it had before.
fn template_faults(new: &Value, old: &Value, faults: impl Fn(&Value, &mut ErrorList)) -> ErrorList {
    let mut found = ErrorList::new();
    faults(new, &mut found);
    pod_spec::new_faults("spec.template.spec", found, |known| faults(old, known))
}

fn mismatch(labels: &Value, at_template: &Path, errors: &mut ErrorList) {
    let path = at_template.child("metadata").child("labels");
    errors.push(FieldError::invalid(
        &path,
        labels.clone(),
        "`selector` does not match template `labels`",
    ));
}

/// Controllers that keep pods running allow only pods that restart.
fn runs_for_ever(template: &Value, owner: &str, path: &Path, errors: &mut ErrorList) {
    let policy = str_at(template, &["spec", "restartPolicy"]);
    let path = path.child("spec");
    if policy != "Always" {
        errors.push(FieldError::not_supported(
            &path.child("restartPolicy"),
            policy,
            &["Always"],
        ));
    }
    if has(template, &["spec", "activeDeadlineSeconds"]) {
        let why = format!("activeDeadlineSeconds in {owner} is not Supported");
        errors.push(FieldError::forbidden(
            &path.child("activeDeadlineSeconds"),
            why,
        ));
    }
}

/// Names of pods begin with the name of their owner.
fn name_warnings(obj: &Value) -> Vec<String> {
    meta::label_warning(obj, "Pod names and hostnames")
}

fn template_warnings(obj: &Value) -> Vec<String> {
    pods::template_warnings(at(obj, &["spec", "template"]), "spec.template")
}

struct Deployment(KindInfo);

impl Strategy for Deployment {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        template(obj);
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default_unset(spec, "replicas", 1);
        default_unset(spec, "revisionHistoryLimit", 10);
        default_unset(spec, "progressDeadlineSeconds", 600);
        if object_mut(spec, "strategy").is_none() {
            return;
        }
        let Some(strategy) = at_mut(spec, &["strategy"]) else {
            return;
        };
        default(strategy, "type", "RollingUpdate");
        if str_at(strategy, &["type"]) == "RollingUpdate" {
            default_unset(strategy, "rollingUpdate", json!({}));
            if let Some(rolling) = at_mut(strategy, &["rollingUpdate"]) {
                default_unset(rolling, "maxUnavailable", "25%");
                default_unset(rolling, "maxSurge", "25%");
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        deployment(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        errors.extend(template_faults(new, old, deployment));
        meta::immutable_at(new, old, &["spec", "selector"], &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        status::deployment(new, old, &mut errors);
        errors
    }

    fn create_warnings(&self, obj: &Value) -> Vec<String> {
        name_warnings(obj)
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        template_warnings(obj)
    }
}

fn deployment(obj: &Value, errors: &mut ErrorList) {
    controller(obj, "deployment", errors);
    let spec = at(obj, &["spec"]);
    let path = Path::new("spec");
    let strategy = at(spec, &["strategy"]);
    let at_strategy = path.child("strategy");
    choice(
        strategy,
        "type",
        &["Recreate", "RollingUpdate"],
        &at_strategy,
        errors,
    );
    let rolling = at(strategy, &["rollingUpdate"]);
    let at_rolling = at_strategy.child("rollingUpdate");
    if str_at(strategy, &["type"]) == "Recreate" && !rolling.is_null() {
        let why = "may not be specified when strategy `type` is 'Recreate'";
        errors.push(FieldError::forbidden(&at_rolling, why));
    } else if !rolling.is_null() {
        for key in ["maxUnavailable", "maxSurge"] {
            count_or_percent(rolling, key, &at_rolling, errors);
        }
        let none = at(rolling, &["maxUnavailable"]);
        if is_zero(none) && is_zero(at(rolling, &["maxSurge"])) {
            let fault = "may not be 0 when `maxSurge` is 0";
            let path = at_rolling.child("maxUnavailable");
            errors.push(FieldError::invalid(&path, none.clone(), fault));
        }
        at_most_all(rolling, "maxUnavailable", &at_rolling, errors);
    }
    if let Some(deadline) = int_at(spec, &["progressDeadlineSeconds"])
        && deadline <= int_at(spec, &["minReadySeconds"]).unwrap_or(0)
    {
        let fault = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid(
            &path.child("progressDeadlineSeconds"),
            deadline,
            fault,
        ));
    }
}

struct ReplicaSet(KindInfo);

impl Strategy for ReplicaSet {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        template(obj);
        if let Some(spec) = at_mut(obj, &["spec"]) {
            default_unset(spec, "replicas", 1);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        controller(obj, "deployment", &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let faults = |obj: &Value, errors: &mut ErrorList| controller(obj, "deployment", errors);
        errors.extend(template_faults(new, old, faults));
        meta::immutable_at(new, old, &["spec", "selector"], &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        status::replica_set(new, &mut errors);
        errors
    }

    fn create_warnings(&self, obj: &Value) -> Vec<String> {
        name_warnings(obj)
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        template_warnings(obj)
    }
}

fn replicas_field(obj: &Value) -> (&'static str, String) {
    (
        "status.replicas",
        int_at(obj, &["status", "replicas"])
            .unwrap_or(0)
            .to_string(),
    )
}

struct ReplicationController(KindInfo);

impl Strategy for ReplicationController {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let labels = at(obj, &["spec", "template", "metadata", "labels"]).clone();
        template(obj);
        if !is_empty(&labels) {
            for part in ["spec", "metadata"] {
                let key = if part == "spec" { "selector" } else { "labels" };
                if let Some(part) = at_mut(obj, &[part])
                    && is_empty(at(part, &[key]))
                {
                    set(part, key, labels.clone());
                }
            }
        }
        if let Some(spec) = at_mut(obj, &["spec"]) {
            default_unset(spec, "replicas", 1);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        replication_controller(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        errors.extend(template_faults(new, old, replication_controller));
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        status::replica_set(new, &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["status.replicas"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![replicas_field(obj)]
    }

    fn create_warnings(&self, obj: &Value) -> Vec<String> {
        name_warnings(obj)
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        template_warnings(obj)
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Orphan
    }
}

fn replication_controller(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    not_negative(spec, "replicas", &path, errors);
    not_negative(spec, "minReadySeconds", &path, errors);
    let selector = at(spec, &["selector"]);
    if is_empty(selector) {
        errors.push(FieldError::required(&path.child("selector"), ""));
    }
    let template = at(spec, &["template"]);
    let path = path.child("template");
    if template.is_null() {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    let labels = at(template, &["metadata", "labels"]);
    if !is_empty(selector) && !selectors::matches(&json!({"matchLabels": selector}), labels) {
        mismatch(labels, &path, errors);
    }
    pod_spec::validate_template(template, &path, errors);
    runs_for_ever(template, "ReplicationController", &path, errors);
}

struct PodTemplate(KindInfo);

impl Strategy for PodTemplate {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(spec) = at_mut(obj, &["template", "spec"]) {
            pod_defaults::pod_spec(spec);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        pod_spec::validate_template(at(obj, &["template"]), &Path::new("template"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let faults = |obj: &Value, errors: &mut ErrorList| {
            pod_spec::validate_template(at(obj, &["template"]), &Path::new("template"), errors);
        };
        let mut found = ErrorList::new();
        faults(new, &mut found);
        let known = |known: &mut ErrorList| faults(old, known);
        errors.extend(pod_spec::new_faults("template.spec", found, known));
        errors
    }
}

struct DisruptionBudget(KindInfo);

impl Strategy for DisruptionBudget {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        budget(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        budget(new, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let (status, path) = (at(new, &["status"]), Path::new("status"));
        let conditions = list_at(status, &["conditions"]);
        status_conditions::validate(conditions, &path.child("conditions"), &mut errors);
        let keys = [
            "disruptionsAllowed",
            "currentHealthy",
            "desiredHealthy",
            "expectedPods",
        ];
        fields::counts(status, &keys, &path, &mut errors);
        errors
    }
}

fn budget(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    if has(spec, &["minAvailable"]) && has(spec, &["maxUnavailable"]) {
        let fault = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid(&path, spec.clone(), fault));
    }
    for key in ["minAvailable", "maxUnavailable"] {
        count_or_percent(spec, key, &path, errors);
        at_most_all(spec, key, &path, errors);
    }
    selectors::label_selector(at(spec, &["selector"]), &path.child("selector"), errors);
    let policies = ["AlwaysAllow", "IfHealthyBudget"];
    optional_choice(spec, "unhealthyPodEvictionPolicy", &policies, &path, errors);
}
