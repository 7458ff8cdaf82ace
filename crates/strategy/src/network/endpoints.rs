//! Addresses behind Services: Endpoints, and the slices of today.

use std::net::IpAddr;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::containers::port_number;
use super::super::fields;
use super::super::fields::choice;
use super::super::json::{
    at, default, default_unset, int_at, list_at, list_mut, remove, same, str_at,
};
use super::super::{KindInfo, Strategy, access, meta};
use super::{PROTOCOLS, endpoint_ip};

pub(super) struct Endpoints(pub(super) KindInfo);

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
        // what was stored may stay
        if !same(at(new, &["subsets"]), at(old, &["subsets"])) {
            subsets(new, &mut errors);
        }
        errors
    }
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
                endpoint_address(address, &path.child(list).index(i), errors);
            }
        }
        let ports = list_at(subset, &["ports"]);
        for (i, port) in ports.iter().enumerate() {
            let path = path.child("ports").index(i);
            let name = if ports.len() > 1 {
                fields::name
            } else {
                fields::optional_name
            };
            name(port, "name", names::check_dns1123_label, &path, errors);
            let number = int_at(port, &["port"]).unwrap_or(0);
            port_number(number, &path.child("port"), errors);
            choice(port, "protocol", &PROTOCOLS, &path, errors);
            app_protocol(port, &path, errors);
        }
    }
}

fn endpoint_address(address: &Value, path: &Path, errors: &mut ErrorList) {
    let ip = str_at(address, &["ip"]);
    let at_ip = path.child("ip");
    errors.extend(invalid_each(&at_ip, ip, names::check_ip(ip)));
    let label = names::check_dns1123_label;
    fields::optional_name(address, "hostname", label, path, errors);
    let node = names::check_dns1123_subdomain;
    fields::given_name(address, "nodeName", node, path, errors);
    errors.extend(invalid_each(&at_ip, ip, names::check_non_special_ip(ip)));
}

fn app_protocol(port: &Value, path: &Path, errors: &mut ErrorList) {
    fields::given_name(
        port,
        "appProtocol",
        names::check_qualified_name,
        path,
        errors,
    );
}

pub(super) struct EndpointSlice(pub(super) KindInfo);

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

    fn prepare_for_create(&self, obj: &mut Value) {
        access::first_generation(&self.0, obj);
        drop_topology(obj);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        access::next_generation(&self.0, new, old);
        if !same(at(new, &["endpoints"]), at(old, &["endpoints"])) {
            drop_topology(new);
        }
    }

    fn create_warnings(&self, obj: &Value) -> Vec<String> {
        let is_old = str_at(obj, &["addressType"]) == "FQDN";
        let text = || "spec.addressType: FQDN endpoints are deprecated".to_owned();
        is_old.then(text).into_iter().collect()
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        slice(obj, None, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        slice(new, Some(old), &mut errors);
        meta::immutable_at(new, old, &["addressType"], &mut errors);
        errors
    }
}

/// Labels of nodes on endpoints were a thing of the beta versions.
fn drop_topology(obj: &mut Value) {
    for endpoint in list_mut(obj, &["endpoints"]) {
        remove(endpoint, "deprecatedTopology");
    }
}

fn slice(obj: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    const PORTS_MAX: usize = 20_000;
    const ENDPOINTS_MAX: usize = 1000;
    let kinds = ["FQDN", "IPv4", "IPv6"];
    choice(obj, "addressType", &kinds, &Path::root(), errors);
    let ports = list_at(obj, &["ports"]);
    let path = Path::new("ports");
    if ports.len() > PORTS_MAX {
        errors.push(FieldError::too_many(&path, ports.len(), PORTS_MAX));
    } else {
        slice_ports(ports, &path, errors);
    }
    let endpoints = list_at(obj, &["endpoints"]);
    // what was stored may stay
    if old.is_some_and(|old| same(at(obj, &["endpoints"]), at(old, &["endpoints"]))) {
        return;
    }
    let path = Path::new("endpoints");
    if endpoints.len() > ENDPOINTS_MAX {
        errors.push(FieldError::too_many(&path, endpoints.len(), ENDPOINTS_MAX));
        return;
    }
    let kind = str_at(obj, &["addressType"]);
    for (i, endpoint) in endpoints.iter().enumerate() {
        slice_endpoint(endpoint, kind, &path.index(i), errors);
    }
}

