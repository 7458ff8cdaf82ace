//! The Node authorizer: a node reads and writes what is its own.
//!
//! Nodes are users `system:node:NAME` in group `system:nodes`. Secrets, config maps, claims,
//! volumes and service account tokens are a node's own when a pod bound to it refers to them; volumes also when davit's
//! own provisioner keeps them there; its
//! Node, Lease, CSINode and NodeResourceTopology by their name, ResourceSlices by `spec.nodeName`. Everything else
//! follows the rules of role `system:node`. Specified in
//! <https://kubernetes.io/docs/reference/access-authn-authz/node/>.

mod graph;

use std::sync::Arc;

use async_trait::async_trait;
use davit_volume::local;

use super::rbac::{Rule, node_rules};
use super::{Attributes, Authorizer, Decision, UserRules};
use crate::request_info::RequestInfo;
use crate::user::{NODE_PREFIX, NODES, UserInfo};

pub(crate) use graph::Graph;

const LEASES: &str = "kube-node-lease";

/// Which node a user is: `None` for users who are no nodes, `Some("")` for nodes without a name.
pub fn node_of(user: &UserInfo) -> Option<&str> {
    let name = user.name.strip_prefix(NODE_PREFIX)?;
    user.in_group(NODES).then_some(name)
}

/// The authorizer of mode `Node`.
#[derive(Debug)]
pub(crate) struct NodeAuthorizer {
    graph: Arc<Graph>,
    rules: Vec<Rule>,
}

impl NodeAuthorizer {
    pub(super) fn new(graph: Arc<Graph>) -> Self {
        Self {
            graph,
            rules: node_rules(),
        }
    }

    async fn decide(&self, node: &str, request: &RequestInfo) -> Result<(), String> {
        if request.is_resource {
            match (request.group.as_str(), request.resource.as_str()) {
                ("", "secrets" | "configmaps") => return self.read_own(node, request).await,
                ("", "persistentvolumeclaims") if request.subresource == "status" => {
                    verbs(
                        request,
                        &["update", "patch"],
                        "can only get/update/patch this type",
                    )?;
                    return self.related(node, request).await;
                }
                // what in them: NodeRestriction
                ("", "persistentvolumes")
                    if request.verb == "patch" && request.subresource.is_empty() =>
                {
                    let kept = self.graph.keeps(node, &request.name).await;
                    return kept.then_some(()).ok_or_else(|| {
                        format!("node {node:?} can only update persistent volumes that it keeps")
                    });
                }
                ("", "persistentvolumes") if matches!(request.verb.as_str(), "list" | "watch") => {
                    return kept_volumes(node, request);
                }
                ("", "persistentvolumeclaims" | "persistentvolumes")
                | ("resource.k8s.io", "resourceclaims")
                | ("storage.k8s.io", "volumeattachments") => {
                    return self.get_own(node, request).await;
                }
                // For credential providers, which see the annotations of a pod's service account.
                ("", "serviceaccounts") if request.subresource.is_empty() => {
                    return self.get_own(node, request).await;
                }
                ("", "serviceaccounts") => return self.token(node, request).await,
                ("coordination.k8s.io", "leases") => return lease(node, request),
                ("storage.k8s.io", "csinodes") => return csi_node(node, request),
                ("topology.node.k8s.io", "noderesourcetopologies") => {
                    return topology(node, request);
                }
                ("resource.k8s.io", "resourceslices") => return self.slice(node, request).await,
                ("certificates.k8s.io", "podcertificaterequests")
                    if matches!(request.verb.as_str(), "list" | "watch") =>
                {
                    let own = request.selects_field("spec.nodeName", node);
                    return own.then_some(()).ok_or_else(|| {
                        "can only list/watch podcertificaterequests with spec.nodeName field selector".to_owned()
                    });
                }
                ("", "nodes") => return own_node(node, request),
                ("", "pods") => return self.pod(node, request).await,
                _ => {}
            }
        }
        match self.rules.iter().any(|rule| rule.allows(request)) {
            true => Ok(()),
            false => Err(String::new()),
        }
    }

