//! Cron jobs.

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::schedule::Schedule;
use serde_json::Value;

use super::super::fields::{choice, not_negative};
use super::super::json::{at, at_mut, bool_at, default, default_unset, str_at};
use super::super::{KindInfo, Strategy, meta, pod_defaults, pod_spec, pods};
use super::jobs::{spec_warnings, validate_spec};
use super::name_warnings;

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

    fn create_warnings(&self, obj: &Value) -> Vec<String> {
        name_warnings(obj)
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let spec = at(obj, &["spec", "jobTemplate", "spec"]);
        let path = "spec.jobTemplate.spec";
        let mut warnings = spec_warnings(spec, path);
        let template = at(spec, &["template"]);
        warnings.extend(pods::template_warnings(
            template,
            &format!("{path}.template"),
        ));
        warnings
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
        time_zone(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let mut found = ErrorList::new();
        cron_job(new, &mut found);
        let template = "spec.jobTemplate.spec.template.spec";
        let known = |known: &mut ErrorList| cron_job(old, known);
        errors.extend(pod_spec::new_faults(template, found, known));
        let zone = |obj| at(obj, &["spec", "timeZone"]);
        if zone(new) != zone(old) {
            time_zone(new, &mut errors);
        }
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
    let path = path.child("jobTemplate").child("spec");
    let job = at(spec, &["jobTemplate", "spec"]);
    validate_spec(job, &path, errors);
    if bool_at(job, &["manualSelector"]) {
        let supported = ["false", "nil"];
        errors.push(FieldError::not_supported(
            &path.child("manualSelector"),
            true,
            &supported,
        ));
    }
}

/// A zone is one that the database of time zones knows, where the machine has one.
fn time_zone(obj: &Value, errors: &mut ErrorList) {
    let Some(zone) = at(obj, &["spec", "timeZone"]).as_str() else {
        return;
    };
    let is_name = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
        (1..=14).contains(&part.len())
            && !matches!(part, "." | "..")
            && !part.starts_with('-')
            && part.chars().all(known)
    };
    let zones = jiff::tz::db();
    let fault = if zone.is_empty() {
        "timeZone must be nil or non-empty string".to_owned()
    } else if zone.eq_ignore_ascii_case("local") {
        "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
            .to_owned()
    } else if !zone.split('/').all(is_name)
        || (zones.get(zone).is_err() && zones.get("Europe/Berlin").is_ok())
    {
        format!("unknown time zone {zone}")
    } else {
        return;
    };
    let path = Path::new("spec").child("timeZone");
    errors.push(FieldError::invalid(&path, zone, fault));
}

/// What is wrong with a cron schedule.
fn schedule_fault(schedule: &str) -> Option<String> {
    if schedule.contains("TZ=") {
        return Some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".to_owned());
    }
    Schedule::parse(schedule, None).err()
}
