//! Whether a pod of a DaemonSet belongs on a node: selectors and taints, as the scheduler would judge, without resources.

use davit_api::labels::{Operator, Requirement};
use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};
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
    let fields = BTreeMap::from([("metadata.name".to_owned(), name)]);
    required.is_none_or(|selector| {
        selector
            .node_selector_terms
            .iter()
            .any(|term| matches(term, labels, &fields))
    })
}

fn matches(
    term: &NodeSelectorTerm,
    labels: &BTreeMap<String, String>,
    fields: &BTreeMap<String, String>,
) -> bool {
    let (expressions, field_expressions) = (
        term.match_expressions.as_deref(),
        term.match_fields.as_deref(),
    );
    let (expressions, field_expressions) = (
        expressions.unwrap_or_default(),
        field_expressions.unwrap_or_default(),
    );
    // A term without any condition matches nothing.
    if expressions.is_empty() && field_expressions.is_empty() {
        return false;
    }
    let holds = |r: &NodeSelectorRequirement, on| requirement(r).is_some_and(|r| r.matches(on));
    expressions.iter().all(|r| holds(r, labels))
        && field_expressions.iter().all(|r| holds(r, fields))
}

fn requirement(given: &NodeSelectorRequirement) -> Option<Requirement> {
    let operator = match given.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::GreaterThan,
        "Lt" => Operator::LessThan,
        _ => return None,
    };
    Requirement::new(
        given.key.clone(),
        operator,
        given.values.clone().unwrap_or_default(),
    )
    .ok()
}

/// Whether the toleration covers the taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "" | "Equal" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

/// The first taint with one of the effects that no toleration covers.
pub(crate) fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
    effects: &[&str],
) -> Option<&'a Taint> {
    let concerns = |taint: &&Taint| effects.contains(&taint.effect.as_str());
    taints
        .iter()
        .filter(concerns)
        .find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Affinity, NodeAffinity, NodeSelector};

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
