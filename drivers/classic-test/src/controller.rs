//! The half that allocates.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use davit_sdk::async_trait;
use davit_sdk::classic::{
    AllocationResult, ClaimAllocation, ClassicDriver, Client, Failure, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, Pod, ResourceClaim, ResourceClass,
};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use rand::seq::IteratorRandom as _;
use serde::{Deserialize, Serialize};

use crate::parameters::{self, Parameters, Reference};

/// How much there is and where, as in the file of `--resource-config`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default, deny_unknown_fields)]
pub struct Resources {
    /// Claims are not reserved for the pods they are allocated for: the scheduler does it.
    #[serde(alias = "dontSetReservedFor")]
    pub dont_set_reserved_for: bool,
    /// Resources belong to nodes; else they are attached over the network.
    #[serde(alias = "nodeLocal")]
    pub node_local: bool,
    /// The nodes that have any; none: all.
    #[serde(alias = "nodes")]
    pub nodes: Vec<String>,
    /// How many claims there can be, on each node or in all; zero: any number.
    #[serde(alias = "maxAllocations")]
    pub max_allocations: usize,
    /// Several pods may use a claim at once.
    #[serde(alias = "shareable")]
    pub shareable: bool,
}

impl Resources {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or says something else.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path);
        let text = text.with_context(|| format!("read resource config {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("parse resource config {}", path.display()))
    }

    fn has(&self, node: &str) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|n| n == node)
    }

    /// Where an allocation for this node can be used; without a node, wherever there are resources.
    fn available_on(&self, node: &str) -> Option<NodeSelector> {
        let nodes = match node {
            "" => self.nodes.clone(),
            node => vec![node.to_owned()],
        };
        let requirement = NodeSelectorRequirement {
            key: "kubernetes.io/hostname".to_owned(),
            operator: "In".to_owned(),
            values: Some(nodes.clone()),
        };
        (!nodes.is_empty()).then(|| NodeSelector {
            node_selector_terms: vec![NodeSelectorTerm {
                match_expressions: Some(vec![requirement]),
                match_fields: None,
            }],
        })
    }
}

/// What the kubelet plugin gets to see.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Handle {
    #[serde(default)]
    pub(crate) env_vars: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) node_name: String,
}

/// Nodes of allocated claims by UID; an empty name stands for the network.
#[derive(Debug, Default)]
struct Allocated(HashMap<String, String>);

impl Allocated {
    fn on(&self, node: &str) -> usize {
        self.0.values().filter(|n| *n == node).count()
    }
}

pub(crate) struct TestController {
    client: Client,
    resources: Resources,
    custom_parameters: bool,
    allocated: Mutex<Allocated>,
}

fn uid(claim: &ResourceClaim) -> String {
    claim.metadata.uid.clone().unwrap_or_default()
}

impl TestController {
    pub(crate) fn new(client: Client, resources: Resources, custom_parameters: bool) -> Self {
        Self {
            client,
            resources,
            custom_parameters,
            allocated: Mutex::default(),
        }
    }

