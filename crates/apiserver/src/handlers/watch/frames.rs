//! Events as lines of JSON, in the form the client asked for.

use std::sync::Arc;

use bytes::Bytes;
use davit_api::status::Status;
use serde_json::{Value, json};

use crate::cache::{Delivery, WatchItem};
use crate::context::Context;
use crate::convert;
use crate::negotiate::{Accepted, Form};
use crate::registry::ResourceInfo;
use crate::respond::{self, Include};

/// Formats under which an event's bytes are shared; 1 is the cache's own.
const PARTIAL_V1: u32 = 2;
const PARTIAL_V1_BETA1: u32 = 3;
const CONVERTED: u32 = 16;

/// Writes the events of one watch.
pub(super) struct Frames {
    resource: Arc<ResourceInfo>,
    form: Form,
    include: Include,
    /// Column definitions go out once.
    columns_sent: bool,
}

impl Frames {
    pub(super) fn new(
        context: &Context,
        accepted: Accepted,
        resource: &ResourceInfo,
    ) -> Result<Self, Status> {
        let include = Include::of(&context.query)?;
        Ok(Self {
            resource: Arc::new(resource.clone()),
            form: accepted.form,
            include,
            columns_sent: false,
        })
    }

    pub(super) fn resource(&self) -> &ResourceInfo {
        &self.resource
    }

    pub(super) fn encode(&mut self, item: WatchItem) -> Result<Bytes, Status> {
        match item {
            WatchItem::Event(delivery) => self.event(&delivery),
            WatchItem::Bookmark { revision, initial_events_end } => {
                Ok(frame("BOOKMARK", &self.bookmark(revision, initial_events_end)))
            }
        }
    }

    fn event(&mut self, delivery: &Delivery) -> Result<Bytes, Status> {
        let converted = self.resource.is_converted();
        let format = match self.form {
            Form::Object if !converted => return Ok(delivery.json_frame()),
            Form::Object => Some(CONVERTED + version_number(&self.resource)),
            Form::Partial("v1") => Some(PARTIAL_V1),
            Form::Partial(_) => Some(PARTIAL_V1_BETA1),
            Form::Table(_) => None,
        };
        let value: Value =
            serde_json::from_slice(delivery.object().json()).map_err(Status::internal)?;
        let value = convert::from_storage(&self.resource, value)?;
        let kind = delivery.kind().as_str();
        let Some(format) = format else {
            return Ok(frame(kind, &self.table(value)));
        };
        let object = match self.form {
            Form::Partial(version) => respond::partial(&value, version),
            _ => value,
        };
        Ok(delivery.encoded(format, || frame(kind, &object)))
    }

    fn table(&mut self, value: Value) -> Value {
        let version = match self.form {
            Form::Table(version) | Form::Partial(version) => version,
            Form::Object => "v1",
        };
        let revision = davit_api::meta::resource_version(&value).to_owned();
        let mut table =
            respond::table_frame(&self.resource, version, json!({ "resourceVersion": revision }));
        if self.columns_sent {
            table["columnDefinitions"] = Value::Null;
        }
        self.columns_sent = true;
        table["rows"] = json!([respond::row(&self.resource, value, version, self.include)]);
        table
    }

    fn bookmark(&mut self, revision: u64, initial_events_end: bool) -> Value {
        let mut metadata = json!({ "resourceVersion": revision.to_string(), "creationTimestamp": null });
        if initial_events_end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        match self.form {
            Form::Object => json!({
                "kind": self.resource.row.kind,
                "apiVersion": self.resource.api_version(),
                "metadata": metadata,
            }),
            Form::Partial(version) => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": format!("meta.k8s.io/{version}"),
                "metadata": metadata,
            }),
            Form::Table(version) => {
                let list = json!({ "resourceVersion": revision.to_string() });
                let mut table = respond::table_frame(&self.resource, version, list);
                if self.columns_sent {
                    table["columnDefinitions"] = Value::Null;
                }
                self.columns_sent = true;
                let cells: Vec<Value> = Vec::new();
                let object = json!({
                    "kind": "PartialObjectMetadata",
                    "apiVersion": format!("meta.k8s.io/{version}"),
                    "metadata": metadata,
                });
                table["rows"] = json!([{ "cells": cells, "object": object }]);
                table
            }
        }
    }
}

/// Tells the versions of a resource apart; the digits and letters of a version fit.
fn version_number(resource: &ResourceInfo) -> u32 {
    let text = format!("{}/{}", resource.row.group, resource.row.version);
    // FNV-1a, kept clear of the fixed numbers
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash >> 1
}

/// The last event of a stream that failed.
pub(super) fn error(status: &Status) -> Bytes {
    frame("ERROR", &serde_json::to_value(status).unwrap_or(Value::Null))
}

fn frame(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}
