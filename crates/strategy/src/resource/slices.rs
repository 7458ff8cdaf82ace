//! Validation of slices: pools, devices, counters, capacities.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::Value;

use super::super::json::{at, bool_at, entries_at, has, int_at, list_at, repeats, str_at};
use super::super::selectors;
use super::parts::{
    driver_name, exactly_one, exactly_one_or, label_name, pool_name, qualified, taint, too_many,
};

const DEVICES: usize = 128;
/// When any of them has taints, counters or lists.
const DEMANDING_DEVICES: usize = 64;
const VALUES: usize = 32;
const ATTRIBUTE_VALUES: usize = 48;
const TAINTS: usize = 16;
const COUNTER_SETS: usize = 8;
const COUNTERS: usize = 32;
const CONSUMPTIONS: usize = 2;
const CONDITIONS: usize = 4;
const VALID_VALUES: usize = 10;
const LONGEST_VALUE: usize = 64;

/// Faults of the spec of a slice.
pub(super) fn spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    driver_name(str_at(spec, &["driver"]), &path.child("driver"), errors);
    let pool = path.child("pool");
    pool_name(str_at(spec, &["pool", "name"]), &pool.child("name"), errors);
    let generation = int_at(spec, &["pool", "generation"]).unwrap_or(0);
    if generation < 0 {
        let fault = "must be greater than or equal to zero";
        errors.push(FieldError::invalid(
            &pool.child("generation"),
            generation,
            fault,
        ));
    }
    let count = int_at(spec, &["pool", "resourceSliceCount"]).unwrap_or(0);
    if count <= 0 {
        let fault = "must be greater than zero";
        errors.push(FieldError::invalid(
            &pool.child("resourceSliceCount"),
            count,
            fault,
        ));
    }
    let per_device = bool_at(spec, &["perDeviceNodeSelection"]);
    let nodes = [
        ("nodeName", !str_at(spec, &["nodeName"]).is_empty()),
        ("nodeSelector", has(spec, &["nodeSelector"])),
        ("allNodes", bool_at(spec, &["allNodes"])),
        ("perDeviceNodeSelection", per_device),
    ];
    exactly_one(&nodes, path, errors);
    nodes_of(spec, path, errors);
    if at(spec, &["nodeName"]) == "" {
        let fault = "must be either unset or set to a non-empty string";
        errors.push(FieldError::invalid(&path.child("nodeName"), "", fault));
    }
    unset_or_true(spec, "perDeviceNodeSelection", path, errors);
    let (devices, sets) = (
        list_at(spec, &["devices"]),
        list_at(spec, &["sharedCounters"]),
    );
    if !devices.is_empty() && !sets.is_empty() {
        let fault = "only one of `sharedCounters` or `devices` is allowed";
        errors.push(FieldError::invalid(path, "", fault));
    }
    let demanding = devices.iter().any(|d| {
        !list_at(d, &["taints"]).is_empty()
            || !list_at(d, &["consumesCounters"]).is_empty()
            || entries_at(d, &["attributes"]).any(|(_, a)| list_size(a).is_some())
    });
    let most = if demanding {
        DEMANDING_DEVICES
    } else {
        DEVICES
    };
    let at_devices = path.child("devices");
    too_many(devices, most, &at_devices, errors);
    let mut seen = HashSet::new();
    for (i, device) in devices.iter().enumerate() {
        let path = at_devices.index(i);
        let name = str_at(device, &["name"]);
        label_name(name, &path.child("name"), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        self::device(device, per_device, &path, errors);
    }
    counters(sets, &path.child("sharedCounters"), errors);
}

/// Faults of the node a slice or device names.
fn nodes_of(of: &Value, path: &Path, errors: &mut ErrorList) {
    unset_or_true(of, "allNodes", path, errors);
    let name = str_at(of, &["nodeName"]);
    if !name.is_empty() {
        let faults = names::check_dns1123_subdomain(name);
        errors.extend(invalid_each(&path.child("nodeName"), name, faults));
    }
    if has(of, &["nodeSelector"]) {
        let (selector, path) = (at(of, &["nodeSelector"]), path.child("nodeSelector"));
        selectors::node_selector(selector, &path, errors);
        let terms = list_at(selector, &["nodeSelectorTerms"]);
        if terms.len() != 1 {
            let fault = "must have exactly one node selector term";
            let path = path.child("nodeSelectorTerms");
            errors.push(FieldError::invalid(
                &path,
                Value::from(terms.to_vec()),
                fault,
            ));
        }
    }
}

fn unset_or_true(of: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    if at(of, &[field]) == &Value::Bool(false) {
        let fault = "must be either unset or set to true";
        errors.push(FieldError::invalid(&path.child(field), false, fault));
    }
}

