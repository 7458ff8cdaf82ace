//! The fields of the API that cannot be set here yet.

use std::ops::RangeInclusive;

use serde_json::Value;

/// Each with the value (JSON) that says what this agent does anyway, if there is one.
const NOT_BUILT: &[(&str, &str)] = &[
    ("cgroupsPerQOS", "true"),
    ("contentType", ""),
    ("enableContentionProfiling", "false"),
    ("enableControllerAttachDetach", "true"),
    ("enableDebugFlagsHandler", "false"),
    ("enableProfilingHandler", "false"),
    ("hairpinMode", ""),
    ("httpCheckFrequency", ""),
    ("iptablesDropBit", ""),
    ("iptablesMasqueradeBit", ""),
    ("kernelMemcgNotification", ""),
    ("kubeletCgroups", ""),
    ("logging", ""),
    ("makeIPTablesUtilChains", "false"),
    ("memoryReservationPolicy", r#""None""#),
    ("memoryThrottlingFactor", ""),
    ("runOnce", "false"),
    ("runtimeRequestTimeout", r#""2m0s""#),
    ("showHiddenMetricsForVersion", ""),
    ("staticPodURL", ""),
    ("staticPodURLHeader", ""),
    ("syncFrequency", ""),
    ("systemCgroups", ""),
    ("tlsCurvePreferences", ""),
    ("tracing", ""),
    ("userNamespaces", ""),
];

/// What else such a field may say, because here it comes to the same: marks of packets that the kubelet itself has used no
/// more since 1.28.
const ALIKE: &[(&str, RangeInclusive<i64>)] = &[
    ("iptablesDropBit", 0..=31),
    ("iptablesMasqueradeBit", 0..=31),
];
/// What governs nothing in a kubelet either: pods' networks have not been its own since 1.24, and it asks nobody for manifests
/// without `staticPodURL`.
const INERT: &[&str] = &["hairpinMode", "httpCheckFrequency"];
/// A part, which governs nothing without the gate MemoryQoS.
const FACTOR: &str = "memoryThrottlingFactor";
/// The kubelet's default: chains by whose names others tell which iptables the node has. This node has none.
const CHAINS: &str = "makeIPTablesUtilChains";

/// What this agent does anyway, field by field.
pub(crate) fn fixed() -> impl Iterator<Item = (&'static str, Value)> {
    let fields = NOT_BUILT.iter();
    fields.filter_map(|(name, here)| Some((*name, serde_json::from_str(here).ok()?)))
}

/// Whether a field is one of those and asks for something else than what happens anyway. What is zero stands for the
/// default: kubeadm writes such fields.
pub(super) fn is_refused(name: &str, value: &Value) -> bool {
    let Some((_, here)) = NOT_BUILT.iter().find(|(n, _)| *n == name) else {
        return false;
    };
    let same = serde_json::from_str::<Value>(here).is_ok_and(|here| here == *value);
    let number = value.as_i64();
    let alike = ALIKE
        .iter()
        .any(|(n, range)| *n == name && number.is_some_and(|number| range.contains(&number)));
    let chains = name == CHAINS && value.is_boolean();
    let factor = value.as_f64().is_some_and(|part| part > 0.0 && part <= 1.0);
    let alike = alike || name == FACTOR && factor;
    let inert = INERT.contains(&name) && value.is_string();
    !same && !alike && !chains && !inert && !is_zero(value)
}

/// Whether the field has no effect.
pub(super) fn is_ignored(name: &str) -> bool {
    NOT_BUILT.iter().any(|(n, _)| *n == name)
}

/// Whether a value stands for the default: no text, no time, an object of such. Numbers, truth values and lists mean
/// something by themselves, other than in an object.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => matches!(text.as_str(), "" | "0" | "0s"),
        Value::Object(members) => members
            .values()
            .all(|v| v.is_null() || v.as_i64() == Some(0) || is_zero(v)),
        _ => false,
    }
}