    fn allocated(&self) -> MutexGuard<'_, Allocated> {
        // Each change is one call on the map.
        self.allocated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self, used: usize, wanted: usize) -> bool {
        let most = self.resources.max_allocations;
        most > 0 && used + wanted > most
    }

    /// The nodes a claim without pod can be allocated on.
    async fn nodes(&self) -> Result<Vec<String>, Failure> {
        if !self.resources.nodes.is_empty() {
            return Ok(self.resources.nodes.clone());
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await;
        let nodes = nodes.map_err(|e| Failure::because("list nodes", e))?;
        Ok(nodes
            .items
            .into_iter()
            .filter_map(|n| n.metadata.name)
            .collect())
    }

    /// Books the claim and says on which node; `candidates` are for claims without selected node.
    fn book(
        &self,
        uid: &str,
        selected: Option<&str>,
        candidates: Vec<String>,
    ) -> Result<String, Failure> {
        let mut allocated = self.allocated();
        if let Some(node) = allocated.0.get(uid) {
            return Ok(node.clone());
        }
        let node = if self.resources.node_local {
            let free = |n: &String| !self.is_full(allocated.on(n), 1);
            match selected {
                Some(node) if self.resources.has(node) && free(&node.to_owned()) => node.to_owned(),
                Some(node) => {
                    return Err(Failure::new(format!(
                        "resources exhausted on node \"{node}\""
                    )));
                }
                None => {
                    let free = candidates.into_iter().filter(free);
                    let node = free.choose(&mut rand::rng());
                    node.ok_or_else(|| Failure::new("resources exhausted on all nodes"))?
                }
            }
        } else if self.is_full(allocated.0.len(), 1) {
            return Err(Failure::new("resources exhausted in the cluster"));
        } else {
            String::new()
        };
        allocated.0.insert(uid.to_owned(), node.clone());
        Ok(node)
    }

    /// The nodes of a list on which these claims find no room together.
    fn unsuitable(&self, claims: &[String], nodes: &[String]) -> Vec<String> {
        // What an attempt has booked for them is theirs: the answer may not have reached the API.
        let others = self.allocated().0.clone().into_iter();
        let allocated = Allocated(others.filter(|(uid, _)| !claims.contains(uid)).collect());
        let full = |node: &str| {
            let used = if self.resources.node_local {
                allocated.on(node)
            } else {
                allocated.0.len()
            };
            !self.resources.has(node) || self.is_full(used, claims.len())
        };
        nodes.iter().filter(|n| full(n)).cloned().collect()
    }
}

fn variables(what: &str, from: &Parameters, to: &mut BTreeMap<String, String>) {
    for (key, value) in from {
        to.insert(format!("{what}_{}", key.to_lowercase()), value.clone());
    }
}

#[async_trait]
impl ClassicDriver for TestController {
    type ClassParameters = Parameters;
    type ClaimParameters = Parameters;

    async fn class_parameters(&self, class: &ResourceClass) -> Result<Parameters, Failure> {
        let Some(reference) = &class.parameters_ref else {
            return Ok(Parameters::new());
        };
        let reference = Reference {
            of: "class",
            api_group: &reference.api_group,
            kind: &reference.kind,
            namespace: &reference.namespace,
            name: &reference.name,
        };
        parameters::read(&self.client, reference, self.custom_parameters).await
    }

    async fn claim_parameters(
        &self,
        claim: &ResourceClaim,
        _: &ResourceClass,
        _: &Parameters,
    ) -> Result<Parameters, Failure> {
        let Some(reference) = &claim.spec.parameters_ref else {
            return Ok(Parameters::new());
        };
        let reference = Reference {
            of: "claim",
            api_group: &reference.api_group,
            kind: &reference.kind,
            namespace: claim.metadata.namespace.as_deref().unwrap_or_default(),
            name: &reference.name,
        };
        parameters::read(&self.client, reference, self.custom_parameters).await
    }

    async fn allocate(
        &self,
        claim: &ClaimAllocation<Self>,
        selected_node: Option<&str>,
    ) -> Result<AllocationResult, Failure> {
        let picks = self.resources.node_local && selected_node.is_none();
        let candidates = if picks {
            self.nodes().await?
        } else {
            Vec::new()
        };
        let node_name = self.book(&uid(&claim.claim), selected_node, candidates)?;
        let mut handle = Handle {
            env_vars: BTreeMap::new(),
            node_name,
        };
        variables("user", &claim.claim_parameters, &mut handle.env_vars);
        variables("admin", &claim.class_parameters, &mut handle.env_vars);
        let resource_handle =
            serde_json::to_string(&handle).map_err(|e| Failure::because("encode parameters", e))?;
        Ok(AllocationResult {
            resource_handle,
            available_on_nodes: self.resources.available_on(&handle.node_name),
            shareable: self.resources.shareable,
        })
    }

    async fn deallocate(&self, claim: &ResourceClaim) -> Result<(), Failure> {
        self.allocated().0.remove(&uid(claim));
        Ok(())
    }

