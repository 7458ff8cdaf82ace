//! The rules of davit's table: a few chains at the kernel's hooks, and the shared ones that elements lead to.
//!
//! Several clusters may be on one machine. Each has a table of its own, and passes over what comes from the pods of the
//! others: their links are known by the beginnings of their names.

mod errors;
mod key;
mod neighbours;
mod others;
pub(crate) mod policy;

pub(crate) use others::{TunnelPort, tunnel, tunnel_name};

use crate::maps::Map;
use davit_net::nft::{Expression as Do, Hook, Point, Slot, Transaction, Verdict};
use davit_netplan::{Chain, Choice, Family, Masquerade, Network, octets};
use errors::ERRORS;
use key::{Part, key};
use others::{GATEWAY, TUNNEL_IN, TUNNEL_OUT, gateway};
use std::net::Ipv6Addr;
use std::time::Duration;

/// With what the names of all clusters' links begin.
pub(crate) const ALL_LINKS: &str = "dvt";
/// The bit of a packet's mark that says: masquerade.
const MARK: u32 = 0x4000;
/// `ct status`: the destination was changed.
const REDIRECTED: u32 = 0x20;
/// `ct state`.
const INVALID: u32 = 1;
const RELATED: u32 = 4;
const ESTABLISHED_OR_RELATED: u32 = 2 | RELATED;
const NEW: u32 = 8;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// `RTN_LOCAL`.
const LOCAL: u32 = 2;
/// The chain of pods' connections to the outside.
const LEAVE: &str = "leave";
/// The chain of connections that a policy has ended.
const ENDED: &str = "ended";
/// The bit of a connection's mark that says: a policy has ended it.
pub(crate) const FORBIDDEN: u32 = 0x0008_0000;
/// The chains in which the pods here are judged, as receivers and as senders.
const INGRESS: &str = "judge-ingress";
const EGRESS: &str = "judge-egress";
const REFUSE: &str = "refuse";

/// Where values are put that are no part of a key, and where keys begin.
const A: Slot = Slot(0);
/// Of two values of at most four bytes, the second one.
const B: Slot = Slot(1);
const C: Slot = Slot(2);
/// Address and port that were found: behind the longest key.
const FOUND: Slot = Slot(10);

/// `IPPROTO_ICMP`.
const ICMP: u8 = 1;
/// `IPPROTO_ICMPV6`.
const ICMPV6: u8 = 58;
/// Where packets of a hook go: name, kind, point, priority.
const HOOKS: [(&str, Hook); 10] = [
    // before anything is remembered of the connection
    ("sources", hook("filter", Point::Prerouting, -300)),
    // what is accepted here is still judged in the next one
    ("policy-leave", hook("filter", Point::Forward, -6)),
    ("policy-forward", hook("filter", Point::Forward, -5)),
    ("policy-input", hook("filter", Point::Input, -5)),
    ("prerouting", hook("nat", Point::Prerouting, -100)),
    ("output", hook("nat", Point::Output, -100)),
    ("postrouting", hook("nat", Point::Postrouting, 100)),
    ("filter-forward", hook("filter", Point::Forward, 0)),
    ("filter-input", hook("filter", Point::Input, 0)),
    ("filter-output", hook("filter", Point::Output, 0)),
];

const fn hook(kind: &'static str, point: Point, priority: i32) -> Hook {
    Hook {
        kind,
        point,
        priority,
    }
}

fn bits(of: Slot, mask: u32) -> Do {
    Do::Bits {
        of,
        mask: mask.to_ne_bytes().to_vec(),
        change: vec![0; 4],
    }
}

fn has(of: Slot, mask: u32) -> [Do; 2] {
    [bits(of, mask), Do::NotEqual(of, vec![0; 4])]
}

/// The address that `load` puts into `A` is in the range.
fn is_within(load: Do, range: Network) -> [Do; 3] {
    [load, masked(range), Do::Equal(A, octets(range.first()))]
}

/// Keeps of the address in `A` the bits that are the range's.
fn masked(range: Network) -> Do {
    let mask = octets(range.mask());
    Do::Bits {
        of: A,
        change: vec![0; mask.len()],
        mask,
    }
}

fn is_in(map: Map, key: Slot) -> Do {
    Do::In {
        set: map.name().to_owned(),
        key,
        absent: false,
    }
}

fn is_not_in(map: Map, key: Slot) -> Do {
    Do::In {
        set: map.name().to_owned(),
        key,
        absent: true,
    }
}

fn dispatch(map: Map, key: Slot) -> Do {
    Do::Dispatch {
        map: map.name().to_owned(),
        key,
    }
}

