//! What preemption does: victims are told that they are removed, and are deleted.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::pod::PodInfo;
use crate::victims::Victim;

/// How long removing one victim may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How many victims are removed at once.
const AT_ONCE: usize = 8;

/// The pods that are being removed for groups, by UID. A group that is tried again before all have gone has no others removed.
#[derive(Debug, Clone, Default)]
pub(super) struct Removing(Arc<Mutex<HashSet<Arc<str>>>>);

impl Removing {
    pub(super) fn pods(&self) -> HashSet<Arc<str>> {
        self.0.lock().clone()
    }

    /// These are being removed until what is returned is dropped: then the API says so, or it was in vain.
    pub(super) fn enter(&self, victims: &[Victim]) -> Entered {
        let pods = victims.iter().flat_map(Victim::pods);
        let pods: Vec<Arc<str>> = pods.map(|(_, pod)| pod.uid.clone()).collect();
        self.0.lock().extend(pods.iter().cloned());
        Entered {
            all: self.clone(),
            pods,
        }
    }
}

/// Pods that are among those that are being removed.
#[derive(Debug)]
pub(super) struct Entered {
    all: Removing,
    pods: Vec<Arc<str>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        for pod in &self.pods {
            all.remove(pod);
        }
    }
}

/// Whom to remove, and for whom.
pub(super) struct Removal {
    pub(super) client: kube::Client,
    /// Namespace and name of the pod or group.
    pub(super) preemptor: String,
    /// What it is, in the word of the victims' condition.
    pub(super) kind: &'static str,
    /// The scheduler that decided.
    pub(super) scheduler: String,
    pub(super) victims: Vec<Victim>,
    /// Pods of lower priority that wait for the nodes: they have to look for others.
    pub(super) displaced: Vec<Arc<PodInfo>>,
}

impl Removal {
    /// Removes the victims and takes back the nominations of pods that lost their nodes.
    pub(super) async fn carry_out(self) {
        for other in &self.displaced {
            self.take_back_nomination(other).await;
        }
        for victim in &self.victims {
            if let Some(key) = victim.group() {
                self.tell_group(&key.namespace, &key.name).await;
            }
        }
        for some in self.staying().chunks(AT_ONCE) {
            let removing: Vec<_> = some
                .iter()
                .map(|pod| self.remove_within_deadline(pod))
                .collect();
            join_all(removing).await;
        }
    }

    /// The pods that are not being deleted already.
    fn staying(&self) -> Vec<Arc<PodInfo>> {
        let pods = self.victims.iter().flat_map(Victim::pods);
        let staying = pods.filter(|(_, pod)| !pod.is_terminating());
        staying.map(|(_, pod)| pod.clone()).collect()
    }

    async fn take_back_nomination(&self, pod: &PodInfo) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"nominatedNodeName": null}});
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let write = api.patch_status(&pod.name, &params, &patch);
        if let Ok(Err(error)) = tokio::time::timeout(DEADLINE, write).await {
            tracing::warn!(
                pod = pod.key(),
                error = davit_client::message_of(&error),
                "nomination could not be taken back"
            );
        }
    }

    /// A group that goes whole says so (`DisruptionTarget` of its conditions).
    async fn tell_group(&self, namespace: &str, name: &str) {
        let api: Api<PodGroup> = Api::namespaced(self.client.clone(), namespace);
        let patch = json!({"status": {"conditions": [self.condition()]}});
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let write = api.patch_status(name, &params, &patch);
        if let Ok(Err(error)) = tokio::time::timeout(DEADLINE, write).await {
            tracing::warn!(
                group = format!("{namespace}/{name}"),
                error = davit_client::message_of(&error),
                "the group could not be told that it is removed"
            );
        }
    }

    fn condition(&self) -> Value {
        json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority {}", self.scheduler, self.kind),
            "lastTransitionTime": Time(Timestamp::now()),
        })
    }

    async fn remove_within_deadline(&self, victim: &PodInfo) {
        let (preemptor, key) = (&self.preemptor, victim.key());
        match tokio::time::timeout(DEADLINE, self.remove(victim)).await {
            Ok(Ok(())) => tracing::info!(preemptor, victim = key, "preempted"),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
            Ok(Err(error)) => {
                let error = davit_client::message_of(&error);
                tracing::warn!(preemptor, victim = key, error, "victim stays");
            }
            Err(_) => tracing::warn!(preemptor, victim = key, "removal took too long"),
        }
    }

    async fn remove(&self, victim: &PodInfo) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &victim.namespace);
        let patch = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [self.condition()]}});
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        api.patch_status(&victim.name, &params, &patch).await?;
        let preconditions = Preconditions {
            uid: Some(victim.uid.to_string()),
            ..Preconditions::default()
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        api.delete(&victim.name, &params).await?;
        Ok(())
    }
}
