//! Deleting objects: at once, gracefully, or after finalizers.

use davit_admission::Operation;
use davit_api::field::{FieldError, Path};
use davit_api::status::{Qualified, Status};
use davit_registry::object;
use davit_registry::storage::{StorageError, Stored};
use davit_strategy::Propagation;
use serde_json::{Value, json};

use super::{Race, Writer};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
/// The option that deletes what cannot be read, and stands with no other.
pub(crate) const IGNORE_READ_ERRORS: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// What happens to dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Orphan,
    Background,
    Foreground,
}

/// What the object must be for the deletion to go ahead.
#[derive(Debug, Clone, Default)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

/// The options of a deletion.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) policy: Option<Policy>,
    /// The deprecated form of `policy`.
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) preconditions: Preconditions,
    pub(crate) dry_run: bool,
    /// The object is deleted although it cannot be read, and only then.
    pub(crate) ignore_read_errors: bool,
}

impl DeleteOptions {
    /// Reads decoded `DeleteOptions`.
    pub(crate) fn from_value(value: &Value) -> Result<Self, Status> {
        let mut faults = Vec::new();
        let policy = match value["propagationPolicy"].as_str() {
            None => None,
            Some("Orphan") => Some(Policy::Orphan),
            Some("Background") => Some(Policy::Background),
            Some("Foreground") => Some(Policy::Foreground),
            Some(other) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                let path = Path::new("propagationPolicy");
                faults.push(FieldError::not_supported(&path, other, &supported));
                None
            }
        };
        let orphan_dependents = value["orphanDependents"].as_bool();
        if orphan_dependents.is_some() && value["propagationPolicy"].is_string() {
            let path = Path::new("propagationPolicy");
            let why = "orphanDependents and deletionPropagation cannot be both set";
            faults.push(FieldError::invalid(
                &path,
                value["propagationPolicy"].clone(),
                why,
            ));
        }
        let dry_run = value["dryRun"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
        for entry in value["dryRun"].as_array().into_iter().flatten() {
            if entry != "All" {
                let path = Path::new("dryRun");
                faults.push(FieldError::not_supported(
                    &path,
                    value["dryRun"].clone(),
                    &["All"],
                ));
            }
        }
        let ignore_read_errors = value[IGNORE_READ_ERRORS] == true;
        if ignore_read_errors {
            faults.extend(beside_read_errors(value));
        }
        if !faults.is_empty() {
            return Err(Self::refused(&faults));
        }
        let text = |name: &str| {
            value
                .pointer(&format!("/preconditions/{name}"))
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        Ok(Self {
            grace_period_seconds: value["gracePeriodSeconds"].as_i64(),
            policy,
            orphan_dependents,
            preconditions: Preconditions {
                uid: text("uid"),
                resource_version: text("resourceVersion"),
            },
            dry_run,
            ignore_read_errors,
        })
    }

    /// What is wrong with options.
    pub(crate) fn refused(faults: &[FieldError]) -> Status {
        let kind = Qualified::new("meta.k8s.io", "DeleteOptions");
        Status::invalid(kind, "", faults)
    }

    fn names_a_policy(&self) -> bool {
        self.policy.is_some() || self.orphan_dependents.is_some()
    }
}

/// The options that say something of an object which nobody can read.
fn beside_read_errors(value: &Value) -> impl Iterator<Item = FieldError> {
    let others = [
        "dryRun",
        "propagationPolicy",
        "orphanDependents",
        "gracePeriodSeconds",
        "preconditions",
    ];
    let is_set = |name: &&str| match &value[name] {
        Value::Array(entries) => !entries.is_empty(),
        other => !other.is_null(),
    };
    others
        .into_iter()
        .filter(is_set)
        .map(|name| read_errors_fault(&format!("cannot be set together with .{name}")))
}

/// What is wrong with asking for a deletion in spite of read errors.
pub(crate) fn read_errors_fault(why: &str) -> FieldError {
    FieldError::invalid(&Path::new(IGNORE_READ_ERRORS), true, why)
}

/// What became of the object.
#[derive(Debug)]
pub(crate) struct Deletion {
    /// Its last state.
    pub(crate) stored: Stored,
    /// It is gone; otherwise it is marked and something still holds it.
    pub(crate) gone: bool,
}

/// What to do with an object now.
enum Step {
    /// Nothing more: it is on its way.
    Pending,
    /// Store this state and wait for those who hold it.
    Mark(Value),
    /// Take it away.
    Remove(Value),
}

/// Whose wish a deletion is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeletedFor {
    AUser,
    ItsDefinition,
}