fn slice_ports(ports: &[Value], path: &Path, errors: &mut ErrorList) {
    let mut taken = std::collections::HashSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let label = names::check_dns1123_label;
        fields::optional_name(port, "name", label, &path, errors);
        let name = str_at(port, &["name"]);
        if !taken.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        choice(port, "protocol", &PROTOCOLS, &path, errors);
        app_protocol(port, &path, errors);
    }
}

fn slice_endpoint(endpoint: &Value, kind: &str, path: &Path, errors: &mut ErrorList) {
    const ADDRESSES_MAX: usize = 100;
    let at_addresses = path.child("addresses");
    let addresses = list_at(endpoint, &["addresses"]);
    if addresses.is_empty() {
        let why = "must contain at least 1 address";
        errors.push(FieldError::required(&at_addresses, why));
    } else if addresses.len() > ADDRESSES_MAX {
        let count = addresses.len();
        errors.push(FieldError::too_many(&at_addresses, count, ADDRESSES_MAX));
    }
    for (i, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
        let path = at_addresses.index(i);
        if kind == "FQDN" {
            full_name(address, &path, errors);
            continue;
        }
        let wrong_family = match (kind, address.parse::<IpAddr>()) {
            ("IPv4", Ok(IpAddr::V6(_))) => Some("must be an IPv4 address"),
            ("IPv6", Ok(IpAddr::V4(_))) => Some("must be an IPv6 address"),
            _ => None,
        };
        if let Some(fault) = wrong_family {
            errors.push(FieldError::invalid(&at_addresses, address, fault));
        }
        if matches!(kind, "IPv4" | "IPv6") {
            let faults = match kind {
                "IPv6" => names::check_canonical_ip(address),
                _ => Vec::new(),
            };
            let faults = match faults.is_empty() {
                true => endpoint_ip(address),
                false => faults,
            };
            errors.extend(invalid_each(&path, address, faults));
        }
    }
    let node = names::check_dns1123_subdomain;
    fields::given_name(endpoint, "nodeName", node, path, errors);
    let label = names::check_dns1123_label;
    fields::given_name(endpoint, "hostname", label, path, errors);
    let at_hints = path.child("hints");
    let (zones, nodes) = ("forZones", "forNodes");
    hints(endpoint, zones, names::check_label_value, &at_hints, errors);
    hints(endpoint, nodes, node, &at_hints, errors);
}

