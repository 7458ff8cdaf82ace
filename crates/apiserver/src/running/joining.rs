//! What machines that join find: the ConfigMap `kube-public/cluster-info`, and the objects that `kubeadm init` makes and
//! `kubeadm join` looks for.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use davit_access::ANONYMOUS;
use serde_json::{Value, json};

use super::bootstrap::ensure;
use crate::server::{ApiServer, Error};
use crate::version::{MAJOR, MINOR};

const RBAC: &str = "rbac.authorization.k8s.io";
const PUBLIC: &str = "kube-public";
const SYSTEM: &str = "kube-system";
const CLUSTER_INFO: &str = "cluster-info";
const KUBEADM_CONFIG: &str = "kubeadm-config";
const KUBELET_CONFIG: &str = "kubelet-config";
/// Marks what is published here, so that it may be written again.
const PUBLISHED: &str = "davit.dev/published";
/// Whom the tokens of `kubeadm token` and `davit token` stand for.
const JOINING: &str = "system:bootstrappers:kubeadm:default-node-token";
const NODES: &str = "system:nodes";
const REQUESTS: &str = "system:certificates.k8s.io:certificatesigningrequests";
/// The domain of the cluster's names, as everywhere in davit.
const DOMAIN: &str = "cluster.local";

/// Publishes it. What kubeadm makes once in a cluster's life is made once here, too: an administrator who takes a binding
/// away (so that nodes are approved by hand, say) has it so. The last of it is the ConfigMap `kubeadm-config`; whoever
/// deletes that gets everything again.
pub(super) async fn publish(
    server: &Arc<ApiServer>,
    serving: &BTreeSet<String>,
) -> Result<(), Error> {
    cluster_info(server, serving).await?;
    if is_there(server, SYSTEM, KUBEADM_CONFIG).await? {
        return Ok(());
    }
    let granted = access()
        .into_iter()
        .map(|(plural, namespace, object)| ensure(server, RBAC, plural, namespace, object, false));
    futures::future::try_join_all(granted).await?;
    for (name, key, content) in [
        (KUBELET_CONFIG, "kubelet", kubelet(server)),
        (KUBEADM_CONFIG, "ClusterConfiguration", cluster(server)),
    ] {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": SYSTEM },
            // JSON is YAML
            "data": { key: format!("{content:#}\n") },
        });
        ensure(server, "", "configmaps", SYSTEM, map, false).await?;
    }
    Ok(())
}

async fn held(
    server: &ApiServer,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Value>>, Error> {
    let held = server.object("", "configmaps", namespace, name).await;
    held.map_err(|status| Error::Bootstrap {
        what: format!("configmaps {name}"),
        status: Box::new(status),
    })
}

async fn is_there(server: &ApiServer, namespace: &str, name: &str) -> Result<bool, Error> {
    Ok(held(server, namespace, name).await?.is_some())
}

/// The ConfigMap by which machines that have only a bootstrap token find out whom they talk to; the token signs it. What
/// an administrator has made is left alone, and so is the address of another server as long as that is among `serving`.
async fn cluster_info(server: &Arc<ApiServer>, serving: &BTreeSet<String>) -> Result<(), Error> {
    let Some(pki) = server.pki() else {
        return Ok(());
    };
    let ca = base64::engine::general_purpose::STANDARD.encode(pki.ca_certificate());
    let url = format!("https://{}", server.advertised());
    let kubeconfig = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    \
         server: {url}\n  name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\n\
         preferences: {{}}\nusers: null\n"
    );
    let ours = |map: &Value| map["metadata"]["labels"][PUBLISHED] == "true";
    let others = serving
        .iter()
        .map(|ip| format!("    server: https://{ip}:"));
    let others: Vec<String> = others.filter(|_| server.shares_store()).collect();
    let current = |map: &Value| {
        let held = map["data"]["kubeconfig"].as_str().unwrap_or_default();
        held == kubeconfig || held.contains(&ca) && others.iter().any(|other| held.contains(other))
    };
    let held = held(server, PUBLIC, CLUSTER_INFO).await?;
    if held.is_some_and(|map| !ours(&map) || current(&map)) {
        return Ok(());
    }
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": CLUSTER_INFO, "namespace": PUBLIC, "labels": { PUBLISHED: "true" } },
        "data": { "kubeconfig": kubeconfig },
    });
    ensure(server, "", "configmaps", PUBLIC, map, true).await
}

