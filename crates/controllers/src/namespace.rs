//! Empties namespaces that are being deleted, pods first and then kind by kind, and lets them go when nothing is left.

use crate::controller::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use crate::informers::Informers;
use async_trait::async_trait;
use davit_client::served_kinds::{ServedKind, ServedKinds};
use davit_client::{ObjectKey, message_of};
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::discovery::{Scope, verbs};
use std::collections::BTreeMap;
use std::time::Duration;

/// The finalizer that this controller owns.
const FINALIZER: &str = "kubernetes";
/// How soon to look again while objects are still going.
const RETRY: Duration = Duration::from_secs(1);

struct Namespaces {
    client: kube::Client,
    informers: Informers,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let informers = spawner.informers.clone();
    let queue = spawner.controller(Namespaces {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(&informers.namespaces, &queue, |ns: &Namespace| {
        vec![ObjectKey::of(ns)]
    });
}

/// What is left in a namespace after one round of deletion.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remains {
    /// Resource and how many objects of it remain.
    objects: Vec<(String, usize)>,
    /// Finalizers that hold objects back, and how many.
    finalizers: BTreeMap<String, usize>,
    /// Resources that could not be emptied, and why.
    failures: Vec<String>,
    /// Groups that discovery could not tell about.
    undiscovered: Option<String>,
}

impl Remains {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty() && self.undiscovered.is_none()
    }

    /// The conditions that `kubectl get namespace -o yaml` shows for a deletion that hangs.
    fn conditions(&self) -> Vec<NamespaceCondition> {
        let condition = |type_: &str, problem: Option<(&str, String)>, fine: (&str, &str)| {
            let (status, reason, message) = match problem {
                Some((reason, message)) => ("True", reason.to_owned(), message),
                None => ("False", fine.0.to_owned(), fine.1.to_owned()),
            };
            NamespaceCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason),
                message: Some(message),
                last_transition_time: Some(Time(Timestamp::now())),
            }
        };
        let listed = |items: Vec<String>| items.join(", ");
        let objects = self
            .objects
            .iter()
            .map(|(resource, n)| format!("{resource} has {n} resource instances"));
        let finalizers = self
            .finalizers
            .iter()
            .map(|(name, n)| format!("{name} in {n} resource instances"));
        vec![
            condition(
                "NamespaceDeletionDiscoveryFailure",
                self.undiscovered
                    .clone()
                    .map(|why| ("DiscoveryFailed", why)),
                (
                    "ResourcesDiscovered",
                    "All resources successfully discovered",
                ),
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                (
                    "ParsedGroupVersions",
                    "All legacy kube types successfully parsed",
                ),
            ),
            condition(
                "NamespaceDeletionContentFailure",
                (!self.failures.is_empty()).then(|| {
                    let text = format!(
                        "Failed to delete all resource types, {} remaining: {}",
                        self.failures.len(),
                        self.failures.join("; ")
                    );
                    ("ContentDeletionFailed", text)
                }),
                (
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                ),
            ),
            condition(
                "NamespaceContentRemaining",
                (!self.objects.is_empty()).then(|| {
                    (
                        "SomeResourcesRemain",
                        format!(
                            "Some resources are remaining: {}",
                            listed(objects.collect())
                        ),
                    )
                }),
                ("ContentRemoved", "All content successfully removed"),
            ),
            condition(
                "NamespaceFinalizersRemaining",
                (!self.finalizers.is_empty()).then(|| {
                    let names = listed(finalizers.collect());
                    (
                        "SomeFinalizersRemain",
                        format!("Some content in the namespace has finalizers remaining: {names}"),
                    )
                }),
                (
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                ),
            ),
        ]
    }
}

#[async_trait]
impl Reconcile for Namespaces {
    const NAME: &'static str = "namespace";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(namespace) = self.informers.namespaces.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let finalizers = namespace
            .spec
            .as_ref()
            .and_then(|s| s.finalizers.clone())
            .unwrap_or_default();
        if is_deleted(&namespace) && finalizers.iter().any(|f| f == FINALIZER) {
            let remains = self.empty(&key.name).await;
            if !remains.is_empty() {
                self.report(&namespace, &remains).await?;
                return Ok(Next::After(RETRY));
            }
            self.finalize(&namespace).await?;
        }
        Ok(Next::Wait)
    }
}

fn is_deleted(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_some()
}

impl Namespaces {
    /// Deletes everything once: the other kinds when no pod is left that may count on them, as network policies.
    async fn empty(&self, namespace: &str) -> Remains {
        let mut remains = Remains::default();
        let found = match ServedKinds::discover(&self.client).await {
            Ok(found) => found,
            Err(error) => {
                remains.undiscovered = Some(message_of(&error.source));
                return remains;
            }
        };
        if !found.failures.is_empty() {
            remains.undiscovered = Some(discovery_failure(&found.failures));
        }
        let deletable = found.kinds.iter().filter(|kind| is_deletable(kind));
        let (pods, others): (Vec<_>, Vec<_>) = deletable.partition(|kind| is_pods(kind));
        for round in [pods, others] {
            for kind in round {
                self.empty_kind(namespace, kind, &mut remains).await;
            }
            if !remains.objects.is_empty() || !remains.failures.is_empty() {
                break;
            }
        }
        remains
    }

