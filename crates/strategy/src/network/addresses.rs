//! The ranges of Services' addresses, and claims on addresses.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::super::json::{at, has, list_at, str_at};
use super::super::{KindInfo, Strategy, meta};

/// Fewer bits are more addresses than all that are private.
const LEAST_BITS: u32 = 8;
/// Of a range of IPv6.
const LEAST_BITS_OF_SIX: u32 = 64;

pub(super) struct ServiceCidr(pub(super) KindInfo);

impl Strategy for ServiceCidr {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        service_cidr(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let (now, before) = (cidrs(new), cidrs(old));
        let path = Path::new("spec").child("cidrs");
        // a second family may be added
        if now.len() != before.len() && (now.len(), before.len()) != (2, 1) {
            let why = "field is immutable";
            errors.push(FieldError::invalid(&path, json!(now), why));
            return errors;
        }
        for (i, (now, before)) in now.iter().zip(before).enumerate() {
            meta::immutable(now, before, &path.index(i), &mut errors);
        }
        if now.len() != before.len() {
            service_cidr(new, &mut errors);
        }
        errors
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let gives_none = |(i, cidr): (usize, &Value)| {
            let (first, bits) = names::parse_cidr(cidr.as_str()?)?;
            (first.is_ipv4() && bits < LEAST_BITS).then(|| {
                format!(
                    "spec.cidrs[{i}]: {} gives no addresses: those of Services are of ranges with {LEAST_BITS} bits or more",
                    cidr.as_str().unwrap_or_default()
                )
            })
        };
        cidrs(obj)
            .iter()
            .enumerate()
            .filter_map(gives_none)
            .collect()
    }
}

fn cidrs(obj: &Value) -> &[Value] {
    list_at(obj, &["spec", "cidrs"])
}

fn service_cidr(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("cidrs");
    let cidrs = cidrs(obj);
    match cidrs.len() {
        0 => errors.push(FieldError::required(&path, "at least one CIDR required")),
        1 | 2 => {}
        _ => {
            let why = "may only hold up to 2 values";
            errors.push(FieldError::invalid(&path, json!(cidrs), why));
            return;
        }
    }
    let mut families = Vec::new();
    for (i, cidr) in cidrs.iter().enumerate() {
        let (path, text) = (path.index(i), cidr.as_str().unwrap_or_default());
        let faults = names::check_canonical_cidr(text);
        match names::parse_cidr(text).filter(|_| faults.is_empty()) {
            None => errors.extend(invalid_each(&path, text, faults)),
            Some((first, bits)) if first.is_ipv6() && bits < LEAST_BITS_OF_SIX => {
                let why = format!(
                    "shortest allowed prefix length for service CIDR is {LEAST_BITS_OF_SIX}, got {bits}"
                );
                errors.push(FieldError::invalid(&path, text, why));
            }
            Some((first, _)) => families.push(first.is_ipv4()),
        }
    }
    if let [one, other] = families[..]
        && one == other
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(FieldError::invalid(&path, json!(cidrs), why));
    }
}

pub(super) struct IpAddress(pub(super) KindInfo);

impl Strategy for IpAddress {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        content(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        content(new, &mut errors);
        meta::immutable_at(new, old, &["spec", "parentRef"], &mut errors);
        errors
    }
}

fn content(obj: &Value, errors: &mut ErrorList) {
    meta::own_rule(obj, errors, |name| {
        names::check_canonical_ip(name).into_iter().next()
    });
    parent(obj, errors);
}

