//! Server-side apply and field tracking
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/>).
//!
//! Every write of an object leaves in `metadata.managedFields` who owns which of its fields. Those
//! who update own what they changed. Those who apply own what they applied: they may not change
//! what others own unless they force it, and what they leave out of the next configuration goes,
//! unless someone else owns it. [`FieldManager`] does both for one kind and subresource.
//!
//! The same code serves built-in and custom kinds; how lists and maps merge is in the types
//! ([`Schema`]).

use davit_api::kinds::{FieldType, TypeBody, TypeId, TypeTable, split_api_version};
use davit_api::meta;
use davit_api::status::Status;
use serde_json::{Map, Value};

use crate::decode::zero_value;

mod atomic;
mod compare;
mod conflict;
mod fields_v1;
mod filter;
mod managers;
mod merge;
mod path;
mod scale;
mod set;
mod typed;
mod updater;
mod validate;
mod versions;

pub use compare::Comparison;
pub use conflict::{Conflict, Conflicts};
pub use fields_v1::ParseFieldsError;
pub use filter::Filter;
pub use managers::{ManagedFieldsError, strip, validate_managed_fields};
pub use path::{Path, PathElement, display};
pub use scale::ScaleFields;
pub use set::Set;
pub use typed::Schema;
pub use versions::Versions;

pub(crate) use atomic::is_atomic;
use fields_v1::escaped;
use managers::{Manager, Managers};
use updater::Updater;

/// How many managers that update an object has at most; older ones are joined.
pub const MAX_UPDATE_MANAGERS: usize = 10;
/// The name of the joined entries.
const ANCIENT: &str = "ancient-changes";
/// The name under which fields from before the first apply are owned.
const BEFORE_APPLY: &str = "before-first-apply";
/// The annotation in which client-side apply keeps what it applied.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager for which that annotation counts and is kept up to date.
const KUBECTL: &str = "kubectl";
/// Most bytes of keys and values of all annotations together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Why a configuration cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The configuration is for something else, or says what it may not: 400.
    #[error("{0}")]
    Malformed(String),
    /// The configuration or the object does not fit the schema: 500, as in the original.
    #[error("{0}")]
    Failed(String),
    /// Others own fields that the configuration changes: 409.
    #[error("{0}")]
    Conflicts(#[from] Conflicts),
}

impl ApplyError {
    /// The answer of the API server.
    pub fn status(&self) -> Status {
        match self {
            ApplyError::Malformed(text) => Status::bad_request(text),
            ApplyError::Failed(text) => Status::unknown(text),
            ApplyError::Conflicts(conflicts) => conflicts.status(),
        }
    }
}

/// Tracks the fields of the objects of one kind, as seen by requests to one of its subresources.
#[derive(Debug, Clone, Copy)]
pub struct FieldManager<'a> {
    /// The types of the kind, in the version of the request.
    pub schema: Schema<'a>,
    /// The version of the request: `v1`, `apps/v1`.
    pub api_version: &'a str,
    /// The kind.
    pub kind: &'a str,
    /// The subresource of the request, empty for the object itself.
    pub subresource: &'a str,
    /// Which fields count; see [`Filter::of`].
    pub filter: &'a Filter,
    /// The other versions of the kind, when their shapes may differ or entries of versions that are
    /// gone are to be dropped. None takes all versions for alike.
    pub versions: Option<&'a dyn Versions>,
    /// The time of the request, RFC 3339 with whole seconds.
    pub now: &'a str,
}

