//! Writing answers in the form that was negotiated.

use std::io::Write as _;
use std::sync::Arc;

use davit_access::query::Query;
use davit_api::kinds;
use davit_api::status::Status;
use davit_registry::object::ordered;
use davit_registry::storage::Stored;
use davit_registry::{ResourceInfo, convert};
use davit_schema::protobuf::{ProtobufError, encode_object};
use davit_watchcache::{CachedObject, append_with_resource_version, metadata_of};
use http::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

mod protobuf;
mod table;

use crate::body::ResponseBody;
use crate::context::{Context, HandlerResult};
use crate::negotiate::{
    Accepted, Clause, Form, Media, NotAcceptable, Offer, PROTOBUF, clauses, negotiate, takes_gzip,
    wants_pretty,
};

pub(crate) use protobuf::message;
pub(crate) use table::{Include, row, table_frame};
use table::{scale_table, table_bytes};

/// The media types of answers, and those that only streams have.
const KNOWN: [&str; 3] = ["application/json", "application/yaml", PROTOBUF];
const STREAMS: [&str; 2] = [
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
/// Bodies larger than this are compressed for clients that can read it.
const GZIP_FROM: usize = 128 * 1024;

/// Chooses the form of the answer, before anything is done.
pub(crate) fn accepted(context: &Context, offer: Offer) -> Result<Accepted, Status> {
    negotiate(&context.headers, &context.query, offer).map_err(|NotAcceptable| {
        let known = |clause: &Clause| {
            let wild = ["*/*", "application/*"];
            wild.contains(&&*clause.media) || KNOWN.contains(&&*clause.media)
        };
        match clauses(&context.headers).iter().any(known) {
            true => Status::not_acceptable(&KNOWN),
            false if offer == Offer::Stream => {
                Status::no_representation(&[&KNOWN[..], &STREAMS].concat())
            }
            false => Status::no_representation(&KNOWN),
        }
    })
}

/// As [`accepted`] for objects of a resource: those of custom kinds have no protobuf form.
pub(crate) fn accepted_for(
    context: &Context,
    resource: &ResourceInfo,
    offer: Offer,
) -> Result<Accepted, Status> {
    if resource.custom.is_none() {
        return accepted(context, offer);
    }
    let offer = match offer {
        Offer::Stream => Offer::CustomStream,
        _ => Offer::Custom,
    };
    negotiate(&context.headers, &context.query, offer)
        .map_err(|NotAcceptable| Status::not_acceptable(&KNOWN))
}

/// An object of a list or an answer.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// As the cache has it, in the version that was asked for.
    Cached(Arc<CachedObject>),
    /// The object in the version that was asked for.
    Value(Value),
}

impl Item {
    pub(crate) fn into_value(self) -> Result<Value, Status> {
        match self {
            Self::Cached(object) => {
                serde_json::from_slice(&object.json()).map_err(Status::internal)
            }
            Self::Value(value) => Ok(value),
        }
    }
}

/// Metadata of a list.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListMeta {
    pub(crate) revision: u64,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<u64>,
}

impl ListMeta {
    fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert("resourceVersion".into(), json!(self.revision.to_string()));
        if let Some(token) = &self.continue_token {
            map.insert("continue".into(), json!(token));
        }
        if let Some(remaining) = self.remaining {
            map.insert("remainingItemCount".into(), json!(remaining));
        }
        Value::Object(map)
    }
}

/// An object of the storage version in the version of `resource`.
pub(crate) fn versioned(resource: &ResourceInfo, value: Value) -> Result<Value, Status> {
    convert::from_storage(resource, value)
}

/// Answers with one object, given in the storage version.
pub(crate) fn object(
    context: &Context,
    accepted: Accepted,
    resource: &ResourceInfo,
    code: StatusCode,
    value: Value,
) -> Result<Response<ResponseBody>, Status> {
    let value = versioned(resource, value)?;
    shaped(context, accepted, resource, code, value)
}

/// Answers with one object as it is in the store: with the text that is there, where that is what was asked for.
pub(crate) fn stored(
    context: &Context,
    accepted: Accepted,
    resource: &ResourceInfo,
    code: StatusCode,
    stored: Stored,
) -> Result<Response<ResponseBody>, Status> {
    let is_as_stored = accepted.writes_plain_json()
        && accepted.form == Form::Object
        && resource.custom.is_none()
        && !resource.is_converted();
    let Some(text) = stored.text.filter(|_| is_as_stored) else {
        return object(context, accepted, resource, code, stored.value);
    };
    davit_audit::response_object(|| stored.value);
    let mut body = Vec::with_capacity(text.len() + 64);
    append_with_resource_version(&text, stored.revision, &mut body);
    body.push(b'\n');
    Ok(json_response(code, body))
}

