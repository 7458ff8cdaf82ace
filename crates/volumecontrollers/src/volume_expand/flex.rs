//! Growing volumes of FlexVolume drivers: `expandvolume` where the controllers run, after which the node grows the file
//! system (KEP-1790 for what a claim says meanwhile).

use super::Expansion;
use davit_api::quantity::Quantity;
use davit_client::object_ref;
use davit_flexvolume::{Error as DriverError, FlexVolume};
use davit_reconcile::{Context, Error, Next};
use davit_volume::annotations::{PRE_RESIZE_CAPACITY, STORAGE_RESIZER};
use davit_volume::binding::annotation;
use davit_volume::matching::{capacity_of, request_of, size_of};
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

const STORAGE: &str = "storage";
const CONTROLLER_IN_PROGRESS: &str = "ControllerResizeInProgress";
const CONTROLLER_INFEASIBLE: &str = "ControllerResizeInfeasible";
const NODE_PENDING: &str = "NodeResizePending";
const NODE_IN_PROGRESS: &str = "NodeResizeInProgress";
const NODE_INFEASIBLE: &str = "NodeResizeInfeasible";
const RESIZING: &str = "Resizing";
const FILE_SYSTEM_PENDING: &str = "FileSystemResizePending";
/// The conditions of a claim that are about its size.
const CONDITIONS: [&str; 4] = [
    FILE_SYSTEM_PENDING,
    RESIZING,
    "ControllerResizeError",
    "NodeResizeError",
];
const WAITING: &str =
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
/// When a driver that failed is asked again.
const AGAIN: Duration = Duration::from_secs(10);

/// What is to be done about a claim that asks for more than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlexStep {
    /// The node's turn.
    Nothing,
    /// The node failed for good and may try again, as another size is asked for.
    Pend,
    /// The volume grows to this size.
    Grow(Quantity),
}

fn step(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> FlexStep {
    let wanted = request_of(claim);
    let status = claim.status.as_ref();
    let allocated = status.and_then(|s| s.allocated_resources.as_ref()?.get(STORAGE));
    let allocated = allocated.and_then(|text| Quantity::parse(&text.0).ok());
    let statuses = status.and_then(|s| s.allocated_resource_statuses.as_ref());
    let state = statuses
        .and_then(|all| all.get(STORAGE))
        .map(String::as_str);
    let begun = FlexStep::Grow(allocated.unwrap_or(wanted));
    let is_grown = capacity_of(volume) >= wanted;
    match state {
        Some(NODE_PENDING | NODE_IN_PROGRESS) if is_grown => FlexStep::Nothing,
        Some(NODE_INFEASIBLE) if is_grown => FlexStep::Pend,
        Some(CONTROLLER_IN_PROGRESS | NODE_PENDING | NODE_IN_PROGRESS | NODE_INFEASIBLE) => begun,
        Some(CONTROLLER_INFEASIBLE) | None if is_grown => begun,
        _ => FlexStep::Grow(wanted),
    }
}

/// The claim's conditions with another about its size; of the `old` ones about that none, or all others.
fn conditions(
    claim: &PersistentVolumeClaim,
    keeps_old: bool,
    new: Option<(&str, &str)>,
) -> Vec<PersistentVolumeClaimCondition> {
    let status = claim.status.as_ref();
    let mut all = status
        .and_then(|s| s.conditions.clone())
        .unwrap_or_default();
    let Some((kind, message)) = new else {
        all.retain(|c| !CONDITIONS.contains(&c.type_.as_str()));
        return all;
    };
    let known = all.iter().find(|c| c.type_ == kind && c.status == "True");
    let condition = known.cloned().unwrap_or(PersistentVolumeClaimCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(Timestamp::now())),
        message: Some(message.to_owned()).filter(|text| !text.is_empty()),
        ..PersistentVolumeClaimCondition::default()
    });
    all.retain(|c| c.type_ != kind && (keeps_old || !CONDITIONS.contains(&c.type_.as_str())));
    all.push(condition);
    all
}

/// A change of a claim that has not been changed since it was read.
fn change(
    claim: &PersistentVolumeClaim,
    state: Option<&str>,
    conditions: &[PersistentVolumeClaimCondition],
) -> Value {
    json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {
            "conditions": conditions,
            "allocatedResourceStatuses": {STORAGE: state},
        },
    })
}

