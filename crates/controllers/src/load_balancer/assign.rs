//! Which Service gets which addresses. Pure.

use super::places::{Place, Port, ports_of};
use davit_client::ObjectKey;
use k8s_openapi::api::core::v1::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A Service that wants addresses.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) key: ObjectKey,
    pub(super) service: Arc<Service>,
    /// Only these nodes lead to it (`externalTrafficPolicy: Local`); all do without.
    pub(super) nodes: Option<BTreeSet<String>>,
}

/// What becomes of a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has these addresses.
    Given(BTreeSet<Ipv4Addr>),
    /// It has none; reason and words of the event.
    Refused {
        reason: &'static str,
        message: String,
    },
}

/// Gives every Service in turn the addresses at which nobody before it has one of its ports.
pub(super) fn assign<'a>(places: &[Place], wishes: &'a [Wish]) -> Vec<(&'a Wish, Verdict)> {
    let mut given: BTreeMap<(Ipv4Addr, Port), &ObjectKey> = BTreeMap::new();
    let mut verdicts = Vec::new();
    for wish in wishes {
        let ports = ports_of(&wish.service);
        let (mut free, mut taken) = (BTreeSet::new(), None);
        let allowed = places.iter().filter(|place| {
            let here = |nodes: &BTreeSet<String>| !nodes.is_disjoint(&place.nodes);
            wish.nodes.as_ref().is_none_or(here)
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
            given.extend(ports.iter().map(|port| ((*address, *port), &wish.key)));
        }
        let verdict = if free.is_empty() {
            refused(taken, wish.nodes.is_some())
        } else {
            Verdict::Given(free)
        };
        verdicts.push((wish, verdict));
    }
    verdicts
}

/// As the service controller of Kubernetes names it.
fn refused(taken: Option<String>, is_local: bool) -> Verdict {
    match taken {
        Some(message) => Verdict::Refused {
            reason: "SyncLoadBalancerFailed",
            message,
        },
        None => Verdict::Refused {
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

    fn place(address: &str, node: &str, taken: &[(&str, u16)]) -> Place {
        let mut place = Place::new(address.parse().unwrap(), node);
        for (protocol, number) in taken {
            let port = Port::new(Some(protocol), i32::from(*number)).unwrap();
            place.take(port, "somebody");
        }
        place
    }

    fn wish(name: &str, ports: Value, nodes: Option<&[&str]>) -> Wish {
        let service = json!({
            "metadata": { "name": name, "namespace": "n" },
            "spec": { "type": "LoadBalancer", "ports": ports },
        });
        let nodes = nodes.map(|nodes| nodes.iter().map(|node| (*node).to_owned()).collect());
        Wish {
            key: ObjectKey {
                namespace: "n".into(),
                name: name.into(),
            },
            service: Arc::new(serde_json::from_value(service).unwrap()),
            nodes,
        }
    }

    fn verdicts(places: &[Place], wishes: &[Wish]) -> Vec<String> {
        let say = |(_, verdict): (&Wish, Verdict)| match verdict {
            Verdict::Given(addresses) => {
                let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                all.join(",")
            }
            Verdict::Refused { reason, message } => format!("{reason}: {message}"),
        };
        assign(places, wishes).into_iter().map(say).collect()
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
