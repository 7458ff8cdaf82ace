//! Events, stored in the shape of core/v1.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::json::{at, has, int_at, same, str_at};
use super::{KindInfo, Propagation, Strategy, meta};

pub(super) struct Event(pub(super) KindInfo);

impl Event {
    /// Who writes through events.k8s.io keeps its rules; core/v1 takes what it always took.
    fn is_strict(&self) -> bool {
        self.0.group == "events.k8s.io"
    }

    /// Events without a time of their own are those of before events.k8s.io.
    fn content(&self, event: &Value, errors: &mut ErrorList) {
        let is_new = has(event, &["eventTime"]);
        let namespace = str_at(event, &["metadata", "namespace"]);
        let involved = str_at(event, &["involvedObject", "namespace"]);
        let fits = match (involved.is_empty(), is_new) {
            // events about cluster-scoped objects live in one of the standing namespaces
            (true, _) => namespace == "default" || (is_new && namespace == "kube-system"),
            (false, false) => namespace == involved,
            (false, true) => true,
        };
        if !fits {
            let path = Path::new("involvedObject").child("namespace");
            let fault = "does not match event.namespace";
            errors.push(FieldError::invalid(&path, involved, fault));
        }
        if !is_new {
            return;
        }
        let controller = str_at(event, &["reportingComponent"]);
        let path = Path::new(match self.is_strict() {
            true => "reportingController",
            false => "reportingComponent",
        });
        if controller.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        let faults = names::check_qualified_name(controller);
        errors.extend(invalid_each(&path, controller, faults));
        for (key, most) in [
            ("reportingInstance", REASON_MAX),
            ("action", REASON_MAX),
            ("reason", REASON_MAX),
            ("message", NOTE_MAX),
        ] {
            let text = str_at(event, &[key]);
            if text.is_empty() && key != "message" {
                errors.push(FieldError::required(&Path::new(key), ""));
            } else if text.len() > most {
                let fault = format!("can have at most {most} characters");
                errors.push(FieldError::invalid(&Path::new(key), "", fault));
            }
        }
    }
}

const FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

impl Strategy for Event {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        self.content(obj, &mut errors);
        // As upstream: of an event of the core group metadata are looked at where nothing else is wrong.
        if self.is_strict() || errors.is_empty() {
            errors.extend(meta::validate(&self.0, obj));
        }
        if self.is_strict() {
            strict(obj, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        self.content(new, &mut errors);
        if self.is_strict() {
            if !same(at(new, &["series"]), at(old, &["series"])) {
                series(new, &mut errors);
            }
            stays(new, old, &mut errors);
        }
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        FIELDS
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        let text = |name: &str| match name {
            "source" => match str_at(obj, &["source", "component"]) {
                "" => str_at(obj, &["reportingComponent"]),
                component => component,
            },
            name => {
                let path: Vec<&str> = name.split('.').collect();
                str_at(obj, &path)
            }
        };
        FIELDS
            .iter()
            .map(|name| (*name, text(name).to_owned()))
            .collect()
    }

    /// events.k8s.io calls the same fields otherwise; each group knows its own names alone.
    fn field_alias<'a>(&self, label: &'a str) -> &'a str {
        if !self.is_strict() {
            return label;
        }
        match label {
            "source" | "reportingComponent" => "",
            label if label.starts_with("involvedObject.") => "",
            "reportingController" => "reportingComponent",
            "regarding.kind" => "involvedObject.kind",
            "regarding.namespace" => "involvedObject.namespace",
            "regarding.name" => "involvedObject.name",
            "regarding.uid" => "involvedObject.uid",
            "regarding.apiVersion" => "involvedObject.apiVersion",
            "regarding.resourceVersion" => "involvedObject.resourceVersion",
            "regarding.fieldPath" => "involvedObject.fieldPath",
            label => label,
        }
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Unsupported
    }
}

const REASON_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

/// What the newer form asks for beside `content`.
fn strict(event: &Value, errors: &mut ErrorList) {
    if !has(event, &["eventTime"]) {
        errors.push(FieldError::required(&Path::new("eventTime"), ""));
    }
    let kind = str_at(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        let fault = format!("has invalid value: {kind}");
        errors.push(FieldError::invalid(&Path::new("type"), "", fault));
    }
    let unset = |key: &str| match key {
        "count" => int_at(event, &[key]).unwrap_or(0) == 0,
        "source" => ["component", "host"]
            .iter()
            .all(|part| str_at(event, &[key, part]).is_empty()),
        _ => !has(event, &[key]),
    };
    for key in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if !unset(key) {
            let fault = "needs to be unset";
            errors.push(FieldError::invalid(&Path::new(key), "", fault));
        }
    }
    series(event, errors);
}