/// The size that the driver is about to be asked for.
fn begun(claim: &PersistentVolumeClaim, driver: &str, to: Quantity) -> Value {
    let conditions = conditions(claim, false, Some((RESIZING, "")));
    let mut change = change(claim, Some(CONTROLLER_IN_PROGRESS), &conditions);
    change["metadata"]["annotations"] = json!({ STORAGE_RESIZER: driver });
    change["status"]["allocatedResources"] = json!({ STORAGE: to.to_string() });
    change
}

/// The file system on the node is to follow.
fn pending(claim: &PersistentVolumeClaim) -> Value {
    let conditions = conditions(claim, true, Some((FILE_SYSTEM_PENDING, WAITING)));
    change(claim, Some(NODE_PENDING), &conditions)
}

/// It has grown, and there is nothing to follow.
fn finished(claim: &PersistentVolumeClaim, size: Quantity) -> Value {
    let mut change = change(claim, None, &conditions(claim, false, None));
    change["status"]["capacity"] = json!({ STORAGE: size.to_string() });
    change
}

/// Where a node would have the volume, as upstream tells it to drivers where no node is: without the node's directory.
fn mount_of(volume: &FlexVolume) -> PathBuf {
    PathBuf::from(volume.driver.as_str())
        .join("mounts")
        .join(&volume.name)
}

impl Expansion {
    /// Grows the volume of a claim that asks for more than it has.
    pub(super) async fn grow_flex(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        flex: &FlexVolume,
    ) -> Result<Next, Error> {
        let to = match step(claim, volume) {
            FlexStep::Nothing => return Ok(Next::Wait),
            FlexStep::Pend => {
                self.pend(claim, volume).await?;
                return Ok(Next::Wait);
            }
            FlexStep::Grow(to) => to,
        };
        let driver = flex.driver.as_str();
        let claim = self.write(claim, begun(claim, driver, to)).await?;
        let needs_node = match self.expand_volume(&claim, flex, to).await {
            Ok(needs_node) => needs_node,
            Err(error) => {
                let name = format!("{}/{}", namespace(&claim), name(&claim));
                let text = format!("error expanding pvc {name}: {error}");
                tracing::warn!(claim = name, driver, %error, "the driver does not grow the volume");
                let about = object_ref(&claim);
                self.events.warning(&about, "VolumeResizeFailed", text);
                return Ok(Next::After(AGAIN));
            }
        };
        let patch = json!({ "spec": {"capacity": {STORAGE: to.to_string()}} });
        let volume = self.write_volume(volume, patch).await?;
        let spec = volume.spec.as_ref();
        let mode = spec.and_then(|spec| spec.volume_mode.as_deref());
        if needs_node && mode != Some("Block") {
            self.pend(&claim, &volume).await?;
            return Ok(Next::Wait);
        }
        let claim = self.write(&claim, finished(&claim, to)).await?;
        let text = format!(
            "ExpandVolume succeeded for volume {}/{}",
            namespace(&claim),
            name(&claim)
        );
        let about = object_ref(&claim);
        self.events.normal(&about, "VolumeResizeSuccessful", text);
        Ok(Next::Wait)
    }

    /// Has the driver grow the volume; whether the node has something to grow then. A driver that is not installed here, or
    /// does not grow volumes, leaves all to the node, as in Kubernetes.
    async fn expand_volume(
        &self,
        claim: &PersistentVolumeClaim,
        flex: &FlexVolume,
        to: Quantity,
    ) -> Result<bool, DriverError> {
        let driver = match self.flex_drivers.get(flex.driver.as_str()).await {
            Ok(driver) => driver,
            Err(DriverError::NotInstalled { .. }) => return Ok(true),
            Err(error) => return Err(error),
        };
        let (new, old) = (to.value(), size_of(claim).value());
        let (options, mount) = (flex.options(), mount_of(flex));
        let grown = driver.expand_volume(&options, &mount, new, old).await?;
        if grown.is_none() {
            tracing::debug!(driver = %flex.driver, "the driver leaves growing volumes to nodes");
        }
        Ok(driver.capabilities().requires_fs_resize)
    }

    /// Leaves the rest to the node, and keeps the old size for claims that are made anew meanwhile.
    async fn pend(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), Error> {
        let claim = self.write(claim, pending(claim)).await?;
        if annotation(&volume.metadata, PRE_RESIZE_CAPACITY).is_none() {
            let before = size_of(&claim).to_string();
            let patch = json!({ "metadata": {"annotations": {PRE_RESIZE_CAPACITY: before}} });
            self.write_volume(volume, patch).await?;
        }
        Ok(())
    }

