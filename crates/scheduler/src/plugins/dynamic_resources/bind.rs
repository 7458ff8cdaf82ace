//! What is written: allocations and reservations before a pod is bound, and their undoing.

use std::sync::Arc;
use std::time::Duration;

use davit_api::resource_claims::pod_consumer;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::api::resource::v1::{
    AllocationResult, ResourceClaim, ResourceClaimConsumerReference,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use super::conditions::{self, Readiness};
use super::extended;
use super::{Cycle, DynamicResources, FINALIZER, Reserved};
use crate::devices::{Devices, allocation};
use crate::pod::PodInfo;

/// How often a write is tried when somebody else was faster.
const TRIES: usize = 5;
/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often a claim is read of which nobody knows whether it is allocated, and the longest pause between.
const LOOKS: u32 = 7;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often binding conditions are looked at.
const POLL: Duration = Duration::from_secs(5);

/// Why a claim could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum BindError {
    #[error("claim {0} got deleted in the meantime")]
    Deleted(String),
    #[error("claim {0} got allocated elsewhere in the meantime")]
    AllocatedElsewhere(String),
    #[error("{what} claim {claim}: {}", davit_client::message_of(.error))]
    Api {
        what: &'static str,
        claim: String,
        error: kube::Error,
    },
    #[error("{what} claim {claim}: not answered within {DEADLINE:?}")]
    Deadline { what: &'static str, claim: String },
    #[error("{0}")]
    Conditions(String),
    #[error("there is no client to write with")]
    NoClient,
}

fn label(claim: &ResourceClaim) -> String {
    let meta = &claim.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default())
}

fn api(client: &kube::Client, claim: &ResourceClaim) -> Api<ResourceClaim> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    Api::namespaced(client.clone(), namespace)
}

fn name(claim: &ResourceClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

pub(super) async fn within<T>(
    what: &'static str,
    claim: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, BindError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(BindError::Api {
            what,
            claim: claim.to_owned(),
            error,
        }),
        Err(_) => Err(BindError::Deadline {
            what,
            claim: claim.to_owned(),
        }),
    }
}

fn is_conflict(error: &BindError) -> bool {
    matches!(error, BindError::Api { error: kube::Error::Api(s), .. } if s.code == 409 && s.reason == "Conflict")
}

/// Whether the write may have been made although it failed. Where it is too much (429) that may be said of a second attempt.
fn is_in_doubt(error: &BindError) -> bool {
    match error {
        BindError::Deadline { .. } => true,
        BindError::Api { error, .. } => {
            !matches!(error, kube::Error::Api(status) if status.code < 500 && status.code != 429)
        }
        _ => false,
    }
}

impl DynamicResources {
    /// Writes what was reserved and waits until the devices are ready.
    pub(super) async fn write(&self, cycle: &Cycle, pod: &PodInfo) -> Result<(), BindError> {
        let reserved = cycle.notes.lock().reserved.clone();
        let client = self.client.as_ref().ok_or(BindError::NoClient)?;
        let mut claims = Vec::new();
        for (i, claim) in cycle.claims.iter().enumerate() {
            if cycle.is_reserved(i) {
                claims.push(claim.clone());
                continue;
            }
            let decided = reserved.iter().find(|r| r.claim == Some(i));
            let claim = self
                .write_one(client, cycle, claim, decided, &cycle.consumers[i])
                .await?;
            let mut notes = cycle.notes.lock();
            notes.reserved.retain(|r| r.claim != Some(i));
            notes.written.push(claim.clone());
            drop(notes);
            claims.push(claim);
        }
        if let Some(decided) = reserved.iter().find(|r| r.claim.is_none()) {
            claims.extend(self.write_extended(client, cycle, decided, pod).await?);
        }
        self.record_taken(client, cycle, pod).await?;
        if claims.iter().any(|c| conditions::has_conditions(c)) {
            self.wait_ready(client, &claims, pod).await?;
        }
        Ok(())
    }

