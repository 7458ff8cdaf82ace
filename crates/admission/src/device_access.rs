//! Who may do what with devices: claims ask for admin access only in namespaces that are marked for it, and the status
//! of a claim is written part by part by those who may ([`status_parts`]).
//!
//! These are rules of the kinds and no plugin: no configuration switches them off.

use std::collections::{BTreeMap, BTreeSet};

use davit_access::{RequestInfo, UserInfo, authz};
use davit_allocator::{EXPRESSION_LIMIT, check_selector};
use davit_api::features::{GRANULAR_STATUS, LIST_ATTRIBUTES};
use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::status::Status;
use davit_cel::PatternBudget;
use davit_strategy::admin_requests;
use serde_json::Value;

use super::{Attributes, Operation};

const GROUP: &str = "resource.k8s.io";
/// Bytes that the regular expressions of all selectors of an object may take, compiled twice.
const PATTERNS: u64 = 32 << 20;
const LABEL: &str = "/metadata/labels/resource.kubernetes.io~1admin-access";

/// What of a write is not allowed beside what is invalid by itself.
///
/// # Errors
/// When the namespace cannot be read.
pub async fn faults(attributes: &Attributes<'_>, object: &Value) -> Result<ErrorList, Status> {
    if attributes.resource.row.group != GROUP || !attributes.writes() {
        return Ok(ErrorList::new());
    }
    let mut errors = admin_access(attributes, object).await?;
    status_parts(attributes, object, &mut errors).await;
    if !attributes.server.features().is_on(LIST_ATTRIBUTES) {
        plain_selectors(attributes, object, &mut errors);
    }
    Ok(errors)
}

async fn admin_access(attributes: &Attributes<'_>, object: &Value) -> Result<ErrorList, Status> {
    let fields = asked_for(attributes, object);
    if fields.is_empty() {
        return Ok(ErrorList::new());
    }
    let namespace = attributes.namespace;
    let server = attributes.server;
    let found = server.object("", "namespaces", "", namespace).await?;
    let label = found.as_ref().and_then(|n| n.pointer(LABEL));
    if label.and_then(Value::as_str) == Some("true") {
        return Ok(ErrorList::new());
    }
    let fault = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";
    let refused = fields.iter().map(|path| FieldError::forbidden(path, fault));
    Ok(refused.collect())
}

/// Selectors know `includes` only where attributes can be lists. Validation compiles with all there is, so that what is
/// stored stays valid when the gate is switched off; new selectors are looked at here.
fn plain_selectors(attributes: &Attributes<'_>, object: &Value, errors: &mut ErrorList) {
    let mut found: Vec<(Path, &Value)> = Vec::new();
    let spec = Path::new("spec");
    let old = attributes.old.unwrap_or(&Value::Null);
    match attributes.resource.row.kind {
        "DeviceClass" => selectors_of(&object["spec"], &spec, &mut found),
        "ResourceClaim" => claim_selectors(&object["spec"], &spec, &mut found),
        "ResourceClaimTemplate" => {
            claim_selectors(&object["spec"]["spec"], &spec.child("spec"), &mut found);
        }
        _ => {}
    }
    // claims and templates never change
    let stored = old["spec"]["selectors"].as_array();
    let is_stored = |s: &Value| stored.is_some_and(|list| list.contains(s));
    let subject = attributes.operation == Operation::Create
        || attributes.resource.row.kind == "DeviceClass" && attributes.subresource.is_empty();
    let mut room = PatternBudget(PATTERNS);
    for (path, selector) in found.into_iter().filter(|_| subject) {
        let expression = selector["cel"]["expression"].as_str().unwrap_or_default();
        // What is too long is refused as such.
        let is_looked_at = expression.contains("includes") && expression.len() <= EXPRESSION_LIMIT;
        if !is_looked_at || is_stored(selector) {
            continue;
        }
        let mut check = |lists| room.compile(|room| check_selector(expression, lists, room));
        if let (Err(fault), Ok(_)) = (check(false), check(true)) {
            let path = path.child("cel").child("expression");
            errors.push(FieldError::invalid(&path, expression, fault));
        }
    }
}

fn selectors_of<'a>(of: &'a Value, path: &Path, found: &mut Vec<(Path, &'a Value)>) {
    let list = of["selectors"].as_array().into_iter().flatten();
    let path = path.child("selectors");
    found.extend(list.enumerate().map(|(i, s)| (path.index(i), s)));
}

