//! Whether the devices that a pending pod asks for are offered at all, and who holds them.

use crate::devices::{Answer, collect};
use crate::page::Page;
use anyhow::{Context, Result};
use davit_pods::pod::PodExt;
use davit_pods::resources::{amount, pod_requests};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use std::collections::BTreeMap;

/// How many nodes are asked who holds their devices.
const NODES: usize = 8;
/// Names that differ in more letters are not taken for one another.
const LETTERS: usize = 3;

/// What nodes offer of extended resources: node, resource, number.
type Offers = BTreeMap<String, BTreeMap<String, i64>>;

/// What is to be said about the extended resources of a pending pod.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// A sentence each.
    pub(super) sentences: Vec<String>,
    /// Rows of node, resource, device, pod, container.
    holders: Vec<Vec<String>>,
}

impl Findings {
    /// For people; empty when there is nothing to say.
    pub(super) fn show(&self, page: &mut Page) {
        for sentence in &self.sentences {
            page.line(sentence);
        }
        if !self.holders.is_empty() {
            let header = ["NODE", "RESOURCE", "DEVICE", "POD", "CONTAINER", "CLAIM"];
            page.part("Who holds what is in use:");
            page.table(&header, &self.holders);
        }
    }
}

/// Looks at what nodes offer, and asks some of those that offer enough who holds it.
///
/// # Errors
/// The nodes cannot be listed.
pub(super) async fn of_pod(client: &kube::Client, pod: &Pod) -> Result<Findings> {
    let wanted: BTreeMap<String, i64> = pod_requests(pod)
        .into_iter()
        .filter(|(name, count)| is_extended(name) && *count > 0)
        .collect();
    let claims = pod.pod_spec().resource_claims.iter().flatten().count();
    if wanted.is_empty() && claims == 0 {
        return Ok(Findings::default());
    }
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await;
    let nodes = nodes.context("cannot list nodes")?.items;
    let offers = offers(&nodes);
    let mut asked: Vec<&String> = offers
        .iter()
        .filter(|(_, offered)| claims > 0 || wanted.keys().any(|name| offered.contains_key(name)))
        .map(|(node, _)| node)
        .collect();
    asked.truncate(NODES);
    let asking = asked.into_iter().map(|node| collect(client, Some(node)));
    // A node that went meanwhile says nothing about the others.
    let answers: Vec<Answer> = futures::future::join_all(asking)
        .await
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    Ok(Findings {
        sentences: sentences(&wanted, &offers),
        holders: holders(&answers, |resource, claim| {
            wanted.contains_key(resource) || (claims > 0 && !claim.is_empty())
        }),
    })
}

fn is_extended(name: &str) -> bool {
    let domain = name.split_once('/').map(|(domain, _)| domain);
    domain.is_some_and(|d| d != "kubernetes.io" && !d.ends_with(".kubernetes.io"))
}

fn offers(nodes: &[Node]) -> Offers {
    let of = |node: &Node| {
        let status = node.status.as_ref();
        let allocatable = status.and_then(|s| s.allocatable.as_ref());
        let extended = allocatable
            .into_iter()
            .flatten()
            .filter(|(name, _)| is_extended(name));
        let counts = extended.map(|(name, q)| (name.clone(), amount(name, q)));
        (
            node.metadata.name.clone().unwrap_or_default(),
            counts.collect(),
        )
    };
    nodes.iter().map(of).collect()
}

/// What no node can ever give.
fn sentences(wanted: &BTreeMap<String, i64>, offers: &Offers) -> Vec<String> {
    let mut out = Vec::new();
    for (name, count) in wanted {
        let most = offers
            .iter()
            .filter_map(|(node, offered)| Some((*offered.get(name)?, node)))
            .max_by_key(|(offered, _)| *offered);
        match most {
            None => {
                let known = offers.values().flat_map(BTreeMap::keys);
                let meant = nearest(name, known);
                let meant = meant.map(|m| format!("; did you mean {m}?"));
                out.push(format!(
                    "No node offers {name}{}",
                    meant.unwrap_or_else(|| ".".to_owned())
                ));
            }
            Some((most, node)) if most < *count => out.push(format!(
                "No node has {count} of {name}; the most is {most}, on node {node}."
            )),
            Some(_) => {}
        }
    }
    out
}

/// The known name that is most like it, if one is.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let distance = |other: &String| match last(other) == last(name) {
        true => 0,
        false => letters(name, other),
    };
    let best = known.min_by_key(|other| distance(other))?;
    (distance(best) <= LETTERS).then_some(best)
}

/// How many letters must be changed, added or left out to make one of the other (Levenshtein).
fn letters(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

fn holders(answers: &[Answer], concerns: impl Fn(&str, &str) -> bool) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (node, answer) in answers {
        let Ok(table) = answer else { continue };
        let all = table.devices.iter().chain(&table.held);
        for device in all.filter(|d| concerns(&d.resource, &d.claim)) {
            for holder in &device.holders {
                let or_dash = |text: &str| match text {
                    "" => "-".to_owned(),
                    text => text.to_owned(),
                };
                rows.push(vec![
                    node.clone(),
                    device.resource.clone(),
                    device.id.clone(),
                    format!("{}/{}", holder.namespace, holder.pod),
                    or_dash(&holder.container),
                    or_dash(&device.claim),
                ]);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(pairs: &[(&str, &str, i64)]) -> Offers {
        let mut offers = Offers::new();
        for (node, name, count) in pairs {
            let of_node = offers.entry((*node).to_owned()).or_default();
            of_node.insert((*name).to_owned(), *count);
        }
        offers
    }

    fn said(name: &str, count: i64) -> Vec<String> {
        let offers = offered(&[
            ("a", "vendor.example/gpu", 2),
            ("b", "vendor.example/gpu", 4),
            ("b", "vendor.example/nic", 1),
        ]);
        sentences(&BTreeMap::from([(name.to_owned(), count)]), &offers)
    }

    #[test]
    fn what_no_node_has_is_said() {
        let wanted = "No node has 8 of vendor.example/gpu; the most is 4, on node b.";
        assert_eq!(said("vendor.example/gpu", 8), [wanted]);
        assert!(said("vendor.example/gpu", 4).is_empty());
    }

    #[test]
    fn what_nobody_offers_may_have_been_meant_otherwise() {
        let meant = "; did you mean vendor.example/gpu?";
        for name in [
            "vendor.example/gpus",
            "vendor.exmaple/gpu",
            "other.example/gpu",
        ] {
            assert_eq!(said(name, 1), [format!("No node offers {name}{meant}")]);
        }
        assert_eq!(
            said("x.example/camera", 1),
            ["No node offers x.example/camera."]
        );
    }

    #[test]
    fn letters_are_counted() {
        assert_eq!(letters("", "ab"), 2);
        assert_eq!(letters("kitten", "sitting"), 3);
        assert_eq!(letters("same", "same"), 0);
    }
}
