//! What pods ask of their network that it does not do: said by events, since the pod runs all the same.

use davit_pods::host_ports::host_ports;
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;

const BANDWIDTH: [&str; 2] = [
    "kubernetes.io/ingress-bandwidth",
    "kubernetes.io/egress-bandwidth",
];

/// What the network of this node does for a pod beyond connecting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkAbilities {
    /// Ports of the host lead to the pod's (`hostPort`).
    pub host_ports: bool,
    /// The bandwidth annotations are kept to.
    pub bandwidth: bool,
}

impl NetworkAbilities {
    /// davit's own, and those of others, which do what they are configured for. What cannot be done fails the pod's
    /// sandbox.
    pub const ALL: Self = Self {
        host_ports: true,
        bandwidth: true,
    };

    /// What the pod asks for and does not get: reasons and messages of events.
    pub(crate) fn missing(self, pod: &Pod) -> Vec<(&'static str, String)> {
        let mut missing = Vec::new();
        if pod.host_network() {
            return missing;
        }
        if !self.host_ports {
            let taken = host_ports(pod);
            let ports: Vec<String> = taken.iter().map(|port| port.port.to_string()).collect();
            if !ports.is_empty() {
                let ports = ports.join(", ");
                let text =
                    format!("this node's pods are on no network: hostPort {ports} leads nowhere");
                missing.push(("HostPortNotSupported", text));
            }
        }
        if !self.bandwidth {
            let annotations = pod.metadata.annotations.as_ref();
            let asked = |name: &&str| annotations.is_some_and(|map| map.contains_key(*name));
            for name in BANDWIDTH.iter().filter(|name| asked(name)) {
                let text = format!(
                    "annotation {name} has no effect: this node's network limits no bandwidth"
                );
                missing.push(("BandwidthNotLimited", text));
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_network_does_not_do_is_said() {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "n", "annotations": {"kubernetes.io/egress-bandwidth": "1M"}},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080}]}]},
        });
        let reasons = |pod: &serde_json::Value, abilities: NetworkAbilities| -> Vec<&'static str> {
            let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
            let missing = abilities.missing(&pod);
            missing.into_iter().map(|(reason, _)| reason).collect()
        };
        let none = NetworkAbilities {
            host_ports: false,
            bandwidth: false,
        };
        assert_eq!(
            reasons(&pod, none),
            ["HostPortNotSupported", "BandwidthNotLimited"]
        );
        let own = NetworkAbilities {
            host_ports: true,
            bandwidth: false,
        };
        assert_eq!(reasons(&pod, own), ["BandwidthNotLimited"]);
        assert!(reasons(&pod, NetworkAbilities::ALL).is_empty());
        pod["spec"]["hostNetwork"] = json!(true);
        assert!(reasons(&pod, none).is_empty());
    }
}