fn counters(sets: &[Value], path: &Path, errors: &mut ErrorList) {
    too_many(sets, COUNTER_SETS, path, errors);
    let mut seen = HashSet::new();
    for (i, set) in sets.iter().enumerate() {
        let path = path.index(i);
        let name = str_at(set, &["name"]);
        label_name(name, &path.child("name"), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        counter_map(set, &path, errors);
    }
}

fn counter_map(of: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("counters");
    let count = entries_at(of, &["counters"]).count();
    if count == 0 {
        errors.push(FieldError::required(&path, ""));
    }
    if count > COUNTERS {
        errors.push(FieldError::too_many(&path, count, COUNTERS));
    }
    for (name, _) in entries_at(of, &["counters"]) {
        label_name(name, &path.key(name.as_str()), errors);
    }
}

/// How many values a list attribute has; `None` for scalars.
fn list_size(attribute: &Value) -> Option<usize> {
    let lists = ["ints", "bools", "strings", "versions"];
    let mut given = lists.iter().filter(|k| has(attribute, &[k]));
    given.next().map(|k| list_at(attribute, &[k]).len())
}

fn device(device: &Value, per_device: bool, path: &Path, errors: &mut ErrorList) {
    let attributes = entries_at(device, &["attributes"]).count();
    let capacities = entries_at(device, &["capacity"]).count();
    if attributes + capacities > VALUES {
        let fault =
            format!("the total number of attributes and capacities must not exceed {VALUES}");
        errors.push(FieldError::invalid(path, attributes + capacities, fault));
    }
    let sizes = entries_at(device, &["attributes"]).map(|(_, a)| list_size(a).unwrap_or(1));
    let values: usize = sizes.sum();
    if values > ATTRIBUTE_VALUES {
        let path = path.child("attributes");
        errors.push(FieldError::too_many(&path, values, ATTRIBUTE_VALUES));
    }
    for (name, value) in entries_at(device, &["attributes"]) {
        let path = path.child("attributes").key(name.as_str());
        qualified(name, false, &path, errors);
        attribute(value, &path, errors);
    }
    let shareable = bool_at(device, &["allowMultipleAllocations"]);
    for (name, value) in entries_at(device, &["capacity"]) {
        let path = path.child("capacity").key(name.as_str());
        qualified(name, false, &path, errors);
        if has(value, &["requestPolicy"]) {
            let path = path.child("requestPolicy");
            if shareable {
                policy(value, &path, errors);
            } else {
                let fault = "allowMultipleAllocations must be true";
                errors.push(FieldError::forbidden(&path, fault));
            }
        }
    }
    let taints = list_at(device, &["taints"]);
    too_many(taints, TAINTS, &path.child("taints"), errors);
    for (i, one) in taints.iter().enumerate() {
        taint(one, &path.child("taints").index(i), errors);
    }
    let consumes = list_at(device, &["consumesCounters"]);
    let at_consumes = path.child("consumesCounters");
    too_many(consumes, CONSUMPTIONS, &at_consumes, errors);
    let mut seen = HashSet::new();
    for (i, consumption) in consumes.iter().enumerate() {
        let path = at_consumes.index(i);
        let set = str_at(consumption, &["counterSet"]);
        label_name(set, &path.child("counterSet"), errors);
        if !seen.insert(set) {
            errors.push(FieldError::duplicate(&path.child("counterSet"), set));
        }
        counter_map(consumption, &path, errors);
    }
    let nodes = [
        ("nodeName", !str_at(device, &["nodeName"]).is_empty()),
        ("nodeSelector", has(device, &["nodeSelector"])),
        ("allNodes", bool_at(device, &["allNodes"])),
    ];
    if per_device {
        let why = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                   `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        exactly_one_or(&nodes, [why; 2], path, errors);
        nodes_of(device, path, errors);
        if at(device, &["nodeName"]) == "" {
            let path = path.child("nodeName");
            errors.push(FieldError::invalid(&path, "", "must not be empty"));
        }
    } else if nodes.iter().any(|(name, _)| has(device, &[name])) {
        let fault = "`nodeName`, `nodeSelector` and `allNodes` can only be set if \
                     `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        errors.push(FieldError::invalid(path, Value::Null, fault));
    }
    conditions(device, path, errors);
    node_resources(device, path, errors);
}

/// Faults of what a device takes of its node's resources. Every mapping has a multiplier: that is its default.
fn node_resources(device: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("nodeAllocatableResourceMappings");
    for (resource, mapping) in entries_at(device, &["nodeAllocatableResourceMappings"]) {
        let path = path.key(resource);
        if !names::is_native_resource(resource) {
            let fault = "must be a node allocatable resource name";
            errors.push(FieldError::invalid(&path, resource.as_str(), fault));
        }
        let multiplier = quantity(at(mapping, &["allocationMultiplier"]));
        if multiplier <= Quantity::ZERO {
            let path = path.child("allocationMultiplier");
            let fault = "must be positive";
            errors.push(FieldError::invalid(&path, multiplier.to_string(), fault));
        }
        if has(mapping, &["capacityKey"]) {
            let (key, path) = (str_at(mapping, &["capacityKey"]), path.child("capacityKey"));
            if key.is_empty() {
                let fault = "capacityKey must not be an empty string";
                errors.push(FieldError::invalid(&path, "", fault));
            } else if !has(device, &["capacity", key]) {
                errors.push(FieldError::not_found(&path, key));
            }
        }
    }
}

fn conditions(device: &Value, path: &Path, errors: &mut ErrorList) {
    let kinds = ["bindingConditions", "bindingFailureConditions"];
    let [ready, failed] = kinds.map(|k| list_at(device, &[k]));
    for (kind, list, counterpart, other) in [
        (kinds[0], ready, kinds[1], failed),
        (kinds[1], failed, kinds[0], ready),
    ] {
        let path = path.child(kind);
        too_many(list, CONDITIONS, &path, errors);
        if list.is_empty() && !other.is_empty() {
            let fault = format!("{kind} are required to use {counterpart}");
            errors.push(FieldError::invalid(&path, Value::Null, fault));
        }
        let (twins, others): (_, HashSet<&Value>) = (repeats(list), other.iter().collect());
        for ((i, condition), is_twin) in list.iter().enumerate().zip(twins) {
            let (text, path) = (condition.as_str().unwrap_or_default(), path.index(i));
            let faults = names::check_qualified_name(text);
            errors.extend(invalid_each(&path, text, faults));
            if is_twin {
                errors.push(FieldError::duplicate(&path, text));
            }
            if kind == kinds[1] && others.contains(condition) {
                let fault = "bindingFailureConditions must not overlap with bindingConditions";
                errors.push(FieldError::invalid(&path, text, fault));
            }
        }
    }
}

fn attribute(attribute: &Value, path: &Path, errors: &mut ErrorList) {
    let members = [
        "int", "bool", "string", "version", "ints", "bools", "strings", "versions",
    ];
    let given: Vec<&str> = members
        .into_iter()
        .filter(|k| has(attribute, &[k]))
        .collect();
    match given[..] {
        [_] => {}
        [] => {
            let fault = "exactly one value must be specified";
            errors.push(FieldError::invalid(path, "", fault));
        }
        _ => {
            let fault = "exactly one value must be specified";
            errors.push(FieldError::invalid(path, attribute.clone(), fault));
        }
    }
    let texts = |scalar: &'static str, list: &'static str| {
        let one =
            has(attribute, &[scalar]).then(|| (path.child(scalar), str_at(attribute, &[scalar])));
        let many = list_at(attribute, &[list]).iter().enumerate();
        let many =
            many.map(move |(i, v)| (path.child(list).index(i), v.as_str().unwrap_or_default()));
        one.into_iter().chain(many).collect::<Vec<_>>()
    };
    for (path, text) in texts("string", "strings") {
        if text.len() > LONGEST_VALUE {
            errors.push(FieldError::too_long(&path, LONGEST_VALUE));
        }
    }
    for (path, text) in texts("version", "versions") {
        if text.len() > LONGEST_VALUE {
            errors.push(FieldError::too_long(&path, LONGEST_VALUE));
        }
        if !is_version(text) {
            let fault = "must be a string compatible with semver.org spec 2.0.0";
            errors.push(FieldError::invalid(&path, text, fault));
        }
    }
    if list_size(attribute) == Some(0) {
        errors.push(FieldError::required(path, "a list must not be empty"));
    }
}

/// Semantic versioning 2.0.0, without a leading `v`.
fn is_version(text: &str) -> bool {
    let (core, build) = text
        .split_once('+')
        .map_or((text, None), |(c, b)| (c, Some(b)));
    let (core, pre) = core
        .split_once('-')
        .map_or((core, None), |(c, p)| (c, Some(p)));
    let number = |s: &str| {
        !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit()) && (s == "0" || !s.starts_with('0'))
    };
    let word = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.into_iter().all(number)
        && pre.is_none_or(|p| p.split('.').all(|s| word(s) && (!digits(s) || number(s))))
        && build.is_none_or(|b| b.split('.').all(word))
}

