//! Validation of claims: requests, constraints, configurations, status.

use std::collections::HashSet;

use davit_allocator::{COST_LIMIT, EXPRESSION_LIMIT, check_selector};
use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use davit_cel::PatternBudget;
use serde_json::Value;

use super::super::json::{at, bool_at, entries_at, has, int_at, list_at, repeats, str_at};
use super::parts::{
    driver_name, exactly_one, label_name, pool_name, qualified, taint_effect, too_many, uuid,
};

const REQUESTS: usize = 32;
const SELECTORS: usize = 32;
const ALTERNATIVES: usize = 8;
const RESULTS: usize = 32;
const ALLOCATION_CONFIGS: usize = 64;
const RESERVED: usize = 256;
const CONDITIONS: usize = 8;
const OPAQUE_BYTES: usize = 10 * 1024;
/// Bytes that the regular expressions of all selectors of an object may take.
pub(super) const PATTERNS: u64 = 16 << 20;

/// Faults of the spec of a claim; `stored` holds expressions that were accepted before.
pub(super) fn spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let (devices, path) = (at(spec, &["devices"]), path.child("devices"));
    let requests = list_at(devices, &["requests"]);
    let at_requests = path.child("requests");
    too_many(requests, REQUESTS, &at_requests, errors);
    let mut names: HashSet<String> = HashSet::new();
    let mut room = PatternBudget(PATTERNS);
    for (i, request) in requests.iter().enumerate().take(REQUESTS) {
        let path = at_requests.index(i);
        let name = str_at(request, &["name"]);
        request_name(name, &path.child("name"), errors);
        if !names.insert(name.to_owned()) {
            errors.push(FieldError::duplicate(&path, name));
        }
        let subs = list_at(request, &["firstAvailable"]);
        let exactly = has(request, &["exactly"]);
        exactly_one(
            &[("exactly", exactly), ("firstAvailable", !subs.is_empty())],
            &path,
            errors,
        );
        if exactly && !subs.is_empty() {
            // which of the two is meant is not known
            let name_of = |sub| format!("{name}/{}", str_at(sub, &["name"]));
            names.extend(subs.iter().take(ALTERNATIVES).map(name_of));
            continue;
        }
        if exactly {
            let exactly = at(request, &["exactly"]);
            device_request(exactly, &mut room, &path.child("exactly"), errors);
        }
        let at_subs = path.child("firstAvailable");
        too_many(subs, ALTERNATIVES, &at_subs, errors);
        for (k, sub) in subs.iter().enumerate().take(ALTERNATIVES) {
            let path = at_subs.index(k);
            let sub_name = str_at(sub, &["name"]);
            request_name(sub_name, &path.child("name"), errors);
            let full = format!("{name}/{sub_name}");
            if !names.insert(full) {
                errors.push(FieldError::duplicate(&path.child("name"), sub_name));
            }
            device_request(sub, &mut room, &path, errors);
        }
    }
    let constraints = list_at(devices, &["constraints"]);
    let at_constraints = path.child("constraints");
    too_many(constraints, REQUESTS, &at_constraints, errors);
    for (i, constraint) in constraints.iter().enumerate() {
        let path = at_constraints.index(i);
        references(constraint, &names, &path, errors);
        let kinds = ["matchAttribute", "distinctAttribute"];
        if !kinds.iter().any(|k| has(constraint, &[k])) {
            // the original's words, which speak of another fault
            let why = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
            errors.push(FieldError::required(&path, why));
        }
        for kind in kinds.iter().filter(|k| has(constraint, &[k])) {
            qualified(str_at(constraint, &[kind]), true, &path.child(kind), errors);
        }
    }
    let configs = list_at(devices, &["config"]);
    let at_configs = path.child("config");
    too_many(configs, REQUESTS, &at_configs, errors);
    for (i, config) in configs.iter().enumerate() {
        let path = at_configs.index(i);
        references(config, &names, &path, errors);
        configuration(config, &path, errors);
    }
}

/// A name that is not there is as bad as a wrong one.
fn request_name(name: &str, path: &Path, errors: &mut ErrorList) {
    errors.extend(invalid_each(path, name, names::check_dns1123_label(name)));
}

