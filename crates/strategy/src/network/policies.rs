//! Network policies.

use std::collections::HashSet;
use std::net::IpAddr;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::super::containers::{port_number, port_or_name};
use super::super::fields::{choice, required};
use super::super::json::{at, at_mut, default, has, int_at, list_at, list_mut, set, str_at};
use super::super::{KindInfo, Strategy, meta, selectors};
use super::PROTOCOLS;

pub(super) struct NetworkPolicy(pub(super) KindInfo);

impl Strategy for NetworkPolicy {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        if list_at(spec, &["policyTypes"]).is_empty() {
            let egress = !list_at(spec, &["egress"]).is_empty();
            let types = if egress {
                json!(["Ingress", "Egress"])
            } else {
                json!(["Ingress"])
            };
            set(spec, "policyTypes", types);
        }
        for direction in ["ingress", "egress"] {
            for rule in list_mut(spec, &[direction]) {
                for port in list_mut(rule, &["ports"]) {
                    default(port, "protocol", "TCP");
                }
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        network_policy(obj, &HashSet::new(), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        network_policy(new, &ranges(old), &mut errors);
        errors
    }
}

/// All ranges that a policy names: they stay possible where it is changed.
fn ranges(policy: &Value) -> HashSet<&str> {
    let mut found = HashSet::new();
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in list_at(policy, &["spec", direction]) {
            for peer in list_at(rule, &[peers]) {
                let block = at(peer, &["ipBlock"]);
                let except = list_at(block, &["except"]).iter();
                found.extend(at(block, &["cidr"]).as_str());
                found.extend(except.filter_map(Value::as_str));
            }
        }
    }
    found
}

fn network_policy(obj: &Value, stored: &HashSet<&str>, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let selector = at(obj, &["spec", "podSelector"]);
    selectors::label_selector(selector, &path.child("podSelector"), errors);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (i, rule) in list_at(obj, &["spec", direction]).iter().enumerate() {
            let path = path.child(direction).index(i);
            for (i, port) in list_at(rule, &["ports"]).iter().enumerate() {
                policy_port(port, &path.child("ports").index(i), errors);
            }
            for (i, peer) in list_at(rule, &[peers]).iter().enumerate() {
                policy_peer(peer, stored, &path.child(peers).index(i), errors);
            }
        }
    }
    let types = list_at(obj, &["spec", "policyTypes"]);
    let path = path.child("policyTypes");
    if types.len() > 2 {
        let why = "may not specify more than two policyTypes";
        errors.push(FieldError::invalid(&path, json!(types), why));
        return;
    }
    let known = ["Ingress", "Egress"];
    for (i, given) in types.iter().enumerate() {
        let given = given.as_str().unwrap_or_default();
        if !known.contains(&given) {
            errors.push(FieldError::not_supported(&path.index(i), given, &known));
        }
    }
}

fn policy_port(port: &Value, path: &Path, errors: &mut ErrorList) {
    choice(port, "protocol", &PROTOCOLS, path, errors);
    if has(port, &["port"]) {
        port_or_name(at(port, &["port"]), &path.child("port"), errors);
    }
    let Some(end) = int_at(port, &["endPort"]) else {
        return;
    };
    let path = path.child("endPort");
    let why = match (has(port, &["port"]), int_at(port, &["port"])) {
        (false, _) => "may not be specified when `port` is not specified",
        (true, None) => "may not be specified when `port` is non-numeric",
        (true, Some(first)) => {
            if end < first {
                let why = "must be greater than or equal to `port`";
                errors.push(FieldError::invalid(&path, end, why));
            }
            port_number(end, &path, errors);
            return;
        }
    };
    errors.push(FieldError::invalid(&path, end, why));
}

fn policy_peer(peer: &Value, stored: &HashSet<&str>, path: &Path, errors: &mut ErrorList) {
    for key in ["podSelector", "namespaceSelector"] {
        selectors::label_selector(at(peer, &[key]), &path.child(key), errors);
    }
    let selected = has(peer, &["podSelector"]) || has(peer, &["namespaceSelector"]);
    let block = has(peer, &["ipBlock"]);
    if block {
        ip_block(
            at(peer, &["ipBlock"]),
            stored,
            &path.child("ipBlock"),
            errors,
        );
    }
    match (selected, block) {
        (false, false) => errors.push(FieldError::required(path, "must specify a peer")),
        (true, true) => {
            let why = "may not specify both ipBlock and another peer";
            errors.push(FieldError::forbidden(path, why));
        }
        _ => {}
    }
}

/// Whether the address is in the range.
fn is_within(address: IpAddr, (first, bits): (IpAddr, u32)) -> bool {
    match (address, first) {
        (IpAddr::V4(address), IpAddr::V4(first)) => {
            let differing = address.to_bits() ^ first.to_bits();
            differing.leading_zeros() >= bits
        }
        (IpAddr::V6(address), IpAddr::V6(first)) => {
            let differing = address.to_bits() ^ first.to_bits();
            differing.leading_zeros() >= bits
        }
        _ => false,
    }
}