/// Faults of the way a capacity is given away in parts.
fn policy(capacity: &Value, path: &Path, errors: &mut ErrorList) {
    let value = quantity(at(capacity, &["value"]));
    let policy = at(capacity, &["requestPolicy"]);
    let default = has(policy, &["default"]).then(|| quantity(at(policy, &["default"])));
    let values = list_at(policy, &["validValues"]);
    let ranged = has(policy, &["validRange"]);
    if !values.is_empty() && ranged {
        let fault = "exactly one policy can be specified, cannot specify `validValues` and `validRange` at the same time";
        errors.push(FieldError::forbidden(path, fault));
        return;
    }
    if (ranged || !values.is_empty()) && default.is_none() {
        let fault = "required when validRange or validValues are defined";
        errors.push(FieldError::required(&path.child("default"), fault));
    }
    let at_default = path.child("default");
    let default_text = str_at(policy, &["default"]);
    if default.is_some_and(|d| d > value) {
        let fault = "default is larger than the capacity value";
        errors.push(FieldError::invalid(&at_default, default_text, fault));
    }
    if !values.is_empty() {
        let path = path.child("validValues");
        too_many(values, VALID_VALUES, &path, errors);
        let parsed: Vec<Quantity> = values.iter().map(quantity).collect();
        for (i, pair) in parsed.windows(2).enumerate() {
            if pair[0] >= pair[1] {
                let fault = "values must be sorted in ascending order and unique";
                errors.push(FieldError::invalid(
                    &path.index(i + 1),
                    pair[1].to_string(),
                    fault,
                ));
            }
        }
        for (i, one) in parsed.iter().enumerate().filter(|(_, v)| **v > value) {
            let fault = "option is larger than the capacity value";
            errors.push(FieldError::invalid(&path.index(i), one.to_string(), fault));
        }
        if default.is_some_and(|d| !parsed.contains(&d)) {
            let fault = "default value is not valid according to the requestPolicy";
            errors.push(FieldError::invalid(&at_default, default_text, fault));
        }
    }
    if ranged {
        range(at(policy, &["validRange"]), value, default, path, errors);
    }
}

