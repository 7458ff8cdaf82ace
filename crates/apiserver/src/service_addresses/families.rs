//! Of which families a Service is: what its writer leaves open of `ipFamilyPolicy` and `ipFamilies` follows from the
//! cluster's ranges (KEP-563). A Service never changes between one family and two unless its writer says so.

use std::net::IpAddr;

use davit_api::field::{FieldError, Path};
use davit_netplan::{Family, ServiceRanges};
use serde_json::{Map, Value, json};

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

/// The texts of a list.
pub(super) fn texts(spec: &Map<String, Value>, key: &str) -> Vec<String> {
    let list = spec.get(key).and_then(Value::as_array);
    let texts = list.into_iter().flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// The families of a Service, in their order.
pub(super) fn of(spec: &Map<String, Value>) -> Vec<Family> {
    let names = texts(spec, "ipFamilies");
    names
        .iter()
        .filter_map(|name| Family::named(name))
        .collect()
}

fn text<'a>(spec: &'a Map<String, Value>, key: &str) -> &'a str {
    spec.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Without addresses and without pods of its own: whoever writes the endpoints decides.
fn is_free(spec: &Map<String, Value>) -> bool {
    let selector = spec.get("selector").and_then(Value::as_object);
    text(spec, "clusterIP") == "None" && selector.is_none_or(Map::is_empty)
}

fn policy_fault(spec: &Map<String, Value>, why: &str) -> FieldError {
    let path = Path::new("spec").child("ipFamilyPolicy");
    FieldError::invalid(&path, text(spec, "ipFamilyPolicy"), why)
}

/// Fills in policy and families; `old` is the spec that is stored. What the writer has to mend.
pub(super) fn assign(
    spec: &mut Map<String, Value>,
    old: Option<&Value>,
    cluster: &ServiceRanges,
) -> Vec<FieldError> {
    if text(spec, "type") == "ExternalName" {
        return Vec::new();
    }
    let old = old.and_then(Value::as_object);
    // A cluster that becomes one of two families, or of one, changes no Service.
    let stays = |old: &Map<String, Value>| {
        let same = ["ipFamilyPolicy", "ipFamilies", "clusterIPs", "type"];
        text(spec, "ipFamilyPolicy") == PREFER
            && same.iter().all(|key| spec.get(*key) == old.get(*key))
    };
    if old.is_some_and(stays) {
        return Vec::new();
    }
    if text(spec, "ipFamilyPolicy").is_empty() {
        let before = old
            .map(|old| text(old, "ipFamilyPolicy"))
            .unwrap_or_default();
        let policy = match before {
            "" if is_free(spec) => REQUIRE,
            "" => SINGLE,
            before => before,
        };
        spec.insert("ipFamilyPolicy".to_owned(), json!(policy));
    }
    let mut faults = old.map(|old| reduce(spec, old)).unwrap_or_default();
    if text(spec, "ipFamilyPolicy") == SINGLE {
        for (key, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if texts(spec, key).len() == 2 {
                let why = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                faults.push(policy_fault(spec, &why));
            }
        }
    }
    faults.extend(infer(spec, cluster));
    if faults.is_empty() {
        faults = complete(spec, cluster);
    }
    faults
}

/// One that becomes of a single family loses the second address and family; without the policy nothing is lost.
fn reduce(spec: &mut Map<String, Value>, old: &Map<String, Value>) -> Vec<FieldError> {
    let mut faults = Vec::new();
    let is_single = text(spec, "ipFamilyPolicy") == SINGLE;
    for (key, what) in [
        ("clusterIPs", "secondary cluster IP"),
        ("ipFamilies", "secondary IP family"),
    ] {
        let (mut now, before) = (texts(spec, key), texts(old, key));
        if is_single && now == before && now.len() > 1 {
            now.truncate(1);
            spec.insert(key.to_owned(), json!(now));
        } else if !is_single && !now.is_empty() && now.len() < before.len() && before.len() == 2 {
            let why = format!("must be 'SingleStack' to release the {what}");
            faults.push(policy_fault(spec, &why));
        }
    }
    faults
}

