//! All that decides, by name.

use super::read::{PolicyPeer, PolicyPort, PolicyRule};
use super::{
    Allowance, CompiledPolicy, Isolation, MAX_COST, NamedPort, NamespaceScope, Peers, PodGroup,
    PodScope, PolicyPod, PortRange,
};
use crate::{Network, Protocol};
use davit_api::selector::{Labels, Selector};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Where the cluster's name servers are, for peers.
const DNS_NAMESPACE: &str = "kube-system";
const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");
/// Their ports, and the names of these.
const DNS_PORTS: [(&str, Protocol); 2] = [("dns", Protocol::Udp), ("dns-tcp", Protocol::Tcp)];
const DNS_PORT: u16 = 53;

/// Objects of one kind by namespace and name.
type Named<T> = BTreeMap<String, BTreeMap<String, T>>;

/// What counts of a cluster's policies, namespaces and pods.
#[derive(Debug, Clone, Default)]
pub struct PolicyWorld {
    policies: Named<CompiledPolicy>,
    namespaces: BTreeMap<String, Labels>,
    pods: Named<PolicyPod>,
    /// Who says to have an address: when made, namespace, name. The last one has it.
    owners: BTreeMap<IpAddr, BTreeSet<(i64, String, String)>>,
    resolvers: BTreeSet<IpAddr>,
    ranges: Option<RangesByNode>,
}

/// The ranges of the pods of each node.
pub type RangesByNode = BTreeMap<String, BTreeSet<Network>>;

/// Enters, changes or takes away an object; whether that was a change.
fn put<T: PartialEq>(all: &mut Named<T>, namespace: &str, name: &str, object: Option<T>) -> bool {
    let known = all.get(namespace).and_then(|named| named.get(name));
    if known == object.as_ref() {
        return false;
    }
    let named = all.entry(namespace.to_owned()).or_default();
    match object {
        Some(object) => drop(named.insert(name.to_owned(), object)),
        None => drop(named.remove(name)),
    }
    if named.is_empty() {
        all.remove(namespace);
    }
    true
}

impl PolicyWorld {
    /// A policy as it is now, or that it is gone. Answers whether that changes anything.
    pub fn set_policy(
        &mut self,
        namespace: &str,
        name: &str,
        policy: Option<CompiledPolicy>,
    ) -> bool {
        put(&mut self.policies, namespace, name, policy)
    }

    /// How many policies there are.
    #[must_use]
    pub fn policies(&self) -> usize {
        self.policies.values().map(BTreeMap::len).sum()
    }

