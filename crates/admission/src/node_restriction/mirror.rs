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
    let what = davit_api::references::kind_that_a_pod_needs(&pod["spec"]);
    what.map_or(Ok(()), |what| {
        Err(format!(
            "node {node:?} can not create pods that reference {what}"
        ))
    })
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
            (
                json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
                "endpoints",
            ),
        ] {
            let mut with = pod.clone();
            with["spec"]["volumes"] = json!([source]);
            let why = format!("node \"n\" can not create pods that reference {what}");
            assert_eq!(check("n", &with), Err(why));
        }
        let mut in_group = pod.clone();
        in_group["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        assert_eq!(
            check("n", &in_group),
            Err("node \"n\" can not create pods that reference podgroups".to_owned())
        );
        let mut by_env = pod;
        by_env["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "m"}}]);
        assert_eq!(
            check("n", &by_env),
            Err("node \"n\" can not create pods that reference configmaps".to_owned())
        );
    }
}