/// Answers with one object, given in the version asked for.
pub(crate) fn shaped(
    context: &Context,
    accepted: Accepted,
    resource: &ResourceInfo,
    code: StatusCode,
    value: Value,
) -> Result<Response<ResponseBody>, Status> {
    davit_audit::response_object(|| value.clone());
    let value = match accepted.form {
        Form::Object => value,
        Form::Partial(version) => partial(&value, version),
        Form::Table(version) => {
            let include = Include::of(&context.query)?;
            let metadata = json!({ "resourceVersion": davit_api::meta::resource_version(&value) });
            let mut table = table_frame(resource, version, &metadata);
            table["rows"] = json!([row(resource, value, version, include)]);
            table
        }
    };
    Ok(encoded(accepted, code, &value))
}

/// Answers with a scale, in the form that was negotiated.
pub(crate) fn scale(
    context: &Context,
    accepted: Accepted,
    scale: Value,
) -> Result<Response<ResponseBody>, Status> {
    let value = match accepted.form {
        Form::Object => scale,
        Form::Partial(version) => partial(&scale, version),
        Form::Table(version) => scale_table(scale, version, Include::of(&context.query)?),
    };
    Ok(encoded(accepted, StatusCode::OK, &value))
}

/// Answers with a list.
pub(crate) fn list(
    context: &Context,
    accepted: Accepted,
    resource: &ResourceInfo,
    items: Vec<Item>,
    meta: &ListMeta,
) -> Result<Response<ResponseBody>, Status> {
    davit_audit::response_object(|| {
        let items = items
            .iter()
            .cloned()
            .filter_map(|item| item.into_value().ok());
        list_value(resource, &items.collect::<Vec<_>>(), meta)
    });
    match accepted.form {
        Form::Object if accepted.writes_plain_json() => Ok(json_response(
            StatusCode::OK,
            list_bytes(resource, &items, meta),
        )),
        Form::Object if accepted.media == Media::Protobuf => Ok(protobuf_response(
            protobuf::list(resource, &items, meta),
            || list_bytes(resource, &items, meta),
        )),
        Form::Object => {
            let items: Vec<Value> = items
                .into_iter()
                .map(Item::into_value)
                .collect::<Result<_, _>>()?;
            let list = list_value(resource, &items, meta);
            Ok(encoded(accepted, StatusCode::OK, &list))
        }
        Form::Partial(version) if accepted.writes_plain_json() => Ok(json_response(
            StatusCode::OK,
            partial_list_bytes(&items, version, meta),
        )),
        Form::Partial(version) if accepted.media == Media::Protobuf => Ok(protobuf_response(
            protobuf::partial_list(&items, version, meta),
            || partial_list_bytes(&items, version, meta),
        )),
        Form::Partial(version) => {
            let items: Vec<Value> = items
                .into_iter()
                .map(|item| item.into_value().map(|value| partial(&value, version)))
                .collect::<Result<_, _>>()?;
            let list = json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": format!("meta.k8s.io/{version}"),
                "metadata": meta.to_value(),
                "items": items,
            });
            Ok(encoded(accepted, StatusCode::OK, &list))
        }
        Form::Table(version) => {
            let include = Include::of(&context.query)?;
            if accepted.writes_plain_json() {
                let body = table_bytes(resource, version, include, &items, meta)?;
                return Ok(json_response(StatusCode::OK, body));
            }
            let mut table = table_frame(resource, version, &meta.to_value());
            let rows: Vec<Value> = items
                .into_iter()
                .map(|item| {
                    item.into_value()
                        .map(|value| row(resource, value, version, include))
                })
                .collect::<Result<_, _>>()?;
            table["rows"] = Value::Array(rows);
            Ok(encoded(accepted, StatusCode::OK, &table))
        }
    }
}

/// Items of built-in kinds do not say what they are: the list does.
fn list_value(resource: &ResourceInfo, items: &[Value], meta: &ListMeta) -> Value {
    let mut items = items.to_vec();
    if resource.custom.is_none() {
        for item in items.iter_mut().filter_map(Value::as_object_mut) {
            item.remove("kind");
            item.remove("apiVersion");
        }
    }
    let mut metadata = meta.to_value();
    if resource.custom.is_some() && meta.continue_token.is_none() {
        metadata["continue"] = json!("");
    }
    json!({
        "kind": resource.list_kind(),
        "apiVersion": resource.api_version(),
        "metadata": metadata,
        "items": items,
    })
}