    /// Adds finalizer, allocation and reservation to a claim. What may have been written and not acknowledged is written
    /// again: the claim's version tells whether it was.
    async fn write_one(
        &self,
        client: &kube::Client,
        cycle: &Cycle,
        claim: &Arc<ResourceClaim>,
        decided: Option<&Reserved>,
        consumer: &ResourceClaimConsumerReference,
    ) -> Result<Arc<ResourceClaim>, BindError> {
        let mut current = (**claim).clone();
        let mut tries = 0;
        let mut doubtful = false;
        let written = loop {
            let error = match put(client, current.clone(), decided, consumer).await {
                Ok(written) => break written,
                Err(error) => error,
            };
            doubtful |= is_in_doubt(&error);
            if tries == TRIES || !(is_conflict(&error) || is_in_doubt(&error)) {
                // one that is gone, or another's, holds nothing that was decided here
                let is_known = matches!(
                    error,
                    BindError::Deleted(_) | BindError::AllocatedElsewhere(_)
                );
                if let Some(decided) = decided.filter(|_| doubtful && !is_known) {
                    let doubt = (decided.key.clone(), claim.clone());
                    cycle.notes.lock().doubtful.push(doubt);
                }
                return Err(error);
            }
            tries += 1;
            tokio::time::sleep(Duration::from_millis(10 << tries)).await;
            let get = within(
                "get updated",
                &label(claim),
                api(client, claim).get(name(claim)),
            )
            .await;
            match get {
                Ok(found) => current = found,
                // what is tried again with the old version tells as well
                Err(_) if doubtful => {}
                Err(error) => return Err(error),
            }
        };
        let written = Arc::new(written);
        self.devices.set_claim(written.clone());
        if let Some(decided) = decided {
            self.devices.finish(&decided.key);
        }
        Ok(written)
    }

