//! Storage version migration (<https://kep.k8s.io/4192>): the objects of a resource that a StorageVersionMigration names are
//! written anew, so that afterwards none is in an old version, or encrypted with an old key.
//!
//! Of the migrations of one resource one runs at a time, the oldest first. Its `status` says where it is: condition `Running`,
//! then the resource version from which older objects are to be written, then `Succeeded` or `Failed`. An object is written by
//! applying nothing to it; the API server stores it if what is stored is not what would be stored today.

mod definition;
mod objects;

use async_trait::async_trait;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::storagemigration::v1beta1::{
    StorageVersionMigration, StorageVersionMigrationStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use objects::{Batch, Work};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The name of the controller, and of the manager that applies nothing.
const NAME: &str = "storage-version-migrator-controller";
const RUNNING: &str = "Running";
const SUCCEEDED: &str = "Succeeded";
const FAILED: &str = "Failed";
/// How long a resource may take to be served: its definition may be as new as its migration.
const APPEARS: SignedDuration = SignedDuration::from_secs(60);

struct Migrator {
    client: kube::Client,
    migrations: Informer<StorageVersionMigration>,
    /// What running migrations have still to do, by their UIDs.
    works: Mutex<HashMap<String, Work>>,
}

/// Starts the controller. Its keys are resources: the group in place of the namespace.
pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("storage-version-migrator-controller") else {
        return;
    };
    let migrations: Informer<StorageVersionMigration> = spawner.informer();
    let queue = spawner.controller(Migrator {
        client: spawner.client.clone(),
        migrations: migrations.clone(),
        works: Mutex::default(),
    });
    spawner.feed(&migrations, &queue, |m: &StorageVersionMigration| {
        resource_of(m).into_iter().collect()
    });
}

fn resource_of(migration: &StorageVersionMigration) -> Option<ObjectKey> {
    let resource = &migration.spec.as_ref()?.resource;
    Some(ObjectKey {
        namespace: resource.group.clone(),
        name: resource.resource.clone(),
    })
}

fn name_of(migration: &StorageVersionMigration) -> &str {
    migration.metadata.name.as_deref().unwrap_or_default()
}

fn is(migration: &StorageVersionMigration, condition: &str) -> bool {
    let status = migration.status.as_ref();
    let mut conditions = status
        .and_then(|s| s.conditions.as_ref())
        .into_iter()
        .flatten();
    conditions.any(|c| c.type_ == condition && c.status == "True")
}

fn has_ended(migration: &StorageVersionMigration) -> bool {
    is(migration, SUCCEEDED) || is(migration, FAILED)
}

/// Of the migrations of one resource: those that have ended and are still said to run, and the one that is to go on or to begin.
fn sort(
    all: &[Arc<StorageVersionMigration>],
) -> (
    Vec<&StorageVersionMigration>,
    Option<&StorageVersionMigration>,
) {
    let of = |wanted: bool| {
        let running = all.iter().filter(move |m| is(m, RUNNING) == wanted);
        running.map(|m| &**m)
    };
    let ended = of(true).filter(|m| has_ended(m)).collect();
    let age = |m: &&StorageVersionMigration| {
        let created = m.metadata.creation_timestamp.as_ref();
        (created.map(|at| at.0), name_of(m).to_owned())
    };
    let running = of(true).find(|m| !has_ended(m));
    let next = || of(false).filter(|m| !has_ended(m)).min_by_key(age);
    (ended, running.or_else(next))
}

#[async_trait]
impl Reconcile for Migrator {
    const NAME: &'static str = NAME;
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let all = self.migrations.list().into_iter();
        let all: Vec<_> = all
            .filter(|m| resource_of(m).as_ref() == Some(key))
            .collect();
        let (ended, now) = sort(&all);
        for migration in ended {
            let succeeded = is(migration, SUCCEEDED);
            definition::finish(&self.client, key, succeeded).await?;
            self.write(migration, |status| {
                stopped(status, migration.metadata.generation);
            })
            .await?;
        }
        match now {
            Some(migration) if is(migration, RUNNING) => self.go_on(key, migration).await,
            Some(migration) => {
                definition::begin(&self.client, key, name_of(migration)).await?;
                let words = "The migration is running";
                self.say(migration, RUNNING, "MigrationRunning", words)
                    .await
            }
            None => {
                // what belongs to migrations that were deleted
                let known: Vec<_> = self.migrations.list();
                let is_known =
                    |uid: &str| known.iter().any(|m| m.metadata.uid.as_deref() == Some(uid));
                self.works.lock().retain(|uid, _| is_known(uid));
                Ok(Next::Wait)
            }
        }
    }
}

