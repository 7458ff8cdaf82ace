//! Variables that a file of a volume says (`fileKeyRef`, KEP-3721).

use std::collections::HashMap;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::{BACKSTEPS, required};
use crate::json::{at, has, list_at, str_at};

/// Faults of a reference to an entry of a file.
pub(crate) fn reference(of: &Value, path: &Path, errors: &mut ErrorList) {
    for (key, check) in [
        ("key", names::check_env_var_name as fn(&str) -> Vec<String>),
        ("volumeName", names::check_dns1123_label),
    ] {
        required(of, key, path, errors);
        let value = str_at(of, &[key]);
        if !value.is_empty() {
            errors.extend(invalid_each(&path.child(key), value, check(value)));
        }
    }
    required(of, "path", path, errors);
    let file = str_at(of, &["path"]);
    if file.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(&path.child("path"), file, BACKSTEPS));
    }
}

/// Faults of the volumes that are referred to: the pod's own, and empty when it starts.
pub(crate) fn volumes(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let of_pod = list_at(spec, &["volumes"]).iter();
    // of two with one name the last counts
    let of_pod: HashMap<_, _> = of_pod
        .map(|volume| (str_at(volume, &["name"]), volume))
        .collect();
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        for (c, container) in list_at(spec, &[kind]).iter().enumerate() {
            for (v, variable) in list_at(container, &["env"]).iter().enumerate() {
                let of = at(variable, &["valueFrom", "fileKeyRef"]);
                if of.is_null() {
                    continue;
                }
                let path = path.child(kind).index(c).child("env").index(v);
                let path = path.child("valueFrom").child("fileKeyRef");
                volume(&of_pod, str_at(of, &["volumeName"]), &path, errors);
            }
        }
    }
}

fn volume(of_pod: &HashMap<&str, &Value>, name: &str, path: &Path, errors: &mut ErrorList) {
    let path = path.child("volumeName");
    match of_pod.get(name) {
        None => errors.push(FieldError::not_found(&path, name)),
        Some(volume) if !has(volume, &["emptyDir"]) => {
            let fault = "referenced volume must be of type emptyDir";
            errors.push(FieldError::invalid(&path, name, fault));
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn variables_come_from_files_of_empty_volumes_of_the_pod() {
        let faults = |of: Value| {
            let env = json!([{"name": "X", "valueFrom": {"fileKeyRef": of}}]);
            let spec = json!({"containers": [{"name": "c", "image": "i", "env": env}],
                "volumes": [{"name": "empty", "emptyDir": {}}, {"name": "host", "hostPath": {"path": "/"}}]});
            let mut errors = ErrorList::new();
            crate::pod_spec::validate(&spec, true, &Path::new("spec"), &mut errors);
            let at = "spec.containers[0].env[0].valueFrom.fileKeyRef.";
            let texts = errors.iter().filter(|e| e.field.starts_with(at));
            let texts = texts.map(|e| format!("{}: {}", &e.field[at.len()..], e.body()));
            texts.collect::<Vec<_>>()
        };
        let of = |volume: &str, path: &str, key: &str| {
            faults(json!({"volumeName": volume, "path": path, "key": key}))
        };
        assert_eq!(of("empty", "a/b", "K"), Vec::<String>::new());
        assert_eq!(
            of("empty", "a/../../b", "K"),
            ["path: Invalid value: \"a/../../b\": must not contain '..'"]
        );
        assert_eq!(
            of("host", "etc/shadow", "K"),
            ["volumeName: Invalid value: \"host\": referenced volume must be of type emptyDir"]
        );
        assert_eq!(of("none", "a", "K"), ["volumeName: Not found: \"none\""]);
        assert_eq!(of("empty", "a", "K=x").len(), 1);
        let empty = of("", "", "");
        let fields = ["key", "volumeName", "path"].map(|f| format!("{f}: Required value"));
        assert_eq!(empty[..3], fields);
    }
}