    /// Creates the claim for extended resources and says in the pod's status who gets what.
    async fn write_extended(
        &self,
        client: &kube::Client,
        cycle: &Cycle,
        decided: &Reserved,
        pod: &PodInfo,
    ) -> Result<Option<Arc<ResourceClaim>>, BindError> {
        let planned = decided.planned.as_ref();
        let Some(extended) = planned.and_then(|p| p.extended.as_ref()) else {
            return Ok(None);
        };
        let mut wanted = (*extended.claim).clone();
        wanted.metadata.name = None;
        wanted.metadata.generate_name = Some(generate_name(&pod.name));
        let api = api(client, &wanted);
        let params = PostParams::default();
        let create = api.create(&params, &wanted);
        let created = Arc::new(within("create", &pod.key(), create).await?);
        cycle.notes.lock().created = Some(created.clone());
        let written = self
            .write_one(
                client,
                cycle,
                &created,
                Some(decided),
                &pod_consumer(&pod.pod),
            )
            .await?;
        let status = extended::status(extended, name(&written));
        let patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"extendedResourceClaimStatus": status}});
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
        let params = PatchParams::default();
        let patch = Patch::Merge(&patch);
        let write = pods.patch_status(&pod.name, &params, &patch);
        within("record in the pod's status", &label(&written), write).await?;
        Ok(Some(written))
    }

    /// Waits until the binding conditions of all devices hold.
    async fn wait_ready(
        &self,
        client: &kube::Client,
        claims: &[Arc<ResourceClaim>],
        pod: &PodInfo,
    ) -> Result<(), BindError> {
        announce(client, pod).await;
        loop {
            let mut pending = false;
            for claim in claims {
                let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
                let current = self.devices.claim(namespace, name(claim));
                let Some(current) = current.filter(|c| c.metadata.uid == claim.metadata.uid) else {
                    return Err(BindError::Deleted(label(claim)));
                };
                if allocation(&current).is_none() {
                    return Err(BindError::Conditions(format!(
                        "claim {} is not allocated any more",
                        label(claim)
                    )));
                }
                match conditions::readiness(&current, Timestamp::now(), self.args.binding_timeout) {
                    Readiness::Ready => {}
                    Readiness::Pending => pending = true,
                    Readiness::Failed(why) => return Err(BindError::Conditions(why)),
                }
            }
            if !pending {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Whether an allocation is the one that was decided: only when it was written is added later.
fn is_same(written: &AllocationResult, decided: &AllocationResult) -> bool {
    let written = AllocationResult {
        allocation_timestamp: decided.allocation_timestamp.clone(),
        ..written.clone()
    };
    written == *decided
}

/// One attempt to write a claim as it was last seen.
async fn put(
    client: &kube::Client,
    mut claim: ResourceClaim,
    decided: Option<&Reserved>,
    consumer: &ResourceClaimConsumerReference,
) -> Result<ResourceClaim, BindError> {
    let label = label(&claim);
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(BindError::Deleted(label));
    }
    let api = api(client, &claim);
    let params = PostParams::default();
    let decided = decided.map(|d| &d.allocation);
    // Another pod of the group may have written what was decided for both.
    let written = decided.is_some_and(|d| allocation(&claim).is_some_and(|a| is_same(a, d)));
    let decided = decided.filter(|_| !written);
    if let Some(decided) = decided {
        if allocation(&claim).is_some() {
            return Err(BindError::AllocatedElsewhere(label));
        }
        let finalizers = claim.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
            let at = name(&claim).to_owned();
            claim = within(
                "add finalizer to",
                &label,
                api.replace(&at, &params, &claim),
            )
            .await?;
        }
        let mut decided = decided.clone();
        decided.allocation_timestamp = Some(Time(Timestamp::now()));
        claim.status.get_or_insert_default().allocation = Some(decided);
    } else if allocation(&claim).is_none() {
        return Err(BindError::Conditions(format!(
            "claim {label} is not allocated any more"
        )));
    }
    let status = claim.status.get_or_insert_default();
    let reserved = status.reserved_for.get_or_insert_default();
    if !reserved.iter().any(|r| r.uid == consumer.uid) {
        reserved.push(consumer.clone());
    } else if decided.is_none() {
        // Another pod of the group has written it all.
        return Ok(claim);
    }
    let what = if decided.is_some() {
        "add allocation and reservation to"
    } else {
        "add reservation to"
    };
    let at = name(&claim).to_owned();
    let write = api.replace_status(&at, &params, &claim);
    within(what, &label, write).await
}

/// `<pod>-extended-resources-`, shortened so that the name fits.
fn generate_name(pod: &str) -> String {
    const MOST: usize = 253 - 5;
    let rest = "-extended-resources-";
    let keep = pod.len().min(MOST - rest.len());
    let head: String = pod.chars().take(keep).collect();
    format!("{}{rest}", head.trim_end_matches(['-', '.']))
}

/// Says that the pod waits for its devices.
async fn announce(client: &kube::Client, pod: &PodInfo) {
    let now = Timestamp::now();
    let name = davit_client::event_name(&pod.name, now);
    let now = Time(now);
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(pod.namespace.to_string()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name.to_string()),
            namespace: Some(pod.namespace.to_string()),
            uid: Some(pod.uid.to_string()),
            ..ObjectReference::default()
        },
        reason: Some("BindingConditionsPending".to_owned()),
        message: Some("Waiting for the binding conditions of the pod's devices".to_owned()),
        type_: Some("Normal".to_owned()),
        source: Some(EventSource {
            component: Some(pod.scheduler_name().to_owned()),
            host: None,
        }),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..Event::default()
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &pod.namespace);
    let params = PostParams::default();
    let create = events.create(&params, &event);
    if let Err(error) = within("tell of waiting for", &pod.key(), create).await {
        tracing::debug!(%error, "event not written");
    }
}

