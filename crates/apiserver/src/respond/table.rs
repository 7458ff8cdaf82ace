//! Tables, `meta.k8s.io` `Table`: columns and rows. The rows of a list are written one by one as they are made, because a
//! list may have very many and each is read from the bytes of its object.

use std::ops::Range;

use davit_access::query::Query;
use davit_api::kinds;
use davit_api::status::Status;
use davit_registry::ResourceInfo;
use davit_registry::object::ordered;
use davit_schema::ordered::Ordered;
use davit_schema::table;
use davit_watchcache::{copy_without_owners, metadata_range};
use serde_json::{Value, json};

use super::{Item, ListMeta, is_ordered, partial, write_partial, write_partial_with};

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
    let mut rows = Rows {
        resource,
        version,
        include,
        now: jiff::Timestamp::now(),
        text: Vec::new(),
    };
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        rows.write(&mut body, item)?;
    }
    body.extend_from_slice(b"]}\n");
    Ok(body)
}

/// Writes rows from the texts of objects.
struct Rows<'a> {
    resource: &'a ResourceInfo,
    version: &'a str,
    include: Include,
    now: jiff::Timestamp,
    /// What is read of the object at hand.
    text: Vec<u8>,
}

impl Rows<'_> {
    fn write(&mut self, body: &mut Vec<u8>, item: &Item) -> Result<(), Status> {
        let held;
        let json: &[u8] = match item {
            Item::Cached(object) => {
                held = object.json();
                &held
            }
            Item::Value(value) => {
                let found = cells(self.resource, value, self.now);
                write_cells(body, found);
                match self.include {
                    Include::None => body.extend_from_slice(b"null"),
                    Include::Metadata => write_partial(body, item, self.version),
                    Include::Object => body.extend_from_slice(ordered(value).to_json().as_bytes()),
                }
                body.push(b'}');
                return Ok(());
            }
        };
        let metadata = metadata_range(json).filter(|_| is_ordered(json));
        let value = self.read(json, metadata.clone())?;
        write_cells(body, cells(self.resource, &value, self.now));
        match (self.include, metadata) {
            (Include::None, _) => body.extend_from_slice(b"null"),
            (Include::Metadata, Some(at)) => write_partial_with(body, &json[at], self.version),
            (Include::Metadata, None) => write_partial(body, item, self.version),
            (Include::Object, _) => body.extend_from_slice(json),
        }
        body.push(b'}');
        Ok(())
    }

    /// As much of an object as its row is made of.
    fn read(&mut self, json: &[u8], metadata: Option<Range<usize>>) -> Result<Value, Status> {
        let row = &self.resource.row;
        let read = match (&self.resource.custom, metadata) {
            // their columns may show any field
            (Some(_), _) => serde_json::from_slice(json),
            (None, Some(at)) => {
                copy_without_owners(json, at, &mut self.text);
                table::read(row.group, row.kind, &self.text)
            }
            (None, None) => table::read(row.group, row.kind, json),
        };
        read.map_err(Status::internal)
    }
}

/// Begins a row: all but its object.
fn write_cells(body: &mut Vec<u8>, (cells, conditions): (Vec<Value>, Vec<Value>)) {
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
}
