//! The kinds there are, and a metadata watch of each.

use super::GarbageCollector;
use super::graph::Identity;
use super::metadata::OwnedObject;
use davit_client::served_kinds::ServedKinds;
use davit_client::slow_kinds::is_own;
use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::discovery::{ApiResource, Scope, verbs};
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

/// How often to look for new kinds when nothing says that there are some.
const DISCOVERY: Duration = Duration::from_secs(30);
const DISCOVERY_RETRY: Duration = Duration::from_secs(2);
/// Discovery follows a change of what is served with some delay; changes come together.
const SETTLE: Duration = Duration::from_secs(1);
/// Bytes that the objects of a kind of others may take, about half a million objects.
const MOST_OF_OTHERS: usize = 256 << 20;
/// When one that has more is looked at again.
const LATER: Duration = Duration::from_hours(1);
/// Kinds that own nothing and are owned by nothing, and change all the time.
const IGNORED: [&str; 2] = ["events.", "events.events.k8s.io"];

/// The kinds that can be deleted, by `plural.group`.
#[derive(Debug, Default)]
pub(super) struct Resources {
    known: RwLock<Known>,
}

impl Resources {
    pub(super) fn get(&self, key: &str) -> Option<ApiResource> {
        self.known
            .read()
            .get(key)
            .map(|(resource, _)| resource.clone())
    }

    /// Where an owner is found: in the dependent's namespace, or nowhere in one.
    pub(super) fn owner_identity(
        &self,
        dependent: &Identity,
        owner: &OwnerReference,
    ) -> Option<Identity> {
        let group = owner
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group);
        let known = self.known.read();
        let (key, (_, scope)) = known
            .iter()
            .filter(|(_, (r, _))| r.kind == owner.kind && r.group == group)
            // The classic kinds are other objects under the same names.
            .max_by_key(|(_, (r, _))| {
                let classic = r.api_version == davit_api::classic::API_VERSION;
                (r.api_version == owner.api_version, !classic)
            })?;
        let namespace = if *scope == Scope::Namespaced {
            dependent.namespace.clone()
        } else {
            String::new()
        };
        Some(Identity {
            resource: key.clone(),
            namespace,
            name: owner.name.clone(),
        })
    }
}

/// `plural.group`; of classic claims, which share both with other objects, with the version.
fn key_of(resource: &ApiResource) -> String {
    let (plural, group) = (&resource.plural, &resource.group);
    if resource.api_version == davit_api::classic::API_VERSION {
        return format!("{plural}.{}.{group}", resource.version);
    }
    format!("{plural}.{group}")
}

type Known = HashMap<String, (ApiResource, Scope)>;

/// A running watch, and by which version it watches.
struct Watch {
    resource: ApiResource,
    _task: AbortOnDropHandle<()>,
}

/// The kinds to watch. Of group versions that could not be asked, those that are known stay: nothing says that they are
/// gone.
fn collectable(discovered: ServedKinds, known: &Known) -> Known {
    let ServedKinds { kinds, failures } = discovered;
    let kept = known
        .iter()
        .filter(|(_, (resource, _))| failures.contains_key(&resource.api_version))
        .map(|(key, kind)| (key.clone(), kind.clone()));
    let mut found: Known = kept.collect();
    let needed = [verbs::LIST, verbs::WATCH, verbs::DELETE];
    for kind in kinds {
        let key = key_of(&kind.resource);
        if needed.iter().all(|verb| kind.supports(verb)) && !IGNORED.contains(&key.as_str()) {
            found.insert(key, (kind.resource, kind.scope));
        }
    }
    found
}

/// Follows discovery for ever; each kind has a watch for as long as it exists.
pub(super) async fn follow(collector: Arc<GarbageCollector>) {
    let changed = Arc::new(Notify::new());
    let _tellers = [
        tell::<CustomResourceDefinition>(&collector.client, &changed),
        tell::<APIService>(&collector.client, &changed),
    ];
    let mut watches: HashMap<String, Watch> = HashMap::new();
    loop {
        let Ok(discovered) = ServedKinds::discover(&collector.client).await else {
            tokio::time::sleep(DISCOVERY_RETRY).await;
            continue;
        };
        let found = collectable(discovered, &collector.resources.known.read());
        watches.retain(|key, watch| found.get(key).is_some_and(|(r, _)| *r == watch.resource));
        for (key, (resource, _)) in &found {
            if !watches.contains_key(key) {
                let task = watch(collector.clone(), key.clone(), resource.clone());
                let watch = Watch {
                    resource: resource.clone(),
                    _task: AbortOnDropHandle::new(tokio::spawn(task)),
                };
                watches.insert(key.clone(), watch);
            }
        }
        *collector.resources.known.write() = found;
        tokio::select! {
            () = changed.notified() => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(DISCOVERY) => {}
        }
    }
}