fn look_up(map: Map, key: Slot) -> Do {
    Do::Lookup {
        map: map.name().to_owned(),
        key,
        to: FOUND,
    }
}

fn jump(chain: &str) -> Do {
    Do::Verdict(Verdict::Jump(chain.to_owned()))
}

/// Destination address, protocol and port, and what is done with them.
fn by_destination(family: Family, then: &[Do]) -> Vec<Do> {
    let mut rule = key(family, &[Part::Destination, Part::Protocol, Part::Port]);
    rule.extend_from_slice(then);
    rule
}

/// The packet came from another cluster's pods.
fn of_others(links: &str) -> [Do; 4] {
    [
        Do::InputName(A),
        Do::Equal(A, ALL_LINKS.into()),
        Do::NotEqual(A, links.into()),
        Do::Verdict(Verdict::Return),
    ]
}

/// Everything but what depends on objects: chains at the hooks, sets and maps, empty. `links` is what the names of this
/// cluster's links begin with.
pub(crate) fn lay_out(to: &mut Transaction, family: Family, links: &str) {
    for map in Map::ALL {
        to.add_set(&map.set());
    }
    for (name, hook) in HOOKS {
        to.add_chain(name, Some(hook));
    }
    for name in [
        "destinations",
        "unserved",
        REFUSE,
        LEAVE,
        ENDED,
        INGRESS,
        EGRESS,
    ] {
        to.add_chain(name, None);
    }
    for name in [TUNNEL_IN, TUNNEL_OUT, GATEWAY, ERRORS] {
        to.add_chain(name, None);
    }
    to.add_rule("prerouting", &of_others(links));
    to.add_rule("prerouting", &[jump("destinations")]);
    to.add_rule("output", &[jump("destinations")]);
    destinations(to, family);
    postrouting(to, family, &tunnel_name(links, family));
    filters(to, family, links);
    judge(to, family, links);
}

fn destinations(to: &mut Transaction, family: Family) {
    let chain = "destinations";
    let served = by_destination(family, &[dispatch(Map::Services, A)]);
    to.add_rule(chain, &served);
    to.add_rule(
        chain,
        &[
            Do::DestinationAddress(A),
            is_in(Map::NodeAddresses, A),
            Do::Protocol(A),
            Do::DestinationPort(B),
            dispatch(Map::NodePorts, A),
        ],
    );
    let there = [look_up(Map::HostPortsAt, A), Do::Destination(FOUND)];
    to.add_rule(chain, &by_destination(family, &there));
    let loopback = match family {
        Family::V4 => vec![127],
        Family::V6 => octets(Ipv6Addr::LOCALHOST.into()),
    };
    to.add_rule(
        chain,
        &[
            Do::DestinationKind(A),
            Do::Equal(A, LOCAL.to_ne_bytes().to_vec()),
            // A packet from 127.0.0.1 or ::1 may not leave the machine.
            Do::DestinationAddress(A),
            Do::NotEqual(A, loopback),
            // It is on a device here, and no address of the machine.
            is_not_in(Map::Announced, A),
            Do::Protocol(A),
            Do::DestinationPort(B),
            look_up(Map::HostPorts, A),
            Do::Destination(FOUND),
        ],
    );
}

fn postrouting(to: &mut Transaction, family: Family, tunnel_name: &str) {
    let chain = "postrouting";
    let [bit, set] = has(A, MARK);
    let unmark = bits(B, !MARK);
    to.add_rule(
        chain,
        &[
            Do::Mark(A),
            bit,
            set,
            Do::Mark(B),
            unmark,
            Do::SetMark(B),
            Do::Masquerade,
        ],
    );
    for pairs in [Map::Hairpin, Map::Pods] {
        let [bit, set] = has(A, REDIRECTED);
        let mut rule = vec![Do::Status(A), bit, set];
        rule.extend(key(family, &[Part::Source, Part::Destination]));
        rule.extend([is_in(pairs, A), Do::Masquerade]);
        to.add_rule(chain, &rule);
    }
    // What is no pod's, nor this node's as its pods know it, would not find its way back through the tunnel.
    to.add_rule(
        chain,
        &[
            Do::OutputName(A),
            is_named(tunnel_name),
            Do::SourceAddress(A),
            is_not_in(Map::Inside, A),
            Do::Masquerade,
        ],
    );
    to.add_rule(chain, &[jump(LEAVE)]);
}

/// The device in `A` has exactly this name.
fn is_named(name: &str) -> Do {
    let mut whole = name.as_bytes().to_vec();
    whole.resize(16, 0);
    Do::Equal(A, whole)
}

