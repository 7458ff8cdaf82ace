//! Plugins that fill in or forbid single fields of pods: AlwaysPullImages,
//! ExtendedResourceToleration, RuntimeClass.

use std::sync::Arc;

use davit_api::field::{FieldError, Path};
use davit_api::status::Status;
use serde_json::{Value, json};

use super::pods::{CONTAINERS, containers, containers_mut};
use super::{Attributes, Mutating, Operation, Validating, forbidden};

/// Every image is pulled anew, so that only those who may pull it can use it.
pub(super) struct AlwaysPullImages;

fn pod_or_debug(attributes: &Attributes<'_>) -> bool {
    attributes.about("", "pods")
        && matches!(attributes.subresource, "" | "ephemeralcontainers")
        && attributes.writes()
}

impl Mutating for AlwaysPullImages {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let Some(pod) = object.filter(|_| pod_or_debug(attributes)) else {
            return Ok(());
        };
        if attributes.operation == Operation::Update
            && attributes.old.is_some_and(|old| images(old) == images(pod))
        {
            return Ok(());
        }
        for container in containers_mut(&mut pod["spec"], &CONTAINERS) {
            container["imagePullPolicy"] = json!("Always");
        }
        for volume in pod["spec"]["volumes"].as_array_mut().into_iter().flatten() {
            if let Some(image) = volume.get_mut("image").filter(|image| image.is_object()) {
                image["pullPolicy"] = json!("Always");
            }
        }
        Ok(())
    }
}

impl Validating for AlwaysPullImages {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(pod) = object.filter(|_| pod_or_debug(attributes)) else {
            return Ok(());
        };
        if attributes.operation == Operation::Update
            && attributes.old.is_some_and(|old| images(old) == images(pod))
        {
            return Ok(());
        }
        for list in CONTAINERS {
            for (i, container) in containers(&pod["spec"], &[list]).enumerate() {
                let policy = container["imagePullPolicy"].as_str().unwrap_or_default();
                if policy != "Always" {
                    let path = Path::new("spec")
                        .child(list)
                        .index(i)
                        .child("imagePullPolicy");
                    let fault = FieldError::not_supported(&path, policy, &["Always"]);
                    return Err(forbidden(attributes, object, fault.to_string()));
                }
            }
        }
        Ok(())
    }
}

/// The images of a pod, by container.
fn images(pod: &Value) -> Vec<(&str, &str)> {
    containers(&pod["spec"], &CONTAINERS)
        .map(|c| {
            let text = |key: &str| c[key].as_str().unwrap_or_default();
            (text("name"), text("image"))
        })
        .collect()
}

/// Pods that ask for an extended resource tolerate the taint that keeps others off its nodes.
pub(super) struct ExtendedResourceToleration;

impl Mutating for ExtendedResourceToleration {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let Some(pod) = object.filter(|_| attributes.is("", "pods") && attributes.writes()) else {
            return Ok(());
        };
        let mut wanted = std::collections::BTreeSet::new();
        for container in containers(&pod["spec"], &["containers", "initContainers"]) {
            let requests = container["resources"]["requests"].as_object();
            let names = requests.into_iter().flat_map(|map| map.keys());
            wanted.extend(names.filter(|name| is_extended(name)).cloned());
        }
        if wanted.is_empty() {
            return Ok(());
        }
        if !pod["spec"]["tolerations"].is_array() {
            pod["spec"]["tolerations"] = json!([]);
        }
        if let Some(tolerations) = pod["spec"]["tolerations"].as_array_mut() {
            for name in wanted {
                let toleration =
                    json!({ "key": name, "operator": "Exists", "effect": "NoSchedule" });
                let same = |held: &Value| {
                    held["key"] == toleration["key"]
                        && held["operator"] == "Exists"
                        && held["effect"] == "NoSchedule"
                };
                if !tolerations.iter().any(same) {
                    tolerations.push(toleration);
                }
            }
        }
        Ok(())
    }
}

/// Whether a resource is none of Kubernetes' own.
pub(super) fn is_extended(name: &str) -> bool {
    let own = !name.contains('/') || name.contains("kubernetes.io/");
    !own && !name.starts_with("requests.")
}

/// What a runtime costs and where it runs is taken over from its class.
pub(super) struct RuntimeClass;

async fn class_of(attributes: &Attributes<'_>, pod: &Value) -> Result<Option<Arc<Value>>, Status> {
    let name = pod
        .pointer("/spec/runtimeClassName")
        .and_then(Value::as_str);
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let found = attributes
        .server
        .object("node.k8s.io", "runtimeclasses", "", name)
        .await?;
    if found.is_none() {
        let why = format!("pod rejected: RuntimeClass \"{name}\" not found");
        return Err(forbidden(attributes, Some(pod), why));
    }
    Ok(found)
}

impl Mutating for RuntimeClass {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let creates = attributes.is("", "pods") && attributes.operation == Operation::Create;
        let Some(pod) = object.filter(|_| creates) else {
            return Ok(());
        };
        let Some(class) = class_of(attributes, pod).await? else {
            return Ok(());
        };
        if let Some(overhead) = class
            .pointer("/overhead/podFixed")
            .filter(|v| v.is_object())
        {
            let held = pod["spec"]
                .get("overhead")
                .filter(|held| held.as_object().is_some_and(|map| !map.is_empty()));
            if held.is_some_and(|held| !same_amounts(held, overhead)) {
                let why =
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(forbidden(attributes, Some(pod), why));
            }
            pod["spec"]["overhead"] = overhead.clone();
        }
        schedule(attributes, pod, &class["scheduling"])
    }
}

fn same_amounts(a: &Value, b: &Value) -> bool {
    super::pods::amounts(Some(a)) == super::pods::amounts(Some(b))
}

fn schedule(
    attributes: &Attributes<'_>,
    pod: &mut Value,
    scheduling: &Value,
) -> Result<(), Status> {
    for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        if !pod["spec"]["nodeSelector"].is_object() {
            pod["spec"]["nodeSelector"] = json!({});
        }
        let held = &pod["spec"]["nodeSelector"][key.as_str()];
        if !held.is_null() && held != value {
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                value.as_str().unwrap_or_default(),
                held.as_str().unwrap_or_default(),
            );
            return Err(forbidden(attributes, Some(pod), why));
        }
        pod["spec"]["nodeSelector"][key.as_str()] = value.clone();
    }
    let wanted = scheduling["tolerations"].as_array();
    for toleration in wanted.into_iter().flatten() {
        if !pod["spec"]["tolerations"].is_array() {
            pod["spec"]["tolerations"] = json!([]);
        }
        if let Some(held) = pod["spec"]["tolerations"].as_array_mut()
            && !held.contains(toleration)
        {
            held.push(toleration.clone());
        }
    }
    Ok(())
}

impl Validating for RuntimeClass {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let creates = attributes.is("", "pods") && attributes.operation == Operation::Create;
        let Some(pod) = object.filter(|_| creates) else {
            return Ok(());
        };
        let class = class_of(attributes, pod).await?;
        let held = pod["spec"]
            .get("overhead")
            .filter(|held| held.as_object().is_some_and(|map| !map.is_empty()));
        let wanted = class
            .as_ref()
            .and_then(|class| class.pointer("/overhead/podFixed"));
        match (held, wanted) {
            (Some(_), None) => {
                let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
                Err(forbidden(attributes, object, why))
            }
            (Some(held), Some(wanted)) if !same_amounts(held, wanted) => {
                let why =
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                Err(forbidden(attributes, object, why))
            }
            _ => Ok(()),
        }
    }
}
