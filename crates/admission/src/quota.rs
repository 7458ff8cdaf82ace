//! ResourceQuota: what is about to be made is charged to the quotas of its namespace first.
//!
//! A charge is a compare-and-swap of the quota's status, so that any number of writers together
//! never exceed a quota. A quota whose status does not yet tell what is used is counted here, so
//! that it holds from the moment it is written. What is charged for a write that then fails is
//! given back by the controller's next count.

use davit_api::amounts::{Amounts, add, of_map};
use davit_api::quota::{self, Extended};
use davit_api::status::Status;
use davit_registry::storage::{StorageError, Stored};
use davit_registry::{ResourceInfo, errors, object};
use serde_json::{Map, Value, json};

use super::config::{Config, ConfigError};
use super::{Attributes, Operation, Validating, forbidden};

const NAME: &str = "ResourceQuota";
/// Races for one quota that a write loses before it gives up.
const ATTEMPTS: u32 = 100;

/// The plugin.
pub(super) struct ResourceQuota {
    limited: Vec<Limited>,
}

/// What may only be used where a quota counts it.
struct Limited {
    group: String,
    plural: String,
    /// Parts of resource names.
    parts: Vec<String>,
    /// Terms of scope selectors: objects that fit one need a quota with a term of its scope.
    scopes: Vec<Value>,
}

impl ResourceQuota {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let entries = config
            .of(NAME)
            .and_then(|v| v["limitedResources"].as_array());
        let limited = entries.into_iter().flatten().map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            let scopes = entry["matchScopes"].as_array().cloned().unwrap_or_default();
            for term in &scopes {
                let operator = term["operator"].as_str().unwrap_or_default();
                let is_known = matches!(operator, "In" | "NotIn" | "Exists" | "DoesNotExist");
                if term["scopeName"].as_str().is_none_or(str::is_empty) || !is_known {
                    return Err(ConfigError::Plugin {
                        plugin: NAME,
                        detail: format!("limitedResources.matchScopes: {term} is no selector term"),
                    });
                }
            }
            let parts = entry["matchContains"].as_array().into_iter().flatten();
            let parts = parts.filter_map(Value::as_str).map(str::to_owned).collect();
            Ok(Limited {
                group: text("apiGroup"),
                plural: text("resource"),
                parts,
                scopes,
            })
        });
        Ok(Self {
            limited: limited.collect::<Result<_, _>>()?,
        })
    }
}

/// What the request adds to quotas.
struct Charge {
    /// Everything the object takes: for quotas that did not count it before.
    whole: Amounts,
    /// What it takes beside what it took: for those that did.
    more: Amounts,
}

impl Charge {
    /// What a quota is charged.
    fn of(&self, attributes: &Attributes<'_>, quota: &Value) -> &Amounts {
        let row = &attributes.resource.row;
        let counted = |old: &Value| quota::in_scope(quota, row.group, row.plural, old);
        if attributes.old.is_some_and(counted) {
            &self.more
        } else {
            &self.whole
        }
    }
}

/// Whether a change of a pod puts it into other quotas: with and without a deadline are scopes.
fn changes_scope(attributes: &Attributes<'_>, object: &Value) -> bool {
    let limited = |pod: &Value| quota::is_terminating(&pod["spec"]);
    attributes
        .old
        .is_some_and(|old| limited(old) != limited(object))
}

/// What the request adds, if quotas are asked about it at all.
fn charge(attributes: &Attributes<'_>, object: &Value) -> Option<Charge> {
    let row = &attributes.resource.row;
    let (group, plural) = (row.group, row.plural);
    let grows = match (group, plural) {
        ("", "services" | "persistentvolumeclaims") => true,
        ("", "pods") => changes_scope(attributes, object),
        _ => false,
    };
    let counted = match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") => !attributes.resource.is_virtual(),
        (Operation::Update, "") => grows,
        (Operation::Update, "resize") => group.is_empty() && plural == "pods",
        _ => false,
    };
    if !counted || attributes.namespace.is_empty() {
        return None;
    }
    let mut whole = quota::usage(group, plural, object);
    let mut more = whole.clone();
    if attributes.operation == Operation::Update
        && let Some(old) = attributes.old
    {
        for (name, value) in quota::usage(group, plural, old) {
            let held = more.entry(name).or_default();
            *held -= value;
        }
    }
    // What becomes free is told by the controller, when the change has been stored.
    for amounts in [&mut whole, &mut more] {
        amounts.retain(|_, value| value.signum() > 0);
    }
    (!whole.is_empty()).then_some(Charge { whole, more })
}