fn filters(to: &mut Transaction, family: Family, links: &str) {
    for load in [Do::InputName(A), Do::OutputName(A)] {
        // The kernel could not translate these: the other end would break the connection off.
        let [bit, set] = has(B, INVALID);
        let ours = Do::Equal(A, links.into());
        let end = Do::Verdict(Verdict::Drop);
        to.add_rule("filter-forward", &[load, ours, Do::State(B), bit, set, end]);
    }
    to.add_rule("filter-forward", &of_others(links));
    for chain in ["filter-forward", "filter-output"] {
        let [bit, set] = has(A, NEW);
        to.add_rule(chain, &[Do::State(A), bit, set, jump("unserved")]);
    }
    let [bit, set] = has(A, NEW);
    to.add_rule(
        "filter-input",
        &[
            Do::State(A),
            bit,
            set,
            Do::DestinationAddress(A),
            is_in(Map::NodeAddresses, A),
            Do::Protocol(A),
            Do::DestinationPort(B),
            dispatch(Map::RefusedNodePorts, A),
        ],
    );
    // What no Service has taken to its endpoints is not for what listens here.
    let icmp = match family {
        Family::V4 => ICMP,
        Family::V6 => ICMPV6,
    };
    let [bit, set] = has(A, NEW);
    to.add_rule(
        "filter-input",
        &[
            Do::State(A),
            bit,
            set,
            Do::DestinationAddress(A),
            is_in(Map::Announced, A),
            Do::Protocol(A),
            Do::NotEqual(A, vec![icmp]),
            Do::Verdict(refuse()),
        ],
    );
    let refused = by_destination(family, &[dispatch(Map::Refused, A)]);
    to.add_rule("unserved", &refused);
    for (map, end) in [
        (Map::ClusterAddresses, refuse()),
        (Map::ServiceRanges, Verdict::Drop),
    ] {
        let end = Do::Verdict(end);
        to.add_rule("unserved", &[Do::DestinationAddress(A), is_in(map, A), end]);
    }
    // An ICMP answer to a client on this machine comes while its connecting is still under way, and is put aside.
    let tcp = Do::Equal(A, vec![TCP]);
    to.add_rule(REFUSE, &[Do::Protocol(A), tcp, Do::Reset]);
    to.add_rule(REFUSE, &[Do::Reject]);
}

/// Where policies are asked. This machine itself is nobody's peer: what it sends to its pods is not asked about.
fn judge(to: &mut Transaction, family: Family, links: &str) {
    let tunnel = is_named(&tunnel_name(links, family));
    let devices = [Do::Equal(A, links.into()), tunnel];
    if family == Family::V6 {
        neighbours::lay_out(to, &devices);
    }
    // A pod that sends as somebody else would be judged as somebody else; so would a node that sends as a pod of another.
    for device in devices {
        let none = Do::Equal(B, vec![0; 4]);
        let end = Do::Verdict(Verdict::Drop);
        to.add_rule(
            "sources",
            &[Do::InputName(A), device, Do::WayBack(B), none, end],
        );
    }
    to.add_rule("sources", &[jump(TUNNEL_IN)]);
    gateway(to, links);
    // Again where a Service has led it here.
    to.add_rule("policy-input", &[jump(TUNNEL_IN)]);
    to.add_rule("policy-leave", &[jump(TUNNEL_OUT)]);
    errors::lay_out(to, family, links);
    for chain in ["policy-leave", "policy-forward", "policy-input"] {
        to.add_rule(chain, &[jump(ENDED)]);
        let [bit, set] = has(A, ESTABLISHED_OR_RELATED);
        to.add_rule(
            chain,
            &[Do::State(A), bit, set, Do::Verdict(Verdict::Accept)],
        );
    }
    // A pod reaches itself.
    let mut itself = key(family, &[Part::Source, Part::Destination]);
    itself.extend([is_in(Map::Pods, A), Do::Verdict(Verdict::Accept)]);
    to.add_rule("policy-leave", &itself);
    to.add_rule("policy-forward", &itself);
    to.add_rule("policy-leave", &[jump(EGRESS)]);
    to.add_rule("policy-forward", &[jump(INGRESS)]);
    to.add_rule("policy-input", &[jump(EGRESS)]);
    to.add_rule(EGRESS, &[Do::SourceAddress(A), dispatch(Map::Egress, A)]);
    to.add_rule(
        INGRESS,
        &[Do::DestinationAddress(A), dispatch(Map::Ingress, A)],
    );
}

/// What an element says whose packets are refused.
pub(crate) fn refuse() -> Verdict {
    Verdict::Goto(REFUSE.to_owned())
}