impl Migrator {
    /// A step of a migration that runs.
    async fn go_on(
        &self,
        key: &ObjectKey,
        migration: &StorageVersionMigration,
    ) -> Result<Next, Error> {
        let status = migration.status.as_ref();
        let version = status.and_then(|s| s.resource_version.as_deref());
        let version = version.filter(|version| !version.is_empty());
        let uid = migration.metadata.uid.clone().unwrap_or_default();
        let held = self.works.lock().remove(&uid);
        let mut work = match (held, version) {
            (Some(work), Some(_)) => work,
            (_, version) => {
                let Some(served) = objects::served(&self.client, key).await? else {
                    let created = migration.metadata.creation_timestamp.as_ref();
                    let age = created.map(|at| Timestamp::now().duration_since(at.0));
                    if age.is_some_and(|age| age < APPEARS) {
                        return Err(Error::Invalid(format!("{key} is not served yet")));
                    }
                    let words = "resource does not exist in discovery";
                    return self.fail(migration, words.to_owned()).await;
                };
                if let Some(words) = objects::cannot_be_migrated(&served) {
                    return self.fail(migration, words).await;
                }
                let Some(version) = version else {
                    let now = objects::latest_version(&self.client, &served).await?;
                    if !objects::is_version(&now) {
                        let words = format!("latest resourceVersion for {key} is not valid: {now}");
                        return self.fail(migration, words).await;
                    }
                    let set = |status: &mut StorageVersionMigrationStatus| {
                        status.resource_version = Some(now.clone());
                    };
                    return self.write(migration, set).await;
                };
                Work::gather(&self.client, &served, version).await?
            }
        };
        match work.batch(&self.client).await {
            Batch::Done => {
                let reason = "StorageVersionMigrationSucceeded";
                self.say(migration, SUCCEEDED, reason, "").await
            }
            Batch::More => {
                self.works.lock().insert(uid, work);
                Ok(Next::After(Duration::ZERO))
            }
            Batch::TryAgain(error) => {
                self.works.lock().insert(uid, work);
                Err(error)
            }
            Batch::Failed(words) => {
                let words = format!("migration encountered unhandled error: {words}");
                self.fail(migration, words).await
            }
        }
    }

    async fn fail(
        &self,
        migration: &StorageVersionMigration,
        words: String,
    ) -> Result<Next, Error> {
        let reason = "StorageVersionMigrationFailed";
        self.say(migration, FAILED, reason, &words).await
    }

    /// Adds a condition, once.
    async fn say(
        &self,
        migration: &StorageVersionMigration,
        condition: &str,
        reason: &str,
        words: &str,
    ) -> Result<Next, Error> {
        let add = |status: &mut StorageVersionMigrationStatus| {
            let conditions = status.conditions.get_or_insert_default();
            if conditions.iter().any(|c| c.type_ == condition) {
                return;
            }
            conditions.push(Condition {
                type_: condition.to_owned(),
                status: "True".to_owned(),
                last_transition_time: Time(Timestamp::now()),
                reason: reason.to_owned(),
                message: words.to_owned(),
                observed_generation: None,
            });
        };
        self.write(migration, add).await
    }

    /// Writes a status, if nobody has written the migration since it was seen.
    async fn write(
        &self,
        migration: &StorageVersionMigration,
        change: impl FnOnce(&mut StorageVersionMigrationStatus),
    ) -> Result<Next, Error> {
        let mut changed = migration.clone();
        change(changed.status.get_or_insert_default());
        let api: kube::Api<StorageVersionMigration> = kube::Api::all(self.client.clone());
        let name = name_of(migration);
        let written = api
            .replace_status(name, &PostParams::default(), &changed)
            .await;
        gone_is_none(written).context(|| format!("write the status of migration {name}"))?;
        Ok(Next::Wait)
    }
}

/// It runs no more.
fn stopped(status: &mut StorageVersionMigrationStatus, generation: Option<i64>) {
    let conditions = status.conditions.iter_mut().flatten();
    for condition in conditions.filter(|c| c.type_ == RUNNING) {
        condition.status = "False".to_owned();
        condition.last_transition_time = Time(Timestamp::now());
        condition.reason = "MigrationCompleted".to_owned();
        condition.message = "Migration completed".to_owned();
        condition.observed_generation = generation;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn migration(name: &str, second: i64, conditions: &[&str]) -> Arc<StorageVersionMigration> {
        let created = Timestamp::from_second(second).unwrap().to_string();
        let condition = |kind: &&str| json!({"type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": created});
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        let object = json!({
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"resource": {"group": "", "resource": "secrets"}},
            "status": {"conditions": conditions},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn names(all: &[Arc<StorageVersionMigration>]) -> (Vec<&str>, Option<&str>) {
        let (ended, now) = sort(all);
        let ended = ended.into_iter().map(name_of).collect();
        (ended, now.map(name_of))
    }

    #[test]
    fn one_runs_at_a_time_and_the_oldest_first() {
        let waiting = [
            migration("c", 2, &[]),
            migration("b", 1, &[]),
            migration("a", 2, &[]),
        ];
        assert_eq!(names(&waiting), (vec![], Some("b")));
        let more = [
            migration("old", 0, &[]),
            migration("runs", 1, &["Running"]),
            migration("done", 0, &["Running", "Succeeded"]),
            migration("broken", 0, &["Running", "Failed"]),
        ];
        assert_eq!(names(&more), (vec!["done", "broken"], Some("runs")));
        let over = [migration("never", 0, &["Failed"])];
        assert_eq!(names(&over), (vec![], None));
    }

    #[test]
    fn who_has_ended_runs_no_more() {
        let done = migration("m", 1, &["Running", "Succeeded"]);
        let mut status = done.status.clone().unwrap();
        stopped(&mut status, Some(3));
        let conditions = status.conditions.unwrap();
        assert_eq!(
            (&*conditions[0].status, &*conditions[1].status),
            ("False", "True")
        );
        assert_eq!(conditions[0].observed_generation, Some(3));
    }
}
