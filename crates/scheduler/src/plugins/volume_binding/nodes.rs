//! What a pod's claims get on a node, or why they get nothing there.

use std::sync::Arc;

use davit_api::quantity::Quantity;
use davit_api::selector::{Labels, Selector};
use davit_volume::binding::{selected_node, volume_name};
use davit_volume::class::{can_provision, claim_class};
use davit_volume::local::{PROVISIONER, source_claim};
use davit_volume::matching::{find_volume_on_node, fits_node, request_of};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};

use super::{PodVolumeClaims, PodVolumes, VolumeBinding, largest};
use crate::framework::{Code, Status, VolumeRefusal};
use crate::node::NodeInfo;
use davit_volumecache::StaticBinding;

const OUT_OF_REACH: &str = "node(s) didn't match PersistentVolume's node affinity";
const NOTHING_TO_BIND: &str = "node(s) didn't find available persistent volumes to bind";
const NOT_ENOUGH: &str = "node(s) did not have enough free storage";
const NO_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// Reasons against a node, in the order in which they are given.
#[derive(Default)]
struct Objections {
    list: Vec<(&'static str, VolumeRefusal)>,
}

impl Objections {
    fn add(&mut self, reason: &'static str, claim: &PersistentVolumeClaim, why: String) {
        let claim = claim.metadata.name.clone().unwrap_or_default();
        self.list.push((reason, VolumeRefusal { claim, why }));
    }

    fn status(self) -> Option<Status> {
        if self.list.is_empty() {
            return None;
        }
        let mut status = Status {
            code: Code::UnschedulableAndUnresolvable,
            ..Status::success()
        };
        for reason in [OUT_OF_REACH, NOTHING_TO_BIND, NOT_ENOUGH, NO_VOLUME] {
            if self.list.iter().any(|(given, _)| *given == reason) {
                status.reasons.push(reason.into());
            }
        }
        status.volumes = self.list.into_iter().map(|(_, refusal)| refusal).collect();
        Some(status)
    }
}

impl VolumeBinding {
    pub(super) fn find(
        &self,
        claims: &PodVolumeClaims,
        node: &NodeInfo,
    ) -> Result<PodVolumes, Status> {
        let mut objections = Objections::default();
        for claim in &claims.bound {
            let name = volume_name(claim).unwrap_or_default();
            match self.volumes.volume(name) {
                None => objections.add(NO_VOLUME, claim, format!("there is no volume {name:?}")),
                Some(volume) if !fits_node(&volume, node.labels()) => {
                    let why = format!("its volume {name:?} cannot be reached from the node");
                    objections.add(OUT_OF_REACH, claim, why);
                }
                Some(_) => {}
            }
        }
        let mut found = PodVolumes::default();
        for claim in &claims.delayed {
            match selected_node(claim) {
                Some(selected) if selected != &*node.name => {
                    let why = format!("a volume is being made for node {selected:?}");
                    objections.add(NOTHING_TO_BIND, claim, why);
                }
                Some(_) => found.provisions.push(claim.clone()),
                None => match self.volume_for(claim, claims, &found, node) {
                    Some(binding) => found.bindings.push(binding),
                    None => found.provisions.push(claim.clone()),
                },
            }
        }
        for claim in &found.provisions {
            self.check_provision(claim, node, &mut objections)?;
        }
        objections.status().map_or(Ok(found), Err)
    }

    /// The volume that a claim gets, which is none that other claims of the pod have got.
    fn volume_for(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        claims: &PodVolumeClaims,
        found: &PodVolumes,
        node: &NodeInfo,
    ) -> Option<StaticBinding> {
        let candidates = claims.candidates.get(claim_class(claim)?)?;
        let volumes = candidates.iter().map(|volume| &**volume);
        let volume = find_volume_on_node(claim, volumes, node.labels(), |volume| {
            let name = volume.metadata.name.as_deref();
            found.bindings.iter().any(|b| Some(&*b.volume) == name)
        })?;
        Some(StaticBinding {
            volume: volume.metadata.name.clone()?,
            claim: claim.clone(),
        })
    }

    /// Looks whether a volume can be made for a claim that the node can use.
    fn check_provision(
        &self,
        claim: &PersistentVolumeClaim,
        node: &NodeInfo,
        objections: &mut Objections,
    ) -> Result<(), Status> {
        let name = claim_class(claim).unwrap_or_default();
        let Some(class) = self.volumes.class(name) else {
            return Err(Status::error(format!(
                "failed to find storage class {name:?}"
            )));
        };
        if !can_provision(&class) {
            let why = format!(
                "no volume of class {name:?} is free, fits and can be reached from the node, and none are made"
            );
            objections.add(NOTHING_TO_BIND, claim, why);
        } else if !allows(class.allowed_topologies.as_deref(), node.labels()) {
            let why = format!("class {name:?} makes no volumes for the topology of the node");
            objections.add(NOTHING_TO_BIND, claim, why);
        } else if let Some(source) = self.source_elsewhere(claim, &class, node.labels()) {
            let why = format!("it is a copy of {source:?}, whose volume the node does not keep");
            objections.add(OUT_OF_REACH, claim, why);
        } else if let Some(best) = self.shortage(claim, &class, node.labels()) {
            let best = best.map_or_else(
                || "nothing is known to be left".to_owned(),
                |best| format!("the largest that can be made has {best}"),
            );
            let why = format!("{} of class {name:?} requested, {best}", request_of(claim));
            objections.add(NOT_ENOUGH, claim, why);
        }
        Ok(())
    }

    /// The claim that another is to be a copy of, if davit's own provisioner makes the copy and another node has the source.
    fn source_elsewhere<'a>(
        &self,
        claim: &'a PersistentVolumeClaim,
        class: &StorageClass,
        labels: &Labels,
    ) -> Option<&'a str> {
        if class.provisioner != PROVISIONER {
            return None;
        }
        let source = source_claim(claim).ok()??;
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let bound = self.volumes.claim(namespace, source)?;
        let volume = self.volumes.volume(volume_name(&bound)?)?;
        (!fits_node(&volume, labels)).then_some(source)
    }

    /// What the largest volume has that can be made for the node, if that is not enough and the driver keeps account.
    fn shortage(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        labels: &Labels,
    ) -> Option<Option<Quantity>> {
        let driver = self.volumes.driver(&class.provisioner)?;
        let wanted = request_of(claim);
        if driver.spec.storage_capacity != Some(true) || wanted == Quantity::ZERO {
            return None;
        }
        let name = class.metadata.name.as_deref().unwrap_or_default();
        let reached = |capacity: &Arc<CSIStorageCapacity>| {
            Selector::new(capacity.node_topology.as_ref()).matches(labels)
        };
        let capacities = self.volumes.capacities(name);
        let best = capacities
            .iter()
            .filter(|capacity| reached(capacity))
            .filter_map(|capacity| largest(capacity))
            .max();
        (best < Some(wanted)).then_some(best)
    }
}

/// Whether one of the terms allows nodes with these labels; without terms all do. A term without expressions allows none.
fn allows(terms: Option<&[TopologySelectorTerm]>, labels: &Labels) -> bool {
    let matches = |term: &TopologySelectorTerm| {
        let expressions = term.match_label_expressions.as_deref().unwrap_or_default();
        let mut all = expressions.iter();
        !expressions.is_empty()
            && all.all(|e| {
                labels
                    .get(&e.key)
                    .is_some_and(|value| e.values.contains(value))
            })
    };
    let terms = terms.unwrap_or_default();
    terms.is_empty() || terms.iter().any(matches)
}
