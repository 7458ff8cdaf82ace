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
/// How often a pod is read of whose binding nobody knows, and the pause between.
const LOOKS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// The plugin `DefaultBinder`: posts `pods/binding`.
pub struct DefaultBinder {
    client: kube::Client,
}

impl DefaultBinder {
    /// A binder that writes through this client.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// Whether the pod is bound to the node, after an answer that does not say so. Whoever takes the binding for failed
    /// gives back what the pod on the node has. A refusal may be of a second attempt: what stands between may ask again.
    async fn is_bound(&self, pod: &PodInfo, node: &str) -> bool {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let Ok(Ok(found)) = tokio::time::timeout(DEADLINE, api.get_opt(&pod.name)).await else {
                continue;
            };
            return found.is_some_and(|found| {
                let bound_to = found.spec.and_then(|spec| spec.node_name);
                found.metadata.uid.as_deref() == Some(&*pod.uid)
                    && bound_to.as_deref() == Some(node)
            });
        }
        false
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
        let fault = match tokio::time::timeout(DEADLINE, write).await {
            Ok(Ok(_)) => return Status::success(),
            Ok(Err(error)) => format!("binding rejected: {error}"),
            Err(_) => format!("binding not answered within {DEADLINE:?}"),
        };
        match self.is_bound(pod, node).await {
            true => Status::success(),
            false => Status::error(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Code;
    use crate::plugins::testing::pod;
    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    /// A binder whose binding is answered with a code, and whose pod is then on this node.
    fn binder(code: u16, node: Option<&'static str>, uid: &'static str) -> DefaultBinder {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let (code, answer): (u16, Value) = match *request.method() {
                Method::POST => (
                    code,
                    json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "no", "code": code}),
                ),
                _ => (
                    200,
                    json!({"metadata": {"name": "p", "uid": uid}, "spec": {"containers": [], "nodeName": node}}),
                ),
            };
            let answer = Body::from(answer.to_string().into_bytes());
            Response::builder().status(code).body(answer)
        });
        DefaultBinder::new(davit_client::in_process(service, "default"))
    }

    #[tokio::test]
    async fn a_binding_that_was_made_and_not_acknowledged_counts() {
        let cases = [
            (504, Some("n"), "p", Code::Success),
            (500, Some("n"), "p", Code::Success),
            (500, None, "p", Code::Error),
            (500, Some("other"), "p", Code::Error),
            (500, Some("n"), "another", Code::Error),
            (409, Some("n"), "p", Code::Success),
            (409, Some("other"), "p", Code::Error),
            (429, Some("n"), "p", Code::Success),
        ];
        for (code, node, uid, expected) in cases {
            let status = binder(code, node, uid)
                .bind(&CycleState::default(), &pod("p", json!({})), "n")
                .await;
            assert_eq!(status.code, expected, "{code} {node:?} {uid}");
        }
    }
}
