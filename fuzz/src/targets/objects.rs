//! What the objects and texts of users become in the parts that act on them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::from_utf8;

use davit_api::host_port::{bracketed, host_port, without_brackets};
use davit_api::names::{check_canonical_ip, check_cidr, check_ip, parse_cidr};
use davit_api::schedule::Schedule;
use davit_listen::MetricSample;
use davit_netplan::{
    CompiledPolicy, Family, Isolation, MAX_COST, PolicyPod, PolicyWorld, ServiceRange, plan,
};
use davit_schedulerconfig::KubeSchedulerConfiguration;
use http::Uri;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::Value;

/// Any text as the schedule of a `CronJob`, any as its time zone: each next time is later than the one before.
pub fn schedule(data: &[u8]) {
    let Ok(text) = from_utf8(data) else { return };
    let (text, zone) = text.split_once('\0').unwrap_or((text, ""));
    let Ok(schedule) = Schedule::parse(text, Some(zone)) else {
        return;
    };
    for start in [0, 1_711_849_000, 1_730_000_000, 4_000_000_000] {
        let Ok(mut at) = Timestamp::from_second(start) else {
            return;
        };
        for _ in 0..4 {
            let Some(next) = schedule.next(at) else { break };
            assert!(next > at, "{next} after {at}");
            assert!(!schedule.local_text(next).is_empty());
            at = next;
        }
    }
}

/// Any text as an address, a range, or a host beside a port: what is taken is what everybody reads.
pub fn addresses(data: &[u8]) {
    let Ok(text) = from_utf8(data) else { return };
    if check_ip(text).is_empty() {
        let address: IpAddr = text.parse().expect("what is taken is an address");
        let uri: Uri = format!("http://{}/x", host_port(text, 80))
            .parse()
            .expect("an address stands in a URL");
        let host = without_brackets(uri.host().unwrap_or_default());
        assert_eq!(host.parse(), Ok(address));
        assert_eq!(uri.port_u16(), Some(80));
        if check_canonical_ip(text).is_empty() {
            assert_eq!(address.to_string(), text);
        }
    }
    if check_cidr(text).is_empty() {
        let (address, bits) = parse_cidr(text).expect("what is taken is a range");
        let range: davit_netplan::Network = text.parse().expect("a range for the network, too");
        assert_eq!((range.first(), u32::from(range.bits())), (address, bits));
    }
    // the smallest ranges have room for no Service
    if let Some(range) = ServiceRange::of_cidr(text).filter(|range| !range.addresses().is_empty()) {
        assert!(range.contains(range.kubernetes()) && range.contains(range.dns()));
    }
    if !text.starts_with('[') {
        assert_eq!(without_brackets(&bracketed(text)), text);
    }
}

/// Whether a set of the configuration enables a plugin twice. Defaults are merged with such a set as kube-scheduler
/// merges them, which changes the order, and the profile is refused when it is built.
fn repeats_plugins(configuration: &KubeSchedulerConfiguration) -> bool {
    let mut sets = configuration
        .profiles
        .iter()
        .flat_map(|p| p.plugins.named());
    sets.any(|(_, set)| {
        let mut seen = BTreeSet::new();
        !set.enabled.iter().all(|p| seen.insert(p.name.as_str()))
    })
}

/// Any text as a `KubeSchedulerConfiguration`: what was read and written is read as the same.
pub fn scheduler_config(data: &[u8]) {
    let Ok(text) = from_utf8(data) else { return };
    let Ok(read) = KubeSchedulerConfiguration::parse(text) else {
        return;
    };
    let is_valid = read.validate().is_ok();
    let written = read.to_yaml().expect("what was read can be written");
    let again = KubeSchedulerConfiguration::parse(&written);
    let again = again.expect("what was written can be read");
    if !repeats_plugins(&read) {
        assert_eq!(again.to_yaml().ok(), Some(written));
    }
    assert_eq!(again.validate().is_ok(), is_valid);
}