/// Tells of changes of the objects by which kinds come and go.
fn tell<K>(client: &kube::Client, changed: &Arc<Notify>) -> AbortOnDropHandle<()>
where
    K: kube::Resource<DynamicType = ()> + 'static,
{
    let api: kube::Api<OwnedObject> =
        kube::Api::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let changed = Arc::clone(changed);
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            if matches!(
                event,
                Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_))
            ) {
                changed.notify_one();
            }
        }
    }))
}

/// Watches a kind for ever. Where a server of others has more objects than there is memory for, which costs it nothing, nothing
/// of the kind is collected.
async fn watch(collector: Arc<GarbageCollector>, key: String, resource: ApiResource) {
    let most = most_of(&resource);
    let mut said = false;
    loop {
        watch_up_to(&collector, &key, &resource, most).await;
        collector.graph.lock().unwatch(&key);
        if !std::mem::replace(&mut said, true) {
            tracing::error!(
                resource = key,
                "there are more objects than the garbage collector can keep; none of them is collected"
            );
        }
        tokio::time::sleep(LATER).await;
    }
}

/// Bytes that the objects of a kind may take: of Kubernetes' own, which are in this cluster's store, any number.
fn most_of(resource: &ApiResource) -> usize {
    match is_own(resource) {
        true => usize::MAX,
        false => MOST_OF_OTHERS,
    }
}

/// Watches a kind until its objects take more than they may.
async fn watch_up_to(
    collector: &Arc<GarbageCollector>,
    key: &str,
    resource: &ApiResource,
    most: usize,
) {
    let api: kube::Api<OwnedObject> = kube::Api::all_with(collector.client.clone(), resource);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut listed: HashSet<String> = HashSet::new();
    while let Some(event) = events.next().await {
        let observe = |meta: &ObjectMeta| {
            let identity = Identity {
                resource: key.to_owned(),
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            };
            collector.observe(identity, meta);
            meta.uid.clone().unwrap_or_default()
        };
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.insert(observe(&object.metadata));
            }
            Ok(watcher::Event::InitDone) => {
                // Also what another version's watch saw before this one.
                let known = collector.graph.lock().of_resource(key);
                for gone in known.iter().filter(|uid| !listed.contains(*uid)) {
                    collector.forget(gone, key);
                }
                listed = HashSet::new();
            }
            Ok(watcher::Event::Apply(object)) => {
                observe(&object.metadata);
            }
            Ok(watcher::Event::Delete(object)) => {
                collector.forget(&object.metadata.uid.unwrap_or_default(), key);
            }
            Err(error) => tracing::debug!(resource = key, %error, "metadata watch interrupted"),
        }
        if collector.graph.lock().weight(key) > most {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(version: &str) -> (ApiResource, Scope) {
        let gvk = kube::api::GroupVersionKind::gvk("g.test", version, "A");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "as");
        (resource, Scope::Namespaced)
    }

    #[test]
    fn kinds_of_servers_that_do_not_answer_stay_known() {
        let known: Known = [("as.g.test".to_owned(), kind("v1"))].into();
        let failing = |version: &str| ServedKinds {
            failures: [(version.to_owned(), "stale".to_owned())].into(),
            ..ServedKinds::default()
        };
        assert_eq!(collectable(failing("g.test/v1"), &known), known);
        assert!(collectable(failing("other.test/v1"), &known).is_empty());
        assert!(collectable(ServedKinds::default(), &known).is_empty());
    }

    #[test]
    fn kinds_of_others_have_a_limit() {
        assert_eq!(most_of(&kind("v1").0), MOST_OF_OTHERS);
        let pods = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        assert_eq!(most_of(&pods), usize::MAX);
    }
}
