//! What a pod leads to: static pods and their mirrors may need nothing that only the API server has (the gate
//! `PreventStaticPodAPIReferences`, NodeRestriction).

use serde_json::Value;

/// A kind of objects of the API server that a pod of this spec cannot do without, as a sentence names it; none where it needs no API server.
#[must_use]
pub fn kind_that_a_pod_needs(spec: &Value) -> Option<&'static str> {
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
    let source = |key: &str| volumes.clone().any(|volume| volume.get(key).is_some());
    let projected = |key: &str| {
        volumes
            .clone()
            .flat_map(|volume| items(&volume["projected"]["sources"]))
            .any(|source| source.get(key).is_some())
    };
    let named = volumes.clone().any(|volume| {
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
        || items(&spec["imagePullSecrets"]).next().is_some();
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
        (source("glusterfs"), "endpoints"),
        (
            items(&spec["resourceClaims"]).next().is_some(),
            "resourceclaims",
        ),
        // who belongs to a group counts for its gang, and keeps it
        (spec["schedulingGroup"].is_object(), "podgroups"),
    ];
    let found = found.iter().find(|(refers, _)| *refers);
    found.map(|(_, what)| *what)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> + Clone {
    value.as_array().into_iter().flatten()
}
