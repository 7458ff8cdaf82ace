//! Selectors of typed objects over labels, compiled once and asked often.
//!
//! What cannot be understood matches nothing: the API server has refused it already, and a component has nobody to tell.
//! Query strings and their errors are in [`crate::labels`].

use std::collections::BTreeMap;

use crate::SortedValues;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Operator {
    In(SortedValues),
    NotIn(SortedValues),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
    /// An operator or value the API does not know; nothing matches.
    Never,
}

impl Requirement {
    fn new(key: &str, operator: &str, values: Option<&Vec<String>>) -> Self {
        let values = values.cloned().unwrap_or_default();
        let number = || match &values[..] {
            [one] => one.parse().ok(),
            _ => None,
        };
        let operator = match operator {
            "In" => Operator::In(SortedValues::new(values)),
            "NotIn" => Operator::NotIn(SortedValues::new(values)),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => number().map_or(Operator::Never, Operator::Gt),
            "Lt" => number().map_or(Operator::Never, Operator::Lt),
            _ => Operator::Never,
        };
        Self {
            key: key.to_owned(),
            operator,
        }
    }

    /// Demands that the label has this value.
    pub fn equals(key: &str, value: &str) -> Self {
        Self {
            key: key.to_owned(),
            operator: Operator::In(SortedValues::new(vec![value.to_owned()])),
        }
    }

    /// Demands that the label is absent or has another value.
    pub fn differs(key: &str, value: &str) -> Self {
        Self {
            key: key.to_owned(),
            operator: Operator::NotIn(SortedValues::new(vec![value.to_owned()])),
        }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => value.is_some_and(|v| values.contains(v)),
            Operator::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt(bound) => number().is_some_and(|n| n > *bound),
            Operator::Lt(bound) => number().is_some_and(|n| n < *bound),
            Operator::Never => false,
        }
    }
}

/// A label selector: all requirements must hold. An absent selector selects nothing, an empty one
/// everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    nothing: bool,
    requirements: Vec<Requirement>,
}

impl Selector {
    /// Compiles a label selector of the API.
    pub fn new(selector: Option<&LabelSelector>) -> Self {
        let Some(selector) = selector else {
            return Self {
                nothing: true,
                requirements: Vec::new(),
            };
        };
        let equal = selector.match_labels.iter().flatten();
        let expressions = selector.match_expressions.iter().flatten();
        let requirements = equal
            .map(|(key, value)| Requirement::equals(key, value))
            .chain(expressions.map(|e| Requirement::new(&e.key, &e.operator, e.values.as_ref())))
            .collect();
        Self {
            nothing: false,
            requirements,
        }
    }

    /// Selects every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Whether the selector selects every object.
    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// Adds a requirement; a selector of nothing stays one.
    pub fn and(&mut self, requirement: Requirement) {
        self.requirements.push(requirement);
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        !self.nothing
            && self
                .requirements
                .iter()
                .all(|r| r.matches(labels.get(&r.key).map(String::as_str)))
    }
}

/// Whether a node of this name and these labels matches any term of the selector.
pub fn selects_node(selector: &NodeSelector, name: &str, labels: &Labels) -> bool {
    let terms = selector.node_selector_terms.iter();
    terms
        .filter_map(NodeTerm::new)
        .any(|term| term.matches(name, labels))
}

/// One term of a node selector: conditions on labels and on the node's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeTerm {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

impl NodeTerm {
    /// Compiles a term of the API; `None` for one without any condition, which matches nothing.
    pub fn new(term: &NodeSelectorTerm) -> Option<Self> {
        let compile = |list: &Option<Vec<NodeSelectorRequirement>>| -> Vec<Requirement> {
            list.iter()
                .flatten()
                .map(|r| Requirement::new(&r.key, &r.operator, r.values.as_ref()))
                .collect()
        };
        let term = Self {
            labels: compile(&term.match_expressions),
            fields: compile(&term.match_fields),
        };
        (!term.labels.is_empty() || !term.fields.is_empty()).then_some(term)
    }

    /// Whether the node of this name and these labels matches.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        let field = |key: &str| (key == "metadata.name").then_some(name);
        self.labels
            .iter()
            .all(|r| r.matches(labels.get(&r.key).map(String::as_str)))
            && self
                .fields
                .iter()
                .all(|r| r.key == "metadata.name" && r.matches(field(&r.key)))
    }

    /// The node names this term is limited to by `metadata.name In [...]`, if it is.
    pub fn names(&self) -> Option<Vec<&str>> {
        let mut lists = self
            .fields
            .iter()
            .filter(|r| r.key == "metadata.name")
            .filter_map(|r| match &r.operator {
                Operator::In(values) => Some(values),
                _ => None,
            });
        let first = lists.next()?.as_slice().iter().map(String::as_str);
        Some(lists.fold(first.collect(), |names: Vec<&str>, list| {
            names.into_iter().filter(|n| list.contains(n)).collect()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn labels(list: &[(&str, &str)]) -> Labels {
        list.iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn absent_selects_nothing_and_empty_everything() {
        assert!(!Selector::new(None).matches(&labels(&[("a", "b")])));
        let empty = Selector::new(Some(&LabelSelector::default()));
        assert!(empty.is_everything() && empty.matches(&Labels::new()));
    }

    #[test]
    fn operators() {
        let node = labels(&[("zone", "a"), ("size", "5")]);
        for (operator, key, values, expected) in [
            ("In", "zone", json!(["a", "b"]), true),
            ("In", "none", json!(["a"]), false),
            ("NotIn", "zone", json!(["a"]), false),
            ("NotIn", "none", json!(["a"]), true),
            ("Exists", "zone", json!(null), true),
            ("DoesNotExist", "zone", json!(null), false),
            ("Gt", "size", json!(["4"]), true),
            ("Gt", "size", json!(["5"]), false),
            ("Lt", "size", json!(["6"]), true),
            ("Lt", "zone", json!(["6"]), false),
            ("Gt", "size", json!(["x"]), false),
            ("Near", "zone", json!(["a"]), false),
        ] {
            let term = serde_json::from_value(json!({
                "matchExpressions": [{"key": key, "operator": operator, "values": values}]
            }))
            .unwrap();
            let term = NodeTerm::new(&term).unwrap();
            assert_eq!(
                term.matches("n", &node),
                expected,
                "{operator} {key} {values}"
            );
        }
    }

    #[test]
    fn names_in_fields() {
        let term = serde_json::from_value(json!({"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["a", "b"]},
            {"key": "metadata.name", "operator": "NotIn", "values": ["b"]},
        ]}))
        .unwrap();
        let term = NodeTerm::new(&term).unwrap();
        assert!(term.matches("a", &Labels::new()));
        assert!(!term.matches("b", &Labels::new()));
        assert_eq!(term.names(), Some(vec!["a", "b"]));
        assert_eq!(NodeTerm::new(&NodeSelectorTerm::default()), None);
    }
}
