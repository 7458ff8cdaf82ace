//! Services; endpoints, ingresses, network policies, ranges of addresses and claims on them below.

use std::collections::{HashMap, HashSet};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::containers::{port_number, port_or_name};
use super::fields::{choice, optional_choice};
use super::json::{
    at, at_mut, default, default_unset, has, int_at, keep, list_at, list_mut, object_mut, remove,
    set, str_at,
};
use super::{Generic, KindInfo, Strategy, access, fields, meta};

mod addresses;
mod endpoints;
mod families;
mod ingresses;
mod load_balancers;
mod policies;

pub(super) use load_balancers::cidr;

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "Service" => Box::new(Service(info)),
        "Endpoints" => Box::new(endpoints::Endpoints(info)),
        "EndpointSlice" => Box::new(endpoints::EndpointSlice(info)),
        "Ingress" => Box::new(ingresses::Ingress(info)),
        "IngressClass" => Box::new(ingresses::IngressClass(info)),
        "NetworkPolicy" => Box::new(policies::NetworkPolicy(info)),
        "ServiceCIDR" => Box::new(addresses::ServiceCidr(info)),
        "IPAddress" => Box::new(addresses::IpAddress(info)),
        _ => Box::new(Generic::new(info)),
    }
}

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

struct Service(KindInfo);

