//! List and watch of one kind for somebody who turns objects into something of their own: objects are passed on and not kept.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;

use futures::StreamExt;
use kube::runtime::watcher;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::informer::{Object, ObjectKey};
use crate::pause::Pause;
use crate::received::{Received, untyped};

/// How many changes may wait for the receiver; the watch waits after that.
const WAITING: usize = 64;

/// Something that happened to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedEvent<K> {
    /// The object is there in this state.
    Applied {
        /// The object.
        object: K,
        /// Whether none of its name was there before.
        first: bool,
    },
    /// The object of this name is gone. Another one under the same name comes after that.
    Deleted(ObjectKey),
    /// All objects that existed at the beginning have been delivered. Said once.
    Synced,
}

/// The receiving end of a list and watch that keeps no objects, only their versions: every state of every object that the
/// watch tells of, in its order. What was missed while the watch was interrupted is made up for.
pub struct Feed<K> {
    events: mpsc::Receiver<FeedEvent<K>>,
}

impl<K> Debug for Feed<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed")
            .field("waiting", &self.events.len())
            .finish()
    }
}

impl<K: Object> Feed<K> {
    /// Starts listing and watching in a task of `tasks`; it ends when `cancel` is cancelled or the feed dropped.
    pub fn spawn(
        api: kube::Api<K>,
        config: watcher::Config,
        tasks: &mut JoinSet<()>,
        cancel: CancellationToken,
    ) -> Self {
        let (sender, events) = mpsc::channel(WAITING);
        tasks.spawn(async move {
            let following = follow(api, config, sender);
            // Without a receiver there is nothing to do until everything ends.
            tokio::select! { biased; () = cancel.cancelled() => {} () = following => cancel.cancelled().await }
        });
        Self { events }
    }

    /// The next event; waits for one. `None` when the watch has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<FeedEvent<K>> {
        self.events.recv().await
    }

    /// The next event if there is one now.
    pub fn try_next(&mut self) -> Option<FeedEvent<K>> {
        self.events.try_recv().ok()
    }
}

async fn follow<K: Object>(
    api: kube::Api<K>,
    config: watcher::Config,
    sender: mpsc::Sender<FeedEvent<K>>,
) {
    let mut events = std::pin::pin!(watcher(untyped(api), config));
    let mut known = Known::default();
    let mut pause = Pause::default();
    while let Some(event) = events.next().await {
        pause.heed(&event);
        match event {
            Ok(event) => {
                for event in known.take(event) {
                    if sender.send(event).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => pause.after(&error, &K::kind(&())).await,
        }
    }
}

/// UID and resource version of every object, and what was listed so far.
#[derive(Default)]
struct Known {
    versions: HashMap<ObjectKey, [Option<String>; 2]>,
    listed: HashSet<ObjectKey>,
    synced: bool,
}

impl Known {
    /// What an event of the watch means to the receiver.
    fn take<K: Object>(&mut self, event: watcher::Event<Received>) -> Vec<FeedEvent<K>> {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            watcher::Event::InitApply(object) => {
                self.listed.insert(ObjectKey::of(&object));
                self.received(&object)
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let gone = self.versions.keys().filter(|key| !listed.contains(*key));
                let gone: Vec<ObjectKey> = gone.cloned().collect();
                let mut out: Vec<FeedEvent<K>> =
                    gone.into_iter().flat_map(|key| self.delete(key)).collect();
                if !std::mem::replace(&mut self.synced, true) {
                    out.push(FeedEvent::Synced);
                }
                out
            }
            watcher::Event::Apply(object) => self.received(&object),
            watcher::Event::Delete(object) => self.delete(ObjectKey::of(&object)),
        }
    }

    /// What cannot be read stays as it was told last.
    fn received<K: Object>(&mut self, object: &Received) -> Vec<FeedEvent<K>> {
        object
            .read()
            .map_or_else(Vec::new, |object| self.apply(object))
    }

    fn apply<K: Object>(&mut self, object: K) -> Vec<FeedEvent<K>> {
        let key = ObjectKey::of(&object);
        let meta = object.meta();
        let new = [meta.uid.clone(), meta.resource_version.clone()];
        let old = self.versions.insert(key.clone(), new.clone());
        if new[1].is_some() && old.as_ref() == Some(&new) {
            return Vec::new();
        }
        // Another UID under the same name is another object: its predecessor was deleted.
        let replaced = old.as_ref().is_some_and(|old| old[0] != new[0]);
        let first = replaced || old.is_none();
        let gone = replaced.then_some(FeedEvent::Deleted(key));
        let applied = FeedEvent::Applied { object, first };
        gone.into_iter().chain([applied]).collect()
    }

    fn delete<K>(&mut self, key: ObjectKey) -> Vec<FeedEvent<K>> {
        let known = self.versions.remove(&key).is_some();
        known
            .then_some(FeedEvent::Deleted(key))
            .into_iter()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    fn map(name: &str, uid: &str, version: &str) -> Received {
        let meta = json!({"name": name, "uid": uid, "resourceVersion": version});
        serde_json::from_str(&json!({"metadata": meta}).to_string()).unwrap()
    }

    #[test]
    fn every_state_is_told_once_and_what_vanished_is_deleted() {
        let mut known = Known::default();
        let mut told = |event: Event<Received>| {
            let events: Vec<FeedEvent<ConfigMap>> = known.take(event);
            let shown = events.into_iter().map(|event| match event {
                FeedEvent::Applied { object, first } => {
                    let meta = object.metadata;
                    let (name, version) = (meta.name.unwrap(), meta.resource_version.unwrap());
                    format!("{name}@{version}{}", if first { "+" } else { "" })
                }
                FeedEvent::Deleted(key) => format!("-{key}"),
                FeedEvent::Synced => "synced".to_owned(),
            });
            shown.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(Event::Init), "");
        assert_eq!(told(Event::InitApply(map("a", "1", "1"))), "a@1+");
        assert_eq!(told(Event::InitApply(map("b", "2", "2"))), "b@2+");
        assert_eq!(told(Event::InitDone), "synced");
        assert_eq!(told(Event::Apply(map("a", "1", "3"))), "a@3");
        assert_eq!(told(Event::Apply(map("a", "9", "4"))), "-a a@4+");
        assert_eq!(told(Event::Delete(map("c", "3", "5"))), "");
        // Listed again after an interruption, in which b went.
        assert_eq!(told(Event::Init), "");
        assert_eq!(told(Event::InitApply(map("a", "9", "4"))), "");
        assert_eq!(told(Event::InitDone), "-b");
        assert_eq!(told(Event::Delete(map("a", "9", "6"))), "-a");
    }
}
