//! The plan of one Service (spec network.md 3.1 to 3.4).

use crate::chain::{Chain, Choice, Masquerade};
use crate::endpoints::{Endpoints, Node, Scope};
use crate::network::address_of;
use crate::plan::{Datagrams, HealthCheck, Key, Map, Plan, Protocol, Value};
use crate::{Family, Network};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Where the numbers of this node's endpoints begin.
const LOCAL: u32 = 1 << 16;
/// Endpoints that are told to the kernel for one Service, each as often as there are addresses and ports that lead to it.
/// With more of these, each leads to fewer endpoints.
const MOST_ENDPOINTS: usize = 1 << 16;
/// Seconds that a client keeps its endpoint unless the Service says (`sessionAffinityConfig.clientIP.timeoutSeconds`).
const AFFINITY: u32 = 10_800;

/// The Service of the API servers, and their slice, in namespace `default`.
const API: &str = "kubernetes";
/// Services with this label are another proxy's.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Services and slices with this label have no address of their own.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// What of a Service stands in the kernel of a node for one family, with the slices of the Service. Nothing for a Service
/// that a proxy passes over.
#[must_use]
pub fn plan(service: &Service, slices: &[&EndpointSlice], node: &Node, family: Family) -> Plan {
    let mut plan = Plan::nothing(family);
    let Some(spec) = service
        .spec
        .as_ref()
        .filter(|spec| is_proxied(service, spec))
    else {
        return plan;
    };
    let headless = |slice: &EndpointSlice| has_label(slice.metadata.labels.as_ref(), HEADLESS);
    let slices = slices.iter().copied().filter(|slice| !headless(slice));
    let slices = &slices.collect::<Vec<_>>()[..];
    let addresses = Addresses::of(service, spec, node, family);
    let ports = spec.ports.as_ref().map_or(0, Vec::len);
    // with the ports of nodes
    let places = ports.saturating_mul(addresses.len() + 1);
    let most = (MOST_ENDPOINTS / places.max(1)).max(1);
    let mut ready = BTreeSet::new();
    for address in &addresses.cluster {
        let key = Key::cluster_address(*address);
        plan.entries.insert(key, Value::Member);
    }
    for port in spec.ports.iter().flatten() {
        let (Some(protocol), Ok(number)) = (
            Protocol::parse(port.protocol.as_deref()),
            u16::try_from(port.port),
        ) else {
            continue;
        };
        let name = port.name.as_deref().unwrap_or_default();
        let reached = Port {
            spec,
            protocol,
            port: number,
            node_port: node_port(port).filter(|_| has_family(spec, family)),
            endpoints: Endpoints::of(slices, name, protocol, node, family),
            most,
            family,
        };
        ready.extend(reached.endpoints.ready_here());
        reached.enter(&addresses, &mut plan);
    }
    if is_api(service) {
        plan.places.extend(api_servers(slices, family));
    }
    plan.health = health_port(spec)
        .filter(|_| has_family(spec, family))
        .map(|port| HealthCheck {
            uid: service.metadata.uid.clone().unwrap_or_default(),
            port,
            endpoints: ready.len(),
        });
    plan
}

/// Whether it is the Service of the API servers.
fn is_api(service: &Service) -> bool {
    let meta = &service.metadata;
    (meta.namespace.as_deref(), meta.name.as_deref()) == (Some("default"), Some(API))
}

/// Where the API servers are: what is sent there goes there, whatever address somebody writes into a Service. The servers write
/// the slice.
fn api_servers(slices: &[&EndpointSlice], family: Family) -> BTreeSet<Key> {
    let own = slices
        .iter()
        .filter(|slice| slice.metadata.name.as_deref() == Some(API));
    let mut places = BTreeSet::new();
    for slice in own {
        let addresses = slice
            .endpoints
            .iter()
            .flatten()
            .flat_map(|at| &at.addresses);
        let addresses = addresses.filter_map(|text| address_of(text));
        for address in addresses.filter(|address| Family::of(*address) == family) {
            let ports = slice.ports.iter().flatten();
            let numbers = ports.filter_map(|port| u16::try_from(port.port?).ok());
            places.extend(numbers.map(|n| Key::service(Map::Services, address, Protocol::Tcp, n)));
        }
    }
    places
}

fn has_label(labels: Option<&BTreeMap<String, String>>, label: &str) -> bool {
    labels.is_some_and(|labels| labels.contains_key(label))
}

fn is_proxied(service: &Service, spec: &ServiceSpec) -> bool {
    let labels = service.metadata.labels.as_ref();
    let address = spec.cluster_ip.as_deref().unwrap_or_default();
    spec.type_.as_deref() != Some("ExternalName")
        && !address.is_empty()
        && address != "None"
        && !has_label(labels, PROXY_NAME)
        && !has_label(labels, HEADLESS)
}

