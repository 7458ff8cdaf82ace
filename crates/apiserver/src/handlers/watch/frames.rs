//! Events as lines of JSON, in the form the client asked for.

use std::sync::Arc;

use bytes::Bytes;
use davit_api::kinds;
use davit_api::status::Status;
use davit_registry::{ResourceInfo, convert, errors, object};
use davit_schema::protobuf;
use davit_watchcache::{Delivery, WatchItem};
use serde_json::{Value, json};

use crate::context::Context;
use crate::negotiate::{Accepted, Form, Media};
use crate::respond::{self, Include};

/// Formats under which an event's bytes are shared; 1 is the cache's own.
const PARTIAL_V1: u32 = 2;
const PARTIAL_V1_BETA1: u32 = 3;
const PARTIAL_PROTOBUF_V1: u32 = 4;
const PARTIAL_PROTOBUF_V1_BETA1: u32 = 5;
/// Other formats are told apart by version; the lowest bit tells protobuf.
const OTHERS: u32 = 16;

/// Writes the events of one watch.
pub(super) struct Frames {
    resource: Arc<ResourceInfo>,
    media: Media,
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
            media: accepted.media,
            form: accepted.form,
            include,
            columns_sent: false,
        })
    }

    pub(super) fn resource(&self) -> &ResourceInfo {
        &self.resource
    }

    /// Writes an item; `converted` is its object in the version that is watched where that is not
    /// the one of the cache.
    pub(super) fn encode(
        &mut self,
        item: WatchItem,
        converted: Option<Value>,
    ) -> Result<Bytes, Status> {
        match (item, converted) {
            (WatchItem::Event(delivery), Some(value)) => {
                let kind = delivery.kind().as_str();
                let object = match self.form {
                    Form::Object => value,
                    Form::Partial(version) => respond::partial(&value, version),
                    Form::Table(_) => self.table(value),
                };
                self.frame(kind, &object)
            }
            (WatchItem::Event(delivery), None) => self.event(&delivery),
            (
                WatchItem::Bookmark {
                    revision,
                    initial_events_end,
                },
                _,
            ) => {
                let bookmark = self.bookmark(revision, initial_events_end);
                self.frame("BOOKMARK", &bookmark)
            }
        }
    }

    fn event(&mut self, delivery: &Delivery) -> Result<Bytes, Status> {
        errors::readable([&**delivery.object()], &self.resource)?;
        let converted = self.resource.is_converted();
        let protobuf = self.media == Media::Protobuf;
        let format = match (self.form, protobuf) {
            (Form::Object, false) if !converted => return Ok(delivery.json_frame()),
            (Form::Object, _) => {
                Some(OTHERS + version_number(&self.resource) * 2 + u32::from(protobuf))
            }
            (Form::Partial("v1"), false) => Some(PARTIAL_V1),
            (Form::Partial(_), false) => Some(PARTIAL_V1_BETA1),
            (Form::Partial("v1"), true) => Some(PARTIAL_PROTOBUF_V1),
            (Form::Partial(_), true) => Some(PARTIAL_PROTOBUF_V1_BETA1),
            (Form::Table(_), _) => None,
        };
        let kind = delivery.kind().as_str();
        let Some(format) = format else {
            let value = self.value(delivery)?;
            let table = self.table(value);
            return self.frame(kind, &table);
        };
        let mut failed = None;
        let bytes = delivery.encoded(format, || {
            let frame = match self.form {
                Form::Object if protobuf && !converted => self.message_frame(delivery),
                Form::Partial(version) if !protobuf && !converted => {
                    Ok(partial_frame(delivery, version))
                }
                Form::Partial(version) => self
                    .value(delivery)
                    .and_then(|value| self.frame(kind, &respond::partial(&value, version))),
                _ => self
                    .value(delivery)
                    .and_then(|value| self.frame(kind, &value)),
            };
            frame.unwrap_or_else(|status| {
                failed = Some(status);
                Bytes::new()
            })
        });
        failed.map_or(Ok(bytes), Err)
    }

    /// The object of an event in the version that is watched.
    fn value(&self, delivery: &Delivery) -> Result<Value, Status> {
        let stored = serde_json::from_slice(&delivery.object().json()).map_err(Status::internal)?;
        convert::from_storage(&self.resource, stored)
    }

    /// An event in protobuf, made of the message that is kept with the object.
    fn message_frame(&self, delivery: &Delivery) -> Result<Bytes, Status> {
        let resource = &self.resource;
        let message = respond::message(resource, delivery.object()).map_err(Status::internal)?;
        let object = protobuf::seal(&resource.api_version(), resource.row.kind, &message);
        protobuf::watch_frame(delivery.kind().as_str(), &object)
            .map(Bytes::from)
            .map_err(Status::internal)
    }

    /// The content type of the stream.
    pub(super) fn content_type(&self) -> &'static str {
        match self.media {
            Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            Media::Json | Media::Yaml => "application/json",
        }
    }

    /// The last event of a stream that failed.
    pub(super) fn error(&self, status: &Status) -> Bytes {
        let value = serde_json::to_value(status).unwrap_or(Value::Null);
        self.frame("ERROR", &value)
            .unwrap_or_else(|_| json_frame("ERROR", &value))
    }

    fn frame(&self, kind: &str, object: &Value) -> Result<Bytes, Status> {
        if self.media != Media::Protobuf {
            return Ok(json_frame(kind, object));
        }
        let object = protobuf::encode_object(kinds::builtin(), object).map_err(Status::internal)?;
        protobuf::watch_frame(kind, &object)
            .map(Bytes::from)
            .map_err(Status::internal)
    }

    fn table(&mut self, value: Value) -> Value {
        let version = match self.form {
            Form::Table(version) | Form::Partial(version) => version,
            Form::Object => "v1",
        };
        let revision = davit_api::meta::resource_version(&value).to_owned();
        let mut table = respond::table_frame(
            &self.resource,
            version,
            &json!({ "resourceVersion": revision }),
        );
        if self.columns_sent {
            table["columnDefinitions"] = Value::Null;
        }
        self.columns_sent = true;
        table["rows"] = json!([respond::row(&self.resource, value, version, self.include)]);
        table
    }

    fn bookmark(&mut self, revision: u64, initial_events_end: bool) -> Value {
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
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
                let mut table = respond::table_frame(&self.resource, version, &list);
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
    // room for the fixed numbers and the bit of the form
    hash >> 2
}

/// An event with the metadata of its object, from the text of that.
fn partial_frame(delivery: &Delivery, version: &str) -> Bytes {
    let mut object = Vec::with_capacity(delivery.object().json_len());
    delivery.object().append_json(&mut object);
    let mut frame = Vec::with_capacity(object.len());
    frame.extend_from_slice(b"{\"type\":\"");
    frame.extend_from_slice(delivery.kind().as_str().as_bytes());
    frame.extend_from_slice(b"\",\"object\":");
    respond::write_partial_of(&mut frame, &object, version);
    frame.extend_from_slice(b"}\n");
    frame.shrink_to_fit();
    frame.into()
}

fn json_frame(kind: &str, object: &Value) -> Bytes {
    let object = object::ordered(object).to_json();
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}
