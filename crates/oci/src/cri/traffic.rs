//! What went over the network interfaces of pods, as an external runtime counts it.

use crate::runtime::{InterfaceTraffic, SandboxTraffic};
use davit_proto::cri::v1 as cri;

/// What a runtime says about the network interfaces of a pod, if it does.
pub(super) fn of(stats: cri::PodSandboxStats) -> Option<SandboxTraffic> {
    let attributes = stats.attributes?;
    let network = stats.linux?.network?;
    let number = |n: Option<cri::UInt64Value>| n.map_or(0, |n| n.value);
    let mut interfaces: Vec<cri::NetworkInterfaceUsage> = network.interfaces;
    interfaces.extend(network.default_interface);
    interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    interfaces.dedup_by(|a, b| a.name == b.name);
    let interfaces = interfaces.into_iter().filter(|i| i.name != "lo");
    Some(SandboxTraffic {
        sandbox_id: attributes.id,
        labels: attributes.labels,
        interfaces: interfaces
            .map(|usage| InterfaceTraffic {
                name: usage.name,
                received_bytes: number(usage.rx_bytes),
                receive_errors: number(usage.rx_errors),
                sent_bytes: number(usage.tx_bytes),
                send_errors: number(usage.tx_errors),
                ..InterfaceTraffic::default()
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interface_counts_once() {
        let usage = |name: &str| cri::NetworkInterfaceUsage {
            name: name.to_owned(),
            rx_bytes: Some(cri::UInt64Value { value: 7 }),
            ..cri::NetworkInterfaceUsage::default()
        };
        let network = cri::NetworkUsage {
            default_interface: Some(usage("eth0")),
            interfaces: vec![usage("lo"), usage("eth0"), usage("eth1")],
            ..cri::NetworkUsage::default()
        };
        let stats = cri::PodSandboxStats {
            attributes: Some(cri::PodSandboxAttributes {
                id: "s".to_owned(),
                ..cri::PodSandboxAttributes::default()
            }),
            linux: Some(cri::LinuxPodSandboxStats {
                network: Some(network),
                ..cri::LinuxPodSandboxStats::default()
            }),
            ..cri::PodSandboxStats::default()
        };
        let found = of(stats).unwrap();
        let names: Vec<&str> = found.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(
            (found.sandbox_id.as_str(), names),
            ("s", vec!["eth0", "eth1"])
        );
        assert_eq!(found.interfaces[0].received_bytes, 7);
        assert!(of(cri::PodSandboxStats::default()).is_none());
    }
}
