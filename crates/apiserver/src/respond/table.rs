//! Tables, `meta.k8s.io` `Table`: columns and rows. The rows of a list are written one by one as they are made, because a
//! list may have very many and each is read from the bytes of its object.

use std::io::Write as _;

use davit_access::query::Query;
use davit_api::kinds;
use davit_api::status::Status;
use davit_schema::ordered::Ordered;
use davit_schema::table;
use serde_json::{Value, json};

use super::{Item, ListMeta, partial, write_partial};
use crate::object::ordered;
use crate::registry::ResourceInfo;

/// How much of the object a table row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub(crate) fn of(query: &Query) -> Result<Self, Status> {
        match query.get("includeObject") {
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(Status::bad_request(format!(
                "unrecognized includeObject value: \"{other}\""
            ))),
        }
    }
}

/// A table without rows.
pub(crate) fn table_frame(resource: &ResourceInfo, version: &str, metadata: &Value) -> Value {
    let row = &resource.row;
    if let Some(custom) = &resource.custom {
        return table_of(version, metadata, &custom.columns.definitions());
    }
    let columns = column_definitions(row.group, row.version, row.kind);
    table_of(version, metadata, &columns)
}

fn column_definitions(group: &str, version: &str, kind: &str) -> Vec<Value> {
    let columns = table::columns(group, version, kind).iter();
    let definition = |column: &table::Column| {
        json!({
            "name": column.name, "type": column.r#type, "format": column.format,
            "description": column.description, "priority": column.priority,
        })
    };
    columns.map(definition).collect()
}

/// The table of one scale, whatever it is the scale of.
pub(super) fn scale_table(scale: Value, version: &str, include: Include) -> Value {
    const KIND: (&str, &str, &str) = ("autoscaling", "v1", "Scale");
    let metadata = json!({ "resourceVersion": davit_api::meta::resource_version(&scale) });
    let columns = column_definitions(KIND.0, KIND.1, KIND.2);
    let mut table = table_of(version, &metadata, &columns);
    let cells = table::cells(KIND.0, KIND.1, KIND.2, &scale, jiff::Timestamp::now());
    table["rows"] = json!([{ "cells": cells, "object": included(scale, version, include) }]);
    table
}

fn included(value: Value, version: &str, include: Include) -> Value {
    match include {
        Include::None => Value::Null,
        Include::Metadata => partial(&value, version),
        Include::Object => value,
    }
}

fn table_of(version: &str, metadata: &Value, columns: &[Value]) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": [],
    })
}

/// One row of a table.
pub(crate) fn row(resource: &ResourceInfo, value: Value, version: &str, include: Include) -> Value {
    let now = jiff::Timestamp::now();
    let (cells, conditions) = cells(resource, &value, now);
    let mut row = json!({ "cells": cells, "object": included(value, version, include) });
    if !conditions.is_empty() {
        row["conditions"] = Value::Array(conditions);
    }
    row
}

fn cells(resource: &ResourceInfo, value: &Value, now: jiff::Timestamp) -> (Vec<Value>, Vec<Value>) {
    let info = &resource.row;
    let cells = match &resource.custom {
        Some(custom) => custom.columns.cells(value, now),
        None => table::cells(info.group, info.version, info.kind, value, now),
    };
    let conditions = table::row_conditions(info.group, info.kind, value);
    (cells, conditions)
}

/// The JSON of the table of a list, the same bytes as of a table made of [`table_frame`] and [`row`]s.
pub(super) fn table_bytes(
    resource: &ResourceInfo,
    version: &str,
    include: Include,
    items: &[Item],
    meta: &ListMeta,
) -> Result<Vec<u8>, Status> {
    let frame = table_frame(resource, version, &meta.to_value());
    let frame = ordered(&frame).to_json();
    // the rows are the last of it
    let head = frame
        .strip_suffix("]}")
        .ok_or_else(|| Status::internal("a table does not end with its rows"))?;
    let each = match include {
        Include::None => 128,
        Include::Metadata => 1024,
        Include::Object => 2048,
    };
    let mut body = Vec::with_capacity(head.len() + items.len() * each);
    body.extend_from_slice(head.as_bytes());
    let now = jiff::Timestamp::now();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        write_row(&mut body, resource, version, include, item, now)?;
    }
    body.extend_from_slice(b"]}\n");
    Ok(body)
}

fn write_row(
    body: &mut Vec<u8>,
    resource: &ResourceInfo,
    version: &str,
    include: Include,
    item: &Item,
    now: jiff::Timestamp,
) -> Result<(), Status> {
    let (cells, conditions) = match item {
        Item::Value(value) => cells(resource, value, now),
        Item::Cached(object) => {
            let json = object.json();
            let value = match &resource.custom {
                // their columns may show any field
                Some(_) => serde_json::from_slice(json),
                None => table::read(resource.row.group, resource.row.kind, json),
            };
            cells(resource, &value.map_err(Status::internal)?, now)
        }
    };
    // writing to a Vec cannot fail, nor can values with string keys
    body.extend_from_slice(b"{\"cells\":");
    let _ = serde_json::to_writer(&mut *body, &cells);
    if !conditions.is_empty() {
        body.extend_from_slice(b",\"conditions\":");
        for (index, condition) in conditions.iter().enumerate() {
            body.push(if index == 0 { b'[' } else { b',' });
            let typed = Ordered::of_type(kinds::builtin(), "meta/v1.TableRowCondition", condition);
            let _ = serde_json::to_writer(&mut *body, &typed);
        }
        body.push(b']');
    }
    body.extend_from_slice(b",\"object\":");
    match include {
        Include::None => body.extend_from_slice(b"null"),
        Include::Metadata => write_partial(body, item, version),
        Include::Object => {
            let _ = match item {
                Item::Cached(object) => body.write_all(object.json()),
                Item::Value(value) => body.write_all(ordered(value).to_json().as_bytes()),
            };
        }
    }
    body.push(b'}');
    Ok(())
}
