//! The Service proxy: what Services and their endpoints say stands in the kernel (spec network.md 3).

mod claims;

use crate::health::Checks;
use crate::maps::Map;
use crate::metrics::{Extent, ProxyMetrics};
use crate::rules;
use crate::ruleset::{Ruleset, Update, Wanted};
use claims::Claims;
use davit_client::{Informer, ObjectKey};
use davit_net::conntrack::{self, Connection};
use davit_net::nft::{Data, Element, IpVersion, Verdict};
use davit_netplan::{Chain, Family, Key, Node, Nowhere, Plan, Value, octets, plan};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// The maps that Services fill.
const MAPS: [Map; 7] = [
    Map::Endpoints,
    Map::Hairpin,
    Map::Services,
    Map::NodePorts,
    Map::Refused,
    Map::RefusedNodePorts,
    Map::ClusterAddresses,
];

/// The Services of a cluster, as a node sees them.
#[derive(Debug, Clone)]
pub(crate) struct Services {
    pub(crate) services: Informer<Service>,
    /// Indexed by the Service, `namespace/name`.
    pub(crate) slices: Informer<EndpointSlice>,
}

impl Services {
    /// All of them.
    pub(crate) fn keys(&self) -> BTreeSet<ObjectKey> {
        let services = self.services.list();
        services.iter().map(|s| ObjectKey::of(s.as_ref())).collect()
    }
}

/// The Service of a slice, as the index has it.
pub(crate) fn service_of(slice: &EndpointSlice) -> Option<String> {
    let labels = slice.metadata.labels.as_ref()?;
    let name = labels.get("kubernetes.io/service-name")?;
    let namespace = slice.metadata.namespace.as_deref()?;
    Some(format!("{namespace}/{name}"))
}

/// What stands in the table of one family, and for which Service.
#[derive(Debug)]
pub(crate) struct Proxy {
    ruleset: Arc<Ruleset>,
    metrics: ProxyMetrics,
    claims: Claims,
    /// What load balancers ask.
    checks: Checks,
    /// Of how many Services ports lead nowhere here; those that do.
    nowhere: BTreeMap<ObjectKey, Nowhere>,
    /// Everything is to be told again.
    stale: bool,
}

impl Proxy {
    pub(crate) fn new(ruleset: Arc<Ruleset>, metrics: &ProxyMetrics) -> Self {
        Self {
            metrics: metrics.of(ruleset.family()),
            claims: Claims::new(ruleset.family()),
            ruleset,
            checks: Checks::new(),
            nowhere: BTreeMap::new(),
            stale: true,
        }
    }

    /// Of whose addresses it is.
    pub(crate) fn family(&self) -> Family {
        self.ruleset.family()
    }

    /// What load balancers ask, and are to be answered.
    pub(crate) fn checks(&self) -> &Checks {
        &self.checks
    }

    /// The next change tells of everything.
    pub(crate) fn forget(&mut self) {
        self.stale = true;
    }

    /// Brings the kernel to what these Services are now. Blocks.
    pub(crate) fn sync(
        &mut self,
        keys: &BTreeSet<ObjectKey>,
        seen: &Services,
        node: &Node,
    ) -> io::Result<()> {
        let started = Instant::now();
        let mut touched = BTreeSet::new();
        let mut changed = Vec::new();
        for key in keys {
            let new = plan_of(key, seen, node, self.ruleset.family());
            let old = self.claims.plan(key);
            if old == Some(&new) || (old.is_none() && new.is_nothing()) {
                continue;
            }
            changed.push(key.clone());
            self.count(key, &new);
            self.claims.enter(key, new, &mut touched);
        }
        let everything = self.stale;
        if !everything && changed.is_empty() {
            return Ok(());
        }
        if everything {
            touched = self.claims.all().cloned().collect();
        }
        let mut update = Update::default();
        for key in &touched {
            self.want(key, &mut update);
        }
        // Until it is done the kernel is not known to have it.
        self.stale = true;
        if everything {
            self.ruleset.replace(&MAPS, update)?;
        } else {
            self.ruleset.apply(&update)?;
        }
        self.stale = false;
        self.told(everything, started);
        self.end_datagrams(&changed)?;
        self.end_affinity(&changed)
    }

    /// What of a Service is no matter of the kernel's.
    fn count(&mut self, key: &ObjectKey, plan: &Plan) {
        match &plan.health {
            Some(health) => drop(self.checks.insert(key.clone(), health.clone())),
            None => drop(self.checks.remove(key)),
        }
        if plan.nowhere == Nowhere::default() {
            self.nowhere.remove(key);
        } else {
            self.nowhere.insert(key.clone(), plan.nowhere);
        }
    }

    fn told(&self, everything: bool, started: Instant) {
        let extent = match everything {
            true => Extent::Full,
            false => Extent::Partial,
        };
        self.metrics.synced(extent, started.elapsed());
        let all = self.nowhere.values();
        let internal = all.clone().map(|nowhere| nowhere.internal).sum();
        let external = all.map(|nowhere| nowhere.external).sum();
        self.metrics.without_endpoints(internal, external);
    }