/// Appends an object without the members with which it begins, which are those of `kind`, an object.
fn append_without_kind(body: &mut Vec<u8>, json: &[u8], kind: &str) {
    let kind = kind.trim_end_matches('}').as_bytes();
    match json.strip_prefix(kind) {
        Some(rest) => {
            body.push(b'{');
            body.extend_from_slice(rest.strip_prefix(b",").unwrap_or(rest));
        }
        None => body.extend_from_slice(json),
    }
}

/// A gather of ready bytes.
fn list_bytes(resource: &ResourceInfo, items: &[Item], meta: &ListMeta) -> Vec<u8> {
    let size: usize = items
        .iter()
        .map(|item| match item {
            Item::Cached(object) => object.json_len(),
            Item::Value(_) => 1024,
        })
        .sum();
    let mut body = Vec::with_capacity(size + 256);
    let frame = ordered(&list_value(resource, &[], meta)).to_json();
    let (head, tail) = around_items(&frame);
    body.extend_from_slice(head.as_bytes());
    let kind = json!({ "kind": resource.row.kind, "apiVersion": resource.api_version() });
    let kind = ordered(&kind).to_json();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        let json = match item {
            Item::Cached(object) => object.json(),
            Item::Value(value) => ordered(value).to_json().into(),
        };
        match resource.custom {
            None => append_without_kind(&mut body, &json, &kind),
            Some(_) => body.extend_from_slice(&json),
        }
    }
    body.extend_from_slice(tail.as_bytes());
    body.push(b'\n');
    body
}

/// `PartialObjectMetadata` of an object.
pub(crate) fn partial(value: &Value, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": value.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// Writes what [`partial`] makes of an item.
fn write_partial(body: &mut Vec<u8>, item: &Item, version: &str) {
    match item {
        Item::Cached(object) => write_partial_of(body, &object.json(), version),
        // writing to a Vec cannot fail
        Item::Value(value) => {
            let _ = serde_json::to_writer(body, &ordered(&partial(value, version)));
        }
    }
}

/// Writes what [`partial`] makes of an object, from its text.
pub(crate) fn write_partial_of(body: &mut Vec<u8>, json: &[u8], version: &str) {
    if !is_ordered(json) {
        let value = serde_json::from_slice(json).unwrap_or(Value::Null);
        // writing to a Vec cannot fail
        let _ = serde_json::to_writer(body, &ordered(&partial(&value, version)));
        return;
    }
    write_partial_with(body, metadata_of(json).unwrap_or(b"{}"), version);
}

/// Writes what [`partial`] makes of an object with the text of its metadata.
fn write_partial_with(body: &mut Vec<u8>, metadata: &[u8], version: &str) {
    let _ = write!(
        body,
        "{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":"
    );
    body.extend_from_slice(metadata);
    body.push(b'}');
}

/// Whether the text of an object has its fields in declared order: those of custom kinds are sorted.
fn is_ordered(json: &[u8]) -> bool {
    json.starts_with(b"{\"kind\"")
}

/// A list of what [`partial`] makes of the items.
fn partial_list_bytes(items: &[Item], version: &str, meta: &ListMeta) -> Vec<u8> {
    let mut body = Vec::with_capacity(items.len() * 1024 + 256);
    let frame = ordered(&json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": meta.to_value(),
        "items": [],
    }))
    .to_json();
    let (head, tail) = around_items(&frame);
    body.extend_from_slice(head.as_bytes());
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        write_partial(&mut body, item, version);
    }
    body.extend_from_slice(tail.as_bytes());
    body.push(b'\n');
    body
}

/// The JSON of an empty list, cut where its items go.
fn around_items(frame: &str) -> (&str, &str) {
    // Nothing before the items is a string that a client chooses.
    let at = frame.find("\"items\":[").map_or(frame.len(), |at| at + 9);
    frame.split_at(at)
}

/// Answers with a document that is no object of a resource.
pub(crate) fn document(
    context: &Context,
    code: StatusCode,
    value: &Value,
) -> Result<Response<ResponseBody>, Status> {
    let accepted = accepted(context, Offer::Document)?;
    Ok(encoded(accepted, code, value))
}