/// Where its load balancer asks nodes whether they have endpoints.
fn health_port(spec: &ServiceSpec) -> Option<u16> {
    let is_asked = spec.type_.as_deref() == Some("LoadBalancer")
        && spec.external_traffic_policy.as_deref() == Some("Local");
    let number = u16::try_from(spec.health_check_node_port.filter(|_| is_asked)?).ok()?;
    (number > 0).then_some(number)
}

/// Whether a Service is one of this family: it has an address of it.
fn has_family(spec: &ServiceSpec, family: Family) -> bool {
    let all = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    all.filter_map(|text| address_of(text))
        .any(|address| Family::of(address) == family)
}

fn node_port(port: &ServicePort) -> Option<u16> {
    let number = port.node_port.and_then(|port| u16::try_from(port).ok());
    number.filter(|number| *number > 0)
}

/// Where a Service is reached.
struct Addresses {
    cluster: Vec<IpAddr>,
    external: Vec<IpAddr>,
    balanced: Vec<IpAddr>,
    /// Sources that may use the load balancer's addresses.
    sources: Option<Vec<Network>>,
}

impl Addresses {
    fn of(service: &Service, spec: &ServiceSpec, node: &Node, family: Family) -> Self {
        // what is of the other family is the other proxy's
        let read =
            |text: &String| address_of(text).filter(|address| Family::of(*address) == family);
        let parse = |texts: Option<&Vec<String>>| -> Vec<IpAddr> {
            let all = texts.into_iter().flatten();
            all.filter_map(read).collect()
        };
        let status = service
            .status
            .as_ref()
            .and_then(|s| s.load_balancer.as_ref());
        let ingress = status
            .and_then(|s| s.ingress.as_ref())
            .into_iter()
            .flatten();
        // A load balancer of its own kind (`ipMode: Proxy`) wants the packets itself.
        let captured = ingress.filter(|i| i.ip_mode.as_deref().unwrap_or("VIP") == "VIP");
        let is_balanced = spec.type_.as_deref() == Some("LoadBalancer");
        // Old objects have blanks around them. Ranges of another family let nobody of this one in.
        let ranges = spec.load_balancer_source_ranges.as_ref();
        let ranges = ranges.filter(|ranges| !ranges.is_empty());
        let sources = ranges.map(|ranges| {
            let ranges = ranges.iter().filter_map(|range| range.parse().ok());
            ranges
                .filter(|range: &Network| range.family() == family)
                .collect()
        });
        let cluster = match &spec.cluster_ips {
            Some(all) if !all.is_empty() => parse(Some(all)),
            _ => spec.cluster_ip.iter().filter_map(read).collect(),
        };
        let mut balanced: Vec<IpAddr> = captured
            .filter(|_| is_balanced)
            .filter_map(|i| read(i.ip.as_ref()?))
            .collect();
        if balanced.iter().any(|at| node.external.contains(at)) {
            let internal = node.internal.iter().copied();
            balanced.extend(internal.filter(|address| Family::of(*address) == family));
        }
        Self {
            cluster,
            external: parse(spec.external_ips.as_ref()),
            balanced,
            sources,
        }
    }
}

impl Addresses {
    fn len(&self) -> usize {
        self.cluster.len() + self.external.len() + self.balanced.len()
    }
}

/// One port of a Service.
struct Port<'a> {
    spec: &'a ServiceSpec,
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
    endpoints: Endpoints,
    /// How many of them a packet may go to.
    most: usize,
    family: Family,
}

/// What a packet finds.
enum Target {
    Chain(Chain),
    /// There is nobody (the client learns it), or nobody here (it does not).
    Nobody(Value),
}

