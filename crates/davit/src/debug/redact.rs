//! Leaving out what users wrote for their programs: it may be a secret.

use serde_json::{Map, Value};

/// What stands in the place of what was left out.
const LEFT_OUT: &str = "(left out)";
/// Fields of containers whose texts are users'.
const TEXTS: [&str; 2] = ["command", "args"];
/// Fields that are handed to drivers as they are.
const OPAQUE: [&str; 5] = [
    "volumeAttributes",
    "attachmentMetadata",
    "parameters",
    "volumeHandle",
    "data",
];
/// Fields of which the words before `=` are told.
const OPTIONS: &str = "mountOptions";
/// Reasons of events whose messages repeat what a container has answered.
const SAID_BY_CONTAINERS: [&str; 4] = [
    "Unhealthy",
    "ProbeWarning",
    "FailedPostStartHook",
    "FailedPreStopHook",
];
/// Reasons of events whose messages repeat what a driver, a plugin or a mount helper has answered, options among it.
const SAID_BY_OTHERS: [&str; 14] = [
    "FailedPrepareDynamicResources",
    "FailedUnprepareDynamicResources",
    "FailedMount",
    "FailedUnMount",
    "FailedMapVolume",
    "FailedAttachVolume",
    "ProvisioningFailed",
    "VolumeFailedDelete",
    "VolumeResizeFailed",
    "FileSystemResizeFailed",
    "VolumeConditionAbnormal",
    "FailedCreatePodSandBox",
    "FailedKillPod",
    "UnexpectedAdmissionError",
];
/// Types of conditions whose messages do.
const CONDITIONS: [&str; 2] = ["ControllerResizeError", "NodeResizeError"];
/// The domain of Kubernetes' own annotations, or what it ends with.
const KUBERNETES: &str = "kubernetes.io";
/// Annotations that repeat whole objects.
const REPEATS: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Leaves out of all objects of a list what may be a secret, and what is of no use (managedFields).
pub(super) fn list(list: &mut Value) {
    for item in list["items"].as_array_mut().into_iter().flatten() {
        object(item);
    }
}

fn object(object: &mut Value) {
    match object {
        Value::Array(items) => items.iter_mut().for_each(self::object),
        Value::Object(fields) => {
            fields.remove("managedFields");
            fields.remove(REPEATS);
            event(fields);
            for (name, value) in fields.iter_mut() {
                match name.as_str() {
                    "env" => values(value),
                    text if TEXTS.contains(&text) => all(value),
                    // of probes and hooks
                    "exec" | "httpGet" => commands(value),
                    "annotations" => annotations(value),
                    text if OPAQUE.contains(&text) => opaque(value),
                    OPTIONS => options(value),
                    "flexVolume" | "terminated" | "attachError" | "detachError" => part(value),
                    "waiting" => waiting(value),
                    _ => self::object(value),
                }
            }
        }
        _ => {}
    }
}

/// The message of an event, a condition or a status that repeats what a container or a driver has said.
fn event(fields: &mut Map<String, Value>) {
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let repeats = text("reason").is_some_and(|reason| {
        SAID_BY_CONTAINERS.contains(&reason) || SAID_BY_OTHERS.contains(&reason)
    });
    let is_condition = text("type").is_some_and(|of| CONDITIONS.contains(&of));
    // A pod's says why davit has ended it; that of a volume is the driver's.
    let is_volume = text("phase") == Some("Failed") && !fields.contains_key("qosClass");
    let repeats = repeats || is_condition || is_volume;
    for text in ["message", "note"] {
        if let Some(message) = fields.get_mut(text).filter(|_| repeats) {
            *message = LEFT_OUT.into();
        }
    }
}

/// The values of annotations that are not Kubernetes' own.
fn annotations(all: &mut Value) {
    let Some(fields) = all.as_object_mut() else {
        return;
    };
    fields.remove(REPEATS);
    for (key, value) in fields.iter_mut() {
        let domain = key.split('/').next().unwrap_or_default();
        let known = key.contains('/')
            && (domain == KUBERNETES
                || domain.ends_with(".kubernetes.io")
                || domain.ends_with(".k8s.io"));
        if !known {
            *value = LEFT_OUT.into();
        }
    }
}

/// `name=value`, the name.
fn options(all: &mut Value) {
    for option in all.as_array_mut().into_iter().flatten() {
        if let Some((name, _)) = option.as_str().and_then(|text| text.split_once('=')) {
            *option = format!("{name}={LEFT_OUT}").into();
        }
    }
}

/// Every text at any depth: what it means only a driver knows.
fn opaque(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(opaque),
        Value::Object(fields) => fields.values_mut().for_each(opaque),
        Value::Null | Value::Bool(_) => {}
        other => *other = LEFT_OUT.into(),
    }
}

/// The options of a FlexVolume, and what a container has left behind.
fn part(value: &mut Value) {
    for key in ["options", "message"] {
        if let Some(given) = value.get_mut(key) {
            opaque(given);
        }
    }
}

/// What a hook has answered, and what it was, is told with the container that waits for it.
fn waiting(state: &mut Value) {
    if state["reason"] == "PostStartHookError" {
        part(state);
    }
}

/// The values of variables; what they are taken from stays.
fn values(variables: &mut Value) {
    for variable in variables.as_array_mut().into_iter().flatten() {
        if let Some(value) = variable.get_mut("value") {
            *value = LEFT_OUT.into();
        }
    }
}