/// Names of requests that constraints and configurations are for.
fn references(of: &Value, names: &HashSet<String>, path: &Path, errors: &mut ErrorList) {
    let list = list_at(of, &["requests"]);
    let path = path.child("requests");
    too_many(list, REQUESTS, &path, errors);
    let twins = repeats(list.iter().map(Value::as_str));
    for ((i, name), is_twin) in list.iter().enumerate().zip(twins) {
        let (name, path) = (name.as_str().unwrap_or_default(), path.index(i));
        if !names.contains(name) {
            let fault = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
            errors.push(FieldError::invalid(&path, name, fault));
        }
        if is_twin {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
}

fn device_request(request: &Value, room: &mut PatternBudget, path: &Path, errors: &mut ErrorList) {
    let class = str_at(request, &["deviceClassName"]);
    let at_class = path.child("deviceClassName");
    if class.is_empty() {
        errors.push(FieldError::required(&at_class, ""));
    } else {
        errors.extend(invalid_each(
            &at_class,
            class,
            names::check_dns1123_subdomain(class),
        ));
    }
    selectors(
        list_at(request, &["selectors"]),
        &[],
        room,
        &path.child("selectors"),
        errors,
    );
    let count = int_at(request, &["count"]).unwrap_or(0);
    let at_count = path.child("count");
    match str_at(request, &["allocationMode"]) {
        "All" if count != 0 => {
            let fault = "must not be specified when allocationMode is 'All'";
            errors.push(FieldError::invalid(&at_count, count, fault));
        }
        "ExactCount" if count <= 0 => {
            errors.push(FieldError::invalid(
                &at_count,
                count,
                "must be greater than zero",
            ));
        }
        "All" | "ExactCount" => {}
        other => {
            let modes = ["All", "ExactCount"];
            errors.push(FieldError::not_supported(
                &path.child("allocationMode"),
                other,
                &modes,
            ));
        }
    }
    let at_tolerations = path.child("tolerations");
    for (i, toleration) in list_at(request, &["tolerations"]).iter().enumerate() {
        device_toleration(toleration, &at_tolerations.index(i), errors);
    }
    let at_amounts = path.child("capacity").child("requests");
    for (name, amount) in entries_at(request, &["capacity", "requests"]) {
        qualified(name, false, &at_amounts.key(name.as_str()), errors);
        if let Ok(amount) = Quantity::from_json(amount)
            && amount < Quantity::ZERO
        {
            let fault = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(
                &at_amounts.key(name.as_str()),
                amount.to_string(),
                fault,
            ));
        }
    }
}

fn device_toleration(toleration: &Value, path: &Path, errors: &mut ErrorList) {
    let text = |key: &str| str_at(toleration, &[key]);
    if !text("key").is_empty() {
        let faults = names::check_qualified_name(text("key"));
        errors.extend(invalid_each(&path.child("key"), text("key"), faults));
    }
    match text("operator") {
        "Exists" if !text("value").is_empty() => {
            let fault = "must be empty for operator `Exists`";
            errors.push(FieldError::invalid(
                &path.child("value"),
                text("value"),
                fault,
            ));
        }
        "Equal" => {
            let faults = names::check_label_value(text("value"));
            errors.extend(invalid_each(&path.child("value"), text("value"), faults));
        }
        "Exists" => {}
        "" => errors.push(FieldError::required(&path.child("operator"), "")),
        other => {
            let known = ["Equal", "Exists"];
            errors.push(FieldError::not_supported(
                &path.child("operator"),
                other,
                &known,
            ));
        }
    }
    if !text("effect").is_empty() {
        taint_effect(text("effect"), &path.child("effect"), errors);
    }
}

/// Faults of selectors, whose regular expressions have `room` together; expressions that are in `stored` were accepted before
/// and are let be.
pub(super) fn selectors(
    list: &[Value],
    stored: &[Value],
    room: &mut PatternBudget,
    path: &Path,
    errors: &mut ErrorList,
) {
    too_many(list, SELECTORS, path, errors);
    // Each is compiled: of more than there may be no more are.
    for (i, selector) in list.iter().enumerate().take(SELECTORS) {
        let path = path.index(i).child("cel");
        if !has(selector, &["cel"]) {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        let path = path.child("expression");
        let expression = str_at(selector, &["cel", "expression"]);
        if expression.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        if expression.len() > EXPRESSION_LIMIT {
            errors.push(FieldError::too_long(&path, EXPRESSION_LIMIT));
            continue;
        }
        if stored.contains(selector) {
            continue;
        }
        if room.is_spent() {
            let why = "the regular expressions of the selectors before are too large together";
            errors.push(FieldError::forbidden(&path, why));
            continue;
        }
        match room.compile(|room| check_selector(expression, true, room)) {
            Err(fault) => errors.push(FieldError::invalid(&path, expression, fault)),
            Ok(estimate) if estimate.max > COST_LIMIT => {
                let fault = format!(
                    "too complex, exceeds cost limit: the estimate is {}, the limit {COST_LIMIT}",
                    estimate.max
                );
                errors.push(FieldError::forbidden(&path, fault));
            }
            Ok(_) => {}
        }
    }
}

/// Faults of one entry of a configuration.
pub(super) fn configuration(config: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("opaque");
    if !has(config, &["opaque"]) {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    driver_name(
        str_at(config, &["opaque", "driver"]),
        &path.child("driver"),
        errors,
    );
    let parameters = at(config, &["opaque", "parameters"]);
    raw_object(parameters, true, &path.child("parameters"), errors);
}

fn raw_object(value: &Value, required: bool, path: &Path, errors: &mut ErrorList) {
    if value.is_null() {
        if required {
            errors.push(FieldError::required(path, ""));
        }
        return;
    }
    if value.to_string().len() > OPAQUE_BYTES {
        errors.push(FieldError::too_long(path, OPAQUE_BYTES));
    } else if !value.is_object() {
        let fault = "must be a valid JSON object";
        errors.push(FieldError::invalid(path, value.clone(), fault));
    }
}

type Triple<'a> = (&'a str, &'a str, &'a str, &'a str);

fn triple(of: &Value) -> Triple<'_> {
    let text = |key: &str| str_at(of, &[key]);
    (
        text("driver"),
        text("pool"),
        text("device"),
        text("shareID"),
    )
}

/// Faults of a new status of a claim.
pub(super) fn status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let (status, before) = (at(new, &["status"]), at(old, &["status"]));
    let allocation = at(status, &["allocation"]);
    let at_allocation = path.child("allocation");
    if has(before, &["allocation"]) && !allocation.is_null() {
        super::super::meta::immutable(
            allocation,
            at(before, &["allocation"]),
            &at_allocation,
            errors,
        );
    } else if !allocation.is_null() {
        allocated(new, allocation, &at_allocation, errors);
    }
    reserved(new, old, &path.child("reservedFor"), errors);
    let results = list_at(allocation, &["devices", "results"]);
    let at_devices = path.child("devices");
    let devices = list_at(status, &["devices"]);
    let given: HashSet<_> = results.iter().map(triple).collect();
    let twins = repeats(devices.iter().map(triple));
    for ((i, device), is_twin) in devices.iter().enumerate().zip(twins) {
        let path = at_devices.index(i);
        let key = triple(device);
        if is_twin {
            let text = format!("{}/{}/{}", key.0, key.1, key.2);
            errors.push(FieldError::duplicate(&path.child("deviceID"), text));
        }
        if !given.contains(&key) {
            let text = format!("{}/{}/{}", key.0, key.1, key.2);
            let fault = "must be an allocated device in the claim";
            errors.push(FieldError::invalid(&path, text, fault));
        }
        too_many(
            list_at(device, &["conditions"]),
            CONDITIONS,
            &path.child("conditions"),
            errors,
        );
        raw_object(at(device, &["data"]), false, &path.child("data"), errors);
        network(
            at(device, &["networkData"]),
            &path.child("networkData"),
            errors,
        );
    }
}

fn network(data: &Value, path: &Path, errors: &mut ErrorList) {
    for (key, most) in [("interfaceName", 256), ("hardwareAddress", 128)] {
        if str_at(data, &[key]).len() > most {
            errors.push(FieldError::too_long(&path.child(key), most));
        }
    }
    let ips = list_at(data, &["ips"]);
    too_many(ips, 16, &path.child("ips"), errors);
    let twins = repeats(ips.iter().map(Value::as_str));
    for ((i, ip), is_twin) in ips.iter().enumerate().zip(twins) {
        let text = ip.as_str().unwrap_or_default();
        let path = path.child("ips").index(i);
        let faults = names::check_interface_address(text);
        if !faults.is_empty() {
            errors.extend(invalid_each(&path, text, faults));
        } else if is_twin {
            errors.push(FieldError::duplicate(&path, text));
        }
    }
}

fn allocated(claim: &Value, allocation: &Value, path: &Path, errors: &mut ErrorList) {
    let mut names: HashSet<String> = HashSet::new();
    for request in list_at(claim, &["spec", "devices", "requests"]) {
        let name = str_at(request, &["name"]);
        let subs = list_at(request, &["firstAvailable"]);
        names.extend(
            subs.iter()
                .map(|s| format!("{name}/{}", str_at(s, &["name"]))),
        );
        names.insert(name.to_owned());
    }
    let known = |name: &str, path: &Path, errors: &mut ErrorList| {
        if name.split('/').count() <= 2 {
            for part in name.split('/') {
                label_name(part, path, errors);
            }
        }
        if !names.contains(name) {
            let fault = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
            errors.push(FieldError::invalid(path, name, fault));
        }
    };
    let devices = path.child("devices");
    let results = list_at(allocation, &["devices", "results"]);
    let at_results = devices.child("results");
    too_many(results, RESULTS, &at_results, errors);
    for (i, result) in results.iter().enumerate() {
        let path = at_results.index(i);
        known(str_at(result, &["request"]), &path.child("request"), errors);
        driver_name(str_at(result, &["driver"]), &path.child("driver"), errors);
        pool_name(str_at(result, &["pool"]), &path.child("pool"), errors);
        label_name(str_at(result, &["device"]), &path.child("device"), errors);
        if has(result, &["shareID"]) {
            uuid(str_at(result, &["shareID"]), &path.child("shareID"), errors);
        }
    }
    let configs = list_at(allocation, &["devices", "config"]);
    let at_configs = devices.child("config");
    too_many(configs, ALLOCATION_CONFIGS, &at_configs, errors);
    for (i, config) in configs.iter().enumerate() {
        let path = at_configs.index(i);
        let source = str_at(config, &["source"]);
        let sources = ["FromClaim", "FromClass"];
        if source.is_empty() {
            errors.push(FieldError::required(&path.child("source"), ""));
        } else if !sources.contains(&source) {
            errors.push(FieldError::not_supported(
                &path.child("source"),
                source,
                &sources,
            ));
        }
        for (k, name) in list_at(config, &["requests"]).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            known(name, &path.child("requests").index(k), errors);
        }
        configuration(config, &path, errors);
    }
    if has(allocation, &["nodeSelector"]) {
        let selector = at(allocation, &["nodeSelector"]);
        super::super::selectors::node_selector(selector, &path.child("nodeSelector"), errors);
    }
}