impl FieldManager<'_> {
    /// Tracks a create, update or patch other than apply, and returns `new` with its
    /// `managedFields`.
    ///
    /// `live` is the object as it is (none when it is created) and `new` the one that is to be
    /// stored, both in canonical form, with defaults, in the version of the request. The
    /// `managedFields` of `new` count when they are valid; `[]` and `[{}]` clear them.
    pub fn update(&self, live: Option<&Value>, mut new: Value, manager: &str) -> Value {
        let empty;
        let live = match live {
            Some(live) => live,
            None => {
                empty = self.empty();
                &empty
            }
        };
        let mut managers = self.managers_of_request(live, &new);
        strip(&mut new);
        let tracked = !managers.owned.is_empty() || meta::uid(live).is_empty();
        if tracked {
            self.track(live, &new, &mut managers, manager);
        }
        managers.write(&mut new);
        new
    }

    /// Applies a configuration to the object `live` (none when there is no such object) and returns
    /// the result with its `managedFields`.
    ///
    /// `applied` is the body as it was parsed: not in canonical form and without defaults, because
    /// what it does not say is not owned. The result is neither canonical nor complete: decode it,
    /// set its defaults and go on as with an update, but do not track it again.
    ///
    /// # Errors
    /// When the configuration is malformed, does not fit the schema, or conflicts with others.
    pub fn apply(
        &self,
        live: Option<&Value>,
        applied: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, ApplyError> {
        self.check(applied)?;
        let empty = self.empty();
        let live = live.unwrap_or(&empty);
        let managers = Managers::of(live)
            .map_err(|e| ApplyError::Failed(format!("failed to decode managed fields: {e}")))?;
        let mut result = match self.try_apply(live, applied, managers.clone(), manager, force) {
            Err(ApplyError::Conflicts(conflicts)) if manager == KUBECTL => {
                let allowed = self.last_applied(live).unwrap_or_default();
                if let Some(conflicts) = conflicts.outside(&allowed) {
                    return Err(conflicts.into());
                }
                self.try_apply(live, applied, managers, manager, true)?
            }
            other => other?,
        };
        if manager == KUBECTL {
            update_last_applied(&mut result, applied);
        }
        Ok(result)
    }

    fn check(&self, applied: &Value) -> Result<(), ApplyError> {
        let (have, kind) = (meta::api_version(applied), meta::kind(applied));
        if have != self.api_version || kind != self.kind {
            let kind = group_version_kind(have, kind);
            return Err(ApplyError::Malformed(format!(
                "invalid object type: {kind}"
            )));
        }
        if applied["metadata"]["managedFields"].is_array() {
            let text = "metadata.managedFields must be nil";
            return Err(ApplyError::Malformed(text.to_owned()));
        }
        Ok(())
    }

    fn try_apply(
        &self,
        live: &Value,
        applied: &Value,
        mut managers: Managers,
        name: &str,
        force: bool,
    ) -> Result<Value, ApplyError> {
        if managers.owned.is_empty() {
            let mut stripped = live.clone();
            strip(&mut stripped);
            self.track(&self.empty(), &stripped, &mut managers, BEFORE_APPLY);
        }
        let fault = |what: &str, object: &Value, duplicates: bool| {
            let faults = validate::check(self.schema, object, duplicates).text()?;
            Some(ApplyError::Failed(format!(
                "failed to create typed {what} object ({}): {faults}",
                self.describe(object)
            )))
        };
        if let Some(error) = fault("patch", applied, false) {
            return Err(error);
        }
        let manager = Manager::new(name, true, "", self.subresource);
        let (new, owned) = self
            .updater()
            .apply(live, applied, managers.owned, &manager, force)?;
        managers.owned = owned;
        managers.strip_untracked(&manager);
        if new.is_some() {
            managers.times.insert(manager, self.now.to_owned());
        }
        let mut result = new.unwrap_or_else(|| live.clone());
        managers.write(&mut result);
        Ok(result)
    }

    /// Enters a change into the managers.
    fn track(&self, live: &Value, new: &Value, managers: &mut Managers, name: &str) {
        // No other entry can have this name, so that what the manager owned already is compared
        // with what it changes now like everyone else's.
        let current = Manager::new("current-operation", false, "", "");
        let owned = std::mem::take(&mut managers.owned);
        managers.owned = self.updater().update(live, new, owned, &current);
        managers.strip_untracked(&current);
        if let Some(mut mine) = managers.owned.remove(&current) {
            let manager = Manager::new(name, false, self.api_version, self.subresource);
            if let Some(before) = managers.owned.get(&manager) {
                mine.set = mine.set.union(&before.set);
            }
            managers.times.insert(manager.clone(), self.now.to_owned());
            managers.owned.insert(manager, mine);
        }
        managers.cap(MAX_UPDATE_MANAGERS, ANCIENT);
    }

    fn updater(&self) -> Updater<'_> {
        Updater {
            schema: self.schema,
            filter: self.filter,
            api_version: self.api_version,
            versions: self.versions,
        }
    }

    /// The managers that count for an update: those of the request, or else those there were.
    fn managers_of_request(&self, live: &Value, new: &Value) -> Managers {
        let of_live = || Managers::of(live).unwrap_or_default();
        if !self.subresource.is_empty() {
            return of_live();
        }
        if clears(&new["metadata"]["managedFields"]) {
            return Managers::default();
        }
        match Managers::of(new) {
            Ok(managers) if !managers.owned.is_empty() => managers,
            _ => of_live(),
        }
    }

    /// An object of the kind in which nothing is set.
    fn empty(&self) -> Value {
        let mut empty = empty_struct(self.schema.types, self.schema.root);
        empty.insert("apiVersion".to_owned(), Value::from(self.api_version));
        empty.insert("kind".to_owned(), Value::from(self.kind));
        Value::Object(empty)
    }

    /// The fields that client-side apply set and that still are as it set them.
    fn last_applied(&self, live: &Value) -> Option<Set> {
        let text = meta::annotation(live, LAST_APPLIED).filter(|text| !text.is_empty())?;
        let last: Value = serde_json::from_str(text).ok()?;
        let fits = |object| validate::check(self.schema, object, false).text().is_none();
        if meta::api_version(&last) != self.api_version || !fits(&last) || !fits(live) {
            return None;
        }
        let changed = self.schema.compare(&last, live);
        Some(
            self.schema
                .fields(&last)
                .difference(&changed.modified)
                .difference(&changed.added)
                .difference(&changed.removed),
        )
    }

    fn describe(&self, object: &Value) -> String {
        format!(
            "{}/{}; {}",
            meta::namespace(object),
            meta::name(object),
            group_version_kind(self.api_version, self.kind)
        )
    }
}

