//! Claims of the classic API (`resource.k8s.io/v1alpha1`): made from templates under names that follow from the pods',
//! and freed of users that are gone. Allocating and deallocating them is the business of their drivers, deleting those
//! of pods that are gone that of garbage collection.

use super::plan;
use async_trait::async_trait;
use davit_api::classic::{
    API_VERSION, ConsumerReference, ResourceClaim, ResourceClaimTemplate, generated_name,
};
use davit_client::{Change, Informer, ObjectKey, WorkQueue};
use davit_reconcile::{Context, Error, Next, Reconcile, exists_is_none, gone_is_none};
use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::runtime::watcher;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// When to look again while not everything is known yet.
const SOON: Duration = Duration::from_millis(200);
/// How long a look for the API may take, and the pause before the next.
const PROBE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(1));

/// What there is of the classic API: `None` inside when the API server does not have it.
#[derive(Clone, Default)]
pub(super) struct Classic {
    watches: Arc<OnceLock<Option<Watches>>>,
}

struct Watches {
    claims: Informer<ResourceClaim>,
    templates: Informer<ResourceClaimTemplate>,
}

impl Classic {
    /// Whether it is known which claims and templates there are.
    pub(super) fn is_synced(&self) -> bool {
        self.watches.get().is_some_and(|known| {
            let watches = known.as_ref();
            watches.is_none_or(|w| w.claims.is_synced() && w.templates.is_synced())
        })
    }

    fn watches(&self) -> Option<&Watches> {
        self.watches.get().and_then(Option::as_ref)
    }

    pub(super) fn template(
        &self,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<ResourceClaimTemplate>> {
        self.watches()?.templates.get(Some(namespace), name)
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        self.watches()?.claims.get(Some(namespace), name)
    }

    /// Whether an entry of the pod has its classic claim.
    pub(super) fn is_made_for(&self, pod: &Pod, entry: &PodResourceClaim) -> bool {
        let (namespace, name) = claim_of(pod, entry);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let claim = self.claim(&namespace, &name);
        claim.is_some_and(|c| c.is_controlled_by(uid))
    }

    /// Watches classic claims and templates, where there are any, and tells of changes.
    pub(super) async fn follow(
        self,
        client: kube::Client,
        own: WorkQueue<ObjectKey>,
        pods: WorkQueue<ObjectKey>,
    ) {
        if !is_served(&client).await {
            self.watches.get_or_init(|| None);
            // there is nothing to follow, which is no end
            return std::future::pending().await;
        }
        let (mut tasks, cancel) = (JoinSet::new(), CancellationToken::new());
        let all = watcher::Config::default;
        let api = kube::Api::all(client.clone());
        let claims = Informer::spawn(api, all(), &mut tasks, cancel.clone());
        let api = kube::Api::all(client);
        let templates = Informer::spawn(api, all(), &mut tasks, cancel);
        let mut changes = claims.subscribe();
        let watches = Watches { claims, templates };
        self.watches.get_or_init(|| Some(watches));
        while let Some(change) = changes.next().await {
            let (Change::Applied { new: claim, .. } | Change::Deleted(claim)) = change else {
                continue;
            };
            own.add(ObjectKey::of(&*claim));
            if let Some(owner) = davit_reconcile::owners::controller_key(&claim.metadata, "Pod") {
                pods.add(owner);
            }
        }
    }
}

async fn is_served(client: &kube::Client) -> bool {
    loop {
        let asked = client.list_api_group_resources(API_VERSION);
        match tokio::time::timeout(PROBE.0, asked).await {
            Ok(Ok(_)) => return true,
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => return false,
            Ok(Err(error)) => tracing::debug!(%error, "classic claims not looked for"),
            Err(_) => {}
        }
        tokio::time::sleep(PROBE.1).await;
    }
}

/// Namespace and name of the claim that an entry with a template stands for.
fn claim_of(pod: &Pod, entry: &PodResourceClaim) -> (String, String) {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    (namespace, generated_name(pod, &entry.name))
}

/// Makes the claim for an entry of a pod.
pub(super) async fn make(
    client: &kube::Client,
    pod: &Pod,
    entry: &PodResourceClaim,
    template: &ResourceClaimTemplate,
) -> Result<(), Error> {
    let (namespace, name) = claim_of(pod, entry);
    let claim = from_template(pod, &name, template);
    let api: kube::Api<ResourceClaim> = kube::Api::namespaced(client.clone(), &namespace);
    let created = api.create(&PostParams::default(), &claim).await;
    let what = || format!("create classic claim {namespace}/{name}");
    if exists_is_none(created).context(what)?.is_some() {
        return Ok(());
    }
    let found = api.get_opt(&name).await;
    let found = found.context(|| format!("get classic claim {namespace}/{name}"))?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    match found {
        Some(claim) if claim.is_controlled_by(uid) => Ok(()),
        _ => Err(Error::Invalid(format!(
            "resource claim {namespace}/{name} was not created for the pod"
        ))),
    }
}

fn from_template(pod: &Pod, name: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    ResourceClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: pod.metadata.namespace.clone(),
            labels: template.spec.metadata.labels.clone(),
            annotations: template.spec.metadata.annotations.clone(),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        ..ResourceClaim::default()
    }
}