/// Families that addresses say.
fn infer(spec: &mut Map<String, Value>, cluster: &ServiceRanges) -> Vec<FieldError> {
    let mut faults = Vec::new();
    let mut names = texts(spec, "ipFamilies");
    let addresses = texts(spec, "clusterIPs");
    for (index, address) in addresses.iter().enumerate() {
        let Ok(ip) = address.parse::<IpAddr>() else {
            break;
        };
        let family = Family::of(ip);
        if index < names.len() {
            continue;
        }
        if cluster.families().any(|known| known == family) {
            names.push(family.name().to_owned());
        } else {
            let path = Path::new("spec").child("clusterIPs").index(index);
            let why = format!("{family} is not configured on this cluster");
            faults.push(FieldError::invalid(&path, json!(addresses), why));
        }
    }
    if !names.is_empty() {
        spec.insert("ipFamilies".to_owned(), json!(names));
    }
    faults
}

/// The families that nobody has named.
fn complete(spec: &mut Map<String, Value>, cluster: &ServiceRanges) -> Vec<FieldError> {
    let mut families = of(spec);
    let (policy, free) = (text(spec, "ipFamilyPolicy").to_owned(), is_free(spec));
    let has_both = cluster.families().count() == 2;
    let mut faults = Vec::new();
    if !free {
        if policy == REQUIRE && !has_both {
            let why = "this cluster is not configured for dual-stack services";
            faults.push(policy_fault(spec, why));
        }
        for (index, family) in families.iter().enumerate() {
            if cluster.families().all(|known| known != *family) {
                let path = Path::new("spec").child("ipFamilies").index(index);
                let why = "not configured on this cluster";
                faults.push(FieldError::invalid(&path, family.name(), why));
            }
        }
    }
    if !faults.is_empty() {
        return faults;
    }
    if families.is_empty() {
        families.push(cluster.primary().family());
    }
    if policy != SINGLE && families.len() == 1 && (free || has_both) {
        families.push(families[0].other());
    }
    let names: Vec<&str> = families.iter().map(|family| family.name()).collect();
    spec.insert("ipFamilies".to_owned(), json!(names));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "10.96.0.0/16";
    const BOTH: &str = "10.96.0.0/16,fd00:10:96::/112";
    const SIX_FIRST: &str = "fd00:10:96::/112,10.96.0.0/16";

    /// Policy and families, or the faults.
    fn assigned(
        cluster: &str,
        spec: Value,
        old: Option<Value>,
    ) -> Result<(String, Vec<String>), String> {
        let mut spec = spec.as_object().unwrap().clone();
        let faults = assign(&mut spec, old.as_ref(), &cluster.parse().unwrap());
        if let Some(fault) = faults.first() {
            return Err(fault.to_string());
        }
        Ok((
            text(&spec, "ipFamilyPolicy").to_owned(),
            texts(&spec, "ipFamilies"),
        ))
    }

    fn is(found: Result<(String, Vec<String>), String>, policy: &str, families: &[&str]) {
        let families = families.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(found, Ok((policy.to_owned(), families)));
    }

    #[test]
    fn what_a_writer_leaves_open() {
        let (four, six) = ("IPv4", "IPv6");
        for (cluster, spec, policy, families) in [
            (ONE, json!({}), SINGLE, &[four][..]),
            (BOTH, json!({}), SINGLE, &[four]),
            (SIX_FIRST, json!({}), SINGLE, &[six]),
            (ONE, json!({ "ipFamilyPolicy": PREFER }), PREFER, &[four]),
            (
                BOTH,
                json!({ "ipFamilyPolicy": PREFER }),
                PREFER,
                &[four, six],
            ),
            (
                BOTH,
                json!({ "ipFamilyPolicy": REQUIRE }),
                REQUIRE,
                &[four, six],
            ),
            (
                SIX_FIRST,
                json!({ "ipFamilyPolicy": REQUIRE }),
                REQUIRE,
                &[six, four],
            ),
            (
                BOTH,
                json!({ "ipFamilyPolicy": PREFER, "ipFamilies": [six] }),
                PREFER,
                &[six, four],
            ),
            (BOTH, json!({ "ipFamilies": [six] }), SINGLE, &[six]),
            (
                BOTH,
                json!({ "clusterIP": "fd00:10:96::7", "clusterIPs": ["fd00:10:96::7"] }),
                SINGLE,
                &[six],
            ),
            // nobody's pods: both, whatever the cluster has
            (
                ONE,
                json!({ "clusterIP": "None", "clusterIPs": ["None"] }),
                REQUIRE,
                &[four, six],
            ),
            (
                ONE,
                json!({ "clusterIP": "None", "ipFamilies": [six] }),
                REQUIRE,
                &[six, four],
            ),
            (
                ONE,
                json!({ "clusterIP": "None", "selector": { "a": "b" } }),
                SINGLE,
                &[four],
            ),
            (
                BOTH,
                json!({ "clusterIP": "None", "ipFamilyPolicy": PREFER, "selector": { "a": "b" } }),
                PREFER,
                &[four, six],
            ),
        ] {
            is(assigned(cluster, spec, None), policy, families);
        }
    }

    /// Checklist of spec network.md, item 20.
    #[test]
    fn what_cannot_be_had_is_refused() {
        for (cluster, spec, why) in [
            (
                ONE,
                json!({ "ipFamilyPolicy": REQUIRE }),
                "this cluster is not configured for dual-stack services",
            ),
            (
                ONE,
                json!({ "ipFamilies": ["IPv6"] }),
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ),
            (
                ONE,
                json!({ "clusterIPs": ["fd00::7"] }),
                "spec.clusterIPs[0]: Invalid value: [\"fd00::7\"]: IPv6 is not configured on this cluster",
            ),
            (
                BOTH,
                json!({ "ipFamilies": ["IPv4", "IPv6"] }),
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
            ),
            (
                BOTH,
                json!({ "clusterIPs": ["10.96.0.7", "fd00:10:96::7"] }),
                "when multiple cluster IPs are specified",
            ),
        ] {
            let fault = assigned(cluster, spec, None).unwrap_err();
            assert!(fault.contains(why), "{fault}");
        }
    }

    #[test]
    fn changes_between_one_family_and_two_are_asked_for() {
        let two = json!({
            "ipFamilyPolicy": PREFER, "ipFamilies": ["IPv4", "IPv6"],
            "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00:10:96::7"],
        });
        let one = json!({
            "ipFamilyPolicy": SINGLE, "ipFamilies": ["IPv4"],
            "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
        });
        let with = |of: &Value, key: &str, value: Value| {
            let mut changed = of.clone();
            changed[key] = value;
            changed
        };
        let up = with(&one, "ipFamilyPolicy", json!(PREFER));
        is(
            assigned(BOTH, up.clone(), Some(one.clone())),
            PREFER,
            &["IPv4", "IPv6"],
        );
        // a cluster that has become one of both changes nothing by itself
        is(assigned(BOTH, up.clone(), Some(up)), PREFER, &["IPv4"]);
        let down = with(&two, "ipFamilyPolicy", json!(SINGLE));
        let mut spec = down.as_object().unwrap().clone();
        assert!(assign(&mut spec, Some(&two), &BOTH.parse().unwrap()).is_empty());
        assert_eq!(texts(&spec, "clusterIPs"), ["10.96.0.7"]);
        assert_eq!(texts(&spec, "ipFamilies"), ["IPv4"]);
        let released = with(&two, "clusterIPs", json!(["10.96.0.7"]));
        let fault = assigned(BOTH, released, Some(two.clone())).unwrap_err();
        assert!(
            fault.contains("must be 'SingleStack' to release the secondary cluster IP"),
            "{fault}"
        );
        let unnamed = with(&two, "ipFamilyPolicy", Value::Null);
        is(
            assigned(BOTH, unnamed, Some(two)),
            PREFER,
            &["IPv4", "IPv6"],
        );
    }
}
