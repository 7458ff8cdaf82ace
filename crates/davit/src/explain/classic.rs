//! What claims of the classic API (`resource.k8s.io/v1alpha1`) wait for: what scheduler and drivers have told each other.

use crate::page::{Page, Paint, Tone};
use anyhow::{Context, Result};
use davit_api::classic::{PodScheduling, ResourceClaim, ResourceClass, claim_name};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use serde::Serialize;

/// How many nodes a sentence names.
const NODES: usize = 8;

/// What is known about one classic claim.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    namespace: String,
    name: String,
    /// One sentence.
    summary: String,
    class: String,
    /// Names of the pods it is reserved for.
    reserved_for: Vec<String>,
    /// For each pod that negotiates about the claim, what that waits for.
    negotiations: Vec<String>,
    /// What the driver has complained of.
    warnings: Vec<String>,
}

/// What decides about one claim.
struct Facts<'a> {
    claim: &'a ResourceClaim,
    class: Option<&'a ResourceClass>,
}

fn name_of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

async fn get<K>(api: kube::Api<K>, name: &str, what: &str) -> Result<Option<K>>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let found = api.get_opt(name).await;
    found.with_context(|| format!("cannot read {what} {name}"))
}

async fn class_of(client: &kube::Client, claim: &ResourceClaim) -> Result<Option<ResourceClass>> {
    let name = &claim.spec.resource_class_name;
    get(kube::Api::all(client.clone()), name, "the resource class").await
}

/// Explains a classic claim; `None` when there is none of that name.
pub(crate) async fn explain(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Explanation>> {
    let claims: kube::Api<ResourceClaim> = kube::Api::namespaced(client.clone(), namespace);
    let Some(claim) = get(claims, name, "the classic claim").await? else {
        return Ok(None);
    };
    let class = class_of(client, &claim).await?;
    let facts = Facts {
        claim: &claim,
        class: class.as_ref(),
    };
    let mut negotiations = Vec::new();
    if claim.status.allocation.is_none() {
        let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), namespace);
        let list: kube::Api<PodScheduling> = kube::Api::namespaced(client.clone(), namespace);
        let list = list.list(&ListParams::default()).await;
        for scheduling in list.context("cannot list negotiations")?.items {
            let pod = name_of(&scheduling.metadata).to_owned();
            let Some(pod) = get(pods.clone(), &pod, "the pod").await? else {
                continue;
            };
            let spec = pod.spec.as_ref();
            let entries = spec.and_then(|s| s.resource_claims.as_ref());
            for entry in entries.into_iter().flatten() {
                if claim_name(&pod, entry) == name {
                    let text = facts.waits(&entry.name, Some(&scheduling));
                    negotiations.push(format!("pod {}: {text}", name_of(&pod.metadata)));
                }
            }
        }
    }
    let events: kube::Api<Event> = kube::Api::namespaced(client.clone(), namespace);
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    let events = events.list(&about).await;
    let events = events.context("cannot read the claim's events")?.items;
    let warnings = events.into_iter().filter_map(|e| e.message).collect();
    Ok(Some(Explanation {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        summary: facts.summary(),
        class: claim.spec.resource_class_name.clone(),
        reserved_for: facts.users(),
        negotiations,
        warnings,
    }))
}

