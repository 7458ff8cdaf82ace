//! What is made for a database: the objects as they are wanted, from the database alone.

use crate::engine::{DATA, Engine};
use crate::plan::Work;
use crate::resource::{GROUP, SampleDb};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

/// Who the programs in the images run as; postgres refuses to be root.
const USER: u32 = 10001;
/// Where the claim with the backups is mounted.
pub(crate) const BACKUPS: &str = "/backup";

/// The objects of one database.
pub(crate) struct Objects<'a> {
    database: &'a SampleDb,
    /// What the images of engines are called: `IMAGES-ENGINE:VERSION`.
    images: &'a str,
}

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Upgrade => "upgrade",
            Self::Last => "last",
        }
    }
}

/// Label of jobs with what they do.
pub(crate) fn work_label() -> String {
    format!("{GROUP}/work")
}

/// Label of jobs with the version that the data have afterwards.
pub(crate) fn version_label() -> String {
    format!("{GROUP}/version")
}

impl<'a> Objects<'a> {
    pub(crate) fn new(database: &'a SampleDb, images: &'a str) -> Self {
        Self { database, images }
    }

    fn engine(&self) -> Engine {
        self.database.spec.engine
    }

    pub(crate) fn name(&self) -> String {
        self.database.name_any()
    }

    /// Name of the claim with the data, as the stateful set would call it.
    pub(crate) fn data_claim(&self) -> String {
        format!("data-{}-0", self.name())
    }

    pub(crate) fn backup_claim(&self) -> String {
        format!("{}-backup", self.name())
    }

    /// Name of the Service that clients use.
    pub(crate) fn client_service(&self) -> String {
        format!("{}-client", self.name())
    }

    pub(crate) fn job_name(&self, work: Work, version: u32) -> String {
        let name = self.name();
        match work {
            Work::Init | Work::Last => format!("{name}-{}", work.name()),
            Work::Upgrade => format!("{name}-upgrade-{version}"),
        }
    }

    fn image(&self, version: u32) -> String {
        format!("{}-{}:{version}", self.images, self.engine())
    }

    pub(crate) fn labels(&self) -> Value {
        json!({"app.kubernetes.io/name": "sampledb", "app.kubernetes.io/instance": self.name()})
    }

    /// Selects every job of the database.
    pub(crate) fn selector(&self) -> String {
        format!(
            "app.kubernetes.io/name=sampledb,app.kubernetes.io/instance={}",
            self.name()
        )
    }

    fn pod_labels(&self) -> Value {
        let mut labels = self.labels();
        labels["app.kubernetes.io/component"] = json!("database");
        labels
    }

    /// Metadata of what goes with the database.
    fn owned(&self, name: &str) -> Value {
        json!({"name": name, "labels": self.labels(), "ownerReferences": [self.database.controller_owner_ref(&())]})
    }

    pub(crate) fn secret(&self, password: &str) -> Value {
        json!({"metadata": self.owned(&self.name()), "stringData": {"SAMPLEDB_PASSWORD": password}})
    }

    pub(crate) fn config_map(&self) -> Value {
        let namespace = self.database.namespace().unwrap_or_default();
        json!({"metadata": self.owned(&self.name()), "data": {
            "SAMPLEDB_ENGINE": self.engine().to_string(),
            "SAMPLEDB_HOST": format!("{}.{namespace}.svc", self.client_service()),
            "SAMPLEDB_PORT": self.engine().port().to_string(),
            "SAMPLEDB_KEEP": self.database.spec.backup.keep.to_string(),
        }})
    }

    /// The headless Service that the stateful set needs, and the one for clients.
    pub(crate) fn services(&self) -> [Value; 2] {
        let port =
            json!([{"name": "database", "port": self.engine().port(), "targetPort": "database"}]);
        [
            json!({"metadata": self.owned(&self.name()),
                "spec": {"clusterIP": "None", "selector": self.pod_labels(), "ports": port, "publishNotReadyAddresses": true}}),
            json!({"metadata": self.owned(&self.client_service()),
                "spec": {"selector": self.pod_labels(), "ports": port}}),
        ]
    }

