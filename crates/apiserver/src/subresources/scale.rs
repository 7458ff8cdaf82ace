//! `scale`: the replica count of a workload, in the form of `autoscaling/v1` `Scale`.

use davit_api::field::{FieldError, Path};
use davit_api::labels::Selector;
use davit_api::status::{Qualified, Status};
use davit_registry::codec::Patch;
use davit_registry::custom::Scale;
use davit_registry::{ResourceInfo, object};
use davit_schema::apply::{FieldManager, Filter, ScaleFields, Schema};
use davit_schema::decode;
use http::Request;
use serde_json::{Value, json};

use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::handlers::{
    Expected, PatchKind, WriteOptions, check_namespace, configuration, decode_body, format,
    not_allowed, patch_kind, read_body, undeterminable,
};
use crate::negotiate::Offer;
use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::{Facet, Writer};
use crate::{ownership, respond};

const GROUP: &str = "autoscaling";
const VERSION: &str = "v1";
const KIND: &str = "Scale";
/// Where workloads keep the count.
const REPLICAS: [&str; 2] = ["spec", "replicas"];

/// GET, PUT and PATCH.
pub(super) async fn handle(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let accepted = respond::accepted(context, Offer::Objects)?;
    let name = context.info.name.as_str();
    let namespace = context.namespace();
    let mut scale = match context.info.verb.as_str() {
        "get" => {
            let found = resource.storage.get(namespace, name).await;
            let found =
                found.map_err(|error| davit_registry::errors::storage(error, resource, name))?;
            let Some(stored) = found else {
                return Err(Status::not_found(resource.qualified(), name));
            };
            if let Some(Some(paths)) = resource.custom.as_ref().map(|custom| &custom.scale) {
                must_have_replicas(paths, &stored.value)?;
            }
            scale_of(resource, &stored.value)?
        }
        verb @ ("update" | "patch") => {
            let kind = if verb == "update" {
                "UpdateOptions"
            } else {
                "PatchOptions"
            };
            let is_apply = verb == "patch" && patch_kind(context)? == PatchKind::Apply;
            let options = WriteOptions::parse(context, kind, is_apply)?;
            // the scale's own ownership is translated
            let writer = Writer::of(context, server, resource, namespace, Tracking::Applied)
                .dry_run(options.dry_run);
            change(context, &writer, name, &options, request).await?
        }
        verb => return Err(not_allowed(resource, verb)),
    };
    // who owns the count is told of the object itself
    object::remove_meta(&mut scale, &["managedFields"]);
    respond::scale(context, accepted, scale)
}

async fn change(
    context: &Context,
    writer: &Writer<'_>,
    name: &str,
    options: &WriteOptions,
    request: Request<RequestBody>,
) -> Result<Value, Status> {
    let resource = writer.resource;
    let expected = Expected::built_in(GROUP, VERSION, KIND)?;
    let owners = ScaleOwners {
        manager: ownership::manager(context),
        now: object::now(),
        expected: &expected,
    };
    let updated = if context.info.verb == "update" {
        let format = format(&context.headers)?;
        let bytes = read_body(request.into_body()).await?;
        let wanted = decode_body(context, &bytes, format, &expected, options.validation)?;
        let named = object::name(&wanted);
        if named.is_empty() {
            return Err(undeterminable(name));
        }
        if named != name {
            return Err(Status::bad_request(format!(
                "the name of the object ({named}) does not match the name on the URL ({name})"
            )));
        }
        let namespace = object::namespace(&wanted);
        check_namespace(resource.row.namespaced, writer.namespace, namespace)?;
        let mut transform = |current: &Value| {
            let live = scale_of(resource, current)?;
            let scale = owners.update(&live, wanted.clone());
            with_scale(resource, current, &scale)
        };
        writer
            .update_facet(name, &Scales(resource), &mut transform)
            .await?
    } else {
        let kind = patch_kind(context)?;
        let bytes = read_body(request.into_body()).await?;
        let change = match kind {
            PatchKind::Patch(kind) => {
                Change::Patch(Patch::parse(kind, &bytes).map_err(|error| error.status())?)
            }
            PatchKind::Apply => Change::Apply(configuration(context, &bytes, options.validation)?),
        };
        let mut transform = |current: &Value| {
            let live = scale_of(resource, current)?;
            let changed = match &change {
                Change::Patch(patch) => patch
                    .apply(expected.types, expected.type_id, live.clone())
                    .map_err(|error| error.status())?,
                Change::Apply(applied) => owners.apply(&live, applied, options.force)?,
            };
            let decoded = decode::decode_value(expected.types, expected.type_id, changed)
                .map_err(|error| error.status(KIND, VERSION, b""))?;
            let scale = match &change {
                Change::Patch(_) => owners.update(&live, decoded.object),
                Change::Apply(_) => decoded.object,
            };
            with_scale(resource, current, &scale)
        };
        writer
            .update_facet(name, &Scales(resource), &mut transform)
            .await?
    };
    scale_of(resource, &updated.value)
}

