//! Which Service gets which addresses.

use super::named;
use super::places::{BalancerAddress, BalancerPort, ports_of};
use crate::Family;
use k8s_openapi::api::core::v1::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// A Service that wants addresses.
#[derive(Debug, Clone)]
pub struct Balanced {
    /// The Service.
    pub service: Arc<Service>,
    /// Only these nodes lead to it (`externalTrafficPolicy: Local`); all do without.
    pub nodes: Option<BTreeSet<String>>,
}

/// What becomes of a Service that wants addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BalanceVerdict {
    /// It has these.
    Given(BTreeSet<IpAddr>),
    /// It has none.
    Refused {
        /// The reason of the event.
        reason: &'static str,
        /// Its words.
        message: String,
    },
}

/// Gives every Service in turn the addresses at which nobody before it has one of its ports.
#[must_use]
pub fn balance<'a>(
    places: &[BalancerAddress],
    wishes: &'a [Balanced],
) -> Vec<(&'a Balanced, BalanceVerdict)> {
    let mut given: BTreeMap<(IpAddr, BalancerPort), String> = BTreeMap::new();
    let mut verdicts = Vec::new();
    for wish in wishes {
        let ports = ports_of(&wish.service);
        let (mut free, mut taken) = (BTreeSet::new(), None);
        let allowed = places.iter().filter(|place| {
            let here = |nodes: &BTreeSet<String>| !nodes.is_disjoint(&place.nodes);
            wish.nodes.as_ref().is_none_or(here) && is_of_family(&wish.service, place.address)
        });
        for place in allowed {
            let holder = ports.iter().find_map(|port| {
                let by = given.get(&(place.address, *port));
                let by = by.map(|service| format!("service {service}"));
                let by = by.or_else(|| place.holder(*port, &wish.service));
                by.map(|by| format!("port {port} of {}: {by} has it", place.address))
            });
            match holder {
                None => drop(free.insert(place.address)),
                Some(words) => taken = taken.or(Some(words)),
            }
        }
        for address in &free {
            let name = named(&wish.service.metadata);
            given.extend(ports.iter().map(|port| ((*address, *port), name.clone())));
        }
        let verdict = if free.is_empty() {
            refused(taken, wish.nodes.is_some())
        } else {
            BalanceVerdict::Given(free)
        };
        verdicts.push((wish, verdict));
    }
    verdicts
}

/// Whether a Service is reached at addresses of this family; one that does not say is of IPv4.
fn is_of_family(service: &Service, address: IpAddr) -> bool {
    let families = service
        .spec
        .as_ref()
        .and_then(|spec| spec.ip_families.as_ref());
    let family = Family::of(address);
    match families {
        Some(families) if !families.is_empty() => families.iter().any(|name| name == family.name()),
        _ => family == Family::V4,
    }
}

/// As the service controller of Kubernetes names it.
fn refused(taken: Option<String>, is_local: bool) -> BalanceVerdict {
    match taken {
        Some(message) => BalanceVerdict::Refused {
            reason: "SyncLoadBalancerFailed",
            message,
        },
        None => BalanceVerdict::Refused {
            reason: "UnAvailableLoadBalancer",
            message: if is_local {
                "There are no available nodes with ready endpoints for LoadBalancer".to_owned()
            } else {
                "There are no available nodes for LoadBalancer".to_owned()
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn place(address: &str, node: &str, taken: &[(&str, u16)]) -> BalancerAddress {
        let mut place = BalancerAddress::new(address.parse().unwrap(), node);
        for (protocol, number) in taken {
            let port = BalancerPort::new(Some(protocol), i32::from(*number)).unwrap();
            place.take(port, "somebody");
        }
        place
    }

    fn wish(name: &str, ports: Value, nodes: Option<&[&str]>) -> Balanced {
        let service = json!({
            "metadata": { "name": name, "namespace": "n" },
            "spec": { "type": "LoadBalancer", "ports": ports },
        });
        let nodes = nodes.map(|nodes| nodes.iter().map(|node| (*node).to_owned()).collect());
        Balanced {
            service: Arc::new(serde_json::from_value(service).unwrap()),
            nodes,
        }
    }

    fn verdicts(places: &[BalancerAddress], wishes: &[Balanced]) -> Vec<String> {
        let say = |(_, verdict): (&Balanced, BalanceVerdict)| match verdict {
            BalanceVerdict::Given(addresses) => {
                let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                all.join(",")
            }
            BalanceVerdict::Refused { reason, message } => format!("{reason}: {message}"),
        };
        balance(places, wishes).into_iter().map(say).collect()
    }

    #[test]
    fn a_port_of_an_address_is_one_services() {
        let places = [place("192.0.2.1", "a", &[]), place("192.0.2.2", "b", &[])];
        let web = json!([{ "port": 80, "protocol": "TCP" }]);
        let both = json!([{ "port": 80, "protocol": "UDP" }, { "port": 443 }]);
        let wishes = [
            wish("first", web.clone(), None),
            wish("second", web, None),
            wish("other-protocol", both, None),
        ];
        assert_eq!(
            verdicts(&places, &wishes),
            [
                "192.0.2.1,192.0.2.2",
                "SyncLoadBalancerFailed: port 80/TCP of 192.0.2.1: service n/first has it",
                "192.0.2.1,192.0.2.2",
            ]
        );
    }

    #[test]
    fn policy_local_goes_where_endpoints_are() {
        let places = [place("192.0.2.1", "a", &[]), place("192.0.2.2", "b", &[])];
        let web = json!([{ "port": 80 }]);
        let wishes = [
            wish("on-a", web.clone(), Some(&["a"])),
            wish("on-b", web.clone(), Some(&["b"])),
            wish("nowhere", web.clone(), Some(&[])),
            wish("everywhere", web, None),
        ];
        let said = verdicts(&places, &wishes);
        assert_eq!(said[..2], ["192.0.2.1", "192.0.2.2"]);
        assert!(said[2].starts_with("UnAvailableLoadBalancer"), "{said:?}");
        assert!(said[3].starts_with("SyncLoadBalancerFailed"), "{said:?}");
    }

    #[test]
    fn what_others_have_on_a_node_stays_theirs() {
        let places = [
            place("192.0.2.1", "a", &[("TCP", 80)]),
            place("192.0.2.2", "b", &[("UDP", 80)]),
        ];
        let web = wish("web", json!([{ "port": 80 }]), None);
        assert_eq!(verdicts(&places, &[web]), ["192.0.2.2"]);
        let none = wish("web", json!([{ "port": 80 }]), None);
        assert_eq!(
            verdicts(&[], &[none]),
            ["UnAvailableLoadBalancer: There are no available nodes for LoadBalancer"]
        );
    }
}