    async fn unsuitable_nodes(
        &self,
        _: &Pod,
        claims: &mut [ClaimAllocation<Self>],
        potential_nodes: &[String],
    ) -> Result<(), Failure> {
        let uids: Vec<String> = claims.iter().map(|c| uid(&c.claim)).collect();
        let unsuitable = self.unsuitable(&uids, potential_nodes);
        for claim in claims {
            claim.unsuitable_nodes.clone_from(&unsuitable);
        }
        Ok(())
    }

    async fn recover(&self, claims: &[ResourceClaim]) {
        let mut allocated = self.allocated();
        for claim in claims {
            let handle = claim.status.allocation.as_ref();
            let handle = handle
                .map(|a| a.resource_handle.as_str())
                .unwrap_or_default();
            match serde_json::from_str::<Handle>(handle) {
                Ok(handle) => {
                    allocated.0.insert(uid(claim), handle.node_name);
                }
                Err(error) => {
                    tracing::warn!(claim = ?claim.metadata.name, %error, "allocation not understood");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(resources: &str) -> TestController {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(config).unwrap();
        TestController::new(client, serde_json::from_str(resources).unwrap(), false)
    }

    #[tokio::test]
    async fn node_local_resources_are_counted_by_node() {
        let driver = controller(r#"{"NodeLocal": true, "Nodes": ["a", "b"], "MaxAllocations": 1}"#);
        assert_eq!(driver.book("1", Some("a"), Vec::new()).unwrap(), "a");
        assert_eq!(
            driver.book("1", Some("b"), Vec::new()).unwrap(),
            "a",
            "the same claim again"
        );
        let full = driver.book("2", Some("a"), Vec::new()).unwrap_err();
        assert_eq!(full.to_string(), "resources exhausted on node \"a\"");
        let nodes: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(driver.unsuitable(&["2".to_owned()], &nodes), ["a", "c"]);
        assert_eq!(
            driver.unsuitable(&["2".to_owned(), "3".to_owned()], &nodes),
            ["a", "b", "c"]
        );
        assert_eq!(driver.book("2", None, nodes[..2].to_vec()).unwrap(), "b");
        assert!(driver.book("3", None, nodes[..2].to_vec()).is_err());
        let gone = serde_json::from_value(serde_json::json!({"metadata": {"uid": "1"}})).unwrap();
        driver.deallocate(&gone).await.unwrap();
        driver.deallocate(&gone).await.unwrap();
        assert_eq!(driver.unsuitable(&["3".to_owned()], &nodes), ["b", "c"]);
    }

    #[tokio::test]
    async fn network_resources_are_counted_in_all_and_learned_again() {
        let driver = controller(r#"{"MaxAllocations": 2, "Shareable": true}"#);
        let known = serde_json::from_value(serde_json::json!({"metadata": {"uid": "1"}, "status":
            {"allocation": {"resourceHandle": "{\"EnvVars\":{},\"NodeName\":\"\"}"}}}));
        driver.recover(&[known.unwrap()]).await;
        assert_eq!(driver.book("2", Some("a"), Vec::new()).unwrap(), "");
        let full = driver.book("3", Some("a"), Vec::new()).unwrap_err();
        assert_eq!(full.to_string(), "resources exhausted in the cluster");
        assert_eq!(driver.resources.available_on(""), None);
    }

    #[test]
    fn parameters_become_variables() {
        let mut env = BTreeMap::new();
        let parameters = |k: &str, v: &str| Parameters::from([(k.to_owned(), v.to_owned())]);
        variables("user", &parameters("A", "b"), &mut env);
        variables("admin", &parameters("x", "y"), &mut env);
        let handle = Handle {
            env_vars: env,
            node_name: "n".into(),
        };
        assert_eq!(
            serde_json::to_string(&handle).unwrap(),
            r#"{"EnvVars":{"admin_x":"y","user_a":"b"},"NodeName":"n"}"#
        );
    }
}
