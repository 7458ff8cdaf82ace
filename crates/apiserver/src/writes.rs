//! The one way objects are created, updated and deleted, whatever their kind and whoever asks:
//! HTTP handlers, subresources and the server's own set-up work.
//!
//! Objects are in the storage version here. Order of a write, as in Kubernetes: mutating
//! admission → system metadata → the kind's preparation → validation → validating admission →
//! compare-and-swap commit. The whole sequence is repeated when another writer was faster, unless
//! the caller named the version it wanted to change.

mod create;
mod delete;
mod escalation;
mod owners;
mod params;
mod update;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use davit_access::{UserInfo, Warnings};
use davit_admission::{Attributes, Operation, Reinvocation};
use davit_api::field::FieldError;
use davit_api::status::Status;
use davit_registry::codec::Shape;
use davit_registry::storage::StorageError;
use davit_registry::{ResourceInfo, convert, errors, object};
use serde_json::Value;

use crate::context::Context;
use crate::ownership::{Owners, Tracking};
use crate::server::ApiServer;

pub(crate) use create::remove_system_metadata;
pub(crate) use delete::{DeleteOptions, IGNORE_READ_ERRORS, Preconditions, read_errors_fault};
pub(crate) use owners::{Seen, leave_out_repeated};

/// Writers give up after this long of losing races.
const LIMIT: Duration = Duration::from_secs(34);

/// Who writes what, and how.
pub(crate) struct Writer<'a> {
    pub(crate) server: &'a ApiServer,
    pub(crate) resource: &'a ResourceInfo,
    /// Empty for cluster-scoped resources.
    pub(crate) namespace: &'a str,
    pub(crate) user: &'a UserInfo,
    /// The verb of the request.
    pub(crate) verb: &'a str,
    pub(crate) warnings: &'a Warnings,
    pub(crate) dry_run: bool,
    /// Who comes to own what changes.
    pub(crate) tracking: Tracking,
}

impl<'a> Writer<'a> {
    /// Writes what `context`'s request asks for.
    pub(crate) fn of(
        context: &'a Context,
        server: &'a ApiServer,
        resource: &'a ResourceInfo,
        namespace: &'a str,
        tracking: Tracking,
    ) -> Self {
        Self {
            server,
            resource,
            namespace,
            user: &context.user,
            verb: &context.info.verb,
            warnings: &context.warnings,
            dry_run: false,
            tracking,
        }
    }

    /// Tries only, if `dry_run`.
    pub(crate) fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

/// The server as the author of writes that nobody asked for.
pub(crate) struct Author {
    user: UserInfo,
    warnings: Warnings,
}

impl Author {
    /// The API server itself.
    pub(crate) fn apiserver() -> Self {
        Self::named("system:apiserver")
    }

    /// A part of the server with a name of its own.
    pub(crate) fn named(user: &str) -> Self {
        Self {
            user: UserInfo::system(user),
            warnings: Warnings::default(),
        }
    }

    /// Writes as this author.
    pub(crate) fn writer<'a>(
        &'a self,
        server: &'a ApiServer,
        resource: &'a ResourceInfo,
        namespace: &'a str,
        tracking: Tracking,
    ) -> Writer<'a> {
        Writer {
            server,
            resource,
            namespace,
            user: &self.user,
            verb: "update",
            warnings: &self.warnings,
            dry_run: false,
            tracking,
        }
    }
}

/// What stands for an object in a write through a subresource with a kind of its own (the Scale of
/// a workload): admission sees it, and may change it, in the object's place.
pub(crate) trait Facet: Send + Sync {
    /// The subresource.
    fn subresource(&self) -> &'static str;

    /// How `object` looks through it.
    ///
    /// # Errors
    /// When the object lacks what it is made of.
    fn of(&self, object: &Value) -> Result<Value, Status>;

    /// `object` with what `facet` says.
    ///
    /// # Errors
    /// When the facet is invalid.
    fn put(&self, object: &Value, facet: &Value) -> Result<Value, Status>;
}

impl Writer<'_> {
    fn attributes<'b>(
        &'b self,
        operation: Operation,
        subresource: &'b str,
        name: &'b str,
        old: Option<&'b Value>,
    ) -> Attributes<'b> {
        Attributes {
            server: self.server,
            operation,
            resource: self.resource,
            subresource,
            namespace: self.namespace,
            name,
            user: self.user,
            verb: self.verb,
            dry_run: self.dry_run,
            old,
            warnings: self.warnings,
            reinvocation: Reinvocation::default(),
        }
    }

    /// Enters what `new` changes into its `managedFields`. Storage versions.
    fn tracked(
        &self,
        subresource: &str,
        live: Option<&Value>,
        mut new: Value,
    ) -> Result<Value, Status> {
        match (&self.tracking, live) {
            (Tracking::Applied, _) => Ok(new),
            (Tracking::Keep, live) => {
                object::keep_meta(&mut new, live.unwrap_or(&Value::Null), "managedFields");
                Ok(new)
            }
            (Tracking::Update(manager), live) => {
                let snapshot = self.server.registry().snapshot();
                Owners::new(self.resource, &snapshot, subresource).track(live, new, manager)
            }
        }
    }

    fn storage_error(&self, error: StorageError, name: &str) -> Status {
        errors::storage(error, self.resource, name)
    }

    fn not_found(&self, name: &str) -> Status {
        Status::not_found(self.resource.qualified(), name)
    }

    /// Drops what belongs to feature gates that are off.
    fn drop_disabled(&self, new: &mut Value, old: Option<&Value>) {
        let storage = &self.resource.storage;
        if let Shape::Typed(_, root) = storage.shape() {
            self.server.disabled().drop(root, new, old);
        }
    }

    /// The fields are named as the version of the request has them.
    fn invalid(&self, name: &str, found: &[FieldError]) -> Status {
        let row = &self.resource.row;
        let version = davit_api::kinds::api_version(row.group, row.version);
        let found: Vec<FieldError> = found
            .iter()
            .cloned()
            .map(|mut fault| {
                fault.field = convert::field(row.kind, &version, fault.field);
                fault
            })
            .collect();
        Status::invalid(self.resource.qualified_kind(), name, &found)
    }
}

/// Adds the faults of fields about which nothing was said yet: the declared limits of a kind and
/// its strategy overlap.
fn add_missing(found: &mut Vec<FieldError>, declared: Vec<FieldError>) {
    let mut known: HashSet<String> = found.iter().map(|fault| fault.field.clone()).collect();
    let missing = |fault: &FieldError| known.insert(fault.field.clone());
    found.extend(declared.into_iter().filter(missing));
}

/// Bounds a compare-and-swap loop in time.
struct Race {
    until: Instant,
    lost: u32,
}

impl Race {
    fn new() -> Self {
        Self {
            until: Instant::now() + LIMIT,
            lost: 0,
        }
    }

    /// Called after a lost race: a short pause that grows, or the end.
    async fn lost(&mut self, writer: &Writer<'_>, name: &str) -> Result<(), Status> {
        if Instant::now() >= self.until {
            return Err(Status::conflict_modified(writer.resource.qualified(), name));
        }
        self.lost += 1;
        if self.lost > 3 {
            let pause = Duration::from_millis(u64::from(self.lost.min(20)));
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}