fn claim_selectors<'a>(spec: &'a Value, path: &Path, found: &mut Vec<(Path, &'a Value)>) {
    let requests = spec["devices"]["requests"].as_array().into_iter().flatten();
    let path = path.child("devices").child("requests");
    for (i, request) in requests.enumerate() {
        let path = path.index(i);
        selectors_of(&request["exactly"], &path.child("exactly"), found);
        let subs = request["firstAvailable"].as_array().into_iter().flatten();
        for (k, sub) in subs.enumerate() {
            selectors_of(sub, &path.child("firstAvailable").index(k), found);
        }
    }
}

/// The fields by which a write asks for admin access that was not given before.
fn asked_for(attributes: &Attributes<'_>, object: &Value) -> Vec<Path> {
    let create = attributes.operation == Operation::Create;
    let spec = Path::new("spec");
    match attributes.subresource {
        "" if create && attributes.is(GROUP, "resourceclaims") => {
            admin_requests(&object["spec"], &spec)
        }
        "" if create && attributes.is(GROUP, "resourceclaimtemplates") => {
            admin_requests(&object["spec"]["spec"], &spec.child("spec"))
        }
        "status" if attributes.about(GROUP, "resourceclaims") => {
            let results = "/status/allocation/devices/results";
            let before = attributes.old.and_then(|old| old.pointer(results));
            if before.is_some() {
                return Vec::new();
            }
            let list = object.pointer(results).and_then(Value::as_array);
            let path = Path::new("status")
                .child("allocation")
                .child("devices")
                .child("results");
            list.into_iter()
                .flatten()
                .enumerate()
                .filter(|(_, r)| r["adminAccess"] == true)
                .map(|(i, _)| path.index(i).child("adminAccess"))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Where the token of a service account says on which node its pod runs.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Beside the permission to write the status at all, one is needed for what is written: the virtual subresource
/// `binding` of claims for allocation and reservations, `driver` with the driver's name for what a driver says of its
/// devices (KEP-4817, the gate DRAResourceClaimGranularStatusAuthorization).
async fn status_parts(attributes: &Attributes<'_>, new: &Value, errors: &mut ErrorList) {
    // The classic API knows no parts.
    let concerned = attributes.operation == Operation::Update
        && attributes.subresource == "status"
        && attributes.about(GROUP, "resourceclaims")
        && attributes.resource.row.version != "v1alpha1"
        && attributes.server.features().is_on(GRANULAR_STATUS);
    let (true, Some(old)) = (concerned, attributes.old) else {
        return;
    };
    let status = Path::new("status");
    let differs = |field: &str| {
        let empty = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
        let (new, old) = (&new["status"][field], &old["status"][field]);
        new != old && !(empty(new) && empty(old))
    };
    let verb = attributes.verb;
    if (differs("allocation") || differs("reservedFor"))
        && let Err(why) = allowed(attributes, "binding", &[verb.to_owned()], "", "").await
    {
        let fault = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", \
             verb=\"{verb}\" permission: {why}"
        );
        errors.push(FieldError::forbidden(&status, fault));
    }
    let node = node_of(&new["status"]["allocation"]);
    let mut verbs = Vec::new();
    if node.is_some_and(|node| is_on(attributes.user, node)) {
        verbs.push(format!("associated-node:{verb}"));
    }
    verbs.push(format!("arbitrary-node:{verb}"));
    for driver in drivers_changed(&new["status"], &old["status"]) {
        let namespace = attributes.namespace;
        if let Err(why) = allowed(attributes, "driver", &verbs, namespace, driver).await {
            let fault = format!(
                "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {why}",
                verbs.join(" ")
            );
            errors.push(FieldError::forbidden(&status.child("devices"), fault));
        }
    }
}

/// Whether the user may do one of the verbs on a virtual subresource of claims; else why the first is refused.
async fn allowed(
    attributes: &Attributes<'_>,
    subresource: &str,
    verbs: &[String],
    namespace: &str,
    name: &str,
) -> Result<(), String> {
    let mut refusal = None;
    for verb in verbs {
        let request = RequestInfo {
            verb: verb.clone(),
            is_resource: true,
            prefix: "apis".to_owned(),
            group: GROUP.to_owned(),
            version: attributes.resource.row.version.to_owned(),
            resource: "resourceclaims".to_owned(),
            subresource: subresource.to_owned(),
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            name: name.to_owned(),
            ..RequestInfo::default()
        };
        match authz::check(&attributes.server.authorizer(), attributes.user, &request).await {
            Ok(()) => return Ok(()),
            Err(status) => refusal = refusal.or(Some(status.message)),
        }
    }
    Err(refusal.unwrap_or_default())
}

/// The one node an allocation is for.
fn node_of(allocation: &Value) -> Option<&str> {
    let one = |list: &'_ Value| list.as_array().map_or(0, Vec::len) == 1;
    let terms = &allocation["nodeSelector"]["nodeSelectorTerms"];
    let (term, fields) = (&terms[0], &terms[0]["matchFields"]);
    let values = &fields[0]["values"];
    let by_labels = term["matchExpressions"]
        .as_array()
        .is_some_and(|e| !e.is_empty());
    let is_name = fields[0]["key"] == "metadata.name" && fields[0]["operator"] == "In";
    (one(terms) && one(fields) && one(values) && is_name && !by_labels)
        .then(|| values[0].as_str())
        .flatten()
}

/// Whether the user is a service account in a pod on the node.
fn is_on(user: &UserInfo, node: &str) -> bool {
    let nodes = user.extra.get(NODE_NAME);
    user.name.starts_with("system:serviceaccount:")
        && matches!(nodes.map(Vec::as_slice), Some([only]) if only == node)
}

/// The drivers whose entries in `devices` are new, changed, or taken away. Entries of devices that are not allocated any
/// more go by themselves.
fn drivers_changed<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    type Key<'a> = [&'a Value; 4];
    let key = |entry: &'a Value| -> Key<'a> {
        [
            &entry["driver"],
            &entry["pool"],
            &entry["device"],
            &entry["shareID"],
        ]
    };
    let entries = |status: &'a Value| -> Vec<(Key<'a>, &'a Value)> {
        let list = status["devices"].as_array().into_iter().flatten();
        list.map(|entry| (key(entry), entry)).collect()
    };
    let text = |key: &Key<'_>| -> String {
        let parts = key.iter().map(|v| v.as_str().unwrap_or_default());
        parts.collect::<Vec<_>>().join("\n")
    };
    let results = new["allocation"]["devices"]["results"].as_array();
    let allocated: BTreeSet<String> = results
        .into_iter()
        .flatten()
        .map(|r| text(&key(r)))
        .collect();
    let mut before: BTreeMap<String, &Value> = entries(old)
        .into_iter()
        .map(|(key, entry)| (text(&key), entry))
        .collect();
    let mut changed = BTreeSet::new();
    for (key, entry) in entries(new) {
        if before.remove(&text(&key)) != Some(entry) {
            changed.extend(entry["driver"].as_str());
        }
    }
    let gone = before
        .into_iter()
        .filter(|(key, _)| allocated.contains(key));
    changed.extend(gone.filter_map(|(_, entry)| entry["driver"].as_str()));
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn drivers_of_changed_entries() {
        let status = |devices: Value, allocated: &[&str]| {
            let results: Vec<Value> = allocated
                .iter()
                .map(|d| json!({"request": "r", "driver": "a", "pool": "p", "device": d}))
                .collect();
            json!({"devices": devices, "allocation": {"devices": {"results": results}}})
        };
        let entry = |driver: &str, device: &str, n: i32| json!({"driver": driver, "pool": "p", "device": device, "data": n});
        let old = status(json!([entry("a", "0", 1), entry("b", "0", 1)]), &["0"]);
        let check = |new: &Value| -> Vec<String> {
            let found = drivers_changed(new, &old);
            found.into_iter().map(str::to_owned).collect()
        };
        assert!(check(&old).is_empty());
        assert_eq!(
            check(&status(
                json!([entry("a", "0", 2), entry("b", "0", 1)]),
                &["0"]
            )),
            ["a"]
        );
        assert_eq!(check(&status(json!([entry("b", "0", 1)]), &["0"])), ["a"]);
        assert!(check(&status(json!([entry("b", "0", 1)]), &[])).is_empty());
        let more = json!([entry("a", "0", 1), entry("b", "0", 1), entry("c", "0", 1)]);
        assert_eq!(check(&status(more, &["0"])), ["c"]);
    }

    #[test]
    fn only_one_named_node_counts() {
        let field =
            |values: &[&str]| json!([{"key": "metadata.name", "operator": "In", "values": values}]);
        let of = |terms: Value| {
            let allocation = json!({"nodeSelector": {"nodeSelectorTerms": terms}});
            node_of(&allocation).map(str::to_owned)
        };
        assert_eq!(
            of(json!([{"matchFields": field(&["n"])}])).as_deref(),
            Some("n")
        );
        assert_eq!(of(json!([{"matchFields": field(&["n", "m"])}])), None);
        let labels = json!([{"key": "k", "operator": "Exists"}]);
        assert_eq!(
            of(json!([{"matchFields": field(&["n"]), "matchExpressions": labels}])),
            None
        );
        assert_eq!(node_of(&Value::Null), None);
    }
}
