//! Mirror pods: copies of static pods, which lead to no other object.

use serde_json::Value;

use super::{MIRROR, RestrictionResult, items, node_name};

/// A pod that a node may make: a copy of a static pod, bound to and owned by the node, that leads
/// to no other object.
pub(super) fn check(node: &str, pod: &Value) -> RestrictionResult {
    let is_mirror = pod["metadata"]["annotations"].get(MIRROR).is_some();
    if !is_mirror {
        return Err(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if node_name(pod) != node {
        return Err(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owner = match items(&pod["metadata"]["ownerReferences"]) {
        [owner] => owner,
        [] => {
            return Err(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        _ => {
            return Err(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Err(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if owner["controller"] != true {
        return Err(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return Err(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let what = referred_kind(&pod["spec"]);
    what.map_or(Ok(()), |what| {
        Err(format!(
            "node {node:?} can not create pods that reference {what}"
        ))
    })
}

/// What kind of object a pod's spec refers to, if any.
fn referred_kind(spec: &Value) -> Option<&'static str> {
    let account = spec["serviceAccountName"].as_str().unwrap_or_default();
    if !account.is_empty() {
        return Some("a service account");
    }
    let containers = ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| items(&spec[list]));
    let from = |key: &str, list: &str, inner: &str| {
        containers
            .clone()
            .flat_map(|container| items(&container[list]))
            .any(|entry| match inner {
                "" => entry.get(key).is_some(),
                inner => entry[inner].get(key).is_some(),
            })
    };
    let volumes = items(&spec["volumes"]);
    let source = |key: &str| volumes.iter().any(|volume| volume.get(key).is_some());
    let projected = |key: &str| {
        volumes
            .iter()
            .flat_map(|volume| items(&volume["projected"]["sources"]))
            .any(|source| source.get(key).is_some())
    };
    let named = volumes.iter().any(|volume| {
        let sources = volume.as_object().into_iter().flatten();
        sources.map(|(_, source)| source).any(|source| {
            source.get("secretRef").is_some() || source.get("nodePublishSecretRef").is_some()
        })
    });
    let secrets = from("secretKeyRef", "env", "valueFrom")
        || from("secretRef", "envFrom", "")
        || source("secret")
        || source("azureFile")
        || projected("secret")
        || named
        || !items(&spec["imagePullSecrets"]).is_empty();
    let maps = from("configMapKeyRef", "env", "valueFrom")
        || from("configMapRef", "envFrom", "")
        || source("configMap")
        || projected("configMap");
    let found = [
        (secrets, "secrets"),
        (maps, "configmaps"),
        (projected("clusterTrustBundle"), "clustertrustbundles"),
        (projected("serviceAccountToken"), "a service account"),
        (projected("podCertificate"), "podcertificates"),
        (source("persistentVolumeClaim"), "persistentvolumeclaims"),
        (source("ephemeral"), "persistentvolumeclaims"),
        (source("csi"), "csidrivers"),
        (!items(&spec["resourceClaims"]).is_empty(), "resourceclaims"),
    ];
    let found = found.iter().find(|(refers, _)| *refers);
    found.map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn mirror_pods_lead_to_nothing() {
        let pod = json!({
            "metadata": {
                "annotations": {MIRROR: "x"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true,
                }],
            },
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        });
        assert_eq!(check("n", &pod), Ok(()));
        assert!(check("m", &pod).is_err());
        let mut with_secret = pod.clone();
        with_secret["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
        assert_eq!(
            check("n", &with_secret),
            Err("node \"n\" can not create pods that reference secrets".to_owned())
        );
        for (source, what) in [
            (json!({"ephemeral": {}}), "persistentvolumeclaims"),
            (json!({"csi": {"driver": "d"}}), "csidrivers"),
            (
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
                "a service account",
            ),
            (
                json!({"projected": {"sources": [{"podCertificate": {"signerName": "a/b"}}]}}),
                "podcertificates",
            ),
        ] {
            let mut with = pod.clone();
            with["spec"]["volumes"] = json!([source]);
            let why = format!("node \"n\" can not create pods that reference {what}");
            assert_eq!(check("n", &with), Err(why));
        }
        let mut by_env = pod;
        by_env["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "m"}}]);
        assert_eq!(
            check("n", &by_env),
            Err("node \"n\" can not create pods that reference configmaps".to_owned())
        );
    }
}
