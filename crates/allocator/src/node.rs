//! Which nodes a slice, a device or an allocation is for.

use std::collections::BTreeMap;

use davit_api::SortedValues;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// What is known of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

/// A node selector that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse node selector: {0}")]
pub struct NodeSelectorError(String);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    In(SortedValues),
    NotIn(SortedValues),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

impl Requirement {
    fn new(r: &NodeSelectorRequirement, field: bool) -> Result<Self, NodeSelectorError> {
        let values = r.values.clone().unwrap_or_default();
        let fault = |why: &str| NodeSelectorError(format!("{} {}: {why}", r.key, r.operator));
        let number = || match &values[..] {
            [one] => one.parse().map_err(|_| fault("value must be an integer")),
            _ => Err(fault("needs one value")),
        };
        if field && r.key != "metadata.name" {
            return Err(fault("not a valid field selector key"));
        }
        let operator = match &*r.operator {
            "In" if !values.is_empty() => Operator::In(SortedValues::new(values)),
            "NotIn" if !values.is_empty() => Operator::NotIn(SortedValues::new(values)),
            "In" | "NotIn" => return Err(fault("values must not be empty")),
            _ if field => return Err(fault("not a valid selector operator for fields")),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt(number()?),
            "Lt" => Operator::Lt(number()?),
            _ => return Err(fault("not a valid selector operator")),
        };
        Ok(Self {
            key: r.key.clone(),
            operator,
        })
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
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

/// A node selector, compiled: one of its terms must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeMatcher {
    terms: Vec<Term>,
}

impl NodeMatcher {
    /// Compiles a selector. Terms without any requirement match nothing.
    ///
    /// # Errors
    /// When an operator or its values make no sense.
    pub fn new(selector: &NodeSelector) -> Result<Self, NodeSelectorError> {
        let compile = |list: &Option<Vec<NodeSelectorRequirement>>, field| {
            let list = list.iter().flatten();
            let compiled = list.map(|r| Requirement::new(r, field));
            compiled.collect::<Result<Vec<_>, _>>()
        };
        let term = |t: &NodeSelectorTerm| -> Result<Term, NodeSelectorError> {
            Ok(Term {
                labels: compile(&t.match_expressions, false)?,
                fields: compile(&t.match_fields, true)?,
            })
        };
        let terms: Result<Vec<Term>, _> = selector.node_selector_terms.iter().map(term).collect();
        let mut terms = terms?;
        terms.retain(|t| !t.labels.is_empty() || !t.fields.is_empty());
        Ok(Self { terms })
    }

    /// Whether the node is one of those meant.
    pub fn matches(&self, node: NodeView<'_>) -> bool {
        self.terms.iter().any(|term| {
            let label = |r: &Requirement| r.matches(node.labels.get(&r.key).map(String::as_str));
            term.labels.iter().all(label) && term.fields.iter().all(|r| r.matches(Some(node.name)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: serde_json::Value) -> Result<NodeMatcher, NodeSelectorError> {
        NodeMatcher::new(&serde_json::from_value(json).unwrap())
    }

    #[test]
    fn terms_are_alternatives_and_empty_ones_match_nothing() {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let node = NodeView {
            name: "n1",
            labels: &labels,
        };
        let by_name = serde_json::json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
        let by_zone = serde_json::json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]});
        for (terms, expected) in [
            (serde_json::json!([by_name]), true),
            (serde_json::json!([by_zone]), false),
            (serde_json::json!([by_zone, by_name]), true),
            (serde_json::json!([{}]), false),
            (serde_json::json!([]), false),
        ] {
            let matcher = selector(serde_json::json!({"nodeSelectorTerms": terms})).unwrap();
            assert_eq!(matcher.matches(node), expected, "{terms}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let bad = serde_json::json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Near"}]}]});
        assert!(selector(bad).is_err());
    }
}