fn only<'a>(amounts: &'a Amounts, like: &'a Amounts) -> impl Iterator<Item = String> + 'a {
    amounts
        .iter()
        .filter(|(name, _)| like.contains_key(*name))
        .map(|(name, value)| format!("{name}={value}"))
}

fn shown(amounts: &Amounts, like: &Amounts) -> String {
    only(amounts, like).collect::<Vec<_>>().join(",")
}

impl Validating for ResourceQuota {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        let Some(mut charge) = charge(attributes, object) else {
            return Ok(());
        };
        let snapshot = attributes.server.registry().snapshot();
        let Some(quotas) = snapshot.by_group_resource("", "resourcequotas") else {
            return Ok(());
        };
        let held = attributes
            .server
            .objects("", "resourcequotas", Some(attributes.namespace))
            .await?;
        if attributes.about("resource.k8s.io", "resourceclaims")
            && held
                .iter()
                .any(|quota| Extended::concerns(&of_map(quota.pointer("/spec/hard"))))
        {
            let extended = extended(attributes).await?;
            charge.whole = extended.usage("resource.k8s.io", "resourceclaims", object);
        }
        self.check_scopes(attributes, object, &held)?;
        let interesting = interesting(attributes, object, &charge.whole, &held);
        self.check_limited(attributes, object, &charge, &interesting)?;
        let mut charged: Vec<(&str, Amounts)> = Vec::new();
        for (quota, _) in &interesting {
            let (name, added) = (object::name(quota), charge.of(attributes, quota));
            if added.is_empty() {
                continue;
            }
            match charge_one(attributes, quotas, name, object, added).await {
                Ok(Some(paid)) => charged.push((name, paid)),
                Ok(None) => {}
                Err(status) => {
                    for (name, paid) in charged {
                        give_back(attributes, quotas, name, &paid).await;
                    }
                    return Err(status);
                }
            }
        }
        Ok(())
    }
}

/// A term of a scope selector as Kubernetes prints it.
fn term_text(term: &Value) -> String {
    let text = |key: &str| term[key].as_str().unwrap_or_default();
    let values = term["values"].as_array().into_iter().flatten();
    let values: Vec<&str> = values.filter_map(Value::as_str).collect();
    let (scope, operator, values) = (text("scopeName"), text("operator"), values.join(" "));
    format!("{{{scope} {operator} [{values}]}}")
}

/// Whether a quota that chooses the object has a term or a scope of this name.
fn covers(quota: &Value, scope: &Value, chooses: bool) -> bool {
    let spec = &quota["spec"];
    let terms = spec["scopeSelector"]["matchExpressions"].as_array();
    let mut terms = terms.into_iter().flatten();
    let mut plain = spec["scopes"].as_array().into_iter().flatten();
    chooses && (terms.any(|term| term["scopeName"] == *scope) || plain.any(|held| held == scope))
}

impl ResourceQuota {
    /// Objects in scopes that are limited need a quota of that scope.
    fn check_scopes(
        &self,
        attributes: &Attributes<'_>,
        object: &Value,
        quotas: &[Value],
    ) -> Result<(), Status> {
        let (group, plural) = (
            attributes.resource.row.group,
            attributes.resource.row.plural,
        );
        let chooses = |quota: &Value| quota::in_scope(quota, group, plural, object);
        let fits = |term: &&Value| {
            chooses(&json!({ "spec": { "scopeSelector": { "matchExpressions": [term] } } }))
        };
        let uncovered: Vec<String> = self
            .limited
            .iter()
            .filter(|limited| limited.group == group && limited.plural == plural)
            .flat_map(|limited| &limited.scopes)
            .filter(fits)
            .filter(|term| {
                let covered = |quota: &Value| covers(quota, &term["scopeName"], chooses(quota));
                !quotas.iter().any(covered)
            })
            .map(term_text)
            .collect();
        if uncovered.is_empty() {
            return Ok(());
        }
        let scopes = uncovered.join(" ");
        let why = format!("insufficient quota to match these scopes: [{scopes}]");
        Err(forbidden(attributes, Some(object), why))
    }

