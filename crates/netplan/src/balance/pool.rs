//! Addresses of load balancers from a range of their own: which Service has which, and which node answers for it.

use super::assign::{BalanceVerdict, Balanced};
use super::balanced_at;
use super::named;
use super::places::BalancerAddress;
use crate::{Family, Network, number};
use k8s_openapi::api::core::v1::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::str::FromStr;

/// More ranges than anybody lists.
const MAX_RANGES: usize = 64;

/// Ranges of addresses for Services, as `192.0.2.200-192.0.2.220,2001:db8::/120` write them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerPool {
    /// First and last, in the order in which they are given out.
    spans: Vec<(IpAddr, IpAddr)>,
}

/// A text that says of no addresses, or of too many ranges.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected ranges of addresses, ADDRESS/BITS or FIRST-LAST, comma separated")]
pub struct BalancerPoolError(String);

fn span_of(text: &str) -> Option<(IpAddr, IpAddr)> {
    let Some((first, last)) = text.split_once('-') else {
        let range: Network = match text.parse::<IpAddr>() {
            Ok(one) => Network::around(one, Family::of(one).bits())?,
            Err(_) => text.parse().ok()?,
        };
        let (first, last) = (range.first(), range.last());
        // a network's own address and its broadcast are nobody's
        let ends = u128::from(range.family() == Family::V4 && range.bits() < 31);
        let within = |address: u128| range.family().address(address);
        return Some((within(number(first) + ends), within(number(last) - ends)));
    };
    let (first, last): (IpAddr, IpAddr) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let in_order = Family::of(first) == Family::of(last) && first <= last;
    in_order.then_some((first, last))
}

impl FromStr for BalancerPool {
    type Err = BalancerPoolError;

    fn from_str(text: &str) -> Result<Self, BalancerPoolError> {
        let spans: Option<Vec<_>> = text.split(',').map(|part| span_of(part.trim())).collect();
        let spans = spans.filter(|spans| spans.len() <= MAX_RANGES);
        match spans {
            Some(spans) => Ok(Self { spans }),
            None => Err(BalancerPoolError(text.to_owned())),
        }
    }
}

impl fmt::Display for BalancerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.spans.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{first}-{last}")?;
        }
        Ok(())
    }
}

impl BalancerPool {
    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let mut spans = self.spans.iter();
        spans.any(|(first, last)| {
            Family::of(*first) == Family::of(address) && *first <= address && address <= *last
        })
    }

    /// What of it is in a network, if anything.
    #[must_use]
    pub fn within(&self, network: Network) -> Option<(IpAddr, IpAddr)> {
        let mut spans = self.spans.iter();
        let overlaps = |(first, last): &&(IpAddr, IpAddr)| {
            Family::of(*first) == network.family()
                && *first <= network.last()
                && network.first() <= *last
        };
        spans.find(overlaps).copied()
    }

    /// All of a family, one after the other.
    fn of(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        let spans = self.spans.iter();
        let spans = spans.filter(move |(first, _)| Family::of(*first) == family);
        spans.flat_map(move |(first, last)| {
            (number(*first)..=number(*last)).map(move |address| family.address(address))
        })
    }
}

/// What is given out, and who answers for it on the link.
#[derive(Debug)]
pub struct Pooled<'a> {
    /// What becomes of each Service.
    pub verdicts: Vec<(&'a Balanced, BalanceVerdict)>,
    /// For each address that some node can answer for, the node.
    pub announcers: BTreeMap<IpAddr, String>,
}

/// The families of addresses that a Service is to have, the first one first.
fn families_of(service: &Service) -> Vec<Family> {
    let spec = service.spec.as_ref();
    let names = spec.and_then(|spec| spec.ip_families.as_ref());
    let families = names.into_iter().flatten();
    let families: Vec<Family> = families.filter_map(|name| Family::named(name)).collect();
    match families.is_empty() {
        true => vec![Family::V4],
        false => families,
    }
}

/// The address that a Service asks for (`spec.loadBalancerIP`).
fn asked_of(service: &Service) -> Option<&str> {
    let asked = service.spec.as_ref()?.load_balancer_ip.as_deref();
    asked.filter(|asked| !asked.is_empty())
}