    /// The labels of a namespace, or that it is gone. Answers whether that changes anything.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) -> bool {
        if self.namespaces.get(name) == labels.as_ref() {
            return false;
        }
        match labels {
            Some(labels) => drop(self.namespaces.insert(name.to_owned(), labels)),
            None => drop(self.namespaces.remove(name)),
        }
        true
    }

    /// A pod as it is now, or that it is gone. Answers whether that changes anything.
    pub fn set_pod(&mut self, namespace: &str, name: &str, pod: Option<PolicyPod>) -> bool {
        let owner = |pod: &PolicyPod| (pod.created, namespace.to_owned(), name.to_owned());
        let places = |pod: &PolicyPod| (self.credible(pod), owner(pod));
        let new = pod.as_ref().map(places);
        let old = self.pods.get(namespace).and_then(|named| named.get(name));
        let old = old.map(places);
        if !put(&mut self.pods, namespace, name, pod) {
            return false;
        }
        let (addresses, owner) = old.unwrap_or_default();
        for address in addresses {
            if let Some(owners) = self.owners.get_mut(&address) {
                owners.remove(&owner);
                if owners.is_empty() {
                    self.owners.remove(&address);
                }
            }
        }
        let (addresses, owner) = new.unwrap_or_default();
        for address in addresses {
            self.owners
                .entry(address)
                .or_default()
                .insert(owner.clone());
        }
        true
    }

    /// The ranges of nodes: from then on a pod has no address but of its node's, whatever the node says, so that none speaks
    /// for the pods of others. Answers whether that changes anything.
    pub fn set_ranges(&mut self, ranges: RangesByNode) -> bool {
        if self.ranges.as_ref() == Some(&ranges) {
            return false;
        }
        self.ranges = Some(ranges);
        let mut owners: BTreeMap<IpAddr, BTreeSet<(i64, String, String)>> = BTreeMap::new();
        for (namespace, pods) in &self.pods {
            for (name, pod) in pods {
                for address in self.credible(pod) {
                    let owner = (pod.created, namespace.clone(), name.clone());
                    owners.entry(address).or_default().insert(owner);
                }
            }
        }
        self.owners = owners;
        true
    }

    /// Of the addresses that a pod is said to have, those that it can have.
    fn credible(&self, pod: &PolicyPod) -> Vec<IpAddr> {
        let mut addresses = pod.addresses.clone();
        if let Some(ranges) = &self.ranges {
            let own = pod.node.as_ref().and_then(|node| ranges.get(node));
            addresses.retain(|address| {
                let mut own = own.into_iter().flatten();
                own.any(|range| range.contains(*address))
            });
        }
        addresses
    }

    /// Where the nodes' own name servers are. Answers whether that changes anything.
    pub fn set_resolvers(&mut self, resolvers: BTreeSet<IpAddr>) -> bool {
        let changed = self.resolvers != resolvers;
        self.resolvers = resolvers;
        changed
    }

    /// What the policies of a pod let through; `None` for a pod that is not known.
    #[must_use]
    pub fn isolation(&self, namespace: &str, name: &str) -> Option<Isolation> {
        let pod = self.pods.get(namespace)?.get(name)?;
        let mut isolation = Isolation::default();
        let policies = self
            .policies
            .get(namespace)
            .into_iter()
            .flat_map(BTreeMap::values);
        let policies = policies.filter(|policy| policy.pods.matches(&pod.labels));
        let policies: Vec<&CompiledPolicy> = policies.collect();
        let costs = policies.iter().map(|policy| policy.cost());
        if costs.fold(0, usize::saturating_add) > MAX_COST {
            let isolates = |of: fn(&CompiledPolicy) -> bool| {
                let any = policies.iter().any(|policy| of(policy));
                any.then(BTreeSet::new)
            };
            return Some(Isolation {
                ingress: isolates(|policy| policy.ingress.is_some()),
                egress: isolates(|policy| policy.egress.is_some()),
                too_large: true,
            });
        }
        for policy in policies {
            if let Some(rules) = &policy.ingress {
                let allowed = isolation.ingress.get_or_insert_default();
                rules.iter().for_each(|rule| ingress(rule, pod, allowed));
            }
            if let Some(rules) = &policy.egress {
                let allowed = isolation.egress.get_or_insert_default();
                rules.iter().for_each(|rule| self.egress(rule, allowed));
            }
        }
        for allowed in [&mut isolation.ingress, &mut isolation.egress]
            .into_iter()
            .flatten()
        {
            // so that those who allow everything say it the same way
            if allowed.iter().any(Allowance::is_everything) {
                *allowed = [Allowance::everything()].into();
            }
        }
        Some(isolation)
    }

    /// The addresses of a group, as far as they are known.
    #[must_use]
    pub fn members(&self, group: &PodGroup) -> BTreeSet<IpAddr> {
        let addresses = |scope, of: &dyn Fn(&PolicyPod) -> bool| {
            let pods = self.pods_of(scope).filter(|(pod, _)| of(pod));
            pods.flat_map(|(_, addresses)| addresses).collect()
        };
        match group {
            PodGroup::Scope(scope) => addresses(scope, &|_| true),
            PodGroup::Offering { scope, port } => {
                let offers =
                    |pod: &PolicyPod| pod.port(&port.name, port.protocol) == Some(port.number);
                addresses(scope, &offers)
            }
            PodGroup::Resolvers => self.resolvers.clone(),
        }
    }

    /// The pods of a scope, with those of their addresses that are no newer pod's.
    fn pods_of<'a>(
        &'a self,
        scope: &'a PodScope,
    ) -> impl Iterator<Item = (&'a PolicyPod, Vec<IpAddr>)> {
        let named = match &scope.namespaces {
            NamespaceScope::Named(name) => self.pods.get_key_value(name).into_iter().collect(),
            NamespaceScope::Labelled(selector) => {
                let labelled = self
                    .namespaces
                    .iter()
                    .filter(|(_, labels)| selector.matches(labels));
                let pods = labelled.filter_map(|(name, _)| self.pods.get_key_value(name));
                pods.collect::<Vec<_>>()
            }
        };
        let pods = named.into_iter().flat_map(|(namespace, pods)| {
            let of = move |(name, pod)| (namespace, name, pod);
            pods.iter().map(of)
        });
        let own = move |namespace: &str, name: &str, address: &IpAddr| {
            let newest = self.owners.get(address).and_then(BTreeSet::last);
            newest.is_some_and(|(_, ns, n)| ns == namespace && n == name)
        };
        let matching = pods.filter(|(_, _, pod)| scope.pods.matches(&pod.labels));
        let addressed = matching.map(move |(namespace, name, pod)| {
            let addresses = pod.addresses.iter().copied();
            let addresses = addresses.filter(|address| own(namespace, name, address));
            (pod, addresses.collect::<Vec<_>>())
        });
        addressed.filter(|(_, addresses)| !addresses.is_empty())
    }

    /// What a rule allows a pod to reach.
    fn egress(&self, rule: &PolicyRule, allowed: &mut BTreeSet<Allowance>) {
        let peers = peers_of(rule);
        for port in rule.ports.iter().flatten() {
            if let PolicyPort::Named(name, protocol) = port {
                for peers in &peers {
                    self.egress_named(peers, name, *protocol, allowed);
                }
            }
        }
        if peers.iter().any(|peers| self.selects_resolvers(peers)) {
            allowed.extend(resolvers(rule));
        }
        let range = |port: &PolicyPort| match port {
            PolicyPort::Range(range) => Some(*range),
            PolicyPort::Named(..) => None,
        };
        let ports = rule.ports.as_ref();
        let ports = ports.map(|ports| ports.iter().filter_map(range).collect());
        enter(allowed, Allowance { peers, ports });
    }

    /// A name means what it means on the pod that is reached, and nothing for blocks of addresses.
    fn egress_named(
        &self,
        peers: &Peers,
        name: &str,
        protocol: Protocol,
        allowed: &mut BTreeSet<Allowance>,
    ) {
        let scope = match peers {
            Peers::Everybody => PodScope {
                namespaces: NamespaceScope::Labelled(Selector::everything()),
                pods: Selector::everything(),
            },
            Peers::Group(PodGroup::Scope(scope)) => scope.clone(),
            Peers::Group(_) | Peers::Block { .. } => return,
        };
        let numbers: BTreeSet<u16> = self
            .pods_of(&scope)
            .filter_map(|(pod, _)| pod.port(name, protocol))
            .collect();
        for number in numbers {
            let port = NamedPort {
                name: name.to_owned(),
                protocol,
                number,
            };
            let group = PodGroup::Offering {
                scope: scope.clone(),
                port,
            };
            allowed.insert(Allowance {
                peers: [Peers::Group(group)].into(),
                ports: Some([PortRange::one(protocol, number)].into()),
            });
        }
    }

    /// Whether peers comprise the pods as which the nodes' own name servers count.
    fn selects_resolvers(&self, peers: &Peers) -> bool {
        let scope = match peers {
            Peers::Group(PodGroup::Scope(scope)) => scope,
            // for names of ports, which mean nothing there otherwise
            Peers::Everybody => return true,
            Peers::Group(_) | Peers::Block { .. } => return false,
        };
        let namespace = match &scope.namespaces {
            NamespaceScope::Named(name) => name == DNS_NAMESPACE,
            NamespaceScope::Labelled(selector) => {
                let labels = self.namespaces.get(DNS_NAMESPACE);
                labels.is_some_and(|labels| selector.matches(labels))
            }
        };
        let (key, value) = DNS_LABEL;
        namespace
            && scope
                .pods
                .matches(&[(key.to_owned(), value.to_owned())].into())
    }
}

