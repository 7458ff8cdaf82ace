//! What is written: offers to drivers, reservations, wishes to deallocate.

use std::sync::Arc;
use std::time::Duration;

use davit_api::classic::{
    ConsumerReference, MOST_RESERVED, PodScheduling, PodSchedulingSpec, ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};

use crate::classic::{Classic, is_of_pod};
use crate::pod::PodInfo;

/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often a write is tried when somebody else was faster, and the pauses in between.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("classic claim {0} got deleted in the meantime")]
    Deleted(String),
    #[error("classic claim {0} is not allocated any more")]
    NotAllocated(String),
    #[error("classic claim {0} got reserved for others in the meantime")]
    InUse(String),
    #[error("{what} {name}: {}", davit_client::message_of(.error))]
    Api {
        what: &'static str,
        name: String,
        error: kube::Error,
    },
    #[error("{what} {name}: not answered within {DEADLINE:?}")]
    Deadline { what: &'static str, name: String },
    #[error("the negotiation about an earlier pod {0} is not gone yet")]
    OtherPod(String),
}

impl WriteError {
    fn code(&self) -> u16 {
        match self {
            Self::Api {
                error: kube::Error::Api(status),
                ..
            } => status.code,
            _ => 0,
        }
    }

    /// Whether another attempt with the latest state may do.
    fn is_passing(&self) -> bool {
        self.code() == 409 || matches!(self, Self::OtherPod(_))
    }
}

/// Who a pod is.
#[derive(Debug, Clone)]
pub(super) struct PodRef {
    namespace: String,
    name: String,
    pub(super) uid: String,
}

