//! What may become of a job's status. Since another controller may manage a job (`managedBy`, KEP-4368) its clients have to
//! be able to rely on it whoever writes it: an ended job stays ended, and counters never fall.
//!
//! A rule is checked when what it is about changes, so that a write may concern something else.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

use super::super::super::fields::not_negative;
use super::super::super::json::{at, bool_at, int_at, list_at, same, str_at};
use super::indexes;

/// A job before or after a write of its status.
struct Job<'a>(&'a Value);

impl<'a> Job<'a> {
    fn at(&self, key: &str) -> &'a Value {
        at(self.0, &["status", key])
    }

    fn is(&self, type_: &str) -> bool {
        condition(self.0, type_) == Some("True")
    }

    fn has_ended(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn count(&self, key: &str) -> i64 {
        int_at(self.0, &["status", key]).unwrap_or(0)
    }
}

/// The status of a condition of a job.
pub(super) fn condition<'a>(job: &'a Value, type_: &str) -> Option<&'a str> {
    let mut conditions = list_at(job, &["status", "conditions"]).iter();
    let found = conditions.find(|c| str_at(c, &["type"]) == type_)?;
    Some(str_at(found, &["status"]))
}

pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    for key in ["active", "succeeded", "failed", "ready", "terminating"] {
        not_negative(at(new, &["status"]), key, &path, errors);
    }
    uncounted(new, &path.child("uncountedTerminatedPods"), errors);
    let (new, old) = (Job(new), Job(old));
    conditions(&new, &old, &path.child("conditions"), errors);
    times(&new, &old, &path, errors);
    counters(&new, &old, &path, errors);
    completion_indexes(&new, &old, &path, errors);
}

fn uncounted(job: &Value, path: &Path, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for key in ["succeeded", "failed"] {
        let list = list_at(job, &["status", "uncountedTerminatedPods", key]);
        for (place, uid) in list.iter().enumerate() {
            let path = path.child(key).index(place);
            if uid.as_str() == Some("") {
                errors.push(FieldError::invalid(&path, "", "must not be empty"));
            } else if !seen.insert(uid.as_str()) {
                errors.push(FieldError::duplicate(&path, uid.clone()));
            }
        }
    }
}

fn conditions(new: &Job<'_>, old: &Job<'_>, path: &Path, errors: &mut ErrorList) {
    let mut refuse = |fault: String| errors.push(FieldError::invalid_unshown(path, fault));
    let turned = |type_: &str| new.is(type_) != old.is(type_);
    let both = |a: &str, b: &str| new.is(a) && new.is(b);
    if (turned("Complete") || turned("Failed")) && both("Complete", "Failed") {
        refuse("cannot set Complete=True and Failed=true conditions".to_owned());
    }
    if (turned("Complete") || turned("FailureTarget")) && both("Complete", "FailureTarget") {
        refuse("cannot set Complete=True and FailureTarget=true conditions".to_owned());
    }
    let failed_indexes = !same(new.at("failedIndexes"), old.at("failedIndexes"));
    if (turned("Failed") || failed_indexes) && new.is("Failed") && !new.is("FailureTarget") {
        refuse(
            "cannot set Failed=True condition without the FailureTarget=true condition".to_owned(),
        );
    }
    let turned = turned("Complete") || turned("SuccessCriteriaMet");
    if turned && new.is("Complete") && !new.is("SuccessCriteriaMet") {
        refuse(
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"
                .to_owned(),
        );
    }
    for other in ["Failed", "FailureTarget"] {
        if both("SuccessCriteriaMet", other) {
            refuse(format!(
                "cannot set SuccessCriteriaMet=True and {other}=true conditions"
            ));
        }
    }
    for type_ in ["Failed", "Complete", "FailureTarget"] {
        if old.is(type_) && !new.is(type_) {
            refuse(format!(
                "cannot disable the terminal {type_}=True condition"
            ));
        }
    }
    if old.is("SuccessCriteriaMet") && !new.is("SuccessCriteriaMet") {
        refuse("cannot disable the SuccessCriteriaMet=True condition".to_owned());
    }
    if old.is("Complete") && !old.is("SuccessCriteriaMet") && new.is("SuccessCriteriaMet") {
        refuse(
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions"
                .to_owned(),
        );
    }
}

