//! Events about objects, as `kubectl describe` shows them: deduplicated with a count, bounded, never in the way.
//!
//! Repetitions of an event raise its `count` instead of making a new object, and a source that floods one object is cut
//! to 25 events and then one in five minutes, as client-go's correlator does.

use crate::throttle::{RequestRate, Throttle};
use davit_task::guard_async;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Events that may wait for the API server; more are dropped and counted in the log.
const QUEUE: usize = 1000;
/// Distinct events remembered for counting repetitions.
const REMEMBERED: usize = 4096;
/// Events a source may send about one object at once, and how often one more is allowed after that.
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);
/// How long one attempt to write an event may take.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Bytes of a message. Plugins, registries and servers of others have their words in it, and what was sent is remembered.
const LONGEST_MESSAGE: usize = 16 << 10;

/// The reference to an object that its events carry.
pub fn object_ref<K: kube::Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}

/// The name of an event about an object of this name. Names of some kinds are none that an event can have, and of long ones
/// nothing is left for what tells events apart: such an event has a random name.
pub fn event_name(object: &str, now: k8s_openapi::jiff::Timestamp) -> String {
    let name = format!("{object}.{:x}", now.as_nanosecond());
    match davit_api::names::check_dns1123_subdomain(&name).is_empty() {
        true => name,
        false => uuid::Uuid::new_v4().to_string(),
    }
}

/// Sends events about objects. Cheap to clone; never blocks the sender.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Note>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Note {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    api_version: String,
    resource_version: String,
    field_path: String,
    warning: bool,
    reason: String,
    message: String,
    annotations: Vec<(String, String)>,
}

impl EventRecorder {
    /// Starts the writer in a task of `tasks`. `component` and `host` become the event's source.
    pub fn spawn(
        client: kube::Client,
        component: &str,
        host: &str,
        tasks: &mut JoinSet<()>,
        cancel: CancellationToken,
    ) -> Self {
        Self::spawn_throttled(client, component, host, None, tasks, cancel)
    }

    /// The same, with so many events a second at most; what is more waits in the queue.
    pub fn spawn_throttled(
        client: kube::Client,
        component: &str,
        host: &str,
        rate: Option<RequestRate>,
        tasks: &mut JoinSet<()>,
        cancel: CancellationToken,
    ) -> Self {
        let (queue, notes) = mpsc::channel(QUEUE);
        let writer = Writer {
            client,
            source: EventSource {
                component: Some(component.to_owned()),
                host: Some(host.to_owned()),
            },
            throttle: rate.map(Throttle::new),
            known: HashMap::new(),
            allowance: HashMap::new(),
        };
        tasks.spawn(writer.run(notes, cancel));
        Self { queue }
    }

    /// Records an event of type Normal.
    pub fn normal(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(object, false, reason, message.into());
    }

    /// Records an event of type Warning.
    pub fn warning(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(object, true, reason, message.into());
    }

    /// Records an event of type Warning that carries a record for programs in an annotation.
    pub fn warning_with(
        &self,
        object: &ObjectReference,
        reason: &str,
        message: impl Into<String>,
        annotation: (&str, String),
    ) {
        self.warning_annotated(object, reason, message, vec![annotation]);
    }

    /// Records an event of type Warning with annotations.
    pub fn warning_annotated(
        &self,
        object: &ObjectReference,
        reason: &str,
        message: impl Into<String>,
        annotations: Vec<(&str, String)>,
    ) {
        let own = |(key, value): (&str, String)| (key.to_owned(), value);
        let annotations = annotations.into_iter().map(own).collect();
        self.send(object, true, reason, message.into(), annotations);
    }

    fn record(&self, object: &ObjectReference, warning: bool, reason: &str, message: String) {
        self.send(object, warning, reason, message, Vec::new());
    }

    fn send(
        &self,
        object: &ObjectReference,
        warning: bool,
        reason: &str,
        message: String,
        annotations: Vec<(String, String)>,
    ) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let note = Note {
            kind: text(&object.kind),
            namespace: text(&object.namespace),
            name: text(&object.name),
            uid: text(&object.uid),
            api_version: text(&object.api_version),
            resource_version: text(&object.resource_version),
            field_path: text(&object.field_path),
            warning,
            reason: reason.to_owned(),
            message: shortened(message),
            annotations,
        };
        if let Err(error) = self.queue.try_send(note) {
            tracing::warn!(%error, "event dropped");
        }
    }
}

/// The beginning of a message that is too long.
fn shortened(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        message.push_str("...");
        message.shrink_to_fit();
    }
    message
}

struct Written {
    namespace: String,
    name: String,
    count: i32,
}

