//! Rules about what comes from other machines and what may not: packets of tunnels, and what is sent to the gateway of the
//! pods.

use super::{A, ALL_LINKS, NEW, REDIRECTED, has, is_in, is_named, is_not_in, jump};
use crate::maps::Map;
use davit_net::nft::{Expression as Do, Transaction, Verdict};
use davit_netplan::Family;

/// `IPPROTO_UDP`.
const UDP: u8 = 17;
/// The chains of what comes in, or would be sent, as if it were of a tunnel.
pub(super) const TUNNEL_IN: &str = "tunnel-in";
pub(super) const TUNNEL_OUT: &str = "tunnel-out";
/// The chain of what is sent to the pods' gateway.
pub(super) const GATEWAY: &str = "gateway";

/// By which packets a tunnel is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TunnelPort {
    /// The port of UDP.
    pub(crate) port: u16,
    /// The number of the network (VNI).
    pub(crate) number: u32,
}

/// The name of the device by which the pods of nodes on other networks are reached: `davit.` and what the table's name ends
/// with.
pub(crate) fn tunnel_name(links: &str, family: Family) -> String {
    let own = links.strip_prefix(ALL_LINKS).unwrap_or(links);
    match family {
        Family::V4 => format!("davit.{own}"),
        Family::V6 => format!("davit6.{own}"),
    }
}

/// The rules about packets of tunnels; none where there is no tunnel.
pub(crate) fn tunnel(to: &mut Transaction, tunnel: Option<TunnelPort>) {
    to.flush_chain(TUNNEL_IN);
    to.flush_chain(TUNNEL_OUT);
    let Some(TunnelPort { port, number }) = tunnel else {
        return;
    };
    let is_udp_there = [
        Do::Protocol(A),
        Do::Equal(A, vec![UDP]),
        Do::DestinationPort(A),
        Do::Equal(A, port.to_be_bytes().to_vec()),
    ];
    let [_, number @ ..] = number.to_be_bytes();
    let mut of_strangers = is_udp_there.to_vec();
    of_strangers.extend([
        Do::TunnelNumber(A),
        Do::Equal(A, number.to_vec()),
        Do::SourceAddress(A),
        is_not_in(Map::Nodes, A),
        Do::Verdict(Verdict::Drop),
    ]);
    to.add_rule(TUNNEL_IN, &of_strangers);
    // On its way out what a pod sends becomes this node's, which the others believe: it may not look like the tunnel's. So
    // it is with what somebody sends to a Service whose endpoint is a node.
    let to_node = [
        Do::DestinationAddress(A),
        is_in(Map::Nodes, A),
        Do::Verdict(Verdict::Drop),
    ];
    let [bit, set] = has(A, REDIRECTED);
    let of_pod = [Do::InputName(A), Do::Equal(A, ALL_LINKS.into())];
    for mut rule in [of_pod.to_vec(), vec![Do::Status(A), bit, set]] {
        rule.extend_from_slice(&is_udp_there);
        rule.extend_from_slice(&to_node);
        to.add_rule(TUNNEL_OUT, &rule);
    }
}

/// What listens for pods at their gateway is for pods and nodes of the cluster: who else routes to it by this machine, at its
/// address or at that of a Service which leads there, is not heard. Ports of nodes lead there for everybody.
pub(super) fn gateway(to: &mut Transaction, links: &str) {
    let [bit, set] = has(A, NEW);
    to.add_rule(
        "policy-input",
        &[
            Do::State(A),
            bit,
            set,
            Do::DestinationAddress(A),
            is_in(Map::Gateways, A),
            jump(GATEWAY),
        ],
    );
    let back = || Do::Verdict(Verdict::Return);
    for device in [Do::Equal(A, links.into()), is_named("lo")] {
        to.add_rule(GATEWAY, &[Do::InputName(A), device, back()]);
    }
    for map in [Map::OtherPods, Map::Nodes] {
        to.add_rule(GATEWAY, &[Do::SourceAddress(A), is_in(map, A), back()]);
    }
    for map in [Map::Gateways, Map::ClusterAddresses] {
        let end = Do::Verdict(Verdict::Drop);
        to.add_rule(GATEWAY, &[Do::OriginalDestination(A), is_in(map, A), end]);
    }
}