fn hints(
    endpoint: &Value,
    list: &str,
    check: fields::NameCheck,
    path: &Path,
    errors: &mut ErrorList,
) {
    const HINTS_MAX: usize = 8;
    let hints = list_at(endpoint, &["hints", list]);
    let path = path.child(list);
    if hints.len() > HINTS_MAX {
        errors.push(FieldError::too_many(&path, hints.len(), HINTS_MAX));
        return;
    }
    for (i, hint) in hints.iter().enumerate() {
        let name = str_at(hint, &["name"]);
        let path = path.index(i).child("name");
        if hints[..i].iter().any(|h| str_at(h, &["name"]) == name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        errors.extend(invalid_each(&path, name, check(name)));
    }
}

/// The name of a machine. Kubernetes wants one with a domain, but a box of its own may have none.
fn full_name(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let faults = names::check_dns1123_subdomain(name);
    if !faults.is_empty() {
        errors.push(FieldError::invalid(path, name, faults.join(",")));
    } else if let Some((label, faults)) = name
        .split('.')
        .map(|label| (label, names::check_dns1123_label(label)))
        .find(|(_, faults)| !faults.is_empty())
    {
        errors.push(FieldError::invalid(path, label, faults.join(",")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, none, update_faults};

    const SLICE: (&str, &str, &str) = ("discovery.k8s.io", "v1", "EndpointSlice");
    const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

    fn slice(kind: &str, endpoint: Value, ports: Value) -> Value {
        json!({"metadata": {"name": "e", "namespace": "default"}, "addressType": kind,
            "endpoints": [endpoint], "ports": ports})
    }

    #[test]
    fn faults_of_slices() {
        let one = json!({"addresses": ["10.0.0.7"]});
        let cases = [
            (
                slice("IPv4", one.clone(), json!([{"name": "A_b"}])),
                format!("ports[0].name: Invalid value: \"A_b\": {LABEL}"),
            ),
            (
                slice("IPv4", one.clone(), json!([{"port": 1}, {"port": 2}])),
                "ports[1].name: Duplicate value: \"\"".to_owned(),
            ),
            (
                slice("IPv4", json!({"addresses": ["fd00::7"]}), json!([])),
                "endpoints[0].addresses: Invalid value: \"fd00::7\": must be an IPv4 address"
                    .to_owned(),
            ),
            (
                slice("FQDN", json!({"addresses": [""]}), json!([])),
                "endpoints[0].addresses[0]: Required value".to_owned(),
            ),
            (
                slice(
                    "IPv4",
                    json!({"addresses": ["10.0.0.7"], "hostname": "A_b"}),
                    json!([]),
                ),
                format!("endpoints[0].hostname: Invalid value: \"A_b\": {LABEL}"),
            ),
            (
                slice(
                    "IPv4",
                    json!({"addresses": ["10.0.0.7"], "hints": {"forZones": [{"name": "z"}, {"name": "z"}], "forNodes": [{"name": "n"}, {"name": "n"}]}}),
                    json!([]),
                ),
                "endpoints[0].hints.forZones[1].name: Duplicate value: \"z\"\n\
                 endpoints[0].hints.forNodes[1].name: Duplicate value: \"n\""
                    .to_owned(),
            ),
        ];
        for (obj, wanted) in cases {
            assert_eq!(faults(SLICE.0, SLICE.1, SLICE.2, &obj), wanted);
        }
        none(
            SLICE.0,
            SLICE.1,
            SLICE.2,
            &slice("FQDN", json!({"addresses": ["a"]}), json!([])),
        );
        let port = json!([{"name": "", "port": 0, "appProtocol": "kubernetes.io/ws"}]);
        none(SLICE.0, SLICE.1, SLICE.2, &slice("IPv4", one.clone(), port));
    }

    #[test]
    fn stored_endpoints_may_stay() {
        let old = slice(
            "IPv4",
            json!({"addresses": ["10.0.0.7"], "nodeName": "A_b"}),
            json!([]),
        );
        let mut new = old.clone();
        new["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(update_faults(SLICE.0, SLICE.1, SLICE.2, &new, &old), "");
        new["endpoints"][0]["addresses"] = json!(["10.0.0.8"]);
        assert_ne!(update_faults(SLICE.0, SLICE.1, SLICE.2, &new, &old), "");
    }

    #[test]
    fn faults_of_endpoints() {
        let of = |subset: Value| json!({"metadata": {"name": "e", "namespace": "default"}, "subsets": [subset]});
        let cases = [
            (json!({"addresses": [{"ip": "x"}]}),
                "subsets[0].addresses[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)\n\
                 subsets[0].addresses[0].ip: Invalid value: \"x\": must be a valid IP address".to_owned()),
            (json!({"addresses": [{"ip": "10.0.0.7", "hostname": "A_b"}]}), format!("subsets[0].addresses[0].hostname: Invalid value: \"A_b\": {LABEL}")),
            (json!({"addresses": [{"ip": "10.0.0.7"}], "ports": [{"name": "A_b", "port": 1}]}), format!("subsets[0].ports[0].name: Invalid value: \"A_b\": {LABEL}")),
            (json!({"addresses": [{"ip": "10.0.0.7"}], "ports": [{"port": 1}]}), String::new()),
        ];
        for (subset, wanted) in cases {
            assert_eq!(faults("", "v1", "Endpoints", &of(subset)), wanted);
        }
    }
}
