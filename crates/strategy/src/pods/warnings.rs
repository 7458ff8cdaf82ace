//! What the writer of a pod spec is warned about.

use davit_api::field::quote;
use serde_json::Value;

use super::super::containers;
use super::super::json::{at, has, int_at, list_at, repeats, str_at};
use super::super::resources::fractions;
use super::annotations::{annotation_warnings, app_armor_of_template};

/// Volumes that nothing mounts any more, what is said of them, and how the path ends.
const OLD_VOLUMES: [(&str, &str); 9] = [
    (
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// More warnings than a client is shown.
const MAX: usize = 128;
/// So many ports each further one is compared with: thousands are no mistake that a warning helps with, and comparing all with
/// all takes minutes and more memory than there is.
const MAX_PORTS: usize = 128;

/// Warnings about the template of pods at a path.
pub(crate) fn template_warnings(template: &Value, path: &str) -> Vec<String> {
    let metadata = format!("{path}.metadata");
    let mut warnings = spec_warnings(at(template, &["spec"]), &format!("{path}.spec"));
    warnings.extend(annotation_warnings(template, &metadata));
    warnings.extend(app_armor_of_template(template, &metadata));
    warnings
}

/// Warnings about a pod spec at a path.
pub(crate) fn spec_warnings(spec: &Value, path: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    let spread = list_at(spec, &["topologySpreadConstraints"]);
    for (i, constraint) in spread.iter().enumerate() {
        if !has(constraint, &["labelSelector"]) {
            warnings.push(format!(
                "{path}.topologySpreadConstraints[{i}].labelSelector: a null labelSelector results in matching no pod"
            ));
        }
    }
    for (i, volume) in list_at(spec, &["volumes"]).iter().enumerate() {
        for (kind, what) in OLD_VOLUMES.iter().filter(|(kind, _)| has(volume, &[kind])) {
            let kind = if *kind == "storageos" {
                "storageOS"
            } else {
                kind
            };
            warnings.push(format!("{path}.volumes[{i}].{kind}: {what}"));
        }
    }
    repeated(spec, "hostAliases", "ip", path, &mut warnings);
    repeated(spec, "imagePullSecrets", "name", path, &mut warnings);
    for (i, secret) in list_at(spec, &["imagePullSecrets"]).iter().enumerate() {
        if str_at(secret, &["name"]).is_empty() {
            warnings.push(format!(
                "{path}.imagePullSecrets[{i}].name: invalid empty name \"\""
            ));
        }
    }
    fractions(spec, "overhead", path, &mut warnings);
    let mut ports = Vec::new();
    for list in ["initContainers", "containers"] {
        for (i, c) in list_at(spec, &[list]).iter().enumerate() {
            let path = format!("{path}.{list}[{i}]");
            for key in ["limits", "requests"] {
                let path = format!("{path}.resources");
                fractions(at(c, &["resources"]), key, &path, &mut warnings);
            }
            for (i, name) in containers::repeated_env(c) {
                warnings.push(format!(
                    "{path}.env[{i}]: hides previous definition of \"{name}\", which may be dropped when using apply"
                ));
            }
            for (i, port) in list_at(c, &["ports"]).iter().enumerate() {
                let place = format!("{path}.ports[{i}]");
                ambiguous(port, &place, &ports, &mut warnings);
                if ports.len() < MAX_PORTS {
                    ports.push((port, place));
                }
            }
        }
    }
    if int_at(spec, &["terminationGracePeriodSeconds"]).is_some_and(|s| s < 0) {
        warnings.push(format!(
            "{path}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    warnings
}

fn repeated(spec: &Value, list: &str, key: &str, path: &str, warnings: &mut Vec<String>) {
    let values = || {
        list_at(spec, &[list])
            .iter()
            .map(|item| str_at(item, &[key]))
    };
    for ((i, value), _) in values()
        .enumerate()
        .zip(repeats(values()))
        .filter(|(_, is_twin)| *is_twin)
        .take(MAX)
    {
        let value = quote(value);
        warnings.push(format!("{path}.{list}[{i}].{key}: duplicate {key} {value}"));
    }
}

/// Ports of the same number that stand in each other's way, or seem to.
fn ambiguous(port: &Value, place: &str, earlier: &[(&Value, String)], warnings: &mut Vec<String>) {
    fn key(port: &Value) -> (Option<i64>, &str) {
        (
            int_at(port, &["containerPort"]),
            str_at(port, &["protocol"]),
        )
    }
    fn host(port: &Value) -> (&str, i64) {
        let number = int_at(port, &["hostPort"]).unwrap_or(0);
        (str_at(port, &["hostIP"]), number)
    }
    let (ip, number) = host(port);
    let own = key(port);
    for (other, before) in earlier.iter().filter(|(other, _)| key(other) == own) {
        if warnings.len() >= MAX {
            return;
        }
        let (other_ip, other_number) = host(other);
        let how = if (ip, number) == (other_ip, other_number) {
            "duplicate port definition"
        } else if number == 0 || other_number == 0 {
            "overlapping port definition"
        } else if number == other_number && ip.is_empty() != other_ip.is_empty() {
            "dangerously ambiguous port definition"
        } else {
            continue;
        };
        warnings.push(format!("{place}: {how} with {before}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn warnings_about_pods() {
        let spec = json!({
            "topologySpreadConstraints": [{"topologyKey": "zone"}],
            "volumes": [{"name": "a", "emptyDir": {}}, {"name": "v", "storageos": {}}],
            "hostAliases": [{"ip": "10.0.0.7"}, {"ip": "10.0.0.7"}],
            "imagePullSecrets": [{"name": ""}],
            "containers": [
                {"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}], "resources": {"limits": {"memory": "1500m"}}},
                {"name": "b", "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP", "hostPort": 8080}]},
            ],
        });
        assert_eq!(
            spec_warnings(&spec, "spec"),
            [
                "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
                "spec.volumes[1].storageOS: deprecated in v1.22, non-functional in v1.25+",
                "spec.hostAliases[1].ip: duplicate ip \"10.0.0.7\"",
                "spec.imagePullSecrets[0].name: invalid empty name \"\"",
                "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
                "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[1]: overlapping port definition with spec.containers[1].ports[0]",
            ]
        );
    }

    /// A pod with as many ports as a request has room for would have cost the square of them, in time and in warnings.
    #[test]
    fn ports_of_large_pods_are_not_all_compared() {
        let list = |item: fn(usize) -> Value| (0..20_000).map(item).collect::<Vec<_>>();
        let ports = list(|_| json!({"containerPort": 80, "protocol": "TCP"}));
        let secrets = list(|i| json!({"name": format!("s{i}")}));
        let spec = json!({
            "imagePullSecrets": secrets, "hostAliases": secrets,
            "containers": [{"name": "a", "ports": ports}],
        });
        let (told, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(spec_warnings(&spec, "spec").len()));
        let warnings = done.recv_timeout(std::time::Duration::from_secs(60));
        let warnings = warnings.expect("not in a minute");
        assert!((MAX..=2 * MAX).contains(&warnings), "{warnings}");
    }
}
