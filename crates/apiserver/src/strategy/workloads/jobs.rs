//! Jobs and cron jobs.

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::{Value, json};

use super::super::containers::{choice, not_negative, optional_choice};
use super::super::json::{
    at, at_mut, bool_at, default, default_unset, has, int_at, is_empty, keep, object_mut, remove,
    same, set, str_at,
};
use super::super::{
    KindInfo, Propagation, Strategy, access, meta, pod_defaults, pod_spec, selectors,
};
use super::{mismatch, template_warnings};

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
    if !bool_at(spec, &["manualSelector"]) {
        remove(spec, "manualSelector");
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

pub(super) struct CronJob(pub(super) KindInfo);

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