/// Any Service with its slices on any node: what stands in the kernel is of the family that was asked for.
pub fn service_plan(data: &[u8]) {
    let Some([service, slices, node]) = parts(data) else {
        return;
    };
    let (Ok(service), Ok(slices), Ok(node)) = (
        serde_json::from_value::<Service>(service),
        serde_json::from_value::<Vec<EndpointSlice>>(slices),
        serde_json::from_value::<Node>(node),
    ) else {
        return;
    };
    let slices: Vec<&EndpointSlice> = slices.iter().collect();
    let on = davit_netplan::Node {
        name: node.metadata.name.clone().unwrap_or_default(),
        zone: Some("z".to_owned()),
        internal: davit_netplan::addresses_of(&node).collect(),
        external: davit_netplan::external_addresses_of(&node).collect(),
    };
    for family in [Family::V4, Family::V6] {
        let planned = plan(&service, &slices, &on, family);
        let mut own = planned.own_addresses().into_iter();
        assert!(own.all(|address| Family::of(address) == family));
        let _ranges = davit_netplan::range_of(&node, family);
    }
}

/// Any policies about any pods: what they let through is said within its limit, or not at all.
pub fn network_policy(data: &[u8]) {
    let Some([policies, pods, labels]) = parts(data) else {
        return;
    };
    let (Ok(policies), Ok(pods), Ok(labels)) = (
        serde_json::from_value::<Vec<NetworkPolicy>>(policies),
        serde_json::from_value::<Vec<Pod>>(pods),
        serde_json::from_value(labels),
    ) else {
        return;
    };
    let mut world = PolicyWorld::default();
    world.set_namespace("n", Some(labels));
    for (index, policy) in policies.iter().enumerate() {
        let compiled = CompiledPolicy::new(policy);
        world.set_policy("n", &index.to_string(), Some(compiled));
    }
    for (index, pod) in pods.iter().enumerate() {
        world.set_pod("n", &index.to_string(), Some(PolicyPod::new(pod)));
    }
    for index in 0..pods.len() {
        let isolation = world.isolation("n", &index.to_string());
        let isolation = isolation.expect("the pod is known");
        assert!(said(&isolation) <= 2 * MAX_COST || isolation.too_large);
        for group in isolation.groups() {
            let members = world.members(group);
            assert!(members.len() <= 2 * pods.len());
        }
    }
}

/// How many peers and ports are let through.
fn said(isolation: &Isolation) -> usize {
    let all = isolation.ingress.iter().chain(&isolation.egress).flatten();
    all.map(|allowed| allowed.peers.len() + allowed.ports.as_ref().map_or(0, BTreeSet::len))
        .sum()
}

/// Any page of metrics of a node: what is read of a line is read again when it is written.
pub fn samples(data: &[u8]) {
    let Ok(text) = from_utf8(data) else { return };
    for line in text.lines() {
        let Some(sample) = MetricSample::read(line) else {
            continue;
        };
        let escaped = |text: &str| {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"");
            text.replace('\n', "\\n")
        };
        let labels = sample.labels.iter();
        let labels: Vec<String> = labels
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let time = sample.milliseconds.map(|time| format!(" {time}"));
        let written = format!(
            "{}{{{}}} {}{}",
            sample.name,
            labels.join(","),
            sample.value,
            time.unwrap_or_default()
        );
        let again = MetricSample::read(&written).expect("what was written is read");
        assert_eq!(again.labels, sample.labels);
        let same = again.value == sample.value || (again.value.is_nan() && sample.value.is_nan());
        assert!(
            same && again.milliseconds == sample.milliseconds,
            "{written}"
        );
    }
}

fn parts<const N: usize>(data: &[u8]) -> Option<[Value; N]> {
    let parts: Vec<Value> = serde_json::from_slice(data).ok()?;
    parts.try_into().ok()
}
