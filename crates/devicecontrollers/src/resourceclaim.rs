//! Resource claims: made from templates for the pods that name them, reserved for pods that were put on a node past the
//! scheduler, and given back when nobody uses them any more.

mod classic;
mod groups;
mod made;
mod plan;
mod written;

use async_trait::async_trait;
use classic::{Classic, OfClassicClaims};
use davit_api::resource_claims::{
    ClaimConsumers, group_consumer, is_of_group, is_pod, is_pod_group, name_in_group, pod_consumer,
};
use davit_client::{EventRecorder, Informer, ObjectKey, object_ref};
use davit_reconcile::owners::{controller_key, controller_of};
use davit_reconcile::pods::node_of;
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, exists_is_none, gone_is_none};
use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{
    Device, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate, ResourceSlice,
};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher;
use made::ClaimOwner;
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
    let api = kube::Api::all(spawner.client.clone());
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
    let claims = Informer::spawn_indexed(
        kube::Api::all(spawner.client.clone()),
        watcher::Config::default(),
        |claim: &ResourceClaim| made::owner_of(claim).map(str::to_owned),
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
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

/// Makes the claims of pods.
struct OfPods {
    known: Known,
    events: EventRecorder,
}

#[async_trait]
impl Reconcile for OfPods {
    const NAME: &'static str = "resourceclaim-controller-pods";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let known = &self.known;
        if !known.is_synced() {
            return Ok(Next::After(SOON));
        }
        if known.written_pods.is_ahead(key) {
            return Ok(Next::Wait);
        }
        let Some(pod) = known.pods.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        if plan::is_done(&pod) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let group = known.group_of(&pod);
        if matches!(group, PodsGroup::Unknown) {
            return Ok(Next::Wait);
        }
        let mut made = Vec::new();
        for entry in entries(&pod) {
            let Some(template) = &entry.resource_claim_template_name else {
                continue;
            };
            if plan::does_without(&pod, &entry.name) {
                continue;
            }
            let found = match group.that_lists(entry) {
                Some(group) => Ok(self.claim_of_group(&pod, entry, group)),
                None => self.claim_for(&pod, entry, template).await,
            };
            match found {
                Ok(Some(name)) => {
                    made.push(json!({"name": entry.name, "resourceClaimName": name}));
                }
                // The names of classic claims follow from the pods', and those of a group's may come.
                Ok(None) => {}
                Err(error) => {
                    let object = object_ref(&*pod);
                    let text = format!("PodResourceClaim {}: {}", entry.name, reason(&error));
                    self.events
                        .warning(&object, "FailedResourceClaimCreation", text);
                    return Err(error);
                }
            }
        }
        self.record(&pod, &made).await?;
        self.reserve(&pod, &group).await?;
        Ok(Next::Wait)
    }
}

fn reason(error: &Error) -> String {
    match error {
        Error::Api { source, .. } => format!("{error}: {}", davit_client::message_of(source)),
        error => error.to_string(),
    }
}

impl OfPods {
    /// The name of the claim that the pod's group has for an entry, once there is one.
    fn claim_of_group(
        &self,
        pod: &Pod,
        entry: &PodResourceClaim,
        group: &PodGroup,
    ) -> Option<String> {
        let (known, owner) = (&self.known, ClaimOwner::group(group));
        let named = plan::name_in_status(pod, &entry.name);
        let named = named.filter(|name| {
            let claim = known.claims.get(Some(&owner.namespace), name);
            claim.is_some_and(|claim| owner.owns(&claim))
        });
        // The group's status may be known before its claim is.
        let named = named.or_else(|| name_in_group(group, &entry.name)?);
        let made = || known.made_for(&owner, &entry.name);
        named.map(str::to_owned).or_else(made)
    }

