//! What of a pod stands in the table of a family: its address, what becomes of its packets, its ports of the host.

use super::record::{HostPort, Record};
use crate::maps::Map;
use crate::ruleset::{Update, Wanted};
use davit_net::nft::{Data, Verdict};
use davit_netplan::{Family, Value, octets};
use davit_oci::network::Error;
use davit_proto::cri::v1::{PortMapping, Protocol};
use std::net::IpAddr;

/// What of a pod stands in the table of a family; nothing without an address of it.
pub(super) fn elements(record: &Record, family: Family, there: bool) -> Update {
    let mut update = Update::default();
    let Some(address) = record.address_of(family) else {
        return update;
    };
    let wanted = |wanted: Wanted| if there { wanted } else { Wanted::Nothing };
    let pair = octets(address).repeat(2);
    update.set(Map::Pods, pair, wanted(Wanted::Member));
    // Until its policies are known nobody reaches the pod but this machine, and it reaches nobody.
    for map in [Map::Ingress, Map::Egress] {
        let closed = Wanted::Data(Data::Verdict(Verdict::Drop));
        update.set(map, octets(address), wanted(closed));
    }
    for port in &record.ports {
        if let Some((map, key)) = place(port, family) {
            let fields = Value::endpoint_fields(address, port.to);
            update.set(map, key, wanted(Wanted::Data(Data::Value(fields))));
        }
    }
    update
}

/// Where a port of the host stands in the table of a family; nowhere when it is at an address of the other one.
pub(super) fn place(port: &HostPort, family: Family) -> Option<(Map, Vec<u8>)> {
    let [high, low] = port.port.to_be_bytes();
    let key = [port.protocol, 0, 0, 0, high, low, 0, 0];
    match port.at {
        None => Some((Map::HostPorts, key.to_vec())),
        Some(address) if Family::of(address) == family => {
            let key = [&octets(address)[..], &key].concat();
            Some((Map::HostPortsAt, key))
        }
        Some(_) => None,
    }
}

/// What the runtime was asked for, as far as it concerns the node.
pub(super) fn host_ports(ports: &[PortMapping]) -> Result<Vec<HostPort>, Error> {
    let mut all = Vec::new();
    for mapping in ports.iter().filter(|mapping| mapping.host_port > 0) {
        let number = |port: i32| {
            u16::try_from(port).map_err(|_| Error(format!("hostPort: {port} is not a port")))
        };
        let at = match mapping.host_ip.as_str() {
            "" => None,
            text => match text.parse::<IpAddr>() {
                Ok(address) if address.is_unspecified() => None,
                Ok(address) => Some(address),
                Err(_) => return Err(Error(format!("hostIP: {text:?} is no IP address"))),
            },
        };
        let protocol = match mapping.protocol() {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        };
        all.push(HostPort {
            protocol,
            port: number(mapping.host_port)?,
            to: number(mapping.container_port)?,
            at,
        });
    }
    Ok(all)
}
