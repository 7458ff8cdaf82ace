//! Pods: bound once, never moved, never beyond what their node has.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{CLAIMS, Checks, Judged, NODES, PODS, is_over, items, text};
use crate::kubelet::RESOURCE;

/// CPU in thousandths, devices, pods.
fn demand(pod: &Value) -> [i64; 3] {
    let mut all = [0, 0, 1];
    for container in items(pod, "/spec/containers") {
        all[0] += milli(text(container, "/resources/requests/cpu"));
        let devices = container
            .pointer("/resources/limits")
            .map(|limits| &limits[RESOURCE]);
        all[1] += devices
            .and_then(Value::as_str)
            .map_or(0, |count| count.parse().unwrap_or(0));
    }
    all
}

fn milli(quantity: &str) -> i64 {
    match quantity.strip_suffix('m') {
        Some(milli) => milli.parse().unwrap_or(0),
        None => quantity.parse::<i64>().unwrap_or(0) * 1000,
    }
}

impl Checks {
    pub(super) fn pods(&self, judged: &Judged<'_>, found: &mut Vec<String>) {
        let key = judged.key;
        let Some(new) = judged.new else { return };
        let node = text(new, "/spec/nodeName");
        let phase = text(new, "/status/phase");
        if let Some(old) = judged.old {
            let before = text(old, "/spec/nodeName");
            if !before.is_empty() && before != node {
                found.push(format!("{key} is moved from {before} to {node:?}"));
            }
            if text(old, "/metadata/uid") != text(new, "/metadata/uid") {
                found.push(format!(
                    "{key} is another object without having been deleted"
                ));
            }
            if is_over(old) && phase != text(old, "/status/phase") {
                found.push(format!("{key} had ended and is {phase} now"));
            }
            if super::is_going(old) && !super::is_going(new) {
                found.push(format!("{key} was to go and stays"));
            }
        }
        let was_bound = judged
            .old
            .is_some_and(|old| !text(old, "/spec/nodeName").is_empty());
        if !node.is_empty() && !was_bound {
            self.fits(key, node, found);
        }
        let was_running = judged
            .old
            .is_some_and(|old| text(old, "/status/phase") == "Running");
        if phase == "Running" && !was_running {
            self.reserved(key, new, found);
        }
    }

    fn fits(&self, key: &str, node: &str, found: &mut Vec<String>) {
        // One that came back has said nothing of what it has.
        if self.has_just_gone(node) {
            return;
        }
        let mut node_key = self.below(NODES);
        let Some((_, object)) = node_key.find(|(key, _)| key.ends_with(&format!("/{node}"))) else {
            found.push(format!("{key} is bound to {node}, which is not there"));
            return;
        };
        let room = |name: &str| {
            object
                .pointer("/status/allocatable")
                .map(|room| &room[name])
        };
        let count = |name: &str| {
            room(name)
                .and_then(Value::as_str)
                .map_or(0, |q| q.parse().unwrap_or(0))
        };
        let room = [
            milli(
                object
                    .pointer("/status/allocatable/cpu")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            ),
            count(RESOURCE),
            count("pods"),
        ];
        let mut used = [0; 3];
        for (_, pod) in self.below(PODS) {
            if text(pod, "/spec/nodeName") == node && !is_over(pod) {
                for (used, wanted) in used.iter_mut().zip(demand(pod)) {
                    *used += wanted;
                }
            }
        }
        for (what, (used, room)) in ["cpu", RESOURCE, "pods"]
            .iter()
            .zip(used.into_iter().zip(room))
        {
            if used > room {
                found.push(format!(
                    "{key}: pods on {node} want {used} of {what}, it has {room}"
                ));
            }
        }
    }

    /// A pod runs with claims that are its own.
    fn reserved(&self, key: &str, pod: &Value, found: &mut Vec<String>) {
        let made: BTreeMap<&str, &str> = items(pod, "/status/resourceClaimStatuses")
            .map(|status| (text(status, "/name"), text(status, "/resourceClaimName")))
            .collect();
        for claim in items(pod, "/spec/resourceClaims") {
            let named = text(claim, "/resourceClaimName");
            let name = match named.is_empty() {
                true => made.get(text(claim, "/name")).copied().unwrap_or_default(),
                false => named,
            };
            let claim_key = format!("{CLAIMS}{}/{name}", text(pod, "/metadata/namespace"));
            let uid = text(pod, "/metadata/uid");
            let claim = self.objects.get(claim_key.as_str());
            let reserved = claim.is_some_and(|claim| {
                items(claim, "/status/reservedFor").any(|consumer| text(consumer, "/uid") == uid)
            });
            if !reserved {
                found.push(format!(
                    "{key} runs, and claim {name} is not reserved for it"
                ));
            }
        }
    }
}