    /// The name of the claim for an entry with a template; made now if there is none. None for a claim of the classic
    /// API, from a template of the classic API.
    async fn claim_for(
        &self,
        pod: &Pod,
        entry: &PodResourceClaim,
        template: &str,
    ) -> Result<Option<String>, Error> {
        let known = &self.known;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let owner = ClaimOwner::pod(pod);
        let named = plan::name_in_status(pod, &entry.name);
        if let Some(name) = named {
            match known.claims.get(Some(namespace), name) {
                Some(claim) if owner.owns(&claim) => return Ok(Some(name.to_owned())),
                // A claim of this name that belongs to something else is not touched.
                Some(_) => {
                    return Err(Error::Invalid(format!(
                        "resource claim {namespace}/{name} was not created for the pod"
                    )));
                }
                None => {}
            }
        }
        if named.is_none() && known.classic.is_made_for(pod, entry) {
            return Ok(None);
        }
        // Made before, and the pod's status not written then.
        if let Some(name) = known.made_for(&owner, &entry.name) {
            return Ok(Some(name));
        }
        let Some(found) = known.templates.get(Some(namespace), template) else {
            if let Some(found) = known.classic.template(namespace, template) {
                classic::make(&known.client, pod, entry, &found).await?;
                return Ok(None);
            }
            return Err(Error::Invalid(format!(
                "failed to create ResourceClaim: resourceclaimtemplate.resource.k8s.io \"{template}\" not found"
            )));
        };
        let made = known.make(&owner, &entry.name, &found).await;
        made.map(Some)
    }

    /// Writes the names into the pod's status, if they are not there.
    async fn record(&self, pod: &Pod, made: &[serde_json::Value]) -> Result<(), Error> {
        let known = |claim: &serde_json::Value| {
            let (name, wanted) = (claim["name"].as_str(), claim["resourceClaimName"].as_str());
            name.is_some_and(|n| plan::name_in_status(pod, n) == wanted)
        };
        if made.iter().all(known) {
            return Ok(());
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let apply = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": pod.metadata.uid},
            "status": {"resourceClaimStatuses": made},
        });
        let api: kube::Api<Pod> = kube::Api::namespaced(self.known.client.clone(), namespace);
        let params = PatchParams::apply(MANAGER).force();
        let written = api.patch_status(name, &params, &Patch::Apply(&apply)).await;
        let what = || format!("record the claims of pod {namespace}/{name}");
        if let Some(written) = gone_is_none(written).context(what)? {
            self.known.written_pods.note(&ObjectKey::of(pod), &written);
        }
        Ok(())
    }

    /// A pod that was put on its node past the scheduler gets a reservation for claims that are allocated, or its group does.
    async fn reserve(&self, pod: &Pod, group: &PodsGroup) -> Result<(), Error> {
        if node_of(pod).is_none() {
            return Ok(());
        }
        for entry in entries(pod) {
            let group = group.that_lists(entry);
            let consumer = group.map_or_else(|| pod_consumer(pod), |group| group_consumer(group));
            let direct = entry.resource_claim_name.as_deref();
            if let Some(name) = direct.or_else(|| plan::name_in_status(pod, &entry.name)) {
                self.reserve_one(pod, name, consumer).await?;
            }
        }
        if let Some(extended) = extended_claim_of(pod) {
            self.reserve_one(pod, extended, pod_consumer(pod)).await?;
        }
        Ok(())
    }

    async fn reserve_one(
        &self,
        pod: &Pod,
        name: &str,
        consumer: ResourceClaimConsumerReference,
    ) -> Result<(), Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let claim = self.known.claims.get(Some(namespace), name);
        let Some(claim) = claim.and_then(|claim| plan::with_reservation(&claim, consumer)) else {
            return Ok(());
        };
        let api = self.known.api(namespace);
        let params = PostParams::default();
        let written = api.replace_status(name, &params, &claim);
        let what = || format!("reserve claim {namespace}/{name} for its pod");
        gone_is_none(written.await).context(what)?;
        Ok(())
    }
}

/// Frees and deletes claims.
struct OfClaims {
    known: Known,
}

#[async_trait]
impl Reconcile for OfClaims {
    const NAME: &'static str = "resourceclaim-controller";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if !self.known.is_synced() {
            return Ok(Next::After(SOON));
        }
        let written = &self.known.written_claims;
        if written.is_ahead(key) {
            return Ok(Next::Wait);
        }
        let Some(claim) = self.known.claims.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        let api = self.known.api(&key.namespace);
        let mut users = Vec::new();
        let mut gone = Vec::new();
        for user in plan::users(&claim) {
            match self.state_of(key, &user).await? {
                Consumer::Uses => users.push(user),
                Consumer::Done => {}
                Consumer::Gone => gone.push(user.uid),
            }
        }
        let mut claim = (*claim).clone();
        let is_live = claim.metadata.deletion_timestamp.is_none();
        if users.is_empty() && is_live && self.is_orphan(&claim, &gone) {
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: claim.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            let deleted = api.delete(&key.name, &params).await;
            let deleted = gone_is_none(deleted).context(|| format!("delete claim {key}"))?;
            let Some(deleted) = deleted else {
                return Ok(Next::Wait);
            };
            // without its finalizer it would be gone at once
            let Some(deleting) = deleted.left() else {
                return Ok(Next::Wait);
            };
            claim = deleting;
        }
        if let Some(status) = plan::freed_status(&claim, users.clone()) {
            claim.status = Some(status);
            let write = api
                .replace_status(&key.name, &PostParams::default(), &claim)
                .await;
            match gone_is_none(write).context(|| format!("free claim {key}"))? {
                Some(freed) => claim = freed,
                None => return Ok(Next::Wait),
            }
        }
        if plan::drops_finalizer(&claim, &users) {
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            finalizers.retain(|f| f != FINALIZER);
            let write = api.replace(&key.name, &PostParams::default(), &claim).await;
            let what = || format!("remove the finalizer of claim {key}");
            match gone_is_none(write).context(what)? {
                Some(open) => claim = open,
                None => return Ok(Next::Wait),
            }
        }
        written.note(key, &claim);
        Ok(Next::Wait)
    }
}