    fn check_limited(
        &self,
        attributes: &Attributes<'_>,
        object: &Value,
        charge: &Charge,
        quotas: &[(&Value, Amounts)],
    ) -> Result<(), Status> {
        let row = &attributes.resource.row;
        let added = match attributes.old {
            Some(_) => &charge.more,
            None => &charge.whole,
        };
        let mine = self
            .limited
            .iter()
            .filter(|limited| limited.group == row.group && limited.plural == row.plural);
        let limited: Vec<&str> = mine
            .flat_map(|limited| {
                added.keys().filter(|name| {
                    limited
                        .parts
                        .iter()
                        .any(|part| name.contains(part.as_str()))
                })
            })
            .filter(|name| !quotas.iter().any(|(_, hard)| hard.contains_key(*name)))
            .map(String::as_str)
            .collect();
        if limited.is_empty() {
            return Ok(());
        }
        let why = format!("insufficient quota to consume: {}", limited.join(","));
        Err(forbidden(attributes, Some(object), why))
    }
}

/// The quotas that count something of what is added, with their bounds.
fn interesting<'a>(
    attributes: &Attributes<'_>,
    object: &Value,
    added: &Amounts,
    quotas: &'a [Value],
) -> Vec<(&'a Value, Amounts)> {
    let row = &attributes.resource.row;
    let found = quotas.iter().filter_map(|quota| {
        let hard = of_map(quota.pointer("/spec/hard"));
        let counts = hard.keys().any(|name| {
            added.contains_key(name)
                || quota::counted_kinds(name).any(|kind| kind == (row.group, row.plural))
        });
        let chosen = counts && quota::in_scope(quota, row.group, row.plural, object);
        chosen.then_some((quota, hard))
    });
    found.collect()
}

/// Charges one quota; what was charged, if anything was stored.
async fn charge_one(
    attributes: &Attributes<'_>,
    quotas: &ResourceInfo,
    name: &str,
    object: &Value,
    added: &Amounts,
) -> Result<Option<Amounts>, Status> {
    let refuse = |why: String| Err(forbidden(attributes, Some(object), why));
    for _ in 0..ATTEMPTS {
        let Some(mut quota) = read(attributes, quotas, name).await? else {
            return Ok(None);
        };
        let hard = of_map(quota.value.pointer("/spec/hard"));
        if attributes.about("", "pods")
            && let Some(why) = quota::missing(object, &hard)
        {
            return refuse(format!("failed quota: {name}: {why}"));
        }
        let used = used(attributes, &quota.value, &hard).await?;
        let paid: Amounts = added
            .iter()
            .filter(|(name, _)| hard.contains_key(*name))
            .map(|(name, value)| (name.clone(), *value))
            .collect();
        let mut sum = used.clone();
        add(&mut sum, &paid);
        let exceeded: Amounts = paid
            .iter()
            .filter(|(name, value)| value.signum() > 0 && sum.get(*name) > hard.get(*name))
            .map(|(name, value)| (name.clone(), *value))
            .collect();
        if !exceeded.is_empty() {
            return refuse(format!(
                "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
                shown(&paid, &exceeded),
                shown(&used, &exceeded),
                shown(&hard, &exceeded)
            ));
        }
        if attributes.dry_run || paid.is_empty() {
            return Ok(None);
        }
        set_status(&mut quota.value, &hard, &sum);
        match write(attributes, quotas, name, &quota).await {
            Ok(true) => return Ok(Some(paid)),
            Ok(false) => {}
            Err(status) => return Err(status),
        }
    }
    Err(Status::conflict_modified(quotas.qualified(), name))
}

async fn read(
    attributes: &Attributes<'_>,
    quotas: &ResourceInfo,
    name: &str,
) -> Result<Option<Stored>, Status> {
    let found = quotas.storage.get(attributes.namespace, name).await;
    found.map_err(|error| errors::storage(error, quotas, name))
}

