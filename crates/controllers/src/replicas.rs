//! Creating and deleting pods until there are as many as asked for: what ReplicaSets and ReplicationControllers share.

use crate::pod_control::{Owner, sort_for_deletion};
use davit_client::EventRecorder;
use davit_reconcile::{Error, cause_of};
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodTemplateSpec};
use std::sync::Arc;

/// Pods created or deleted in one round, as upstream.
const BURST: usize = 500;
/// Calls in flight at a time.
const PARALLEL: usize = 16;

pub(crate) struct Replicas<'a> {
    pub(crate) client: &'a kube::Client,
    pub(crate) events: &'a EventRecorder,
    /// The object whose events tell of it.
    pub(crate) about: ObjectReference,
    pub(crate) owner: &'a Owner,
}

impl Replicas<'_> {
    /// Brings the number of active pods towards `wanted`.
    pub(crate) async fn scale(
        &self,
        template: &PodTemplateSpec,
        active: &[Arc<Pod>],
        wanted: usize,
    ) -> Result<(), Error> {
        if active.len() < wanted {
            self.create(template, (wanted - active.len()).min(BURST))
                .await
        } else {
            self.delete(active, (active.len() - wanted).min(BURST))
                .await
        }
    }

    /// Creates in batches of 1, 2, 4, … so that a quota or an admission that refuses is asked only once.
    async fn create(&self, template: &PodTemplateSpec, mut missing: usize) -> Result<(), Error> {
        let pod = self.owner.pod(template, None);
        let mut batch = 1;
        while missing > 0 {
            let count = batch.min(missing).min(PARALLEL);
            let creating = (0..count).map(|_| self.owner.create(self.client, &pod));
            for result in futures::future::join_all(creating).await {
                match result {
                    Ok(pod) => {
                        let text = format!("Created pod: {}", name_of(&pod));
                        self.events.normal(&self.about, "SuccessfulCreate", text);
                    }
                    Err(error) => {
                        let text = format!("Error creating: {}", cause_of(&error));
                        self.events.warning(&self.about, "FailedCreate", text);
                        return Err(error);
                    }
                }
            }
            missing -= count;
            batch *= 2;
        }
        Ok(())
    }

    async fn delete(&self, active: &[Arc<Pod>], surplus: usize) -> Result<(), Error> {
        let mut pods = active.to_vec();
        sort_for_deletion(&mut pods);
        for chunk in pods[..surplus].chunks(PARALLEL) {
            let deleting = chunk.iter().map(|pod| self.owner.delete(self.client, pod));
            futures::future::try_join_all(deleting).await?;
            for pod in chunk {
                let text = format!("Deleted pod: {}", name_of(pod));
                self.events.normal(&self.about, "SuccessfulDelete", text);
            }
        }
        Ok(())
    }
}

fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}
