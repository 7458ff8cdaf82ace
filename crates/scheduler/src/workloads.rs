//! What pods belong to: the Services that select them, and the controllers that own them. From these follows which pods a
//! pod is spread among where it does not say itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use davit_client::Informer;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use parking_lot::RwLock;

use crate::pod::PodInfo;
use crate::selector::Selector;

/// How long the first lists may take before decisions are made without them.
const SYNC: Duration = Duration::from_secs(10);

/// The informers of the kinds that are looked at.
#[derive(Clone)]
pub(crate) struct WorkloadInformers {
    pub(crate) services: Informer<Service>,
    pub(crate) replication_controllers: Informer<ReplicationController>,
    pub(crate) replica_sets: Informer<ReplicaSet>,
    pub(crate) stateful_sets: Informer<StatefulSet>,
}

impl WorkloadInformers {
    /// Waits until all that exists is known, or for a while.
    pub(crate) async fn wait_synced(&self) {
        let all = tokio::join!(
            self.services.wait_synced(SYNC),
            self.replication_controllers.wait_synced(SYNC),
            self.replica_sets.wait_synced(SYNC),
            self.stateful_sets.wait_synced(SYNC),
        );
        if let (Err(error), ..) | (_, Err(error), ..) | (_, _, Err(error), _) | (.., Err(error)) =
            all
        {
            tracing::warn!(%error, "default spreading of pods begins without all workloads");
        }
    }
}

/// The Services and controllers of pods. Knows nothing until informers are [followed](Self::follow). Shared.
#[derive(Clone, Default)]
pub struct Workloads {
    informers: Arc<RwLock<Option<WorkloadInformers>>>,
    #[cfg(test)]
    fixed: Option<Selector>,
}

impl fmt::Debug for Workloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Workloads")
    }
}

impl Workloads {
    /// Answers the same for every pod.
    #[cfg(test)]
    pub(crate) fn fixed(peers: Selector) -> Self {
        Self {
            fixed: Some(peers),
            ..Self::default()
        }
    }

    /// Answers by what these informers know from now on.
    pub(crate) fn follow(&self, informers: WorkloadInformers) {
        *self.informers.write() = Some(informers);
    }

    /// The pods that belong together with this one; `None` if nothing says so.
    pub fn peers(&self, pod: &PodInfo) -> Option<Selector> {
        #[cfg(test)]
        if let Some(peers) = &self.fixed {
            return Some(peers.clone());
        }
        let informers = self.informers.read();
        let informers = informers.as_ref()?;
        let services = informers.services.list_namespace(&pod.namespace);
        let owner = owner_selector(informers, pod);
        let selector = joined(services.iter().map(|s| &**s), owner, pod);
        (!selector.is_everything()).then_some(selector)
    }
}

/// The selectors of Services that select the pod and the one of its controller in one.
fn joined<'a>(
    services: impl Iterator<Item = &'a Service>,
    owner: Option<LabelSelector>,
    pod: &PodInfo,
) -> Selector {
    let mut all = LabelSelector::default();
    let mut labels = BTreeMap::new();
    for service in services {
        let Some(wanted) = service.spec.as_ref().and_then(|s| s.selector.as_ref()) else {
            continue;
        };
        if wanted.iter().all(|(k, v)| pod.labels().get(k) == Some(v)) {
            labels.extend(wanted.clone());
        }
    }
    let owner = owner.unwrap_or_default();
    let equal = owner.match_labels.into_iter().flatten();
    let equal = equal.map(|(key, value)| LabelSelectorRequirement {
        key,
        operator: "In".to_owned(),
        values: Some(vec![value]),
    });
    let expressions = owner.match_expressions.into_iter().flatten();
    all.match_labels = Some(labels);
    all.match_expressions = Some(equal.chain(expressions).collect());
    Selector::new(Some(&all))
}

/// The selector of the controller that owns the pod.
fn owner_selector(informers: &WorkloadInformers, pod: &PodInfo) -> Option<LabelSelector> {
    let owners = pod.pod.metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|o| o.controller == Some(true))?;
    let (namespace, name) = (Some(&*pod.namespace), owner.name.as_str());
    match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("v1", "ReplicationController") => {
            let controller = informers.replication_controllers.get(namespace, name)?;
            Some(LabelSelector {
                match_labels: controller.spec.as_ref()?.selector.clone(),
                match_expressions: None,
            })
        }
        ("apps/v1", "ReplicaSet") => {
            let set = informers.replica_sets.get(namespace, name)?;
            Some(set.spec.as_ref()?.selector.clone())
        }
        ("apps/v1", "StatefulSet") => {
            let set = informers.stateful_sets.get(namespace, name)?;
            Some(set.spec.as_ref()?.selector.clone())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::labelled;
    use crate::selector::Labels;
    use serde_json::json;

    #[test]
    fn services_and_owners_say_who_belongs_together() {
        let service = |selector: serde_json::Value| -> Service {
            serde_json::from_value(json!({"spec": {"selector": selector}})).unwrap()
        };
        let services = [
            service(json!({"app": "web"})),
            service(json!({"app": "other"})),
            service(json!(null)),
        ];
        let owner: LabelSelector = serde_json::from_value(json!({
            "matchLabels": {"hash": "1"},
            "matchExpressions": [{"key": "tier", "operator": "Exists"}],
        }))
        .unwrap();
        let pod = labelled("p", json!({"app": "web", "hash": "1"}), json!({}));
        let labels = |list: &[(&str, &str)]| -> Labels {
            list.iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let both = joined(services.iter(), Some(owner), &pod);
        assert!(both.matches(&labels(&[("app", "web"), ("hash", "1"), ("tier", "x")])));
        assert!(!both.matches(&labels(&[("app", "web"), ("hash", "1")])));
        assert!(!both.matches(&labels(&[("app", "web"), ("hash", "2"), ("tier", "x")])));
        let lonely = labelled("p", json!({"app": "none"}), json!({}));
        assert!(joined(services.iter(), None, &lonely).is_everything());
    }
}