fn parent(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("parentRef");
    if !has(obj, &["spec", "parentRef"]) {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    let parent = at(obj, &["spec", "parentRef"]);
    let group = str_at(parent, &["group"]);
    if !group.is_empty() {
        let faults = names::check_dns1123_subdomain(group);
        errors.extend(invalid_each(&path.child("group"), group, faults));
    }
    for (key, needed) in [("resource", true), ("name", true), ("namespace", false)] {
        let text = str_at(parent, &[key]);
        if !text.is_empty() {
            let faults = names::check_path_segment(text);
            errors.extend(invalid_each(&path.child(key), text, faults));
        } else if needed {
            errors.push(FieldError::required(&path.child(key), ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strategy(kind: &str) -> std::sync::Arc<dyn Strategy> {
        crate::strategy("networking.k8s.io", "v1", kind)
    }

    fn texts(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranges_are_one_of_each_family_and_stay() {
        let range =
            |cidrs: &[&str]| json!({ "metadata": { "name": "a" }, "spec": { "cidrs": cidrs } });
        let faults = |cidrs: &[&str]| texts(&strategy("ServiceCIDR").validate(&range(cidrs)));
        for good in [
            &["10.0.0.0/24"][..],
            &["10.0.0.0/24", "fd00::/112"],
            &["0.0.0.0/0"],
            &["10.0.0.1/32"],
        ] {
            assert_eq!(faults(good), [""; 0], "{good:?}");
        }
        for (wrong, why) in [
            (&[][..], "at least one CIDR required"),
            (&["10.0.0.0"], "must be a valid CIDR value"),
            (
                &["fd00::/63"],
                "shortest allowed prefix length for service CIDR is 64, got 63",
            ),
            (
                &["10.0.0.1/24"],
                "must not have bits set beyond the prefix length",
            ),
            (
                &["10.0.0.0/24", "10.1.0.0/24"],
                "no more than one IP for each IP family",
            ),
            (
                &["10.0.0.0/24", "fd00::/112", "fd01::/112"],
                "up to 2 values",
            ),
        ] {
            let faults = faults(wrong);
            assert!(
                faults.len() == 1 && faults[0].contains(why),
                "{wrong:?}: {faults:?}"
            );
        }
        let change = |old: &[&str], new: &[&str]| {
            let (mut old, mut new) = (range(old), range(new));
            for (object, version) in [(&mut old, "1"), (&mut new, "1")] {
                object["metadata"]["resourceVersion"] = json!(version);
            }
            texts(&strategy("ServiceCIDR").validate_update(&new, &old))
        };
        assert_eq!(
            change(&["10.0.0.0/24"], &["10.0.0.0/24", "fd00::/112"]),
            [""; 0]
        );
        assert!(change(&["10.0.0.0/24"], &["10.1.0.0/24", "fd00::/112"])[0].contains("immutable"));
        assert!(change(&["10.0.0.0/24"], &["10.1.0.0/24"])[0].contains("immutable"));
        let warned = |cidrs: &[&str]| strategy("ServiceCIDR").warnings(&range(cidrs));
        assert_eq!(warned(&["10.0.0.0/8"]), [""; 0]);
        assert_eq!(warned(&["10.0.0.0/24", "fd00::/112"]), [""; 0]);
        assert!(
            warned(&["0.0.0.0/4"])[0].starts_with("spec.cidrs[0]: 0.0.0.0/4 gives no addresses")
        );
    }

    #[test]
    fn addresses_are_named_canonically_and_have_a_parent() {
        let parent = json!({ "resource": "services", "namespace": "a", "name": "b" });
        let faults = |name: &str, parent: &Value| {
            let address = json!({ "metadata": { "name": name }, "spec": { "parentRef": parent } });
            texts(&strategy("IPAddress").validate(&address))
        };
        assert_eq!(faults("10.0.0.7", &parent), [""; 0]);
        assert_eq!(faults("fd00::7", &parent), [""; 0]);
        assert!(faults("10.0.0.007", &parent)[0].contains("must not have leading 0s"));
        assert!(
            faults("fd00:0::7", &parent)[0].contains("must be in canonical form (\"fd00::7\")")
        );
        assert_eq!(faults("10.0.0.7", &Value::Null).len(), 1);
        assert_eq!(faults("10.0.0.7", &json!({ "group": "A_" })).len(), 3);
        let address = |name: &str| {
            json!({
                "metadata": { "name": "10.0.0.7", "resourceVersion": "1" },
                "spec": { "parentRef": { "resource": "services", "name": name } },
            })
        };
        let changed = strategy("IPAddress").validate_update(&address("b"), &address("a"));
        assert!(texts(&changed)[0].contains("immutable"), "{changed:?}");
    }
}