struct Writer {
    client: kube::Client,
    source: EventSource,
    throttle: Option<Throttle>,
    known: HashMap<Note, Written>,
    allowance: HashMap<String, (f64, Instant)>,
}

impl Writer {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>, cancel: CancellationToken) {
        loop {
            let note = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                note = notes.recv() => note,
            };
            let Some(note) = note else { return };
            if !self.allow(&note.uid, Instant::now()) {
                continue;
            }
            if let Some(throttle) = &self.throttle {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => return,
                    () = throttle.take() => {}
                }
            }
            let writing = tokio::time::timeout(WRITE_DEADLINE, self.write(&note));
            let written = guard_async("client", "event-writer", &note.name, writing).await;
            match written {
                // a panic, which has been logged
                Ok(Ok(Ok(()))) | Err(_) => {}
                Ok(Ok(Err(error))) => {
                    tracing::debug!(reason = note.reason, object = note.name, %error, "event not written");
                }
                Ok(Err(_)) => tracing::debug!(
                    reason = note.reason,
                    object = note.name,
                    "event not written in time"
                ),
            }
        }
    }

    fn allow(&mut self, uid: &str, now: Instant) -> bool {
        if self.allowance.len() > REMEMBERED {
            self.allowance
                .retain(|_, (left, at)| *left < BURST && now.duration_since(*at) < REFILL);
        }
        let (left, at) = self.allowance.entry(uid.to_owned()).or_insert((BURST, now));
        *left = (*left + now.duration_since(*at).as_secs_f64() / REFILL.as_secs_f64()).min(BURST);
        *at = now;
        let allowed = *left >= 1.0;
        if allowed {
            *left -= 1.0;
        }
        allowed
    }

    async fn write(&mut self, note: &Note) -> Result<(), kube::Error> {
        // Repetitions differ in the object's resourceVersion only.
        let key = Note {
            resource_version: String::new(),
            ..note.clone()
        };
        let now = k8s_openapi::jiff::Timestamp::now();
        if let Some(written) = self.known.get_mut(&key) {
            let patch =
                serde_json::json!({ "count": written.count + 1, "lastTimestamp": Time(now) });
            let api: kube::Api<Event> =
                kube::Api::namespaced(self.client.clone(), &written.namespace);
            match api
                .patch(
                    &written.name,
                    &PatchParams::default(),
                    &Patch::Merge(&patch),
                )
                .await
            {
                Ok(_) => {
                    written.count += 1;
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.event(note, now);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: kube::Api<Event> = kube::Api::namespaced(self.client.clone(), &namespace);
        let created = api.create(&PostParams::default(), &event).await?;
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let name = created.metadata.name.unwrap_or_default();
        self.known.insert(
            key,
            Written {
                namespace,
                name,
                count: 1,
            },
        );
        Ok(())
    }

    fn event(&self, note: &Note, now: k8s_openapi::jiff::Timestamp) -> Event {
        let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        // Events about cluster-scoped objects live in the default namespace.
        let namespace = filled(&note.namespace).unwrap_or_else(|| "default".to_owned());
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(&note.name, now)),
                namespace: Some(namespace),
                annotations: (!note.annotations.is_empty())
                    .then(|| note.annotations.iter().cloned().collect()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                kind: filled(&note.kind),
                namespace: filled(&note.namespace),
                name: filled(&note.name),
                uid: filled(&note.uid),
                api_version: filled(&note.api_version),
                resource_version: filled(&note.resource_version),
                field_path: filled(&note.field_path),
            },
            type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(note.reason.clone()),
            message: Some(note.message.clone()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(self.source.clone()),
            reporting_component: self.source.component.clone(),
            reporting_instance: self.source.host.clone(),
            ..Event::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plugin of the node fails again and again, each time with megabytes of words that are new.
    #[test]
    fn messages_have_an_end() {
        let long = shortened("ü".repeat(LONGEST_MESSAGE));
        assert_eq!(long.len(), LONGEST_MESSAGE + 3);
        assert!(long.capacity() < 2 * LONGEST_MESSAGE && long.ends_with("ü..."));
        assert_eq!(shortened("short".to_owned()), "short");
    }

    /// Nobody hides what is said about an object by what it is called.
    #[test]
    fn events_have_names_whatever_the_object_is_called() {
        let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(event_name("p", now), "p.0");
        for object in ["p".repeat(253), "system:node".to_owned(), String::new()] {
            let names = [(); 2].map(|()| event_name(&object, now));
            assert_ne!(names[0], names[1]);
            for name in names {
                let faults = davit_api::names::check_dns1123_subdomain(&name);
                assert_eq!(faults, Vec::<String>::new());
            }
        }
    }
}
