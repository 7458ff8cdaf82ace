//! Plugins that tie the pods of a namespace to nodes: PodNodeSelector and
//! PodTolerationRestriction.

use std::collections::BTreeMap;

use davit_api::status::Status;
use serde_json::{Value, json};

use super::config::{Config, ConfigError};
use super::{Attributes, Mutating, Operation, Validating, forbidden};

const SELECTOR: &str = "scheduler.alpha.kubernetes.io/node-selector";
const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const WHITELIST: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const CLUSTER_DEFAULT: &str = "clusterDefaultNodeSelector";

async fn namespace_annotation(
    attributes: &Attributes<'_>,
    key: &str,
) -> Result<Option<String>, Status> {
    let namespace = attributes
        .server
        .object("", "namespaces", "", attributes.namespace)
        .await?;
    Ok(namespace.and_then(|namespace| {
        namespace["metadata"]["annotations"][key]
            .as_str()
            .map(str::to_owned)
    }))
}

/// Pods get their namespace's node selector.
#[derive(Clone)]
pub(super) struct PodNodeSelector {
    selectors: BTreeMap<String, String>,
}

impl PodNodeSelector {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let entries = config
            .of("PodNodeSelector")
            .and_then(|value| value["podNodeSelectorPluginConfig"].as_object());
        let mut selectors = BTreeMap::new();
        for (namespace, selector) in entries.into_iter().flatten() {
            let selector = selector.as_str().unwrap_or_default();
            if parse(selector).is_none() {
                return Err(ConfigError::Plugin {
                    plugin: "PodNodeSelector",
                    detail: format!("node selector {selector:?} of {namespace} is malformed"),
                });
            }
            selectors.insert(namespace.clone(), selector.to_owned());
        }
        Ok(Self { selectors })
    }

    async fn wanted(
        &self,
        attributes: &Attributes<'_>,
    ) -> Result<BTreeMap<String, String>, Status> {
        let annotated = namespace_annotation(attributes, SELECTOR).await?;
        let text = annotated
            .or_else(|| self.selectors.get(CLUSTER_DEFAULT).cloned())
            .unwrap_or_default();
        parse(&text).ok_or_else(|| {
            Status::internal(format!(
                "node selector {text:?} of the namespace is malformed"
            ))
        })
    }
}

/// `key=value,key=value`.
fn parse(text: &str) -> Option<BTreeMap<String, String>> {
    let pairs = text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=')?;
            Some((key.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

impl Mutating for PodNodeSelector {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let creates = attributes.is("", "pods") && attributes.operation == Operation::Create;
        let Some(pod) = object.filter(|_| creates) else {
            return Ok(());
        };
        for (key, value) in self.wanted(attributes).await? {
            if !pod["spec"]["nodeSelector"].is_object() {
                pod["spec"]["nodeSelector"] = json!({});
            }
            let held = &pod["spec"]["nodeSelector"][&key];
            if held.as_str().is_some_and(|held| held != value) {
                let why =
                    "pod node label selector conflicts with its namespace node label selector";
                return Err(forbidden(attributes, Some(pod), why));
            }
            pod["spec"]["nodeSelector"][&key] = json!(value);
        }
        Ok(())
    }
}

impl Validating for PodNodeSelector {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let creates = attributes.is("", "pods") && attributes.operation == Operation::Create;
        let Some(pod) = object.filter(|_| creates) else {
            return Ok(());
        };
        let Some(allowed) = self.selectors.get(attributes.namespace) else {
            return Ok(());
        };
        let allowed = parse(allowed).unwrap_or_default();
        let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
        let fits = selector
            .into_iter()
            .flatten()
            .all(|(key, value)| allowed.get(key).map(String::as_str) == value.as_str());
        if fits {
            return Ok(());
        }
        let why = "pod node label selector labels conflict with its namespace whitelist";
        Err(forbidden(attributes, object, why))
    }
}

/// Pods get their namespace's tolerations and have no others than its list allows.
#[derive(Clone)]
pub(super) struct PodTolerationRestriction {
    defaults: Vec<Value>,
    whitelist: Vec<Value>,
}

impl PodTolerationRestriction {
    pub(super) fn new(config: &Config) -> Self {
        let of = |key: &str| {
            config
                .of("PodTolerationRestriction")
                .and_then(|value| value[key].as_array().cloned())
                .unwrap_or_default()
        };
        Self {
            defaults: of("default"),
            whitelist: of("whitelist"),
        }
    }

    async fn list(
        &self,
        attributes: &Attributes<'_>,
        key: &str,
        otherwise: &[Value],
    ) -> Result<Vec<Value>, Status> {
        match namespace_annotation(attributes, key).await? {
            None => Ok(otherwise.to_vec()),
            Some(text) if text.is_empty() => Ok(Vec::new()),
            Some(text) => serde_json::from_str(&text).map_err(Status::internal),
        }
    }
}

fn covers(allowed: &Value, toleration: &Value) -> bool {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let same =
        |key: &str| text(allowed, key).is_empty() || text(allowed, key) == text(toleration, key);
    let exists = text(allowed, "operator") == "Exists";
    same("key")
        && same("effect")
        && (exists || text(allowed, "value") == text(toleration, "value"))
        && (allowed["tolerationSeconds"].is_null()
            || toleration["tolerationSeconds"].as_i64() <= allowed["tolerationSeconds"].as_i64())
}

impl Mutating for PodTolerationRestriction {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let creates = attributes.is("", "pods") && attributes.operation == Operation::Create;
        let Some(pod) = object.filter(|_| creates) else {
            return Ok(());
        };
        let defaults = self.list(attributes, DEFAULTS, &self.defaults).await?;
        let mut held = pod["spec"]["tolerations"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for wanted in defaults {
            let same = |toleration: &Value| {
                ["key", "effect", "operator", "value"]
                    .iter()
                    .all(|k| toleration[*k] == wanted[*k])
            };
            if !held.iter().any(same) {
                held.push(wanted);
            }
        }
        if !held.is_empty() {
            pod["spec"]["tolerations"] = Value::Array(held);
        }
        Ok(())
    }
}

impl Validating for PodTolerationRestriction {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let writes = attributes.is("", "pods") && attributes.writes();
        let Some(pod) = object.filter(|_| writes) else {
            return Ok(());
        };
        let held = pod["spec"]["tolerations"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let allowed = self.list(attributes, WHITELIST, &self.whitelist).await?;
        if allowed.is_empty() || held.is_empty() {
            return Ok(());
        }
        if held
            .iter()
            .all(|toleration| allowed.iter().any(|a| covers(a, toleration)))
        {
            return Ok(());
        }
        let why = "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist";
        Err(forbidden(attributes, object, why))
    }
}
