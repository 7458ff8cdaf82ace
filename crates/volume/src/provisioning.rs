//! What the provisioner of local volumes can do for a claim, and the volume it makes. Pure.

use crate::annotations::{EXTERNAL_PROVISIONER, PROVISIONED_BY};
use crate::binding::{claim_ref, uid_of};
use crate::local::{self, DATA, IMAGE, NodeStorage, State, VolumeLimit};
use crate::matching::{capacity_of, request_of};
use crate::names::provisioned_volume_name;
use davit_api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

const HOSTNAME: &str = "kubernetes.io/hostname";

/// Why a claim gets no volume from this provisioner, whatever node is chosen.
pub fn unsupported(claim: &PersistentVolumeClaim) -> Option<String> {
    let spec = claim.spec.as_ref()?;
    let mut modes = spec.access_modes.iter().flatten();
    if modes.any(|mode| mode == "ReadWriteMany") {
        return Some(format!(
            "volumes of {} are on one node: access mode ReadWriteMany is not supported",
            local::PROVISIONER
        ));
    }
    if spec.selector.is_some() {
        return Some("claim Selector is not supported".to_owned());
    }
    let kind = local::source_claim(claim).err()?;
    Some(format!(
        "{} copies claims of the same namespace only: data sources of kind {kind} are not supported",
        local::PROVISIONER
    ))
}

/// What a claim begins as a copy of.
#[derive(Debug, PartialEq, Eq)]
pub enum Origin {
    /// It begins empty.
    Nothing,
    /// The volume of this name, on the node that it is on.
    Volume(String),
    /// There may be something later.
    Wait(String),
}

/// Looks at the data source of a claim whose class has the `limit`: `source` is the claim that it names, `volume` that one's
/// volume, if they are there.
pub fn origin(
    claim: &PersistentVolumeClaim,
    limit: VolumeLimit,
    source: Option<&PersistentVolumeClaim>,
    volume: Option<&PersistentVolume>,
) -> Origin {
    let Ok(Some(name)) = local::source_claim(claim) else {
        return Origin::Nothing;
    };
    let Some(source) = source else {
        return Origin::Wait(format!("the PVC source {name} is not there"));
    };
    if source.metadata.deletion_timestamp.is_some() {
        return Origin::Wait(format!("the PVC source {name} is currently being deleted"));
    }
    let phase = source.status.as_ref().and_then(|s| s.phase.as_deref());
    let volume = volume.filter(|volume| {
        let uid = claim_ref(volume).and_then(uid_of);
        uid.is_some() && uid == source.metadata.uid.as_deref()
    });
    let (Some("Bound"), Some(volume)) = (phase, volume) else {
        return Origin::Wait(format!(
            "the PVC source {name} not in right status, expected: Bound, got: {}",
            phase.unwrap_or_default()
        ));
    };
    if !local::is_ours(volume) || State::of(&volume.metadata) != Some(State::Ready) {
        return Origin::Wait(format!(
            "the volume of the PVC source {name} is not one of {} that is ready",
            local::PROVISIONER
        ));
    }
    let mode = claim.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    if (mode == Some("Block")) != local::is_device(volume) {
        return Origin::Wait(format!("the PVC source {name} has another volumeMode"));
    }
    if local::is_image(volume) != (local::is_device(volume) || limit == VolumeLimit::Image) {
        return Origin::Wait(format!(
            "the PVC source {name} has another {} than {}",
            local::LIMIT,
            limit.as_str()
        ));
    }
    let (wants, has) = (wanted(claim), local::wanted_bytes(volume));
    if wants < has {
        return Origin::Wait(format!(
            "new PVC request must be greater than or equal in size to the specified PVC data source, requested {wants} but source is {has}"
        ));
    }
    Origin::Volume(volume.metadata.name.clone().unwrap_or_default())
}

/// What the node says about the volumes it can keep.
pub fn storage_of(node: &Node) -> Option<NodeStorage> {
    let annotations = node.metadata.annotations.as_ref()?;
    serde_json::from_str(annotations.get(local::STORAGE)?).ok()
}

/// The bytes that the volumes of a node may have in the end.
pub fn promised<'a>(volumes: impl IntoIterator<Item = &'a PersistentVolume>) -> u64 {
    volumes
        .into_iter()
        .map(|volume| bytes(capacity_of(volume)))
        .fold(0, u64::saturating_add)
}

