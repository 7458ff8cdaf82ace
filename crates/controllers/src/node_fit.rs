//! Whether a pod of a DaemonSet belongs on a node: its selectors, as the scheduler would judge.

use davit_api::selector::selects_node;
use k8s_openapi::api::core::v1::{Node, PodSpec};
use std::collections::BTreeMap;

/// Whether the pod's node selector and required node affinity match the node.
pub(crate) fn selects(spec: &PodSpec, node: &Node) -> bool {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let name = node.metadata.name.clone().unwrap_or_default();
    if spec
        .node_name
        .as_ref()
        .is_some_and(|wanted| !wanted.is_empty() && *wanted != name)
    {
        return false;
    }
    if !spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value))
    {
        return false;
    }
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    required.is_none_or(|selector| selects_node(selector, &name, labels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{
        Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    };

    #[test]
    fn selector_and_affinity_must_both_match() {
        let mut node = Node::default();
        node.metadata.name = Some("a".into());
        node.metadata.labels = Some(BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]));
        let mut spec = PodSpec {
            node_selector: node.metadata.labels.clone(),
            ..PodSpec::default()
        };
        assert!(selects(&spec, &node));
        let by_name = |name: &str| NodeSelectorTerm {
            match_fields: Some(vec![NodeSelectorRequirement {
                key: "metadata.name".into(),
                operator: "In".into(),
                values: Some(vec![name.to_owned()]),
            }]),
            ..NodeSelectorTerm::default()
        };
        let affinity = |term| Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                    node_selector_terms: vec![term],
                }),
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        };
        spec.affinity = Some(affinity(by_name("a")));
        assert!(selects(&spec, &node));
        spec.affinity = Some(affinity(by_name("b")));
        assert!(!selects(&spec, &node));
        spec.affinity = Some(affinity(NodeSelectorTerm::default()));
        assert!(!selects(&spec, &node), "an empty term matches nothing");
    }
}
