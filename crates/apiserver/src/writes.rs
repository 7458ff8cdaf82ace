//! The one way objects are created, updated and deleted, whatever their kind and whoever asks:
//! HTTP handlers, subresources and the server's own set-up work.
//!
//! Objects are in the storage version here. Order of a write, as in Kubernetes: mutating
//! admission → system metadata → the kind's preparation → validation → validating admission →
//! compare-and-swap commit. The whole sequence is repeated when another writer was faster, unless
//! the caller named the version it wanted to change.

mod create;
mod delete;
mod update;

use std::time::{Duration, Instant};

use davit_api::field::FieldError;
use davit_api::status::Status;
use serde_json::Value;

use crate::admission::{Attributes, Operation, Reinvocation};
use crate::context::Warnings;
use crate::ownership::{Owners, Tracking};
use crate::registry::ResourceInfo;
use crate::server::ApiServer;
use crate::storage::StorageError;
use crate::user::UserInfo;
use crate::{errors, object};

pub(crate) use delete::{DeleteOptions, Deletion};

/// Writers give up after this long of losing races.
const LIMIT: Duration = Duration::from_secs(34);

/// Who writes what, and how.
pub(crate) struct Writer<'a> {
    pub(crate) server: &'a ApiServer,
    pub(crate) resource: &'a ResourceInfo,
    /// Empty for cluster-scoped resources.
    pub(crate) namespace: &'a str,
    pub(crate) user: &'a UserInfo,
    pub(crate) warnings: &'a Warnings,
    pub(crate) dry_run: bool,
    /// Who comes to own what changes.
    pub(crate) tracking: Tracking,
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

    fn invalid(&self, name: &str, found: &[FieldError]) -> Status {
        Status::invalid(self.resource.qualified_kind(), name, found)
    }
}

/// Adds the faults of fields about which nothing was said yet: the declared limits of a kind and
/// its strategy overlap.
fn add_missing(found: &mut Vec<FieldError>, declared: Vec<FieldError>) {
    for fault in declared {
        if !found.iter().any(|known| known.field == fault.field) {
            found.push(fault);
        }
    }
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
