//! CSI drivers that register on this node: who they are goes into the Node and its CSINode (spec storage.md 5.2).

use async_trait::async_trait;
use davit_containermanager::{PluginHandler, PluginHandlerError};
use davit_csi::Drivers;
use davit_csi::registration::{
    AnnotationChange, NODE_ID_ANNOTATION, RegistrationError, annotation_with, annotation_without,
    csi_node_driver, topology_labels, with_allocatable, with_driver, without_driver,
};
use davit_proto::csi::v1::NodeGetInfoResponse;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Tries of a write that others come before, and the pause after the first; each is five times as long as the one before.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);
/// How long all that is written about a driver may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// Why a driver is not registered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Refused(#[from] davit_csi::VersionsRefused),
    #[error(transparent)]
    Call(#[from] davit_csi::Error),
    #[error("error adding CSI driver node info: {0}")]
    Info(#[from] RegistrationError),
    #[error("cannot {what}: {}", davit_client::message_of(.source))]
    Api {
        what: &'static str,
        source: Box<kube::Error>,
    },
    #[error("the API server did not take what is to be said about the driver within {DEADLINE:?}")]
    Late,
}

fn api_error(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |source| Error::Api {
        what,
        source: Box::new(source),
    }
}

impl std::fmt::Debug for Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registrar")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Registers drivers, and takes them out again.
pub(crate) struct Registrar {
    client: kube::Client,
    node: String,
    drivers: Arc<Drivers>,
}

impl Registrar {
    /// The drivers that are registered now.
    pub(crate) fn names(&self) -> Vec<String> {
        self.drivers.names()
    }

    /// A registrar of the drivers of this node.
    pub(crate) fn new(client: kube::Client, node: String, drivers: Arc<Drivers>) -> Self {
        Self {
            client,
            node,
            drivers,
        }
    }

    async fn publish(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), Error> {
        let entry = csi_node_driver(driver, info)?;
        self.write(|node| {
            let meta = &node.metadata;
            let labels = meta.labels.clone().unwrap_or_default();
            let segments = info.accessible_topology.as_ref();
            let segments = segments.map(|t| t.segments.clone()).unwrap_or_default();
            let segments = segments.into_iter().collect();
            let new = topology_labels(&labels, &segments)?;
            let held = annotation(node);
            let change = annotation_with(held, driver, &info.node_id)?;
            Ok(patch(node, change, &json!(new)))
        })
        .await?;
        self.write_csi_node(|drivers| with_driver(drivers, &entry))
            .await
    }

    /// Has a driver say anew how many volumes the node takes, and writes that down.
    pub(crate) async fn refresh(&self, name: &str) -> Result<(), Error> {
        let driver = self.drivers.get(name).map_err(davit_csi::Error::from)?;
        let info = driver.node_get_info().await?;
        let written = self.write_csi_node(|drivers| with_allocatable(drivers, name, &info));
        match tokio::time::timeout(DEADLINE, written).await {
            Ok(written) => written,
            Err(_) => Err(Error::Late),
        }
    }

    async fn withdraw(&self, driver: &str) -> Result<(), Error> {
        self.write(|node| {
            let change = annotation_without(annotation(node), driver)?;
            Ok(patch(node, change, &json!({})))
        })
        .await?;
        // It may have come back meanwhile.
        if self.drivers.get(driver).is_ok() {
            return Ok(());
        }
        self.write_csi_node(|drivers| without_driver(drivers, driver))
            .await
    }

    /// Makes the CSINode of this node, which says what drivers there are: none yet.
    ///
    /// # Errors
    /// The Node is not registered, or the API server refuses.
    pub(crate) async fn initialize(&self) -> Result<(), kube::Error> {
        let made = self.write_csi_node(|_| None).await;
        match made {
            Err(Error::Api { source, .. }) => Err(*source),
            _ => Ok(()),
        }
    }

    /// Changes the Node by a merge patch, anew when somebody else was quicker.
    async fn write(
        &self,
        change: impl Fn(&Node) -> Result<Option<Value>, Error>,
    ) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut pause = PAUSE;
        let mut tries = 1;
        loop {
            let node = nodes
                .get(&self.node)
                .await
                .map_err(api_error("read the node"))?;
            let Some(patch) = change(&node)? else {
                return Ok(());
            };
            let params = PatchParams::default();
            match nodes.patch(&self.node, &params, &Patch::Merge(patch)).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(pause).await;
                    pause *= 5;
                }
                Err(error) => return Err(api_error("write the node")(error)),
            }
        }
    }

    async fn write_csi_node(
        &self,
        change: impl Fn(&[CSINodeDriver]) -> Option<Vec<CSINodeDriver>>,
    ) -> Result<(), Error> {
        let failed = || api_error("write the CSINode");
        let nodes: Api<Node> = Api::all(self.client.clone());
        let api: Api<CSINode> = Api::all(self.client.clone());
        let mut pause = PAUSE;
        for _ in 0..TRIES {
            let node = nodes
                .get(&self.node)
                .await
                .map_err(api_error("read the node"))?;
            let uid = node.metadata.uid.clone().unwrap_or_default();
            let held = api.get_opt(&self.node).await.map_err(failed())?;
            let written = match held {
                Some(held) if !is_owned(&held, &uid) => {
                    // Of a node that had the same name.
                    let params = DeleteParams {
                        preconditions: Some(Preconditions {
                            uid: held.metadata.uid.clone(),
                            resource_version: None,
                        }),
                        ..DeleteParams::default()
                    };
                    let deleted = api.delete(&self.node, &params).await;
                    deleted.map_err(failed())?;
                    continue;
                }
                Some(mut held) => {
                    let Some(drivers) = change(&held.spec.drivers) else {
                        return Ok(());
                    };
                    held.spec.drivers = drivers;
                    api.replace(&self.node, &PostParams::default(), &held).await
                }
                None => {
                    let drivers = change(&[]).unwrap_or_default();
                    let new = json!({
                        "metadata": {"name": self.node, "ownerReferences": [
                            {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid}]},
                        "spec": {"drivers": drivers},
                    });
                    let new: CSINode = serde_json::from_value(new)
                        .map_err(|e| failed()(kube::Error::SerdeError(e)))?;
                    api.create(&PostParams::default(), &new).await
                }
            };
            match written {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    tokio::time::sleep(pause).await;
                    pause *= 5;
                }
                Err(error) => return Err(failed()(error)),
            }
        }
        Err(Error::Late)
    }
}

