//! PodCertificateRequests that are older than a quarter of an hour are deleted: a node asks with one when a pod starts, and has
//! its answer, or has given up, long before ([KEP-4317](https://kep.k8s.io/4317)).

use async_trait::async_trait;
use davit_client::{ObjectKey, list_in_pages};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, cluster_key, gone_is_none};
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, Preconditions};
use std::time::Duration;

/// How long a request stays, and how often to look, as upstream.
const KEPT: SignedDuration = SignedDuration::from_mins(15);
const LOOK: Duration = Duration::from_secs(5 * 60);

struct RequestCleaner {
    /// Acts as the controller's account, and lists as all controllers.
    client: kube::Client,
    shared: kube::Client,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("podcertificaterequest-cleaner-controller") else {
        return;
    };
    let queue = spawner.controller(RequestCleaner {
        client: spawner.client.clone(),
        shared: spawner.shared.clone(),
    });
    queue.add_after(cluster_key("look"), LOOK);
}

fn is_old(request: &PodCertificateRequest, now: Timestamp) -> bool {
    let created = request.metadata.creation_timestamp.as_ref();
    created.is_some_and(|created| now.duration_since(created.0) >= KEPT)
}

impl RequestCleaner {
    async fn delete(&self, request: &PodCertificateRequest) -> Result<(), Error> {
        let key = ObjectKey::of(request);
        let requests: kube::Api<PodCertificateRequest> =
            kube::Api::namespaced(self.client.clone(), &key.namespace);
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: request.metadata.uid.clone(),
            resource_version: None,
        });
        let deleted = requests.delete(&key.name, &params).await;
        gone_is_none(deleted).context(|| format!("delete PodCertificateRequest {key}"))?;
        Ok(())
    }
}

#[async_trait]
impl Reconcile for RequestCleaner {
    const NAME: &'static str = "podcertificaterequest-cleaner";
    const WORKERS: usize = 1;

    async fn sync(&self, _key: &ObjectKey) -> Result<Next, Error> {
        let requests: kube::Api<PodCertificateRequest> = kube::Api::all(self.shared.clone());
        let listed = list_in_pages(&requests, ListParams::default()).await;
        // An API server may not have the kind.
        let listed = gone_is_none(listed).context(|| "list PodCertificateRequests".to_owned())?;
        let now = Timestamp::now();
        let old = listed
            .iter()
            .flatten()
            .filter(|request| is_old(request, now));
        for request in old {
            self.delete(request).await?;
        }
        Ok(Next::After(LOOK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_stay_for_a_quarter_of_an_hour() {
        let request: PodCertificateRequest = serde_json::from_value(json!({
            "metadata": {"name": "r", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"signerName": "example.com/s", "podName": "p", "podUID": "u", "serviceAccountName": "default",
                "serviceAccountUID": "u", "nodeName": "n", "nodeUID": "u", "stubPKCS10Request": ""}}))
        .unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert!(!is_old(&request, at("2026-01-01T00:14:59Z")));
        assert!(is_old(&request, at("2026-01-01T00:15:00Z")));
    }
}
