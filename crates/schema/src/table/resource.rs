//! resource.k8s.io: structured claims and slices, and the classic kinds of v1alpha1.

use serde_json::Value;

use super::format::{Row, condition, is_true, time};
use super::{AGE, Column, DEFAULT, NAME, Printer};

static CLAIM: Printer = Printer {
    columns: &[
        NAME,
        Column::text("State", "Comma-separated words about the allocation"),
        AGE,
    ],
    cells: |r| vec![r.name(), Value::from(state(r)), r.age()],
};

static SLICE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Node", "Node whose devices the slice lists"),
        Column::text("Driver", "Driver that published the slice"),
        Column::text("Pool", "Pool the devices belong to"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["spec", "nodeName"])),
            Value::from(r.str(&["spec", "driver"])),
            Value::from(r.str(&["spec", "pool", "name"])),
            r.age(),
        ]
    },
};

static POOL_STATUS_REQUEST: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Driver", "Driver whose pools are asked for"),
        Column::text("Total", "Devices of the pools"),
        Column::text("Available", "Devices that are free"),
        Column::text("Allocated", "Devices that claims have"),
        Column::text("Unavailable", "Devices that are neither"),
        Column::text("Errors", "Pools that are not valid"),
        Column::number("Pools", "Pools that there are"),
        Column::text("Status", "Pending, Complete or Failed"),
        Column::text("Completed", "Time since the answer is there"),
    ],
    cells: pool_status,
};

fn pool_status(r: &Row<'_>) -> Vec<Value> {
    let conditions = r.list(&["status", "conditions"]);
    let complete = condition(conditions, "Complete").filter(|_| is_true(conditions, "Complete"));
    let has_failed = complete.is_none() && is_true(conditions, "Failed");
    let pools = r.list(&["status", "pools"]);
    let count = r.int(&["status", "poolCount"]);
    let counted = !r.at(&["status"]).is_null() && !has_failed;
    let cell = |count: i64| match counted {
        true => Value::from(count.to_string()),
        false => Value::from("-"),
    };
    let sum = |key: &str| cell(pools.iter().filter_map(|pool| pool[key].as_i64()).sum());
    let faulty = pools
        .iter()
        .filter(|pool| !pool["validationError"].is_null());
    let shown = pools.len() as i64;
    let status = match (complete.is_some(), has_failed) {
        (true, _) if count > shown => format!("Complete ({shown}/{count} pools)"),
        (true, _) => "Complete".to_owned(),
        (_, true) => "Failed".to_owned(),
        _ => "Pending".to_owned(),
    };
    let completed = complete.map_or_else(
        || "<none>".to_owned(),
        |c| r.since_time(time(&c["lastTransitionTime"])),
    );
    vec![
        r.name(),
        Value::from(r.str(&["spec", "driver"])),
        sum("totalDevices"),
        sum("availableDevices"),
        sum("allocatedDevices"),
        sum("unavailableDevices"),
        cell(faulty.count() as i64),
        Value::from(count),
        Value::from(status),
        Value::from(completed),
    ]
}

static TAINT_RULE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Key", "Key of the taint"),
        Column::text("Value", "Value of the taint"),
        Column::text("Effect", "What the taint does"),
        Column::text("TimeAdded", "Time since the taint was added"),
        AGE,
    ],
    cells: |r| {
        let taint = |key| r.str(&["spec", "taint", key]);
        let added = ["spec", "taint", "timeAdded"];
        let since = match r.time(&added) {
            Some(added) => r.since_time(Some(added)),
            None => String::new(),
        };
        vec![
            r.name(),
            Value::from(taint("key")),
            Value::from(taint("value")),
            Value::from(taint("effect")),
            Value::from(since),
            r.age(),
        ]
    },
};

static CLASSIC_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("DriverName", "Driver that allocates claims of the class"),
        AGE,
    ],
    cells: |r| vec![r.name(), Value::from(r.str(&["driverName"])), r.age()],
};

const CLASS_NAME: Column = Column::text("ResourceClassName", "Class of the claim");
const MODE: Column = Column::text("AllocationMode", "When the claim is allocated");

static CLASSIC_CLAIM: Printer = Printer {
    columns: &[
        NAME,
        CLASS_NAME,
        MODE,
        Column::text("State", "Comma-separated words about the allocation"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["spec", "resourceClassName"])),
            Value::from(r.str(&["spec", "allocationMode"])),
            Value::from(classic_state(r)),
            r.age(),
        ]
    },
};

static CLASSIC_TEMPLATE: Printer = Printer {
    columns: &[NAME, CLASS_NAME, MODE, AGE],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["spec", "spec", "resourceClassName"])),
            Value::from(r.str(&["spec", "spec", "allocationMode"])),
            r.age(),
        ]
    },
};

static POD_SCHEDULING: Printer = Printer {
    columns: &[
        NAME,
        Column::text("SelectedNode", "Node the scheduler proposes"),
        AGE,
    ],
    cells: |r| {
        vec![
            r.name(),
            Value::from(r.str(&["spec", "selectedNode"])),
            r.age(),
        ]
    },
};

pub(super) fn printer(version: &str, kind: &str) -> &'static Printer {
    match (version, kind) {
        ("v1alpha1", "ResourceClass") => &CLASSIC_CLASS,
        ("v1alpha1", "ResourceClaim") => &CLASSIC_CLAIM,
        ("v1alpha1", "ResourceClaimTemplate") => &CLASSIC_TEMPLATE,
        ("v1alpha1", "PodScheduling") => &POD_SCHEDULING,
        (_, "ResourceClaim") => &CLAIM,
        (_, "ResourceSlice") => &SLICE,
        (_, "DeviceTaintRule") => &TAINT_RULE,
        (_, "ResourcePoolStatusRequest") => &POOL_STATUS_REQUEST,
        _ => &DEFAULT,
    }
}

fn words(row: &Row<'_>) -> Vec<&'static str> {
    let mut words = Vec::new();
    if row.deleting() {
        words.push("deleted");
    }
    if !row.at(&["status", "allocation"]).is_null() {
        words.push("allocated");
    }
    words
}

fn state(row: &Row<'_>) -> String {
    let mut words = words(row);
    if !row.list(&["status", "reservedFor"]).is_empty() {
        words.push("reserved");
    }
    joined(&words)
}

fn classic_state(row: &Row<'_>) -> String {
    let mut words = words(row);
    if row.at(&["status", "deallocationRequested"]).as_bool() == Some(true) {
        words.push("deallocating");
    }
    if !row.list(&["status", "reservedFor"]).is_empty() {
        words.push("reserved");
    }
    joined(&words)
}

fn joined(words: &[&str]) -> String {
    if words.is_empty() {
        "pending".to_owned()
    } else {
        words.join(",")
    }
}
