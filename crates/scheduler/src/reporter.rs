//! Tells the API why a pod is not scheduled: its PodScheduled condition, its nomination and the
//! FailedScheduling event with the machine-readable record.
//!
//! Only the latest report on a pod matters. Reports wait in a map by pod, newer ones in place of
//! older ones; several pods are written at once, one pod never twice at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::pod::PodInfo;
use crate::verdict::VERDICT_ANNOTATION;

/// How many pods are written at once.
const AT_ONCE: usize = 8;
/// How long the writes about one pod may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest message of an event, in bytes; the API refuses more.
const EVENT_MESSAGE_LIMIT: usize = 1024;
/// Longest message of a condition, in bytes. Extenders and plugins word it, and the whole pod has to fit into a request.
const CONDITION_MESSAGE_LIMIT: usize = 32 << 10;
/// How many pods' events are remembered for counting repetitions.
const REMEMBERED: usize = 4096;

/// Why a pod is not scheduled.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) pod: Arc<PodInfo>,
    /// Whether the pod was refused, or something went wrong.
    pub(crate) refused: bool,
    pub(crate) message: String,
    /// A new nomination; an empty name takes the old one back.
    pub(crate) nominate: Option<String>,
    /// The record for the event's annotation.
    pub(crate) record: String,
}

impl Report {
    fn reason(&self) -> &'static str {
        if self.refused {
            "Unschedulable"
        } else {
            "SchedulerError"
        }
    }
}

/// The sender's end. Cheap to clone; never blocks.
#[derive(Clone, Default)]
pub(crate) struct Reporter {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    filled: Notify,
    written: Notify,
}

#[derive(Default)]
struct Pending {
    order: VecDeque<Arc<str>>,
    reports: HashMap<Arc<str>, Report>,
    busy: HashSet<Arc<str>>,
}

impl Pending {
    /// The next report on a pod that is not being written.
    fn next(&mut self) -> Option<Report> {
        let at = self.order.iter().position(|uid| !self.busy.contains(uid))?;
        let uid = self.order.remove(at)?;
        let report = self.reports.remove(&uid)?;
        self.busy.insert(uid);
        Some(report)
    }
}

impl Reporter {
    pub(crate) fn report(&self, report: Report) {
        let mut pending = self.shared.pending.lock();
        let uid = report.pod.uid.clone();
        if pending.reports.insert(uid.clone(), report).is_none() {
            pending.order.push_back(uid);
        }
        drop(pending);
        self.shared.filled.notify_one();
    }

    /// Drops what has not been written about a pod: it is gone, or scheduled after all.
    pub(crate) fn retract(&self, uid: &str) {
        let mut pending = self.shared.pending.lock();
        if pending.reports.remove(uid).is_some() {
            pending.order.retain(|other| **other != *uid);
        }
    }

    /// Drops what has not been written about a pod and waits for what is being written. Called before
    /// the pod is bound, lest "not scheduled" be written after "scheduled".
    pub(crate) async fn settle(&self, uid: &str) {
        self.retract(uid);
        loop {
            let written = self.shared.written.notified();
            let mut written = std::pin::pin!(written);
            // Registered before the look, so that a write that ends in between is not missed.
            written.as_mut().enable();
            if !self.shared.pending.lock().busy.contains(uid) {
                return;
            }
            written.await;
        }
    }

    /// Writes reports until cancelled.
    pub(crate) async fn run(self, client: kube::Client, cancel: CancellationToken) {
        let writer = Arc::new(Writer {
            client,
            events: Mutex::default(),
        });
        let mut writes: JoinSet<Arc<str>> = JoinSet::new();
        loop {
            while writes.len() < AT_ONCE {
                let Some(report) = self.shared.pending.lock().next() else {
                    break;
                };
                let writer = writer.clone();
                writes.spawn(async move {
                    let uid = report.pod.uid.clone();
                    writer.write(&report).await;
                    uid
                });
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(done) = writes.join_next() => {
                    let mut pending = self.shared.pending.lock();
                    match done {
                        Ok(uid) => pending.busy.remove(&uid),
                        // A panic does not say whose write it was; the others are only slowed.
                        Err(_) => { pending.busy.clear(); true }
                    };
                    drop(pending);
                    self.shared.written.notify_waiters();
                }
                () = self.shared.filled.notified() => {}
            }
        }
    }
}

