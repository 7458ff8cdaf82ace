//! How a node is, and what of it is held, drawn by its NUMA nodes.

use crate::numa;
use crate::page::{Page, Paint, Tone};
use davit_api::devices::NodeDevices;
use k8s_openapi::api::core::v1::Node;
use serde::Serialize;

/// What is known about one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeExplanation {
    name: String,
    /// One sentence.
    summary: String,
    is_ready: bool,
    /// Conditions that are not as they should be, taints, and whether it takes new pods, a sentence each.
    findings: Vec<String>,
    /// What its agent says of devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<NodeDevices>,
    /// Why its agent could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices_unknown: Option<String>,
}

impl NodeExplanation {
    pub(crate) fn new(node: &Node, devices: Result<NodeDevices, String>) -> Self {
        let conditions = node
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten());
        let mut is_ready = false;
        let mut reason = "its agent has not reported yet".to_owned();
        let mut findings = Vec::new();
        for condition in conditions {
            let message = condition.message.as_deref().unwrap_or_default();
            let is_true = condition.status == "True";
            if condition.type_ == "Ready" {
                is_ready = is_true;
                reason = message.to_owned();
            } else if is_true {
                findings.push(format!("{}: {message}", condition.type_));
            }
        }
        let spec = node.spec.clone().unwrap_or_default();
        if spec.unschedulable == Some(true) {
            findings.push("it takes no new pods (cordoned)".to_owned());
        }
        for taint in spec.taints.unwrap_or_default() {
            let value = taint.value.map_or_else(String::new, |v| format!("={v}"));
            findings.push(format!("taint {}{value}:{}", taint.key, taint.effect));
        }
        let (devices, devices_unknown) = match devices {
            Ok(devices) => (Some(devices), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            summary: if is_ready {
                "ready".to_owned()
            } else {
                format!("not ready: {reason}")
            },
            is_ready,
            findings,
            devices,
            devices_unknown,
        }
    }

    /// For people.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let mut page = Page::new(paint);
        let title = format!("Node {}: ", self.name);
        let tone = if self.is_ready { Tone::Good } else { Tone::Bad };
        page.pieces(&[(Tone::Title, &title), (tone, &self.summary)]);
        for finding in &self.findings {
            page.line(format!("  {finding}"));
        }
        if let Some(devices) = &self.devices {
            page.gap();
            numa::places(&mut page, devices);
        }
        if let Some(why) = &self.devices_unknown {
            page.gap();
            page.line(format!("The node's device table could not be read: {why}"));
        }
        page.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::devices::NumaPlace;
    use serde_json::json;

    #[test]
    fn a_node_says_what_is_wrong_with_it() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "a"},
            "spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "False", "message": "no\x1b[2J network"},
                {"type": "DiskPressure", "status": "True", "message": "full"}]}}))
        .unwrap();
        let devices = NodeDevices {
            numa: vec![NumaPlace {
                cpus: "0-1".into(),
                memory: 1 << 30,
                id: 0,
            }],
            ..NodeDevices::default()
        };
        let expected = "\
Node a: not ready: no\u{fffd}[2J network
  DiskPressure: full
  it takes no new pods (cordoned)
  taint k:NoSchedule

╭─ NUMA node 0   CPUs 0-1   1024Mi
╰─
";
        let explained = NodeExplanation::new(&node, Ok(devices));
        assert_eq!(explained.text(Paint::NONE), expected);
        let silent = NodeExplanation::new(&Node::default(), Err("no answer".to_owned()));
        assert!(
            silent
                .text(Paint::NONE)
                .ends_with("could not be read: no answer\n")
        );
    }
}
