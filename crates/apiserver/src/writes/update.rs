//! Changing an object.

use std::collections::HashSet;

use davit_admission::{Operation, certificates, device_access};
use davit_api::field::{FieldError, Path};
use davit_api::status::Status;
use davit_registry::object;
use davit_registry::storage::{StorageError, Stored};
use davit_schema::apply::{ignore_times, strip};
use davit_store::Error as StoreError;
use serde_json::{Value, json};

use super::create::is_tracked;
use super::owners::{Seen, leave_out_repeated};
use super::{Facet, Race, Writer, add_missing};
use crate::ownership::BeforeAdmission;
use crate::service_addresses::Reservation;

/// Makes the wanted object out of the current one. Runs again when a race was lost, so it must
/// not keep state.
pub(crate) type Transform<'a> = &'a mut (dyn FnMut(&Value) -> Result<Value, Status> + Send);

/// Metadata only the server writes.
const SYSTEM: [&str; 5] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

impl Writer<'_> {
    /// Changes the object `name`, or its `subresource`. A result without resourceVersion is
    /// accepted where the kind allows it.
    pub(crate) async fn update(
        &self,
        name: &str,
        subresource: &str,
        transform: Transform<'_>,
    ) -> Result<Stored, Status> {
        self.update_seen(name, subresource, None, transform).await
    }

    /// Changes the object `name` itself through one of its facets, which is what admission sees.
    pub(crate) async fn update_facet(
        &self,
        name: &str,
        facet: &dyn Facet,
        transform: Transform<'_>,
    ) -> Result<Stored, Status> {
        self.update_seen(name, "", Some(facet), transform).await
    }

    async fn update_seen(
        &self,
        name: &str,
        subresource: &str,
        facet: Option<&dyn Facet>,
        transform: Transform<'_>,
    ) -> Result<Stored, Status> {
        let storage = &self.resource.storage;
        let mut race = Race::new();
        loop {
            let found = storage.get(self.namespace, name).await;
            let Some(old) = found.map_err(|e| self.storage_error(e, name))? else {
                return Err(self.not_found(name));
            };
            let wanted = transform(&old.value)?;
            let new = self
                .prepared(name, subresource, facet, &old, wanted)
                .await?;
            if self.leaves(&new) && subresource_may_delete(subresource) {
                match self.remove(name, &old, new).await {
                    Ok(stored) => return Ok(stored),
                    Err(StorageError::Changed(_)) => {
                        race.lost(self, name).await?;
                        continue;
                    }
                    Err(error) => return Err(self.storage_error(error, name)),
                }
            }
            let unchanged = new == old.value && !self.is_stale(name).await?;
            let mut new = new;
            let reserved = match unchanged {
                true => Reservation::default(),
                false => {
                    let addresses = self.server.service_addresses();
                    addresses.reserve(self, &mut new).await?
                }
            };
            if unchanged || self.dry_run {
                // a dry run claims nothing
                reserved.keep();
                return Ok(Stored {
                    value: new,
                    revision: old.revision,
                    text: old.text.filter(|_| unchanged),
                });
            }
            let mut written = storage
                .update(self.namespace, name, old.revision, &new)
                .await;
            if matches!(
                &written,
                Err(StorageError::Store(StoreError::TooLarge { .. }))
            ) && is_tracked(&new)
            {
                strip(&mut new);
                written = storage
                    .update(self.namespace, name, old.revision, &new)
                    .await;
            }
            match written {
                Ok(stored) => {
                    reserved.keep();
                    let addresses = self.server.service_addresses();
                    addresses.changed(self, &old.value, &stored.value).await;
                    return Ok(stored);
                }
                Err(error) => {
                    reserved.give_back(self, &new).await;
                    let StorageError::Changed(_) = error else {
                        return Err(self.storage_error(error, name));
                    };
                    race.lost(self, name).await?;
                }
            }
        }
    }

    /// Whether the object would be stored otherwise if it were written now: then it is written, though nothing changes. This
    /// is how keys are rotated, and how objects come into the version and form of today.
    async fn is_stale(&self, name: &str) -> Result<bool, Status> {
        let storage = &self.resource.storage;
        let old = storage.is_of_old_version(self.namespace, name).await;
        if old.map_err(|error| self.storage_error(error, name))? {
            return Ok(true);
        }
        let key = storage.key(self.namespace, name);
        let stale = self.server.stored().of(storage).is_stale(&key).await;
        stale.map_err(|error| self.storage_error(StorageError::Store(error), name))
    }

    async fn prepared(
        &self,
        name: &str,
        subresource: &str,
        facet: Option<&dyn Facet>,
        old: &Stored,
        mut new: Value,
    ) -> Result<Value, Status> {
        self.check_preconditions(name, subresource, old, &new)?;
        let immutable = match subresource {
            "" => changed_metadata(&new, &old.value),
            _ => Vec::new(),
        };
        for key in SYSTEM {
            object::keep_meta(&mut new, &old.value, key);
        }
        object::keep_meta(&mut new, &old.value, "name");
        object::keep_meta(&mut new, &old.value, "namespace");
        object::remove_meta(&mut new, &["selfLink"]);
        new = self.tracked(subresource, Some(&old.value), new)?;
        // of a binding it was the Binding that was asked about
        let asks = subresource != "binding";
        if let Some(facet) = facet {
            new = self.admitted_facet(name, facet, &old.value, new).await?;
        } else if asks {
            let before = BeforeAdmission::remember(&new);
            let attributes =
                self.attributes(Operation::Update, subresource, name, Some(&old.value));
            self.server
                .admission()
                .mutate(&attributes, Some(&mut new))
                .await?;
            self.warnings
                .add(before.check(&mut new).unwrap_or_default());
            let repeated = leave_out_repeated(&mut new, Seen::AfterAdmission);
            self.warnings.add(repeated.unwrap_or_default());
            super::escalation::check(self.server, &attributes, &new).await?;
            super::params::check(self.server, &attributes, &new).await?;
        }
        // strategies that keep the old metadata keep its writer's entries
        let entries = new.pointer("/metadata/managedFields").cloned();
        let strategy = &*self.resource.strategy;
        strategy.default(&mut new);
        let storage = &self.resource.storage;
        let mut found = match subresource {
            "" => {
                // what goes does not count as a change
                self.drop_disabled(&mut new, Some(&old.value));
                strategy.prepare_for_update(&mut new, &old.value);
                let mut found = strategy.validate_update(&new, &old.value);
                let mut declared = storage.shape().validate(&new, Some(&old.value));
                let fixed = found.iter().filter(|f| f.detail == "field is immutable");
                let fixed: HashSet<&str> = fixed.map(|f| f.field.as_str()).collect();
                declared.retain(|fault| !is_within(&fault.field, &fixed));
                add_missing(&mut found, declared);
                found
            }
            // made by the server itself out of a checked request
            "binding" => Vec::new(),
            _ => {
                strategy.prepare_subresource_update(subresource, &mut new, &old.value);
                self.drop_disabled(&mut new, Some(&old.value));
                strategy.validate_subresource_update(subresource, &new, &old.value)
            }
        };
        found.splice(0..0, immutable);
        if facet.is_none() && asks {
            let attributes =
                self.attributes(Operation::Update, subresource, name, Some(&old.value));
            let refused = device_access::faults(&attributes, &new).await?;
            found.splice(0..0, refused);
            if found.is_empty() {
                found.extend(certificates::signing_faults(&attributes, &new).await);
            }
        }
        if !found.is_empty() {
            return Err(self.invalid(name, &found));
        }
        if let Some(facet) = facet {
            let (was, is) = (facet.of(&old.value)?, facet.of(&new)?);
            let attributes =
                self.attributes(Operation::Update, facet.subresource(), name, Some(&was));
            let admission = self.server.admission();
            admission.validate(&attributes, Some(&is)).await?;
        } else if asks {
            let attributes =
                self.attributes(Operation::Update, subresource, name, Some(&old.value));
            self.server
                .admission()
                .validate(&attributes, Some(&new))
                .await?;
        }
        if subresource.is_empty() {
            for warning in strategy.update_warnings(&new, &old.value) {
                self.warnings.add(warning);
            }
        }
        match entries {
            Some(entries) => object::set_meta(&mut new, "managedFields", entries),
            None => strip(&mut new),
        }
        object::set_meta(&mut new, "resourceVersion", json!(old.revision.to_string()));
        ignore_times(&old.value, &mut new);
        Ok(new)
    }

    /// `new` as mutating admission left it, having seen its facet.
    async fn admitted_facet(
        &self,
        name: &str,
        facet: &dyn Facet,
        old: &Value,
        new: Value,
    ) -> Result<Value, Status> {
        let (was, mut is) = (facet.of(old)?, facet.of(&new)?);
        let asked = is.clone();
        let attributes = self.attributes(Operation::Update, facet.subresource(), name, Some(&was));
        let admission = self.server.admission();
        admission.mutate(&attributes, Some(&mut is)).await?;
        if is == asked {
            return Ok(new);
        }
        facet.put(&new, &is)
    }

    fn check_preconditions(
        &self,
        name: &str,
        subresource: &str,
        old: &Stored,
        new: &Value,
    ) -> Result<(), Status> {
        let uid = object::uid(new);
        let held = object::uid(&old.value);
        // the uid in a patch is no precondition, but a change like any other; of a status, our own
        // components know by a conflict that the object was replaced
        let is_precondition = self.verb != "patch" || !subresource.is_empty();
        if is_precondition && !uid.is_empty() && uid != held {
            return Err(Status::uid_precondition(
                self.resource.qualified(),
                name,
                uid,
                held,
            ));
        }
        match object::resource_version(new) {
            "" | "0" if self.resource.strategy.allow_unconditional_update() => Ok(()),
            "" | "0" => Err(self.must_name_version(name)),
            version if version == old.revision.to_string() => Ok(()),
            version if version.parse::<u64>().is_err() => Err(Status::bad_request(format!(
                "invalid resource version \"{version}\""
            ))),
            _ => Err(Status::conflict_modified(self.resource.qualified(), name)),
        }
    }

    fn must_name_version(&self, name: &str) -> Status {
        let path = Path::new("metadata").child("resourceVersion");
        let fault = FieldError::invalid(&path, 0, "must be specified for an update");
        // the storage says this, which knows the resource by its name
        Status::invalid(self.resource.qualified(), name, &[fault])
    }

    /// Whether nothing holds a deleted object any more.
    pub(super) fn leaves(&self, new: &Value) -> bool {
        object::is_deleting(new)
            && object::finalizers(new).is_empty()
            && self.resource.strategy.spec_finalizers(new).is_empty()
            && object::meta_int(new, "deletionGracePeriodSeconds").unwrap_or(0) == 0
    }

    /// Deletes what was read as `old`; answers `last`, the object's last state.
    pub(super) async fn remove(
        &self,
        name: &str,
        old: &Stored,
        last: Value,
    ) -> Result<Stored, StorageError> {
        if self.dry_run {
            return Ok(Stored {
                value: last,
                revision: old.revision,
                text: None,
            });
        }
        let storage = &self.resource.storage;
        let revision = storage.delete(self.namespace, name, old.revision).await?;
        let addresses = self.server.service_addresses();
        addresses.released(self, &old.value).await;
        Ok(davit_registry::storage::with_revision(last, revision))
    }
}

/// Faults of metadata that the writer sets to something else than what the server has set. What is not
/// given, and times that the server has set, stay as they are.
fn changed_metadata(new: &Value, old: &Value) -> Vec<FieldError> {
    let meta = |object: &Value, key: &str| object["metadata"][key].clone();
    let mut faults = Vec::new();
    for key in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (wanted, held) = (meta(new, key), meta(old, key));
        let stays = wanted.is_null() || wanted == "" || wanted == held;
        if !stays && (key != "deletionTimestamp" || held.is_null()) {
            let path = Path::new("metadata").child(key);
            faults.push(FieldError::invalid(&path, wanted, "field is immutable"));
        }
    }
    faults
}

/// Whether a fault is of a part of what may not change at all, of which nothing more is said.
fn is_within(field: &str, fixed: &HashSet<&str>) -> bool {
    !fixed.is_empty()
        && field
            .match_indices(['.', '['])
            .any(|(end, _)| fixed.contains(&field[..end]))
}

/// A binding or a resize never ends an object's life.
fn subresource_may_delete(subresource: &str) -> bool {
    matches!(subresource, "" | "status" | "finalize")
}