/// How large one more volume may be: what is free, and what is not promised to others.
pub fn room(storage: &NodeStorage, promised: u64) -> u64 {
    storage.available.min(storage.size.saturating_sub(promised))
}

/// The bytes that a claim asks for.
pub fn wanted(claim: &PersistentVolumeClaim) -> u64 {
    bytes(request_of(claim))
}

/// Whole bytes of a quantity, rounded up; none of a negative one.
pub fn bytes(quantity: Quantity) -> u64 {
    u64::try_from(quantity.value()).unwrap_or(0)
}

/// The volume for a claim on a node; `limit` is that of the class.
pub fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    limit: VolumeLimit,
    node: &Node,
    storage: &NodeStorage,
) -> Value {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let name = provisioned_volume_name(uid);
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|r| r.requests).unwrap_or_default();
    let node_name = node.metadata.name.as_deref().unwrap_or_default();
    let labels = node.metadata.labels.as_ref();
    let hostname = labels.and_then(|labels| labels.get(HOSTNAME));
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let is_device = spec.volume_mode.as_deref() == Some("Block");
    let (below, mode) = match (is_device, limit) {
        (true, _) => (IMAGE, "Block"),
        (false, VolumeLimit::Image) => (IMAGE, "Filesystem"),
        (false, VolumeLimit::None) => (DATA, "Filesystem"),
    };
    let mut annotations = json!({(PROVISIONED_BY): local::PROVISIONER});
    // A device has its size by itself.
    if !is_device {
        annotations[local::LIMIT] = json!(limit.as_str());
    }
    // A device is not mounted.
    let options = class.mount_options.as_ref().filter(|_| !is_device);
    // What is deleted with the object has to be deleted before it.
    let finalizers: &[&str] = if policy == "Delete" {
        &[EXTERNAL_PROVISIONER]
    } else {
        &[]
    };
    json!({
        "metadata": {
            "name": name,
            "labels": {(local::NODE_LABEL): local::label_of_node(node_name)},
            "annotations": annotations,
            "finalizers": finalizers,
        },
        "spec": {
            "capacity": {"storage": requests.get("storage")},
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": class.metadata.name,
            "mountOptions": options,
            "volumeMode": mode,
            "local": {"path": format!("{}/{name}/{below}", storage.path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{
                "key": HOSTNAME, "operator": "In",
                "values": [hostname.map_or(node_name, String::as_str)],
            }]}]}},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": uid,
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "data", "uid": "u1"}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn item_128_what_cannot_be_made_is_said() {
        for (spec, part) in [
            (json!({"accessModes": ["ReadWriteMany"]}), "ReadWriteMany"),
            (json!({"selector": {}}), "claim Selector is not supported"),
            (
                json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}),
                "data sources of kind VolumeSnapshot are not supported",
            ),
        ] {
            let why = unsupported(&claim(spec)).unwrap();
            assert!(why.contains(part), "{why}");
        }
        for mode in ["Filesystem", "Block"] {
            let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeMode": mode});
            assert_eq!(unsupported(&claim(spec)), None);
        }
    }

    #[test]
    fn room_is_neither_filled_nor_promised_twice() {
        let storage = NodeStorage {
            path: "/v".to_owned(),
            size: 100,
            available: 60,
        };
        assert_eq!(room(&storage, 0), 60);
        assert_eq!(room(&storage, 70), 30);
        assert_eq!(room(&storage, 200), 0);
    }

    #[test]
    fn a_copy_is_as_large_as_its_source_and_of_its_kind() {
        let copy = |size: &str, mode: &str| {
            claim(
                json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "old"},
                "volumeMode": mode, "resources": {"requests": {"storage": size}}}),
            )
        };
        let source: PersistentVolumeClaim = serde_json::from_value(
            json!({"metadata": {"name": "old", "uid": "o"}, "status": {"phase": "Bound"}}),
        )
        .unwrap();
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": "pvc-o", "annotations": {(PROVISIONED_BY): local::PROVISIONER,
                (local::STATE): "Ready"}},
            "spec": {"claimRef": {"uid": "o"}, "capacity": {"storage": "2Mi"}},
        }))
        .unwrap();
        let of = |claim: &PersistentVolumeClaim| {
            origin(claim, VolumeLimit::None, Some(&source), Some(&volume))
        };
        assert_eq!(
            of(&copy("2Mi", "Filesystem")),
            Origin::Volume("pvc-o".to_owned())
        );
        for (claim, part) in [
            (copy("1Mi", "Filesystem"), "greater than or equal in size"),
            (copy("2Mi", "Block"), "another volumeMode"),
        ] {
            assert!(matches!(of(&claim), Origin::Wait(why) if why.contains(part)));
        }
        let small = copy("2Mi", "Filesystem");
        let limited = origin(&small, VolumeLimit::Image, Some(&source), Some(&volume));
        assert!(matches!(limited, Origin::Wait(why) if why.contains("davit.dev/limit than image")));
        let without = |source, volume| origin(&small, VolumeLimit::None, source, volume);
        assert!(matches!(without(None, None), Origin::Wait(_)));
        assert!(matches!(without(Some(&source), None), Origin::Wait(_)));
        assert_eq!(
            origin(&claim(json!({})), VolumeLimit::None, None, None),
            Origin::Nothing
        );
    }

    #[test]
    fn a_device_is_a_file_and_has_no_mount_options() {
        let claim = claim(json!({"volumeMode": "Block",
            "resources": {"requests": {"storage": "1Mi"}}}));
        let class: StorageClass = serde_json::from_value(json!({"metadata": {"name": "standard"},
            "provisioner": local::PROVISIONER, "mountOptions": ["noexec"]}))
        .unwrap();
        let storage = NodeStorage {
            path: "/v".to_owned(),
            ..NodeStorage::default()
        };
        let made = volume(
            &claim,
            &class,
            VolumeLimit::Image,
            &Node::default(),
            &storage,
        );
        let made: PersistentVolume = serde_json::from_value(made).unwrap();
        assert!(local::is_device(&made) && local::is_image(&made));
        let spec = made.spec.unwrap();
        assert_eq!(spec.local.unwrap().path, "/v/pvc-u1/data.img");
        assert_eq!(spec.mount_options, None);
    }

    #[test]
    fn item_125_what_holds_a_volume_to_its_size_is_told() {
        let claim = claim(json!({"resources": {"requests": {"storage": "1Mi"}}}));
        let storage = NodeStorage::default();
        for (limit, is_image, path) in [
            (VolumeLimit::None, false, "/pvc-u1/data"),
            (VolumeLimit::Image, true, "/pvc-u1/data.img"),
        ] {
            let class = StorageClass::default();
            let made = volume(&claim, &class, limit, &Node::default(), &storage);
            assert_eq!(
                made["metadata"]["annotations"][local::LIMIT],
                limit.as_str()
            );
            let made: PersistentVolume = serde_json::from_value(made).unwrap();
            assert_eq!(local::is_image(&made), is_image);
            assert!(!local::is_device(&made));
            assert_eq!(made.spec.unwrap().local.unwrap().path, path);
        }
    }

    #[test]
    fn item_123_the_volume_names_claim_node_and_directory() {
        let claim = claim(json!({"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}));
        let class: StorageClass = serde_json::from_value(json!({"metadata": {"name": "standard"},
            "provisioner": local::PROVISIONER, "mountOptions": ["noexec"]}))
        .unwrap();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1",
            "labels": {"kubernetes.io/hostname": "host-1"},
            "annotations": {"local.davit.dev/storage": r#"{"path":"/v","size":9,"available":8}"#}}}))
        .unwrap();
        let storage = storage_of(&node).unwrap();
        let made: PersistentVolume =
            serde_json::from_value(volume(&claim, &class, VolumeLimit::None, &node, &storage))
                .unwrap();
        assert!(local::is_ours(&made));
        assert_eq!(promised([&made]), 1 << 30);
        assert_eq!(wanted(&claim), 1 << 30);
        let spec = made.spec.unwrap();
        assert_eq!(spec.local.unwrap().path, "/v/pvc-u1/data");
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u1"));
        assert_eq!(made.metadata.finalizers.unwrap(), [EXTERNAL_PROVISIONER]);
        let affinity = json!(spec.node_affinity).to_string();
        assert!(affinity.contains("host-1"), "{affinity}");
    }
}
