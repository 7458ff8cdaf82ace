//! The objects of priority and fairness that every cluster has.

use serde_json::{Value, json};

/// Whether the server keeps an object as it is, or only made it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upkeep {
    /// Its spec is always this one.
    Mandatory,
    /// Its spec is kept while the annotation says so.
    Suggested,
}

/// By this annotation the server knows which specs are its own to keep.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
/// The names nobody may give other meanings.
pub const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

fn upkeep(name: &str) -> Upkeep {
    if MANDATORY.contains(&name) {
        Upkeep::Mandatory
    } else {
        Upkeep::Suggested
    }
}

fn with_meta(kind: &str, name: &str, spec: &Value) -> (Value, Upkeep) {
    let object = json!({
        "apiVersion": API_VERSION, "kind": kind,
        "metadata": { "name": name, "annotations": { AUTO_UPDATE: "true" } },
        "spec": spec,
    });
    (object, upkeep(name))
}

/// The priority levels.
pub fn levels() -> Vec<(Value, Upkeep)> {
    let limited = |name: &str, shares: u32, lendable: u32, queues: Option<(u32, u32)>| {
        let response = match queues {
            None => json!({ "type": "Reject" }),
            Some((queues, hand)) => json!({
                "type": "Queue",
                "queuing": { "queues": queues, "handSize": hand, "queueLengthLimit": 50 },
            }),
        };
        let spec = json!({
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": shares, "lendablePercent": lendable,
                "limitResponse": response,
            },
        });
        with_meta("PriorityLevelConfiguration", name, &spec)
    };
    let exempt = json!({
        "type": "Exempt",
        "exempt": { "nominalConcurrencyShares": 0, "lendablePercent": 0 },
    });
    vec![
        with_meta("PriorityLevelConfiguration", "exempt", &exempt),
        limited("catch-all", 5, 0, None),
        limited("system", 30, 33, Some((64, 6))),
        limited("node-high", 40, 25, Some((64, 6))),
        limited("leader-election", 10, 0, Some((16, 4))),
        limited("workload-high", 40, 50, Some((128, 6))),
        limited("workload-low", 100, 90, Some((128, 6))),
        limited("global-default", 20, 50, Some((128, 6))),
    ]
}

fn groups(names: &[&str]) -> Vec<Value> {
    let group = |name: &&str| json!({ "kind": "Group", "group": { "name": name } });
    names.iter().map(group).collect()
}

fn users(names: &[&str]) -> Vec<Value> {
    let user = |name: &&str| json!({ "kind": "User", "user": { "name": name } });
    names.iter().map(user).collect()
}

fn accounts(names: &[&str]) -> Vec<Value> {
    let account = |name: &&str| {
        json!({
            "kind": "ServiceAccount",
            "serviceAccount": { "namespace": "kube-system", "name": name },
        })
    };
    names.iter().map(account).collect()
}

fn namespaced(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({ "verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"] })
}

fn everything() -> Value {
    json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
        "clusterScope": true, "namespaces": ["*"],
    })
}

fn paths(verbs: &[&str], urls: &[&str]) -> Value {
    json!({ "verbs": verbs, "nonResourceURLs": urls })
}

/// The flow schemas.
pub fn schemas() -> Vec<(Value, Upkeep)> {
    let schema = |name: &str,
                  level: &str,
                  precedence: u32,
                  flows: &str,
                  subjects: Vec<Value>,
                  resources: Vec<Value>,
                  urls: Vec<Value>| {
        let mut rule = json!({ "subjects": subjects });
        if !resources.is_empty() {
            rule["resourceRules"] = Value::from(resources);
        }
        if !urls.is_empty() {
            rule["nonResourceRules"] = Value::from(urls);
        }
        let mut spec = json!({
            "priorityLevelConfiguration": { "name": level },
            "matchingPrecedence": precedence,
            "rules": [rule],
        });
        if !flows.is_empty() {
            spec["distinguisherMethod"] = json!({ "type": flows });
        }
        with_meta("FlowSchema", name, &spec)
    };
    let all = || vec![everything()];
    let any_path = || vec![paths(&["*"], &["*"])];
    let anybody = || groups(&["system:unauthenticated", "system:authenticated"]);
    let elect = ["get", "create", "update"];
    let leases = |verbs: &[&str]| namespaced(verbs, "coordination.k8s.io", &["leases"]);
    let of_nodes = json!({
        "verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"],
        "clusterScope": true, "namespaces": ["*"],
    });
    let manager = "system:kube-controller-manager";
    let scheduler = "system:kube-scheduler";
    let mut electors = users(&[manager, scheduler]);
    electors.extend(accounts(&["*"]));
    let mut endpoints = users(&[manager]);
    endpoints.extend(accounts(&[
        "endpoint-controller",
        "endpointslicemirroring-controller",
    ]));
    let probes = vec![paths(&["get"], &["/healthz", "/readyz", "/livez"])];
    let masters = groups(&["system:masters"]);
    let nodes = || groups(&["system:nodes"]);
    vec![
        schema("exempt", "exempt", 1, "", masters, all(), any_path()),
        schema(
            "catch-all",
            "catch-all",
            10000,
            "ByUser",
            anybody(),
            all(),
            any_path(),
        ),
        schema("probes", "exempt", 2, "", anybody(), vec![], probes),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            "ByUser",
            electors,
            vec![leases(&elect)],
            vec![],
        ),
        schema(
            "endpoint-controller",
            "workload-high",
            150,
            "ByUser",
            endpoints,
            vec![namespaced(&elect, "", &["endpoints"])],
            vec![],
        ),
        schema(
            "workload-leader-election",
            "leader-election",
            200,
            "ByUser",
            accounts(&["*"]),
            vec![
                namespaced(&elect, "", &["endpoints", "configmaps"]),
                leases(&elect),
            ],
            vec![],
        ),
        schema(
            "system-node-high",
            "node-high",
            400,
            "ByUser",
            nodes(),
            vec![of_nodes, leases(&["*"])],
            vec![],
        ),
        schema(
            "system-nodes",
            "system",
            500,
            "ByUser",
            nodes(),
            all(),
            any_path(),
        ),
        schema(
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            users(&[manager]),
            all(),
            any_path(),
        ),
        schema(
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            users(&[scheduler]),
            all(),
            any_path(),
        ),
        schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            accounts(&["*"]),
            all(),
            any_path(),
        ),
        schema(
            "service-accounts",
            "workload-low",
            9000,
            "ByUser",
            groups(&["system:serviceaccounts"]),
            all(),
            any_path(),
        ),
        schema(
            "global-default",
            "global-default",
            9900,
            "ByUser",
            anybody(),
            all(),
            any_path(),
        ),
    ]
}
