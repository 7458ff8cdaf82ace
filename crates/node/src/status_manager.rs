//! Writes pod statuses to the API: only on change, in order, and deletes pods whose containers have ended.
//!
//! Each status carries a version of its own. A queue that never runs one pod twice at a time and reads the newest
//! version when it runs makes it impossible that an older status overwrites a newer one.

use crate::podsapi::PodChanges;
use crate::resize::{IN_PROGRESS, PENDING};
use davit_client::WorkQueue;
use davit_pods::pod::PodExt;
use davit_task::guard_async;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long one write may take.
const DEADLINE: Duration = Duration::from_secs(15);
/// Writers beside one another.
const WRITERS: usize = 4;

struct Entry {
    pod: Arc<Pod>,
    /// UID of the API object, another than the pod's for static pods.
    api_uid: Option<String>,
    status: PodStatus,
    version: u64,
    written: u64,
    last_written: Option<PodStatus>,
    /// All containers have ended and nothing is held: the API object may be deleted.
    finished: bool,
}

struct Inner {
    client: kube::Client,
    entries: Mutex<HashMap<String, Entry>>,
    queue: WorkQueue<String>,
    changes: PodChanges,
}

/// Keeps the newest status of each pod and brings it to the API.
#[derive(Clone)]
pub(crate) struct StatusManager {
    inner: Arc<Inner>,
}

impl StatusManager {
    /// Starts the writers; `changes` hears of every new status.
    pub(crate) fn spawn(
        client: kube::Client,
        changes: PodChanges,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) -> Self {
        let queue = WorkQueue::new(Duration::from_millis(200), Duration::from_secs(10));
        let inner = Arc::new(Inner {
            client,
            entries: Mutex::default(),
            queue,
            changes,
        });
        for _ in 0..WRITERS {
            let inner = inner.clone();
            tasks.spawn(async move {
                while let Some(uid) = inner.queue.get().await {
                    match guard_async("node", "status-writer", &uid, inner.write(&uid)).await {
                        Ok(Ok(())) => inner.queue.forget(&uid),
                        Ok(Err(error)) => {
                            tracing::warn!(pod_uid = %uid, error = davit_client::message_of(&error), "failed to write the pod's status");
                            inner.queue.add_rate_limited(uid.clone());
                        }
                        // a panic, which has been logged
                        Err(_) => inner.queue.add_rate_limited(uid.clone()),
                    }
                    inner.queue.done(&uid);
                }
            });
        }
        let (stopper, cancel) = (inner.clone(), cancel.clone());
        tasks.spawn(async move {
            cancel.cancelled().await;
            stopper.queue.shut_down();
        });
        Self { inner }
    }

    /// Takes over a status that the worker made. Nothing is written when it says the same as the last.
    pub(crate) fn set(&self, pod: &Arc<Pod>, status: PodStatus) {
        let uid = pod.uid().to_owned();
        {
            let mut entries = self.inner.entries.lock();
            let entry = entries.entry(uid.clone()).or_insert_with(|| Entry {
                api_uid: (!pod.is_static()).then(|| uid.clone()),
                pod: pod.clone(),
                status: PodStatus::default(),
                version: 0,
                written: 0,
                last_written: None,
                finished: false,
            });
            entry.pod = pod.clone();
            if entry.version > 0 && entry.status == status {
                return;
            }
            entry.status = status;
            entry.version += 1;
        }
        self.inner.changes.changed(&uid);
        self.inner.queue.add(uid);
    }

    /// The newest status of a pod, which the API may not have yet.
    pub(crate) fn get(&self, uid: &str) -> Option<PodStatus> {
        self.inner.entries.lock().get(uid).map(|e| e.status.clone())
    }

    /// The pod's containers have ended and its resources are free: once the last status is written, a pod that is
    /// being deleted is removed from the API.
    pub(crate) fn finish(&self, uid: &str) {
        if let Some(entry) = self.inner.entries.lock().get_mut(uid) {
            entry.finished = true;
        }
        self.inner.queue.add(uid.to_owned());
    }