/// What a rule allows to reach a pod; names of ports mean what they mean on it.
fn ingress(rule: &PolicyRule, pod: &PolicyPod, allowed: &mut BTreeSet<Allowance>) {
    let resolve = |port: &PolicyPort| match port {
        PolicyPort::Range(range) => Some(*range),
        PolicyPort::Named(name, protocol) => {
            let number = pod.port(name, *protocol)?;
            Some(PortRange::one(*protocol, number))
        }
    };
    let ports = rule.ports.as_ref();
    let ports = ports.map(|ports| ports.iter().filter_map(resolve).collect());
    let peers = peers_of(rule);
    enter(allowed, Allowance { peers, ports });
}

/// Enters what allows something.
fn enter(allowed: &mut BTreeSet<Allowance>, allowance: Allowance) {
    let nothing =
        allowance.peers.is_empty() || allowance.ports.as_ref().is_some_and(BTreeSet::is_empty);
    if !nothing {
        allowed.insert(allowance);
    }
}

fn peers_of(rule: &PolicyRule) -> BTreeSet<Peers> {
    let Some(peers) = &rule.peers else {
        return [Peers::Everybody].into();
    };
    let each = peers.iter().map(|peer| match peer {
        PolicyPeer::Pods(scope) => Peers::Group(PodGroup::Scope(scope.clone())),
        PolicyPeer::Block { range, except } => Peers::Block {
            range: *range,
            except: except.clone(),
        },
    });
    each.collect()
}

/// What of the name servers' ports a rule allows: never more, because other things listen at their addresses.
fn resolvers(rule: &PolicyRule) -> impl Iterator<Item = Allowance> {
    let allows = |name: &str, protocol| {
        let port = |port: &PolicyPort| match port {
            PolicyPort::Range(range) => range.contains(protocol, DNS_PORT),
            PolicyPort::Named(given, of) => given == name && *of == protocol,
        };
        rule.ports
            .as_ref()
            .is_none_or(|ports| ports.iter().any(port))
    };
    let allowed = DNS_PORTS
        .into_iter()
        .filter(move |(name, protocol)| allows(name, *protocol));
    allowed.map(|(_, protocol)| Allowance {
        peers: [Peers::Group(PodGroup::Resolvers)].into(),
        ports: Some([PortRange::one(protocol, DNS_PORT)].into()),
    })
}
