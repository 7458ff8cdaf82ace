//! Counts what the resource quotas of a namespace limit, when objects go and from time to time.
//!
//! Admission charges quotas before an object is stored; this controller gives back what is no longer used and repairs
//! what was charged for writes that failed. So that an object which was admitted a moment ago and is not stored yet
//! is not counted as gone, a lower figure is written only when the quota has rested for a while.

use async_trait::async_trait;
use davit_api::amounts::{Amounts, of_map};
use davit_api::quota::{self, Extended};
use davit_client::served_kinds::ServedKinds;
use davit_client::{Informer, ObjectKey, list_in_pages};
use davit_reconcile::pods::is_terminal;
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, cluster_key, gone_is_none};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::{Map, Value, json};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Everything is counted again this often, as in Kubernetes.
const RESYNC: Duration = Duration::from_secs(300);
/// As [`RESYNC`] where a quota counts kinds whose objects are not watched here.
const POLL: Duration = Duration::from_secs(20);
/// How long a quota rests before a lower figure is believed.
const REST: Duration = Duration::from_secs(1);
/// A quota that never rests gets its figure after this many waits.
const WAITS: u32 = 5;
/// Kinds whose objects are watched: their changes lead to a count at once.
const WATCHED: [(&str, &str); 4] = [
    ("", "pods"),
    ("", "services"),
    ("", "persistentvolumeclaims"),
    ("resource.k8s.io", "resourceclaims"),
];

const DEVICES: &str = "resource.k8s.io";

struct Quotas {
    client: kube::Client,
    quotas: Informer<ResourceQuota>,
    /// Version, since when, and how often a count of a quota was put off.
    rests: Mutex<HashMap<ObjectKey, (String, Instant, u32)>>,
}

/// Starts the controller; `claims` are watched by others as well.
pub(crate) fn spawn(spawner: &mut Spawner<'_>, claims: &Informer<ResourceClaim>) {
    let Some(spawner) = &mut spawner.start("resourcequota-controller") else {
        return;
    };
    let quotas: Informer<ResourceQuota> = spawner.informer();
    let queue = spawner.controller(Quotas {
        client: spawner.client.clone(),
        quotas: quotas.clone(),
        rests: Mutex::new(HashMap::new()),
    });
    let informers = spawner.informers.clone();
    spawner.feed_changes(
        &quotas,
        &queue,
        |old: &ResourceQuota, new| old.spec != new.spec,
        |quota| namespace_of(quota.metadata.namespace.as_deref()),
    );
    // what is made was charged by admission; only what goes has to be noticed
    spawner.feed_changes(&informers.pods, &queue, frees, |pod| {
        namespace_of(pod.metadata.namespace.as_deref())
    });
    spawner.feed_changes(
        &informers.services,
        &queue,
        |old: &Service, new| old.spec != new.spec,
        |service| namespace_of(service.metadata.namespace.as_deref()),
    );
    spawner.feed_changes(
        &informers.claims,
        &queue,
        |old: &PersistentVolumeClaim, new| old.spec != new.spec,
        |claim| namespace_of(claim.metadata.namespace.as_deref()),
    );
    spawner.feed_changes(
        claims,
        &queue,
        |_: &ResourceClaim, _| false,
        |claim| namespace_of(claim.metadata.namespace.as_deref()),
    );
}

/// Whether a pod may have come to use less of some quota: it has ended, got a deadline or lost it, or was resized.
fn frees(old: &Pod, new: &Pod) -> bool {
    let deadline = |pod: &Pod| {
        pod.spec
            .as_ref()
            .map(|s| s.active_deadline_seconds.is_some())
    };
    let resources = |pod: &Pod| -> Vec<_> {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        containers.map(|c| c.resources.clone()).collect()
    };
    is_terminal(old) != is_terminal(new)
        || deadline(old) != deadline(new)
        || resources(old) != resources(new)
}

fn namespace_of(namespace: Option<&str>) -> Vec<ObjectKey> {
    namespace.into_iter().map(cluster_key).collect()
}