/// Takes a claim's allocation back, so that the pod that waits can be tried elsewhere.
pub(super) async fn deallocate(client: kube::Client, claim: Arc<ResourceClaim>) {
    let mut free = (*claim).clone();
    if let Some(status) = &mut free.status {
        status.allocation = None;
        status.reserved_for = None;
        status.devices = None;
    }
    let api = api(&client, &claim);
    let params = PostParams::default();
    let write = api.replace_status(name(&claim), &params, &free);
    if let Err(error) = within("deallocate", &label(&claim), write).await {
        tracing::info!(%error, "will be tried again");
    }
}

/// Devices that were decided for a claim. They are free, unless the claim is known to have them, when this is dropped.
pub(super) struct Booking {
    pub(super) devices: Devices,
    pub(super) key: String,
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.devices.finish(&self.key);
    }
}

/// Learns whether a claim is allocated after a write of which nobody knows. Until then its devices stay booked.
pub(super) async fn learn(client: kube::Client, claim: Arc<ResourceClaim>, booking: Booking) {
    let devices = &booking.devices;
    let api = api(&client, &claim);
    let mut pause = Duration::from_secs(1);
    for _ in 0..LOOKS {
        match within("get", &label(&claim), api.get_opt(name(&claim))).await {
            Ok(Some(found)) if found.metadata.uid == claim.metadata.uid => {
                devices.set_claim(Arc::new(found));
                return;
            }
            Ok(_) => {
                devices.remove_claim(&claim);
                return;
            }
            Err(error) => tracing::debug!(%error, "will be tried again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    tracing::warn!(
        claim = label(&claim),
        "whether it is allocated is not known"
    );
}

/// Takes a pod, or a group, out of a claim's reservations. A claim that nobody else has reserved is free with that, as after its last
/// pod has ended: the claim controller frees only those from which it takes the last pod itself.
pub(super) async fn unreserve(
    client: kube::Client,
    devices: Devices,
    claim: Arc<ResourceClaim>,
    consumer: String,
) {
    let api = api(&client, &claim);
    let params = PostParams::default();
    let mut current = (*claim).clone();
    for _ in 0..=TRIES {
        if !leave(&mut current, &consumer) {
            return;
        }
        let write = api.replace_status(name(&claim), &params, &current);
        match within("unreserve", &label(&claim), write).await {
            Ok(written) => return devices.set_claim(Arc::new(written)),
            Err(error) if is_conflict(&error) => {}
            Err(error) => {
                tracing::info!(%error, "the claim controller will do it");
                return;
            }
        }
        match within("get", &label(&claim), api.get_opt(name(&claim))).await {
            Ok(Some(found)) if found.metadata.uid == claim.metadata.uid => current = found,
            Ok(_) => return,
            Err(error) => {
                tracing::info!(%error, "the claim controller will do it");
                return;
            }
        }
    }
}

/// The claim without the consumer of this UID, free if that was the last. Whether it was there.
fn leave(claim: &mut ResourceClaim, consumer: &str) -> bool {
    let Some(status) = &mut claim.status else {
        return false;
    };
    let users = status.reserved_for.get_or_insert_default();
    let before = users.len();
    users.retain(|user| user.uid != consumer);
    let was_there = users.len() != before;
    if users.is_empty() {
        status.reserved_for = None;
        status.allocation = None;
        status.devices = None;
    }
    was_there
}

/// Frees and deletes a claim for extended resources of an earlier attempt.
pub(super) async fn discard(client: kube::Client, claim: Arc<ResourceClaim>) {
    deallocate(client.clone(), claim.clone()).await;
    delete(client, claim).await;
}

/// Deletes a claim for extended resources that is not needed any more.
pub(super) async fn delete(client: kube::Client, claim: Arc<ResourceClaim>) {
    let api = api(&client, &claim);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: claim.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let call = api.delete(name(&claim), &params);
    if let Err(error) = within("delete", &label(&claim), call).await {
        tracing::info!(%error, "the claim controller will do it");
    }
}
