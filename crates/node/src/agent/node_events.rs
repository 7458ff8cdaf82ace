//! What is said on the node when it comes and when its status changes, in the kubelet's words.

use crate::context::Context;
use k8s_openapi::api::core::v1::{Node, NodeStatus};

/// Conditions with the reasons of the events for True and False.
const CONDITIONS: [(&str, &str, &str); 4] = [
    (
        "MemoryPressure",
        "NodeHasInsufficientMemory",
        "NodeHasSufficientMemory",
    ),
    (
        "DiskPressure",
        "NodeHasDiskPressure",
        "NodeHasNoDiskPressure",
    ),
    (
        "PIDPressure",
        "NodeHasInsufficientPID",
        "NodeHasSufficientPID",
    ),
    ("Ready", "NodeReady", "NodeNotReady"),
];

/// The agent has begun.
pub(super) fn started(ctx: &Context) {
    let node = ctx.node_reference();
    ctx.recorder.normal(&node, "Starting", "Starting kubelet.");
}

/// What was written into the status.
pub(super) fn reported(ctx: &Context, old: &NodeStatus, new: &NodeStatus) {
    for reason in transitions(old, new) {
        say(ctx, reason);
    }
    if let Some(boot) = booted(old, new) {
        let name = &ctx.options.node_name;
        let text = format!("Node {name} has been rebooted, boot id: {boot}");
        ctx.recorder
            .warning(&ctx.node_reference(), "Rebooted", text);
    }
}

/// Whether pods may come has changed, by what somebody wrote into the Node; `known` is what was seen last.
pub(super) fn schedulable(ctx: &Context, node: &Node, known: &mut bool) {
    let closed = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    if *known == closed {
        return;
    }
    *known = closed;
    let reason = match closed {
        true => "NodeNotSchedulable",
        false => "NodeSchedulable",
    };
    say(ctx, reason);
}

fn say(ctx: &Context, reason: &str) {
    let text = format!("Node {} status is now: {reason}", ctx.options.node_name);
    ctx.recorder.normal(&ctx.node_reference(), reason, text);
}

/// The reasons of the conditions that have changed, or are new.
fn transitions(old: &NodeStatus, new: &NodeStatus) -> Vec<&'static str> {
    fn status<'a>(of: &'a NodeStatus, kind: &str) -> Option<&'a str> {
        let mut all = of.conditions.iter().flatten();
        let found = all.find(|condition| condition.type_ == kind)?;
        Some(found.status.as_str())
    }
    let changed = CONDITIONS
        .iter()
        .filter(|(kind, ..)| status(old, kind) != status(new, kind));
    changed
        .filter_map(|(kind, yes, no)| match status(new, kind)? {
            "True" => Some(*yes),
            _ => Some(*no),
        })
        .collect()
}

/// The number of this boot, if the status is of another one.
fn booted<'a>(old: &NodeStatus, new: &'a NodeStatus) -> Option<&'a str> {
    let boot = &new.node_info.as_ref()?.boot_id;
    let before = &old.node_info.as_ref()?.boot_id;
    (!before.is_empty() && before != boot).then_some(boot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(conditions: &[(&str, &str)], boot: &str) -> NodeStatus {
        let conditions = conditions
            .iter()
            .map(|(kind, status)| json!({"type": kind, "status": status}));
        let info = json!({"bootID": boot, "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""});
        serde_json::from_value(
            json!({"conditions": conditions.collect::<Vec<_>>(), "nodeInfo": info}),
        )
        .unwrap()
    }

    #[test]
    fn changes_of_conditions_are_said_once() {
        let none = NodeStatus::default();
        let good = status(&[("MemoryPressure", "False"), ("Ready", "True")], "a");
        let wanted = ["NodeHasSufficientMemory", "NodeReady"];
        assert_eq!(transitions(&none, &good), wanted);
        assert!(transitions(&good, &good).is_empty());
        let short = status(&[("MemoryPressure", "True"), ("Ready", "False")], "a");
        let wanted = ["NodeHasInsufficientMemory", "NodeNotReady"];
        assert_eq!(transitions(&good, &short), wanted);
        // what the node controller wrote while nothing was heard
        let lost = status(&[("MemoryPressure", "False"), ("Ready", "Unknown")], "a");
        assert_eq!(transitions(&lost, &good), ["NodeReady"]);
    }

    #[test]
    fn a_new_boot_is_told_from_the_first() {
        let (a, b) = (status(&[], "a"), status(&[], "b"));
        assert_eq!(booted(&NodeStatus::default(), &a), None);
        assert_eq!(booted(&a, &a), None);
        assert_eq!(booted(&a, &b), Some("b"));
    }
}
