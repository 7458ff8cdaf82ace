//! Which objects the pods of each node refer to.
//!
//! The common question, whether a pod on the node refers to an object, is answered from an index
//! that follows the pods. Volumes, attachments and slices are looked up themselves: they name
//! their claim or node.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use davit_api::meta;
use davit_volume::local;
use davit_watchcache::{Index, Mirror};
use parking_lot::RwLock;
use serde_json::Value;

use crate::lookup::{FindObjects, StoredObjects};

/// Resource, namespace and name of an object.
type Key = (&'static str, String, String);

#[derive(Debug, Default)]
struct Pods {
    /// Node and what the pod refers to, by namespace and name of the pod.
    pods: HashMap<(String, String), (String, Vec<Key>)>,
    /// How many pods of a node refer to an object.
    nodes: HashMap<String, HashMap<Key, usize>>,
}

impl Pods {
    fn put(&mut self, pod: &Value) {
        let place = (meta::namespace(pod).to_owned(), meta::name(pod).to_owned());
        self.remove(&place);
        let node = pod
            .pointer("/spec/nodeName")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if node.is_empty() {
            return;
        }
        let keys = references(pod);
        let counts = self.nodes.entry(node.to_owned()).or_default();
        for key in &keys {
            *counts.entry(key.clone()).or_default() += 1;
        }
        self.pods.insert(place, (node.to_owned(), keys));
    }

    fn remove(&mut self, place: &(String, String)) {
        let Some((node, keys)) = self.pods.remove(place) else {
            return;
        };
        let Some(counts) = self.nodes.get_mut(&node) else {
            return;
        };
        for key in keys {
            if let Some(count) = counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&key);
                }
            }
        }
        if counts.is_empty() {
            self.nodes.remove(&node);
        }
    }

    fn refers(&self, node: &str, resource: &'static str, namespace: &str, name: &str) -> bool {
        let key = (resource, namespace.to_owned(), name.to_owned());
        self.nodes
            .get(node)
            .is_some_and(|counts| counts.contains_key(&key))
    }
}

struct Follower(Arc<RwLock<Pods>>);

impl Index for Follower {
    fn replace(&self, objects: &[Value]) {
        let mut pods = Pods::default();
        objects.iter().for_each(|pod| pods.put(pod));
        *self.0.write() = pods;
    }

    fn put(&self, pod: &Value) {
        self.0.write().put(pod);
    }

    fn remove(&self, namespace: &str, name: &str) {
        self.0
            .write()
            .remove(&(namespace.to_owned(), name.to_owned()));
    }
}

/// What relates nodes to objects.
pub(crate) struct Graph {
    pods: Arc<RwLock<Pods>>,
    storages: HashMap<&'static str, Arc<dyn StoredObjects>>,
    mirror: OnceLock<Option<Mirror>>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} pods)", self.pods.read().pods.len())
    }
}

const LOOKED_UP: [(&str, &str); 4] = [
    ("", "pods"),
    ("", "persistentvolumes"),
    ("storage.k8s.io", "volumeattachments"),
    ("resource.k8s.io", "resourceslices"),
];

impl Graph {
    /// The relations in the objects that `find` finds.
    pub(crate) fn new(find: &FindObjects<'_>) -> Self {
        let storages = LOOKED_UP
            .iter()
            .filter_map(|(group, plural)| Some((*plural, find(group, plural)?)));
        Self {
            pods: Arc::default(),
            storages: storages.collect(),
            mirror: OnceLock::new(),
        }
    }

