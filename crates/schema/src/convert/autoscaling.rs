//! HorizontalPodAutoscaler: autoscaling/v1 knows only the average CPU utilization; everything else
//! of autoscaling/v2 stands in annotations there.

use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// A metric that autoscaling/v1 can say.
fn is_cpu_utilization(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && metric["resource"]["target"]["type"] == "Utilization"
}

fn cpu(target: &Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": target}}})
}

pub(super) fn to_v1(obj: &mut Value) {
    let mut notes = Map::new();
    let mut note = |key: &str, value: Value| {
        notes.insert(key.to_owned(), Value::from(value.to_string()));
    };
    if let Some(spec) = obj.get_mut("spec").and_then(Value::as_object_mut) {
        let metrics = spec.remove("metrics").unwrap_or_default();
        let mut others = Vec::new();
        let mut target = None;
        for metric in metrics.as_array().into_iter().flatten() {
            if target.is_none() && is_cpu_utilization(metric) {
                target = Some(metric["resource"]["target"]["averageUtilization"].clone());
            } else {
                others.push(metric.clone());
            }
        }
        if let Some(target) = target {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
        if !others.is_empty() {
            note(METRICS, Value::from(others));
        }
        if let Some(behavior) = spec.remove("behavior") {
            note(BEHAVIOR, behavior);
        }
    }
    if let Some(status) = obj.get_mut("status").and_then(Value::as_object_mut) {
        let current = status.remove("currentMetrics").unwrap_or_default();
        let mut others = Vec::new();
        for metric in current.as_array().into_iter().flatten() {
            let used = &metric["resource"]["current"]["averageUtilization"];
            if metric["resource"]["name"] == "cpu" && !used.is_null() {
                status.insert("currentCPUUtilizationPercentage".to_owned(), used.clone());
            } else {
                others.push(metric.clone());
            }
        }
        if !others.is_empty() {
            note(CURRENT, Value::from(others));
        }
        if let Some(conditions) = status.remove("conditions") {
            note(CONDITIONS, conditions);
        }
        for count in ["currentReplicas", "desiredReplicas"] {
            status.entry(count).or_insert_with(|| json!(0));
        }
    }
    if notes.is_empty() {
        return;
    }
    if let Some(annotations) = annotations(obj) {
        annotations.extend(notes);
    }
}

fn annotations(obj: &mut Value) -> Option<&mut Map<String, Value>> {
    let meta = obj.get_mut("metadata")?.as_object_mut()?;
    meta.entry("annotations")
        .or_insert_with(|| json!({}))
        .as_object_mut()
}

pub(super) fn to_v2(obj: &mut Value) {
    let mut noted = |key: &str| -> Option<Value> {
        let meta = obj.get_mut("metadata")?.as_object_mut()?;
        let annotations = meta.get_mut("annotations")?.as_object_mut()?;
        let text = annotations.remove(key)?;
        if annotations.is_empty() {
            meta.remove("annotations");
        }
        serde_json::from_str(text.as_str()?).ok()
    };
    let metrics = noted(METRICS);
    let behavior = noted(BEHAVIOR);
    let current = noted(CURRENT);
    let conditions = noted(CONDITIONS);
    if let Some(spec) = obj.get_mut("spec").and_then(Value::as_object_mut) {
        let mut all: Vec<Value> = Vec::new();
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage") {
            all.push(cpu(&target));
        }
        if let Some(Value::Array(others)) = metrics {
            all.extend(others);
        }
        if !all.is_empty() {
            spec.insert("metrics".to_owned(), Value::from(all));
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".to_owned(), behavior);
        }
    }
    if let Some(status) = obj.get_mut("status").and_then(Value::as_object_mut) {
        let mut all: Vec<Value> = Vec::new();
        if let Some(used) = status.remove("currentCPUUtilizationPercentage") {
            all.push(json!({"type": "Resource", "resource": {"name": "cpu",
                "current": {"averageUtilization": used}}}));
        }
        if let Some(Value::Array(others)) = current {
            all.extend(others);
        }
        if !all.is_empty() {
            status.insert("currentMetrics".to_owned(), Value::from(all));
        }
        if let Some(conditions) = conditions {
            status.insert("conditions".to_owned(), conditions);
        }
    }
}