impl Writer<'_> {
    /// Deletes `name`.
    pub(crate) async fn delete(
        &self,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deletion, Status> {
        self.delete_as(name, options, DeletedFor::AUser).await
    }

    /// Deletes `name` because its definition goes: that is nobody's request, so admission has no say.
    pub(crate) async fn delete_with_definition(&self, name: &str) -> Result<Deletion, Status> {
        let options = DeleteOptions::default();
        self.delete_as(name, &options, DeletedFor::ItsDefinition)
            .await
    }

    async fn delete_as(
        &self,
        name: &str,
        options: &DeleteOptions,
        whom: DeletedFor,
    ) -> Result<Deletion, Status> {
        let storage = &self.resource.storage;
        let mut race = Race::new();
        let mut admitted = whom == DeletedFor::ItsDefinition;
        loop {
            let found = storage.get(self.namespace, name).await;
            let Some(old) = found.map_err(|e| self.storage_error(e, name))? else {
                return Err(self.not_found(name));
            };
            if !admitted {
                admitted = true;
                self.ask_delete(name, &old.value, options).await?;
            }
            self.check_delete(name, &old, &options.preconditions)?;
            let result = match self.next_step(&old.value, options) {
                Step::Pending => {
                    return Ok(Deletion {
                        stored: old,
                        gone: false,
                    });
                }
                Step::Mark(new) if self.dry_run => {
                    let stored = Stored {
                        value: new,
                        revision: old.revision,
                        text: None,
                    };
                    return Ok(Deletion {
                        stored,
                        gone: false,
                    });
                }
                Step::Mark(new) => storage
                    .update(self.namespace, name, old.revision, &new)
                    .await
                    .map(|stored| Deletion {
                        stored,
                        gone: false,
                    }),
                Step::Remove(last) => self
                    .remove(name, &old, last)
                    .await
                    .map(|stored| Deletion { stored, gone: true }),
            };
            match result {
                Ok(deletion) => return Ok(deletion),
                Err(StorageError::Changed(_)) => race.lost(self, name).await?,
                Err(error) => return Err(self.storage_error(error, name)),
            }
        }
    }

    async fn ask_delete(
        &self,
        name: &str,
        old: &Value,
        options: &DeleteOptions,
    ) -> Result<(), Status> {
        let attributes = self.attributes(Operation::Delete, "", name, Some(old));
        self.server.admission().mutate(&attributes, None).await?;
        self.server.admission().validate(&attributes, None).await?;
        for warning in self
            .resource
            .strategy
            .delete_warnings(old, options.names_a_policy())
        {
            self.warnings.add(warning);
        }
        Ok(())
    }

    fn check_delete(&self, name: &str, old: &Stored, wanted: &Preconditions) -> Result<(), Status> {
        let resource = self.resource.qualified();
        let uid = object::uid(&old.value);
        if let Some(wanted) = &wanted.uid
            && wanted != uid
        {
            return Err(match self.has_own_deletion() {
                true => Status::uid_precondition(resource, name, wanted, uid),
                false => Status::other_uid(self.resource.qualified_kind(), name, wanted, uid),
            });
        }
        let version = old.revision.to_string();
        if let Some(wanted) = &wanted.resource_version
            && *wanted != version
        {
            let kind = self.resource.qualified_kind();
            return Err(match self.has_own_deletion() {
                true => Status::version_precondition(resource, name, wanted, &version),
                false => Status::other_version(kind, name, wanted, &version),
            });
        }
        Ok(())
    }

    fn next_step(&self, old: &Value, options: &DeleteOptions) -> Step {
        let mut new = old.clone();
        let graceful = match self.grace(old, options) {
            Grace::Pending => {
                // a pending graceful deletion is not changed any further, not even its finalizers
                return if self.leaves(old) {
                    Step::Remove(new)
                } else {
                    Step::Pending
                };
            }
            Grace::Begin {
                seconds,
                deletion_timestamp,
            } => {
                mark(&mut new, seconds, &deletion_timestamp);
                Some(seconds)
            }
            Grace::None => None,
        };
        let before = object::finalizers(old);
        let finalizers = self.collector_finalizers(old, &before, options);
        if finalizers != before {
            object::set_finalizers(&mut new, &finalizers);
        }
        let held =
            !finalizers.is_empty() || !self.resource.strategy.spec_finalizers(old).is_empty();
        match graceful {
            None if held => {
                if !object::is_deleting(old) {
                    self.mark_held(&mut new);
                }
                if new == *old {
                    Step::Pending
                } else {
                    Step::Mark(new)
                }
            }
            None => Step::Remove(new),
            Some(seconds) if held || seconds > 0 => Step::Mark(new),
            Some(_) => Step::Remove(new),
        }
    }

    /// Namespaces and definitions of kinds are not deleted as everything else is: they have no grace
    /// period, and preconditions are compared by others.
    fn has_own_deletion(&self) -> bool {
        let row = &self.resource.row;
        matches!(
            (row.group, row.plural),
            ("", "namespaces") | ("apiextensions.k8s.io", "customresourcedefinitions")
        )
    }

    /// Marks an object without grace that something holds. A namespace shows in its phase that it is going.
    fn mark_held(&self, new: &mut Value) {
        if !self.has_own_deletion() {
            mark(new, 0, &object::now());
            return;
        }
        object::set_meta(new, "deletionTimestamp", json!(object::now()));
        if self.resource.row.plural == "namespaces" {
            if !new["status"].is_object() {
                new["status"] = json!({});
            }
            new["status"]["phase"] = json!("Terminating");
        }
    }

    fn grace(&self, old: &Value, options: &DeleteOptions) -> Grace {
        let strategy = &*self.resource.strategy;
        if object::is_deleting(old) {
            if strategy.grace_period(old, None).is_none() {
                return Grace::None;
            }
            let held = object::meta_int(old, "deletionGracePeriodSeconds").unwrap_or(0);
            if held == 0 {
                return Grace::None;
            }
            let Some(asked) = options.grace_period_seconds else {
                return Grace::Pending;
            };
            let asked = if asked < 0 { 1 } else { asked };
            // a deletion can only come sooner
            if asked >= held {
                return Grace::Pending;
            }
            let end = object::meta_str(old, "deletionTimestamp").parse::<jiff::Timestamp>();
            let end = end.unwrap_or_else(|_| jiff::Timestamp::now());
            let sooner = jiff::SignedDuration::from_secs(held.saturating_sub(asked));
            let end = end.checked_sub(sooner).unwrap_or_else(|_| after(asked));
            return Grace::Begin {
                seconds: asked,
                deletion_timestamp: object::seconds(end),
            };
        }
        let asked = options.grace_period_seconds;
        match strategy.grace_period(old, asked) {
            None => Grace::None,
            Some(seconds) => {
                let seconds = if seconds < 0 { 1 } else { seconds };
                let end = after(seconds);
                Grace::Begin {
                    seconds,
                    deletion_timestamp: object::seconds(end),
                }
            }
        }
    }

    /// The finalizers with which the garbage collector is told what to do with dependents.
    fn collector_finalizers(
        &self,
        old: &Value,
        before: &[String],
        options: &DeleteOptions,
    ) -> Vec<String> {
        let default = self.resource.strategy.default_propagation();
        if default == Propagation::Unsupported {
            let mut finalizers = before.to_vec();
            finalizers.retain(|name| !matches!(name.as_str(), ORPHAN | FOREGROUND));
            return finalizers;
        }
        let has = |name: &str| before.iter().any(|held| held == name);
        let (orphan, foreground) = match (options.policy, options.orphan_dependents) {
            (Some(policy), _) => (policy == Policy::Orphan, policy == Policy::Foreground),
            (None, Some(orphan)) => (orphan, false),
            (None, None) if has(ORPHAN) => (true, false),
            (None, None) if has(FOREGROUND) => (false, true),
            (None, None) => (
                default == Propagation::Orphan && !object::is_deleting(old),
                false,
            ),
        };
        let mut finalizers: Vec<String> = before
            .iter()
            .filter(|name| !matches!(name.as_str(), ORPHAN | FOREGROUND))
            .cloned()
            .collect();
        if orphan {
            finalizers.push(ORPHAN.to_owned());
        }
        if foreground {
            finalizers.push(FOREGROUND.to_owned());
        }
        // the order of the list is not a change
        let same = (orphan, foreground) == (has(ORPHAN), has(FOREGROUND));
        if same { before.to_vec() } else { finalizers }
    }
}

