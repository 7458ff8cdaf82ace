//! Volumes for claims whose pods have been given a node, and more room for claims that ask for more.

use super::Shared;
use async_trait::async_trait;
use davit_client::{ObjectKey, object_ref};
use davit_reconcile::{Context, Error, Next, Reconcile, exists_is_none, gone_is_none};
use davit_volume::annotations::SELECTED_NODE;
use davit_volume::binding::{selected_node, volume_name};
use davit_volume::class::claim_class;
use davit_volume::local::{self, VolumeLimit};
use davit_volume::matching::{capacity_of, size_of};
use davit_volume::names::provisioned_volume_name;
use davit_volume::provisioning::{self, Origin};
use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The condition of a claim whose file system has still to grow, and what Kubernetes says with it.
const FILE_SYSTEM_PENDING: &str = "FileSystemResizePending";
const FILE_SYSTEM_WAITS: &str =
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";

/// When a growth that there was no room for is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// One worker: each volume sees the room that those before it have left.
pub(super) struct Claims(pub(super) Arc<Shared>);

#[async_trait]
impl Reconcile for Claims {
    const NAME: &'static str = "local-volumes";
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let claims = &self.0.informers.claims;
        let Some(claim) = claims.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        match volume_name(&claim) {
            Some(volume) => self.grow(&claim, volume).await,
            None => self.provision(&claim).await,
        }
    }
}

