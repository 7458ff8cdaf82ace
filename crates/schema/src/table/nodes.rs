//! Nodes, namespaces, component statuses.

use std::collections::BTreeSet;

use serde_json::Value;

use super::format::{Row, condition, non_empty, str_at};
use super::{AGE, Column, NAME, Printer};

pub(super) static NODE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Whether the node is ready and takes pods"),
        Column::text("Roles", "Roles given by labels"),
        AGE,
        Column::text("Version", "Version of the node agent"),
        Column::text("Internal-IP", "Address inside the cluster").wide(),
        Column::text("External-IP", "Address outside the cluster").wide(),
        Column::text("OS-Image", "Operating system").wide(),
        Column::text("Kernel-Version", "Kernel version").wide(),
        Column::text("Container-Runtime", "Container runtime and its version").wide(),
    ],
    cells: node,
};

pub(super) static NAMESPACE: Printer = Printer {
    columns: &[NAME, Column::text("Status", "Phase of the namespace"), AGE],
    cells: |r| vec![r.name(), Value::from(r.str(&["status", "phase"])), r.age()],
};

pub(super) static COMPONENT_STATUS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Health of the component"),
        Column::text("Message", "What it says of itself"),
        Column::text("Error", "What went wrong"),
    ],
    cells: |r| {
        let healthy = condition(r.list(&["conditions"]), "Healthy");
        let text = |key| Value::from(healthy.map_or("", |c| str_at(c, &[key])));
        let status = match healthy.map(|c| str_at(c, &["status"])) {
            Some("True") => "Healthy",
            Some(_) => "Unhealthy",
            None => "Unknown",
        };
        vec![
            r.name(),
            Value::from(status),
            text("message"),
            text("error"),
        ]
    },
};

fn node(row: &Row<'_>) -> Vec<Value> {
    let mut status = match condition(row.list(&["status", "conditions"]), "Ready") {
        Some(c) if str_at(c, &["status"]) == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if row.at(&["spec", "unschedulable"]).as_bool() == Some(true) {
        status.push_str(",SchedulingDisabled");
    }
    let info = |key| row.str_or(&["status", "nodeInfo", key], "<unknown>");
    vec![
        row.name(),
        Value::from(status),
        Value::from(roles(row)),
        row.age(),
        Value::from(row.str(&["status", "nodeInfo", "kubeletVersion"])),
        address(row, "InternalIP"),
        address(row, "ExternalIP"),
        info("osImage"),
        kernel(row),
        info("containerRuntimeVersion"),
    ]
}

/// The kernel's version and, where it is known, what it runs on.
fn kernel(row: &Row<'_>) -> Value {
    let version = row.str_or(&["status", "nodeInfo", "kernelVersion"], "<unknown>");
    let architecture = row.str(&["status", "nodeInfo", "architecture"]);
    if architecture.is_empty() {
        return version;
    }
    let version = version.as_str().unwrap_or_default();
    Value::from(format!("{version} ({architecture})"))
}

fn address(row: &Row<'_>, kind: &str) -> Value {
    let address = condition(row.list(&["status", "addresses"]), kind);
    Value::from(address.map_or("<none>", |a| str_at(a, &["address"])))
}

fn roles(row: &Row<'_>) -> String {
    let roles: BTreeSet<&str> = row
        .at(&["metadata", "labels"])
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role),
                None if key == "kubernetes.io/role" => value.as_str(),
                None => None,
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    non_empty(&roles.into_iter().collect::<Vec<_>>().join(","), "<none>").to_owned()
}
