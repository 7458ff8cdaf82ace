//! Services, endpoints and ingresses; network policies, ranges of addresses and claims on them below.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::containers::{choice, optional_choice, port_number, port_or_name, required};
use super::json::{
    at, at_mut, default, default_unset, has, int_at, keep, list_at, list_mut, object_mut, remove,
    set, str_at,
};
use super::{Generic, KindInfo, Strategy, access, meta};

mod addresses;
mod families;
mod policies;

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "Service" => Box::new(Service(info)),
        "Endpoints" => Box::new(Endpoints(info)),
        "EndpointSlice" => Box::new(EndpointSlice(info)),
        "Ingress" => Box::new(Ingress(info)),
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
        if kind != "ExternalName" {
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
        let number = |service| int_at(service, &["spec", "healthCheckNodePort"]).unwrap_or(0);
        let both = [new, old].map(|s| needs_health_check(at(s, &["spec"])));
        if both == [true; 2] && number(old) != 0 && number(new) != number(old) {
            let path = Path::new("spec").child("healthCheckNodePort");
            errors.push(FieldError::invalid(
                &path,
                number(new),
                "field is immutable",
            ));
        }
        service(new, &mut errors);
        errors
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

    fn allow_create_on_update(&self) -> bool {
        true
    }
}

/// A writer that leaves out what the cluster assigned does not mean to give it back.
fn keep_assigned(new: &mut Value, old: &Value) {
    let kind = str_at(new, &["spec", "type"]).to_owned();
    let stored = at(old, &["spec"]);
    let Some(spec) = new.get_mut("spec") else {
        return;
    };
    let asked = int_at(spec, &["healthCheckNodePort"]).unwrap_or(0);
    if asked == 0 && needs_health_check(stored) && needs_health_check(spec) {
        keep(spec, stored, "healthCheckNodePort");
    }
    if !matches!(&*kind, "NodePort" | "LoadBalancer") {
        return;
    }
    for port in list_mut(spec, &["ports"]) {
        let twin = list_at(stored, &["ports"]).iter().find(|p| {
            ["port", "protocol"]
                .iter()
                .all(|key| at(p, &[key]) == at(port, &[key]))
        });
        if let (Some(twin), true) = (twin, int_at(port, &["nodePort"]).unwrap_or(0) == 0) {
            keep(port, twin, "nodePort");
        }
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
        if kind == "ExternalName" && same(spec, "internalTrafficPolicy") {
            remove(spec, "internalTrafficPolicy");
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
        let name = str_at(spec, &["externalName"]).trim_end_matches('.');
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
    let (mut taken, mut numbers) = (HashSet::new(), HashSet::new());
    for (i, port) in ports.iter().enumerate() {
        let path = at_ports.index(i);
        service_port(port, ports.len() > 1, &mut taken, &path, errors);
        let key = (int_at(port, &["port"]), str_at(port, &["protocol"]));
        if !numbers.insert(key) {
            let value = json!({"port": key.0, "protocol": key.1});
            errors.push(FieldError::duplicate(&path, value));
        }
        let node_port = int_at(port, &["nodePort"]).unwrap_or(0);
        if node_port != 0 && matches!(kind, "ClusterIP" | "ExternalName") {
            let why = format!("may not be used when `type` is '{kind}'");
            errors.push(FieldError::forbidden(&path.child("nodePort"), why));
        } else if node_port != 0 {
            port_number(node_port, &path.child("nodePort"), errors);
        }
    }
    let policies = ["Cluster", "Local"];
    for key in ["externalTrafficPolicy", "internalTrafficPolicy"] {
        optional_choice(spec, key, &policies, &path, errors);
    }
    health_check(spec, &path, errors);
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
}

struct Endpoints(KindInfo);

impl Strategy for Endpoints {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        for subset in list_mut(obj, &["subsets"]) {
            for port in list_mut(subset, &["ports"]) {
                default(port, "protocol", "TCP");
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        subsets(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        subsets(new, &mut errors);
        errors
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }
}

/// An address of endpoints is a valid one, and one that is the same for whoever is led to it.
fn endpoint_ip(ip: &str) -> Vec<String> {
    let faults = names::check_ip(ip);
    if faults.is_empty() {
        return names::check_non_special_ip(ip);
    }
    faults
}

fn subsets(obj: &Value, errors: &mut ErrorList) {
    for (i, subset) in list_at(obj, &["subsets"]).iter().enumerate() {
        let path = Path::new("subsets").index(i);
        let lists = ["addresses", "notReadyAddresses"];
        if lists.iter().all(|list| list_at(subset, &[list]).is_empty()) {
            let why = "must specify `addresses` or `notReadyAddresses`";
            errors.push(FieldError::required(&path, why));
        }
        for list in lists {
            for (i, address) in list_at(subset, &[list]).iter().enumerate() {
                let ip = str_at(address, &["ip"]);
                let path = path.child(list).index(i).child("ip");
                errors.extend(invalid_each(&path, ip, endpoint_ip(ip)));
            }
        }
        let ports = list_at(subset, &["ports"]);
        for (i, port) in ports.iter().enumerate() {
            let path = path.child("ports").index(i);
            if ports.len() > 1 {
                required(port, "name", &path, errors);
            }
            port_number(
                int_at(port, &["port"]).unwrap_or(0),
                &path.child("port"),
                errors,
            );
            choice(port, "protocol", &PROTOCOLS, &path, errors);
        }
    }
}

struct EndpointSlice(KindInfo);

impl Strategy for EndpointSlice {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        for port in list_mut(obj, &["ports"]) {
            default_unset(port, "name", "");
            default_unset(port, "protocol", "TCP");
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        slice(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["addressType"], &mut errors);
        slice(new, &mut errors);
        errors
    }
}

fn slice(obj: &Value, errors: &mut ErrorList) {
    choice(
        obj,
        "addressType",
        &["FQDN", "IPv4", "IPv6"],
        &Path::root(),
        errors,
    );
    let kind = str_at(obj, &["addressType"]);
    for (i, endpoint) in list_at(obj, &["endpoints"]).iter().enumerate() {
        let path = Path::new("endpoints").index(i).child("addresses");
        let addresses = list_at(endpoint, &["addresses"]);
        if addresses.is_empty() {
            errors.push(FieldError::required(
                &path,
                "must contain at least 1 address",
            ));
        }
        for (i, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
            let faults = match kind {
                "FQDN" => names::check_dns1123_subdomain(address),
                "IPv6" if address.parse::<Ipv4Addr>().is_ok() => {
                    vec!["must be a valid IPv6 address".to_owned()]
                }
                "IPv4" if address.parse::<Ipv6Addr>().is_ok() => {
                    vec!["must be a valid IPv4 address".to_owned()]
                }
                _ => endpoint_ip(address),
            };
            errors.extend(invalid_each(&path.index(i), address, faults));
        }
    }
    for (i, port) in list_at(obj, &["ports"]).iter().enumerate() {
        let path = Path::new("ports").index(i);
        choice(port, "protocol", &PROTOCOLS, &path, errors);
        if let Some(number) = int_at(port, &["port"]) {
            port_number(number, &path.child("port"), errors);
        }
    }
}

struct Ingress(KindInfo);

impl Strategy for Ingress {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        ingress(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        ingress(new, &mut errors);
        errors
    }
}

fn ingress(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let backend = at(spec, &["defaultBackend"]);
    let rules = list_at(spec, &["rules"]);
    if rules.is_empty() && backend.is_null() {
        let fault = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(&path, rules.to_vec(), fault));
    }
    if !backend.is_null() {
        ingress_backend(backend, &path.child("defaultBackend"), errors);
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.child("rules").index(i);
        let host = str_at(rule, &["host"]);
        if !host.is_empty() {
            let faults = if host.contains('*') {
                names::check_wildcard_dns1123_subdomain(host)
            } else {
                names::check_dns1123_subdomain(host)
            };
            errors.extend(invalid_each(&path.child("host"), host, faults));
        }
        for (i, p) in list_at(rule, &["http", "paths"]).iter().enumerate() {
            let path = path.child("http").child("paths").index(i);
            let kinds = ["Exact", "ImplementationSpecific", "Prefix"];
            if str_at(p, &["pathType"]).is_empty() {
                let why = "pathType must be specified";
                errors.push(FieldError::required(&path.child("pathType"), why));
            } else {
                choice(p, "pathType", &kinds, &path, errors);
            }
            let target = str_at(p, &["path"]);
            let absolute = target.starts_with('/')
                || (target.is_empty() && str_at(p, &["pathType"]) == "ImplementationSpecific");
            if !absolute {
                let fault = "must be an absolute path";
                errors.push(FieldError::invalid(&path.child("path"), target, fault));
            }
            ingress_backend(at(p, &["backend"]), &path.child("backend"), errors);
        }
    }
}

fn ingress_backend(backend: &Value, path: &Path, errors: &mut ErrorList) {
    let service = at(backend, &["service"]);
    match (service.is_null(), has(backend, &["resource"])) {
        (true, true) => {}
        (true, false) => {
            errors.push(FieldError::required(
                path,
                "resource or service backend is required",
            ));
        }
        (false, true) => {
            let fault = "cannot set both resource and service backends";
            errors.push(FieldError::invalid(path, "", fault));
        }
        (false, false) => {
            let path = path.child("service");
            required(service, "name", &path, errors);
            let port = at(service, &["port"]);
            let name = str_at(port, &["name"]);
            let path = path.child("port");
            if name.is_empty() {
                let number = int_at(port, &["number"]).unwrap_or(0);
                port_number(number, &path.child("number"), errors);
            } else {
                let faults = names::check_port_name(name);
                errors.extend(invalid_each(&path.child("name"), name, faults));
            }
        }
    }
}
