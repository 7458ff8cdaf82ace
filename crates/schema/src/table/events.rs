//! Events, in the shapes of core/v1 and events.k8s.io/v1.

use serde_json::Value;

use super::format::{Row, non_empty, str_at, time};
use super::{Column, NAME, Printer};

const COLUMNS: &[Column] = &[
    Column::text("Last Seen", "Time since the event was last seen"),
    Column::text("Type", "Normal or Warning"),
    Column::text("Reason", "Reason in one word"),
    Column::text("Object", "Object the event is about"),
    Column::text("Subobject", "Part of the object the event is about").wide(),
    Column::text("Source", "Who reported the event").wide(),
    Column::text("Message", "What happened"),
    Column::text("First Seen", "Time since the event was first seen").wide(),
    Column::text("Count", "How often the event was seen").wide(),
    Column {
        priority: 1,
        ..NAME
    },
];

pub(super) static CORE: Printer = Printer {
    columns: COLUMNS,
    cells: |r| {
        cells(
            r,
            &Names {
                object: "involvedObject",
                message: "message",
                first: "firstTimestamp",
                last: "lastTimestamp",
                count: "count",
                source: "source",
                controller: "reportingComponent",
            },
        )
    },
};

pub(super) static EVENTS: Printer = Printer {
    columns: COLUMNS,
    cells: |r| {
        cells(
            r,
            &Names {
                object: "regarding",
                message: "note",
                first: "deprecatedFirstTimestamp",
                last: "deprecatedLastTimestamp",
                count: "deprecatedCount",
                source: "deprecatedSource",
                controller: "reportingController",
            },
        )
    },
};

/// What the fields are called in one of the two shapes.
struct Names {
    object: &'static str,
    message: &'static str,
    first: &'static str,
    last: &'static str,
    count: &'static str,
    source: &'static str,
    controller: &'static str,
}

fn cells(row: &Row<'_>, names: &Names) -> Vec<Value> {
    let first = row
        .time(&[names.first])
        .or_else(|| row.time(&["eventTime"]));
    let mut last = row.time(&[names.last]).or(first);
    let mut count = match row.int(&[names.count]) {
        0 => 1,
        count => count,
    };
    let series = row.at(&["series"]);
    if !series.is_null() {
        last = time(series.get("lastObservedTime").unwrap_or(&Value::Null));
        count = row.int(&["series", "count"]);
    }
    let object = row.at(&[names.object]);
    let mut target = str_at(object, &["kind"]).to_lowercase();
    let name = str_at(object, &["name"]);
    if !name.is_empty() {
        target = format!("{target}/{name}");
    }
    vec![
        Value::from(row.since_time(last)),
        Value::from(row.str(&["type"])),
        Value::from(row.str(&["reason"])),
        Value::from(target),
        Value::from(str_at(object, &["fieldPath"])),
        Value::from(source(row, names)),
        Value::from(row.str(&[names.message]).trim()),
        Value::from(row.since_time(first)),
        Value::from(count),
        row.name(),
    ]
}

fn source(row: &Row<'_>, names: &Names) -> String {
    let component = non_empty(
        row.str(&[names.source, "component"]),
        row.str(&[names.controller]),
    );
    let host = non_empty(
        row.str(&[names.source, "host"]),
        row.str(&["reportingInstance"]),
    );
    match (component, host) {
        (component, "") => component.to_owned(),
        (component, host) => format!("{component}, {host}"),
    }
}
