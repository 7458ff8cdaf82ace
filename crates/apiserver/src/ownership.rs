//! Who owns which fields: server-side apply and `metadata.managedFields` of every write
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/>).
//!
//! The merge itself is [`davit_schema::apply`]. Here it is given the schema of the row that a
//! request is for, the filter of the subresource and the other versions of the resource, so that
//! custom kinds take part like built-in ones.

use std::fmt;

use davit_api::status::Status;
use davit_registry::{ResourceInfo, Snapshot, convert, object};
use davit_schema::apply::{self, FieldManager, Filter, Schema, Versions};
use davit_strategy::MANAGER_MAX;
use serde_json::Value;

use crate::context::Context;

const USER_AGENT: &str = "user-agent";

/// What a write does to `managedFields`.
#[derive(Debug, Clone)]
pub(crate) enum Tracking {
    /// They stay as they are: the server changes the object by itself.
    Keep,
    /// What changes is owned by this manager.
    Update(String),
    /// The object to be written already carries them: the result of an apply.
    Applied,
}

/// The manager of a request: the parameter `fieldManager`, or the User-Agent up to its first slash.
/// Callers in the same process that send neither are known by their user.
pub(crate) fn manager(context: &Context) -> String {
    if let Some(name) = context.query.text("fieldManager") {
        return name.to_owned();
    }
    let agent = context
        .headers
        .get(USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let name = if agent.is_empty() && context.in_process {
        user_name(&context.user.name)
    } else {
        agent.split('/').next().unwrap_or_default()
    };
    let mut manager = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if manager.len() + c.len_utf8() > MANAGER_MAX {
            break;
        }
        manager.push(c);
    }
    manager
}

/// `system:serviceaccount:kube-system:job-controller` is known as `job-controller`, nodes as the
/// kubelet.
fn user_name(user: &str) -> &str {
    if user.starts_with("system:node:") {
        return "kubelet";
    }
    user.rsplit(':').next().unwrap_or(user)
}

/// The versions of the resource a request is for.
struct Served<'a> {
    resource: &'a ResourceInfo,
    snapshot: &'a Snapshot,
}

impl fmt::Debug for Served<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Served({:?})", self.resource)
    }
}

impl Served<'_> {
    fn row(&self, api_version: &str) -> Option<&ResourceInfo> {
        let (group, version) = davit_api::kinds::split_api_version(api_version);
        let plural = &self.resource.row.plural;
        let row = self.snapshot.get(group, version, plural)?;
        (row.storage.prefix() == self.resource.storage.prefix()).then_some(&**row)
    }
}

impl Versions for Served<'_> {
    fn schema(&self, api_version: &str) -> Option<Schema<'_>> {
        let row = self.row(api_version)?;
        Some(row.apply_schema())
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Option<Value> {
        let stored = convert::to_storage(self.row(from)?, object.clone()).ok()?;
        convert::from_storage(self.row(to)?, stored).ok()
    }
}

/// Tracks and applies for one resource and subresource.
pub(crate) struct Owners<'a> {
    served: Served<'a>,
    api_version: String,
    subresource: &'a str,
    filter: Filter,
    now: String,
}

impl<'a> Owners<'a> {
    pub(crate) fn new(
        resource: &'a ResourceInfo,
        snapshot: &'a Snapshot,
        subresource: &'a str,
    ) -> Self {
        let row = &resource.row;
        let has_status = resource.subresource("status").is_some();
        Self {
            api_version: resource.api_version(),
            subresource,
            filter: Filter::of(row.group, row.plural, subresource, has_status),
            now: object::now(),
            served: Served { resource, snapshot },
        }
    }

    fn fields(&self) -> FieldManager<'_> {
        let resource = self.served.resource;
        FieldManager {
            schema: resource.apply_schema(),
            api_version: &self.api_version,
            kind: resource.row.kind,
            subresource: self.subresource,
            filter: &self.filter,
            versions: Some(&self.served),
            now: &self.now,
        }
    }

    /// Enters a change by `manager` into `new`. Both objects are in the storage version.
    pub(crate) fn track(
        &self,
        live: Option<&Value>,
        new: Value,
        manager: &str,
    ) -> Result<Value, Status> {
        let resource = self.served.resource;
        if !resource.is_converted() {
            return Ok(self.fields().update(live, new, manager));
        }
        let live = live
            .map(|live| convert::from_storage(resource, live.clone()))
            .transpose()?;
        let seen = convert::from_storage(resource, new.clone())?;
        let tracked = self.fields().update(live.as_ref(), seen, manager);
        let mut new = new;
        object::keep_meta(&mut new, &tracked, "managedFields");
        Ok(new)
    }

    /// Applies a configuration to `live`, which is in the version of the request.
    pub(crate) fn apply(
        &self,
        live: Option<&Value>,
        applied: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, Status> {
        self.fields()
            .apply(live, applied, manager, force)
            .map_err(|error| error.status())
    }
}

/// What `managedFields` was before admission comes back when a plugin has spoilt it.
pub(crate) struct BeforeAdmission(Option<Value>);

impl BeforeAdmission {
    /// To be called before mutating admission.
    pub(crate) fn remember(object: &Value) -> Self {
        Self(object.pointer("/metadata/managedFields").cloned())
    }

    /// To be called after it; answers a warning when the entries had to be restored.
    pub(crate) fn check(self, object: &mut Value) -> Option<String> {
        if object.pointer("/metadata/managedFields") == self.0.as_ref() {
            return None;
        }
        let error = apply::validate_managed_fields(object).err()?;
        match self.0 {
            Some(fields) => object::set_meta(object, "managedFields", fields),
            None => apply::strip(object),
        }
        Some(format!(
            ".metadata.managedFields was in an invalid state after admission; this could be \
             caused by an outdated mutating admission controller; please fix your requests: {error}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_in_process_are_known_by_their_last_name() {
        assert_eq!(user_name("system:kube-scheduler"), "kube-scheduler");
        assert_eq!(user_name("system:node:n1"), "kubelet");
        assert_eq!(
            user_name("system:serviceaccount:kube-system:job-controller"),
            "job-controller"
        );
    }
}
