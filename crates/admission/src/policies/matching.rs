//! Whether a policy or binding is about a request: `MatchResources`.

use std::sync::Arc;

use davit_api::labels::Selector;
use davit_api::status::Status;
use davit_registry::ResourceInfo;
use serde_json::Value;

use crate::Attributes;
use crate::webhooks::matching::{Rule, Subject, by_namespace, by_object};

/// `matchConstraints` of a policy or `matchResources` of a binding.
#[derive(Debug)]
pub(super) struct Matching {
    rules: Vec<Named>,
    excluded: Vec<Named>,
    equivalent: bool,
    namespaces: Option<Selector>,
    objects: Option<Selector>,
}

/// A rule that may be about single names.
#[derive(Debug)]
struct Named {
    rule: Rule,
    names: Vec<String>,
}

impl Named {
    fn list(value: &Value) -> Vec<Self> {
        let rules = value.as_array().into_iter().flatten();
        rules
            .map(|rule| {
                let names = rule["resourceNames"].as_array().into_iter().flatten();
                Self {
                    rule: Rule::from_value(rule),
                    names: names.filter_map(Value::as_str).map(str::to_owned).collect(),
                }
            })
            .collect()
    }

    fn matches(&self, subject: &Subject<'_>, name: &str) -> bool {
        (self.names.is_empty() || self.names.iter().any(|known| known == name))
            && self.rule.matches(subject)
    }
}

impl Matching {
    pub(super) fn new(value: &Value) -> Self {
        let selector = |key: &str| match &value[key] {
            Value::Null => Some(Selector::everything()),
            given => Selector::from_label_selector(Some(given)).ok(),
        };
        Self {
            rules: Named::list(&value["resourceRules"]),
            excluded: Named::list(&value["excludeResourceRules"]),
            equivalent: value["matchPolicy"] != "Exact",
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
        }
    }

    /// The version of the resource that the rules name, if they name one and the selectors choose
    /// the request. `any` is what no rules at all mean: everything for bindings.
    pub(super) async fn resource(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        any: bool,
    ) -> Result<Option<Arc<ResourceInfo>>, Status> {
        if self.named(&self.excluded, attributes).is_some() {
            return Ok(None);
        }
        let resource = if any && self.rules.is_empty() {
            Some(Arc::new(attributes.resource.clone()))
        } else {
            self.named(&self.rules, attributes)
        };
        let Some(resource) = resource else {
            return Ok(None);
        };
        if !by_object(self.objects.as_ref(), attributes, object)
            || !by_namespace(self.namespaces.as_ref(), attributes, object).await?
        {
            return Ok(None);
        }
        Ok(Some(resource))
    }

    fn named(&self, rules: &[Named], attributes: &Attributes<'_>) -> Option<Arc<ResourceInfo>> {
        let matches = |resource: &ResourceInfo| {
            let subject = Subject {
                operation: attributes.operation,
                group: resource.row.group,
                version: resource.row.version,
                resource: resource.row.plural,
                subresource: attributes.subresource,
                namespaced: !attributes.namespace.is_empty(),
            };
            rules
                .iter()
                .any(|rule| rule.matches(&subject, attributes.name))
        };
        if rules.is_empty() {
            return None;
        }
        if matches(attributes.resource) {
            return Some(Arc::new(attributes.resource.clone()));
        }
        if !self.equivalent {
            return None;
        }
        let snapshot = attributes.server.registry().snapshot();
        let found = snapshot.all().find(|other| {
            other.storage.same_objects(&attributes.resource.storage)
                && other.api_version() != attributes.resource.api_version()
                && matches(other)
        });
        found.map(Arc::clone)
    }
}