fn range(
    range: &Value,
    value: Quantity,
    default: Option<Quantity>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let (at_default, path) = (path.child("default"), path.child("validRange"));
    let given = |key: &str| has(range, &[key]).then(|| quantity(at(range, &[key])));
    let Some(min) = given("min") else {
        errors.push(FieldError::required(&path.child("min"), ""));
        return;
    };
    let mut fault = |key: &str, of: Quantity, text: &str| {
        errors.push(FieldError::invalid(&path.child(key), of.to_string(), text));
    };
    if min < Quantity::ZERO {
        fault("min", min, "must be greater than or equal to zero");
    }
    if min > value {
        fault("min", min, "min is larger than the capacity value");
    }
    let (max, step) = (given("max"), given("step"));
    if let Some(max) = max {
        if max < min {
            fault("max", max, "max is smaller than min");
        }
        if max > value {
            fault("max", max, "max is larger than the capacity value");
        }
    }
    let mut stride = None;
    if let Some(step) = step {
        if step <= Quantity::ZERO {
            fault("step", step, "must be greater than zero");
        } else {
            stride = Some(step.value());
            if min.checked_add(step).is_some_and(|sum| sum > value) {
                fault(
                    "step",
                    step,
                    "one step above min is larger than the capacity value",
                );
            }
        }
    }
    let off = |of: Quantity| stride.is_some_and(|s| s > 0 && (of.value() - min.value()) % s != 0);
    if let Some(max) = max.filter(|m| off(*m)) {
        fault(
            "max",
            max,
            "value is not a multiple of a given step from min",
        );
    }
    if let Some(default) = default {
        let text = if default < min {
            "default is less than min"
        } else if max.is_some_and(|m| default > m) {
            "default is more than max"
        } else if off(default) {
            "value is not a multiple of a given step from min"
        } else {
            return;
        };
        errors.push(FieldError::invalid(&at_default, default.to_string(), text));
    }
}

/// Decoding has made sure that it is one.
fn quantity(value: &Value) -> Quantity {
    Quantity::from_json(value).unwrap_or(Quantity::ZERO)
}

#[cfg(test)]
mod tests {
    use super::is_version;

    #[test]
    fn versions() {
        for good in ["1.0.0", "0.0.0-rc.1+build.5", "1.2.3-alpha"] {
            assert!(is_version(good), "{good}");
        }
        for bad in [
            "v1.0.0", "1.0", "01.0.0", "1.0.0-01", "1.0.0-", "", "1.0.0+",
        ] {
            assert!(!is_version(bad), "{bad}");
        }
    }
}
