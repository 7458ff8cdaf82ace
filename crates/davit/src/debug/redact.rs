//! Leaving out what users wrote for their programs: it may be a secret.

use serde_json::Value;

/// What stands in the place of what was left out.
const LEFT_OUT: &str = "(left out)";
/// Fields of containers whose texts are users'.
const TEXTS: [&str; 2] = ["command", "args"];
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
            for (name, value) in fields.iter_mut() {
                match name.as_str() {
                    "env" => values(value),
                    text if TEXTS.contains(&text) => all(value),
                    // of probes and hooks
                    "exec" | "httpGet" => commands(value),
                    _ => self::object(value),
                }
            }
        }
        _ => {}
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
                "annotations": {REPEATS: "s3cret", "kept": "yes"}},
            "spec": {
                "initContainers": [{"name": "i", "args": ["--token=s3cret"]}],
                "containers": [{"name": "c", "image": "i", "command": ["sh", "-c", "s3cret"],
                    "env": [{"name": "A", "value": "s3cret"},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                    "livenessProbe": {"exec": {"command": ["s3cret"]}},
                    "readinessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "Authorization", "value": "s3cret"}]}},
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
            json!({"kept": "yes"})
        );
    }

    #[test]
    fn templates_of_workloads_are_pods_too() {
        let mut sets = json!({"items": [{"spec": {"template": {"spec": {"containers": [{"args": ["s3cret"]}]}}}}]});
        list(&mut sets);
        assert!(!sets.to_string().contains("s3cret"));
    }
}
