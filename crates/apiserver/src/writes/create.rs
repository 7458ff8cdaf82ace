//! Creating an object.

use davit_admission::{Operation, device_access};
use davit_api::names::GENERATED_ALPHABET;
use davit_api::status::Status;
use davit_registry::storage::{StorageError, Stored};
use davit_registry::{errors, object};
use davit_schema::apply::strip;
use davit_store::Error as StoreError;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::owners::{Seen, leave_out_repeated};
use super::{Writer, add_missing};
use crate::ownership::BeforeAdmission;

const GENERATE_ATTEMPTS: u32 = 8;
const SUFFIX: usize = 5;
const MAX_BASE: usize = 58;

impl Writer<'_> {
    /// Creates `new`, which is decoded, defaulted and in the storage version.
    pub(crate) async fn create(&self, mut new: Value) -> Result<Stored, Status> {
        // what is no number counts as none
        let version = object::resource_version(&new).parse::<u64>();
        let has_version = version.is_ok_and(|version| version != 0);
        let not_owned = [
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        ];
        object::remove_meta(&mut new, &not_owned);
        self.place(&mut new)?;
        self.check_definition(&new)?;
        let given = object::name(&new).to_owned();
        let base = object::meta_str(&new, "generateName").to_owned();
        let generated = given.is_empty() && !base.is_empty();
        let repeated = leave_out_repeated(&mut new, Seen::InRequest);
        self.warnings.add(repeated.unwrap_or_default());
        new = self.tracked("", None, new)?;
        {
            let before = BeforeAdmission::remember(&new);
            let attributes = self.attributes(Operation::Create, "", &given, None);
            self.server
                .admission()
                .mutate(&attributes, Some(&mut new))
                .await?;
            self.warnings
                .add(before.check(&mut new).unwrap_or_default());
            let repeated = leave_out_repeated(&mut new, Seen::AfterAdmission);
            self.warnings.add(repeated.unwrap_or_default());
        }
        self.place(&mut new)?;
        let attributes = self.attributes(Operation::Create, "", &given, None);
        super::escalation::check(self.server, &attributes, &new).await?;
        super::params::check(self.server, &attributes, &new).await?;
        davit_admission::certificates::set_requester(self.resource, self.user, &mut new);
        system_metadata(&mut new);
        let strategy = &*self.resource.strategy;
        strategy.default(&mut new);
        for warning in strategy.preparation_warnings(&new) {
            self.warnings.add(warning);
        }
        // what is prepared under one name says nothing of it under the next
        let nameless = generated.then(|| new.clone());
        for attempt in 0..GENERATE_ATTEMPTS {
            if let Some(nameless) = &nameless {
                new.clone_from(nameless);
                object::set_meta(&mut new, "name", generate_name(&base));
            }
            // after the name is known: jobs label their pods with it
            strategy.prepare_for_create(&mut new);
            self.drop_disabled(&mut new, None);
            // what was set or taken away since decoding takes the form in which it will be read back
            let storage = &self.resource.storage;
            new = storage
                .shape()
                .decode_value(new)
                .map_err(|error| error.status(storage.kind(), storage.version(), b""))?
                .object;
            let name = object::name(&new).to_owned();
            if attempt == 0 {
                self.check_create(&new, &name).await?;
                // The storage says this, after everybody else has spoken; a dry run does not ask it.
                if has_version && !self.dry_run {
                    return Err(Status::unknown(
                        "resourceVersion should not be set on objects to be created",
                    ));
                }
            }
            match self.commit_create(&name, &mut new).await {
                Ok(stored) => return Ok(stored),
                Err(StorageError::Exists(held)) => {
                    if generated && attempt + 1 < GENERATE_ATTEMPTS {
                        continue;
                    }
                    let held = held.as_ref().as_ref().map(|stored| &stored.value);
                    return Err(self.exists(&name, held, generated));
                }
                Err(error) => return Err(self.storage_error(error, &name)),
            }
        }
        Err(self.exists(&base, None, true))
    }

    /// The object lives where the path says: one of the whole cluster in no namespace, whatever
    /// the body says.
    fn place(&self, new: &mut Value) -> Result<(), Status> {
        if !self.resource.row.namespaced {
            object::remove_meta(new, &["namespace"]);
            return Ok(());
        }
        match object::namespace(new) {
            "" => object::set_meta(new, "namespace", self.namespace),
            namespace if namespace == self.namespace => {}
            _ => return Err(Status::bad_request(errors::NAMESPACE_MISMATCH)),
        }
        Ok(())
    }

    /// A kind that is going takes no new objects.
    fn check_definition(&self, new: &Value) -> Result<(), Status> {
        let custom = self.resource.custom.as_ref();
        if custom.is_some_and(|custom| custom.definition.terminating) {
            let why = "create not allowed while custom resource definition is terminating";
            let resource = self.resource.qualified();
            return Err(Status::forbidden(resource, object::name(new), why));
        }
        Ok(())
    }

    async fn check_create(&self, new: &Value, name: &str) -> Result<(), Status> {
        let (strategy, storage) = (&*self.resource.strategy, &self.resource.storage);
        let attributes = self.attributes(Operation::Create, "", name, None);
        let mut found = device_access::faults(&attributes, new).await?;
        found.extend(strategy.validate(new));
        add_missing(&mut found, storage.shape().validate(new, None));
        if !found.is_empty() {
            return Err(self.invalid(name, &found));
        }
        self.server
            .admission()
            .validate(&attributes, Some(new))
            .await?;
        let warnings = strategy.create_warnings(new);
        for warning in warnings.into_iter().chain(strategy.warnings(new)) {
            self.warnings.add(warning);
        }
        Ok(())
    }

    async fn commit_create(&self, name: &str, new: &mut Value) -> Result<Stored, StorageError> {
        let storage = &self.resource.storage;
        let reserved = self
            .server
            .service_addresses()
            .reserve(self, new)
            .await
            .map_err(|status| StorageError::Refused(Box::new(status)))?;
        if self.dry_run {
            if let Some(held) = storage.get(self.namespace, name).await? {
                return Err(StorageError::Exists(Box::new(Some(held))));
            }
            return Ok(Stored {
                value: new.clone(),
                revision: 0,
                text: None,
            });
        }
        let mut stored = storage.create(self.namespace, name, new).await;
        if matches!(
            &stored,
            Err(StorageError::Store(StoreError::TooLarge { .. }))
        ) && is_tracked(new)
        {
            strip(new);
            stored = storage.create(self.namespace, name, new).await;
        }
        match stored {
            Ok(stored) => {
                reserved.keep();
                Ok(stored)
            }
            Err(error) => {
                reserved.give_back(self, new).await;
                Err(error)
            }
        }
    }

    fn exists(&self, name: &str, held: Option<&Value>, generated: bool) -> Status {
        let resource = self.resource.qualified();
        if generated {
            Status::generate_name_conflict(resource, name)
        } else if held.is_some_and(object::is_deleting) {
            Status::already_exists_deleting(resource, name)
        } else {
            Status::already_exists(resource, name)
        }
    }
}

/// Whether an object too large to be stored would be smaller without its `managedFields`.
pub(super) fn is_tracked(object: &Value) -> bool {
    object.pointer("/metadata/managedFields").is_some()
}

/// Takes away what only the server decides.
pub(crate) fn remove_system_metadata(new: &mut Value) {
    object::remove_meta(
        new,
        &[
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "selfLink",
            "uid",
        ],
    );
}

/// What only the server decides.
fn system_metadata(new: &mut Value) {
    remove_system_metadata(new);
    object::set_meta(new, "uid", json!(uuid::Uuid::new_v4().to_string()));
    object::set_meta(new, "creationTimestamp", json!(object::now()));
}

/// The base, cut, and five random characters that spell no words.
pub(crate) fn generate_name(base: &str) -> String {
    let mut rng = rand::rng();
    let end = base
        .char_indices()
        .nth(MAX_BASE)
        .map_or(base.len(), |(at, _)| at);
    let mut name = base[..end].to_owned();
    name.extend(
        (0..SUFFIX).map(|_| char::from(*GENERATED_ALPHABET.choose(&mut rng).unwrap_or(&b'x'))),
    );
    name
}