    /// Waits until the API has the newest status of every pod.
    pub(crate) async fn flushed(&self) {
        let late = || {
            let entries = self.inner.entries.lock();
            entries.values().any(|e| e.written < e.version)
        };
        while late() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Names the API object that mirrors a static pod; what it says may be of a pod before this one, or of an agent.
    pub(crate) fn set_mirror(&self, uid: &str, mirror: &Pod) {
        let mut entries = self.inner.entries.lock();
        let Some(entry) = entries.get_mut(uid) else {
            return;
        };
        if entry.api_uid == mirror.metadata.uid {
            return;
        }
        entry.api_uid.clone_from(&mirror.metadata.uid);
        entry.written = 0;
        entry.last_written = Some(mirror.pod_status().clone());
        drop(entries);
        self.inner.queue.add(uid.to_owned());
    }

    /// What the API server now has, as the watch tells it: a status that differs from ours is written again.
    pub(crate) fn observed(&self, pod: &Pod) {
        let uid = pod.uid();
        let differs = {
            let mut entries = self.inner.entries.lock();
            let Some(entry) = entries.get_mut(uid) else {
                return;
            };
            if entry.written != entry.version {
                return;
            }
            let differs = diff(pod.pod_status(), &entry.status).is_some();
            if differs {
                entry.last_written = Some(pod.pod_status().clone());
                entry.version += 1;
            }
            differs
        };
        if differs {
            self.inner.queue.add(uid.to_owned());
        }
    }

    /// Forgets a pod.
    pub(crate) fn remove(&self, uid: &str) {
        self.inner.entries.lock().remove(uid);
    }
}

impl Inner {
    async fn write(&self, uid: &str) -> Result<(), kube::Error> {
        let Some((pod, api_uid, status, version, dirty, finished, known)) = ({
            let entries = self.entries.lock();
            entries.get(uid).map(|e| {
                let known = e
                    .last_written
                    .clone()
                    .unwrap_or_else(|| e.pod.pod_status().clone());
                (
                    e.pod.clone(),
                    e.api_uid.clone(),
                    e.status.clone(),
                    e.version,
                    e.version != e.written,
                    e.finished,
                    known,
                )
            })
        }) else {
            return Ok(());
        };
        // A static pod without mirror has no place for its status.
        let Some(api_uid) = api_uid else {
            return Ok(());
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), pod.ns());
        if dirty {
            if let Some(patch) = diff(&known, &status) {
                let body = json!({"metadata": {"uid": api_uid}, "status": patch});
                let (params, body) = (PatchParams::default(), Patch::Strategic(&body));
                let call = api.patch_status(pod.pod_name(), &params, &body);
                match tokio::time::timeout(DEADLINE, call).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) if gone(&error) => {
                        tracing::debug!(pod = %pod.format(), "pod is gone from the API, status dropped");
                    }
                    Ok(Err(error)) => return Err(error),
                    Err(_) => return Err(late()),
                }
            }
            if let Some(entry) = self.entries.lock().get_mut(uid) {
                entry.written = version;
                entry.last_written = Some(status);
            }
        }
        if finished && pod.is_deleting() && !pod.is_static() {
            self.delete(&api, &pod, &api_uid).await?;
        }
        Ok(())
    }

    async fn delete(&self, api: &Api<Pod>, pod: &Pod, uid: &str) -> Result<(), kube::Error> {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match tokio::time::timeout(DEADLINE, api.delete(pod.pod_name(), &params)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if gone(&error) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(late()),
        }
    }
}

fn late() -> kube::Error {
    kube::Error::Service("no answer from the API server in time".into())
}

/// The object is not there any more, or another one has its name.
fn gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}

/// Fields of the status that belong to the node; others are never touched.
const OWNED: &[&str] = &[
    "phase",
    "reason",
    "message",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "qosClass",
    "startTime",
    "observedGeneration",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "allocatedResources",
    "resources",
];

/// Condition types that belong to the node.
const OWNED_CONDITIONS: &[&str] = &[
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "DisruptionTarget",
    PENDING,
    IN_PROGRESS,
];

