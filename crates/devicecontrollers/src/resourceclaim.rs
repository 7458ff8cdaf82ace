//! Resource claims: made from templates for the pods that name them, reserved for pods that were put on a node past the
//! scheduler, and given back when nobody uses them any more.

mod claims;
mod classic;
mod groups;
mod made;
mod plan;
mod pods;
mod written;

use claims::OfClaims;
use classic::{Classic, OfClassicClaims};
use davit_api::resource_claims::{ClaimConsumers, is_of_group};
use davit_client::{Informer, Object, ObjectKey};
use davit_reconcile::owners::controller_key;
use davit_reconcile::{Context, Error, Spawner, exists_is_none, gone_is_none};
use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use made::ClaimOwner;
use pods::OfPods;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use written::Written;

/// The finalizer of claims that the scheduler allocated.
pub(crate) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// On claims made from a template: the pod's or group's name for the claim.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// The field manager of the pod's and the group's list of claims.
const MANAGER: &str = "ResourceClaimController";
/// How many names of a claim may belong to others.
const NAME_ATTEMPTS: u8 = 3;
/// When to look again while not everything is known yet.
const SOON: Duration = Duration::from_millis(200);

#[derive(Clone)]
struct Known {
    client: kube::Client,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    templates: Informer<ResourceClaimTemplate>,
    /// None where claims are for pods alone.
    groups: Option<Informer<PodGroup>>,
    classic: Classic,
    written_pods: Written<Pod>,
    written_claims: Written<ResourceClaim>,
}

impl Known {
    fn is_synced(&self) -> bool {
        self.claims.is_synced()
            && self.templates.is_synced()
            && self.classic.is_synced()
            && self.groups.as_ref().is_none_or(Informer::is_synced)
    }

    fn consumers(&self) -> ClaimConsumers {
        consumers(self.groups.as_ref())
    }

    /// The group with which a pod may share claims.
    fn group_of(&self, pod: &Pod) -> PodsGroup {
        let Some((groups, name)) = self.groups.as_ref().zip(self.consumers().group_of(pod)) else {
            return PodsGroup::None;
        };
        let group = groups.get(pod.metadata.namespace.as_deref(), name);
        group.map_or(PodsGroup::Unknown, PodsGroup::Known)
    }

    /// Makes a claim, or finds that it has been made: the informers may not have shown that yet.
    async fn make(
        &self,
        owner: &ClaimOwner,
        entry: &str,
        template: &ResourceClaimTemplate,
    ) -> Result<String, Error> {
        let namespace = &owner.namespace;
        let api = self.api(namespace);
        for attempt in 0..NAME_ATTEMPTS {
            let claim = made::from_template(owner, entry, template, attempt);
            let name = claim.metadata.name.clone().unwrap_or_default();
            let what = || format!("create claim {namespace}/{name} for {entry}");
            let created = api.create(&PostParams::default(), &claim).await;
            if exists_is_none(created).context(what)?.is_some() {
                return Ok(name);
            }
            let found = gone_is_none(api.get(&name).await).context(what)?;
            match found.filter(|claim| owner.owns(claim)) {
                Some(claim) if claim.metadata.deletion_timestamp.is_none() => return Ok(name),
                Some(_) => {
                    return Err(Error::Invalid(format!(
                        "resource claim {namespace}/{name} is being deleted"
                    )));
                }
                // The name is another's.
                None => {}
            }
        }
        Err(Error::Invalid(format!(
            "no name is free for the claim of {entry}"
        )))
    }

    /// The name of the claim for an entry of an owner; made by the template of that name if there is none, `named` being what
    /// the owner's status says. None where there is no such template.
    async fn claim_for(
        &self,
        owner: &ClaimOwner,
        entry: &str,
        named: Option<&str>,
        template: &str,
    ) -> Result<Option<String>, Error> {
        let namespace = &owner.namespace;
        if let Some(name) = named {
            match self.claims.get(Some(namespace), name) {
                Some(claim) if owner.owns(&claim) => return Ok(Some(name.to_owned())),
                // A claim of this name that belongs to something else is not touched.
                Some(_) => {
                    return Err(Error::Invalid(format!(
                        "resource claim {namespace}/{name} was not created for the {}",
                        owner.words()
                    )));
                }
                None => {}
            }
        }
        // Made before, and the owner's status not written then.
        if let Some(name) = self.made_for(owner, entry) {
            return Ok(Some(name));
        }
        match self.templates.get(Some(namespace), template) {
            Some(template) => self.make(owner, entry, &template).await.map(Some),
            None => Ok(None),
        }
    }

    /// Writes the names of claims, by entry, into the status of their owner, unless all stand there (`is_told`). What the owner
    /// is then, if it was written and is still there.
    async fn record<K>(
        &self,
        owner: &K,
        made: &[(&str, String)],
        is_told: impl Fn(&str, &str) -> bool,
    ) -> Result<Option<K>, Error>
    where
        K: Object + kube::Resource<Scope = NamespaceResourceScope>,
    {
        if made.iter().all(|(entry, claim)| is_told(entry, claim)) {
            return Ok(None);
        }
        let key = ObjectKey::of(owner);
        let statuses = made.iter();
        let statuses =
            statuses.map(|(entry, claim)| json!({"name": entry, "resourceClaimName": claim}));
        let apply = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": owner.meta().uid},
            "status": {"resourceClaimStatuses": statuses.collect::<Vec<_>>()},
        });
        let api: kube::Api<K> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&apply);
        let written = api.patch_status(&key.name, &params, &patch).await;
        gone_is_none(written).context(|| format!("record the claims of {} {key}", K::kind(&())))
    }

    /// The claim that was made for an entry of an owner, as far as the informers show.
    fn made_for(&self, owner: &ClaimOwner, entry: &str) -> Option<String> {
        let made = self.claims.list_indexed(owner.uid());
        let made = made.iter().map(AsRef::as_ref);
        made::made_for(made, owner, entry).map(str::to_owned)
    }

    fn api(&self, namespace: &str) -> kube::Api<ResourceClaim> {
        kube::Api::namespaced(self.client.clone(), namespace)
    }
}