/// The event that was last written about a pod.
#[derive(Debug, Clone)]
struct Written {
    name: String,
    message: String,
    count: i32,
}

struct Writer {
    client: kube::Client,
    events: Mutex<HashMap<Arc<str>, Written>>,
}

impl Writer {
    async fn write(&self, report: &Report) {
        let both = async {
            if let Err(error) = self.condition(report).await {
                tracing::warn!(
                    pod = report.pod.key(),
                    error = davit_client::message_of(&error),
                    "pod condition not written"
                );
            }
            if let Err(error) = self.event(report).await {
                tracing::debug!(pod = report.pod.key(), %error, "event not written");
            }
        };
        if tokio::time::timeout(DEADLINE, both).await.is_err() {
            tracing::warn!(
                pod = report.pod.key(),
                "report not written within {DEADLINE:?}"
            );
        }
    }

    async fn condition(&self, report: &Report) -> Result<(), kube::Error> {
        let Some(patch) = status_patch(report, Timestamp::now()) else {
            return Ok(());
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &report.pod.namespace);
        let params = PatchParams::default();
        match api
            .patch_status(&report.pod.name, &params, &Patch::Strategic(patch))
            .await
        {
            Ok(_) => Ok(()),
            // Gone, or replaced by another pod of the same name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn event(&self, report: &Report) -> Result<(), kube::Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &report.pod.namespace);
        let message = shortened(&report.message, EVENT_MESSAGE_LIMIT);
        let now = Timestamp::now();
        let known = self.events.lock().get(&report.pod.uid).cloned();
        if let Some(known) = known.filter(|k| k.message == message) {
            let count = known.count + 1;
            let patch = json!({
                "metadata": {"annotations": {VERDICT_ANNOTATION: report.record}},
                "count": count,
                "lastTimestamp": Time(now),
            });
            match api
                .patch(&known.name, &PatchParams::default(), &Patch::Merge(patch))
                .await
            {
                Ok(_) => {
                    self.remember(&report.pod.uid, Written { count, ..known });
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.new_event(report, message.clone(), now);
        let name = event.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &event).await?;
        self.remember(
            &report.pod.uid,
            Written {
                name,
                message,
                count: 1,
            },
        );
        Ok(())
    }

    fn remember(&self, uid: &Arc<str>, written: Written) {
        let mut events = self.events.lock();
        if events.len() >= REMEMBERED && !events.contains_key(uid) {
            events.clear();
        }
        events.insert(uid.clone(), written);
    }

    fn new_event(&self, report: &Report, message: String, now: Timestamp) -> Event {
        let pod = &report.pod;
        let profile = pod.scheduler_name().to_owned();
        Event {
            metadata: ObjectMeta {
                name: Some(davit_client::event_name(&pod.name, now)),
                namespace: Some(pod.namespace.to_string()),
                annotations: Some([(VERDICT_ANNOTATION.to_owned(), report.record.clone())].into()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                field_path: None,
                ..pod.pod.object_ref(&())
            },
            type_: Some("Warning".to_owned()),
            reason: Some("FailedScheduling".to_owned()),
            message: Some(message),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource {
                component: Some(profile.clone()),
                host: None,
            }),
            reporting_component: Some(profile),
            ..Event::default()
        }
    }
}

/// Cut to so many bytes.
fn shortened(message: &str, limit: usize) -> String {
    const END: &str = " ...";
    if message.len() <= limit {
        return message.to_owned();
    }
    let mut end = limit - END.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{END}", &message[..end])
}

/// The change of the pod's status, or nothing if it says all that already.
fn status_patch(report: &Report, now: Timestamp) -> Option<Value> {
    let status = report.pod.pod.status.as_ref();
    let conditions = status
        .and_then(|s| s.conditions.as_ref())
        .into_iter()
        .flatten();
    let known = conditions.into_iter().find(|c| c.type_ == "PodScheduled");
    let message = shortened(&report.message, CONDITION_MESSAGE_LIMIT);
    let same = |c: &PodCondition| {
        c.status == "False"
            && c.reason.as_deref() == Some(report.reason())
            && c.message.as_deref() == Some(&message)
    };
    let mut change = serde_json::Map::new();
    if !known.is_some_and(same) {
        let since = known
            .filter(|c| c.status == "False")
            .and_then(|c| c.last_transition_time.clone());
        let condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": report.reason(),
            "message": message,
            "lastProbeTime": null,
            "lastTransitionTime": since.unwrap_or(Time(now)),
        });
        change.insert("conditions".to_owned(), json!([condition]));
    }
    let nominated = report.pod.nominated_node().unwrap_or_default();
    if let Some(node) = report.nominate.as_deref().filter(|node| *node != nominated) {
        let node = if node.is_empty() {
            Value::Null
        } else {
            json!(node)
        };
        change.insert("nominatedNodeName".to_owned(), node);
    }
    // The UID makes sure that a new pod of the same name is not meant.
    (!change.is_empty()).then(|| json!({"metadata": {"uid": &*report.pod.uid}, "status": change}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(status: Value, message: &str, nominate: Option<&str>) -> Report {
        let metadata = json!({"name": "p", "namespace": "ns", "uid": "u"});
        let pod = json!({"metadata": metadata, "spec": {"containers": []}, "status": status});
        Report {
            pod: Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap()))),
            refused: true,
            message: message.to_owned(),
            nominate: nominate.map(str::to_owned),
            record: String::new(),
        }
    }