#[async_trait]
impl Reconcile for Quotas {
    const NAME: &'static str = "resourcequota";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let namespace = key.name.as_str();
        let is_limited = self
            .quotas
            .list()
            .iter()
            .any(|quota| quota.metadata.namespace.as_deref() == Some(namespace));
        if !is_limited {
            return Ok(Next::Wait);
        }
        let api = self.api(namespace, &resource("", "v1", "resourcequotas"));
        let quotas = gone_is_none(api.list(&ListParams::default()).await)
            .context(|| format!("list resource quotas of {namespace}"))?;
        let quotas = quotas.map(|list| list.items).unwrap_or_default();
        let mut objects = BTreeMap::new();
        let mut next = RESYNC;
        for quota in quotas {
            let value = value_of(&quota)?;
            let hard = of_map(value.pointer("/spec/hard"));
            for (group, plural) in kinds_of(&hard) {
                if !WATCHED.contains(&(group, plural)) {
                    next = next.min(POLL);
                }
                let kind = (group.to_owned(), plural.to_owned());
                if let Entry::Vacant(place) = objects.entry(kind) {
                    place.insert(self.objects(namespace, group, plural).await?);
                }
            }
            let extended = if Extended::concerns(&hard) {
                self.extended(&objects, namespace).await?
            } else {
                Extended::default()
            };
            let used = count(&value, &hard, &objects, &extended);
            if self.write(&api, quota, &value, &hard, used).await? {
                next = next.min(REST);
            }
        }
        Ok(Next::After(next))
    }
}