/// The rule for connections that a policy has ended: there as soon as there is one, since not every kernel marks connections.
pub(crate) fn ended(to: &mut Transaction) {
    to.flush_chain(ENDED);
    let [bit, set] = has(A, FORBIDDEN);
    let end = Do::Verdict(Verdict::Drop);
    to.add_rule(ENDED, &[Do::ConnectionMark(A), bit, set, Do::Counter, end]);
}

/// The rules for what pods of this node's range send to the outside.
pub(crate) fn leave(to: &mut Transaction, pods: Option<Network>) {
    to.flush_chain(LEAVE);
    let Some(pods) = pods else { return };
    let [load, mask, equal] = is_within(Do::SourceAddress(A), pods);
    to.add_rule(
        LEAVE,
        &[
            load,
            mask,
            equal,
            Do::DestinationAddress(A),
            is_not_in(Map::Inside, A),
            Do::DestinationKind(A),
            Do::NotEqual(A, LOCAL.to_ne_bytes().to_vec()),
            Do::Masquerade,
        ],
    );
}

/// Makes a chain that elements lead to, and fills it.
pub(crate) fn chain(to: &mut Transaction, chain: &Chain, family: Family, links: &str) {
    let name = chain.name();
    to.add_chain(&name, None);
    to.flush_chain(&name);
    match chain {
        Chain::Choose(choice) => choose(to, &name, choice, family, links),
        Chain::Split { inside, outside } => split(to, &name, [inside, outside], links),
        Chain::Guard { sources, then } => {
            for range in sources {
                let [load, mask, equal] = is_within(Do::SourceAddress(A), *range);
                let go = Do::Verdict(Verdict::Goto(then.name()));
                to.add_rule(&name, &[load, mask, equal, go]);
            }
            to.add_rule(&name, &[Do::Verdict(Verdict::Drop)]);
        }
    }
}

fn split(to: &mut Transaction, name: &str, choices: [&Option<Choice>; 2], links: &str) {
    let [inside, outside] = choices.map(|choice| {
        Do::Verdict(choice.map_or(Verdict::Drop, |choice| {
            Verdict::Goto(Chain::Choose(choice).name())
        }))
    });
    let ours = Do::Equal(A, links.into());
    to.add_rule(name, &[Do::InputName(A), ours, inside.clone()]);
    let pods = is_in(Map::ForeignPods, A);
    to.add_rule(name, &[Do::SourceAddress(A), pods, inside.clone()]);
    let local = Do::Equal(A, LOCAL.to_ne_bytes().to_vec());
    to.add_rule(name, &[Do::SourceKind(A), local, inside]);
    to.add_rule(name, &[outside]);
}

fn choose(to: &mut Transaction, name: &str, choice: &Choice, family: Family, links: &str) {
    let mark = [
        Do::Mark(A),
        Do::Bits {
            of: A,
            mask: (!MARK).to_ne_bytes().to_vec(),
            change: MARK.to_ne_bytes().to_vec(),
        },
        Do::SetMark(A),
    ];
    let conditions = match choice.masquerade {
        Masquerade::Never => None,
        Masquerade::Always => Some(Vec::new()),
        Masquerade::Others => Some(vec![
            Do::InputName(A),
            Do::NotEqual(A, links.into()),
            Do::SourceAddress(A),
            is_not_in(Map::Inside, A),
        ]),
    };
    if let Some(mut rule) = conditions {
        rule.extend(mark);
        to.add_rule(name, &rule);
    }
    let reached = match choice.node_port {
        true => Part::Anywhere,
        false => Part::Destination,
    };
    let client = || key(family, &[Part::Source, reached, Part::Protocol, Part::Port]);
    let remember = |seconds: u32| Do::Remember {
        map: Map::Affinity.name().to_owned(),
        key: A,
        value: FOUND,
        time: Duration::from_secs(seconds.into()),
    };
    if let Some(seconds) = choice.affinity {
        let mut rule = client();
        rule.push(look_up(Map::Affinity, A));
        rule.push(remember(seconds));
        rule.push(Do::Destination(FOUND));
        to.add_rule(name, &rule);
    }
    let random = Part::Random(choice.count, choice.offset);
    let mut rule = key(family, &[reached, Part::Protocol, Part::Port, random]);
    rule.push(look_up(Map::Endpoints, A));
    if let Some(seconds) = choice.affinity {
        rule.extend(client());
        rule.push(remember(seconds));
    }
    rule.push(Do::Destination(FOUND));
    to.add_rule(name, &rule);
}
