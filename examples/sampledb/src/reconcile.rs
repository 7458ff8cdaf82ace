//! One look at a database: what is there, the next step, the step, and what of it stands in the status.

mod calls;
mod observe;
mod status;

use crate::objects::Objects;
use crate::plan::{JobState, Observed, Step, Work};
use crate::resource::{DatabaseStatus, SampleDb};
use calls::doing;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Client, ResourceExt};
use observe::Jobs;
use rand::distr::{Alphanumeric, SampleString};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const MANAGER: &str = "sampledb-operator";
const FINALIZER: &str = "demo.davit.dev/final-snapshot";
/// What nobody tells of is looked at this often.
const LOOK: Duration = Duration::from_secs(60);
/// While a pod or a claim goes, of which nobody tells.
const SOON: Duration = Duration::from_millis(500);

/// What all databases share.
pub(crate) struct Operator {
    client: Client,
    images: String,
    retry: Duration,
    recorder: Recorder,
}

/// Why a look came to no end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The API server refused or did not answer.
    #[error("{doing}: {source}")]
    Api {
        doing: String,
        #[source]
        source: kube::Error,
    },
    /// An object of the operator's own is not one.
    #[error("object of the operator's own")]
    Object(#[from] serde_json::Error),
}

type Outcome<T> = Result<T, Failure>;

impl Operator {
    pub(crate) fn new(client: Client, images: String, retry: Duration) -> Self {
        let recorder = Recorder::new(client.clone(), Reporter::from(MANAGER));
        Self {
            client,
            images,
            retry,
            recorder,
        }
    }
}

/// Reconciles one database. What failed is told on it.
pub(crate) async fn reconcile(database: Arc<SampleDb>, operator: Arc<Operator>) -> Outcome<Action> {
    let look = Look {
        operator: &operator,
        database: &database,
        objects: Objects::new(&database, &operator.images),
        namespace: database.namespace().unwrap_or_default(),
    };
    let result = look.at().await;
    if let Err(error) = &result {
        look.tell_failure(error).await?;
    }
    result
}

/// When a database is looked at after a failure.
#[allow(clippy::needless_pass_by_value, reason = "what kube-rs calls")]
pub(crate) fn again(_: Arc<SampleDb>, error: &Failure, operator: Arc<Operator>) -> Action {
    tracing::warn!(%error, "tried again");
    Action::requeue(operator.retry.min(Duration::from_secs(5)))
}

/// One look.
struct Look<'a> {
    operator: &'a Operator,
    database: &'a SampleDb,
    objects: Objects<'a>,
    namespace: String,
}