/// Gives each Service in turn an address of each of its families: the one that it asks for, that it has, or the next one.
struct Giving<'p> {
    pool: &'p BalancerPool,
    /// Addresses that are somebody's, and whose.
    given: BTreeMap<IpAddr, String>,
    /// Addresses that Services have or ask for, and which of them is the first: nobody else gets them by turn.
    claimed: BTreeMap<IpAddr, usize>,
    next: BTreeMap<Family, Box<dyn Iterator<Item = IpAddr> + 'p>>,
}

/// The addresses that a Service has.
fn has(service: &Service) -> impl Iterator<Item = IpAddr> {
    let all = balanced_at(service).into_iter();
    all.filter_map(|text| text.parse().ok())
}

/// The addresses that Services have or ask for.
fn claims(wishes: &[Balanced]) -> BTreeMap<IpAddr, usize> {
    let mut claimed = BTreeMap::new();
    for (index, wish) in wishes.iter().enumerate() {
        let asked = asked_of(&wish.service).and_then(|text| text.parse().ok());
        for address in has(&wish.service).chain(asked) {
            claimed.entry(address).or_insert(index);
        }
    }
    claimed
}

impl Giving<'_> {
    fn give(&mut self, index: usize, service: &Service) -> Result<BTreeSet<IpAddr>, String> {
        let asked = match asked_of(service) {
            None => None,
            Some(text) => {
                let address = text
                    .parse()
                    .map_err(|_| format!("loadBalancerIP {text:?} is no address"))?;
                self.may_have(address)?;
                Some(address)
            }
        };
        let has: Vec<IpAddr> = has(service).collect();
        let (mut own, mut missing) = (BTreeSet::new(), None);
        for family in families_of(service) {
            let of_family = |address: &IpAddr| Family::of(*address) == family;
            let mut kept = has.iter().copied().filter(of_family);
            let kept = kept.find(|address| self.may_have(*address).is_ok());
            let asked = asked.filter(|address| of_family(address));
            match asked.or(kept).or_else(|| self.next_of(family, index)) {
                Some(address) => drop(own.insert(address)),
                None => missing = missing.or(Some(family)),
            }
        }
        if own.is_empty()
            && let Some(family) = missing
        {
            let name = family.name();
            return Err(format!(
                "no {name} address of --load-balancer-range is free"
            ));
        }
        if let Some(asked) = asked.filter(|asked| !own.contains(asked)) {
            return Err(format!(
                "loadBalancerIP {asked} is of a family that the service has not"
            ));
        }
        let name = named(&service.metadata);
        let entries = own
            .iter()
            .map(|address| (*address, format!("service {name}")));
        self.given.extend(entries);
        Ok(own)
    }

    fn may_have(&self, address: IpAddr) -> Result<(), String> {
        if !self.pool.contains(address) {
            return Err(format!("{address} is not in --load-balancer-range"));
        }
        match self.given.get(&address) {
            None => Ok(()),
            Some(by) => Err(format!("{address}: {by} has it")),
        }
    }

    fn next_of(&mut self, family: Family, index: usize) -> Option<IpAddr> {
        let (given, claimed) = (&self.given, &self.claimed);
        let next = self.next.get_mut(&family)?;
        next.find(|address| {
            let claimed = claimed.get(address).is_some_and(|by| *by != index);
            !claimed && !given.contains_key(address)
        })
    }
}

/// Gives Services addresses of a pool, in turn, but none of `taken`, which are machines'. `places` are the addresses of
/// nodes that can answer for them on the link, `held` which node does so now.
#[must_use]
pub fn balance_from<'a>(
    pool: &BalancerPool,
    taken: &BTreeSet<IpAddr>,
    places: &[BalancerAddress],
    held: &BTreeMap<IpAddr, String>,
    wishes: &'a [Balanced],
) -> Pooled<'a> {
    let boxed = |family| -> Box<dyn Iterator<Item = IpAddr> + '_> { Box::new(pool.of(family)) };
    let machines = taken.iter().map(|address| (*address, "a node".to_owned()));
    let mut giving = Giving {
        pool,
        given: machines.collect(),
        claimed: claims(wishes),
        next: Family::ALL.map(|family| (family, boxed(family))).into(),
    };
    let mut pooled = Pooled {
        verdicts: Vec::new(),
        announcers: BTreeMap::new(),
    };
    for (index, wish) in wishes.iter().enumerate() {
        let verdict = match giving.give(index, &wish.service) {
            Ok(addresses) => {
                for address in &addresses {
                    let held = held.get(address).map(String::as_str);
                    let node = announcer(*address, wish.nodes.as_ref(), places, held);
                    pooled.announcers.extend(node.map(|node| (*address, node)));
                }
                BalanceVerdict::Given(addresses)
            }
            Err(message) => BalanceVerdict::Refused {
                reason: "SyncLoadBalancerFailed",
                message,
            },
        };
        pooled.verdicts.push((wish, verdict));
    }
    pooled
}

