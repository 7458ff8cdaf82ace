//! The operator that every introduction describes: databases as a kind of their own.
//!
//! For each SampleDB there is a claim for its storage, a stateful set that runs it, a job that sets it up, a schedule of
//! backups and a config map that says how to reach it. A new version comes by a job; one that is deleted is
//! snapshotted first.

use crate::harness::{Cluster, eventually, kubectl, kubectl_binary, kubectl_stdin, output};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const GROUP: &str = "databases.example.com";
const MANAGER: &str = "sampledb-operator";

fn databases() -> ApiResource {
    let kind = GroupVersionKind::gvk(GROUP, "v1", "SampleDB");
    ApiResource::from_gvk_with_plural(&kind, "sampledbs")
}

fn definition() -> Value {
    let text = json!({"type": "string"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("sampledbs.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": "sampledbs", "singular": "sampledb", "kind": "SampleDB", "shortNames": ["sdb"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                    "spec": {"type": "object", "required": ["version"], "properties": {
                        "version": {"type": "string", "pattern": "^[0-9]+\\.[0-9]+$"},
                        "storage": {"type": "string", "default": "1Gi"},
                        "backups": {"type": "string", "default": "0 3 * * *"},
                    }, "x-kubernetes-validations": [{
                        "rule": "!has(oldSelf.storage) || self.storage == oldSelf.storage",
                        "message": "storage cannot be changed",
                    }]},
                    "status": {"type": "object", "properties": {"phase": text, "version": text}},
                }}},
                "additionalPrinterColumns": [
                    {"name": "Version", "type": "string", "jsonPath": ".status.version"},
                    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                ],
            }],
        },
    })
}

#[derive(Debug)]
enum Failure {
    Api(kube::Error),
    /// A job has not finished.
    Waits(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Api(error) => error.fmt(f),
            Self::Waits(job) => write!(f, "job {job} is not complete"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

/// One database and what belongs to it.
struct Database<'a> {
    client: &'a Client,
    object: &'a DynamicObject,
}

impl Database<'_> {
    fn name(&self) -> String {
        self.object.name_any()
    }

    fn text(&self, part: &str, key: &str) -> String {
        let value = self.object.data[part][key].as_str();
        value.unwrap_or_default().to_owned()
    }

    /// Applies an object that goes with the database, or outlives it.
    async fn apply<K>(&self, name: &str, mut body: Value, owned: bool) -> Result<(), Failure>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + k8s_openapi::Resource
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
        <K as Resource>::DynamicType: Default,
    {
        body["apiVersion"] = json!(<K as k8s_openapi::Resource>::API_VERSION);
        body["kind"] = json!(<K as k8s_openapi::Resource>::KIND);
        body["metadata"] = json!({"name": name, "labels": {"sampledb": self.name()}});
        if owned {
            let owner = self.object.controller_owner_ref(&databases());
            body["metadata"]["ownerReferences"] = json!([owner]);
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), "default");
        let params = PatchParams::apply(MANAGER).force();
        api.patch(name, &params, &Patch::Apply(body)).await?;
        Ok(())
    }

