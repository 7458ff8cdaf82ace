//! Finding a node together with the scheduler.

use std::time::Duration;

use davit_api::classic::{
    ClaimSchedulingStatus, ConsumerReference, MOST_NODES, PodScheduling, PodSchedulingStatus,
    claim_name,
};
use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use kube::Api;
use kube::api::PostParams;

use super::controller::{Asked, Next, Shared, SyncError, call};
use super::{ClaimAllocation, ClassicDriver};

/// How often the unsuitable nodes are found out anew.
const PERIOD: Duration = Duration::from_secs(30);

fn is_controlled_by(scheduling: &PodScheduling, pod: &Pod) -> bool {
    let owners = scheduling.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref())
}

impl<D: ClassicDriver> Shared<D> {
    pub(super) async fn sync_scheduling(
        &self,
        scheduling: &PodScheduling,
    ) -> Result<Next, SyncError> {
        let spec = &scheduling.spec;
        let open = !spec.selected_node.is_empty() || !spec.potential_nodes.is_empty();
        if scheduling.metadata.deletion_timestamp.is_some() || !open {
            return Ok(Next::Wait);
        }
        let namespace = scheduling.metadata.namespace.as_deref().unwrap_or_default();
        let name = scheduling.metadata.name.as_deref().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let Some(pod) = call("get pod", api.get_opt(name)).await? else {
            return Ok(Next::Wait);
        };
        if pod.metadata.deletion_timestamp.is_some() || !is_controlled_by(scheduling, &pod) {
            return Ok(Next::Wait);
        }
        let mut wishes = Vec::new();
        let spec_of_pod = pod.spec.as_ref();
        let entries = spec_of_pod.and_then(|s| s.resource_claims.as_deref());
        for entry in entries.unwrap_or_default() {
            wishes.extend(self.wish_of(&pod, entry).await?);
        }
        if wishes.is_empty() {
            return Ok(Next::Wait);
        }
        let mut nodes = spec.potential_nodes.clone();
        let selected = spec.selected_node.as_str();
        if !selected.is_empty() && !nodes.iter().any(|n| n == selected) {
            nodes.push(selected.to_owned());
        }
        let checked = self.driver.unsuitable_nodes(&pod, &mut wishes, &nodes);
        checked.await.asked("find unsuitable nodes")?;
        let suits = |w: &ClaimAllocation<D>| !w.unsuitable_nodes.iter().any(|n| n == selected);
        let mut failure = None;
        if !selected.is_empty() && wishes.iter().all(suits) {
            for wish in &wishes {
                let user = self.reserves.then(|| {
                    let meta = &pod.metadata;
                    let uid = meta.uid.clone().unwrap_or_default();
                    ConsumerReference::pod(meta.name.clone().unwrap_or_default(), uid)
                });
                if let Err(error) = self.allocate(wish, Some(selected), user).await {
                    failure = Some(error);
                    break;
                }
            }
        }
        // Also after an allocation: it may have to be undone, and what is said then holds again.
        self.tell(scheduling, &wishes).await?;
        match failure {
            Some(error) => Err(error),
            None => Ok(Next::After(PERIOD)),
        }
    }

    /// An entry of the pod as something to allocate; `None` when there is nothing to do for us.
    async fn wish_of(
        &self,
        pod: &Pod,
        entry: &PodResourceClaim,
    ) -> Result<Option<ClaimAllocation<D>>, SyncError> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let name = claim_name(pod, entry);
        // What is not known here is no classic claim, or will be told of.
        let Some(claim) = self.claims.get(&(namespace.clone(), name.clone())) else {
            return Ok(None);
        };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if entry.resource_claim_name.is_none() && !claim.is_controlled_by(uid) {
            return Err(SyncError::Object(format!(
                "claim {namespace}/{name} was not created for the pod"
            )));
        }
        let settled = claim.status.allocation.is_some()
            || claim.metadata.deletion_timestamp.is_some()
            || !claim.is_delayed();
        if settled {
            return Ok(None);
        }
        let Some(class) = self.class_of(&claim).await? else {
            return Err(SyncError::Object(format!(
                "resource class {} does not exist",
                claim.spec.resource_class_name
            )));
        };
        if class.driver_name != self.name {
            return Ok(None);
        }
        let wish = self
            .wish(entry.name.clone(), (*claim).clone(), class)
            .await?;
        Ok(Some(wish))
    }

    /// Writes the unsuitable nodes of our claims, if that is news.
    async fn tell(
        &self,
        scheduling: &PodScheduling,
        wishes: &[ClaimAllocation<D>],
    ) -> Result<(), SyncError> {
        let status = told(&scheduling.status, wishes);
        if status == scheduling.status {
            return Ok(());
        }
        let mut scheduling = scheduling.clone();
        scheduling.status = status;
        let namespace = scheduling.metadata.namespace.as_deref().unwrap_or_default();
        let name = scheduling.metadata.name.as_deref().unwrap_or_default();
        let api: Api<PodScheduling> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        let write = api.replace_status(name, &params, &scheduling);
        let written = call("update pod scheduling status", write).await?;
        self.schedulings.set(written);
        Ok(())
    }
}

/// The status with what is said of our claims; what others said stays.
fn told<D: ClassicDriver>(
    before: &PodSchedulingStatus,
    wishes: &[ClaimAllocation<D>],
) -> PodSchedulingStatus {
    let mut status = before.clone();
    for wish in wishes {
        let mut unsuitable_nodes = wish.unsuitable_nodes.clone();
        unsuitable_nodes.sort_unstable();
        unsuitable_nodes.dedup();
        unsuitable_nodes.truncate(MOST_NODES);
        let mut known = status.resource_claims.iter_mut();
        match known.find(|c| c.name == wish.pod_claim_name) {
            Some(entry) => {
                let mut before = entry.unsuitable_nodes.clone();
                before.sort_unstable();
                if before != unsuitable_nodes {
                    entry.unsuitable_nodes = unsuitable_nodes;
                }
            }
            None => status.resource_claims.push(ClaimSchedulingStatus {
                name: wish.pod_claim_name.clone(),
                unsuitable_nodes,
            }),
        }
    }
    status
}