/// The classic claims a pod may have.
pub(super) fn claims_of(pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let key = |entry: &PodResourceClaim| ObjectKey {
        namespace: namespace.clone(),
        name: davit_api::classic::claim_name(pod, entry),
    };
    super::entries(pod).map(key).collect()
}

/// Frees classic claims of users that are gone.
pub(super) struct OfClassicClaims {
    pub(super) client: kube::Client,
    pub(super) pods: Informer<Pod>,
    pub(super) classic: Classic,
}

#[async_trait]
impl Reconcile for OfClassicClaims {
    const NAME: &'static str = "resourceclaim-controller-classic";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if !self.classic.is_synced() {
            return Ok(Next::After(SOON));
        }
        let Some(claim) = self.classic.claim(&key.namespace, &key.name) else {
            return Ok(Next::Wait);
        };
        let mut users = Vec::new();
        for user in &claim.status.reserved_for {
            if self.keeps(key, &claim, user).await? {
                users.push(user.clone());
            }
        }
        if users.len() == claim.status.reserved_for.len() {
            return Ok(Next::Wait);
        }
        let mut claim = (*claim).clone();
        claim.status.reserved_for = users;
        let api: kube::Api<ResourceClaim> =
            kube::Api::namespaced(self.client.clone(), &key.namespace);
        let params = PostParams::default();
        let write = api.replace_status(&key.name, &params, &claim).await;
        gone_is_none(write).context(|| format!("free classic claim {key}"))?;
        Ok(Next::Wait)
    }
}

impl OfClassicClaims {
    /// Whether a user keeps its reservation: while the pod exists, as in 1.26; of a claim that is not the pod's own, only
    /// until the pod has ended, so that others can have it.
    async fn keeps(
        &self,
        key: &ObjectKey,
        claim: &ResourceClaim,
        user: &ConsumerReference,
    ) -> Result<bool, Error> {
        if !user.api_group.is_empty() || user.resource != "pods" {
            return Err(Error::Invalid(format!(
                "claim {key} is reserved for a {} ({}), which is not supported",
                user.resource, user.name
            )));
        }
        let same = |p: &Pod| p.metadata.uid.as_deref() == Some(&*user.uid);
        let uses = |p: &Pod| claim.is_controlled_by(&user.uid) || !plan::is_done(p);
        if let Some(pod) = self.pods.get(Some(&key.namespace), &user.name)
            && same(&pod)
        {
            return Ok(uses(&pod));
        }
        // The informer may be behind; only the API server can say that a pod is gone.
        let api: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let pod = api.get_opt(&user.name).await;
        let pod = pod.context(|| format!("look for pod {} that uses claim {key}", user.name))?;
        Ok(pod.is_some_and(|p| same(&p) && uses(&p)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_are_made_from_templates_under_the_pods_name() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "resourceClaims": [{"name": "cat", "resourceClaimTemplateName": "t"}, {"name": "dog", "resourceClaimName": "d"}]}})).unwrap();
        let template = serde_json::from_value(json!({"metadata": {"name": "t"}, "spec": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"resourceClassName": "k"}}}));
        let claim = from_template(&pod, "p-cat", &template.unwrap());
        assert!(claim.is_controlled_by("u") && claim.is_delayed());
        assert_eq!(claim.metadata.name.as_deref(), Some("p-cat"));
        assert_eq!(claim.metadata.labels.unwrap()["a"], "b");
        let names: Vec<String> = claims_of(&pod).into_iter().map(|k| k.to_string()).collect();
        assert_eq!(names, ["n/p-cat", "n/d"]);
    }
}