    async fn related(&self, node: &str, request: &RequestInfo) -> Result<(), String> {
        if request.name.is_empty() {
            return Err("No Object name found".to_owned());
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let found = self
            .graph
            .relates(node, &request.resource, namespace, &request.name)
            .await;
        match found {
            true => Ok(()),
            false => Err(format!(
                "no relationship found between node '{node}' and this object"
            )),
        }
    }

    async fn get_own(&self, node: &str, request: &RequestInfo) -> Result<(), String> {
        verbs(
            request,
            &["get"],
            "can only get individual resources of this type",
        )?;
        no_subresource(request, "cannot get subresource")?;
        self.related(node, request).await
    }

    async fn read_own(&self, node: &str, request: &RequestInfo) -> Result<(), String> {
        let read = ["get", "list", "watch"];
        verbs(request, &read, "can only read resources of this type")?;
        no_subresource(request, "cannot read subresource")?;
        if request.namespace.as_deref().unwrap_or_default().is_empty() {
            return Err("can only read namespaced object of this type".to_owned());
        }
        self.related(node, request).await
    }

    async fn token(&self, node: &str, request: &RequestInfo) -> Result<(), String> {
        if request.verb != "create" || request.name.is_empty() {
            return Err("can only create tokens for individual service accounts".to_owned());
        }
        if request.subresource != "token" {
            return Err("can only create token subresource of serviceaccount".to_owned());
        }
        self.related(node, request).await
    }

    async fn slice(&self, node: &str, request: &RequestInfo) -> Result<(), String> {
        no_subresource(request, "cannot authorize ResourceSlice subresources")?;
        match request.verb.as_str() {
            // what the new object says is looked at by NodeRestriction
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.related(node, request).await,
            "list" | "watch" | "deletecollection" => {
                let own = ["spec.nodeName", "nodeName"]
                    .iter()
                    .any(|field| request.selects_field(field, node));
                own.then_some(()).ok_or_else(|| {
                    "can only list/watch/deletecollection resourceslices with nodeName field selector".to_owned()
                })
            }
            _ => Err("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, \
                      update, patch, delete, deletecollection"
                .to_owned()),
        }
    }

    async fn pod(&self, node: &str, request: &RequestInfo) -> Result<(), String> {
        match (request.subresource.as_str(), request.verb.as_str()) {
            ("", "get") => self.related(node, request).await,
            ("", "list" | "watch") => {
                if request.selects_field("spec.nodeName", node) {
                    return Ok(());
                }
                if request.name.is_empty() {
                    return Err(
                        "can only list/watch pods with spec.nodeName field selector".to_owned()
                    );
                }
                self.related(node, request).await
            }
            // which pods: NodeRestriction
            ("", "create") => Ok(()),
            // Before the body is looked at: what is wrong with it may be told from what the pod holds.
            ("", "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                let namespace = request.namespace.as_deref().unwrap_or_default();
                if !self.graph.has_pod(namespace, &request.name).await {
                    return Ok(());
                }
                self.related(node, request).await
            }
            _ => Err(String::new()),
        }
    }
}

fn verbs(request: &RequestInfo, allowed: &[&str], why: &str) -> Result<(), String> {
    let allowed = allowed.contains(&request.verb.as_str());
    allowed.then_some(()).ok_or_else(|| why.to_owned())
}

fn no_subresource(request: &RequestInfo, why: &str) -> Result<(), String> {
    let none = request.subresource.is_empty();
    none.then_some(()).ok_or_else(|| why.to_owned())
}

const OWN: [&str; 5] = ["get", "create", "update", "patch", "delete"];

fn lease(node: &str, request: &RequestInfo) -> Result<(), String> {
    verbs(
        request,
        &OWN,
        "can only get, create, update, patch, or delete a node lease",
    )?;
    if request.namespace.as_deref() != Some(LEASES) {
        return Err(format!(
            "can only access leases in the {LEASES:?} system namespace"
        ));
    }
    if request.verb != "create" && request.name != node {
        let why = "can only access node lease with the same name as the requesting node";
        return Err(why.to_owned());
    }
    Ok(())
}

/// What davit's nodes publish of their NUMA nodes.
fn topology(node: &str, request: &RequestInfo) -> Result<(), String> {
    verbs(
        request,
        &OWN,
        "can only get, create, update, patch, or delete a NodeResourceTopology",
    )?;
    no_subresource(
        request,
        "cannot authorize NodeResourceTopology subresources",
    )?;
    if request.verb != "create" && request.name != node {
        let why = "can only access NodeResourceTopology with the same name as the requesting node";
        return Err(why.to_owned());
    }
    Ok(())
}

fn csi_node(node: &str, request: &RequestInfo) -> Result<(), String> {
    verbs(
        request,
        &OWN,
        "can only get, create, update, patch, or delete a CSINode",
    )?;
    no_subresource(request, "cannot authorize CSINode subresources")?;
    if request.verb != "create" && request.name != node {
        let why = "can only access CSINode with the same name as the requesting node";
        return Err(why.to_owned());
    }
    Ok(())
}

/// The volumes that davit's own provisioner keeps on the node.
fn kept_volumes(node: &str, request: &RequestInfo) -> Result<(), String> {
    no_subresource(request, "cannot get subresource")?;
    let own = request.selects_label(local::NODE_LABEL, &local::label_of_node(node));
    own.then_some(())
        .ok_or_else(|| "can only get individual resources of this type".to_owned())
}

fn own_node(node: &str, request: &RequestInfo) -> Result<(), String> {
    match (request.subresource.as_str(), request.verb.as_str()) {
        // whose: NodeRestriction
        ("", "create") => Ok(()),
        ("" | "status", "update" | "patch") if request.name == node => Ok(()),
        ("" | "status", "update" | "patch") => Err(format!(
            "node {node:?} is not allowed to modify node {:?}",
            request.name
        )),
        ("", "get" | "list" | "watch") => match request.name.as_str() {
            name if name == node => Ok(()),
            "" => Err(format!(
                "node '{node}' cannot read all nodes, only its own Node object"
            )),
            name => Err(format!(
                "node '{node}' cannot read '{name}', only its own Node object"
            )),
        },
        _ => Err(String::new()),
    }
}

#[async_trait]
impl Authorizer for NodeAuthorizer {
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let Some(node) = node_of(attributes.user) else {
            return Decision::NoOpinion(String::new());
        };
        if node.is_empty() {
            let name = &attributes.user.name;
            return Decision::NoOpinion(format!("unknown node for user {name:?}"));
        }
        match self.decide(node, attributes.request).await {
            Ok(()) => Decision::Allow(String::new()),
            Err(why) => Decision::NoOpinion(why),
        }
    }

    fn identity(&self) -> Option<(&'static str, &str)> {
        Some(("Node", "node"))
    }

    async fn rules(&self, user: &UserInfo, _namespace: &str) -> UserRules {
        let mut rules = UserRules::default();
        if node_of(user).is_some() {
            rules.incomplete = true;
            rules
                .faults
                .push("node authorizer does not support user rule resolution".to_owned());
        }
        rules
    }
}