    async fn empty_kind(&self, namespace: &str, kind: &ServedKind, remains: &mut Remains) {
        let resource = &kind.resource;
        let api: kube::Api<DynamicObject> =
            kube::Api::namespaced_with(self.client.clone(), namespace, resource);
        let name = match resource.group.as_str() {
            "" => format!("{}.", resource.plural),
            group => format!("{}.{group}", resource.plural),
        };
        let left = match gone_is_none(api.list_metadata(&ListParams::default()).await) {
            Ok(Some(left)) => left.items,
            Ok(None) => return,
            Err(error) => {
                return remains
                    .failures
                    .push(format!("{name}: {}", message_of(&error)));
            }
        };
        if left.is_empty() {
            return;
        }
        let deleted = if kind.supports(verbs::DELETE_COLLECTION) {
            api.delete_collection(&DeleteParams::background(), &ListParams::default())
                .await
                .map(|_| ())
        } else {
            self.delete_each(&api, left.iter().filter_map(|o| o.metadata.name.as_deref()))
                .await
        };
        if let Err(error) = deleted {
            remains
                .failures
                .push(format!("{name}: {}", message_of(&error)));
        }
        match api.list_metadata(&ListParams::default()).await {
            Ok(left) if left.items.is_empty() => {}
            Ok(left) => {
                for finalizer in left
                    .items
                    .iter()
                    .flat_map(|o| o.metadata.finalizers.iter().flatten())
                {
                    *remains.finalizers.entry(finalizer.clone()).or_default() += 1;
                }
                remains.objects.push((name, left.items.len()));
            }
            Err(error) => remains
                .failures
                .push(format!("{name}: {}", message_of(&error))),
        }
    }

    async fn delete_each(
        &self,
        api: &kube::Api<DynamicObject>,
        names: impl Iterator<Item = &str>,
    ) -> Result<(), kube::Error> {
        for name in names {
            gone_is_none(api.delete(name, &DeleteParams::background()).await)?;
        }
        Ok(())
    }

    async fn report(&self, namespace: &Namespace, remains: &Remains) -> Result<(), Error> {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let mut conditions = remains.conditions();
        let known = namespace
            .status
            .as_ref()
            .and_then(|s| s.conditions.clone())
            .unwrap_or_default();
        for condition in &mut conditions {
            if let Some(same) = known
                .iter()
                .find(|k| k.type_ == condition.type_ && k.status == condition.status)
            {
                condition
                    .last_transition_time
                    .clone_from(&same.last_transition_time);
            }
        }
        if conditions == known {
            return Ok(());
        }
        let mut changed = namespace.clone();
        changed.status.get_or_insert_default().conditions = Some(conditions);
        let api: kube::Api<Namespace> = kube::Api::all(self.client.clone());
        gone_is_none(
            api.replace_status(&name, &PostParams::default(), &changed)
                .await,
        )
        .context(|| format!("update status of namespace {name}"))?;
        Ok(())
    }

    async fn finalize(&self, namespace: &Namespace) -> Result<(), Error> {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let mut changed = namespace.clone();
        if let Some(finalizers) = changed.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
            finalizers.retain(|f| f != FINALIZER);
        }
        let failed =
            |error: String| Error::Invalid(format!("cannot finalize namespace {name}: {error}"));
        let body = serde_json::to_vec(&changed).map_err(|e| failed(e.to_string()))?;
        let request = http::Request::put(format!("/api/v1/namespaces/{name}/finalize"))
            .header("content-type", "application/json")
            .body(body)
            .map_err(|e| failed(e.to_string()))?;
        gone_is_none(self.client.request::<Namespace>(request).await)
            .context(|| format!("finalize namespace {name}"))?;
        Ok(())
    }
}

fn discovery_failure(failures: &BTreeMap<String, String>) -> String {
    let each: Vec<String> = failures
        .iter()
        .map(|(version, why)| format!("{version}: {why}"))
        .collect();
    format!(
        "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
        failures.len(),
        each.join(", ")
    )
}

fn is_pods(kind: &ServedKind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

fn is_deletable(kind: &ServedKind) -> bool {
    kind.scope == Scope::Namespaced
        && kind.supports(verbs::LIST)
        && kind.supports(verbs::DELETE)
        // Events are removed like everything else, but they live in two groups: once is enough.
        && !(kind.resource.group == "events.k8s.io" && kind.resource.plural == "events")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_were_not_discovered_are_named() {
        let why = "stale GroupVersion discovery: m.test/v1beta1".to_owned();
        assert_eq!(
            discovery_failure(&[("m.test/v1beta1".to_owned(), why)].into()),
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server \
             APIs: m.test/v1beta1: stale GroupVersion discovery: m.test/v1beta1"
        );
    }

    #[test]
    fn conditions_name_what_holds_the_namespace() {
        let remains = Remains {
            objects: vec![("pods.".to_owned(), 2)],
            finalizers: [("example.com/hold".to_owned(), 2)].into(),
            ..Remains::default()
        };
        assert!(!remains.is_empty());
        let conditions = remains.conditions();
        let status = |type_: &str| {
            conditions
                .iter()
                .find(|c| c.type_ == type_)
                .map(|c| c.status.as_str())
        };
        assert_eq!(status("NamespaceContentRemaining"), Some("True"));
        assert_eq!(status("NamespaceFinalizersRemaining"), Some("True"));
        assert_eq!(status("NamespaceDeletionDiscoveryFailure"), Some("False"));
        let message = conditions[3].message.clone().unwrap();
        assert_eq!(
            message,
            "Some resources are remaining: pods. has 2 resource instances"
        );
    }
}