impl Look<'_> {
    fn deleted(&self) -> bool {
        self.database.metadata.deletion_timestamp.is_some()
    }

    async fn at(&self) -> Outcome<Action> {
        let held = self.database.finalizers().iter().any(|f| f == FINALIZER);
        match (self.deleted(), held) {
            (true, false) => return Ok(Action::await_change()),
            (false, false) => self.set_finalizers(true).await?,
            _ => {}
        }
        if !self.deleted() {
            self.basics().await?;
        }
        let jobs = self.jobs().await?;
        let (stopped, ready) = self.set().await?;
        let status = &self.database.status;
        let taken = status
            .condition("FinalBackup")
            .is_some_and(|c| c.reason == "Taken");
        let version = status.version.unwrap_or_default();
        let seen = Observed {
            deleted: self.deleted(),
            keep_last: self.database.spec.deletion_snapshot,
            wanted: self.database.spec.version,
            present: status.version,
            stopped,
            init: jobs.init.clone(),
            upgrade: jobs.upgrade.clone(),
            last: if taken {
                JobState::Complete { version }
            } else {
                jobs.last.clone()
            },
        };
        let step = seen.next();
        tracing::debug!(name = self.objects.name(), ?step, "next");
        self.take(&step, &jobs, ready).await
    }

    /// Does a step and writes the status that goes with it; the status first where it says what was begun.
    async fn take(&self, step: &Step, jobs: &Jobs, ready: bool) -> Outcome<Action> {
        let mut status = self.database.status.clone();
        self.note_backup(&mut status, jobs);
        let again = match step {
            Step::Serve(version) => {
                self.serve(*version).await?;
                self.serving(&mut status, ready);
                let text = format!("the data are of version {version}");
                self.set_condition(&mut status, "UpToDate", true, "Current", &text);
                LOOK
            }
            Step::ServeAfter { version, failure } => {
                self.serve(*version).await?;
                self.serving(&mut status, ready);
                let job = self
                    .objects
                    .job_name(Work::Upgrade, self.database.spec.version);
                let text = format!("{failure}; delete job {job} to try again");
                self.set_condition(&mut status, "UpToDate", false, "UpgradeFailed", &text);
                LOOK
            }
            Step::Stop(work) => {
                self.begun(&mut status, *work);
                self.stop().await?;
                SOON
            }
            Step::Start(work) => {
                self.begun(&mut status, *work);
                let version = match work {
                    Work::Last => self.database.status.version.unwrap_or_default(),
                    _ => self.database.spec.version,
                };
                let job = self.objects.job(*work, version);
                self.create::<Job>(job).await?;
                LOOK
            }
            Step::Await(work) => {
                self.begun(&mut status, *work);
                LOOK
            }
            Step::Failed {
                work: Work::Last,
                message,
            } => {
                self.set_condition(&mut status, "FinalBackup", false, "Failed", message);
                self.write(&status).await?;
                return Ok(Action::requeue(self.try_last_again().await?));
            }
            Step::Failed { work, message } => {
                "Failed".clone_into(status.phase.get_or_insert_default());
                let job = self.objects.job_name(*work, self.database.spec.version);
                let text = format!("{message}; delete job {job} to try again");
                self.set_condition(&mut status, "Ready", false, "InitFailed", &text);
                LOOK
            }
            Step::Record(version) => {
                status.version = Some(*version);
                SOON
            }
            Step::Release => return self.release(status).await,
        };
        self.write(&status).await?;
        Ok(Action::requeue(again))
    }

    /// What is there while the database is wanted, whatever it does.
    async fn basics(&self) -> Outcome<()> {
        let password = Alphanumeric.sample_string(&mut rand::rng(), 32);
        self.create::<Secret>(self.objects.secret(&password))
            .await?;
        self.apply::<ConfigMap>(self.objects.config_map()).await?;
        for service in self.objects.services() {
            self.apply::<Service>(service).await?;
        }
        for claim in self.objects.claims() {
            self.grow(claim).await?;
        }
        Ok(())
    }

    /// Makes a claim, or has it grow.
    async fn grow(&self, wanted: Value) -> Outcome<()> {
        let claims = self.api::<PersistentVolumeClaim>();
        let name = wanted["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let found = claims
            .get_opt(&name)
            .await
            .map_err(doing(format!("read claim {name}")))?;
        let Some(found) = found else {
            return self.create::<PersistentVolumeClaim>(wanted).await;
        };
        let requests = found
            .spec
            .and_then(|s| s.resources)
            .and_then(|r| r.requests)
            .unwrap_or_default();
        let size = &self.database.spec.storage.size;
        if requests.get("storage").map(|q| &q.0) != Some(size)
            && found.status.and_then(|s| s.phase).as_deref() == Some("Bound")
        {
            let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
            let patched = claims
                .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            patched.map_err(doing(format!("grow claim {name}")))?;
        }
        Ok(())
    }

    async fn serve(&self, version: u32) -> Outcome<()> {
        self.apply::<StatefulSet>(self.objects.stateful_set(version, 1))
            .await?;
        self.apply::<CronJob>(self.objects.cron_job(version, false))
            .await
    }

    async fn stop(&self) -> Outcome<()> {
        let version = self.database.status.version.unwrap_or_default();
        self.apply::<CronJob>(self.objects.cron_job(version, true))
            .await?;
        self.apply::<StatefulSet>(self.objects.stateful_set(version, 0))
            .await
    }

    /// Deletes the job of a last backup that has failed long enough ago; when to look again.
    async fn try_last_again(&self) -> Outcome<Duration> {
        let name = self.objects.job_name(Work::Last, 0);
        let job = self.api::<Job>().get_opt(&name).await;
        let Some(job) = job.map_err(doing(format!("read job {name}")))? else {
            return Ok(SOON);
        };
        let failed = observe::end_of(&job).map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let since = Duration::try_from(Timestamp::now().duration_since(failed));
        let left = self
            .operator
            .retry
            .saturating_sub(since.unwrap_or_default());
        if left.is_zero() {
            self.delete::<Job>(&name).await?;
        }
        Ok(left.max(SOON))
    }

    /// Lets everything go, so that another database of the name finds nothing of this one. That the data are saved is written before the first of it goes.
    async fn release(&self, mut status: DatabaseStatus) -> Outcome<Action> {
        if self.database.spec.deletion_snapshot && status.version.is_some() {
            self.set_condition(
                &mut status,
                "FinalBackup",
                true,
                "Taken",
                "the data are saved",
            );
        }
        status.phase = Some("Terminating".to_owned());
        self.write(&status).await?;
        let name = self.objects.name();
        self.delete::<CronJob>(&self.objects.backup_claim()).await?;
        self.delete::<StatefulSet>(&name).await?;
        self.delete::<Secret>(&name).await?;
        self.delete::<ConfigMap>(&name).await?;
        for service in [&name, &self.objects.client_service()] {
            self.delete::<Service>(service).await?;
        }
        // Pods that have ended use their claims as well.
        let jobs = self.list::<Job>(&self.objects.selector()).await?;
        for job in jobs.iter().filter(|job| self.owns(job.owner_references())) {
            self.delete::<Job>(&job.name_any()).await?;
        }
        let claim = self.objects.data_claim();
        self.delete::<PersistentVolumeClaim>(&claim).await?;
        let left = self.api::<PersistentVolumeClaim>().get_opt(&claim).await;
        if left
            .map_err(doing(format!("read claim {claim}")))?
            .is_some()
        {
            return Ok(Action::requeue(SOON));
        }
        self.set_finalizers(false).await?;
        Ok(Action::await_change())
    }

    async fn set_finalizers(&self, held: bool) -> Outcome<()> {
        let mut finalizers = self.database.finalizers().to_vec();
        finalizers.retain(|f| f != FINALIZER);
        if held {
            finalizers.push(FINALIZER.to_owned());
        }
        // refused when somebody else has changed the list meanwhile
        let version = self.database.resource_version();
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
        let name = self.objects.name();
        let patched = self
            .api::<SampleDb>()
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if !held && status.code == 404 => Ok(()),
            Err(error) => Err(doing("write the finalizer")(error)),
        }
    }
}