impl Port<'_> {
    fn enter(&self, addresses: &Addresses, plan: &mut Plan) {
        let (cluster, local) = (
            self.endpoints.choose(Scope::Cluster, self.most),
            self.endpoints.choose(Scope::Local, self.most),
        );
        let internal = self.internal(&cluster, &local);
        if local.is_empty() && self.endpoints.any() {
            let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
            plan.nowhere.internal += usize::from(is_local(&self.spec.internal_traffic_policy));
            plan.nowhere.external += usize::from(is_local(&self.spec.external_traffic_policy));
        }
        let external = |node_port| self.external(&cluster, &local, node_port);
        for address in &addresses.cluster {
            self.reach(*address, &internal, plan);
        }
        for address in &addresses.external {
            self.reach(*address, &external(false), plan);
        }
        for address in &addresses.balanced {
            let target = match (external(false), &addresses.sources) {
                (Target::Chain(then), Some(sources)) => Target::Chain(Chain::Guard {
                    sources: sources.clone(),
                    then: Box::new(then),
                }),
                (other, _) => other,
            };
            self.reach(*address, &target, plan);
            let place = Key::service(Map::Services, *address, self.protocol, self.port);
            plan.places.insert(place);
        }
        if let Some(number) = self.node_port {
            self.reach_node(number, &external(true), plan);
        }
        let all = addresses.cluster.iter().chain(&addresses.external);
        let all = all.chain(&addresses.balanced).copied();
        let numbered = all.clone().map(|address| (address, self.port));
        let nodes = self
            .node_port
            .map(|number| (self.family.unspecified(), number));
        for (address, port) in numbered.clone().chain(nodes) {
            self.number(address, port, &cluster, 0, plan);
            self.number(address, port, &local, LOCAL, plan);
        }
        for address in self.endpoints.local() {
            plan.entries.insert(Key::hairpin(address), Value::Member);
        }
        if self.protocol == Protocol::Udp {
            plan.datagrams.push(Datagrams {
                at: numbered.collect(),
                node_port: self.node_port,
                serving: self.endpoints.serving(),
            });
        }
    }

    /// Enters the endpoints under their numbers.
    fn number(
        &self,
        address: IpAddr,
        port: u16,
        endpoints: &[(IpAddr, u16)],
        offset: u32,
        plan: &mut Plan,
    ) {
        for (number, (at, endpoint)) in (offset..).zip(endpoints) {
            let key = Key::endpoint(address, self.protocol, port, number);
            plan.entries.insert(key, Value::Endpoint(*at, *endpoint));
        }
    }

    fn choice(&self, endpoints: usize, offset: u32, masquerade: Masquerade) -> Option<Choice> {
        let count = u32::try_from(endpoints).ok().filter(|count| *count > 0)?;
        Some(Choice {
            count,
            offset,
            node_port: false,
            masquerade,
            affinity: self.affinity(),
        })
    }

    fn affinity(&self) -> Option<u32> {
        let config = self.spec.session_affinity_config.as_ref();
        let seconds = config
            .and_then(|config| config.client_ip.as_ref()?.timeout_seconds)
            .and_then(|seconds| u32::try_from(seconds).ok());
        let on = self.spec.session_affinity.as_deref() == Some("ClientIP");
        on.then(|| seconds.unwrap_or(AFFINITY))
    }

    /// Without an endpoint here: whether there is one elsewhere decides what the client learns.
    fn nobody(&self) -> Target {
        let value = if self.endpoints.any() {
            Value::Drop
        } else {
            Value::Refuse
        };
        Target::Nobody(value)
    }

    fn internal(&self, cluster: &[(IpAddr, u16)], local: &[(IpAddr, u16)]) -> Target {
        let (count, offset) = if self.spec.internal_traffic_policy.as_deref() == Some("Local") {
            (local.len(), LOCAL)
        } else {
            (cluster.len(), 0)
        };
        match self.choice(count, offset, Masquerade::Others) {
            Some(choice) => Target::Chain(Chain::Choose(choice)),
            None => self.nobody(),
        }
    }

    fn external(
        &self,
        cluster: &[(IpAddr, u16)],
        local: &[(IpAddr, u16)],
        node_port: bool,
    ) -> Target {
        let at = |choice: Option<Choice>| {
            choice.map(|choice| Choice {
                node_port,
                ..choice
            })
        };
        if self.spec.external_traffic_policy.as_deref() != Some("Local") {
            return match at(self.choice(cluster.len(), 0, Masquerade::Always)) {
                Some(choice) => Target::Chain(Chain::Choose(choice)),
                None => self.nobody(),
            };
        }
        // From within the cluster it is as if the packet had gone out and come back.
        let inside = at(self.choice(cluster.len(), 0, Masquerade::Others));
        let outside = at(self.choice(local.len(), LOCAL, Masquerade::Never));
        if inside.is_none() && outside.is_none() {
            return self.nobody();
        }
        Target::Chain(Chain::Split { inside, outside })
    }

    fn reach(&self, address: IpAddr, target: &Target, plan: &mut Plan) {
        let (map, value) = match target {
            Target::Chain(chain) => (Map::Services, Value::Chain(chain.clone())),
            Target::Nobody(value) => (Map::Refused, value.clone()),
        };
        let key = Key::service(map, address, self.protocol, self.port);
        plan.entries.insert(key, value);
    }

    fn reach_node(&self, number: u16, target: &Target, plan: &mut Plan) {
        let (map, value) = match target {
            Target::Chain(chain) => (Map::NodePorts, Value::Chain(chain.clone())),
            Target::Nobody(value) => (Map::RefusedNodePorts, value.clone()),
        };
        let key = Key::node_port(map, self.protocol, number);
        plan.entries.insert(key, value);
    }
}

#[cfg(test)]
mod tests;