fn reserved(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let list = list_at(new, &["status", "reservedFor"]);
    let before = list_at(old, &["status", "reservedFor"]);
    too_many(list, RESERVED, path, errors);
    if !list.is_empty() && !has(new, &["status", "allocation"]) {
        let fault = "may not be specified when `allocated` is not set";
        errors.push(FieldError::forbidden(path, fault));
    }
    let known: HashSet<&str> = before.iter().map(|r| str_at(r, &["uid"])).collect();
    let added = list.iter().any(|r| !known.contains(str_at(r, &["uid"])));
    if added && has(new, &["metadata", "deletionTimestamp"]) {
        let fault = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.push(FieldError::forbidden(path, fault));
    }
    let twins = repeats(list.iter().map(|r| str_at(r, &["uid"])));
    for ((i, user), is_twin) in list.iter().enumerate().zip(twins) {
        let path = path.index(i);
        for key in ["resource", "name", "uid"] {
            if str_at(user, &[key]).is_empty() {
                errors.push(FieldError::required(&path.child(key), ""));
            }
        }
        if is_twin {
            let uid = str_at(user, &["uid"]);
            errors.push(FieldError::duplicate(&path.child("uid"), uid));
        }
    }
}

/// Where a claim's spec asks for admin access.
pub fn admin_requests(spec: &Value, path: &Path) -> Vec<Path> {
    let requests = list_at(spec, &["devices", "requests"]).iter().enumerate();
    let asking = requests.filter(|(_, r)| bool_at(r, &["exactly", "adminAccess"]));
    let path = path.child("devices").child("requests");
    asking
        .map(|(i, _)| path.index(i).child("exactly").child("adminAccess"))
        .collect()
}
