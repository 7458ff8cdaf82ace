//! Controllers of pods: apps, batch, autoscaling, disruption budgets, replication controllers.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::containers::{choice, not_negative, optional_choice, required};
use super::json::{
    at, at_mut, bool_at, default, default_unset, has, int_at, is_empty, keep, list_at, list_mut,
    object_mut, same, set, str_at,
};
use super::{
    Generic, KindInfo, Propagation, Strategy, access, meta, pod_defaults, pod_spec, pods,
    selectors, storage,
};

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "Deployment" => Box::new(Deployment(info)),
        "ReplicaSet" => Box::new(ReplicaSet(info)),
        "StatefulSet" => Box::new(StatefulSet(info)),
        "DaemonSet" => Box::new(DaemonSet(info)),
        "ControllerRevision" => Box::new(storage::Fixed {
            info,
            paths: &[&["data"]],
        }),
        "ReplicationController" => Box::new(ReplicationController(info)),
        "PodTemplate" => Box::new(PodTemplate(info)),
        "Job" => Box::new(Job(info)),
        "CronJob" => Box::new(CronJob(info)),
        "HorizontalPodAutoscaler" => Box::new(Autoscaler(info)),
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

fn is_zero(value: &Value) -> bool {
    value.as_i64() == Some(0) || value.as_str() == Some("0%")
}

/// Faults of selector and template of a controller that keeps its pods running.
fn controller(obj: &Value, noun: &str, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let selector = at(spec, &["selector"]);
    let at_selector = path.child("selector");
    not_negative(spec, "replicas", &path, errors);
    not_negative(spec, "minReadySeconds", &path, errors);
    not_negative(spec, "revisionHistoryLimit", &path, errors);
    if selector.is_null() {
        errors.push(FieldError::required(&at_selector, ""));
    } else {
        selectors::label_selector(selector, &at_selector, errors);
        if selectors::is_empty_selector(selector) {
            let fault = format!("empty selector is invalid for {noun}");
            errors.push(FieldError::invalid(&at_selector, selector.clone(), fault));
        }
    }
    let template = at(spec, &["template"]);
    let at_template = path.child("template");
    if template.is_null() {
        errors.push(FieldError::required(&at_template, ""));
        return;
    }
    let labels = at(template, &["metadata", "labels"]);
    if !selector.is_null()
        && !selectors::is_empty_selector(selector)
        && !selectors::matches(selector, labels)
    {
        mismatch(labels, &at_template, errors);
    }
    pod_spec::validate_template(template, &at_template, errors);
    runs_for_ever(template, &at_template, errors);
}

fn mismatch(labels: &Value, at_template: &Path, errors: &mut ErrorList) {
    let path = at_template.child("metadata").child("labels");
    let labels = if labels.is_null() {
        json!({})
    } else {
        labels.clone()
    };
    errors.push(FieldError::invalid(
        &path,
        labels,
        "`selector` does not match template `labels`",
    ));
}

/// Controllers that keep pods running allow only pods that restart.
fn runs_for_ever(template: &Value, path: &Path, errors: &mut ErrorList) {
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
        let why = "activeDeadlineSeconds in ReplicaSet is not Supported";
        errors.push(FieldError::forbidden(
            &path.child("activeDeadlineSeconds"),
            why,
        ));
    }
}