fn ip_block(block: &Value, stored: &HashSet<&str>, path: &Path, errors: &mut ErrorList) {
    let check = |text: &str, path: &Path, errors: &mut ErrorList| {
        if !stored.contains(text) {
            errors.extend(invalid_each(path, text, names::check_cidr(text)));
        }
    };
    required(block, "cidr", path, errors);
    let text = str_at(block, &["cidr"]);
    if !text.is_empty() {
        check(text, &path.child("cidr"), errors);
    }
    let Some(range) = names::parse_cidr(text) else {
        return;
    };
    for (i, except) in list_at(block, &["except"]).iter().enumerate() {
        let path = path.child("except").index(i);
        let text = except.as_str().unwrap_or_default();
        check(text, &path, errors);
        match names::parse_cidr(text) {
            Some((address, bits)) if !is_within(address, range) || bits <= range.1 => {
                let why = "must be a strict subset of `cidr`";
                errors.push(FieldError::invalid(&path, text, why));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(rule: Value) -> Vec<String> {
        let mut errors = ErrorList::new();
        let policy = json!({ "spec": {
            "podSelector": {}, "policyTypes": ["Egress"], "egress": [rule],
        }});
        network_policy(&policy, &HashSet::new(), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn item_114_blocks_are_ranges_with_narrower_exceptions() {
        let block = |cidr: &str, except: &[&str]| {
            faults(json!({ "to": [{ "ipBlock": { "cidr": cidr, "except": except } }] }))
        };
        assert_eq!(
            block("10.0.0.0/8", &["10.1.0.0/16", "10.1.2.3/32"]),
            [""; 0]
        );
        assert_eq!(block("fd00::/8", &["fd00::/64"]), [""; 0]);
        assert!(block("", &[])[0].contains("spec.egress[0].to[0].ipBlock.cidr: Required value"));
        // What another program would read as another range is none; one that is stored stays.
        for (odd, fault) in [
            (
                "010.0.0.0/8",
                "must not have leading 0s in IP or prefix length",
            ),
            (
                "10.0.0.0/08",
                "must not have leading 0s in IP or prefix length",
            ),
            (
                "10.1.0.0/8",
                "must not have bits set beyond the prefix length",
            ),
            (
                "::ffff:10.0.0.0/104",
                "must not have an IPv4-mapped IPv6 address",
            ),
        ] {
            let of = |cidr| json!({ "spec": { "egress": [{ "to": [{ "ipBlock": { "cidr": cidr } }] }] } });
            let changed = |old: Value| {
                let mut errors = ErrorList::new();
                network_policy(&of(odd), &ranges(&old), &mut errors);
                errors.iter().map(ToString::to_string).collect::<Vec<_>>()
            };
            assert!(changed(of("10.0.0.0/8"))[0].contains(fault), "{odd}");
            assert_eq!(changed(of(odd)), [""; 0]);
        }
        assert!(block("10.0.0.0", &[])[0].contains("must be a valid CIDR value"));
        assert!(block("10.0.0.0/33", &[])[0].contains("must be a valid CIDR value"));
        for except in ["10.0.0.0/8", "11.0.0.0/16", "fd00::/64"] {
            let faults = block("10.0.0.0/8", &[except]);
            assert!(
                faults[0].contains("except[0]")
                    && faults[0].contains("must be a strict subset of `cidr`")
            );
        }
    }

    #[test]
    fn item_114_ports_end_where_they_can() {
        let port = |port: Value| faults(json!({ "ports": [port] }));
        assert_eq!(
            port(json!({ "protocol": "TCP", "port": 80, "endPort": 80 })),
            [""; 0]
        );
        for (given, why) in [
            (
                json!({ "protocol": "TCP", "port": 80, "endPort": 79 }),
                "must be greater than or equal to `port`",
            ),
            (
                json!({ "protocol": "TCP", "port": "http", "endPort": 80 }),
                "may not be specified when `port` is non-numeric",
            ),
            (
                json!({ "protocol": "TCP", "endPort": 80 }),
                "may not be specified when `port` is not specified",
            ),
            (
                json!({ "protocol": "TCP", "port": 80, "endPort": 70000 }),
                "must be between 1 and 65535",
            ),
        ] {
            let faults = port(given);
            assert!(
                faults[0].contains("endPort") && faults[0].contains(why),
                "{faults:?}"
            );
        }
    }

    #[test]
    fn types_are_two_at_most_and_known() {
        for (types, why) in [
            (json!(["Both"]), "Unsupported value: \"Both\""),
            (
                json!(["Ingress", "Egress", "Egress"]),
                "may not specify more than two policyTypes",
            ),
        ] {
            let mut errors = ErrorList::new();
            let policy = json!({ "spec": { "podSelector": {}, "policyTypes": types } });
            network_policy(&policy, &HashSet::new(), &mut errors);
            assert!(errors[0].to_string().contains(why), "{}", errors[0]);
        }
    }
}
