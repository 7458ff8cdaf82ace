//! Ports of the node that pods take: each is given out once.

use crate::pod::{PodExt, Role};
use k8s_openapi::api::core::v1::Pod;

const ANY_ADDRESS: &str = "0.0.0.0";

/// A port of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodHostPort {
    /// The number.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The address it is taken on; `0.0.0.0` for all.
    pub address: String,
}

impl PodHostPort {
    /// Whether one of the two can only be had without the other.
    pub fn conflicts(&self, other: &Self) -> bool {
        let same_address = self.address == other.address
            || [&self.address, &other.address]
                .iter()
                .any(|a| *a == ANY_ADDRESS);
        self.port == other.port && self.protocol == other.protocol && same_address
    }
}

/// The ports of the node that the pod's containers and sidecars take.
pub fn host_ports(pod: &Pod) -> Vec<PodHostPort> {
    let mut taken = Vec::new();
    for (role, container) in pod.all_containers() {
        if !matches!(role, Role::Main | Role::Sidecar) {
            continue;
        }
        for port in container.ports.iter().flatten() {
            let Some(number) = port.host_port.filter(|number| *number > 0) else {
                continue;
            };
            let text = |text: &Option<String>, default: &str| {
                let text = text.as_deref().filter(|text| !text.is_empty());
                text.unwrap_or(default).to_owned()
            };
            taken.push(PodHostPort {
                port: number,
                protocol: text(&port.protocol, "TCP"),
                address: text(&port.host_ip, ANY_ADDRESS),
            });
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_and_protocols_keep_ports_apart() {
        let ports = |ports: serde_json::Value| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {
                "initContainers": [{"name": "i", "ports": [{"containerPort": 1, "hostPort": 1}]},
                    {"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 2, "hostPort": 2}]}],
                "containers": [{"name": "c", "ports": ports}]}});
            host_ports(&serde_json::from_value(pod).unwrap())
        };
        let of = |port: serde_json::Value| ports(json!([port])).pop().unwrap();
        let plain = ports(json!([{"containerPort": 80}, {"containerPort": 80, "hostPort": 80}]));
        assert_eq!(plain.iter().map(|p| p.port).collect::<Vec<_>>(), [2, 80]);
        let all = of(json!({"containerPort": 8, "hostPort": 80}));
        let one = of(json!({"containerPort": 9, "hostPort": 80, "hostIP": "10.0.0.1"}));
        let two = of(json!({"containerPort": 9, "hostPort": 80, "hostIP": "10.0.0.2"}));
        let udp = of(json!({"containerPort": 9, "hostPort": 80, "protocol": "UDP"}));
        assert!(all.conflicts(&one) && two.conflicts(&all) && one.conflicts(&one));
        assert!(!one.conflicts(&two) && !udp.conflicts(&all));
    }
}