enum Grace {
    /// The kind knows no grace.
    None,
    /// Nothing to change about a deletion under way.
    Pending,
    /// Start, or shorten.
    Begin {
        seconds: i64,
        deletion_timestamp: String,
    },
}

/// The moment in so many seconds, or the last one that can be written.
fn after(seconds: i64) -> jiff::Timestamp {
    jiff::Timestamp::now()
        .checked_add(jiff::SignedDuration::from_secs(seconds))
        .unwrap_or(jiff::Timestamp::MAX)
}

/// A deletion that is only shortened makes no new generation.
fn mark(new: &mut Value, seconds: i64, deletion_timestamp: &str) {
    let begins = !object::is_deleting(new);
    object::set_meta(new, "deletionTimestamp", json!(deletion_timestamp));
    object::set_meta(new, "deletionGracePeriodSeconds", json!(seconds));
    let generation = object::meta_int(new, "generation");
    if let Some(generation) = generation.filter(|g| begins && *g > 0) {
        object::set_meta(new, "generation", json!(generation + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_deletion_is_a_new_generation() {
        let mut pod = json!({"metadata": {"generation": 1}});
        mark(&mut pod, 30, "2026-01-01T00:00:30Z");
        mark(&mut pod, 5, "2026-01-01T00:00:05Z");
        let meta = json!({"generation": 2, "deletionTimestamp": "2026-01-01T00:00:05Z", "deletionGracePeriodSeconds": 5});
        assert_eq!(pod["metadata"], meta);
    }

    /// A pod with such a grace period could not be deleted, nor its namespace.
    #[test]
    fn no_grace_period_is_beyond_time() {
        let now = jiff::Timestamp::now();
        for seconds in [i64::MAX, i64::MAX / 2, 1 << 40] {
            assert_eq!(after(seconds), jiff::Timestamp::MAX, "{seconds}");
        }
        assert!(after(30) >= now && after(30) < after(60));
    }
}