    async fn write(
        &self,
        claim: &PersistentVolumeClaim,
        change: Value,
    ) -> Result<PersistentVolumeClaim, Error> {
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), namespace(claim));
        let (params, patch) = (PatchParams::default(), Patch::Merge(change));
        let written = claims.patch_status(name(claim), &params, &patch).await;
        written.context(|| format!("say in claim {} how it grows", name(claim)))
    }

    async fn write_volume(
        &self,
        volume: &PersistentVolume,
        mut patch: Value,
    ) -> Result<PersistentVolume, Error> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        patch["metadata"]["uid"] = json!(volume.metadata.uid);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let written = volumes.patch(name, &params, &patch).await;
        written.context(|| format!("write the size of volume {name}"))
    }
}

fn name(claim: &PersistentVolumeClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

fn namespace(claim: &PersistentVolumeClaim) -> &str {
    claim.metadata.namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(asks: &str, status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"resourceVersion": "7"},
            "spec": {"resources": {"requests": {"storage": asks}}}, "status": status}))
        .unwrap()
    }

    fn volume(size: &str) -> PersistentVolume {
        serde_json::from_value(json!({"spec": {"capacity": {"storage": size}}})).unwrap()
    }

    fn grow(size: &str) -> FlexStep {
        FlexStep::Grow(Quantity::parse(size).unwrap())
    }

    #[test]
    fn a_growth_that_has_begun_comes_to_its_end_first() {
        let state = |state: &str, allocated: &str| {
            json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": allocated},
                "allocatedResourceStatuses": {"storage": state}})
        };
        let fresh = json!({"capacity": {"storage": "1Gi"}});
        assert_eq!(
            step(&claim("3Gi", fresh.clone()), &volume("1Gi")),
            grow("3Gi")
        );
        // Somebody has enlarged the volume by hand.
        assert_eq!(step(&claim("3Gi", fresh), &volume("3Gi")), grow("3Gi"));
        for (of, size, wanted) in [
            (CONTROLLER_IN_PROGRESS, "1Gi", grow("2Gi")),
            (NODE_PENDING, "2Gi", grow("2Gi")),
            (NODE_IN_PROGRESS, "2Gi", grow("2Gi")),
            (NODE_INFEASIBLE, "2Gi", grow("2Gi")),
            (CONTROLLER_INFEASIBLE, "1Gi", grow("3Gi")),
            (CONTROLLER_IN_PROGRESS, "3Gi", grow("2Gi")),
            (NODE_PENDING, "3Gi", FlexStep::Nothing),
            (NODE_IN_PROGRESS, "3Gi", FlexStep::Nothing),
            (NODE_INFEASIBLE, "3Gi", FlexStep::Pend),
        ] {
            let found = step(&claim("3Gi", state(of, "2Gi")), &volume(size));
            assert_eq!(found, wanted, "{of} {size}");
        }
    }

    #[test]
    fn what_a_claim_says_of_its_growth() {
        let one = claim(
            "3Gi",
            json!({"conditions": [
            {"type": "FileSystemResizePending", "status": "True"},
            {"type": "Other", "status": "True"}]}),
        );
        let kinds = |change: &Value| -> Vec<String> {
            let all = change["status"]["conditions"].as_array().unwrap().iter();
            all.map(|c| c["type"].as_str().unwrap().to_owned())
                .collect()
        };
        let to = Quantity::parse("3Gi").unwrap();
        let begun = begun(&one, "acme/disk", to);
        assert_eq!(kinds(&begun), ["Other", RESIZING]);
        assert_eq!(begun["status"]["allocatedResources"]["storage"], "3Gi");
        assert_eq!(
            begun["metadata"]["annotations"][STORAGE_RESIZER],
            "acme/disk"
        );
        assert_eq!(begun["metadata"]["resourceVersion"], "7");
        let mut two = one.clone();
        let status = two.status.as_mut().unwrap();
        status.conditions = serde_json::from_value(begun["status"]["conditions"].clone()).unwrap();
        let pending = pending(&two);
        assert_eq!(kinds(&pending), ["Other", RESIZING, FILE_SYSTEM_PENDING]);
        assert_eq!(
            pending["status"]["allocatedResourceStatuses"]["storage"],
            NODE_PENDING
        );
        let done = finished(&two, to);
        assert_eq!(kinds(&done), ["Other"]);
        assert!(done["status"]["allocatedResourceStatuses"]["storage"].is_null());
        assert_eq!(done["status"]["capacity"]["storage"], "3Gi");
    }
}