/// What Go writes for a struct in which nothing is set. Required lists and maps are null there, so
/// that whoever fills them owns the elements and not the list.
fn empty_struct(types: &TypeTable, id: TypeId) -> Map<String, Value> {
    let mut out = Map::new();
    for field in types.fields(types.resolve(id)) {
        if field.nullable && !field.written {
            continue;
        }
        let value = match types.resolve_type(&field.ty) {
            _ if field.nullable => Value::Null,
            FieldType::Named(id) if matches!(types.get(*id).body, TypeBody::Struct { .. }) => {
                Value::Object(empty_struct(types, *id))
            }
            FieldType::List(_) | FieldType::Map(_) | FieldType::Bytes
                if field.required || field.written =>
            {
                Value::Null
            }
            ty if field.required || field.written => zero_value(types, ty).unwrap_or(Value::Null),
            _ => continue,
        };
        out.insert(field.name.to_string(), value);
    }
    out
}

/// A kind as Go prints it: `apps/v1, Kind=Deployment`, `/v1, Kind=Pod`.
fn group_version_kind(api_version: &str, kind: &str) -> String {
    let (group, version) = split_api_version(api_version);
    format!("{group}/{version}, Kind={kind}")
}

/// Whether `managedFields` of a request ask for tracking to begin anew.
fn clears(fields: &Value) -> bool {
    match fields.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([entry]) => entry.as_object().is_some_and(|entry| {
            entry
                .values()
                .all(|v| v.is_null() || v.as_str() == Some(""))
        }),
        _ => false,
    }
}

/// Brings the annotation of client-side apply up to date, if the object has it.
fn update_last_applied(object: &mut Value, applied: &Value) {
    if meta::annotation(object, LAST_APPLIED).is_none_or(str::is_empty) {
        return;
    }
    let mut applied = applied.clone();
    if let Some(annotations) = applied
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    let text = escaped(&applied) + "\n";
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.insert(LAST_APPLIED.to_owned(), Value::from(text));
        let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
        if annotations.iter().map(size).sum::<usize>() > MAX_ANNOTATIONS {
            annotations.remove(LAST_APPLIED);
        }
    }
}

/// Gives `new` the times that `live` has in `managedFields`, if times are all in which the two
/// differ, so that a request that changes nothing is seen to change nothing.
///
/// To be called last before the object is stored; both objects in canonical form.
pub fn ignore_times(live: &Value, new: &mut Value) {
    let entries = |object: &Value| object["metadata"]["managedFields"].as_array().cloned();
    if !differ_in_times(live, new) {
        return;
    }
    let now = entries(new);
    let put = |object: &mut Value, entries: Option<Vec<Value>>| {
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        if let (Some(metadata), Some(entries)) = (metadata, entries) {
            let metadata: &mut Map<String, Value> = metadata;
            metadata.insert("managedFields".to_owned(), Value::Array(entries));
        }
    };
    put(new, entries(live));
    if new != live {
        put(new, now);
    }
}

/// Whether the `managedFields` of two objects differ, and in times alone.
fn differ_in_times(a: &Value, b: &Value) -> bool {
    let entries = |object| -> Option<&Vec<Value>> {
        let object: &Value = object;
        object["metadata"]["managedFields"].as_array()
    };
    let (Some(a), Some(b)) = (entries(a), entries(b)) else {
        return false;
    };
    let timeless = |a: &Value, b: &Value| match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let rest = |entry| {
                let entry: &Map<String, Value> = entry;
                entry.len() - usize::from(entry.contains_key("time"))
            };
            let mut fields = a.iter().filter(|(name, _)| *name != "time");
            rest(a) == rest(b) && fields.all(|(name, value)| b.get(name) == Some(value))
        }
        _ => a == b,
    };
    a != b && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| timeless(a, b))
}

#[cfg(test)]
mod tests;
