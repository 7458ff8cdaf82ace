//! What only Services of type LoadBalancer have.

use std::net::IpAddr;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::fields;
use super::super::json::{at, has, list_at, str_at};

const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const OTHER_TYPE: &str = "may only be used when `type` is 'LoadBalancer'";

fn is_load_balancer(spec: &Value) -> bool {
    str_at(spec, &["type"]) == "LoadBalancer"
}

pub(super) fn validate(spec: &Value, path: &Path, errors: &mut ErrorList) {
    if is_load_balancer(spec) {
        let check = names::check_qualified_name;
        fields::given_name(spec, "loadBalancerClass", check, path, errors);
        return;
    }
    for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
        if has(spec, &[key]) {
            errors.push(FieldError::forbidden(&path.child(key), OTHER_TYPE));
        }
    }
}

pub(super) fn class_stays(new: &Value, old: &Value, errors: &mut ErrorList) {
    let key = "loadBalancerClass";
    let class = at(new, &[key]);
    if is_load_balancer(new) && is_load_balancer(old) && class != at(old, &[key]) {
        let path = Path::new("spec").child(key);
        errors.push(FieldError::invalid(
            &path,
            class.clone(),
            "may not change once set",
        ));
    }
}

/// The ranges that may come in, as a field or as the annotation of before; those of the stored
/// object stay possible.
pub(super) fn source_ranges(new: &Value, old: &Value, errors: &mut ErrorList) {
    let texts = |service| -> Vec<&str> {
        let ranges = list_at(service, &["spec", "loadBalancerSourceRanges"]).iter();
        ranges.filter_map(Value::as_str).map(str::trim).collect()
    };
    let (ranges, stored) = (texts(new), texts(old));
    let wrong_type = !is_load_balancer(at(new, &["spec"]));
    if !ranges.is_empty() {
        // the original spells the field so
        let path = Path::new("spec").child("LoadBalancerSourceRanges");
        if wrong_type {
            errors.push(FieldError::forbidden(&path, OTHER_TYPE));
        }
        for (i, range) in ranges.iter().enumerate() {
            if !stored.contains(range) {
                cidr(range, &path.index(i), errors);
            }
        }
        return;
    }
    let note = |service| at(service, &["metadata", "annotations", RANGES]).as_str();
    let Some(text) = note(new) else {
        return;
    };
    let path = Path::new("metadata").child("annotations").key(RANGES);
    if wrong_type {
        errors.push(FieldError::forbidden(&path, OTHER_TYPE));
    }
    if note(old) != Some(text) && !text.trim().is_empty() {
        for range in text.split(',') {
            cidr(range.trim(), &path, errors);
        }
    }
}

/// A range of addresses without bits beyond its prefix.
pub(crate) fn cidr(text: &str, path: &Path, errors: &mut ErrorList) {
    errors.extend(invalid_each(path, text, names::check_cidr(text)));
}

/// Faults of the addresses a Service has got.
pub(super) fn status(new: &Value, errors: &mut ErrorList) {
    const MODES: [&str; 2] = ["Proxy", "VIP"];
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let points = list_at(new, &["status", "loadBalancer", "ingress"]);
    if !is_load_balancer(at(new, &["spec"])) && !points.is_empty() {
        let why = "may only be used when `spec.type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden(&path, why));
        return;
    }
    for (i, point) in points.iter().enumerate() {
        let path = path.index(i);
        let at_mode = path.child("ipMode");
        let has_ip = !str_at(point, &["ip"]).is_empty();
        fields::optional_name(point, "ip", names::check_ip, &path, errors);
        match (at(point, &["ipMode"]).as_str(), has_ip) {
            (None, true) => {
                let why = "must be specified when `ip` is set";
                errors.push(FieldError::required(&at_mode, why));
            }
            (Some(_), false) => {
                let why = "may not be specified when `ip` is not set";
                errors.push(FieldError::forbidden(&at_mode, why));
            }
            (Some(mode), true) if !MODES.contains(&mode) => {
                errors.push(FieldError::not_supported(&at_mode, mode, &MODES));
            }
            _ => {}
        }
        hostname(point, &path, errors);
    }
}