/// The scales of a kind's objects, as admission sees them.
struct Scales<'a>(&'a ResourceInfo);

impl Facet for Scales<'_> {
    fn subresource(&self) -> &'static str {
        "scale"
    }

    fn of(&self, object: &Value) -> Result<Value, Status> {
        scale_of(self.0, object)
    }

    fn put(&self, object: &Value, facet: &Value) -> Result<Value, Status> {
        with_scale(self.0, object, facet)
    }
}

/// What a PATCH of a scale does.
enum Change {
    Patch(Patch),
    Apply(Value),
}

/// Tracks who owns the replica count, as a field of the scale.
struct ScaleOwners<'a> {
    manager: String,
    now: String,
    expected: &'a Expected<'a>,
}

impl ScaleOwners<'_> {
    fn fields(&self) -> FieldManager<'_> {
        FieldManager {
            schema: Schema::new(self.expected.types, self.expected.type_id),
            api_version: "autoscaling/v1",
            kind: KIND,
            subresource: "scale",
            filter: &Filter::All,
            versions: None,
            now: &self.now,
        }
    }

    fn update(&self, live: &Value, new: Value) -> Value {
        self.fields().update(Some(live), new, &self.manager)
    }

    fn apply(&self, live: &Value, applied: &Value, force: bool) -> Result<Value, Status> {
        self.fields()
            .apply(Some(live), applied, &self.manager, force)
            .map_err(|error| error.status())
    }
}

/// The scale of a workload with the entries of those who own the replica count.
fn scale_of(resource: &ResourceInfo, workload: &Value) -> Result<Value, Status> {
    let mut scale = match resource.custom.as_ref().map(|custom| &custom.scale) {
        Some(Some(paths)) => of_custom(paths, workload),
        _ => of(workload),
    };
    let api_version = resource.storage.api_version();
    ScaleFields::new(&api_version, &replicas_at(resource)).to_scale(workload, &mut scale);
    Ok(scale)
}

/// Where the kind keeps the count.
fn replicas_at(resource: &ResourceInfo) -> Vec<&str> {
    match resource.custom.as_ref().map(|custom| &custom.scale) {
        Some(Some(paths)) => paths.spec_replicas.names().collect(),
        _ => REPLICAS.to_vec(),
    }
}