/// The node that answers for an address: the one that does so now as long as it can, else any of those whose own addresses
/// are the nearest, which are on the link if any is.
fn announcer(
    address: IpAddr,
    only: Option<&BTreeSet<String>>,
    places: &[BalancerAddress],
    held: Option<&str>,
) -> Option<String> {
    let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
    let same = places.iter();
    let same = same.filter(|place| Family::of(place.address) == Family::of(address));
    for place in same {
        for node in &place.nodes {
            let nearness = nodes.entry(node).or_default();
            *nearness = (*nearness).max(nearness_of(address, place.address));
        }
    }
    nodes.retain(|node, _| only.is_none_or(|only| only.contains(*node)));
    let nearest = nodes.values().copied().max()?;
    nodes.retain(|_, nearness| *nearness == nearest);
    if let Some(held) = held.filter(|held| nodes.contains_key(held)) {
        return Some(held.to_owned());
    }
    let weight = |node: &&str| {
        let mut hasher = DefaultHasher::new();
        (address, node).hash(&mut hasher);
        hasher.finish()
    };
    nodes.into_keys().min_by_key(weight).map(str::to_owned)
}

/// How many bits two addresses share, of those that tell networks apart as most are made.
fn nearness_of(one: IpAddr, other: IpAddr) -> u32 {
    let family = Family::of(one);
    let (bits, network) = match family {
        Family::V4 => (32, 24),
        Family::V6 => (128, 64),
    };
    let shared = (number(one) ^ number(other)).leading_zeros() - (128 - bits);
    shared.min(network)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn pool(text: &str) -> BalancerPool {
        text.parse().unwrap()
    }

    fn wish(name: &str, spec: Value, has: &[&str]) -> Balanced {
        let ingress: Vec<Value> = has.iter().map(|ip| json!({ "ip": ip })).collect();
        let service = json!({
            "metadata": { "name": name, "namespace": "n" }, "spec": spec,
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        Balanced {
            service: Arc::new(serde_json::from_value(service).unwrap()),
            nodes: None,
        }
    }

    fn places(all: &[(&str, &str)]) -> Vec<BalancerAddress> {
        let place =
            |(node, address): &(&str, &str)| BalancerAddress::new(address.parse().unwrap(), node);
        all.iter().map(place).collect()
    }

    fn said(pool: &BalancerPool, wishes: &[Balanced]) -> Vec<String> {
        let taken = ["192.0.2.201".parse().unwrap()].into();
        let pooled = balance_from(pool, &taken, &[], &BTreeMap::new(), wishes);
        assert!(pooled.announcers.is_empty(), "no node, nobody who answers");
        let say = |(_, verdict): (&Balanced, BalanceVerdict)| match verdict {
            BalanceVerdict::Given(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                all.join(",")
            }
            BalanceVerdict::Refused { message, .. } => message,
        };
        pooled.verdicts.into_iter().map(say).collect()
    }

    #[test]
    fn what_ranges_are() {
        let one = pool("192.0.2.200-192.0.2.202, 2001:db8::/126,198.51.100.0/30,203.0.113.7");
        let all = |family| one.of(family).map(|a| a.to_string()).collect::<Vec<_>>();
        let four = [
            "192.0.2.200",
            "192.0.2.201",
            "192.0.2.202",
            "198.51.100.1",
            "198.51.100.2",
            "203.0.113.7",
        ];
        assert_eq!(all(Family::V4), four);
        assert_eq!(all(Family::V6).len(), 4);
        assert!(one.contains("192.0.2.201".parse().unwrap()));
        assert!(!one.contains("192.0.2.203".parse().unwrap()));
        assert!(
            !one.contains("198.51.100.3".parse().unwrap()),
            "the broadcast"
        );
        assert_eq!(pool(&one.to_string()), one);
        let within = |network: &str| one.within(network.parse().unwrap()).is_some();
        assert!(within("192.0.2.0/24") && within("192.0.2.202/32") && within("2001:db8::2/127"));
        assert!(!within("192.0.2.203/32") && !within("10.96.0.0/16") && !within("::/32"));
        for wrong in [
            "",
            "a",
            "192.0.2.9-192.0.2.1",
            "192.0.2.1-2001:db8::",
            "192.0.2.0/33",
        ] {
            assert!(wrong.parse::<BalancerPool>().is_err(), "{wrong}");
        }
        assert!(
            vec!["192.0.2.1"; 65]
                .join(",")
                .parse::<BalancerPool>()
                .is_err()
        );
    }

    #[test]
    fn each_service_has_an_address_until_there_is_none() {
        let pool = pool("192.0.2.200-192.0.2.203");
        let plain = || json!({});
        let wishes = [
            wish("has", plain(), &["192.0.2.202"]),
            wish("had", plain(), &["192.0.2.9"]),
            wish("asks", json!({ "loadBalancerIP": "192.0.2.203" }), &[]),
            wish("asks-too", json!({ "loadBalancerIP": "192.0.2.203" }), &[]),
            wish("outside", json!({ "loadBalancerIP": "192.0.2.9" }), &[]),
            wish("nodes", json!({ "loadBalancerIP": "192.0.2.201" }), &[]),
            wish("none", plain(), &[]),
            wish("six", json!({ "ipFamilies": ["IPv6"] }), &[]),
            wish(
                "both",
                json!({ "ipFamilies": ["IPv6", "IPv4"] }),
                &["192.0.2.200"],
            ),
        ];
        assert_eq!(
            said(&pool, &wishes),
            [
                "192.0.2.202",
                "no IPv4 address of --load-balancer-range is free",
                "192.0.2.203",
                "192.0.2.203: service n/asks has it",
                "192.0.2.9 is not in --load-balancer-range",
                "192.0.2.201: a node has it",
                "no IPv4 address of --load-balancer-range is free",
                "no IPv6 address of --load-balancer-range is free",
                "192.0.2.200",
            ]
        );
        let both = wish("both", json!({ "ipFamilies": ["IPv6", "IPv4"] }), &[]);
        let dual = "192.0.2.200/32,2001:db8::/64".parse().unwrap();
        assert_eq!(said(&dual, &[both]), ["192.0.2.200,2001:db8::"]);
    }

    #[test]
    fn one_node_answers_for_an_address() {
        let pool = pool("192.0.2.200-192.0.2.240");
        let all = places(&[
            ("a", "192.0.2.10"),
            ("b", "192.0.2.11"),
            ("far", "198.51.100.10"),
            ("six", "2001:db8::1"),
        ]);
        let wishes: Vec<Balanced> = (0..40)
            .map(|number| wish(&format!("s{number}"), json!({}), &[]))
            .collect();
        let of = |places: &[BalancerAddress], held: &BTreeMap<IpAddr, String>| {
            balance_from(&pool, &BTreeSet::new(), places, held, &wishes).announcers
        };
        let first = of(&all, &BTreeMap::new());
        assert_eq!(first.len(), 40);
        let nodes: BTreeSet<&str> = first.values().map(String::as_str).collect();
        assert_eq!(nodes, ["a", "b"].into(), "those near, and not one for all");
        // Who has gone is replaced; who comes back does not take anything away.
        let without = of(&all[1..], &first);
        assert!(without.values().all(|node| node == "b"));
        assert_eq!(of(&all, &without), without);
        // Only nodes with endpoints, under policy Local.
        let mut local = wish("local", json!({}), &[]);
        local.nodes = Some(["far".to_owned()].into());
        let local = [local];
        let pooled = balance_from(&pool, &BTreeSet::new(), &all, &BTreeMap::new(), &local);
        assert!(pooled.announcers.values().eq(["far"]));
    }
}
