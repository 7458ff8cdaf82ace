//! Writes the binding.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::framework::{Bind, CycleState, Plugin, Points, Status};
use crate::pod::PodInfo;

/// How long the API server may take to answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// The plugin `DefaultBinder`: posts `pods/binding`.
pub struct DefaultBinder {
    client: kube::Client,
}

impl DefaultBinder {
    /// A binder that writes through this client.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }
}

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        "DefaultBinder"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.bind.push(self);
    }
}

#[async_trait]
impl Bind for DefaultBinder {
    async fn bind(&self, _: &CycleState, pod: &PodInfo, node: &str) -> Status {
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": &*pod.namespace, "name": &*pod.name, "uid": &*pod.uid},
            "target": {"kind": "Node", "name": node},
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = PostParams::default();
        let write =
            api.create_subresource::<_, serde_json::Value>("binding", &pod.name, &params, &binding);
        match tokio::time::timeout(DEADLINE, write).await {
            Ok(Ok(_)) => Status::success(),
            Ok(Err(error)) => Status::error(format!("binding rejected: {error}")),
            Err(_) => Status::error(format!("binding not answered within {DEADLINE:?}")),
        }
    }
}