/// The workload with the replicas of a scale; the scale's uid and revision are preconditions.
fn with_scale(resource: &ResourceInfo, current: &Value, scale: &Value) -> Result<Value, Status> {
    let replicas = scale
        .pointer("/spec/replicas")
        .and_then(Value::as_i64)
        .unwrap_or(0);
    // custom kinds say it with their own path
    if replicas < 0 && resource.custom.is_none() {
        let path = Path::new("spec").child("replicas");
        let why = "must be greater than or equal to 0";
        let fault = FieldError::invalid(&path, replicas, why);
        let kind = Qualified::new(GROUP, KIND);
        return Err(Status::invalid(kind, object::name(current), &[fault]));
    }
    let mut new = current.clone();
    let custom = resource.custom.as_ref().map(|custom| &custom.scale);
    let written = match custom {
        Some(Some(paths)) => paths.spec_replicas.set(&mut new, json!(replicas)),
        _ if new["spec"].is_object() => {
            new["spec"]["replicas"] = json!(replicas);
            true
        }
        _ => false,
    };
    if !written {
        return Err(Status::internal(format!(
            "{} has no spec",
            resource.row.kind
        )));
    }
    let api_version = resource.storage.api_version();
    ScaleFields::new(&api_version, &replicas_at(resource)).to_parent(scale, &mut new);
    if custom.is_some() && object::resource_version(scale).is_empty() {
        // custom kinds have no unconditional update, scales do
        object::keep_meta(&mut new, current, "resourceVersion");
    } else {
        object::keep_meta(&mut new, scale, "resourceVersion");
    }
    if !object::uid(scale).is_empty() {
        object::keep_meta(&mut new, scale, "uid");
    }
    Ok(new)
}

/// An object without the count can be scaled, and has no scale to be read.
fn must_have_replicas(paths: &Scale, object: &Value) -> Result<(), Status> {
    let found = paths.spec_replicas.find(object).ok().flatten();
    if found.is_some_and(Value::is_i64) {
        return Ok(());
    }
    Err(Status::internal(format!(
        "the spec replicas field {} does not exist",
        davit_api::field::quote(&paths.spec_replicas.to_string())
    )))
}

/// The scale of a custom object.
fn of_custom(paths: &Scale, object: &Value) -> Value {
    let replicas = paths.spec_replicas.get(object).and_then(Value::as_i64);
    let replicas = replicas.unwrap_or(0);
    let mut spec = json!({});
    if replicas != 0 {
        spec["replicas"] = json!(replicas);
    }
    let actual = paths.status_replicas.get(object).and_then(Value::as_i64);
    let mut status = json!({ "replicas": actual.unwrap_or(0) });
    let selector = paths.label_selector.as_ref();
    let selector = selector.and_then(|path| path.get(object));
    if let Some(text) = selector.and_then(Value::as_str).filter(|s| !s.is_empty()) {
        status["selector"] = json!(text);
    }
    json!({
        "kind": KIND, "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": scale_metadata(object), "spec": spec, "status": status,
    })
}

fn scale_metadata(object: &Value) -> Value {
    let mut metadata = json!({});
    for key in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        if let Some(value) = object["metadata"].get(key) {
            metadata[key] = value.clone();
        }
    }
    metadata
}

/// The scale of a workload.
fn of(workload: &Value) -> Value {
    let metadata = scale_metadata(workload);
    let replicas = workload
        .pointer("/spec/replicas")
        .and_then(Value::as_i64)
        .unwrap_or(0);
    let mut spec = json!({});
    if replicas != 0 {
        spec["replicas"] = json!(replicas);
    }
    let actual = workload
        .pointer("/status/replicas")
        .and_then(Value::as_i64)
        .unwrap_or(0);
    let mut status = json!({ "replicas": actual });
    let selector = selector_text(workload.pointer("/spec/selector"));
    if !selector.is_empty() {
        status["selector"] = json!(selector);
    }
    json!({
        "kind": KIND, "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": metadata, "spec": spec, "status": status,
    })
}

/// A label selector as text; replication controllers have a plain map.
fn selector_text(selector: Option<&Value>) -> String {
    let Some(selector) = selector else {
        return String::new();
    };
    let is_selector = selector.get("matchLabels").is_some_and(Value::is_object)
        || selector.get("matchExpressions").is_some();
    let parsed = if is_selector {
        Selector::from_label_selector(Some(selector))
    } else {
        match selector.as_object() {
            Some(labels) => Selector::from_labels(labels),
            None => return String::new(),
        }
    };
    parsed
        .map(|selector| selector.to_string())
        .unwrap_or_default()
}
