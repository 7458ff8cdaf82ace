//! Whether a webhook wants to see a request.

use std::sync::Arc;

use davit_api::labels::Selector;
use davit_api::status::Status;
use davit_registry::ResourceInfo;
use serde_json::{Map, Value};

use super::configurations::Webhook;
use crate::{Attributes, Operation};

/// One of a webhook's `rules`.
#[derive(Debug, Default, Clone)]
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: String,
}

/// What the rules are held against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) operation: Operation,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    /// Whether the object lives in a namespace.
    pub(crate) namespaced: bool,
}

impl Rule {
    pub(crate) fn from_value(value: &Value) -> Self {
        let list = |key: &str| {
            let texts = value[key].as_array().into_iter().flatten();
            texts.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            operations: list("operations"),
            groups: list("apiGroups"),
            versions: list("apiVersions"),
            resources: list("resources"),
            scope: value["scope"].as_str().unwrap_or("*").to_owned(),
        }
    }

    pub(crate) fn matches(&self, subject: &Subject<'_>) -> bool {
        let named = |list: &[String], value: &str| list.iter().any(|v| v == "*" || v == value);
        let scoped = match self.scope.as_str() {
            "Namespaced" => subject.namespaced,
            "Cluster" => !subject.namespaced,
            _ => true,
        };
        scoped
            && named(&self.operations, subject.operation.name())
            && named(&self.groups, subject.group)
            && named(&self.versions, subject.version)
            && self.resources.iter().any(|entry| {
                let (resource, sub) = entry.split_once('/').unwrap_or((entry, ""));
                (resource == "*" || resource == subject.resource)
                    && (sub == "*" || sub == subject.subresource)
            })
    }
}

/// The version of the resource in which a webhook wants to see the request, if it does.
pub(super) async fn matched(
    webhook: &Webhook,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<Option<Arc<ResourceInfo>>, Status> {
    let Some(resource) = by_rules(webhook, attributes) else {
        return Ok(None);
    };
    if !by_object(webhook.objects.as_ref(), attributes, object) {
        return Ok(None);
    }
    if !by_namespace(webhook.namespaces.as_ref(), attributes, object).await? {
        return Ok(None);
    }
    Ok(Some(resource))
}

/// A rule names the resource of the path or, under `Equivalent`, another version of it.
fn by_rules(webhook: &Webhook, attributes: &Attributes<'_>) -> Option<Arc<ResourceInfo>> {
    let subject = |resource: &ResourceInfo| {
        webhook.rules.iter().any(|rule| {
            rule.matches(&Subject {
                operation: attributes.operation,
                group: resource.row.group,
                version: resource.row.version,
                resource: resource.row.plural,
                subresource: attributes.subresource,
                namespaced: !attributes.namespace.is_empty(),
            })
        })
    };
    if subject(attributes.resource) {
        return Some(Arc::new(attributes.resource.clone()));
    }
    if !webhook.equivalent {
        return None;
    }
    let snapshot = attributes.server.registry().snapshot();
    let equivalent = snapshot.all().find(|other| {
        other.storage.same_objects(&attributes.resource.storage)
            && other.api_version() != attributes.resource.api_version()
            && subject(other)
    });
    equivalent.map(Arc::clone)
}

/// The selector chooses the new object or the old one.
pub(crate) fn by_object(
    selector: Option<&Selector>,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> bool {
    let Some(selector) = selector else {
        return false;
    };
    if selector.is_empty() {
        return true;
    }
    let chosen = |object: &Value| selector.matches(labels_of(object));
    object.is_some_and(chosen) || attributes.old.is_some_and(chosen)
}

pub(crate) async fn by_namespace(
    selector: Option<&Selector>,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<bool, Status> {
    let Some(selector) = selector else {
        return Ok(false);
    };
    if selector.is_empty() {
        return Ok(true);
    }
    let is_namespace = attributes.about("", "namespaces");
    if attributes.namespace.is_empty() && !is_namespace {
        return Ok(true);
    }
    if is_namespace && attributes.subresource.is_empty() && attributes.writes() {
        return Ok(object.is_some_and(|object| selector.matches(labels_of(object))));
    }
    let name = attributes.request_namespace();
    let held = attributes.server.object("", "namespaces", "", name).await?;
    match held {
        Some(held) => Ok(selector.matches(labels_of(&held))),
        None => Err(Status::not_found(
            davit_api::status::Qualified::new("", "namespaces"),
            name,
        )),
    }
}

fn labels_of(object: &Value) -> &Map<String, Value> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    davit_api::meta::labels(object).unwrap_or(&NONE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(rule: &Value, resource: &str, subresource: &str, namespaced: bool) -> bool {
        Rule::from_value(rule).matches(&Subject {
            operation: Operation::Create,
            group: "apps",
            version: "v1",
            resource,
            subresource,
            namespaced,
        })
    }

    #[test]
    fn rules_choose_by_operation_group_version_resource_and_scope() {
        let rule = |resources: &str, scope: &str| {
            json!({
                "operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["*"],
                "resources": [resources], "scope": scope,
            })
        };
        assert!(matches(&rule("deployments", "*"), "deployments", "", true));
        assert!(!matches(
            &rule("deployments", "*"),
            "deployments",
            "scale",
            true
        ));
        assert!(matches(
            &rule("deployments/*", "*"),
            "deployments",
            "scale",
            true
        ));
        assert!(matches(
            &rule("deployments/*", "*"),
            "deployments",
            "",
            true
        ));
        assert!(matches(&rule("*/scale", "*"), "deployments", "scale", true));
        assert!(!matches(&rule("*", "*"), "deployments", "scale", true));
        assert!(matches(&rule("*", "Namespaced"), "deployments", "", true));
        assert!(!matches(&rule("*", "Cluster"), "deployments", "", true));
        let mut other = rule("*", "*");
        other["operations"] = json!(["DELETE"]);
        assert!(!matches(&other, "deployments", "", true));
    }
}