    #[test]
    fn only_what_changed_is_written() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let first = status_patch(&report(json!({}), "no", None), now).unwrap();
        assert_eq!(
            first["status"]["conditions"][0]["lastTransitionTime"],
            "2026-01-02T03:04:05Z"
        );
        assert_eq!(first["metadata"]["uid"], "u");
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "no", "lastTransitionTime": "2025-01-01T00:00:00Z",
        });
        let known = json!({"conditions": [condition], "nominatedNodeName": "n"});
        assert_eq!(
            status_patch(&report(known.clone(), "no", Some("n")), now),
            None
        );
        let changed = status_patch(&report(known.clone(), "never", None), now).unwrap();
        assert_eq!(
            changed["status"]["conditions"][0]["lastTransitionTime"],
            "2025-01-01T00:00:00Z"
        );
        let taken_back = status_patch(&report(known, "no", Some("")), now).unwrap();
        assert_eq!(taken_back["status"], json!({"nominatedNodeName": null}));
    }

    #[test]
    fn a_newer_report_takes_the_place_of_an_older_one_and_waits_for_its_write() {
        let reporter = Reporter::default();
        reporter.report(report(json!({}), "first", None));
        reporter.report(report(json!({}), "second", None));
        let mut pending = reporter.shared.pending.lock();
        assert_eq!(pending.next().unwrap().message, "second");
        drop(pending);
        reporter.report(report(json!({}), "third", None));
        let mut pending = reporter.shared.pending.lock();
        assert!(pending.next().is_none());
        pending.busy.clear();
        assert_eq!(pending.next().unwrap().message, "third");
    }

    #[test]
    fn long_messages_are_cut() {
        let limit = EVENT_MESSAGE_LIMIT;
        assert_eq!(shortened("short", limit), "short");
        let long = shortened(&"ä".repeat(2000), limit);
        assert!(long.len() <= limit && long.ends_with(" ..."));
        // An extender's answer may be as long as the objects of thousands of nodes.
        let told = report(json!({}), &"x".repeat(4 << 20), None);
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let patch = status_patch(&told, now).unwrap().to_string();
        assert!(patch.len() < 2 * CONDITION_MESSAGE_LIMIT);
    }
}