fn template_warnings(obj: &Value) -> Vec<String> {
    pods::spec_warnings(at(obj, &["spec", "template", "spec"]), "spec.template.spec")
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
        deployment(new, &mut errors);
        meta::immutable_at(new, old, &["spec", "selector"], &mut errors);
        errors
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
        controller(new, "deployment", &mut errors);
        meta::immutable_at(new, old, &["spec", "selector"], &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["status.replicas"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![replicas_field(obj)]
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
        replication_controller(new, &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["status.replicas"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![replicas_field(obj)]
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
    runs_for_ever(template, &path, errors);
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
        pod_spec::validate_template(at(new, &["template"]), &Path::new("template"), &mut errors);
        errors
    }
}

struct StatefulSet(KindInfo);

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
            default(strategy, "type", "RollingUpdate");
            if str_at(strategy, &["type"]) == "RollingUpdate" {
                default_unset(strategy, "rollingUpdate", json!({}));
                if let Some(rolling) = at_mut(strategy, &["rollingUpdate"]) {
                    default_unset(rolling, "partition", 0);
                }
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
            storage::claim_defaults(claim);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        stateful_set(obj, &mut errors);
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
        stateful_set(new, &mut errors);
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

    fn warnings(&self, obj: &Value) -> Vec<String> {
        template_warnings(obj)
    }
}

fn stateful_set(obj: &Value, errors: &mut ErrorList) {
    controller(obj, "statefulset", errors);
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    choice(
        spec,
        "podManagementPolicy",
        &["OrderedReady", "Parallel"],
        &path,
        errors,
    );
    let path = path.child("updateStrategy");
    let strategy = at(spec, &["updateStrategy"]);
    choice(
        strategy,
        "type",
        &["OnDelete", "RollingUpdate"],
        &path,
        errors,
    );
    let rolling = at(strategy, &["rollingUpdate"]);
    let path = path.child("rollingUpdate");
    if str_at(strategy, &["type"]) == "OnDelete" && !rolling.is_null() {
        let fault = "only allowed for updateStrategy 'RollingUpdate'";
        errors.push(FieldError::invalid(&path, rolling.clone(), fault));
    } else {
        not_negative(rolling, "partition", &path, errors);
    }
}

struct DaemonSet(KindInfo);

impl Strategy for DaemonSet {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
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
        daemon_set(new, &mut errors);
        meta::immutable_at(new, old, &["spec", "selector"], &mut errors);
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

struct Job(KindInfo);

/// Defaults of the spec of a job, also in cron jobs.
fn job_defaults(spec: &mut Value) {
    if let Some(pod) = at_mut(spec, &["template", "spec"]) {
        pod_defaults::pod_spec(pod);
    }
    if !has(spec, &["completions"]) && !has(spec, &["parallelism"]) {
        default_unset(spec, "completions", 1);
    }
    default_unset(spec, "parallelism", 1);
    // with a limit for each index the limit of the job as a whole is out of reach
    let of_all = if has(spec, &["backoffLimitPerIndex"]) {
        i32::MAX
    } else {
        6
    };
    default_unset(spec, "backoffLimit", of_all);
    default(spec, "completionMode", "NonIndexed");
    default_unset(spec, "suspend", false);
    default_unset(spec, "manualSelector", false);
    if !bool_at(spec, &["manualSelector"]) {
        super::json::remove(spec, "manualSelector");
    }
    let policy = if has(spec, &["podFailurePolicy"]) {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    default(spec, "podReplacementPolicy", policy);
}

impl Strategy for Job {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let labels = at(obj, &["spec", "template", "metadata", "labels"]).clone();
        if !is_empty(&labels)
            && let Some(meta) = at_mut(obj, &["metadata"])
            && is_empty(at(meta, &["labels"]))
        {
            set(meta, "labels", labels);
        }
        if let Some(spec) = at_mut(obj, &["spec"]) {
            job_defaults(spec);
        }
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        access::reset_status(&self.0, obj);
        access::first_generation(&self.0, obj);
        if !bool_at(obj, &["spec", "manualSelector"]) {
            generate_selector(obj);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        job(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let indexed = str_at(old, &["spec", "completionMode"]) == "Indexed";
        for key in [
            "selector",
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
        ] {
            meta::immutable_at(new, old, &["spec", key], &mut errors);
        }
        // elastic indexed jobs may change completions together with parallelism
        let elastic = indexed
            && same(
                at(new, &["spec", "completions"]),
                at(new, &["spec", "parallelism"]),
            );
        if !elastic {
            meta::immutable_at(new, old, &["spec", "completions"], &mut errors);
        }
        job_template_update(new, old, &mut errors);
        job_spec(at(new, &["spec"]), &Path::new("spec"), &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["status.successful"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        let succeeded = int_at(obj, &["status", "succeeded"]).unwrap_or(0);
        vec![("status.successful", succeeded.to_string())]
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Orphan
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        template_warnings(obj)
    }

    fn delete_warnings(&self, _obj: &Value, policy_given: bool) -> Vec<String> {
        if policy_given {
            return Vec::new();
        }
        vec![
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"
                .to_owned(),
        ]
    }
}

/// The pods of a job are told apart by its uid.
fn generate_selector(obj: &mut Value) {
    let uid = at(obj, &["metadata", "uid"]).clone();
    let name = at(obj, &["metadata", "name"]).clone();
    let Some(spec) = at_mut(obj, &["spec"]) else {
        return;
    };
    if let Some(template) = at_mut(spec, &["template"])
        && object_mut(template, "metadata").is_some()
        && let Some(meta) = at_mut(template, &["metadata"])
        && let Some(labels) = object_mut(meta, "labels")
    {
        for prefix in ["", "batch.kubernetes.io/"] {
            labels.insert(format!("{prefix}controller-uid"), uid.clone());
            labels.insert(format!("{prefix}job-name"), name.clone());
        }
    }
    if let Some(selector) = object_mut(spec, "selector") {
        let labels = selector.entry("matchLabels").or_insert_with(|| json!({}));
        set(labels, "batch.kubernetes.io/controller-uid", uid);
    }
}

fn job(obj: &Value, errors: &mut ErrorList) {
    let spec = at(obj, &["spec"]);
    let path = Path::new("spec");
    job_spec(spec, &path, errors);
    let selector = at(spec, &["selector"]);
    if selector.is_null() {
        errors.push(FieldError::required(&path.child("selector"), ""));
    } else {
        selectors::label_selector(selector, &path.child("selector"), errors);
        let labels = at(spec, &["template", "metadata", "labels"]);
        if !selectors::matches(selector, labels) {
            mismatch(labels, &path.child("template"), errors);
        }
    }
}

fn job_spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for key in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        not_negative(spec, key, path, errors);
    }
    optional_choice(
        spec,
        "completionMode",
        &["Indexed", "NonIndexed"],
        path,
        errors,
    );
    if str_at(spec, &["completionMode"]) == "Indexed" && !has(spec, &["completions"]) {
        let why = "when completion mode is Indexed";
        errors.push(FieldError::required(&path.child("completions"), why));
    }
    let path = path.child("template");
    pod_spec::validate_template(at(spec, &["template"]), &path, errors);
    if str_at(spec, &["template", "spec", "restartPolicy"]) == "Always" {
        let path = path.child("spec").child("restartPolicy");
        errors.push(FieldError::required(
            &path,
            "valid values: \"OnFailure\", \"Never\"",
        ));
    }
}

/// The template never changes, except for where pods go while the job has not begun.
fn job_template_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let stored = at(old, &["spec", "template"]);
    let mut template = at(new, &["spec", "template"]).clone();
    let not_begun = bool_at(old, &["spec", "suspend"]) && !has(old, &["status", "startTime"]);
    if not_begun {
        if let Some(spec) = at_mut(&mut template, &["spec"]) {
            for key in ["affinity", "nodeSelector", "tolerations", "schedulingGates"] {
                keep(spec, at(stored, &["spec"]), key);
            }
        }
        if let Some(meta) = at_mut(&mut template, &["metadata"]) {
            for key in ["labels", "annotations"] {
                keep(meta, at(stored, &["metadata"]), key);
            }
        }
    }
    meta::immutable(
        &template,
        stored,
        &Path::new("spec").child("template"),
        errors,
    );
}

struct CronJob(KindInfo);

impl Strategy for CronJob {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default(spec, "concurrencyPolicy", "Allow");
        default_unset(spec, "suspend", false);
        default_unset(spec, "successfulJobsHistoryLimit", 3);
        default_unset(spec, "failedJobsHistoryLimit", 1);
        if let Some(pod) = at_mut(spec, &["jobTemplate", "spec", "template", "spec"]) {
            pod_defaults::pod_spec(pod);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        const NAME_MAX: usize = 52;
        let name = str_at(obj, &["metadata", "name"]);
        if name.len() > NAME_MAX {
            let fault = "must be no more than 52 characters";
            errors.push(FieldError::invalid(
                &Path::new("metadata").child("name"),
                name,
                fault,
            ));
        }
        cron_job(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        cron_job(new, &mut errors);
        errors
    }
}

fn cron_job(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let schedule = str_at(spec, &["schedule"]);
    let at_schedule = path.child("schedule");
    if schedule.is_empty() {
        errors.push(FieldError::required(&at_schedule, ""));
    } else if let Some(fault) = schedule_fault(schedule) {
        errors.push(FieldError::invalid(&at_schedule, schedule, fault));
    }
    choice(
        spec,
        "concurrencyPolicy",
        &["Allow", "Forbid", "Replace"],
        &path,
        errors,
    );
    for key in [
        "startingDeadlineSeconds",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
    ] {
        not_negative(spec, key, &path, errors);
    }
    let zone = at(spec, &["timeZone"]);
    if zone.as_str().is_some_and(str::is_empty) {
        let fault = "timeZone must be nil or non-empty string";
        errors.push(FieldError::invalid(&path.child("timeZone"), "", fault));
    }
    let path = path.child("jobTemplate").child("spec");
    let job = at(spec, &["jobTemplate", "spec"]);
    job_spec(job, &path, errors);
    if bool_at(job, &["manualSelector"]) {
        let supported = ["false", "nil"];
        errors.push(FieldError::not_supported(
            &path.child("manualSelector"),
            true,
            &supported,
        ));
    }
}

/// What is wrong with a cron schedule: five fields of numbers, lists, ranges and steps, or one of
/// the names `@daily` and so on.
fn schedule_fault(schedule: &str) -> Option<String> {
    const NAMED: [&str; 7] = [
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
    ];
    if schedule.contains("TZ=") {
        return Some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".to_owned());
    }
    if schedule.starts_with('@') {
        let every = schedule
            .strip_prefix("@every ")
            .is_some_and(|d| !d.trim().is_empty());
        return (!every && !NAMED.contains(&schedule))
            .then(|| format!("unrecognized descriptor: {schedule}"));
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        let fields = fields.join(" ");
        let found = schedule.split_whitespace().count();
        return Some(format!(
            "expected exactly 5 fields, found {found}: [{fields}]"
        ));
    }
    const BOUNDS: [(u32, u32); 5] = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
    const MONTHS: &[&str] = &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ];
    const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    fields
        .iter()
        .zip(BOUNDS)
        .enumerate()
        .find_map(|(i, (field, (least, most)))| {
            let named: &[&str] = match i {
                3 => MONTHS,
                4 => DAYS,
                _ => &[],
            };
            let number = |text: &str| -> Option<u32> {
                let name = named.iter().position(|n| *n == text.to_lowercase());
                name.map(|n| n as u32 + least).or_else(|| text.parse().ok())
            };
            field.split(',').find_map(|part| {
                let (range, step) = part
                    .split_once('/')
                    .map_or((part, None), |(r, s)| (r, Some(s)));
                if step.is_some_and(|s| !s.parse::<u32>().is_ok_and(|s| s > 0)) {
                    return Some(format!("failed to parse step in field: {part}"));
                }
                if matches!(range, "*" | "?") {
                    return None;
                }
                let (low, high) = range.split_once('-').unwrap_or((range, range));
                match (number(low), number(high)) {
                    (Some(low), Some(_)) if low < least => Some(format!(
                        "beginning of range ({low}) below minimum ({least}): {part}"
                    )),
                    (Some(_), Some(high)) if high > most => Some(format!(
                        "end of range ({high}) above maximum ({most}): {part}"
                    )),
                    (Some(low), Some(high)) if low > high => Some(format!(
                        "beginning of range ({low}) beyond end of range ({high}): {part}"
                    )),
                    (Some(_), Some(_)) => None,
                    _ => Some(format!("failed to parse int from {range}")),
                }
            })
        })
}

struct Autoscaler(KindInfo);

impl Strategy for Autoscaler {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default_unset(spec, "minReplicas", 1);
        if self.0.version != "v1" && list_at(spec, &["metrics"]).is_empty() {
            let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80}}});
            set(spec, "metrics", json!([cpu]));
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        autoscaler(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        autoscaler(new, &mut errors);
        errors
    }
}

fn autoscaler(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let least = int_at(spec, &["minReplicas"]).unwrap_or(1);
    let most = int_at(spec, &["maxReplicas"]).unwrap_or(0);
    if least < 1 {
        let fault = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(
            &path.child("minReplicas"),
            least,
            fault,
        ));
    }
    let at_most = path.child("maxReplicas");
    if most < 1 {
        errors.push(FieldError::invalid(
            &at_most,
            most,
            "must be greater than 0",
        ));
    }
    if most < least {
        let fault = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(&at_most, most, fault));
    }
    for key in ["kind", "name"] {
        let target = at(spec, &["scaleTargetRef"]);
        required(target, key, &path.child("scaleTargetRef"), errors);
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

    fn allow_unconditional_update(&self) -> bool {
        false
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
    }
    selectors::label_selector(at(spec, &["selector"]), &path.child("selector"), errors);
    let policies = ["AlwaysAllow", "IfHealthyBudget"];
    optional_choice(spec, "unhealthyPodEvictionPolicy", &policies, &path, errors);
}
