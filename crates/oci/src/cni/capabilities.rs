//! What plugins may ask for by their `capabilities`: conventions of CNI, and those containerd added.

use crate::network::{Bandwidth, PodNetwork, WISHED_ADDRESSES as IPS};
use davit_proto::cri::v1 as cri;
use serde_json::{Map, Value, json};

/// `runtimeConfig` by capability; addresses are the capability `ips`. Whoever creates a pod chooses its address by the annotation, another pod's, too: it is
/// taken only where the node's operator lets pods choose (`wished_addresses`).
pub(super) fn of_pod(
    pod: &PodNetwork,
    wished_addresses: bool,
) -> Result<Map<String, Value>, String> {
    let mut out = Map::new();
    out.insert(
        "io.kubernetes.cri.pod-annotations".to_owned(),
        json!(pod.annotations),
    );
    let ports: Vec<Value> = pod.ports.iter().filter_map(port).collect();
    if !ports.is_empty() {
        out.insert("portMappings".to_owned(), Value::Array(ports));
    }
    if let Some(bandwidth) = rates(pod.bandwidth()?) {
        out.insert("bandwidth".to_owned(), bandwidth);
    }
    if let Some(dns) = &pod.dns {
        let dns = json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
        out.insert("dns".to_owned(), dns);
    }
    if !pod.cgroup_parent.is_empty() {
        out.insert("cgroupPath".to_owned(), json!(pod.cgroup_parent));
    }
    if let Some(list) = pod.annotations.get(IPS) {
        if !wished_addresses {
            return Err(format!(
                "annotation {IPS}: pods choose no addresses on this node, which was started without --cni-pod-ips"
            ));
        }
        let ips: Vec<&str> = list.split(',').map(str::trim).collect();
        for ip in &ips {
            let address = ip.split_once('/').map_or(*ip, |(address, _)| address);
            if address.parse::<std::net::IpAddr>().is_err() {
                return Err(format!("annotation {IPS}: {ip:?} is not an IP address"));
            }
        }
        out.insert("ips".to_owned(), json!(ips));
    }
    Ok(out)
}

/// A port that is open on the host; others need no plugin.
fn port(mapping: &cri::PortMapping) -> Option<Value> {
    let protocol = match cri::Protocol::try_from(mapping.protocol) {
        Ok(cri::Protocol::Udp) => "udp",
        Ok(cri::Protocol::Sctp) => "sctp",
        _ => "tcp",
    };
    (mapping.host_port > 0).then(|| {
        json!({
            "hostPort": mapping.host_port,
            "containerPort": mapping.container_port,
            "protocol": protocol,
            "hostIP": mapping.host_ip,
        })
    })
}

/// Rates in bits a second.
fn rates(bandwidth: Bandwidth) -> Option<Value> {
    let Bandwidth { ingress, egress } = bandwidth;
    if ingress.is_none() && egress.is_none() {
        return None;
    }
    let burst = |rate: Option<u64>| if rate.is_some() { u32::MAX } else { 0 };
    Some(json!({
        "ingressRate": ingress.unwrap_or(0),
        "ingressBurst": burst(ingress),
        "egressRate": egress.unwrap_or(0),
        "egressBurst": burst(egress),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
    const EGRESS: &str = "kubernetes.io/egress-bandwidth";

    fn pod(annotations: &[(&str, &str)]) -> PodNetwork {
        PodNetwork {
            annotations: annotations
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..PodNetwork::default()
        }
    }

    #[test]
    fn ports_without_a_host_port_need_no_plugin() {
        let mut pod = pod(&[]);
        assert!(!of_pod(&pod, false).unwrap().contains_key("portMappings"));
        let mapping = |protocol: cri::Protocol, host_port| cri::PortMapping {
            protocol: protocol as i32,
            container_port: 80,
            host_port,
            host_ip: String::new(),
        };
        pod.ports = vec![
            mapping(cri::Protocol::Tcp, 0),
            mapping(cri::Protocol::Udp, 8080),
        ];
        let expected =
            json!([{"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": ""}]);
        assert_eq!(of_pod(&pod, false).unwrap()["portMappings"], expected);
    }

    #[test]
    fn bandwidth_annotations() {
        assert!(!of_pod(&pod(&[]), false).unwrap().contains_key("bandwidth"));
        let limited = of_pod(&pod(&[(INGRESS, "1M")]), false).unwrap();
        let expected = json!({
            "ingressRate": 1_000_000, "ingressBurst": u32::MAX, "egressRate": 0, "egressBurst": 0,
        });
        assert_eq!(limited["bandwidth"], expected);
        for (text, cause) in [
            ("999", "resource is unreasonably small (< 1kbit)"),
            ("2P", "resource is unreasonably large (> 1Pbit)"),
            ("fast", ""),
        ] {
            let error = of_pod(&pod(&[(EGRESS, text)]), false).unwrap_err();
            assert!(error.starts_with("failed to get bandwidth info from annotations: "));
            assert!(error.ends_with(cause), "{error}");
        }
    }

    #[test]
    fn addresses_by_annotation() {
        let asked = of_pod(&pod(&[(IPS, "10.0.0.9/24, fd00::9")]), true).unwrap();
        assert_eq!(asked["ips"], json!(["10.0.0.9/24", "fd00::9"]));
        assert!(of_pod(&pod(&[(IPS, "10.0.0.x")]), true).is_err());
    }
}
