//! The node's part in growing a volume: its file system or device, and what the claim says of it (spec storage.md 4.8).

use super::Volumes;
use super::claims::Claimed;
use super::error::Cause;
use davit_api::quantity::Quantity;
use davit_client::object_ref;
use davit_csi::Class;
use davit_flexvolume::Outcome;
use davit_pods::pod::PodExt;
use davit_volume::annotations::NODE_EXPANSION_NOT_REQUIRED;
use davit_volume::binding::annotation;
use davit_volume::matching::{capacity_of, request_of, size_of};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

const STORAGE: &str = "storage";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const ERROR: &str = "NodeResizeError";
/// The conditions of a claim that are about its size.
const CONDITIONS: [&str; 4] = [
    "FileSystemResizePending",
    "Resizing",
    "ControllerResizeError",
    ERROR,
];

/// Whether the pod has the volume already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// It is being given to the pod, which waits.
    Mounting,
    /// The pod has it.
    Running,
}

impl When {
    /// By whether the pod had the volume before.
    pub(super) fn of(had: bool) -> Self {
        if had { Self::Running } else { Self::Mounting }
    }
}

/// What this process remembers about the size of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    /// What it has been grown to here, or was when it was first seen.
    size: Quantity,
    /// Growing it has failed for good with the size asked for.
    failed: bool,
    /// The driver does not grow it while it is in use.
    in_use: bool,
}

/// What is to be done about the size of a volume here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Nothing,
    Grow {
        to: Quantity,
        /// Whether the claim still has to say so. Of a volume that several nodes have, the first says it.
        tell: bool,
    },
}

fn plan(claim: &PersistentVolumeClaim, volume: &PersistentVolume, known: &Known) -> Plan {
    let (wanted, has) = (capacity_of(volume), size_of(claim));
    if has >= wanted {
        let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_ref());
        let shared = modes.into_iter().flatten().any(|m| m == "ReadWriteMany");
        let needless = annotation(&claim.metadata, NODE_EXPANSION_NOT_REQUIRED).is_some();
        if shared && !needless && known.size < wanted {
            let tell = false;
            return Plan::Grow { to: wanted, tell };
        }
        return Plan::Nothing;
    }
    let status = claim.status.as_ref();
    let allocated = status.and_then(|s| s.allocated_resources.as_ref()?.get(STORAGE));
    let allocated = allocated.and_then(|text| Quantity::parse(&text.0).ok());
    match (resize_status(claim), allocated) {
        // Resizers before 1.23 say nothing.
        (None, None) => Plan::Grow {
            to: wanted,
            tell: true,
        },
        (Some(PENDING | IN_PROGRESS), allocated) => Plan::Grow {
            to: allocated.unwrap_or(wanted),
            tell: true,
        },
        _ => Plan::Nothing,
    }
}

fn resize_status(claim: &PersistentVolumeClaim) -> Option<&str> {
    let statuses = claim
        .status
        .as_ref()?
        .allocated_resource_statuses
        .as_ref()?;
    statuses.get(STORAGE).map(String::as_str)
}

/// What a failure says about the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// It may have been done, or may work the next time.
    Open,
    /// It was not done.
    Final,
    /// It was not done, and cannot be with this size.
    Infeasible,
    /// It is not done while the volume is in use.
    InUse,
}

fn failure(cause: &Cause) -> Failure {
    match cause {
        Cause::Csi(error) if error.is_in_use() => Failure::InUse,
        Cause::Csi(error) if error.is_infeasible() => Failure::Infeasible,
        Cause::Csi(error) if error.class() == Class::Final => Failure::Final,
        Cause::Flex(error) if error.outcome() != Outcome::Uncertain => Failure::Final,
        Cause::Device(_) => Failure::Final,
        _ => Failure::Open,
    }
}

/// The change of a claim: its size, what there is to do about it, and the conditions about it.
fn change(
    claim: &PersistentVolumeClaim,
    size: Option<Quantity>,
    status: Option<&str>,
    conditions: &[PersistentVolumeClaimCondition],
) -> Value {
    let mut of_status = json!({ "conditions": conditions });
    if let Some(size) = size {
        of_status["capacity"] = json!({ STORAGE: size.to_string() });
    }
    let statuses = claim.status.as_ref();
    let others = statuses
        .and_then(|s| s.allocated_resource_statuses.as_ref())
        .is_some_and(|all| all.keys().any(|name| name != STORAGE));
    of_status["allocatedResourceStatuses"] = match status {
        None if !others => Value::Null,
        status => json!({ STORAGE: status }),
    };
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": of_status})
}

/// The conditions of a claim without those about its size.
fn other_conditions(claim: &PersistentVolumeClaim) -> Vec<PersistentVolumeClaimCondition> {
    let mut all = conditions(claim);
    all.retain(|c| !CONDITIONS.contains(&c.type_.as_str()));
    all
}

fn conditions(claim: &PersistentVolumeClaim) -> Vec<PersistentVolumeClaimCondition> {
    let status = claim.status.as_ref();
    status
        .and_then(|s| s.conditions.clone())
        .unwrap_or_default()
}

/// The change of a claim that says that it has grown.
fn finished(claim: &PersistentVolumeClaim, size: Quantity) -> Value {
    change(claim, Some(size), None, &other_conditions(claim))
}