impl OfClaims {
    /// What became of a consumer.
    async fn state_of(
        &self,
        key: &ObjectKey,
        user: &ResourceClaimConsumerReference,
    ) -> Result<Consumer, Error> {
        if let Some(groups) = self.known.groups.as_ref().filter(|_| is_pod_group(user)) {
            return self.state_of_group(key, user, groups).await;
        }
        if !is_pod(user) {
            // Whoever reserved it for something else takes that away.
            return Ok(Consumer::Uses);
        }
        let same = |pod: &Pod| pod.metadata.uid.as_deref() == Some(&*user.uid);
        let known = self.known.pods.get(Some(&key.namespace), &user.name);
        if let Some(pod) = known.filter(|pod| same(pod)) {
            return Ok(Consumer::of(&pod));
        }
        if self
            .known
            .pods
            .has_gone(Some(&key.namespace), &user.name, &user.uid)
        {
            return Ok(Consumer::Gone);
        }
        // The informer may be behind; only the API server can say that a pod is gone which it has not seen go.
        let api: kube::Api<Pod> = kube::Api::namespaced(self.known.client.clone(), &key.namespace);
        let pod = api.get_opt(&user.name).await;
        let pod = pod.context(|| format!("look for pod {} that uses claim {key}", user.name))?;
        Ok(pod
            .filter(same)
            .map_or(Consumer::Gone, |pod| Consumer::of(&pod)))
    }

    /// What became of a consumer that is a group.
    async fn state_of_group(
        &self,
        key: &ObjectKey,
        user: &ResourceClaimConsumerReference,
        groups: &Informer<PodGroup>,
    ) -> Result<Consumer, Error> {
        let same = |group: &PodGroup| group.metadata.uid.as_deref() == Some(&*user.uid);
        let known = groups.get(Some(&key.namespace), &user.name);
        if known.is_some_and(|group| same(&group)) {
            return Ok(Consumer::Uses);
        }
        if groups.has_gone(Some(&key.namespace), &user.name, &user.uid) {
            return Ok(Consumer::Gone);
        }
        let client = self.known.client.clone();
        let api: kube::Api<PodGroup> = kube::Api::namespaced(client, &key.namespace);
        let group = api.get_opt(&user.name).await;
        let what = || format!("look for group {} that uses claim {key}", user.name);
        let is_there = group.context(what)?.is_some_and(|group| same(&group));
        Ok(if is_there {
            Consumer::Uses
        } else {
            Consumer::Gone
        })
    }

    /// Whether the pod that the claim was made for has ended, was replaced, or is among those that are `gone` for sure. One of
    /// which nothing is known is left to garbage collection.
    fn is_orphan(&self, claim: &ResourceClaim, gone: &[String]) -> bool {
        let Some(owner) = controller_of(&claim.metadata).filter(|o| o.kind == "Pod") else {
            return false;
        };
        let namespace = claim.metadata.namespace.as_deref();
        let pod: Option<Arc<Pod>> = self.known.pods.get(namespace, &owner.name);
        gone.contains(&owner.uid)
            || pod.is_some_and(|p| {
                p.metadata.uid.as_deref() != Some(&*owner.uid) || plan::is_done(&p)
            })
    }
}

/// What became of a pod or group that a claim is reserved for.
enum Consumer {
    /// It is there and may use the claim.
    Uses,
    /// It is there and will not use the claim any more.
    Done,
    /// It is not there.
    Gone,
}

impl Consumer {
    fn of(pod: &Pod) -> Self {
        if plan::is_done(pod) {
            Self::Done
        } else {
            Self::Uses
        }
    }
}
