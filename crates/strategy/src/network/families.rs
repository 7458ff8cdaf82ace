//! The addresses of Services and the families that they are of (KEP-563).

use std::net::IpAddr;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::super::fields::optional_choice;
use super::super::json::{at, has, keep as keep_key, list_at, repeats, set, str_at};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
const SINGLE: &str = "SingleStack";

/// `clusterIP` is the first of `clusterIPs`, and fills them.
pub(super) fn addresses_in_step(spec: &mut Value) {
    let one = str_at(spec, &["clusterIP"]).to_owned();
    if !one.is_empty() && list_at(spec, &["clusterIPs"]).is_empty() {
        set(spec, "clusterIPs", json!([one]));
    }
}

/// A writer that leaves out addresses and families does not mean to give them back, and one that changes the first address
/// alone means all of them.
pub(super) fn keep(new: &mut Value, old: &Value) {
    let stored = at(old, &["spec"]);
    let Some(spec) = new.get_mut("spec") else {
        return;
    };
    let is_named = |spec: &Value| str_at(spec, &["type"]) == "ExternalName";
    if is_named(spec) {
        return;
    }
    if !is_named(stored) {
        let addresses = |spec: &Value| list_at(spec, &["clusterIPs"]).to_vec();
        let (one, before) = (str_at(spec, &["clusterIP"]), str_at(stored, &["clusterIP"]));
        let all_stay = addresses(spec) == addresses(stored);
        if one.is_empty() && (all_stay || addresses(spec).is_empty()) {
            keep_key(spec, stored, "clusterIP");
            keep_key(spec, stored, "clusterIPs");
        } else if one == before && addresses(spec).is_empty() {
            keep_key(spec, stored, "clusterIPs");
        } else if one != before && all_stay {
            let one = json!([one]);
            set(spec, "clusterIPs", one);
        }
        for key in ["ipFamilyPolicy", "ipFamilies"] {
            if !has(spec, &[key]) {
                keep_key(spec, stored, key);
            }
        }
    }
    addresses_in_step(spec);
}

pub(super) fn validate(spec: &Value, path: &Path, errors: &mut ErrorList) {
    if str_at(spec, &["type"]) == "ExternalName" {
        for key in ["clusterIPs", "ipFamilies"] {
            if !list_at(spec, &[key]).is_empty() {
                errors.push(for_external_name(&path.child(key)));
            }
        }
        if has(spec, &["ipFamilyPolicy"]) {
            errors.push(for_external_name(&path.child("ipFamilyPolicy")));
        }
        return;
    }
    optional_choice(spec, "ipFamilyPolicy", &POLICIES, path, errors);
    families(spec, path, errors);
    addresses(spec, path, errors);
}

fn for_external_name(path: &Path) -> FieldError {
    FieldError::forbidden(path, "may not be set for ExternalName services")
}

fn families(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("ipFamilies");
    let all = list_at(spec, &["ipFamilies"]);
    for ((i, family), is_twin) in all.iter().enumerate().zip(repeats(all)) {
        let name = family.as_str().unwrap_or_default();
        if !FAMILIES.contains(&name) {
            errors.push(FieldError::not_supported(&path.index(i), name, &FAMILIES));
        }
        if is_twin {
            errors.push(FieldError::duplicate(&path.index(i), name));
        }
    }
}

fn addresses(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("clusterIPs");
    let all = list_at(spec, &["clusterIPs"]);
    let texts: Vec<&str> = all
        .iter()
        .map(|ip| ip.as_str().unwrap_or_default())
        .collect();
    let invalid = |why: &str| FieldError::invalid(&path, json!(texts), why);
    let one = str_at(spec, &["clusterIP"]);
    if one.is_empty() && !texts.is_empty() {
        errors.push(invalid("must be empty when `clusterIP` is not specified"));
    } else if texts.first().is_some_and(|first| *first != one) {
        errors.push(invalid("first value must match `clusterIP`"));
    }
    let before = errors.len();
    for (i, ip) in texts.iter().enumerate() {
        match *ip {
            "None" if i == 0 && texts.len() == 1 => {}
            "None" if i == 0 => errors.push(invalid("'None' must be the first and only value")),
            ip => errors.extend(invalid_each(&path.index(i), ip, names::check_ip(ip))),
        }
    }
    if texts.len() > 2 {
        errors.push(invalid("may only hold up to 2 values"));
    }
    if errors.len() > before {
        return;
    }
    let found: Vec<IpAddr> = texts.iter().filter_map(|text| text.parse().ok()).collect();
    if let [one, other] = found[..]
        && one.is_ipv4() == other.is_ipv4()
    {
        errors.push(invalid(
            "may specify no more than one IP for each IP family",
        ));
    }
    let families = list_at(spec, &["ipFamilies"]).iter().enumerate();
    for (ip, (i, family)) in found.iter().zip(families) {
        let name = family.as_str().unwrap_or_default();
        if FAMILIES.contains(&name) && (name == "IPv4") != ip.is_ipv4() {
            let why = format!("expected an {name} value as indicated by `ipFamilies[{i}]`");
            errors.push(FieldError::invalid(&path.index(i), ip.to_string(), why));
        }
    }
}