/// What each classic claim of a pod waits for, a sentence each.
pub(crate) async fn of_pod(client: &kube::Client, pod: &Pod) -> Result<Vec<String>> {
    let spec = pod.spec.as_ref();
    let entries = spec.and_then(|s| s.resource_claims.as_deref());
    let Some(entries) = entries.filter(|e| !e.is_empty()) else {
        return Ok(Vec::new());
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claims: kube::Api<ResourceClaim> = kube::Api::namespaced(client.clone(), namespace);
    let schedulings: kube::Api<PodScheduling> = kube::Api::namespaced(client.clone(), namespace);
    let pod_name = name_of(&pod.metadata);
    let scheduling = get(schedulings, pod_name, "the negotiation about pod").await?;
    let mut sentences = Vec::new();
    for entry in entries {
        let name = claim_name(pod, entry);
        let Some(claim) = get(claims.clone(), &name, "the classic claim").await? else {
            continue;
        };
        let class = class_of(client, &claim).await?;
        let facts = Facts {
            claim: &claim,
            class: class.as_ref(),
        };
        let text = facts.waits(&entry.name, scheduling.as_ref());
        sentences.push(format!("claim {} ({name}): {text}", entry.name));
    }
    Ok(sentences)
}

fn listed(nodes: &[String]) -> String {
    let shown: Vec<&str> = nodes.iter().take(NODES).map(String::as_str).collect();
    match nodes.len().saturating_sub(NODES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl Facts<'_> {
    fn driver(&self) -> &str {
        let status = &self.claim.status;
        let class = self.class.map(|c| c.driver_name.as_str());
        match status.driver_name.as_str() {
            "" => class.unwrap_or("(unknown)"),
            named => named,
        }
    }

    fn users(&self) -> Vec<String> {
        let users = self.claim.status.reserved_for.iter();
        users.map(|u| u.name.clone()).collect()
    }

    /// What holds whoever asks.
    fn settled(&self) -> Option<String> {
        let (status, driver) = (&self.claim.status, self.driver());
        if status.deallocation_requested {
            return Some(format!(
                "waits for driver {driver} to take the allocation back"
            ));
        }
        if status.allocation.is_some() {
            return Some(match self.users().as_slice() {
                [] => format!("allocated by driver {driver}, used by no pod"),
                users => format!(
                    "allocated by driver {driver}, reserved for {}",
                    users.join(", ")
                ),
            });
        }
        if self.class.is_none() {
            let class = &self.claim.spec.resource_class_name;
            return Some(format!("its class {class} does not exist"));
        }
        if !self.claim.is_delayed() {
            return Some(format!(
                "waits for driver {driver}, which is to allocate it at once (is its controller running?)"
            ));
        }
        None
    }

    fn summary(&self) -> String {
        let text = self.settled();
        text.unwrap_or_else(|| {
            let driver = self.driver();
            format!("not allocated yet: driver {driver} allocates it when a pod needs it")
        })
    }

    /// What the claim waits for when a pod is to have it.
    fn waits(&self, entry: &str, scheduling: Option<&PodScheduling>) -> String {
        if let Some(text) = self.settled() {
            return text;
        }
        let driver = self.driver();
        let Some(scheduling) = scheduling else {
            return "waits for the scheduler to propose nodes".to_owned();
        };
        let spec = &scheduling.spec;
        let proposed = spec.potential_nodes.len();
        let Some(told) = scheduling.of_claim(entry) else {
            return format!(
                "waits for driver {driver} to say which of {proposed} proposed nodes are unsuitable (is its controller running?)"
            );
        };
        let unsuitable = &told.unsuitable_nodes;
        let selected = &spec.selected_node;
        let ruled_out = match unsuitable.len() {
            0 => String::new(),
            n => format!(
                "; it rules out {n} of {proposed} proposed nodes: {}",
                listed(unsuitable)
            ),
        };
        if selected.is_empty() {
            format!("driver {driver} has spoken, the scheduler has selected no node yet{ruled_out}")
        } else if unsuitable.contains(selected) {
            format!("driver {driver} refuses the selected node {selected}{ruled_out}")
        } else {
            format!("waits for driver {driver} to allocate it for node {selected}{ruled_out}")
        }
    }
}

impl Explanation {
    /// For people.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let mut page = Page::new(paint);
        let title = format!("Classic ResourceClaim {}/{}: ", self.namespace, self.name);
        page.pieces(&[(Tone::Title, &title), (Tone::Plain, &self.summary)]);
        for negotiation in &self.negotiations {
            page.line(format!("  {negotiation}"));
        }
        if !self.warnings.is_empty() {
            page.toned(Tone::Title, "Warnings:");
            for warning in &self.warnings {
                page.toned(Tone::Doubtful, format!("  {warning}"));
            }
        }
        page.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_step_of_a_negotiation_is_told() {
        let mut claim: ResourceClaim = serde_json::from_value(
            json!({"metadata": {"name": "c"}, "spec": {"resourceClassName": "k"}}),
        )
        .unwrap();
        let class: ResourceClass =
            serde_json::from_value(json!({"metadata": {"name": "k"}, "driverName": "d"})).unwrap();
        let mut scheduling = PodScheduling::default();
        let said = |claim: &ResourceClaim, class, scheduling: Option<&PodScheduling>| {
            Facts { claim, class }.waits("cat", scheduling)
        };
        assert_eq!(said(&claim, None, None), "its class k does not exist");
        let class = Some(&class);
        assert!(said(&claim, class, None).contains("scheduler to propose"));
        scheduling.spec.potential_nodes = vec!["a".into(), "b".into()];
        assert!(said(&claim, class, Some(&scheduling)).contains("driver d to say which of 2"));
        scheduling.spec.selected_node = "a".into();
        scheduling.status = serde_json::from_value(
            json!({"resourceClaims": [{"name": "cat", "unsuitableNodes": ["a"]}]}),
        )
        .unwrap();
        assert_eq!(
            said(&claim, class, Some(&scheduling)),
            "driver d refuses the selected node a; it rules out 1 of 2 proposed nodes: a"
        );
        scheduling.spec.selected_node = "b".into();
        assert!(
            said(&claim, class, Some(&scheduling))
                .starts_with("waits for driver d to allocate it for node b")
        );
        claim.status = serde_json::from_value(json!({"driverName": "d", "allocation": {},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}))
        .unwrap();
        let text = said(&claim, class, None);
        assert_eq!(text, "allocated by driver d, reserved for p");
        claim.status.deallocation_requested = true;
        assert!(said(&claim, class, None).contains("take the allocation back"));
    }
}