/// Who may have claims, where groups are followed for theirs or not.
pub(crate) fn consumers(groups: Option<&Informer<PodGroup>>) -> ClaimConsumers {
    match groups {
        Some(_) => ClaimConsumers::PodsAndGroups,
        None => ClaimConsumers::Pods,
    }
}

/// There is nothing to make a claim by.
fn no_template(name: &str) -> Error {
    Error::Invalid(format!(
        "failed to create ResourceClaim: resourceclaimtemplate.resource.k8s.io \"{name}\" not found"
    ))
}

/// Why a claim was not made, for events.
fn reason(error: &Error) -> String {
    match error {
        Error::Api { source, .. } => format!("{error}: {}", davit_client::message_of(source)),
        error => error.to_string(),
    }
}

/// The group that a pod shares claims with.
enum PodsGroup {
    /// There is none, or groups have no claims.
    None,
    /// It is not there, or not yet: what of the pod's claims is the group's is not known.
    Unknown,
    Known(Arc<PodGroup>),
}

impl PodsGroup {
    /// The group, if it lists this entry of the pod.
    fn that_lists(&self, entry: &PodResourceClaim) -> Option<&Arc<PodGroup>> {
        match self {
            Self::Known(group) if is_of_group(group, entry) => Some(group),
            _ => None,
        }
    }
}

/// An informer for slices that says which devices there are and what taints them. What else drivers publish of them is much,
/// and matters to the scheduler alone.
pub(crate) fn watch_slices(spawner: &mut Spawner<'_>) -> Informer<ResourceSlice> {
    let trim = |slice: &mut ResourceSlice| {
        slice.spec.shared_counters = None;
        for device in slice.spec.devices.iter_mut().flatten() {
            *device = Device {
                name: std::mem::take(&mut device.name),
                taints: device.taints.take(),
                ..Device::default()
            };
        }
    };
    let api = kube::Api::all(spawner.shared.clone());
    let cancel = spawner.cancel.clone();
    Informer::spawn_trimmed(
        api,
        watcher::Config::default(),
        trim,
        spawner.tasks.set(),
        cancel,
    )
}

/// Starts the controller; the informer of the claims is shared with others. With an informer of groups it looks after the
/// claims of groups, too.
pub(crate) fn spawn(
    spawner: &mut Spawner<'_>,
    groups: Option<Informer<PodGroup>>,
) -> Informer<ResourceClaim> {
    let claims =
        spawner.informer_indexed(|claim: &ResourceClaim| made::owner_of(claim).map(str::to_owned));
    let Some(spawner) = &mut spawner.start("resourceclaim-controller") else {
        return claims;
    };
    let known = Known {
        client: spawner.client.clone(),
        pods: spawner.informers.pods.clone(),
        templates: spawner.informer(),
        claims: claims.clone(),
        groups,
        classic: Classic::default(),
        written_pods: Written::new(&spawner.informers.pods),
        written_claims: Written::new(&claims),
    };
    let events = spawner.events("resource_claim");
    let pods = spawner.controller(OfPods {
        known: known.clone(),
        events: events.clone(),
    });
    let own = spawner.controller(OfClaims {
        known: known.clone(),
    });
    spawner.feed(&known.pods, &pods, |pod: &Pod| {
        let some = entries(pod).next().is_some();
        some.then(|| ObjectKey::of(pod)).into_iter().collect()
    });
    spawner.feed(&known.claims, &pods, |claim: &ResourceClaim| {
        let owner = controller_key(&claim.metadata, "Pod");
        owner.into_iter().collect()
    });
    spawner.feed(&known.claims, &own, |claim: &ResourceClaim| {
        vec![ObjectKey::of(claim)]
    });
    spawner.feed(&known.pods, &own, claims_of);
    if let Some(groups) = known.groups.clone() {
        groups::spawn(spawner, &known, &groups, events, (&pods, &own));
    }
    let of_classic = spawner.controller(OfClassicClaims {
        client: known.client.clone(),
        pods: known.pods.clone(),
        classic: known.classic.clone(),
    });
    spawner.feed(&known.pods, &of_classic, classic::claims_of);
    let client = known.client.clone();
    spawner.task(
        "classic-claims",
        known.classic.clone().follow(client, of_classic, pods),
    );
    claims
}

fn entries(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|s| &s.resource_claims).flatten()
}

/// The claims a pod names, as far as they have names.
fn claims_of(pod: &Pod) -> Vec<ObjectKey> {
    let status = pod.status.as_ref();
    let direct = entries(pod).filter_map(|e| e.resource_claim_name.clone());
    let made = status.iter().flat_map(|s| &s.resource_claim_statuses);
    let made = made.flatten().filter_map(|s| s.resource_claim_name.clone());
    let extended = extended_claim_of(pod).map(str::to_owned);
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let key = |name| ObjectKey {
        namespace: namespace.clone(),
        name,
    };
    direct.chain(made).chain(extended).map(key).collect()
}

/// Whether a pod names a claim.
pub(crate) fn uses(pod: &Pod, claim: &ResourceClaim) -> bool {
    claims_of(pod).contains(&ObjectKey::of(claim))
}

/// The claim for the extended resources of a pod.
fn extended_claim_of(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    let status = status.extended_resource_claim_status.as_ref()?;
    Some(&status.resource_claim_name)
}