/// The strategic merge patch that leads from `old` to `new`, `None` when they say the same.
fn diff(old: &PodStatus, new: &PodStatus) -> Option<Value> {
    let (Ok(Value::Object(old)), Ok(Value::Object(new))) =
        (serde_json::to_value(old), serde_json::to_value(new))
    else {
        return None;
    };
    let mut patch = Map::new();
    for name in OWNED {
        match (old.get(*name), new.get(*name)) {
            (a, b) if a == b => {}
            (Some(_), None) => {
                patch.insert((*name).to_owned(), Value::Null);
            }
            (before, Some(b)) => {
                let mut value = b.clone();
                if let (Some(_), Value::Array(list), "podIPs" | "hostIPs") =
                    (before, &mut value, *name)
                {
                    // These lists merge by address; the whole list is meant. Where there is none yet, the directive
                    // would stay as an element.
                    list.push(json!({"$patch": "replace"}));
                }
                if let Some(before) = before {
                    clear_missing(before, &mut value);
                }
                patch.insert((*name).to_owned(), value);
            }
            (None, None) => {}
        }
    }
    let conditions = changed_conditions(old.get("conditions"), new.get("conditions"));
    if !conditions.is_empty() {
        patch.insert("conditions".to_owned(), Value::Array(conditions));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Maps are merged by key: what is not there any more has to be named. Lists are left as they are.
fn clear_missing(before: &Value, after: &mut Value) {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return;
    };
    for (key, old) in before {
        let new = after.entry(key.clone()).or_insert(Value::Null);
        clear_missing(old, new);
    }
}

fn changed_conditions(old: Option<&Value>, new: Option<&Value>) -> Vec<Value> {
    let list = |v: Option<&Value>| v.and_then(Value::as_array).cloned().unwrap_or_default();
    let old = list(old);
    let kind = |c: &Value| {
        c.get("type")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut out = Vec::new();
    for mut condition in list(new) {
        let before = old.iter().find(|c| kind(c) == kind(&condition));
        let owned = OWNED_CONDITIONS.contains(&kind(&condition).as_str());
        if before == Some(&condition) || (before.is_some() && !owned) {
            continue;
        }
        if let (Some(Value::Object(before)), Value::Object(after)) = (before, &mut condition) {
            for key in before.keys() {
                after.entry(key.clone()).or_insert(Value::Null);
            }
        }
        out.push(condition);
    }
    let new = list(new);
    for kind in old.iter().map(kind) {
        if [PENDING, IN_PROGRESS].contains(&kind.as_str()) && !new.iter().any(|c| c["type"] == kind)
        {
            out.push(json!({"type": kind, "$patch": "delete"}));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn no_patch_without_change() {
        let s = status(
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        );
        assert_eq!(diff(&s, &s), None);
    }

    #[test]
    fn others_conditions_are_not_touched_and_removed_fields_are_null() {
        let old = status(json!({
            "phase": "Pending", "reason": "X", "podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}],
            "allocatedResources": {"cpu": "1", "memory": "1Gi"},
            "conditions": [{"type": "PodScheduled", "status": "False"}, {"type": "Ready", "status": "False", "reason": "R"}],
        }));
        let new = status(json!({
            "phase": "Running", "podIP": "1.1.1.2", "podIPs": [{"ip": "1.1.1.2"}], "hostIPs": [{"ip": "9.9.9.9"}],
            "allocatedResources": {"cpu": "2"},
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        }));
        assert_eq!(
            diff(&old, &new),
            Some(json!({
                "phase": "Running", "reason": null, "podIP": "1.1.1.2",
                "podIPs": [{"ip": "1.1.1.2"}, {"$patch": "replace"}],
                // Where there was no list the directive would stay as an element.
                "hostIPs": [{"ip": "9.9.9.9"}],
                "allocatedResources": {"cpu": "2", "memory": null},
                "conditions": [{"type": "Ready", "status": "True", "reason": null}],
            }))
        );
    }
}