/// Serializes a value.
pub(crate) fn encoded(
    accepted: Accepted,
    code: StatusCode,
    value: &Value,
) -> Response<ResponseBody> {
    match accepted.media {
        Media::Json => json_response(code, json_bytes(value, accepted.pretty)),
        Media::Yaml => {
            let text = yaml(value);
            respond(code, Media::Yaml.content_type(), text.into())
        }
        Media::Protobuf => {
            let body = encode_object(kinds::builtin(), value);
            let mut response = protobuf_response(body, || json_bytes(value, false));
            *response.status_mut() = code;
            response
        }
    }
}

/// Protobuf, or JSON with its own content type where there is none: it is still an answer.
fn protobuf_response(
    body: Result<Vec<u8>, ProtobufError>,
    json: impl FnOnce() -> Vec<u8>,
) -> Response<ResponseBody> {
    match body {
        Ok(body) => respond(StatusCode::OK, PROTOBUF, body.into()),
        Err(error) => {
            tracing::warn!(%error, "writing protobuf");
            json_response(StatusCode::OK, json())
        }
    }
}

fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string())
}

fn json_bytes(value: &Value, pretty: bool) -> Vec<u8> {
    let value = ordered(value);
    let result = if pretty {
        serde_json::to_vec_pretty(&value)
    } else {
        serde_json::to_vec(&value)
    };
    // a Value has string keys only, which always serialize
    let mut body = result.unwrap_or_default();
    body.push(b'\n');
    body
}

pub(crate) fn json_response(code: StatusCode, body: Vec<u8>) -> Response<ResponseBody> {
    respond(code, Media::Json.content_type(), body.into())
}

/// A response with a content type.
pub(crate) fn respond(
    code: StatusCode,
    content_type: &'static str,
    body: ResponseBody,
) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Plain text.
pub(crate) fn text(code: StatusCode, text: impl Into<ResponseBody>) -> Response<ResponseBody> {
    let mut response = respond(code, "text/plain; charset=utf-8", text.into());
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The answer to paths that serve nothing.
pub(crate) fn page_not_found() -> Response<ResponseBody> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// The answer to a path below `/api` (`group` is empty) or `/apis/{group}` that serves nothing. Built-in groups
/// say so in a Status.
pub(crate) fn nothing_in(group: &str) -> HandlerResult {
    let resources = &kinds::builtin().resources;
    if resources.iter().any(|row| row.group == group) {
        return Err(Status::unknown_path());
    }
    Ok(page_not_found())
}

/// An error body. When the client's Accept cannot be met it is indented JSON.
pub(crate) fn status(
    headers: &HeaderMap,
    query: &Query,
    status: &Status,
) -> Response<ResponseBody> {
    let accepted = negotiate(headers, query, Offer::Objects).map_or(
        Accepted {
            media: Media::Json,
            form: Form::Object,
            pretty: true,
        },
        |accepted| Accepted {
            form: Form::Object,
            pretty: wants_pretty(headers, query),
            ..accepted
        },
    );
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let value = serde_json::to_value(status).unwrap_or(Value::Null);
    let mut response = encoded(accepted, code, &value);
    let seconds = status
        .details
        .as_ref()
        .map_or(0, |details| details.retry_after_seconds);
    if seconds > 0
        && let Ok(value) = HeaderValue::from_str(&seconds.to_string())
    {
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    if code == StatusCode::FORBIDDEN {
        response
            .headers_mut()
            .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}

/// Compresses a large answer to a read for clients that accept gzip.
pub(crate) fn compress(request: &HeaderMap, response: &mut Response<ResponseBody>) {
    let Some(body) = response.body().as_bytes() else {
        return;
    };
    if body.len() <= GZIP_FROM || response.headers().contains_key(CONTENT_ENCODING) {
        return;
    }
    response
        .headers_mut()
        .append(VARY, HeaderValue::from_static("Accept-Encoding"));
    if !takes_gzip(request) {
        return;
    }
    let Some(body) = response.body().as_bytes().cloned() else {
        return;
    };
    let mut encoder = flate2::write::GzEncoder::new(
        Vec::with_capacity(body.len() / 8),
        flate2::Compression::new(1),
    );
    // writing to a Vec cannot fail
    if encoder.write_all(&body).is_ok()
        && let Ok(compressed) = encoder.finish()
    {
        *response.body_mut() = compressed.into();
        response
            .headers_mut()
            .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
}