    /// Runs a job to its end.
    async fn job(&self, what: &str, owned: bool) -> Result<(), Failure> {
        let name = format!("{}-{what}", self.name());
        let container =
            json!({"name": "work", "image": "example.test/sampledb-tools:1", "args": [what]});
        let body = json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}});
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), "default");
        let Some(job) = jobs.get_opt(&name).await? else {
            self.apply::<Job>(&name, body, owned).await?;
            return Err(Failure::Waits(name));
        };
        let conditions = job.status.and_then(|s| s.conditions).unwrap_or_default();
        let complete = conditions
            .iter()
            .any(|c| c.type_ == "Complete" && c.status == "True");
        complete.then_some(()).ok_or(Failure::Waits(name))
    }

    async fn status(&self, phase: &str, version: &str) -> Result<(), Failure> {
        let all: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), "default", &databases());
        let status = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "SampleDB",
            "status": {"phase": phase, "version": version}});
        let params = PatchParams::apply(MANAGER).force();
        all.patch_status(&self.name(), &params, &Patch::Apply(status))
            .await?;
        Ok(())
    }

    /// The stateful set that runs `version`.
    async fn run(&self, version: &str) -> Result<(), Failure> {
        let name = self.name();
        let labels = json!({"sampledb": name});
        let claim = json!({"claimName": format!("{name}-data")});
        let container = json!({"name": "db", "image": format!("example.test/sampledb:{version}"),
            "envFrom": [{"configMapRef": {"name": format!("{name}-access")}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        let body = json!({"spec": {"replicas": 1, "serviceName": name, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container],
                "volumes": [{"name": "data", "persistentVolumeClaim": claim}]}}}});
        self.apply::<StatefulSet>(&name, body, true).await
    }

    async fn bring_up(&self) -> Result<(), Failure> {
        let name = self.name();
        let storage = json!({"requests": {"storage": self.text("spec", "storage")}});
        let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": storage}});
        self.apply::<PersistentVolumeClaim>(&format!("{name}-data"), claim, true)
            .await?;
        let access = json!({"data": {"HOST": format!("{name}.default.svc"), "USER": "admin"}});
        self.apply::<ConfigMap>(&format!("{name}-access"), access, true)
            .await?;
        let (runs, wanted) = (self.text("status", "version"), self.text("spec", "version"));
        if runs.is_empty() {
            self.status("Creating", "").await?;
            self.run(&wanted).await?;
            self.job("init", true).await?;
        } else if runs != wanted {
            self.status("Upgrading", &runs).await?;
            let upgrade = format!("upgrade-{}", wanted.replace('.', "-"));
            self.job(&upgrade, true).await?;
            self.run(&wanted).await?;
        }
        let container = json!({"name": "backup", "image": "example.test/sampledb-tools:1",
            "envFrom": [{"configMapRef": {"name": format!("{name}-access")}}]});
        let backups = json!({"spec": {"schedule": self.text("spec", "backups"), "jobTemplate": {"spec": {"template":
            {"spec": {"restartPolicy": "Never", "containers": [container]}}}}}});
        self.apply::<CronJob>(&format!("{name}-backup"), backups, true)
            .await?;
        self.status("Running", &wanted).await
    }
}

async fn reconcile(
    object: Arc<DynamicObject>,
    client: Arc<Client>,
) -> Result<Action, kube::runtime::finalizer::Error<Failure>> {
    let all: Api<DynamicObject> = Api::namespaced_with((*client).clone(), "default", &databases());
    let name = format!("{GROUP}/snapshot");
    let (client, now) = (&client, &all);
    finalizer(&all, &name, object, |event| async move {
        // As it is now: the one that is kept here may be from before the last status was written.
        let (Event::Apply(object) | Event::Cleanup(object)) = &event;
        let object = &now.get(&object.name_any()).await?;
        let database = Database { client, object };
        match &event {
            Event::Apply(_) => database.bring_up().await?,
            // The finalizer goes when the snapshot is there; what belongs to the database follows it.
            Event::Cleanup(_) => database.job("snapshot", false).await?,
        }
        Ok(Action::await_change())
    })
    .await
}

/// Runs the operator until the task is aborted.
fn operate(client: &Client) -> tokio::task::JoinHandle<()> {
    let all: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &databases());
    let jobs: Api<Job> = Api::namespaced(client.clone(), "default");
    let controller = Controller::new_with(all, watcher::Config::default(), databases())
        .owns(jobs, watcher::Config::default())
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_millis(200)),
            Arc::new(client.clone()),
        )
        .for_each(|_| async {});
    tokio::spawn(controller)
}

/// Lets the pod of a job succeed, as a node would.
fn finish(cluster: &Cluster, k: &Path, job: &str) {
    let selector = format!("job-name={job}");
    let pods = || kubectl(cluster, k, ["get", "pods", "-l", &selector, "-o", "name"]);
    eventually("the pod of the job", SOON, || !pods().is_empty());
    let status = r#"{"status":{"phase":"Succeeded"}}"#;
    let pod = pods();
    let patch = ["patch", pod.trim(), "--subresource=status", "-p", status];
    kubectl(cluster, k, patch);
    let wait = ["wait", "--for=condition=Complete", "--timeout=60s"];
    kubectl(
        cluster,
        k,
        wait.into_iter().chain([format!("job/{job}").as_str()]),
    );
}

const EXAMPLE: &str = r#"
apiVersion: databases.example.com/v1
kind: SampleDB
metadata: {name: example-database}
spec: {version: "1.0"}
"#;

