//! What the webhook says of a database: which versions there are, whether the schedule is one, and where it restores from.

use crate::resource::SampleDb;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};
use serde_json::{Value, json};

/// Answers an AdmissionReview.
pub(crate) async fn answer(review: &Value, client: &Client, versions: &[u32]) -> Value {
    let request = &review["request"];
    let (objections, warnings) = match serde_json::from_value::<SampleDb>(request["object"].clone())
    {
        Ok(database) => {
            let mut objections = objections(&database, versions);
            if request["operation"] == "CREATE" {
                objections.extend(source(&database, request, client).await);
            }
            (objections, warnings(&database))
        }
        Err(error) => (vec![format!("not a SampleDB: {error}")], Vec::new()),
    };
    let mut response = json!({"uid": request["uid"], "allowed": objections.is_empty()});
    if !objections.is_empty() {
        response["status"] =
            json!({"code": 422, "reason": "Invalid", "message": objections.join("; ")});
    }
    if !warnings.is_empty() {
        response["warnings"] = json!(warnings);
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

fn objections(database: &SampleDb, versions: &[u32]) -> Vec<String> {
    let spec = &database.spec;
    let mut found = Vec::new();
    if !versions.contains(&spec.version) {
        let known: Vec<String> = versions.iter().map(u32::to_string).collect();
        found.push(format!(
            "spec.version: {} is none of {}",
            spec.version,
            known.join(", ")
        ));
    }
    if let Err(why) = schedule(&spec.backup.schedule) {
        found.push(format!(
            "spec.backup.schedule: {:?}: {why}",
            spec.backup.schedule
        ));
    }
    found
}

fn warnings(database: &SampleDb) -> Vec<String> {
    let lost = !database.spec.deletion_snapshot;
    let text = "spec.deletionSnapshot: when this is deleted its data go without a last backup";
    lost.then(|| text.to_owned()).into_iter().collect()
}

/// The claim to restore from has to be there: it would be waited for otherwise.
async fn source(database: &SampleDb, request: &Value, client: &Client) -> Option<String> {
    let from = database.spec.restore_from.as_ref()?;
    let namespace = request["namespace"].as_str().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    match claims.get_opt(&from.claim).await {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!(
            "spec.restoreFrom.claim: there is no claim {:?}",
            from.claim
        )),
        Err(error) => Some(format!("spec.restoreFrom.claim: {error}")),
    }
}

/// Whether a text is a schedule of five fields or one of the names; what cron jobs take beside that is left to them.
fn schedule(text: &str) -> Result<(), String> {
    const NAMES: [&str; 7] = [
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
    ];
    if NAMES.contains(&text) {
        return Ok(());
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let limits = [
        ("minute", 0, 59),
        ("hour", 0, 23),
        ("day of month", 1, 31),
        ("month", 1, 12),
        ("day of week", 0, 6),
    ];
    if fields.len() != limits.len() {
        return Err(format!("{} fields where there are five", fields.len()));
    }
    for (field, (name, least, most)) in fields.iter().zip(limits) {
        for part in field.split(',') {
            in_field(part, least, most).ok_or_else(|| format!("{part:?} is no {name}"))?;
        }
    }
    Ok(())
}

fn in_field(part: &str, least: u32, most: u32) -> Option<()> {
    let (range, step) = part
        .split_once('/')
        .map_or((part, None), |(range, step)| (range, Some(step)));
    if let Some(step) = step {
        step.parse().ok().filter(|n: &u32| *n > 0)?;
    }
    if range == "*" || range == "?" {
        return Some(());
    }
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| match text.parse::<u32>() {
        Ok(number) => (least..=most).contains(&number).then_some(number),
        Err(_) => name(text, most),
    };
    (number(first)? <= number(last)?).then_some(())
}

/// Months and days have names.
fn name(text: &str, most: u32) -> Option<u32> {
    const MONTHS: [&str; 12] = [
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let (names, first): (&[&str], u32) = match most {
        12 => (&MONTHS, 1),
        6 => (&DAYS, 0),
        _ => return None,
    };
    let text = text.to_ascii_lowercase();
    let place = names.iter().position(|n| **n == text)?;
    u32::try_from(place).ok().map(|place| place + first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
        for good in [
            "* * * * *",
            "0 3 * * *",
            "*/5 0-6,12 1 jan-mar MON",
            "@daily",
            "0 0 31 12 6",
        ] {
            assert_eq!(schedule(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "* * * *",
            "60 * * * *",
            "* * 0 * *",
            "* * * * 7",
            "5-1 * * * *",
            "*/0 * * * *",
            "x * * * *",
            "@never",
        ] {
            assert!(schedule(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn versions_that_nobody_has_are_refused_and_risks_are_told() {
        let database: SampleDb =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {
            "engine": "sqlite", "version": 3, "storage": {"size": "1Gi"}, "deletionSnapshot": false,
            "backup": {"schedule": "never", "keep": 1}}}))
            .unwrap();
        let found = objections(&database, &[1, 2]);
        assert_eq!(
            found,
            [
                "spec.version: 3 is none of 1, 2",
                "spec.backup.schedule: \"never\": 1 fields where there are five"
            ]
        );
        assert_eq!(warnings(&database).len(), 1);
    }
}