    fn want(&self, key: &Key, update: &mut Update) {
        let wanted = match self.claims.value(key) {
            None => Wanted::Nothing,
            Some(Value::Member) => Wanted::Member,
            Some(Value::Endpoint(address, port)) => {
                Wanted::Data(Data::Value(Value::endpoint_fields(*address, *port)))
            }
            Some(Value::Chain(chain)) => {
                update.chains.insert(chain.clone());
                Wanted::Data(Data::Verdict(Verdict::Goto(chain.name())))
            }
            Some(Value::Refuse) => Wanted::Data(Data::Verdict(rules::refuse())),
            Some(Value::Drop) => Wanted::Data(Data::Verdict(Verdict::Drop)),
        };
        update.set(key.map.into(), key.bytes.clone(), wanted);
    }

    fn version(&self) -> IpVersion {
        match self.family() {
            Family::V4 => IpVersion::Four,
            Family::V6 => IpVersion::Six,
        }
    }

    /// UDP has no end: what still goes to endpoints that serve no more begins anew.
    fn end_datagrams(&self, changed: &[ObjectKey]) -> io::Result<()> {
        // who serves, once however many addresses lead there
        let mut serving: Vec<HashSet<(IpAddr, u16)>> = Vec::new();
        let mut at: HashMap<(IpAddr, u16), Vec<usize>> = HashMap::new();
        let mut ports: HashMap<u16, Vec<usize>> = HashMap::new();
        for plan in changed.iter().filter_map(|key| self.claims.plan(key)) {
            for reached in &plan.datagrams {
                for place in &reached.at {
                    at.entry(*place).or_default().push(serving.len());
                }
                if let Some(port) = reached.node_port {
                    ports.entry(port).or_default().push(serving.len());
                }
                serving.push(reached.serving.iter().copied().collect());
            }
        }
        if at.is_empty() && ports.is_empty() {
            return Ok(());
        }
        let places = self.ruleset.places(Map::NodeAddresses);
        let ours: HashSet<Vec<u8>> = places.into_iter().map(|(key, _)| key).collect();
        let stale = |connection: &Connection| {
            let (to, from) = (connection.original.to, connection.reply.from);
            let on_node = || ours.contains(octets(to.0).as_slice());
            let who = at
                .get(&to)
                .or_else(|| ports.get(&to.1).filter(|_| on_node()));
            who.is_some_and(|who| who.iter().all(|who| !serving[*who].contains(&from)))
        };
        let started = Instant::now();
        let known = conntrack::datagrams(self.version())?;
        let stale: Vec<Connection> = known.into_iter().filter(stale).collect();
        conntrack::forget(&stale)?;
        self.metrics.conntrack(started.elapsed(), stale.len());
        Ok(())
    }

    /// Clients whose endpoint is none any more choose anew.
    fn end_affinity(&self, changed: &[ObjectKey]) -> io::Result<()> {
        let plans: Vec<&Plan> = changed.iter().filter_map(|k| self.claims.plan(k)).collect();
        let sticky = |plan: &&Plan| {
            plan.entries.values().any(|value| match value {
                Value::Chain(chain) => keeps_clients(chain),
                _ => false,
            })
        };
        // Address, protocol and port; the client's address is before them, the number after.
        let address = self.family().bytes();
        let length = address + 8;
        let mut endpoints: BTreeMap<&[u8], HashSet<Vec<u8>>> = BTreeMap::new();
        let mut looked_at = false;
        for plan in plans.iter().filter(|plan| sticky(plan)) {
            looked_at = true;
            for (key, value) in &plan.entries {
                if let (Value::Endpoint(address, port), Some(place)) =
                    (value, key.bytes.get(..length))
                {
                    let fields = Value::endpoint_fields(*address, *port);
                    endpoints.entry(place).or_default().insert(fields);
                }
            }
        }
        if !looked_at {
            return Ok(());
        }
        let stale = |client: &Element| {
            let place = client
                .key
                .get(address..address + length)
                .unwrap_or_default();
            let known = endpoints.get(place);
            known.is_some_and(|known| match &client.data {
                Some(Data::Value(fields)) => !known.contains(fields),
                _ => false,
            })
        };
        let clients = self.ruleset.clients()?;
        let stale: Vec<Element> = clients.into_iter().filter(stale).collect();
        self.ruleset.forget_clients(&stale);
        Ok(())
    }
}

fn keeps_clients(chain: &Chain) -> bool {
    match chain {
        Chain::Choose(choice) => choice.affinity.is_some(),
        Chain::Split { .. } => chain.leads_to().iter().any(keeps_clients),
        Chain::Guard { then, .. } => keeps_clients(then),
    }
}

fn plan_of(key: &ObjectKey, seen: &Services, node: &Node, family: Family) -> Plan {
    let Some(service) = seen.services.get(Some(&key.namespace), &key.name) else {
        return Plan::nothing(family);
    };
    let slices = seen.slices.list_indexed(&key.to_string());
    let slices: Vec<&EndpointSlice> = slices.iter().map(AsRef::as_ref).collect();
    plan(&service, &slices, node, family)
}
