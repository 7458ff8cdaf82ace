//! Jobs.

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use serde_json::{Value, json};

use super::super::json::{
    at, at_mut, bool_at, default, default_unset, has, int_at, is_empty, keep, list_at, list_mut,
    object_mut, same, set, str_at,
};
use super::super::{KindInfo, Propagation, Strategy, access, meta, pod_defaults, selectors};
use super::{mismatch, name_warnings, template_warnings};

mod indexes;
mod spec;
mod status;

pub(super) use spec::{validate as validate_spec, warnings as spec_warnings};

/// Label of the pods of one job.
const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";

pub(super) struct Job(pub(super) KindInfo);

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
    for rule in list_mut(spec, &["podFailurePolicy", "rules"]) {
        for pattern in list_mut(rule, &["onPodConditions"]) {
            default(pattern, "status", "True");
        }
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
        if !bool_at(obj, &["spec", "manualSelector"]) {
            generated_selector(obj, &mut errors);
        }
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
            "managedBy",
            "successPolicy",
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
        // whose labels were made by hand until now
        let is_manual = |job: &Value| bool_at(job, &["spec", "manualSelector"]);
        if is_manual(old) && !is_manual(new) {
            generated_selector(new, &mut errors);
        }
        errors.extend(super::template_faults(new, old, job));
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        status::validate_update(new, old, &mut errors);
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

    fn create_warnings(&self, obj: &Value) -> Vec<String> {
        name_warnings(obj)
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let mut warnings: Vec<String> = spec_warnings(at(obj, &["spec"]), "spec");
        warnings.extend(template_warnings(obj));
        warnings
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
    let labels = at(obj, &["spec", "template", "metadata", "labels"]);
    // a job without labels has those of its pods, the generated ones included
    let own = at(obj, &["metadata", "labels"]);
    let shared = is_empty(own) || labels == own;
    let Some(spec) = at_mut(obj, &["spec"]) else {
        return;
    };
    if let Some(template) = at_mut(spec, &["template"])
        && object_mut(template, "metadata").is_some()
        && let Some(meta) = at_mut(template, &["metadata"])
        && let Some(labels) = object_mut(meta, "labels")
    {
        // Labels of the user's own stay, and are refused by the validation.
        for prefix in ["", "batch.kubernetes.io/"] {
            let keys = [("controller-uid", &uid), ("job-name", &name)];
            for (key, value) in keys {
                let label = labels.entry(format!("{prefix}{key}"));
                label.or_insert_with(|| value.clone());
            }
        }
    }
    if let Some(selector) = object_mut(spec, "selector") {
        let labels = selector.entry("matchLabels").or_insert_with(|| json!({}));
        default_unset(labels, CONTROLLER_UID, uid);
    }
    if shared {
        let labels = at(obj, &["spec", "template", "metadata", "labels"]).clone();
        if let Some(meta) = at_mut(obj, &["metadata"]) {
            set(meta, "labels", labels);
        }
    }
}

fn job(obj: &Value, errors: &mut ErrorList) {
    let spec = at(obj, &["spec"]);
    let path = Path::new("spec");
    validate_spec(spec, &path, errors);
    let (selector, at_selector) = (at(spec, &["selector"]), path.child("selector"));
    let before = errors.len();
    if !selector.is_null() {
        selectors::label_selector(selector, &at_selector, errors);
    }
    // What a faulty one would select nobody knows; none selects nothing.
    let is_faulty = errors.len() > before;
    if selector.is_null() {
        errors.push(FieldError::required(&at_selector, ""));
    }
    let labels = at(spec, &["template", "metadata", "labels"]);
    let matches = !selector.is_null() && selectors::matches(selector, labels);
    if !is_faulty && !matches {
        mismatch(labels, &path.child("template"), errors);
    }
    let completions = int_at(spec, &["completions"]).filter(|n| *n > 0);
    if let Some(completions) = completions
        && str_at(spec, &["completionMode"]) == "Indexed"
    {
        // The longest host name of its pods.
        let name = str_at(obj, &["metadata", "name"]);
        let host = format!("{name}-{}", completions - 1);
        if !names::check_dns1123_label(&host).is_empty() {
            let path = Path::new("metadata").child("name");
            let fault = format!("will not able to create pod with invalid DNS label: {host}");
            errors.push(FieldError::invalid(&path, name, fault));
        }
    }
}

/// The labels that tell the pods of jobs apart are as they have been generated.
fn generated_selector(obj: &Value, errors: &mut ErrorList) {
    let meta = at(obj, &["metadata"]);
    let path = Path::new("spec")
        .child("template")
        .child("metadata")
        .child("labels");
    let labels = at(obj, &["spec", "template", "metadata", "labels"]);
    let mut generated = Value::Object(serde_json::Map::new());
    for prefix in ["", "batch.kubernetes.io/"] {
        for (key, of) in [("controller-uid", "uid"), ("job-name", "name")] {
            let (key, wanted) = (format!("{prefix}{key}"), str_at(meta, &[of]));
            let path = path.key(&key);
            match at(labels, &[&key]).as_str() {
                None => errors.push(FieldError::required(&path, format!("must be '{wanted}'"))),
                Some(found) if found != wanted => {
                    let fault = format!("must be '{wanted}'");
                    errors.push(FieldError::invalid(&path, labels.clone(), fault));
                }
                Some(_) => {}
            }
            set(&mut generated, &key, wanted);
        }
    }
    let selector = at(obj, &["spec", "selector"]);
    let path = Path::new("spec").child("selector");
    let mut faults = ErrorList::new();
    selectors::label_selector(selector, &path, &mut faults);
    if !selector.is_null() && faults.is_empty() && !selectors::matches(selector, &generated) {
        let fault = "`selector` not auto-generated";
        errors.push(FieldError::invalid(&path, selector.clone(), fault));
    }
}

/// The template never changes, except for where pods go and what they need while the job is suspended and has none.
fn job_template_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let stored = at(old, &["spec", "template"]);
    let mut template = at(new, &["spec", "template"]).clone();
    let at_rest =
        !has(old, &["status", "startTime"]) || status::condition(old, "Suspended") == Some("True");
    let no_pods = int_at(old, &["status", "active"]).unwrap_or(0) == 0;
    if bool_at(old, &["spec", "suspend"]) && at_rest && no_pods {
        keep_directives(&mut template, stored);
    }
    meta::immutable(
        &template,
        stored,
        &Path::new("spec").child("template"),
        errors,
    );
}

/// Takes from the stored template what may change.
fn keep_directives(template: &mut Value, stored: &Value) {
    if let Some(meta) = at_mut(template, &["metadata"]) {
        for key in ["labels", "annotations"] {
            keep(meta, at(stored, &["metadata"]), key);
        }
    }
    let Some(spec) = at_mut(template, &["spec"]) else {
        return;
    };
    let stored = at(stored, &["spec"]);
    for key in ["nodeSelector", "tolerations", "schedulingGates"] {
        keep(spec, stored, key);
    }
    // Of the affinities only that to nodes.
    if let Some(affinity) = object_mut(spec, "affinity") {
        affinity.remove("nodeAffinity");
        let nodes = at(stored, &["affinity", "nodeAffinity"]);
        if !nodes.is_null() {
            affinity.insert("nodeAffinity".to_owned(), nodes.clone());
        }
        if affinity.is_empty() {
            keep(spec, stored, "affinity");
        }
    }
    for list in ["containers", "initContainers"] {
        let before = list_at(stored, &[list]);
        for (container, stored) in list_mut(spec, &[list]).zip(before) {
            if str_at(container, &["name"]) == str_at(stored, &["name"]) {
                keep(container, stored, "resources");
            }
        }
    }
}