impl Strategy for Service {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if str_at(obj, &["spec", "type"]) == "LoadBalancer" {
            for point in list_mut(obj, &["status", "loadBalancer", "ingress"]) {
                if !str_at(point, &["ip"]).is_empty() {
                    default_unset(point, "ipMode", "VIP");
                }
            }
        }
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default(spec, "sessionAffinity", "None");
        match str_at(spec, &["sessionAffinity"]) {
            "None" => {
                remove(spec, "sessionAffinityConfig");
            }
            "ClientIP"
                if !has(
                    spec,
                    &["sessionAffinityConfig", "clientIP", "timeoutSeconds"],
                ) =>
            {
                set(
                    spec,
                    "sessionAffinityConfig",
                    json!({"clientIP": {"timeoutSeconds": 10800}}),
                );
            }
            _ => {}
        }
        default(spec, "type", "ClusterIP");
        for port in list_mut(spec, &["ports"]) {
            default(port, "protocol", "TCP");
            let target = at(port, &["targetPort"]);
            if target.is_null() || *target == json!(0) || *target == json!("") {
                let number = at(port, &["port"]).clone();
                set(port, "targetPort", number);
            }
        }
        let kind = str_at(spec, &["type"]).to_owned();
        let external = matches!(&*kind, "NodePort" | "LoadBalancer")
            || (kind == "ClusterIP" && !list_at(spec, &["externalIPs"]).is_empty());
        if external {
            default(spec, "externalTrafficPolicy", "Cluster");
        }
        if kind == "ExternalName" {
            // of no use to it: nobody is shown one
            remove(spec, "internalTrafficPolicy");
        } else {
            default_unset(spec, "internalTrafficPolicy", "Cluster");
        }
        if kind == "LoadBalancer" {
            default_unset(spec, "allocateLoadBalancerNodePorts", true);
        }
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        set(obj, "status", json!({"loadBalancer": {}}));
        if let Some(spec) = obj.get_mut("spec") {
            families::addresses_in_step(spec);
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        access::keep_status(&self.0, new, old);
        families::keep(new, old);
        keep_assigned(new, old);
        drop_what_the_type_lacks(new, old);
        if str_at(new, &["spec", "type"]) != "LoadBalancer" {
            // Whoever has given addresses takes them back in his own time; they are in force no more.
            if let Some(status) = object_mut(new, "status") {
                status.insert("loadBalancer".to_owned(), json!({}));
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        service(obj, &mut errors);
        load_balancers::source_ranges(obj, &Value::Null, &mut errors);
        service_size(at(obj, &["spec"]), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        // what is there already may stay
        if ways_in(at(new, &["spec"])) > ways_in(at(old, &["spec"])) {
            service_size(at(new, &["spec"]), &mut errors);
        }
        families::validate_update(at(new, &["spec"]), at(old, &["spec"]), &mut errors);
        load_balancers::class_stays(at(new, &["spec"]), at(old, &["spec"]), &mut errors);
        let number = |service| int_at(service, &["spec", "healthCheckNodePort"]).unwrap_or(0);
        let both = [new, old].map(|s| needs_health_check(at(s, &["spec"])));
        if both == [true; 2] && number(old) != 0 && number(new) != number(old) {
            let path = Path::new("spec").child("healthCheckNodePort");
            errors.push(FieldError::forbidden(&path, "field is immutable"));
        }
        service(new, &mut errors);
        load_balancers::source_ranges(new, old, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        load_balancers::status(new, &mut errors);
        errors
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        warnings(obj)
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["spec.clusterIP", "spec.type"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![
            (
                "spec.clusterIP",
                str_at(obj, &["spec", "clusterIP"]).to_owned(),
            ),
            ("spec.type", str_at(obj, &["spec", "type"]).to_owned()),
        ]
    }
}

fn warnings(obj: &Value) -> Vec<String> {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let spec = at(obj, &["spec"]);
    let named = str_at(spec, &["type"]) == "ExternalName";
    let headless = str_at(spec, &["type"]) == "ClusterIP" && str_at(spec, &["clusterIP"]) == "None";
    let given = |key: &str| !super::json::is_empty(at(spec, &[key]));
    let external = given("externalIPs");
    let texts = [
        (
            has(obj, &["metadata", "annotations", HINTS]),
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
        ),
        (
            headless && given("loadBalancerIP"),
            "spec.loadBalancerIP is ignored for headless services",
        ),
        (
            headless && external,
            "spec.externalIPs is ignored for headless services",
        ),
        (
            headless && str_at(spec, &["sessionAffinity"]) != "None",
            "spec.SessionAffinity is ignored for headless services",
        ),
        (
            external && !headless && !named,
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
        (
            external && named,
            "spec.externalIPs is ignored when spec.type is \"ExternalName\"",
        ),
        (
            given("externalName") && !named,
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
        (
            str_at(spec, &["trafficDistribution"]) == "PreferClose",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ),
    ];
    let texts = texts.into_iter().filter(|(holds, _)| *holds);
    texts.map(|(_, text)| text.to_owned()).collect()
}

/// A writer that leaves out what the cluster assigned does not mean to give it back.
fn keep_assigned(new: &mut Value, old: &Value) {
    let stored = at(old, &["spec"]);
    let Some(spec) = new.get_mut("spec") else {
        return;
    };
    let asked = int_at(spec, &["healthCheckNodePort"]).unwrap_or(0);
    if asked == 0 && needs_health_check(stored) && needs_health_check(spec) {
        keep(spec, stored, "healthCheckNodePort");
    }
    if !needs_node_ports(stored) || !needs_node_ports(spec) {
        return;
    }
    let place = |port: &Value| ["port", "protocol"].map(|key| at(port, &[key]).to_string());
    // the first of a place
    let before = list_at(stored, &["ports"]).iter().rev();
    let before: HashMap<[String; 2], &Value> = before.map(|p| (place(p), p)).collect();
    for port in list_mut(spec, &["ports"]) {
        let twin = before.get(&place(port));
        if let (Some(twin), true) = (twin, int_at(port, &["nodePort"]).unwrap_or(0) == 0) {
            keep(port, twin, "nodePort");
        }
    }
}

/// Whether ports of nodes are given to it.
fn needs_node_ports(spec: &Value) -> bool {
    match str_at(spec, &["type"]) {
        "NodePort" => true,
        "LoadBalancer" => at(spec, &["allocateLoadBalancerNodePorts"]) != &Value::Bool(false),
        _ => false,
    }
}

/// Whether load balancers ask the nodes at `healthCheckNodePort` if endpoints are there.
fn needs_health_check(spec: &Value) -> bool {
    str_at(spec, &["type"]) == "LoadBalancer" && str_at(spec, &["externalTrafficPolicy"]) == "Local"
}

/// A writer that changes nothing but the type does not mean to keep what the new type cannot have:
/// fields that only the old one has go, unless they were changed as well.
fn drop_what_the_type_lacks(new: &mut Value, old: &Value) {
    let stored = at(old, &["spec"]);
    let Some(spec) = new.get_mut("spec") else {
        return;
    };
    let (kind, before) = (
        str_at(spec, &["type"]).to_owned(),
        str_at(stored, &["type"]),
    );
    let same = |spec: &Value, key: &str| at(spec, &[key]) == at(stored, &[key]);
    if needs_health_check(stored) && !needs_health_check(spec) && same(spec, "healthCheckNodePort")
    {
        remove(spec, "healthCheckNodePort");
    }
    if kind == before {
        return;
    }
    if kind == "ExternalName" {
        if same(spec, "clusterIP") && same(spec, "clusterIPs") {
            remove(spec, "clusterIP");
            remove(spec, "clusterIPs");
        }
        for key in ["ipFamilies", "ipFamilyPolicy"] {
            if same(spec, key) {
                remove(spec, key);
            }
        }
    }
    if !matches!(&*kind, "NodePort" | "LoadBalancer") {
        let numbers = |spec: &Value| -> Vec<Value> {
            let ports = list_at(spec, &["ports"]).iter();
            ports.map(|port| at(port, &["nodePort"]).clone()).collect()
        };
        if numbers(spec) == numbers(stored) {
            for port in list_mut(spec, &["ports"]) {
                remove(port, "nodePort");
            }
        }
        if list_at(spec, &["externalIPs"]).is_empty() && same(spec, "externalTrafficPolicy") {
            remove(spec, "externalTrafficPolicy");
        }
    }
    if kind != "LoadBalancer" {
        for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(spec, key) {
                remove(spec, key);
            }
        }
    }
}

/// Most pairs of a port and an address, or a range of sources, of one Service: each is an element in the kernel of every node,
/// and again for each endpoint.
const MAX_WAYS_IN: usize = 1_000;

fn ways_in(spec: &Value) -> usize {
    let lists = ["externalIPs", "loadBalancerSourceRanges"];
    let addresses = lists.map(|list| list_at(spec, &[list]).len());
    list_at(spec, &["ports"]).len() * (1 + addresses.iter().sum::<usize>())
}

/// A Service of 29 KB was half a million elements on every node.
fn service_size(spec: &Value, errors: &mut ErrorList) {
    let ways = ways_in(spec);
    if ways > MAX_WAYS_IN {
        let why = format!(
            "ports times addresses (the cluster's, externalIPs and loadBalancerSourceRanges) must not be more than {MAX_WAYS_IN}: they are {ways}"
        );
        errors.push(FieldError::forbidden(
            &Path::new("spec").child("ports"),
            why,
        ));
    }
}

fn service(obj: &Value, errors: &mut ErrorList) {
    let spec = at(obj, &["spec"]);
    let path = Path::new("spec");
    let kind = str_at(spec, &["type"]);
    let headless = str_at(spec, &["clusterIP"]) == "None";
    let ports = list_at(spec, &["ports"]);
    let at_ports = path.child("ports");
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required(&at_ports, ""));
    }
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    choice(spec, "type", &kinds, &path, errors);
    choice(
        spec,
        "sessionAffinity",
        &["ClientIP", "None"],
        &path,
        errors,
    );
    meta::labels(at(spec, &["selector"]), &path.child("selector"), errors);
    if kind == "ExternalName" {
        let name = str_at(spec, &["externalName"]);
        let name = name.strip_suffix('.').unwrap_or(name);
        let path = path.child("externalName");
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else {
            errors.extend(invalid_each(
                &path,
                name,
                names::check_dns1123_subdomain(name),
            ));
        }
    }
    affinity(spec, &path, errors);
    families::validate(spec, &path, errors);
    if headless && matches!(kind, "LoadBalancer" | "NodePort") {
        let fault = format!("may not be set to 'None' for {kind} services");
        errors.push(FieldError::invalid(
            &path.child("clusterIPs").index(0),
            "None",
            fault,
        ));
    }
    for (i, ip) in list_at(spec, &["externalIPs"]).iter().enumerate() {
        let ip = ip.as_str().unwrap_or_default();
        let path = path.child("externalIPs").index(i);
        errors.extend(invalid_each(&path, ip, endpoint_ip(ip)));
    }
    let mut taken = HashSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = at_ports.index(i);
        service_port(port, ports.len() > 1, &mut taken, &path, errors);
        if kind == "ClusterIP" && int_at(port, &["nodePort"]).unwrap_or(0) != 0 {
            let why = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(&path.child("nodePort"), why));
        }
    }
    unique_ports(ports, &at_ports, errors);
    traffic(spec, &path, errors);
    load_balancers::validate(spec, &path, errors);
    health_check(spec, &path, errors);
}

/// How long a client stays with an endpoint.
fn affinity(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const MOST: i64 = 86_400;
    if str_at(spec, &["sessionAffinity"]) != "ClientIP" {
        return;
    }
    let key = "sessionAffinityConfig";
    let seconds = int_at(spec, &[key, "clientIP", "timeoutSeconds"]);
    if let Some(seconds) = seconds.filter(|s| !(1..=MOST).contains(s)) {
        let path = path.child(key).child("clientIP").child("timeoutSeconds");
        let fault = format!("must be greater than 0 and less than {MOST}");
        errors.push(FieldError::invalid(&path, seconds, fault));
    }
}

/// Each number once for each protocol.
fn unique_ports(ports: &[Value], path: &Path, errors: &mut ErrorList) {
    let (mut numbers, mut on_nodes) = (HashSet::new(), HashSet::new());
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let protocol = str_at(port, &["protocol"]);
        let node_port = int_at(port, &["nodePort"]).unwrap_or(0);
        if node_port != 0 && !on_nodes.insert((node_port, protocol)) {
            errors.push(FieldError::duplicate(&path.child("nodePort"), node_port));
        }
        let number = int_at(port, &["port"]).unwrap_or(0);
        if !numbers.insert((number, protocol)) {
            // in the original's spelling, which is what clients see
            let value = json!({"Name": "", "Protocol": protocol, "AppProtocol": null, "Port": number,
                "TargetPort": 0, "NodePort": 0});
            errors.push(FieldError::duplicate(&path, value));
        }
    }
}

/// Which endpoints traffic goes to.
fn traffic(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let policies = ["Cluster", "Local"];
    let kind = str_at(spec, &["type"]);
    let from_outside = matches!(kind, "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && !list_at(spec, &["externalIPs"]).is_empty());
    let external = str_at(spec, &["externalTrafficPolicy"]);
    if from_outside {
        choice(spec, "externalTrafficPolicy", &policies, path, errors);
    } else if !external.is_empty() {
        let fault = "may only be set for externally-accessible services";
        let path = path.child("externalTrafficPolicy");
        errors.push(FieldError::invalid(&path, external, fault));
    }
    optional_choice(spec, "internalTrafficPolicy", &policies, path, errors);
    const SPREAD: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    if let Some(word) = at(spec, &["trafficDistribution"]).as_str()
        && !SPREAD.contains(&word)
    {
        let path = path.child("trafficDistribution");
        errors.push(FieldError::not_supported(&path, word, &SPREAD));
    }
    health_check(spec, path, errors);
}

fn health_check(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let number = int_at(spec, &["healthCheckNodePort"]).unwrap_or(0);
    let path = path.child("healthCheckNodePort");
    if number != 0 && !needs_health_check(spec) {
        let why =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(FieldError::invalid(&path, number, why));
    } else if number != 0 {
        port_number(number, &path, errors);
    }
}

fn service_port<'a>(
    port: &'a Value,
    named: bool,
    taken: &mut HashSet<&'a str>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let name = str_at(port, &["name"]);
    let at_name = path.child("name");
    if name.is_empty() {
        if named {
            errors.push(FieldError::required(&at_name, ""));
        }
    } else {
        errors.extend(invalid_each(
            &at_name,
            name,
            names::check_dns1123_label(name),
        ));
        if !taken.insert(name) {
            errors.push(FieldError::duplicate(&at_name, name));
        }
    }
    port_number(
        int_at(port, &["port"]).unwrap_or(0),
        &path.child("port"),
        errors,
    );
    choice(port, "protocol", &PROTOCOLS, path, errors);
    port_or_name(at(port, &["targetPort"]), &path.child("targetPort"), errors);
    fields::given_name(
        port,
        "appProtocol",
        names::check_qualified_name,
        path,
        errors,
    );
}

/// An address of endpoints is a valid one, and one that is the same for whoever is led to it.
fn endpoint_ip(ip: &str) -> Vec<String> {
    let faults = names::check_ip(ip);
    if faults.is_empty() {
        return names::check_non_special_ip(ip);
    }
    faults
}