#[async_trait]
impl PluginHandler for Registrar {
    fn validate(
        &self,
        name: &str,
        endpoint: &Path,
        socket: &Path,
        versions: &[String],
    ) -> Result<(), PluginHandlerError> {
        Ok(self.drivers.validate(name, endpoint, socket, versions)?)
    }

    /// One that fails to say who it is, or about whom nothing can be written, is out again.
    async fn register(
        &self,
        name: &str,
        endpoint: PathBuf,
        socket: &Path,
        versions: &[String],
    ) -> Result<(), PluginHandlerError> {
        let driver = self
            .drivers
            .register(name, endpoint, socket.to_owned(), versions)?;
        let told = async {
            let info = driver.node_get_info().await?;
            match tokio::time::timeout(DEADLINE, self.publish(name, &info)).await {
                Ok(published) => published,
                Err(_) => Err(Error::Late),
            }
        };
        let told = told.await;
        if told.is_err() {
            self.drivers.deregister(socket);
        }
        Ok(told?)
    }

    fn disconnect(self: Arc<Self>, socket: &Path) {
        for removed in self.drivers.deregister(socket) {
            if removed.successor.is_some() {
                continue;
            }
            let this = self.clone();
            let name = removed.driver;
            tokio::spawn(async move {
                let withdrawn = tokio::time::timeout(DEADLINE, this.withdraw(&name)).await;
                match withdrawn {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::warn!(driver = name, %error, "the node still names a CSI driver that is gone");
                    }
                    Err(_) => tracing::warn!(
                        driver = name,
                        "the node still names a CSI driver that is gone"
                    ),
                }
            });
        }
    }
}

fn is_owned(held: &CSINode, uid: &str) -> bool {
    let mut owners = held.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "Node" && owner.uid == uid)
}

fn annotation(node: &Node) -> Option<&str> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(NODE_ID_ANNOTATION).map(String::as_str)
}

/// The merge patch of a Node; none when nothing changes.
fn patch(node: &Node, change: AnnotationChange, labels: &Value) -> Option<Value> {
    let value = match change {
        AnnotationChange::Keep => None,
        AnnotationChange::Set(text) => Some(json!(text)),
        AnnotationChange::Remove => Some(Value::Null),
    };
    if value.is_none() && labels.as_object().is_none_or(serde_json::Map::is_empty) {
        return None;
    }
    let mut meta = json!({"resourceVersion": node.metadata.resource_version, "labels": labels});
    if let Some(value) = value {
        meta["annotations"] = json!({(NODE_ID_ANNOTATION): value});
    }
    Some(json!({"metadata": meta}))
}