    /// Whether the object concerns the node.
    pub(super) async fn relates(
        &self,
        node: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> bool {
        match resource {
            "secrets" => {
                self.referred(node, "secrets", namespace, name).await
                    || self.secret_of_volume(node, namespace, name).await
            }
            "configmaps" => self.referred(node, "configmaps", namespace, name).await,
            "persistentvolumeclaims" => {
                self.referred(node, "persistentvolumeclaims", namespace, name)
                    .await
            }
            "resourceclaims" => self.referred(node, "resourceclaims", namespace, name).await,
            "serviceaccounts" => {
                self.referred(node, "serviceaccounts", namespace, name)
                    .await
            }
            "pods" => self.referred(node, "pods", namespace, name).await,
            "persistentvolumes" => match self.object("persistentvolumes", name).await {
                Some(volume) => self.claims(node, &volume).await,
                None => false,
            },
            "volumeattachments" => {
                self.object("volumeattachments", name)
                    .await
                    .is_some_and(|attachment| {
                        attachment.pointer("/spec/nodeName") == Some(&node.into())
                    })
            }
            "resourceslices" => self
                .object("resourceslices", name)
                .await
                .is_some_and(|slice| slice.pointer("/spec/nodeName") == Some(&node.into())),
            _ => false,
        }
    }

    async fn referred(
        &self,
        node: &str,
        resource: &'static str,
        namespace: &str,
        name: &str,
    ) -> bool {
        if let Some(mirror) = self.mirror.get_or_init(|| self.follow())
            && !mirror.fresh().await
        {
            tracing::warn!("what is known of the pods of nodes may be old");
        }
        self.pods.read().refers(node, resource, namespace, name)
    }

    fn follow(&self) -> Option<Mirror> {
        let pods = self.storages.get("pods")?;
        let follower = Arc::new(Follower(Arc::clone(&self.pods)));
        let pods = Arc::<dyn StoredObjects>::clone(pods);
        Some(Mirror::spawn(pods, follower))
    }

    /// Whether the claim that a volume is bound to is used by a pod of the node.
    async fn claims(&self, node: &str, volume: &Value) -> bool {
        let of = |key: &str| volume["spec"]["claimRef"][key].as_str().unwrap_or_default();
        let (namespace, name) = (of("namespace"), of("name"));
        !name.is_empty()
            && self
                .referred(node, "persistentvolumeclaims", namespace, name)
                .await
    }

    /// Whether a volume of the node's pods names the secret.
    async fn secret_of_volume(&self, node: &str, namespace: &str, name: &str) -> bool {
        let uses_claims = self.pods.read().nodes.get(node).is_some_and(|counts| {
            counts
                .keys()
                .any(|(resource, ..)| *resource == "persistentvolumeclaims")
        });
        let Some(storage) = self
            .storages
            .get("persistentvolumes")
            .filter(|_| uses_claims)
        else {
            return false;
        };
        let Ok(volumes) = storage.all().await else {
            return false;
        };
        for volume in &volumes {
            let Ok(volume) = serde_json::from_slice::<Value>(volume) else {
                continue;
            };
            if names_secret(&volume["spec"], namespace, name) && self.claims(node, &volume).await {
                return true;
            }
        }
        false
    }

    /// Whether davit's own provisioner keeps the volume on the node; so, too, if there is no such volume.
    pub(super) async fn keeps(&self, node: &str, volume: &str) -> bool {
        let Some(volume) = self.object("persistentvolumes", volume).await else {
            return true;
        };
        volume["metadata"]["labels"][local::NODE_LABEL] == local::label_of_node(node).as_str()
    }

    /// Whether there is a pod of the name.
    pub(super) async fn has_pod(&self, namespace: &str, name: &str) -> bool {
        let Some(storage) = self.storages.get("pods") else {
            return false;
        };
        // what cannot be read may be there
        !matches!(storage.get(namespace, name).await, Ok(None))
    }

    async fn object(&self, resource: &str, name: &str) -> Option<Value> {
        let storage = self.storages.get(resource)?;
        storage.get("", name).await.ok().flatten()
    }
}

/// The secrets that a node needs of the volume of a claim: the source, and what in it names one. What the controllers of CSI
/// drivers are given (`controllerPublishSecretRef`, `controllerExpandSecretRef`) is not the node's.
const NODE_SECRETS: [(&str, &str); 11] = [
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("csi", "nodeExpandSecretRef"),
    ("csi", "nodePublishSecretRef"),
    ("csi", "nodeStageSecretRef"),
    ("flexVolume", "secretRef"),
    ("glusterfs", "secretRef"),
    ("iscsi", "secretRef"),
    ("rbd", "secretRef"),
    ("scaleIO", "secretRef"),
    ("storageos", "secretRef"),
];

/// Whether a node needs a secret for a volume.
fn names_secret(spec: &Value, namespace: &str, name: &str) -> bool {
    let own = spec.pointer("/claimRef/namespace").and_then(Value::as_str);
    let is = |secret: &Value, key: &str, place: &Value| {
        secret[key] == name && place.as_str().or(own) == Some(namespace)
    };
    let azure = &spec["azureFile"];
    NODE_SECRETS.iter().any(|(source, key)| {
        let secret = &spec[*source][*key];
        is(secret, "name", &secret["namespace"])
    }) || is(azure, "secretName", &azure["secretNamespace"])
}

/// What a pod refers to.
fn references(pod: &Value) -> Vec<Key> {
    let namespace = meta::namespace(pod);
    let name = meta::name(pod);
    let spec = &pod["spec"];
    let mut found: HashSet<(&'static str, String)> = HashSet::new();
    found.insert(("pods", name.to_owned()));
    let mirror = pod
        .pointer("/metadata/annotations")
        .is_some_and(|a| a.get("kubernetes.io/config.mirror").is_some());
    // a node makes mirror pods itself: what they name must give it nothing
    if !mirror {
        let mut add = |resource: &'static str, name: &Value| {
            if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
                found.insert((resource, name.to_owned()));
            }
        };
        add("serviceaccounts", &spec["serviceAccountName"]);
        for secret in items(&spec["imagePullSecrets"]) {
            add("secrets", &secret["name"]);
        }
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            items(&spec[list]).for_each(|container| environment(container, &mut add));
        }
        for volume in items(&spec["volumes"]) {
            of_volume(volume, name, &mut add);
        }
        claims(pod, &mut add);
    }
    found
        .into_iter()
        .map(|(resource, name)| (resource, namespace.to_owned(), name))
        .collect()
}