/// A second address and family may come and go, the first ones stay.
pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let is_named = |spec: &Value| str_at(spec, &["type"]) == "ExternalName";
    let is_headless = |spec: &Value| str_at(spec, &["clusterIP"]) == "None";
    if is_named(new) || is_named(old) || (is_headless(new) && is_headless(old)) {
        return;
    }
    let policy = Path::new("spec").child("ipFamilyPolicy");
    for (key, what) in [
        ("clusterIPs", "secondary clusterIP"),
        ("ipFamilies", "secondary ipFamily"),
    ] {
        let path = Path::new("spec").child(key);
        let (now, before) = (list_at(new, &[key]), list_at(old, &[key]));
        for (i, value) in before.iter().enumerate() {
            if now.get(i).is_some_and(|now| now != value) {
                let why = "may not change once set";
                errors.push(FieldError::invalid(&path.index(i), json!(now), why));
            }
        }
        let is_released = before.len() == 2 && now.len() == 1;
        if is_released && str_at(new, &["ipFamilyPolicy"]) != SINGLE {
            let why = format!("must be set to 'SingleStack' when releasing the {what}");
            let said = str_at(new, &["ipFamilyPolicy"]);
            errors.push(FieldError::invalid(&policy, said, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(spec: Value) -> Vec<String> {
        let mut errors = ErrorList::default();
        validate(&spec, &Path::new("spec"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_and_families_fit_together() {
        let both = ["10.0.0.7", "fd00::7"];
        for good in [
            json!({}),
            json!({ "clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv6", "IPv4"] }),
            json!({ "clusterIP": both[0], "clusterIPs": both, "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack" }),
        ] {
            assert_eq!(faults(good.clone()), [""; 0], "{good}");
        }
        for (wrong, why) in [
            (
                json!({ "ipFamilyPolicy": "Both" }),
                "spec.ipFamilyPolicy: Unsupported value",
            ),
            (
                json!({ "ipFamilies": ["IPv5"] }),
                "spec.ipFamilies[0]: Unsupported value: \"IPv5\"",
            ),
            (
                json!({ "ipFamilies": ["IPv4", "IPv4"] }),
                "spec.ipFamilies[1]: Duplicate value",
            ),
            (
                json!({ "clusterIP": "None", "clusterIPs": ["None", "fd00::7"] }),
                "'None' must be the first and only value",
            ),
            (
                json!({ "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "10.0.0.8"] }),
                "may specify no more than one IP for each IP family",
            ),
            (
                json!({ "clusterIP": "10.0.0.8", "clusterIPs": both }),
                "first value must match `clusterIP`",
            ),
            (
                json!({ "clusterIP": both[0], "clusterIPs": [both[0], both[1], "fd00::8"] }),
                "may only hold up to 2 values",
            ),
            (
                json!({ "clusterIP": both[1], "clusterIPs": [both[1]], "ipFamilies": ["IPv4"] }),
                "expected an IPv4 value as indicated by `ipFamilies[0]`",
            ),
            (
                json!({ "type": "ExternalName", "ipFamilies": ["IPv4"] }),
                "spec.ipFamilies: Forbidden: may not be set for ExternalName services",
            ),
            (
                json!({ "type": "ExternalName", "ipFamilyPolicy": "SingleStack" }),
                "spec.ipFamilyPolicy: Forbidden",
            ),
        ] {
            let faults = faults(wrong.clone());
            assert!(
                faults.len() == 1 && faults[0].contains(why),
                "{wrong}: {faults:?}"
            );
        }
    }

    #[test]
    fn what_is_left_out_stays() {
        let old = json!({ "spec": {
            "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack",
        } });
        let kept = |spec: Value| {
            let mut new = json!({ "spec": spec });
            keep(&mut new, &old);
            new["spec"].clone()
        };
        assert_eq!(kept(json!({})), old["spec"]);
        assert_eq!(kept(json!({ "clusterIP": "10.0.0.7" })), old["spec"]);
        let moved = kept(json!({ "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.7", "fd00::7"] }));
        assert_eq!(moved["clusterIPs"], json!(["10.0.0.9"]));
        let fault = |spec: Value| {
            let mut errors = ErrorList::default();
            validate_update(&spec, &old["spec"], &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(fault(moved)[0].contains(
            "spec.clusterIPs[0]: Invalid value: [\"10.0.0.9\"]: may not change once set"
        ));
        let mut released = old["spec"].clone();
        released["clusterIPs"] = json!(["10.0.0.7"]);
        assert!(
            fault(released.clone())[0]
                .contains("must be set to 'SingleStack' when releasing the secondary clusterIP")
        );
        released["ipFamilyPolicy"] = json!("SingleStack");
        assert_eq!(fault(released), [""; 0]);
    }
}