/// Whether the write won.
async fn write(
    attributes: &Attributes<'_>,
    quotas: &ResourceInfo,
    name: &str,
    quota: &Stored,
) -> Result<bool, Status> {
    let stored = quotas
        .storage
        .update(attributes.namespace, name, quota.revision, &quota.value)
        .await;
    match stored {
        Ok(_) => Ok(true),
        Err(StorageError::Changed(_)) => Ok(false),
        Err(error) => Err(errors::storage(error, quotas, name)),
    }
}

fn set_status(quota: &mut Value, hard: &Amounts, used: &Amounts) {
    let map = |amounts: &Amounts| -> Map<String, Value> {
        amounts
            .iter()
            .map(|(name, value)| (name.clone(), json!(value.to_string())))
            .collect()
    };
    let used: Amounts = used
        .iter()
        .filter(|(name, _)| hard.contains_key(*name))
        .map(|(name, value)| (name.clone(), *value))
        .collect();
    quota["status"] = json!({ "hard": map(hard), "used": map(&used) });
}

/// What extended resources of the namespace's claims are counted by.
async fn extended(attributes: &Attributes<'_>) -> Result<Extended, Status> {
    let (server, namespace) = (attributes.server, Some(attributes.namespace));
    let group = "resource.k8s.io";
    let classes = server.objects(group, "deviceclasses", None).await?;
    let pods = server.objects("", "pods", namespace).await?;
    let claims = server.objects(group, "resourceclaims", namespace).await?;
    Ok(Extended::new(&classes, pods, &claims))
}

/// What is used, by the status where it knows, else by a count.
async fn used(
    attributes: &Attributes<'_>,
    quota: &Value,
    hard: &Amounts,
) -> Result<Amounts, Status> {
    let mut used = of_map(quota.pointer("/status/used"));
    let mut kinds: Vec<(&str, &str)> = hard
        .keys()
        .filter(|name| !used.contains_key(*name))
        .flat_map(|name| quota::counted_kinds(name))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    for name in hard.keys() {
        used.entry(name.clone()).or_default();
    }
    let unknown: Vec<String> = {
        let known = of_map(quota.pointer("/status/used"));
        let unknown = hard.keys().filter(|name| !known.contains_key(*name));
        unknown.cloned().collect()
    };
    let extended = if unknown.iter().any(|name| Extended::concerns_name(name)) {
        extended(attributes).await?
    } else {
        Extended::default()
    };
    for (group, plural) in kinds {
        let objects = attributes
            .server
            .objects(group, plural, Some(attributes.namespace))
            .await?;
        for object in &objects {
            if !quota::in_scope(quota, group, plural, object) {
                continue;
            }
            for (name, value) in extended.usage(group, plural, object) {
                if unknown.contains(&name) {
                    let held = used.entry(name).or_default();
                    *held += value;
                }
            }
        }
    }
    Ok(used)
}

/// Takes a charge back after another quota refused. What fails here the controller repairs.
async fn give_back(attributes: &Attributes<'_>, quotas: &ResourceInfo, name: &str, paid: &Amounts) {
    for _ in 0..ATTEMPTS {
        let Ok(Some(mut quota)) = read(attributes, quotas, name).await else {
            return;
        };
        let hard = of_map(quota.value.pointer("/status/hard"));
        let mut used = of_map(quota.value.pointer("/status/used"));
        for (name, value) in paid {
            if let Some(held) = used.get_mut(name) {
                *held -= *value;
            }
        }
        set_status(&mut quota.value, &hard, &used);
        if !matches!(write(attributes, quotas, name, &quota).await, Ok(false)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_scope_needs_a_quota_that_names_it() {
        let term =
            json!({ "scopeName": "PriorityClass", "operator": "In", "values": ["high", "top"] });
        assert_eq!(term_text(&term), "{PriorityClass In [high top]}");
        let quota = json!({ "spec": { "scopeSelector": { "matchExpressions": [term] } } });
        assert!(covers(&quota, &json!("PriorityClass"), true));
        assert!(!covers(&quota, &json!("PriorityClass"), false));
        assert!(!covers(&quota, &json!("BestEffort"), true));
        let plain = json!({ "spec": { "scopes": ["BestEffort"] } });
        assert!(covers(&plain, &json!("BestEffort"), true));
    }
}