fn scenario(cluster: &Cluster, k: &Path) {
    let field = |object: &str, path: &str| {
        let path = format!("jsonpath={{{path}}}");
        kubectl(cluster, k, ["get", object, "-o", &path])
    };
    kubectl_stdin(cluster, k, &["create", "-f", "-"], EXAMPLE);
    finish(cluster, k, "example-database-init");
    let phase = |wanted: &str| {
        eventually(wanted, SOON, || {
            field("SampleDB/example-database", ".status.phase") == wanted
        });
    };
    phase("Running");
    assert_eq!(
        kubectl(cluster, k, ["get", "SampleDB"]),
        "NAME               VERSION   PHASE\nexample-database   1.0       Running\n"
    );
    assert_eq!(
        field(
            "pvc/example-database-data",
            ".spec.resources.requests.storage"
        ),
        "1Gi"
    );
    assert_eq!(
        field("cronjob/example-database-backup", ".spec.schedule"),
        "0 3 * * *"
    );
    let image = ".spec.template.spec.containers[0].image";
    assert_eq!(
        field("sts/example-database", image),
        "example.test/sampledb:1.0"
    );
    let described = kubectl(cluster, k, ["describe", "sampledb", "example-database"]);
    assert!(described.contains("Phase:    Running"), "{described}");

    // A new version, in an editor.
    let edit = ["edit", "SampleDB/example-database"];
    let edited = output(cluster.kubectl(k).args(edit).env(
        "KUBE_EDITOR",
        r#"sed -i '/^spec:/,/^status:/s/version: "1.0"/version: "2.0"/'"#,
    ));
    assert!(edited.status.success(), "{edited:?}");
    finish(cluster, k, "example-database-upgrade-2-0");
    eventually("the new version", SOON, || {
        field("sdb/example-database", ".status.version") == "2.0"
    });
    assert_eq!(
        field("sts/example-database", image),
        "example.test/sampledb:2.0"
    );
    let patch = r#"{"spec":{"storage":"2Gi"}}"#;
    let merge = [
        "patch",
        "sdb",
        "example-database",
        "--type=merge",
        "-p",
        patch,
    ];
    let refused = output(cluster.kubectl(k).args(merge));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("storage cannot be changed"), "{text}");

    // What it owns comes back.
    kubectl(cluster, k, ["delete", "cronjob", "example-database-backup"]);
    kubectl(
        cluster,
        k,
        ["annotate", "sdb", "example-database", "look=again"],
    );
    eventually("the backups are back", SOON, || {
        let found = output(
            cluster
                .kubectl(k)
                .args(["get", "cronjob", "example-database-backup"]),
        );
        found.status.success()
    });

    // Deleted, it is snapshotted first.
    kubectl(
        cluster,
        k,
        ["delete", "SampleDB/example-database", "--wait=false"],
    );
    let since = field("sdb/example-database", ".metadata.deletionTimestamp");
    assert!(!since.is_empty(), "the finalizer holds it");
    kubectl(cluster, k, ["get", "sts", "example-database"]);
    finish(cluster, k, "example-database-snapshot");
    let gone = [
        "wait",
        "--for=delete",
        "sdb/example-database",
        "--timeout=60s",
    ];
    let _gone_already = output(cluster.kubectl(k).args(gone));
    eventually("what belonged to it is collected", SOON, || {
        let kinds = "sampledbs,sts,pvc,cronjobs";
        kubectl(
            cluster,
            k,
            [
                "get",
                kinds,
                "-l",
                "sampledb=example-database",
                "-o",
                "name",
            ],
        )
        .is_empty()
    });
    let left = kubectl(cluster, k, ["get", "jobs", "-o", "name"]);
    assert_eq!(left, "job.batch/example-database-snapshot\n");
}

#[test]
fn the_sample_database_of_the_documentation() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    for release in ["1.27", "1.36"] {
        let Some(binary) = kubectl_binary(release) else {
            continue;
        };
        println!("kubectl {release}");
        let cluster = Cluster::up(&["--no-node"]);
        let _typed: CustomResourceDefinition = serde_json::from_value(definition()).unwrap();
        kubectl_stdin(
            &cluster,
            &binary,
            &["create", "-f", "-"],
            &definition().to_string(),
        );
        let name = format!("crd/sampledbs.{GROUP}");
        kubectl(
            &cluster,
            &binary,
            [
                "wait",
                "--for=condition=Established",
                &name,
                "--timeout=10s",
            ],
        );
        let client = runtime
            .block_on(davit_client::from_kubeconfig(&cluster.kubeconfig))
            .unwrap();
        let operator = {
            let _entered = runtime.enter();
            operate(&client)
        };
        scenario(&cluster, &binary);
        operator.abort();
    }
}
