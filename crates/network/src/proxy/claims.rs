//! Which Services want an element of the table, and which of them has it.

use davit_client::ObjectKey;
use davit_netplan::{Family, Key, Plan, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What all Services want.
#[derive(Debug)]
pub(super) struct Claims {
    family: Family,
    plans: HashMap<ObjectKey, Plan>,
    /// Pods are endpoints of several Services, and users write equal addresses.
    holders: BTreeMap<Key, BTreeSet<ObjectKey>>,
    /// Whose places are whose.
    places: BTreeMap<Key, BTreeSet<ObjectKey>>,
}

/// One less who has something.
fn leave(all: &mut BTreeMap<Key, BTreeSet<ObjectKey>>, what: &Key, who: &ObjectKey) {
    if let Some(have) = all.get_mut(what) {
        have.remove(who);
        if have.is_empty() {
            all.remove(what);
        }
    }
}

impl Claims {
    /// None yet.
    pub(super) fn new(family: Family) -> Self {
        Self {
            family,
            plans: HashMap::new(),
            holders: BTreeMap::new(),
            places: BTreeMap::new(),
        }
    }

    /// What a Service wants.
    pub(super) fn plan(&self, key: &ObjectKey) -> Option<&Plan> {
        self.plans.get(key)
    }

    /// Every element that somebody wants.
    pub(super) fn all(&self) -> impl Iterator<Item = &Key> {
        self.holders.keys()
    }

    /// A Service wants this now. The elements that may be another's or say something else from now on join `touched`.
    pub(super) fn enter(&mut self, key: &ObjectKey, new: Plan, touched: &mut BTreeSet<Key>) {
        let old = self.plans.remove(key);
        let old = old.unwrap_or(Plan::nothing(self.family));
        for entry in old.entries.keys() {
            if new.entries.contains_key(entry) {
                continue;
            }
            leave(&mut self.holders, entry, key);
            touched.insert(entry.clone());
        }
        for entry in new.entries.keys() {
            let holders = self.holders.entry(entry.clone()).or_default();
            holders.insert(key.clone());
            touched.insert(entry.clone());
        }
        for place in old.places.difference(&new.places) {
            leave(&mut self.places, place, key);
        }
        for place in &new.places {
            let owners = self.places.entry(place.clone()).or_default();
            owners.insert(key.clone());
        }
        // What others have written about an address counts only as long as it is nobody's own.
        let (before, own) = (old.own_addresses(), new.own_addresses());
        let mut changed: BTreeSet<_> = before.symmetric_difference(&own).copied().collect();
        let places = old.places.symmetric_difference(&new.places);
        changed.extend(places.filter_map(|place| place.address(self.family)));
        for address in changed {
            let at = Key::all_at(address).into_iter();
            let keys = at.flat_map(|range| self.holders.range(range));
            touched.extend(keys.map(|(key, _)| key.clone()));
        }
        if !new.is_nothing() {
            self.plans.insert(key.clone(), new);
        }
    }

    /// What stands for an element.
    pub(super) fn value(&self, key: &Key) -> Option<&Value> {
        self.plans.get(self.holder(key)?)?.entries.get(key)
    }

    /// Of several that want one element, the one whose own the address is has it, or to which a load balancer leads from
    /// there; else the first by name. Nobody has one where API servers are. Who may write a Service may write any address into
    /// it, the API server's and the DNS server's and those of others' load balancers, too.
    fn holder(&self, key: &Key) -> Option<&ObjectKey> {
        let holders = self.holders.get(key)?;
        let own = key.address(self.family).map(Key::cluster_address);
        let own = own.and_then(|own| self.holders.get(&own));
        let place = key.place(self.family);
        match own.or_else(|| self.places.get(&place?)) {
            Some(owners) => owners.intersection(holders).next(),
            None => holders.first(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_netplan::{Node, plan};
    use serde_json::json;

    fn of(spec: serde_json::Value, balanced: Option<&str>, endpoint: &str) -> Plan {
        let ingress: Vec<_> = balanced.iter().map(|ip| json!({ "ip": ip })).collect();
        let service = json!({
            "metadata": { "name": "s", "namespace": "n" }, "spec": spec,
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        let slice = json!({
            "metadata": {}, "addressType": "IPv4", "endpoints": [{ "addresses": [endpoint] }],
            "ports": [{ "name": "", "port": 1, "protocol": "UDP" }, { "name": "", "port": 1, "protocol": "TCP" }],
        });
        let service = serde_json::from_value(service).unwrap();
        let slice = serde_json::from_value(slice).unwrap();
        plan(&service, &[&slice], &Node::default(), Family::V4)
    }

    fn key(namespace: &str) -> ObjectKey {
        ObjectKey {
            namespace: namespace.to_owned(),
            name: "s".to_owned(),
        }
    }

    /// Every element that leads to this endpoint.
    fn leading_to(claims: &Claims, endpoint: &str) -> usize {
        let is_it = |key: &&Key| matches!(claims.value(key), Some(Value::Endpoint(at, _)) if at.to_string() == endpoint);
        claims.all().filter(is_it).count()
    }

    /// `externalIPs` are what somebody says himself; the addresses of load balancers users do not write.
    #[test]
    fn nobody_takes_what_a_load_balancer_leads_to() {
        let port = |port: u16| json!([{ "port": port, "protocol": "TCP" }]);
        let web = json!({ "type": "LoadBalancer", "clusterIP": "10.96.0.20", "ports": port(443) });
        let web = of(web, Some("192.0.2.200"), "10.244.0.1");
        let external = |number| json!({ "clusterIP": "10.96.0.77", "externalIPs": ["192.0.2.200"], "ports": port(number) });
        let thief = of(external(443), None, "10.244.0.66");
        let beside = of(external(8443), None, "10.244.0.55");
        for first in ["aaa", "zzz"] {
            let (mut claims, mut touched) = (Claims::new(Family::V4), BTreeSet::new());
            claims.enter(&key(first), thief.clone(), &mut touched);
            claims.enter(&key("beside"), beside.clone(), &mut touched);
            let alone = leading_to(&claims, "10.244.0.66");
            touched.clear();
            claims.enter(&key("m"), web.clone(), &mut touched);
            assert_eq!(
                leading_to(&claims, "10.244.0.1"),
                2,
                "both of its addresses"
            );
            assert_eq!(leading_to(&claims, "10.244.0.66") * 2, alone);
            assert_eq!(leading_to(&claims, "10.244.0.55"), 2, "another port");
            let is_theirs = |key: &&Key| {
                key.place(Family::V4)
                    .is_some_and(|place| web.places.contains(&place))
            };
            assert!(
                thief
                    .entries
                    .keys()
                    .filter(is_theirs)
                    .all(|key| touched.contains(key))
            );
            // Nor while it has no endpoint.
            let mut nobody = web.clone();
            nobody
                .entries
                .retain(|key, _| key.address(Family::V4).is_none());
            claims.enter(&key("m"), nobody, &mut touched);
            assert_eq!(leading_to(&claims, "10.244.0.66") * 2, alone);
            claims.enter(&key("m"), Plan::nothing(Family::V4), &mut touched);
            assert_eq!(leading_to(&claims, "10.244.0.66"), alone, "nobody's again");
        }
    }

    /// All nodes would ask somebody's pod for what they are to do.
    #[test]
    fn nobody_takes_the_places_of_api_servers() {
        let thief = json!({ "clusterIP": "10.96.0.77", "externalIPs": ["192.0.2.1"],
            "ports": [{ "port": 6443, "protocol": "TCP" }] });
        let thief = of(thief, None, "10.244.0.66");
        let service = json!({ "metadata": { "name": "kubernetes", "namespace": "default" },
            "spec": { "clusterIP": "10.96.0.1", "ports": [{ "name": "https", "port": 443, "protocol": "TCP" }] } });
        let slice = |name: &str| {
            json!({ "metadata": { "name": name }, "addressType": "IPv4", "endpoints": [{ "addresses": ["192.0.2.1"] }],
                "ports": [{ "name": "https", "port": 6443, "protocol": "TCP" }] })
        };
        let service = serde_json::from_value(service).unwrap();
        for (name, is_theirs) in [("kubernetes", true), ("somebodys", false)] {
            let slice = serde_json::from_value(slice(name)).unwrap();
            let api = plan(&service, &[&slice], &Node::default(), Family::V4);
            let (mut claims, mut touched) = (Claims::new(Family::V4), BTreeSet::new());
            claims.enter(&key("aaa"), thief.clone(), &mut touched);
            let alone = leading_to(&claims, "10.244.0.66");
            claims.enter(&key("default"), api, &mut touched);
            let left = leading_to(&claims, "10.244.0.66");
            assert_eq!(left * 2 == alone, is_theirs, "its own address is left");
            claims.enter(&key("default"), Plan::nothing(Family::V4), &mut touched);
            assert_eq!(leading_to(&claims, "10.244.0.66"), alone);
        }
    }

    #[test]
    fn nobody_takes_the_own_address_of_a_service() {
        let dns = of(
            json!({ "clusterIP": "10.96.0.10", "ports": [{ "port": 53, "protocol": "UDP" }] }),
            None,
            "10.244.0.1",
        );
        let ports = json!([{ "port": 53, "protocol": "UDP" }, { "port": 443, "protocol": "TCP" }]);
        let external =
            json!({ "clusterIP": "10.96.0.77", "externalIPs": ["10.96.0.10"], "ports": ports });
        let balanced = json!({ "type": "LoadBalancer", "clusterIP": "10.96.0.77", "ports": ports });
        for thief in [
            of(external, None, "10.244.0.66"),
            of(balanced, Some("10.96.0.10"), "10.244.0.66"),
        ] {
            for first in ["aaa", "zzz"] {
                let (mut claims, mut touched) = (Claims::new(Family::V4), BTreeSet::new());
                claims.enter(&key(first), thief.clone(), &mut touched);
                let alone = leading_to(&claims, "10.244.0.66");
                touched.clear();
                claims.enter(&key("kube-system"), dns.clone(), &mut touched);
                assert_eq!(leading_to(&claims, "10.244.0.1"), 1);
                let left = leading_to(&claims, "10.244.0.66");
                assert_eq!(left * 2, alone, "its own address is left");
                let about = |key: &Key| {
                    key.address(Family::V4)
                        .is_some_and(|at| at.to_string() == "10.96.0.10")
                };
                let theirs = thief.entries.keys().filter(|key| about(key));
                assert!(
                    theirs.into_iter().all(|key| touched.contains(key)),
                    "written anew"
                );
                // A port that the owner does not serve is not free for others either.
                assert!(
                    claims
                        .all()
                        .filter(|key| about(key))
                        .filter(|key| claims.value(key).is_some())
                        .count()
                        == 2
                );
                touched.clear();
                claims.enter(&key("kube-system"), Plan::nothing(Family::V4), &mut touched);
                assert_eq!(leading_to(&claims, "10.244.0.66"), alone, "nobody's again");
            }
        }
    }
}