fn series(event: &Value, errors: &mut ErrorList) {
    let series = at(event, &["series"]);
    if series.is_null() {
        return;
    }
    let path = Path::new("series");
    if int_at(series, &["count"]).unwrap_or(0) < 2 {
        let fault = "should be at least 2";
        errors.push(FieldError::invalid(&path.child("count"), "", fault));
    }
    if !has(series, &["lastObservedTime"]) {
        errors.push(FieldError::required(&path.child("lastObservedTime"), ""));
    }
}

/// Of an event of the newer form only the series goes on.
fn stays(new: &Value, old: &Value, errors: &mut ErrorList) {
    for (key, shown) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        let path = Path::new(shown);
        meta::immutable(at(new, &[key]), at(old, &[key]), &path, errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, update_faults};

    fn event(change: impl FnOnce(&mut Value)) -> Value {
        let mut obj = json!({"metadata": {"name": "e", "namespace": "default"}, "eventTime": "2026-01-02T03:04:05.000001Z",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "r", "action": "a", "type": "Normal",
            "reportingComponent": "c", "reportingInstance": "i"});
        change(&mut obj);
        obj
    }

    #[test]
    fn metadata_of_events_of_the_core_group_are_looked_at_last() {
        let told = |group: &str, of: &str| {
            let event =
                json!({"metadata": {"namespace": "n"}, "involvedObject": {"namespace": of}});
            let faults = faults(group, "v1", "Event", &event);
            (
                faults.contains("metadata.name"),
                faults.contains("involvedObject.namespace"),
            )
        };
        assert_eq!(told("", "n"), (true, false));
        assert_eq!(told("", "other"), (false, true));
        assert_eq!(told("events.k8s.io", "other"), (true, true));
    }

    #[test]
    fn faults_of_events() {
        type Change = fn(&mut Value);
        let cases: &[(Change, &str)] = &[
            (|e| e["involvedObject"]["namespace"] = json!("other"), ""),
            (
                |e| e["type"] = json!("Some"),
                "type: Invalid value: \"\": has invalid value: Some",
            ),
            (
                |e| e["series"] = json!({"count": 1}),
                "series.count: Invalid value: \"\": should be at least 2\nseries.lastObservedTime: Required value",
            ),
            (
                |e| e["action"] = json!("a".repeat(129)),
                "action: Invalid value: \"\": can have at most 128 characters",
            ),
            (
                |e| {
                    e["eventTime"] = Value::Null;
                    e["involvedObject"]["namespace"] = json!("other");
                },
                "involvedObject.namespace: Invalid value: \"other\": does not match event.namespace\neventTime: Required value",
            ),
            (
                |e| e["count"] = json!(1),
                "count: Invalid value: \"\": needs to be unset",
            ),
        ];
        for (change, wanted) in cases {
            assert_eq!(
                faults("events.k8s.io", "v1", "Event", &event(change)),
                *wanted
            );
        }
        // core/v1 takes what it always took
        assert_eq!(
            faults("", "v1", "Event", &event(|e| e["type"] = json!("Some"))),
            ""
        );
        let found = update_faults(
            "events.k8s.io",
            "v1",
            "Event",
            &event(|e| e["action"] = json!("b")),
            &event(|_| {}),
        );
        assert_eq!(found, "action: Invalid value: \"b\": field is immutable");
        let alias = |group: &str, label: &'static str| {
            crate::strategy(group, "v1", "Event")
                .field_alias(label)
                .to_owned()
        };
        assert_eq!(
            alias("events.k8s.io", "regarding.kind"),
            "involvedObject.kind"
        );
        assert_eq!(alias("events.k8s.io", "involvedObject.kind"), "");
        assert_eq!(alias("", "regarding.kind"), "regarding.kind");
        let more = |e: &mut Value| {
            e["series"] = json!({"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000001Z"});
        };
        assert_eq!(
            update_faults("events.k8s.io", "v1", "Event", &event(more), &event(|_| {})),
            ""
        );
    }
}