/// The change of a claim that says that it does not grow.
fn failed(
    claim: &PersistentVolumeClaim,
    status: Option<&str>,
    cause: &Cause,
    at: Timestamp,
) -> Value {
    let mut all = conditions(claim);
    all.retain(|c| c.type_ != ERROR);
    all.push(PersistentVolumeClaimCondition {
        type_: ERROR.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(at)),
        message: Some(format!("failed to expand pvc with {cause}")),
        ..PersistentVolumeClaimCondition::default()
    });
    change(claim, None, status, &all)
}

impl Volumes {
    /// Grows what a volume is on this node if the volume has grown, by `step`, and has the claim say so. Holds up a pod that
    /// waits for the volume, but not one that has it.
    pub(super) async fn expand(
        &self,
        pod: &Pod,
        claimed: &Claimed,
        when: When,
        step: impl AsyncFnOnce(Quantity) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let known = self.known_size(claimed, when);
        let Plan::Grow { to, tell } = plan(&claimed.claim, &claimed.volume, &known) else {
            return Ok(());
        };
        if claimed.read_only {
            if when == When::Mounting && tell {
                let text = format!(
                    "MountVolume.NodeExpandVolume failed for volume {:?} requested read-only file system",
                    claimed.name()
                );
                self.warn(pod, "FileSystemResizeFailed", text.clone());
                self.warn_of_claim(claimed, "FileSystemResizeFailed", text);
            }
            return Ok(());
        }
        if known.in_use {
            return Ok(());
        }
        match self.grow(pod, claimed, to, tell, &known, step).await {
            Ok(()) => Ok(()),
            Err(cause) if when == When::Running => {
                let text = format!(
                    "NodeExpandVolume.NodeExpandVolume failed for volume {:?} : {cause}",
                    claimed.name()
                );
                self.warn(pod, "VolumeResizeFailed", text);
                Ok(())
            }
            Err(cause) => Err(Cause::Expand(Box::new(cause))),
        }
    }

    fn known_size(&self, claimed: &Claimed, when: When) -> Known {
        let mut sizes = self.sizes.lock();
        let known = sizes
            .entry(claimed.name().to_owned())
            .or_insert_with(|| Known {
                size: size_of(&claimed.claim),
                failed: false,
                in_use: false,
            });
        if when == When::Mounting {
            known.in_use = false;
        }
        known.clone()
    }

    fn remember(&self, claimed: &Claimed, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.sizes.lock().get_mut(claimed.name()) {
            change(known);
        }
    }

    async fn grow(
        &self,
        pod: &Pod,
        claimed: &Claimed,
        to: Quantity,
        tell: bool,
        known: &Known,
        step: impl AsyncFnOnce(Quantity) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let mut claim = claimed.claim.clone();
        if tell && resize_status(&claim) == Some(PENDING) {
            let change = change(&claim, None, Some(IN_PROGRESS), &conditions(&claim));
            claim = self.write_claim(&claim, change).await?;
        }
        match step(to).await {
            Ok(()) => {}
            // As upstream: what a driver cannot grow is as large as the node that grew it says.
            Err(Cause::CannotExpand(_)) if !tell => {}
            Err(cause) => return self.not_grown(claimed, &claim, known, cause).await,
        }
        self.remember(claimed, |known| {
            (known.size, known.failed) = (to, false);
        });
        let text = format!(
            "MountVolume.NodeExpandVolume succeeded for volume {:?} {}",
            claimed.name(),
            self.node_name
        );
        self.tell(pod, "FileSystemResizeSuccessful", text.clone());
        if let Some(recorder) = &self.recorder {
            recorder.normal(&object_ref(&claim), "FileSystemResizeSuccessful", text);
        }
        if tell {
            self.write_claim(&claim, finished(&claim, to)).await?;
        }
        tracing::info!(pod = %pod.format(), volume = claimed.name(), size = %to, "the volume has grown");
        Ok(())
    }

    /// Has the claim say what failed, if that is final.
    async fn not_grown(
        &self,
        claimed: &Claimed,
        claim: &PersistentVolumeClaim,
        known: &Known,
        cause: Cause,
    ) -> Result<(), Cause> {
        let failure = failure(&cause);
        if failure == Failure::Open {
            return Err(cause);
        }
        // With another wish since it failed the controller shall begin anew.
        let changed = known.failed && request_of(claim) != capacity_of(&claimed.volume);
        let infeasible = failure == Failure::Infeasible || changed;
        let status = if infeasible {
            Some(INFEASIBLE)
        } else {
            resize_status(claim)
        };
        let said = failed(claim, status, &cause, Timestamp::now());
        if let Err(error) = self.write_claim(claim, said).await {
            tracing::warn!(volume = claimed.name(), %error, "the claim does not say why its volume does not grow");
        }
        self.remember(claimed, |known| {
            known.failed = true;
            known.in_use = failure == Failure::InUse;
        });
        if failure == Failure::InUse {
            tracing::warn!(volume = claimed.name(), %cause, "the volume grows when it is next mounted");
            return Ok(());
        }
        Err(cause)
    }

    async fn write_claim(
        &self,
        claim: &PersistentVolumeClaim,
        change: Value,
    ) -> Result<PersistentVolumeClaim, Cause> {
        let meta = &claim.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let written = self.objects.patch_claim_status(namespace, name, &change);
        Ok(written.await?)
    }

    fn warn_of_claim(&self, claimed: &Claimed, reason: &'static str, message: String) {
        if let Some(recorder) = &self.recorder {
            recorder.warning(&object_ref(&claimed.claim), reason, message);
        }
    }
}

#[cfg(test)]
mod tests;