impl PodRef {
    pub(super) fn of(pod: &PodInfo) -> Self {
        Self {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            uid: pod.uid.to_string(),
        }
    }

    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

async fn within<T>(
    what: &'static str,
    name: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, WriteError> {
    let name = name.to_owned();
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(WriteError::Api { what, name, error }),
        Err(_) => Err(WriteError::Deadline { what, name }),
    }
}

fn label(claim: &ResourceClaim) -> String {
    let meta = &claim.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", name(claim))
}

fn name(claim: &ResourceClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

fn claims(client: &kube::Client, claim: &ResourceClaim) -> Api<ResourceClaim> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    Api::namespaced(client.clone(), namespace)
}

/// Changes the status of a claim, beginning with the state that is known. `change` says whether
/// there is anything to change. `Ok(None)`: there was not.
async fn change_status(
    client: &kube::Client,
    classic: &Classic,
    claim: &Arc<ResourceClaim>,
    what: &'static str,
    change: impl Fn(&mut ResourceClaim) -> Result<bool, WriteError>,
) -> Result<Option<Arc<ResourceClaim>>, WriteError> {
    let (api, label) = (claims(client, claim), label(claim));
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let known = classic.claim(namespace, name(claim));
    let mut current = known.map_or_else(|| (**claim).clone(), |k| (*k).clone());
    let mut tries = 0;
    loop {
        if current.metadata.uid != claim.metadata.uid {
            return Err(WriteError::Deleted(label));
        }
        if !change(&mut current)? {
            return Ok(None);
        }
        let params = PostParams::default();
        let write = api.replace_status(name(claim), &params, &current);
        match within(what, &label, write).await {
            Ok(written) => {
                let written = Arc::new(written);
                classic.set_claim(written.clone());
                return Ok(Some(written));
            }
            Err(error) if error.is_passing() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE * 2u32.pow(tries - 1)).await;
                let get = api.get_opt(name(claim));
                let found = within("get changed claim", &label, get).await?;
                current = found.ok_or_else(|| WriteError::Deleted(label.clone()))?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reserves an allocated claim for a pod. `Ok(None)`: it is reserved already.
pub(super) async fn reserve(
    client: &kube::Client,
    classic: &Classic,
    claim: &Arc<ResourceClaim>,
    pod: &PodRef,
) -> Result<Option<Arc<ResourceClaim>>, WriteError> {
    let what = "add reservation to classic claim";
    change_status(client, classic, claim, what, |current| {
        let label = label(current);
        let status = &mut current.status;
        if status.allocation.is_none() || status.deallocation_requested {
            return Err(WriteError::NotAllocated(label));
        }
        if status.reserved_for.iter().any(|r| r.uid == pod.uid) {
            return Ok(false);
        }
        if current.metadata.deletion_timestamp.is_some() {
            return Err(WriteError::Deleted(label));
        }
        if !current.can_be_reserved() || current.status.reserved_for.len() >= MOST_RESERVED {
            return Err(WriteError::InUse(label));
        }
        let user = ConsumerReference::pod(&pod.name, &pod.uid);
        current.status.reserved_for.push(user);
        Ok(true)
    })
    .await
}

/// Takes a pod out of a claim's reservations.
pub(super) async fn unreserve(
    client: kube::Client,
    classic: Classic,
    claim: Arc<ResourceClaim>,
    pod: String,
) {
    let what = "remove reservation from classic claim";
    let done = change_status(&client, &classic, &claim, what, |current| {
        let users = &mut current.status.reserved_for;
        let before = users.len();
        users.retain(|u| u.uid != pod);
        Ok(users.len() != before)
    });
    if let Err(error) = done.await {
        tracing::info!(%error, "the claim controller will do it");
    }
}

/// Asks the driver to take a claim's allocation back, which nobody but the pod may be about to use.
pub(super) async fn deallocate(
    client: kube::Client,
    classic: Classic,
    claim: Arc<ResourceClaim>,
    pod: String,
) {
    let what = "ask for deallocation of classic claim";
    let done = change_status(&client, &classic, &claim, what, |current| {
        let status = &mut current.status;
        let own = status.reserved_for.iter().all(|r| r.uid == pod);
        if !own || status.allocation.is_none() || status.deallocation_requested {
            return Ok(false);
        }
        status.reserved_for.clear();
        status.deallocation_requested = true;
        Ok(true)
    });
    if let Err(error) = done.await {
        tracing::info!(%error, "will be tried again");
    }
}

/// Tells the drivers what the scheduler proposes for a pod.
pub(super) async fn publish(
    client: kube::Client,
    classic: Classic,
    pod: PodRef,
    spec: PodSchedulingSpec,
) {
    let mut tries = 0;
    loop {
        match publish_once(&client, &classic, &pod, &spec, tries > 0).await {
            Ok(()) => return,
            Err(error) if error.is_passing() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE * 2u32.pow(tries - 1)).await;
            }
            Err(error) => {
                tracing::warn!(%error, pod = pod.key(), "drivers were not told of the pod");
                return;
            }
        }
    }
}

async fn publish_once(
    client: &kube::Client,
    classic: &Classic,
    pod: &PodRef,
    spec: &PodSchedulingSpec,
    ask: bool,
) -> Result<(), WriteError> {
    let api: Api<PodScheduling> = Api::namespaced(client.clone(), &pod.namespace);
    let params = PostParams::default();
    let mut known = classic
        .scheduling(&pod.namespace, &pod.name, &pod.uid)
        .map(|s| (*s).clone());
    if ask {
        known = within("get negotiation", &pod.key(), api.get_opt(&pod.name)).await?;
    }
    let written = match known {
        None => {
            let new = opened(pod, spec);
            within("open negotiation", &pod.key(), api.create(&params, &new)).await?
        }
        Some(known) if !is_of_pod(&known, &pod.uid) => {
            return Err(WriteError::OtherPod(pod.key()));
        }
        Some(known) if known.spec == *spec => known,
        Some(mut known) => {
            known.spec = spec.clone();
            let write = api.replace(&pod.name, &params, &known);
            within("change negotiation", &pod.key(), write).await?
        }
    };
    classic.set_scheduling(Arc::new(written));
    Ok(())
}

fn opened(pod: &PodRef, spec: &PodSchedulingSpec) -> PodScheduling {
    PodScheduling {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: spec.clone(),
        ..PodScheduling::default()
    }
}

/// Ends the negotiation about a pod that has its node.
pub(super) async fn close(client: kube::Client, classic: Classic, pod: PodRef) {
    let Some(known) = classic.scheduling(&pod.namespace, &pod.name, &pod.uid) else {
        return;
    };
    let api: Api<PodScheduling> = Api::namespaced(client, &pod.namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: known.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let call = api.delete(&pod.name, &params);
    match within("end negotiation", &pod.key(), call).await {
        Ok(_) => classic.remove_scheduling(&known),
        Err(error) if matches!(error.code(), 404 | 409) => classic.remove_scheduling(&known),
        Err(error) => tracing::info!(%error, "it ends with the pod"),
    }
}