type Add<'a> = &'a mut dyn FnMut(&'static str, &Value);

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn environment(container: &Value, add: Add<'_>) {
    for variable in items(&container["env"]) {
        let from = &variable["valueFrom"];
        add("secrets", &from["secretKeyRef"]["name"]);
        add("configmaps", &from["configMapKeyRef"]["name"]);
    }
    for from in items(&container["envFrom"]) {
        add("secrets", &from["secretRef"]["name"]);
        add("configmaps", &from["configMapRef"]["name"]);
    }
}

fn of_volume(volume: &Value, pod: &str, add: Add<'_>) {
    add("secrets", &volume["secret"]["secretName"]);
    add("configmaps", &volume["configMap"]["name"]);
    add(
        "persistentvolumeclaims",
        &volume["persistentVolumeClaim"]["claimName"],
    );
    if volume["ephemeral"].is_object() {
        let volume = volume["name"].as_str().unwrap_or_default();
        add(
            "persistentvolumeclaims",
            &Value::String(format!("{pod}-{volume}")),
        );
    }
    for source in items(&volume["projected"]["sources"]) {
        add("secrets", &source["secret"]["name"]);
        add("configmaps", &source["configMap"]["name"]);
    }
    // azureFile, cephfs, csi, flexVolume, iscsi, rbd, scaleIO, storageos
    for (_, source) in volume.as_object().into_iter().flatten() {
        add("secrets", &source["secretRef"]["name"]);
        add("secrets", &source["nodePublishSecretRef"]["name"]);
    }
    add("secrets", &volume["azureFile"]["secretName"]);
}

fn claims(pod: &Value, add: Add<'_>) {
    for claim in items(&pod["spec"]["resourceClaims"]) {
        add("resourceclaims", &claim["resourceClaimName"]);
        add("resourceclaims", &claim["source"]["resourceClaimName"]);
        // The classic form makes the claim under a name that follows from the pod's, and does not tell it in the status.
        let mut statuses = items(&pod["status"]["resourceClaimStatuses"]);
        let told = statuses.any(|s| s["name"] == claim["name"]);
        let templates = [claim, &claim["source"]].map(|c| &c["resourceClaimTemplateName"]);
        if !told && templates.iter().any(|t| t.is_string()) {
            let (pod, claim) = (meta::name(pod), claim["name"].as_str());
            let name = format!("{pod}-{}", claim.unwrap_or_default());
            add("resourceclaims", &Value::String(name));
        }
    }
    for status in items(&pod["status"]["resourceClaimStatuses"]) {
        add("resourceclaims", &status["resourceClaimName"]);
    }
    let extended = &pod["status"]["extendedResourceClaimStatus"];
    add("resourceclaims", &extended["resourceClaimName"]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_reads_of_a_volume_the_secrets_that_it_needs() {
        let secret = |name: &str| json!({"name": name, "namespace": "csi"});
        let spec = json!({
            "claimRef": {"namespace": "a"},
            "csi": {
                "controllerPublishSecretRef": secret("publish"),
                "controllerExpandSecretRef": secret("expand"),
                "nodeStageSecretRef": secret("stage"),
                "nodePublishSecretRef": secret("node"),
                "nodeExpandSecretRef": secret("grow"),
                "volumeAttributes": {"secretRef": "x"},
            },
        });
        for name in ["stage", "node", "grow"] {
            assert!(names_secret(&spec, "csi", name) && !names_secret(&spec, "a", name));
        }
        for name in ["publish", "expand", "x", ""] {
            assert!(!names_secret(&spec, "csi", name), "{name}");
        }
        let azure = json!({"claimRef": {"namespace": "a"}, "azureFile": {"secretName": "s"}});
        assert!(names_secret(&azure, "a", "s") && !names_secret(&azure, "b", "s"));
        let other = json!({"azureFile": {"secretName": "s", "secretNamespace": "b"}});
        assert!(names_secret(&other, "b", "s") && !names_secret(&other, "a", "s"));
        let rbd = json!({"claimRef": {"namespace": "a"}, "rbd": {"secretRef": {"name": "r"}}});
        assert!(names_secret(&rbd, "a", "r"));
    }

    #[test]
    fn item_191_pods_relate_their_node_to_what_they_name() {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "a"},
            "spec": {
                "nodeName": "n",
                "serviceAccountName": "s",
                "imagePullSecrets": [{"name": "pull"}],
                "containers": [{
                    "env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}],
                    "envFrom": [{"configMapRef": {"name": "from"}}],
                }],
                "volumes": [
                    {"name": "v", "ephemeral": {}},
                    {"name": "w", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
                ],
                "resourceClaims": [
                    {"name": "c", "resourceClaimName": "claim"},
                    {"name": "cat", "resourceClaimTemplateName": "t"},
                    {"name": "made", "resourceClaimTemplateName": "t"},
                ],
            },
            "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}]},
        });
        let mut pods = Pods::default();
        pods.put(&pod);
        for (resource, name) in [
            ("pods", "p"),
            ("serviceaccounts", "s"),
            ("secrets", "pull"),
            ("secrets", "env"),
            ("secrets", "projected"),
            ("configmaps", "from"),
            ("persistentvolumeclaims", "p-v"),
            ("resourceclaims", "claim"),
            ("resourceclaims", "p-cat"),
            ("resourceclaims", "p-made-x"),
        ] {
            assert!(pods.refers("n", resource, "a", name), "{resource} {name}");
            assert!(!pods.refers("m", resource, "a", name));
            assert!(!pods.refers("n", resource, "b", name));
        }
        assert!(!pods.refers("n", "resourceclaims", "a", "p-made"));
        let mut mirror = pod.clone();
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        pods.put(&mirror);
        assert!(pods.refers("n", "pods", "a", "p"));
        assert!(!pods.refers("n", "secrets", "a", "env"));
        pods.remove(&("a".to_owned(), "p".to_owned()));
        assert!(pods.nodes.is_empty() && pods.pods.is_empty());
    }
}