    fn claim_spec(&self) -> Value {
        let storage = &self.database.spec.storage;
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage.size}}});
        if let Some(class) = &storage.class {
            spec["storageClassName"] = json!(class);
        }
        spec
    }

    /// The claims have no owner: nothing but the operator lets data go, and backups stay when the database is gone.
    pub(crate) fn claims(&self) -> [Value; 2] {
        [self.data_claim(), self.backup_claim()]
            .map(|name| json!({"metadata": {"name": name, "labels": self.labels()}, "spec": self.claim_spec()}))
    }

    pub(crate) fn stateful_set(&self, version: u32, replicas: u32) -> Value {
        let mut pod = self.pod(version, &["serve"]);
        if let Some(volumes) = pod["volumes"].as_array_mut() {
            volumes.retain(|volume| volume["name"] != "data");
        }
        let container = &mut pod["containers"][0];
        container["name"] = json!("database");
        container["ports"] = json!([{"name": "database", "containerPort": self.engine().port()}]);
        container["readinessProbe"] = json!({"exec": {"command": ["sampledb", "work", "ready"]}, "periodSeconds": 2,
            "timeoutSeconds": 5, "failureThreshold": 3});
        // a container that is killed is started again by the set, not by the kubelet's rule for jobs
        pod["restartPolicy"] = json!("Always");
        pod["terminationGracePeriodSeconds"] = json!(20);
        json!({"metadata": self.owned(&self.name()), "spec": {
            "replicas": replicas, "serviceName": self.name(), "selector": {"matchLabels": self.pod_labels()},
            // the claim is there before the set is, and goes after the last backup
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "template": {"metadata": {"labels": self.pod_labels(),
                "annotations": {version_label(): version.to_string()}}, "spec": pod},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": self.claim_template()}],
        }})
    }

    /// Templates cannot be changed: what grows is the claim.
    fn claim_template(&self) -> Value {
        let mut spec = self.claim_spec();
        spec["resources"]["requests"]["storage"] = json!("1Mi");
        spec
    }

    pub(crate) fn job(&self, work: Work, version: u32) -> Value {
        let mut pod = match work {
            Work::Last => self.pod(version, &["backup", "--last"]),
            work => self.pod(version, &[work.name()]),
        };
        self.mount_backups(&mut pod, work);
        let name = self.job_name(work, version);
        let mut metadata = self.owned(&name);
        metadata["labels"][work_label()] = json!(work.name());
        metadata["labels"][version_label()] = json!(version.to_string());
        let labels = metadata["labels"].clone();
        json!({"metadata": metadata, "spec": {
            "backoffLimit": 3, "activeDeadlineSeconds": 3600,
            // what the program refused it refuses again; one that was killed goes on
            "podFailurePolicy": {"rules": [{"action": "FailJob",
                "onExitCodes": {"containerName": "work", "operator": "In", "values": [1]}}]},
            "template": {"metadata": {"labels": labels}, "spec": pod}}})
    }

    /// The backups, where the work needs them.
    fn mount_backups(&self, pod: &mut Value, work: Work) {
        let (claim, read_only) = match (work, &self.database.spec.restore_from) {
            (Work::Last, _) => (self.backup_claim(), false),
            (Work::Init, Some(from)) => (from.claim.clone(), true),
            _ => return,
        };
        let container = &mut pod["containers"][0];
        if work == Work::Init {
            let newest = || "newest".to_owned();
            let from = self.database.spec.restore_from.as_ref();
            let file = from
                .and_then(|from| from.file.clone())
                .unwrap_or_else(newest);
            push(&mut container["args"], json!("--restore"));
            push(&mut container["args"], json!(file));
        }
        push(
            &mut container["volumeMounts"],
            json!({"name": "backup", "mountPath": BACKUPS, "readOnly": read_only}),
        );
        push(
            &mut pod["volumes"],
            json!({"name": "backup", "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}),
        );
    }

    /// Backups by the clock, while the database is up: they are taken through its Service.
    pub(crate) fn cron_job(&self, version: u32, suspended: bool) -> Value {
        let mut pod = self.pod(version, &["backup"]);
        let volumes = json!([{"name": "tmp", "emptyDir": {}},
            {"name": "backup", "persistentVolumeClaim": {"claimName": self.backup_claim()}}]);
        pod["volumes"] = volumes;
        pod["containers"][0]["volumeMounts"] =
            json!([{"name": "tmp", "mountPath": "/tmp"}, {"name": "backup", "mountPath": BACKUPS}]);
        let mut labels = self.labels();
        labels[work_label()] = json!("backup");
        json!({"metadata": self.owned(&self.backup_claim()), "spec": {
            "schedule": self.database.spec.backup.schedule, "concurrencyPolicy": "Forbid", "suspend": suspended,
            "startingDeadlineSeconds": 300, "successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 2,
            "jobTemplate": {"metadata": {"labels": labels}, "spec": {
                "backoffLimit": 1, "activeDeadlineSeconds": 3600,
                "template": {"metadata": {"labels": labels}, "spec": pod}}}}})
    }

    /// A pod with the data whose one container runs the image's program.
    fn pod(&self, version: u32, args: &[&str]) -> Value {
        let name = self.name();
        json!({
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            // OnRootMismatch: postgres refuses data that its group may write, so that its directory is left as it is
            "securityContext": {"runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "tmp", "emptyDir": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": self.data_claim()}}],
            "containers": [{
                "name": "work", "image": self.image(version), "command": ["sampledb", "work"], "args": args,
                "envFrom": [{"configMapRef": {"name": name}}, {"secretRef": {"name": name}}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "data", "mountPath": DATA}],
                // what a failed job said last is told on the database
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]}},
            }],
        })
    }
}

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}