impl Claims {
    /// The claim's class, if this provisioner serves it.
    fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
        let class = self.0.classes.get(None, claim_class(claim)?)?;
        (class.provisioner == local::PROVISIONER).then_some(class)
    }

    async fn provision(&self, claim: &PersistentVolumeClaim) -> Result<Next, Error> {
        let Some(class) = self.class_of(claim) else {
            return Ok(Next::Wait);
        };
        if let Some(why) = provisioning::unsupported(claim) {
            self.warn(claim, "ProvisioningFailed", &why);
            return Ok(Next::Wait);
        }
        let limit = match VolumeLimit::of_class(&class) {
            Ok(limit) => limit,
            Err(why) => {
                self.warn(claim, "ProvisioningFailed", &why);
                return Ok(Next::Wait);
            }
        };
        let origin = self.origin(claim, limit);
        if let Origin::Wait(why) = &origin {
            self.warn(claim, "ProvisioningFailed", why);
            return Ok(Next::After(RETRY));
        }
        let Some(node_name) = selected_node(claim) else {
            if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
                let why = "the volume is made on the node of its first pod: the class needs volumeBindingMode WaitForFirstConsumer";
                self.warn(claim, "ProvisioningFailed", why);
            }
            return Ok(Next::Wait);
        };
        let node = self.0.informers.nodes.get(None, node_name);
        let place = node.and_then(|node| {
            let storage = provisioning::storage_of(&node)?;
            Some((node, storage))
        });
        let Some((node, storage)) = place else {
            let why = format!("node {node_name} keeps no local volumes");
            return self.choose_another(claim, &why).await;
        };
        let kept = self.0.kept_by(node_name);
        let own = provisioned_volume_name(claim.metadata.uid.as_deref().unwrap_or_default());
        let others = kept.iter().map(|volume| &**volume);
        let others = others.filter(|volume| volume.metadata.name.as_deref() != Some(&*own));
        let room = provisioning::room(&storage, provisioning::promised(others));
        let wanted = provisioning::wanted(claim);
        if wanted > room {
            let why = format!("node {node_name} has room for {room} bytes, {wanted} are asked for");
            return self.choose_another(claim, &why).await;
        }
        let mut made = provisioning::volume(claim, &class, limit, &node, &storage);
        if let Origin::Volume(source) = origin {
            if !kept
                .iter()
                .any(|kept| kept.metadata.name.as_deref() == Some(&*source))
            {
                let why = format!("volume {source}, the data source, is not on node {node_name}");
                return self.choose_another(claim, &why).await;
            }
            made["metadata"]["annotations"][local::SOURCE] = json!(source);
        }
        self.create(claim, made).await
    }

    fn origin(&self, claim: &PersistentVolumeClaim, limit: VolumeLimit) -> Origin {
        let informers = &self.0.informers;
        let namespace = claim.metadata.namespace.as_deref();
        let name = local::source_claim(claim).ok().flatten();
        let source = name.and_then(|name| informers.claims.get(namespace, name));
        let volume = source.as_deref().and_then(volume_name);
        let volume = volume.and_then(|name| informers.volumes.get(None, name));
        provisioning::origin(claim, limit, source.as_deref(), volume.as_deref())
    }

    async fn create(&self, claim: &PersistentVolumeClaim, volume: Value) -> Result<Next, Error> {
        let volume: PersistentVolume =
            serde_json::from_value(volume).map_err(|error| Error::Invalid(error.to_string()))?;
        let name = volume.metadata.name.clone().unwrap_or_default();
        let api: Api<PersistentVolume> = Api::all(self.0.client.clone());
        let made = api.create(&PostParams::default(), &volume).await;
        let made = exists_is_none(made).context(|| format!("create persistent volume {name}"))?;
        if made.is_some() {
            let text = format!("Successfully provisioned volume {name}");
            let reference = object_ref(claim);
            self.0
                .events
                .normal(&reference, "ProvisioningSucceeded", text);
        }
        Ok(Next::Wait)
    }

    /// The node cannot serve the claim: the scheduler is to choose another.
    async fn choose_another(
        &self,
        claim: &PersistentVolumeClaim,
        why: &str,
    ) -> Result<Next, Error> {
        self.warn(
            claim,
            "ProvisioningFailed",
            &format!("failed to provision volume with StorageClass: {why}"),
        );
        let version = claim.metadata.resource_version.as_deref();
        let patch = json!({"metadata": {
            "resourceVersion": version,
            "annotations": {(SELECTED_NODE): null},
        }});
        self.patch_claim(claim, patch, false).await
    }

    async fn grow(&self, claim: &PersistentVolumeClaim, volume: &str) -> Result<Next, Error> {
        let Some(volume) = self.0.informers.volumes.get(None, volume) else {
            return Ok(Next::Wait);
        };
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
        if !local::is_ours(&volume) || phase != Some("Bound") {
            return Ok(Next::Wait);
        }
        let (wanted, has) = (
            provisioning::wanted(claim),
            provisioning::bytes(capacity_of(&volume)),
        );
        if wanted > has {
            let Some(node) = self.0.keeper(&volume) else {
                return Ok(Next::Wait);
            };
            let room = self.room_of(&node);
            if wanted - has > room {
                let why = format!(
                    "the volume's node has room for {room} bytes more, {} are asked for",
                    wanted - has
                );
                self.warn(claim, "VolumeResizeFailed", &why);
                return Ok(Next::After(RETRY));
            }
            self.resize(claim, &volume).await?;
        }
        let size = wanted.max(has);
        // Its node makes an image larger, and says so.
        if local::is_image(&volume) && local::made_bytes(&volume) < Some(size) {
            return Ok(Next::Wait);
        }
        if local::has_file_system(&volume) {
            return self.leave_to_node(claim, size).await;
        }
        self.confirm(claim, size).await
    }

    fn room_of(&self, node: &Node) -> u64 {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let kept = self.0.kept_by(name);
        let promised = provisioning::promised(kept.iter().map(|volume| &**volume));
        let storage = provisioning::storage_of(node);
        storage.map_or(0, |storage| provisioning::room(&storage, promised))
    }

    async fn resize(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), Error> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let api: Api<PersistentVolume> = Api::all(self.0.client.clone());
        let patch = Patch::Merge(json!({"spec": {"capacity": {"storage": request(claim)}}}));
        let patched = api.patch(name, &PatchParams::default(), &patch).await;
        gone_is_none(patched).context(|| format!("resize persistent volume {name}"))?;
        Ok(())
    }

    /// The file system on an image grows where it is mounted, or when it is next.
    async fn leave_to_node(
        &self,
        claim: &PersistentVolumeClaim,
        bytes: u64,
    ) -> Result<Next, Error> {
        let status = claim.status.as_ref();
        let mut conditions = status
            .and_then(|s| s.conditions.clone())
            .unwrap_or_default();
        let is_told = conditions.iter().any(|c| c.type_ == FILE_SYSTEM_PENDING);
        if is_told || provisioning::bytes(size_of(claim)) >= bytes {
            return Ok(Next::Wait);
        }
        conditions.push(PersistentVolumeClaimCondition {
            type_: FILE_SYSTEM_PENDING.to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(Time(Timestamp::now())),
            message: Some(FILE_SYSTEM_WAITS.to_owned()),
            ..PersistentVolumeClaimCondition::default()
        });
        let patch = json!({
            "metadata": {"resourceVersion": claim.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        self.patch_claim(claim, patch, true).await
    }

    /// Says how large the claim's volume is. A directory needs no step on its node.
    async fn confirm(&self, claim: &PersistentVolumeClaim, bytes: u64) -> Result<Next, Error> {
        let status = claim.status.as_ref();
        let told = status.and_then(|s| s.capacity.as_ref()?.get("storage"));
        let told = told.and_then(|quantity| quantity.0.parse().ok());
        if told.is_some_and(|told| provisioning::bytes(told) >= bytes) {
            return Ok(Next::Wait);
        }
        let patch = json!({"status": {"capacity": {"storage": request(claim)}}});
        let done = self.patch_claim(claim, patch, true).await?;
        let text = "Resize volume succeeded";
        let reference = object_ref(claim);
        self.0
            .events
            .normal(&reference, "VolumeResizeSuccessful", text);
        Ok(done)
    }

    async fn patch_claim(
        &self,
        claim: &PersistentVolumeClaim,
        patch: Value,
        status: bool,
    ) -> Result<Next, Error> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.0.client.clone(), namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = if status {
            api.patch_status(name, &params, &patch).await
        } else {
            api.patch(name, &params, &patch).await
        };
        gone_is_none(patched).context(|| format!("write claim {namespace}/{name}"))?;
        Ok(Next::Wait)
    }

    fn warn(&self, claim: &PersistentVolumeClaim, reason: &'static str, why: &str) {
        self.0.events.warning(&object_ref(claim), reason, why);
    }
}

/// The size as the claim writes it.
fn request(claim: &PersistentVolumeClaim) -> Value {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    let requests = resources.and_then(|r| r.requests.as_ref());
    json!(requests.and_then(|r| r.get("storage")))
}