/// The kinds whose objects count for the names of a quota.
fn kinds_of(hard: &Amounts) -> Vec<(&str, &str)> {
    let mut kinds: Vec<_> = hard
        .keys()
        .flat_map(|name| quota::counted_kinds(name))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

type Objects = BTreeMap<(String, String), Vec<Value>>;

/// What the objects use of what a quota counts.
fn count(quota: &Value, hard: &Amounts, objects: &Objects, extended: &Extended) -> Amounts {
    let mut used: Amounts = hard
        .keys()
        .map(|name| (name.clone(), davit_api::quantity::Quantity::ZERO))
        .collect();
    for (group, plural) in kinds_of(hard) {
        let found = objects.get(&(group.to_owned(), plural.to_owned()));
        for object in found.into_iter().flatten() {
            if !quota::in_scope(quota, group, plural, object) {
                continue;
            }
            for (name, value) in extended.usage(group, plural, object) {
                if let Some(held) = used.get_mut(&name) {
                    *held += value;
                }
            }
        }
    }
    used
}

fn map(amounts: &Amounts) -> Map<String, Value> {
    amounts
        .iter()
        .map(|(name, value)| (name.clone(), json!(value.to_string())))
        .collect()
}

fn value_of(object: &DynamicObject) -> Result<Value, Error> {
    serde_json::to_value(object).map_err(|error| Error::Invalid(error.to_string()))
}

/// Only group, version and plural name make the path.
fn resource(group: &str, version: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(group, version, plural);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

impl Quotas {
    fn api(&self, namespace: &str, resource: &ApiResource) -> kube::Api<DynamicObject> {
        kube::Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    async fn objects(
        &self,
        namespace: &str,
        group: &str,
        plural: &str,
    ) -> Result<Vec<Value>, Error> {
        let resources = match group {
            "" => vec![resource("", "v1", plural)],
            group => self.served(group, plural).await?,
        };
        let mut objects = Vec::new();
        for resource in resources {
            let api = self.api(namespace, &resource);
            let found = gone_is_none(list_in_pages(&api, ListParams::default()).await)
                .context(|| format!("list {plural} of {namespace}"))?;
            let items = found.map(|list| list.items).unwrap_or_default();
            for item in &items {
                objects.push(value_of(item)?);
            }
        }
        Ok(objects)
    }

    /// What extended resources of claims are counted by; `objects` has the pods and claims of the namespace.
    async fn extended(&self, objects: &Objects, namespace: &str) -> Result<Extended, Error> {
        let classes: kube::Api<DynamicObject> = kube::Api::all_with(
            self.client.clone(),
            &resource(DEVICES, "v1", "deviceclasses"),
        );
        let found = gone_is_none(classes.list(&ListParams::default()).await)
            .context(|| format!("list device classes for quotas of {namespace}"))?;
        let classes = found.map(|list| list.items).unwrap_or_default();
        let classes: Vec<Value> = classes.iter().map(value_of).collect::<Result<_, _>>()?;
        let of = |group: &str, plural: &str| {
            let found = objects.get(&(group.to_owned(), plural.to_owned()));
            found.cloned().unwrap_or_default()
        };
        Ok(Extended::new(
            &classes,
            of("", "pods"),
            &of(DEVICES, "resourceclaims"),
        ))
    }

    /// How the objects of a group's plural name are reached: none when it is not served, two for claims, which classic
    /// ones share their name with.
    async fn served(&self, group: &str, plural: &str) -> Result<Vec<ApiResource>, Error> {
        let found = ServedKinds::discover(&self.client).await?;
        let of_group = |version: &&String| version.split_once('/').is_some_and(|(g, _)| g == group);
        if let Some(version) = found.failures.keys().find(of_group) {
            let why = format!("cannot count {plural}: {version} cannot be discovered");
            return Err(Error::Invalid(why));
        }
        let resources = found.kinds.into_iter().map(|kind| kind.resource);
        Ok(resources
            .filter(|r| r.group == group && r.plural == plural)
            .collect())
    }

    /// Writes what a count found; whether it is put off.
    async fn write(
        &self,
        api: &kube::Api<DynamicObject>,
        mut quota: DynamicObject,
        value: &Value,
        hard: &Amounts,
        used: Amounts,
    ) -> Result<bool, Error> {
        let key = ObjectKey::of(&quota);
        let held = of_map(value.pointer("/status/used"));
        if held == used && of_map(value.pointer("/status/hard")) == *hard {
            self.rests().remove(&key);
            return Ok(false);
        }
        let lower = used
            .iter()
            .any(|(name, value)| held.get(name).is_some_and(|held| held > value));
        let version = quota.metadata.resource_version.clone().unwrap_or_default();
        if lower && !self.has_rested(&key, version) {
            return Ok(true);
        }
        quota.data["status"] = json!({ "hard": map(hard), "used": map(&used) });
        let written = api
            .replace_status(&key.name, &PostParams::default(), &quota)
            .await;
        gone_is_none(written).context(|| format!("update status of resource quota {key}"))?;
        self.rests().remove(&key);
        Ok(false)
    }

    fn rests(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, (String, Instant, u32)>> {
        self.rests
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn has_rested(&self, key: &ObjectKey, version: String) -> bool {
        let now = Instant::now();
        let mut rests = self.rests();
        let (held, since, waits) = rests
            .entry(key.clone())
            .or_insert_with(|| (version.clone(), now, 0));
        if *held != version {
            (*held, *since) = (version, now);
        }
        if now.duration_since(*since) >= REST || *waits >= WAITS {
            return true;
        }
        *waits += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_177_what_is_there_is_counted() {
        let quota = json!({ "spec": { "hard": {
            "pods": "5", "requests.cpu": "2", "count/secrets": "9", "services.nodeports": "1",
        } } });
        let hard = of_map(quota.pointer("/spec/hard"));
        let pod = |phase: &str| {
            json!({
                "spec": { "containers": [{ "resources": { "requests": { "cpu": "250m" } } }] },
                "status": { "phase": phase },
            })
        };
        let objects = Objects::from([
            (
                (String::new(), "pods".to_owned()),
                vec![pod("Running"), pod("Pending"), pod("Failed")],
            ),
            (
                (String::new(), "secrets".to_owned()),
                vec![json!({}), json!({}), json!({})],
            ),
        ]);
        assert_eq!(
            Value::Object(map(&count(&quota, &hard, &objects, &Extended::default()))),
            json!({
                "pods": "2", "requests.cpu": "500m", "count/secrets": "3", "services.nodeports": "0",
            })
        );
    }
}