/// Every text of a list.
fn all(texts: &mut Value) {
    match texts {
        Value::Array(texts) => texts.iter_mut().for_each(|text| *text = LEFT_OUT.into()),
        other => *other = LEFT_OUT.into(),
    }
}

/// Commands and headers of a probe.
fn commands(probe: &mut Value) {
    if let Some(command) = probe.get_mut("command") {
        all(command);
    }
    if let Some(path) = probe.get_mut("path") {
        *path = LEFT_OUT.into();
    }
    if let Some(headers) = probe.get_mut("httpHeaders") {
        values(headers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_that_users_wrote_for_their_programs_is_left() {
        let mut pods = json!({"items": [{
            "metadata": {"name": "p", "managedFields": [{"manager": "s3cret"}],
                "annotations": {REPEATS: "s3cret", "kubernetes.io/kept": "yes", "example.com/token": "s3cret"}},
            "spec": {
                "initContainers": [{"name": "i", "args": ["--token=s3cret"]}],
                "containers": [{"name": "c", "image": "i", "command": ["sh", "-c", "s3cret"],
                    "env": [{"name": "A", "value": "s3cret"},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                    "livenessProbe": {"exec": {"command": ["s3cret"]}},
                    "readinessProbe": {"httpGet": {"port": 1, "path": "/?token=s3cret", "httpHeaders": [{"name": "Authorization", "value": "s3cret"}]}},
                    "lifecycle": {"preStop": {"exec": {"command": ["s3cret"]}}}}],
                "ephemeralContainers": [{"name": "e", "env": [{"name": "A", "value": "s3cret"}]}]}}]});
        list(&mut pods);
        let text = pods.to_string();
        assert!(!text.contains("s3cret"), "{text}");
        let container = &pods["items"][0]["spec"]["containers"][0];
        assert_eq!(container["env"][0]["name"], "A");
        assert_eq!(container["env"][1]["valueFrom"]["secretKeyRef"]["key"], "k");
        assert_eq!(container["image"], "i");
        assert_eq!(
            pods["items"][0]["metadata"]["annotations"],
            json!({"kubernetes.io/kept": "yes", "example.com/token": LEFT_OUT})
        );
    }

    #[test]
    fn nothing_that_is_for_drivers_or_said_by_containers_is_left() {
        let mut all = json!({"items": [
            {"spec": {"csi": {"driver": "d", "volumeAttributes": {"password": "s3cret"}}}},
            {"spec": {"flexVolume": {"driver": "f", "options": {"password": "s3cret"}}}},
            {"provisioner": "d", "parameters": {"key": "s3cret"}},
            {"spec": {"devices": {"config": [{"opaque": {"driver": "d", "parameters": {"a": [{"b": "s3cret"}, 7]}}}]}}},
            {"status": {"containerStatuses": [{"lastState": {"terminated": {"exitCode": 1, "message": "s3cret"}}}]}},
            {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "PostStartHookError", "message": "exec hook s3cret"}}}]}},
            {"status": {"attachError": {"message": "s3cret"}, "detachError": {"message": "s3cret"},
                "attachmentMetadata": {"key": "s3cret"}}},
            {"reason": "FailedPrepareDynamicResources", "message": "driver: s3cret"},
            {"reason": "FailedUnMount", "message": "driver: s3cret"},
            {"reason": "FailedCreatePodSandBox", "message": "plugin: s3cret"},
            {"status": {"conditions": [{"type": "NodeResizeError", "message": "driver: s3cret"}]}},
            {"status": {"phase": "Failed", "message": "driver: s3cret"}},
            {"status": {"phase": "Failed", "qosClass": "BestEffort", "reason": "UnexpectedAdmissionError", "message": "plugin: s3cret"}},
            {"status": {"phase": "Failed", "qosClass": "BestEffort", "reason": "Evicted", "message": "low on memory"}},
            {"reason": "Unhealthy", "message": "Readiness probe failed: s3cret", "involvedObject": {"name": "p"}},
            {"reason": "Scheduled", "message": "assigned"},
        ]});
        list(&mut all);
        let text = all.to_string();
        assert!(!text.contains("s3cret"), "{text}");
        assert_eq!(
            all["items"][4]["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"],
            1
        );
        assert_eq!(all["items"][13]["status"]["message"], "low on memory");
        assert_eq!(all["items"][15]["message"], "assigned");
        assert_eq!(all["items"][0]["spec"]["csi"]["driver"], "d");
    }

    #[test]
    fn what_mounts_are_told_stays() {
        let mut all = json!({"items": [
            {"spec": {"mountOptions": ["vers=3", "password=s3cret", "ro"], "csi": {"driver": "d", "volumeHandle": "s3cret"}}},
            {"status": {"devices": [{"driver": "d", "data": {"k": "s3cret"}}]}},
            {"reason": "FailedMount", "message": "mount -o password=s3cret"},
        ]});
        list(&mut all);
        let text = all.to_string();
        assert!(!text.contains("s3cret"), "{text}");
        let options = &all["items"][0]["spec"]["mountOptions"];
        assert_eq!(
            options,
            &json!(["vers=(left out)", "password=(left out)", "ro"])
        );
    }

    #[test]
    fn templates_of_workloads_are_pods_too() {
        let mut sets = json!({"items": [{"spec": {"template": {"spec": {"containers": [{"args": ["s3cret"]}]}}}}]});
        list(&mut sets);
        assert!(!sets.to_string().contains("s3cret"));
    }
}
