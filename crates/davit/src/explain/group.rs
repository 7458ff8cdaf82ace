//! What a pod without a node waits for in its group.

use anyhow::{Context, Result};
use davit_api::pod_groups::pod_group_of;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::api::ListParams;

fn has_node(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// One sentence for each thing to know; none for pods that have a node or belong to no group.
pub(super) async fn of_pod(client: &kube::Client, pod: &Pod) -> Result<Vec<String>> {
    let Some(name) = pod_group_of(pod).filter(|_| !has_node(pod)) else {
        return Ok(Vec::new());
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let groups: kube::Api<PodGroup> = kube::Api::namespaced(client.clone(), namespace);
    let group = groups.get_opt(name).await;
    let group = group.context("cannot read the pod's group")?;
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default()).await;
    let pods = pods.context("cannot list the pods of the pod's group")?;
    Ok(sentences(name, group.as_ref(), &pods.items))
}

fn sentences(name: &str, group: Option<&PodGroup>, pods: &[Pod]) -> Vec<String> {
    let Some(group) = group else {
        return vec![format!(
            "it waits for PodGroup {name}, which does not exist (or PodGroups are not served)"
        )];
    };
    let of_group = |pod: &&Pod| pod_group_of(pod) == Some(name) && !has_ended(pod);
    let pods: Vec<&Pod> = pods.iter().filter(of_group).collect();
    let (all, placed) = (pods.len(), pods.iter().filter(|pod| has_node(pod)).count());
    let mut out = Vec::new();
    let gang = group.spec.scheduling_policy.gang.as_ref();
    match gang.map(|gang| usize::try_from(gang.min_count).unwrap_or(0)) {
        None => out.push(format!("PodGroup {name} lets its pods go one by one")),
        Some(least) if all < least => out.push(format!(
            "PodGroup {name} waits for pods: it needs at least {least}, {all} exist"
        )),
        Some(least) if placed < least => out.push(format!(
            "PodGroup {name} waits for room: of {all} pods {placed} have nodes, {} more have to get theirs at the same time",
            least - placed
        )),
        Some(least) => out.push(format!(
            "PodGroup {name} has the {least} pods that it needs; this one is scheduled like any other"
        )),
    }
    let conditions = group.status.iter().flat_map(|s| &s.conditions).flatten();
    for condition in conditions.filter(|c| c.status == "False") {
        out.push(format!(
            "{}={} ({}): {}",
            condition.type_, condition.status, condition.reason, condition.message
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(group: &str, node: Option<&str>) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [],
            "schedulingGroup": {"podGroupName": group}, "nodeName": node}}))
        .unwrap()
    }

    #[test]
    fn it_says_for_what_the_group_waits() {
        let group = json!({"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
            "status": {"conditions": [{"type": "PodGroupScheduled", "status": "False",
                "reason": "Unschedulable", "message": "pod group is unschedulable",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let group: PodGroup = serde_json::from_value(group).unwrap();
        let waiting = || pod("g", None);
        let of = |pods: &[Pod]| sentences("g", Some(&group), pods);
        let few = of(&[waiting(), waiting(), pod("other", None)]);
        assert_eq!(
            few,
            [
                "PodGroup g waits for pods: it needs at least 3, 2 exist",
                "PodGroupScheduled=False (Unschedulable): pod group is unschedulable",
            ]
        );
        let enough = of(&[waiting(), waiting(), waiting(), pod("g", Some("n"))]);
        assert_eq!(
            enough[0],
            "PodGroup g waits for room: of 4 pods 1 have nodes, 2 more have to get theirs at the same time"
        );
        assert!(sentences("g", None, &[])[0].contains("does not exist"));
    }
}
