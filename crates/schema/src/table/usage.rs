//! What nodes and pods use, with metrics-server's columns.

use davit_api::quantity::Quantity;
use serde_json::Value;

use super::format::{Row, at};
use super::{Column, NAME, Printer};

const COLUMNS: &[Column] = &[
    NAME,
    measured("cpu", "quantity", "Cores in use"),
    measured(
        "memory",
        "quantity",
        "Memory in use that cannot be taken back",
    ),
    measured("Window", "duration", "Over how long that was measured"),
];

pub(super) static NODE_METRICS: Printer = Printer {
    columns: COLUMNS,
    cells: |row| cells(row, std::slice::from_ref(row.obj)),
};

/// A pod uses what its containers use together.
pub(super) static POD_METRICS: Printer = Printer {
    columns: COLUMNS,
    cells: |row| cells(row, row.list(&["containers"])),
};

const fn measured(name: &'static str, format: &'static str, description: &'static str) -> Column {
    Column {
        format,
        ..Column::text(name, description)
    }
}

fn cells(row: &Row<'_>, users: &[Value]) -> Vec<Value> {
    let sum = |resource: &str| {
        let used = users.iter().map(|user| at(user, &["usage", resource]));
        let used = used.filter_map(|used| Quantity::from_json(used).ok());
        let sum = used.reduce(|a, b| a + b);
        Value::from(sum.unwrap_or(Quantity::ZERO).to_string())
    };
    vec![
        row.name(),
        sum("cpu"),
        sum("memory"),
        Value::from(row.str(&["window"])),
    ]
}