fn times(new: &Job<'_>, old: &Job<'_>, path: &Path, errors: &mut ErrorList) {
    let changed = |key: &str| !same(new.at(key), old.at(key));
    let (start, end) = (new.at("startTime"), new.at("completionTime"));
    let (at_start, at_end) = (path.child("startTime"), path.child("completionTime"));
    if changed("completionTime") || new.is("Complete") != old.is("Complete") {
        if !end.is_null() && !new.is("Complete") {
            let fault = "cannot set completionTime when there is no Complete=True condition";
            errors.push(FieldError::invalid(&at_end, end.clone(), fault));
        }
        if end.is_null() && new.is("Complete") {
            let why = "completionTime is required for Complete jobs";
            errors.push(FieldError::required(&at_end, why));
        }
    }
    // Both are written with the same precision and zone.
    if let (Some(begun), Some(ended)) = (start.as_str(), end.as_str())
        && (changed("startTime") || changed("completionTime"))
        && ended < begun
    {
        let fault = "must be equal to or after `startTime`";
        errors.push(FieldError::invalid(&at_end, ended, fault));
    }
    let never_began =
        bool_at(new.0, &["spec", "suspend"]) && int_at(new.0, &["spec", "completions"]) == Some(0);
    let news = new.has_ended() != old.has_ended() || changed("startTime");
    if news && start.is_null() && new.has_ended() && !never_began {
        let why = "startTime is required for finished job";
        errors.push(FieldError::required(&at_start, why));
    }
    if !old.at("completionTime").is_null() && !end.is_null() && changed("completionTime") {
        errors.push(FieldError::invalid(
            &at_end,
            end.clone(),
            "field is immutable",
        ));
    }
    let resumes = old.is("Suspended") && condition(new.0, "Suspended") == Some("False");
    let suspended = bool_at(new.0, &["spec", "suspend"]);
    if changed("startTime") && !old.at("startTime").is_null() && !suspended && !resumes {
        let fault = "field is immutable for unsuspended job once set";
        errors.push(FieldError::invalid(&at_start, start.clone(), fault));
    }
}

fn counters(new: &Job<'_>, old: &Job<'_>, path: &Path, errors: &mut ErrorList) {
    let mut refuse = |key: &str, fault: &str| {
        let mut value = new.at(key).clone();
        if value.is_null() && key != "uncountedTerminatedPods" {
            value = 0.into();
        }
        errors.push(FieldError::invalid(&path.child(key), value, fault));
    };
    let ended_now = new.has_ended() != old.has_ended();
    let changed = |key: &str| !same(new.at(key), old.at(key));
    if new.has_ended() {
        if (ended_now || changed("active")) && new.count("active") > 0 {
            refuse("active", "active>0 is invalid for finished job");
        }
        if (ended_now || changed("terminating")) && new.count("terminating") > 0 {
            refuse("terminating", "terminating>0 is invalid for finished job");
        }
        let uncounted = new.at("uncountedTerminatedPods");
        let waiting =
            list_at(uncounted, &["succeeded"]).len() + list_at(uncounted, &["failed"]).len();
        if (ended_now || changed("uncountedTerminatedPods")) && waiting > 0 {
            refuse("uncountedTerminatedPods", "must be empty for finished job");
        }
    }
    let more_ready = new.count("ready") > new.count("active");
    if (changed("ready") || changed("active")) && more_ready {
        refuse("ready", "cannot set more ready pods than active");
    }
    if new.count("failed") < old.count("failed") {
        refuse("failed", "cannot decrease the failed counter");
    }
    // Indexed jobs may be scaled down, and with them what has succeeded.
    let spec = at(new.0, &["spec"]);
    let elastic = str_at(spec, &["completionMode"]) == "Indexed"
        && same(at(spec, &["completions"]), at(spec, &["parallelism"]));
    if new.count("succeeded") < old.count("succeeded") && !elastic {
        refuse("succeeded", "cannot decrease the succeeded counter");
    }
}

