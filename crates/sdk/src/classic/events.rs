//! Warnings about objects that something failed for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Client;
use kube::api::{Api, PostParams};

/// The same text about the same object is written once in this time.
const AGAIN: Duration = Duration::from_secs(300);
/// How long a write may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Of how many objects the last text is remembered.
const REMEMBERED: usize = 1024;
/// Longest message; the API refuses more.
const LONGEST: usize = 1024;

/// Writes events of reason `Failed`.
pub(super) struct Events {
    client: Client,
    component: String,
    last: Mutex<HashMap<String, (String, Instant)>>,
}

impl Events {
    pub(super) fn new(client: Client, component: &str) -> Self {
        Self {
            client,
            component: component.to_owned(),
            last: Mutex::default(),
        }
    }

    fn is_news(&self, uid: &str, text: &str) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.get(uid);
        if known.is_some_and(|(said, at)| said == text && at.elapsed() < AGAIN) {
            return false;
        }
        if last.len() >= REMEMBERED {
            last.clear();
        }
        last.insert(uid.to_owned(), (text.to_owned(), Instant::now()));
        true
    }

    /// Says that something failed for the object.
    pub(super) async fn failed<K>(&self, object: &K, text: &str)
    where
        K: kube::Resource<DynamicType = ()>,
    {
        let meta = object.meta();
        if !self.is_news(meta.uid.as_deref().unwrap_or_default(), text) {
            return;
        }
        let mut text = text.to_owned();
        while text.len() > LONGEST {
            text.pop();
        }
        let now = Time(Timestamp::now());
        let namespace = meta.namespace.clone().unwrap_or_default();
        let event = Event {
            metadata: ObjectMeta {
                generate_name: meta.name.as_ref().map(|n| format!("{n}.")),
                namespace: meta.namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
                uid: meta.uid.clone(),
                ..ObjectReference::default()
            },
            type_: Some("Warning".to_owned()),
            reason: Some("Failed".to_owned()),
            message: Some(text),
            source: Some(EventSource {
                component: Some(format!("resource driver {}", self.component)),
                host: None,
            }),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        let written = tokio::time::timeout(DEADLINE, api.create(&params, &event)).await;
        if !matches!(written, Ok(Ok(_))) {
            tracing::debug!(?written, "event not written");
        }
    }
}