/// The name of a point of entry is none that reads as an address.
pub(super) fn hostname(point: &Value, path: &Path, errors: &mut ErrorList) {
    let name = str_at(point, &["hostname"]);
    if name.is_empty() {
        return;
    }
    let path = path.child("hostname");
    let faults = names::check_dns1123_subdomain(name);
    errors.extend(invalid_each(&path, name, faults));
    if name.parse::<IpAddr>().is_ok() {
        let fault = "must be a DNS name, not an IP address";
        errors.push(FieldError::invalid(&path, name, fault));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, none, status_faults, update_faults};

    fn service(spec: Value) -> Value {
        let mut obj = json!({"metadata": {"name": "s", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            obj["spec"][key] = value.clone();
        }
        obj
    }

    #[test]
    fn faults_of_services() {
        let only = "may only be used when `type` is 'LoadBalancer'";
        let cases = [
            (json!({"loadBalancerClass": "a/b"}), format!("spec.loadBalancerClass: Forbidden: {only}")),
            (json!({"allocateLoadBalancerNodePorts": true}), format!("spec.allocateLoadBalancerNodePorts: Forbidden: {only}")),
            (json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), format!("spec.LoadBalancerSourceRanges: Forbidden: {only}")),
            (json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0", "10.0.0.1/8"]}),
                "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)\n\
                 spec.LoadBalancerSourceRanges[1]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length".to_owned()),
            (json!({"trafficDistribution": "Near"}),
                "spec.trafficDistribution: Unsupported value: \"Near\": supported values: \"PreferClose\", \"PreferSameZone\", \"PreferSameNode\"".to_owned()),
            (json!({"externalTrafficPolicy": "Local"}),
                "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services".to_owned()),
            (json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}}),
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400".to_owned()),
            (json!({"clusterIPs": ["10.0.0.7"]}),
                "spec.clusterIPs: Invalid value: [\"10.0.0.7\"]: must be empty when `clusterIP` is not specified".to_owned()),
            (json!({"type": "NodePort", "ports": [{"port": 80, "name": "a", "nodePort": 30001}, {"port": 80, "name": "b", "nodePort": 30001}]}),
                "spec.ports[1].nodePort: Duplicate value: 30001\n\
                 spec.ports[1]: Duplicate value: {\"AppProtocol\":null,\"Name\":\"\",\"NodePort\":0,\"Port\":80,\"Protocol\":\"TCP\",\"TargetPort\":0}".to_owned()),
        ];
        for (spec, wanted) in cases {
            assert_eq!(faults("", "v1", "Service", &service(spec)), wanted);
        }
        for spec in [
            json!({"type": "ExternalName", "externalName": "a.example.com.", "ports": [{"port": 80, "nodePort": 30001}]}),
            json!({"type": "LoadBalancer", "loadBalancerClass": "a/b", "loadBalancerSourceRanges": [" 10.0.0.0/8 ", "fd00::/8"]}),
            json!({"trafficDistribution": "PreferSameNode", "ports": [{"port": 80, "appProtocol": "kubernetes.io/h2c"}]}),
        ] {
            none("", "v1", "Service", &service(spec));
        }
    }

    #[test]
    fn the_class_stays_and_stored_ranges_may_stay() {
        let of = |class: &str, replicas: &str| {
            service(
                json!({"type": "LoadBalancer", "loadBalancerClass": class, "loadBalancerSourceRanges": [replicas]}),
            )
        };
        let update = |new, old| update_faults("", "v1", "Service", &new, &old);
        assert_eq!(update(of("a/b", "10.0.0.1/8"), of("a/b", "10.0.0.1/8")), "");
        let wanted = "spec.loadBalancerClass: Invalid value: \"a/c\": may not change once set";
        assert_eq!(
            update(of("a/c", "10.0.0.0/8"), of("a/b", "10.0.0.0/8")),
            wanted
        );
    }

    #[test]
    fn faults_of_addresses_that_services_got() {
        let at_entry = "status.loadBalancer.ingress[0]";
        let cases = [
            ("ClusterIP", json!({"ip": "10.0.0.7", "ipMode": "VIP"}),
                "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'".to_owned()),
            ("LoadBalancer", json!({"hostname": "a", "ipMode": "VIP"}),
                format!("{at_entry}.ipMode: Forbidden: may not be specified when `ip` is not set")),
            ("LoadBalancer", json!({"ip": "10.0.0.7", "ipMode": "Some"}),
                format!("{at_entry}.ipMode: Unsupported value: \"Some\": supported values: \"Proxy\", \"VIP\"")),
            ("LoadBalancer", json!({"hostname": "10.0.0.7"}),
                format!("{at_entry}.hostname: Invalid value: \"10.0.0.7\": must be a DNS name, not an IP address")),
            ("LoadBalancer", json!({"ip": "x", "ipMode": "VIP"}),
                format!("{at_entry}.ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")),
            ("LoadBalancer", json!({"ip": "10.0.0.7", "ipMode": "VIP"}), String::new()),
        ];
        for (kind, point, wanted) in cases {
            let old = service(json!({"type": kind}));
            let mut new = old.clone();
            new["status"] = json!({"loadBalancer": {"ingress": [point]}});
            assert_eq!(status_faults("", "v1", "Service", &new, &old), wanted);
        }
    }
}