fn completion_indexes(new: &Job<'_>, old: &Job<'_>, path: &Path, errors: &mut ErrorList) {
    let spec = at(new.0, &["spec"]);
    let completions = int_at(spec, &["completions"]);
    let changed = |key: &str| !same(new.at(key), old.at(key));
    let (done, failed) = (
        new.at("completedIndexes").as_str().unwrap_or_default(),
        new.at("failedIndexes").as_str(),
    );
    let (at_done, at_failed) = (path.child("completedIndexes"), path.child("failedIndexes"));
    if changed("completedIndexes") {
        if let Some(Err(fault)) = completions.map(|n| indexes::total(done, n)) {
            let fault = format!("error parsing completedIndexes: {fault}");
            errors.push(FieldError::invalid(&at_done, done, fault));
        }
        if !done.is_empty() && str_at(spec, &["completionMode"]) != "Indexed" {
            let fault = "cannot set non-empty completedIndexes when non-indexed completion mode";
            errors.push(FieldError::invalid(&at_done, done, fault));
        }
    }
    let Some(failed) = failed else { return };
    if changed("failedIndexes") {
        if at(spec, &["backoffLimitPerIndex"]).is_null() {
            let fault = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            errors.push(FieldError::invalid(&at_failed, failed, fault));
        } else if let Some(Err(fault)) = completions.map(|n| indexes::total(failed, n)) {
            let fault = format!("error parsing failedIndexes: {fault}");
            errors.push(FieldError::invalid(&at_failed, failed, fault));
        }
    }
    let shared = completions.and_then(|n| indexes::shared(done, failed, n));
    if let Some(index) = shared.filter(|_| changed("failedIndexes") || changed("completedIndexes"))
    {
        let fault = format!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.push(FieldError::invalid(&at_failed, failed, fault));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(status: Value) -> Value {
        json!({"spec": {"completions": 3, "parallelism": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 1}, "status": status})
    }

    fn faults(new: Value, old: Value) -> Vec<String> {
        let mut errors = ErrorList::new();
        validate_update(&job(new), &job(old), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn conditions(types: &[&str]) -> Value {
        types
            .iter()
            .map(|t| json!({"type": t, "status": "True"}))
            .collect()
    }

    #[test]
    fn a_job_ends_in_two_steps_and_stays_ended() {
        let start = "2026-01-01T00:00:00Z";
        let begun = json!({"startTime": start, "active": 1, "ready": 1});
        let ended = json!({"startTime": start, "completionTime": "2026-01-01T00:00:01Z", "conditions": conditions(&["SuccessCriteriaMet", "Complete"])});
        assert_eq!(faults(ended.clone(), begun.clone()), Vec::<String>::new());
        let mut early = ended.clone();
        early["active"] = json!(1);
        early["conditions"] = conditions(&["Complete"]);
        early["completionTime"] = json!("2025-01-01T00:00:00Z");
        assert_eq!(
            faults(early, begun.clone()),
            [
                "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
                "status.completionTime: Invalid value: \"2025-01-01T00:00:00Z\": must be equal to or after `startTime`",
                "status.active: Invalid value: 1: active>0 is invalid for finished job",
            ]
        );
        let mut again = begun;
        again["conditions"] = conditions(&["SuccessCriteriaMet"]);
        assert_eq!(
            faults(again, ended),
            [
                "status.conditions: Invalid value: cannot disable the terminal Complete=True condition"
            ]
        );
    }

    #[test]
    fn counters_do_not_fall_and_indexes_do_not_overlap() {
        let old = json!({"failed": 2, "succeeded": 1, "completedIndexes": "0"});
        let new = json!({"failed": 1, "ready": 2, "active": 1, "completedIndexes": "0-1", "failedIndexes": "1"});
        assert_eq!(
            faults(new, old.clone()),
            [
                "status.ready: Invalid value: 2: cannot set more ready pods than active",
                "status.failed: Invalid value: 1: cannot decrease the failed counter",
                "status.succeeded: Invalid value: 0: cannot decrease the succeeded counter",
                "status.failedIndexes: Invalid value: \"1\": failedIndexes and completedIndexes overlap at index: 1",
            ]
        );
        // What is not touched may be as it is.
        let strange = json!({"completedIndexes": "9", "ready": 3});
        let mut other = strange.clone();
        other["terminating"] = json!(1);
        assert_eq!(faults(other, strange), Vec::<String>::new());
    }
}
