//! resource.k8s.io: structured claims and slices, and the classic kinds of v1alpha1.

use serde_json::Value;

use super::format::{Row, is_true};
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
        Column::text("Complete", "Whether the answer is there"),
        AGE,
    ],
    cells: |r| {
        let complete = is_true(r.list(&["status", "conditions"]), "Complete");
        vec![
            r.name(),
            Value::from(r.str(&["spec", "driver"])),
            Value::from(if complete { "True" } else { "False" }),
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