/// Who may read what on the way, and whose certificates are approved without asking anybody: roles and bindings by the
/// names that kubeadm gives them, with resource and namespace.
fn access() -> Vec<(&'static str, &'static str, Value)> {
    let user = |name: &str| json!({ "apiGroup": RBAC, "kind": "User", "name": name });
    let group = |name: &str| json!({ "apiGroup": RBAC, "kind": "Group", "name": name });
    let mut all = Vec::new();
    for (namespace, name, map, subjects) in [
        (
            PUBLIC,
            "kubeadm:bootstrap-signer-clusterinfo",
            CLUSTER_INFO,
            json!([user(ANONYMOUS)]),
        ),
        (
            SYSTEM,
            "kubeadm:kubelet-config",
            KUBELET_CONFIG,
            json!([group(NODES), group(JOINING)]),
        ),
        (
            SYSTEM,
            "kubeadm:nodes-kubeadm-config",
            KUBEADM_CONFIG,
            json!([group(JOINING), group(NODES)]),
        ),
    ] {
        let role = json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "Role",
            "metadata": { "name": name, "namespace": namespace },
            "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"],
                "resourceNames": [map] }],
        });
        let binding = json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
            "metadata": { "name": name, "namespace": namespace },
            "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": name },
            "subjects": subjects,
        });
        all.extend([
            ("roles", namespace, role),
            ("rolebindings", namespace, binding),
        ]);
    }
    let nodes = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
        "metadata": { "name": "kubeadm:get-nodes" },
        "rules": [{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] }],
    });
    all.push(("clusterroles", "", nodes));
    for (name, role, subject) in [
        ("kubeadm:get-nodes", "kubeadm:get-nodes".to_owned(), JOINING),
        (
            "kubeadm:kubelet-bootstrap",
            "system:node-bootstrapper".to_owned(),
            JOINING,
        ),
        (
            "kubeadm:node-autoapprove-bootstrap",
            format!("{REQUESTS}:nodeclient"),
            JOINING,
        ),
        (
            "kubeadm:node-autoapprove-certificate-rotation",
            format!("{REQUESTS}:selfnodeclient"),
            NODES,
        ),
    ] {
        let binding = json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
            "metadata": { "name": name },
            "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": role },
            "subjects": [group(subject)],
        });
        all.push(("clusterrolebindings", "", binding));
    }
    all
}

/// The configuration of the kubelets that kubeadm sets up, as kubeadm makes it. Where this server believes only nodes with
/// certificates of the cluster's authority, they ask for one.
fn kubelet(server: &ApiServer) -> Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": "/etc/kubernetes/pki/ca.crt" },
        },
        "authorization": { "mode": "Webhook" },
        "cgroupDriver": "systemd",
        "clusterDNS": [server.service_addresses().ranges().primary().dns().to_string()],
        "clusterDomain": DOMAIN,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "rotateCertificates": true,
        "staticPodPath": "/etc/kubernetes/manifests",
    });
    if server.judges_nodes() {
        config["serverTLSBootstrap"] = json!(true);
    }
    config
}

fn cluster(server: &ApiServer) -> Value {
    json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration",
        "clusterName": "davit",
        "kubernetesVersion": format!("v{MAJOR}.{MINOR}.0"),
        "networking": {
            "dnsDomain": DOMAIN,
            "serviceSubnet": server.service_addresses().ranges().to_string(),
        },
    })
}
