//! One look at a database: what is there, the next step, the step, and what of it stands in the status.

use crate::objects::{Objects, version_label, work_label};
use crate::plan::{JobState, Observed, Step, Work};
use crate::resource::{DatabaseStatus, GROUP, KIND, PLURAL, SampleDb, VERSION};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt};
use rand::distr::{Alphanumeric, SampleString};
use serde_json::{Value, json};
use std::fmt::Debug;
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

/// Names what was being done.
fn doing(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Failure {
    let doing = what.into();
    move |source| Failure::Api { doing, source }
}

impl Operator {
    pub(crate) fn new(client: Client, images: String, retry: Duration) -> Self {
        let recorder = Recorder::new(client.clone(), Reporter::from(MANAGER));
        Self { client, images, retry, recorder }
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

/// What the jobs of a database came to.
struct Jobs {
    init: JobState,
    upgrade: JobState,
    last: JobState,
    /// The last backup by the clock: when it ended, and what went wrong.
    backup: Option<(Time, Option<String>)>,
}

impl Look<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.operator.client.clone(), &self.namespace)
    }

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
        let taken = status.condition("FinalBackup").is_some_and(|c| c.reason == "Taken");
        let version = status.version.unwrap_or_default();
        let seen = Observed {
            deleted: self.deleted(),
            keep_last: self.database.spec.deletion_snapshot,
            wanted: self.database.spec.version,
            present: status.version,
            stopped,
            init: jobs.init.clone(),
            upgrade: jobs.upgrade.clone(),
            last: if taken { JobState::Complete { version } } else { jobs.last.clone() },
        };
        let step = seen.next();
        tracing::debug!(name = self.objects.name(), ?step, "next");
        self.take(&step, &jobs, ready).await
    }

    /// Does a step and writes the status that goes with it; the status first where it says what was begun.
    async fn take(&self, step: &Step, jobs: &Jobs, ready: bool) -> Outcome<Action> {
        let mut status = self.database.status.clone();
        self.note_backup(&mut status, jobs).await?;
        let again = match step {
            Step::Serve(version) => {
                self.serve(*version).await?;
                self.serving(&mut status, ready);
                self.set_condition(&mut status, "UpToDate", true, "Current", "");
                LOOK
            }
            Step::ServeAfter { version, failure } => {
                self.serve(*version).await?;
                self.serving(&mut status, ready);
                let job = self.objects.job_name(Work::Upgrade, self.database.spec.version);
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
            Step::Failed { work: Work::Last, message } => {
                self.set_condition(&mut status, "FinalBackup", false, "Failed", message);
                self.write(&status).await?;
                self.try_last_again().await?;
                SOON
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
        self.create::<Secret>(self.objects.secret(&password)).await?;
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
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let found = claims.get_opt(&name).await.map_err(doing(format!("read claim {name}")))?;
        let Some(found) = found else {
            return self.create::<PersistentVolumeClaim>(wanted).await;
        };
        let requests = found.spec.and_then(|s| s.resources).and_then(|r| r.requests).unwrap_or_default();
        let size = &self.database.spec.storage.size;
        if requests.get("storage").map(|q| &q.0) != Some(size) && found.status.and_then(|s| s.phase).as_deref() == Some("Bound") {
            let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
            let patched = claims.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
            patched.map_err(doing(format!("grow claim {name}")))?;
        }
        Ok(())
    }

    async fn serve(&self, version: u32) -> Outcome<()> {
        self.apply::<StatefulSet>(self.objects.stateful_set(version, 1)).await?;
        self.apply::<CronJob>(self.objects.cron_job(version, false)).await
    }

    async fn stop(&self) -> Outcome<()> {
        let version = self.database.status.version.unwrap_or_default();
        self.apply::<CronJob>(self.objects.cron_job(version, true)).await?;
        self.apply::<StatefulSet>(self.objects.stateful_set(version, 0)).await
    }

    fn serving(&self, status: &mut DatabaseStatus, ready: bool) {
        let (phase, reason) = if ready { ("Running", "Serving") } else { ("Starting", "Starting") };
        status.phase = Some(phase.to_owned());
        self.set_condition(status, "Ready", ready, reason, "");
    }

    /// The status while something has the data for itself.
    fn begun(&self, status: &mut DatabaseStatus, work: Work) {
        let phase = match work {
            Work::Init => "Initialising",
            Work::Upgrade => "Upgrading",
            Work::Last => "Terminating",
        };
        status.phase = Some(phase.to_owned());
        self.set_condition(status, "Ready", false, phase, "");
        match work {
            Work::Init => {}
            Work::Upgrade => self.set_condition(status, "UpToDate", false, "Upgrading", ""),
            // a failure stands until the backup is taken
            Work::Last if status.condition("FinalBackup").is_none() => {
                self.set_condition(status, "FinalBackup", false, "Running", "");
            }
            Work::Last => {}
        }
    }

    /// Deletes the job of a last backup that has failed long enough ago.
    async fn try_last_again(&self) -> Outcome<()> {
        let name = self.objects.job_name(Work::Last, 0);
        let Some(job) = self.api::<Job>().get_opt(&name).await.map_err(doing(format!("read job {name}")))? else {
            return Ok(());
        };
        let conditions = job.status.and_then(|s| s.conditions).unwrap_or_default();
        let failed = conditions.iter().find(|c| c.type_ == "Failed").and_then(|c| c.last_transition_time.clone());
        let since = failed.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let retry = i64::try_from(self.operator.retry.as_secs()).unwrap_or(i64::MAX);
        if Timestamp::now().duration_since(since).as_secs() >= retry {
            self.delete::<Job>(&name).await?;
        }
        Ok(())
    }

    /// Lets everything go that has no owner. That the data are saved is written before the first of it goes.
    async fn release(&self, mut status: DatabaseStatus) -> Outcome<Action> {
        if self.database.spec.deletion_snapshot && status.version.is_some() {
            self.set_condition(&mut status, "FinalBackup", true, "Taken", "");
        }
        status.phase = Some("Terminating".to_owned());
        self.write(&status).await?;
        let name = self.objects.name();
        self.delete::<CronJob>(&self.objects.backup_claim()).await?;
        self.delete::<StatefulSet>(&name).await?;
        // Pods that have ended use their claims as well.
        let jobs = self.list::<Job>(&self.objects.selector()).await?;
        for job in jobs.iter().filter(|job| self.owns(job.owner_references())) {
            self.delete::<Job>(&job.name_any()).await?;
        }
        let claim = self.objects.data_claim();
        self.delete::<PersistentVolumeClaim>(&claim).await?;
        let left = self.api::<PersistentVolumeClaim>().get_opt(&claim).await;
        if left.map_err(doing(format!("read claim {claim}")))?.is_some() {
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
        let patched = self.api::<SampleDb>().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match patched {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if !held && status.code == 404 => Ok(()),
            Err(error) => Err(doing("write the finalizer")(error)),
        }
    }

    /// Whether no pod of the stateful set is there or will be, and whether its pod is ready.
    async fn set(&self) -> Outcome<(bool, bool)> {
        let name = self.objects.name();
        let set = self.api::<StatefulSet>().get_opt(&name).await.map_err(doing(format!("read stateful set {name}")))?;
        let Some(set) = set else {
            return Ok((true, false));
        };
        let generation = set.metadata.generation;
        let wanted = set.spec.and_then(|s| s.replicas);
        let status = set.status.unwrap_or_default();
        let seen = status.observed_generation == generation;
        let updated = status.current_revision == status.update_revision;
        let stopped = wanted == Some(0) && seen && status.replicas == 0;
        Ok((stopped, seen && updated && status.ready_replicas == Some(1)))
    }

    async fn jobs(&self) -> Outcome<Jobs> {
        let mut found = Jobs { init: JobState::Absent, upgrade: JobState::Absent, last: JobState::Absent, backup: None };
        let upgrade = self.objects.job_name(Work::Upgrade, self.database.spec.version);
        for job in self.list::<Job>(&self.objects.selector()).await? {
            let work = job.labels().get(&work_label()).map(String::as_str);
            let own = self.owns(job.owner_references());
            match work {
                Some("init") if own => found.init = self.job_state(&job).await?,
                // one to another version that still runs has the data as well
                Some("upgrade") if own => {
                    let state = self.job_state(&job).await?;
                    if job.name_any() == upgrade || state == JobState::Running {
                        found.upgrade = state;
                    }
                }
                Some("last") if own => found.last = self.job_state(&job).await?,
                Some("backup") => self.note_job(&job, &mut found).await?,
                _ => {}
            }
        }
        Ok(found)
    }

    async fn note_job(&self, job: &Job, found: &mut Jobs) -> Outcome<()> {
        let Some(ended) = end_of(job) else {
            return Ok(());
        };
        if found.backup.as_ref().is_none_or(|(before, _)| before.0 < ended.0) {
            let failure = match self.job_state(job).await? {
                JobState::Failed(message) => Some(message),
                _ => None,
            };
            found.backup = Some((ended, failure));
        }
        Ok(())
    }

    async fn note_backup(&self, status: &mut DatabaseStatus, jobs: &Jobs) -> Outcome<()> {
        match &jobs.backup {
            Some((_, Some(failure))) => self.set_condition(status, "BackedUp", false, "Failed", failure),
            Some((ended, None)) => {
                status.last_backup = Some(ended.clone());
                self.set_condition(status, "BackedUp", true, "Taken", "");
            }
            None => {}
        }
        Ok(())
    }

    /// Jobs of an earlier database of the name are none of this one.
    fn owns(&self, owners: &[OwnerReference]) -> bool {
        let uid = self.database.uid();
        owners.iter().any(|owner| Some(&owner.uid) == uid.as_ref())
    }

    async fn job_state(&self, job: &Job) -> Outcome<JobState> {
        let has = |kind: &str| {
            let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == kind && c.status == "True"))
        };
        if has("Complete") {
            let version = job.labels().get(&version_label()).and_then(|v| v.parse().ok());
            return Ok(JobState::Complete { version: version.unwrap_or_default() });
        }
        if !has("Failed") {
            return Ok(JobState::Running);
        }
        Ok(JobState::Failed(self.last_words(&job.name_any()).await?))
    }

    /// What the last pod of a job said.
    async fn last_words(&self, job: &str) -> Outcome<String> {
        let mut pods = self.list::<Pod>(&format!("batch.kubernetes.io/job-name={job}")).await?;
        pods.sort_by_key(|pod| pod.creation_timestamp().map(|time| time.0));
        let ends = pods.iter().rev().filter_map(|pod| {
            let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
            container.state.as_ref()?.terminated.as_ref()?.message.clone()
        });
        let words = ends.filter(|words| !words.is_empty()).map(|words| words.trim().to_owned()).next();
        Ok(words.unwrap_or_else(|| format!("job {job} has failed")))
    }

    async fn list<K>(&self, labels: &str) -> Outcome<Vec<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + serde::de::DeserializeOwned + Clone + Debug,
    {
        let params = ListParams::default().labels(labels);
        let listed = self.api::<K>().list(&params).await;
        Ok(listed.map_err(doing(format!("list {}", K::plural(&()))))?.items)
    }

    /// Makes an object unless it is there.
    async fn create<K>(&self, body: Value) -> Outcome<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + serde::de::DeserializeOwned + serde::Serialize + Clone + Debug,
    {
        let object: K = serde_json::from_value(body)?;
        match self.api::<K>().create(&PostParams::default(), &object).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            Err(error) => Err(doing(format!("make {} {}", K::kind(&()), object.name_any()))(error)),
        }
    }

    /// Makes an object what it is to be; what others have put there beside stays.
    async fn apply<K>(&self, mut body: Value) -> Outcome<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + serde::de::DeserializeOwned + Clone + Debug,
    {
        body["apiVersion"] = json!(K::api_version(&()));
        body["kind"] = json!(K::kind(&()));
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let params = PatchParams::apply(MANAGER).force();
        let applied = self.api::<K>().patch(&name, &params, &Patch::Apply(&body)).await;
        applied.map_err(doing(format!("apply {} {name}", K::kind(&()))))?;
        Ok(())
    }

    async fn delete<K>(&self, name: &str) -> Outcome<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + serde::de::DeserializeOwned + Clone + Debug,
    {
        match self.api::<K>().delete(name, &DeleteParams::background()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(doing(format!("delete {} {name}", K::kind(&())))(error)),
        }
    }

    fn set_condition(&self, status: &mut DatabaseStatus, kind: &str, is: bool, reason: &str, message: &str) {
        let text = if is { "True" } else { "False" };
        let since = status.condition(kind).filter(|c| c.status == text).map(|c| c.last_transition_time.clone());
        let condition = Condition {
            type_: kind.to_owned(),
            status: text.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: self.database.metadata.generation,
            last_transition_time: since.unwrap_or_else(|| Time(Timestamp::now())),
        };
        status.conditions.retain(|c| c.type_ != kind);
        status.conditions.push(condition);
        status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    }

    /// Writes the status where it has changed, and an event for each condition that has.
    async fn write(&self, status: &DatabaseStatus) -> Outcome<()> {
        let mut status = status.clone();
        status.observed_generation = self.database.metadata.generation;
        if status == self.database.status {
            return Ok(());
        }
        let name = self.objects.name();
        let body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND, "metadata": {"name": name}, "status": status});
        let params = PatchParams::apply(MANAGER).force();
        let written = self.api::<SampleDb>().patch_status(&name, &params, &Patch::Apply(body)).await;
        written.map_err(doing(format!("write the status of {PLURAL} {name}")))?;
        for condition in &status.conditions {
            let before = self.database.status.condition(&condition.type_);
            if before.is_none_or(|b| (&b.reason, &b.message) != (&condition.reason, &condition.message)) {
                self.tell(condition).await;
            }
        }
        Ok(())
    }

    async fn tell(&self, condition: &Condition) {
        let failed = condition.reason.ends_with("Failed");
        let event = Event {
            type_: if failed { EventType::Warning } else { EventType::Normal },
            reason: format!("{}{}", condition.type_, condition.reason),
            note: Some(condition.message.clone()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.operator.recorder.publish(&event, &self.database.object_ref(&())).await {
            tracing::warn!(%error, "event not written");
        }
    }

    /// What the API server refused stands on the database, until a look comes to its end.
    async fn tell_failure(&self, failure: &Failure) -> Outcome<()> {
        if matches!(failure, Failure::Api { source: kube::Error::Api(status), .. } if status.code == 409) {
            return Ok(()); // somebody else was faster: the next look sees what they did
        }
        let mut status = self.database.status.clone();
        let kind = if self.deleted() { "FinalBackup" } else { "Ready" };
        self.set_condition(&mut status, kind, false, "Failed", &failure.to_string());
        self.write(&status).await
    }
}

fn end_of(job: &Job) -> Option<Time> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ended = conditions.iter().find(|c| c.status == "True" && (c.type_ == "Complete" || c.type_ == "Failed"))?;
    ended.last_transition_time.clone()
}
