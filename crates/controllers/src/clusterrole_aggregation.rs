//! ClusterRoles with an aggregation rule hold the rules of the ClusterRoles it selects.

use async_trait::async_trait;
use davit_api::labels::Selector;
use davit_client::{Informer, ObjectKey, path_segment};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, cluster_key, gone_is_none};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// How long to wait for the first list before a key is looked at again.
const NOT_SYNCED: Duration = Duration::from_secs(1);

struct Aggregation {
    client: kube::Client,
    roles: Informer<ClusterRole>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("clusterrole-aggregation-controller") else {
        return;
    };
    let roles = Informer::spawn(
        kube::Api::all(spawner.shared.clone()),
        watcher::Config::default(),
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
    let queue = spawner.controller(Aggregation {
        client: spawner.client.clone(),
        roles: roles.clone(),
    });
    let known = roles.clone();
    // any change may concern every role that gathers
    spawner.feed(&roles, &queue, move |changed: &ClusterRole| {
        let gathering = known.list().into_iter();
        let mut keys: Vec<ObjectKey> = gathering
            .filter(|role| role.aggregation_rule.is_some())
            .map(|role| ObjectKey::of(role.as_ref()))
            .collect();
        if changed.aggregation_rule.is_some() {
            keys.push(cluster_key(
                changed.metadata.name.as_deref().unwrap_or_default(),
            ));
        }
        keys
    });
}

/// The rules of the selected roles in the order of their names, each once.
fn gathered<'a>(
    role: &ClusterRole,
    all: impl Iterator<Item = &'a ClusterRole>,
) -> Result<Vec<PolicyRule>, Error> {
    let selectors = role
        .aggregation_rule
        .as_ref()
        .and_then(|rule| rule.cluster_role_selectors.as_ref());
    let selectors: Vec<Selector> = selectors
        .into_iter()
        .flatten()
        .map(|selector| {
            let value = serde_json::to_value(selector).unwrap_or_default();
            Selector::from_label_selector(Some(&value))
                .map_err(|error| Error::Invalid(format!("aggregation rule: {error}")))
        })
        .collect::<Result<_, _>>()?;
    let selected = |candidate: &ClusterRole| {
        let labels: Map<String, Value> = candidate
            .metadata
            .labels
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        candidate.metadata.name != role.metadata.name
            && selectors.iter().any(|selector| selector.matches(&labels))
    };
    let mut chosen: Vec<&ClusterRole> = all.filter(|candidate| selected(candidate)).collect();
    chosen.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let mut rules: Vec<PolicyRule> = Vec::new();
    for rule in chosen
        .into_iter()
        .flat_map(|role| role.rules.iter().flatten())
    {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
    Ok(rules)
}

#[async_trait]
impl Reconcile for Aggregation {
    const NAME: &'static str = "clusterrole-aggregation";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if self.roles.wait_synced(NOT_SYNCED).await.is_err() {
            return Ok(Next::After(NOT_SYNCED));
        }
        let Some(role) = self.roles.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        if role.aggregation_rule.is_none() {
            return Ok(Next::Wait);
        }
        let all = self.roles.list();
        let rules = gathered(&role, all.iter().map(AsRef::as_ref))?;
        if role.rules.as_deref().unwrap_or_default() == rules {
            return Ok(Next::Wait);
        }
        let api: kube::Api<ClusterRole> = kube::Api::all(self.client.clone());
        // Roles may be called nearly anything.
        let Some(name) = path_segment(&key.name) else {
            return Ok(Next::Wait);
        };
        let patch = json!({
            "metadata": { "resourceVersion": role.metadata.resource_version },
            "rules": rules,
        });
        let patched = api
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        gone_is_none(patched).context(|| format!("set the rules of cluster role {}", key.name))?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(value: Value) -> ClusterRole {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn item_188_rules_are_gathered_by_label_once_each_and_never_from_itself() {
        let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        let labels = json!({"gather": "me"});
        let all = [
            role(json!({"metadata": {"name": "b", "labels": labels}, "rules": [rule]})),
            role(json!({"metadata": {"name": "a", "labels": labels}, "rules": [rule]})),
            role(json!({"metadata": {"name": "c"}, "rules": [{"verbs": ["*"]}]})),
            role(json!({
                "metadata": {"name": "all", "labels": labels},
                "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": labels}]},
                "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["own"]}],
            })),
        ];
        let rules = gathered(&all[3], all.iter()).unwrap();
        assert_eq!(serde_json::to_value(rules).unwrap(), json!([rule]));
    }
}
