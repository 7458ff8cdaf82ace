//! Keeps groups of pods from going away under their pods: a group that is deleted stays until no pod that has not ended
//! names it. The API server puts the finalizer on.

use async_trait::async_trait;
use davit_api::pod_groups::pod_group_of;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::finalizers::settle;
use davit_reconcile::pods::is_terminal;
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::api::ListParams;

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

struct ProtectedGroups {
    client: kube::Client,
    informers: Informers,
    groups: Informer<PodGroup>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>, groups: &Informer<PodGroup>) {
    let Some(spawner) = &mut spawner.start("podgroup-protection-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(ProtectedGroups {
        client: spawner.client.clone(),
        informers: informers.clone(),
        groups: groups.clone(),
    });
    spawner.feed(groups, &queue, |group: &PodGroup| {
        vec![ObjectKey::of(group)]
    });
    spawner.feed(&informers.pods, &queue, |pod: &Pod| {
        group_of(pod).into_iter().collect()
    });
}

/// The group that a pod names.
fn group_of(pod: &Pod) -> Option<ObjectKey> {
    Some(ObjectKey {
        namespace: pod.metadata.namespace.clone()?,
        name: pod_group_of(pod)?.to_owned(),
    })
}

/// Whether a pod belongs to the group and has not ended.
fn uses(pod: &Pod, group: &ObjectKey) -> bool {
    !is_terminal(pod) && group_of(pod).as_ref() == Some(group)
}

#[async_trait]
impl Reconcile for ProtectedGroups {
    const NAME: &'static str = "podgroup-protection";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(group) = self.groups.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        if group.metadata.deletion_timestamp.is_none() {
            return Ok(Next::Wait);
        }
        let pods = self.informers.pods.list_namespace(&key.namespace);
        if pods.iter().any(|pod| uses(pod, key)) {
            return Ok(Next::Wait);
        }
        // The informer may lag behind: only the API server knows that nothing uses it.
        let pods: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let pods = pods.list(&ListParams::default()).await;
        let pods = pods.context(|| format!("list pods that belong to group {key}"))?;
        if pods.items.iter().any(|pod| uses(pod, key)) {
            return Ok(Next::Wait);
        }
        let groups = kube::Api::namespaced(self.client.clone(), &key.namespace);
        settle(&groups, &*group, FINALIZER, true).await?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn groups_are_used_by_pods_that_have_not_ended() {
        let pod = |group: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"},
                "spec": {"containers": [], "schedulingGroup": {"podGroupName": group}},
                "status": {"phase": phase}}))
            .unwrap()
        };
        let group = ObjectKey {
            namespace: "ns".to_owned(),
            name: "g".to_owned(),
        };
        assert!(uses(&pod("g", "Pending"), &group) && uses(&pod("g", "Running"), &group));
        assert!(!uses(&pod("g", "Succeeded"), &group) && !uses(&pod("h", "Running"), &group));
    }
}
