//! What nodes publish of their NUMA nodes: NodeResourceTopology objects
//! (topology.node.k8s.io/v1alpha2, as the scheduler-plugins project defines them).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use davit_client::list_in_pages;
use davit_topology::published::{ATTRIBUTE, NodeState};
use futures::StreamExt as _;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long to wait before looking again whether the kind is served, or after an error.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest wait for an answer to a list.
const DEADLINE: Duration = Duration::from_secs(30);

/// The topologies of nodes that publish one which this scheduler understands. Shared.
#[derive(Debug, Clone)]
pub struct Topologies {
    by_node: Arc<RwLock<HashMap<String, Arc<NodeState>>>>,
    changes: watch::Sender<u64>,
}

impl Default for Topologies {
    fn default() -> Self {
        Self {
            by_node: Arc::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl Topologies {
    /// What a node publishes.
    pub fn get(&self, node: &str) -> Option<Arc<NodeState>> {
        self.by_node.read().get(node).cloned()
    }

    /// Whether no node publishes anything.
    pub fn is_empty(&self) -> bool {
        self.by_node.read().is_empty()
    }

    /// Takes over what a node publishes now, `None` for nothing.
    pub fn set(&self, node: &str, state: Option<NodeState>) {
        let mut by_node = self.by_node.write();
        match state {
            Some(state) => by_node.insert(node.to_owned(), Arc::new(state)),
            None => by_node.remove(node),
        };
        drop(by_node);
        self.changes.send_modify(|n| *n += 1);
    }

    /// Watches for changes; the number has no meaning.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Keeps in step with the API until cancelled. A cluster without the kind has no topologies.
    pub(crate) async fn follow(self, client: kube::Client, cancel: CancellationToken) {
        let resource = ApiResource {
            group: "topology.node.k8s.io".to_owned(),
            version: "v1alpha2".to_owned(),
            api_version: "topology.node.k8s.io/v1alpha2".to_owned(),
            kind: "NodeResourceTopology".to_owned(),
            plural: "noderesourcetopologies".to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(client, &resource);
        let work = async {
            loop {
                match self.follow_once(&api).await {
                    Ok(()) => {}
                    Err(kube::Error::Api(status)) if status.code == 404 => self.replace(&[]),
                    Err(error) => tracing::debug!(%error, "topologies of nodes not watched"),
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = work => {}
        }
    }

    async fn follow_once(&self, api: &Api<DynamicObject>) -> Result<(), kube::Error> {
        let list = list_in_pages(api, ListParams::default());
        let Ok(list) = tokio::time::timeout(DEADLINE, list).await else {
            return Ok(());
        };
        let list = list?;
        self.replace(&list.items);
        let version = list.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().timeout(290);
        let mut events = api.watch(&params, &version).await?.boxed();
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(o) | WatchEvent::Modified(o) => self.set(name(&o), state(&o)),
                WatchEvent::Deleted(o) => self.set(name(&o), None),
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn replace(&self, objects: &[DynamicObject]) {
        let all: HashMap<String, Arc<NodeState>> = objects
            .iter()
            .filter_map(|o| Some((name(o).to_owned(), Arc::new(state(o)?))))
            .collect();
        let mut by_node = self.by_node.write();
        if *by_node != all {
            *by_node = all;
            drop(by_node);
            self.changes.send_modify(|n| *n += 1);
        }
    }
}

fn name(object: &DynamicObject) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

/// The state in the object's attribute; objects of other publishers have none.
fn state(object: &DynamicObject) -> Option<NodeState> {
    let attributes = object.data.get("attributes")?.as_array()?;
    let ours = attributes.iter().find(|a| a["name"] == ATTRIBUTE)?;
    serde_json::from_str(ours["value"].as_str()?).ok()
}
