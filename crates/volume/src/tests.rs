//! Matching against a reference that says the rules one by one, and the texts of mismatches.

use crate::class::BindingMode;
use crate::matching::{Mismatch, find_volume, find_volume_on_node, mismatch};
use davit_api::selector::Labels;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proptest::prelude::*;
use serde_json::{Value, json};

const MODES: [&str; 3] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"];

/// A volume in terms of the rules.
#[derive(Debug, Clone)]
struct Given {
    name: usize,
    size: u8,
    modes: Vec<&'static str>,
    block: bool,
    class: u8,
    attributes: u8,
    zone: u8,
    available: bool,
    deleted: bool,
    /// 0 free, 1 kept for the claim by name, 2 with its UID, 3 of another incarnation, 4 of another claim.
    reference: u8,
    labelled: bool,
}

#[derive(Debug, Clone)]
struct Asked {
    size: u8,
    modes: Vec<&'static str>,
    block: bool,
    class: u8,
    attributes: u8,
    selects: bool,
}

impl Given {
    fn object(&self) -> PersistentVolume {
        let reference = match self.reference {
            0 => json!(null),
            1 => json!({"namespace": "n", "name": "c"}),
            2 => json!({"namespace": "n", "name": "c", "uid": "u"}),
            3 => json!({"namespace": "n", "name": "c", "uid": "older"}),
            _ => json!({"namespace": "n", "name": "other", "uid": "u2"}),
        };
        let deleted = self.deleted.then_some("2026-01-01T00:00:00Z");
        let zone = json!([{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": [self.zone.to_string()]}]}]);
        let affinity = json!({"required": {"nodeSelectorTerms": zone}});
        let labels = if self.labelled {
            json!({"tier": "gold"})
        } else {
            json!({})
        };
        from(json!({
            "metadata": {"name": format!("v{}", self.name), "deletionTimestamp": deleted, "labels": labels},
            "spec": {
                "capacity": {"storage": format!("{}Gi", self.size)},
                "accessModes": self.modes, "volumeMode": mode(self.block),
                "storageClassName": class(self.class), "claimRef": reference,
                "volumeAttributesClassName": class(self.attributes),
                "nodeAffinity": if self.zone == 0 { json!(null) } else { affinity },
            },
            "status": {"phase": if self.available { "Available" } else { "Pending" }},
        }))
    }
}

impl Asked {
    fn object(&self) -> PersistentVolumeClaim {
        let selector = json!({"matchLabels": {"tier": "gold"}});
        from(json!({
            "metadata": {"namespace": "n", "name": "c", "uid": "u"},
            "spec": {
                "resources": {"requests": {"storage": format!("{}Gi", self.size)}},
                "accessModes": self.modes, "volumeMode": mode(self.block),
                "storageClassName": class(self.class),
                "volumeAttributesClassName": class(self.attributes),
                "selector": if self.selects { selector } else { json!(null) },
            },
        }))
    }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn mode(block: bool) -> Option<&'static str> {
    block.then_some("Block")
}

fn class(class: u8) -> &'static str {
    ["", "fast", "slow"][usize::from(class)]
}

/// The names of volumes that rules allow, best first, for a node in `zone` or for the controller.
fn allowed(asked: &Asked, given: &[Given], zone: Option<u8>, delayed: bool) -> Vec<usize> {
    let has_modes = |v: &Given| asked.modes.iter().all(|mode| v.modes.contains(mode));
    let mut candidates: Vec<&Given> = given
        .iter()
        .filter(|v| v.reference <= 2 && !v.deleted && v.size >= asked.size)
        .filter(|v| v.block == asked.block && v.attributes == asked.attributes)
        .filter(|v| zone.is_some() || has_modes(v))
        .collect();
    let kept = |v: &Given| v.reference > 0;
    if candidates.iter().any(|v| kept(v)) {
        candidates.retain(|v| kept(v));
    } else if delayed && zone.is_none() {
        candidates.clear();
    } else {
        candidates.retain(|v| {
            v.available && v.class == asked.class && (v.labelled || !asked.selects) && has_modes(v)
        });
    }
    candidates.retain(|v| zone.is_none_or(|zone| v.zone == 0 || v.zone == zone));
    // names of single digits: their order as text is that of the numbers
    candidates.sort_by_key(|v| {
        let modes = if zone.is_none() { v.modes.len() } else { 0 };
        (modes, v.size, v.name)
    });
    candidates.into_iter().map(|v| v.name).collect()
}

fn modes() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(MODES.to_vec(), 1..=3)
}

prop_compose! {
    fn given()(
        size in 1..4u8, modes in modes(), block in prop::bool::weighted(0.1), class in 0..2u8,
        attributes in prop_oneof![9 => Just(0u8), 1 => Just(1)], zone in 0..3u8,
        available in prop::bool::weighted(0.8), deleted in prop::bool::weighted(0.1),
        reference in prop_oneof![12 => Just(0u8), 4 => 1..5u8], labelled in any::<bool>(),
    ) -> Given {
        Given { name: 0, size, modes, block, class, attributes, zone, available, deleted, reference, labelled }
    }
}

prop_compose! {
    fn asked()(
        size in 1..4u8, modes in proptest::sample::subsequence(MODES.to_vec(), 1..=2),
        block in prop::bool::weighted(0.1), class in 0..2u8,
        attributes in prop_oneof![9 => Just(0u8), 1 => Just(1)], selects in prop::bool::weighted(0.2),
    ) -> Asked {
        Asked { size, modes, block, class, attributes, selects }
    }
}

fn number(mut given: Vec<Given>) -> Vec<Given> {
    for (name, volume) in given.iter_mut().enumerate() {
        volume.name = name;
    }
    given
}

fn name(volume: Option<&PersistentVolume>) -> Option<String> {
    volume.and_then(|volume| volume.metadata.name.clone())
}

proptest! {
    #[test]
    fn the_best_volume_is_found_in_any_order(
        asked in asked(),
        (given, shuffled) in prop::collection::vec(given(), 0..10)
            .prop_map(number)
            .prop_flat_map(|given| (Just(given.clone()), Just(given).prop_shuffle())),
        delayed in any::<bool>(),
        zone in 1..3u8,
        taken in 0..10usize,
    ) {
        let claim = asked.object();
        let volumes: Vec<PersistentVolume> = shuffled.iter().map(Given::object).collect();
        let mode = if delayed { BindingMode::WaitForFirstConsumer } else { BindingMode::Immediate };
        let expected = allowed(&asked, &given, None, delayed).first().map(|n| format!("v{n}"));
        prop_assert_eq!(name(find_volume(&claim, &volumes, mode)), expected);

        let labels = Labels::from([("zone".to_owned(), zone.to_string())]);
        let left: Vec<Given> = given.iter().filter(|v| v.name != taken).cloned().collect();
        let expected = allowed(&asked, &left, Some(zone), delayed).first().map(|n| format!("v{n}"));
        let is_taken = |v: &PersistentVolume| v.metadata.name == Some(format!("v{taken}"));
        let found = find_volume_on_node(&claim, &volumes, &labels, is_taken);
        prop_assert_eq!(name(found), expected);
    }

    #[test]
    fn what_the_controller_binds_satisfies_the_claim(
        asked in asked(), given in prop::collection::vec(given(), 0..10).prop_map(number),
    ) {
        let claim = asked.object();
        let volumes: Vec<PersistentVolume> = given.iter().map(Given::object).collect();
        if let Some(found) = find_volume(&claim, &volumes, BindingMode::Immediate) {
            // a volume that is kept for the claim may have another class
            let why = mismatch(found, &claim);
            prop_assert!(why.is_none() || why == Some(Mismatch::Class), "{why:?}");
        }
    }
}

#[test]
fn mismatches_in_order() {
    let asked = Asked {
        size: 2,
        modes: vec![MODES[0]],
        block: false,
        class: 0,
        attributes: 0,
        selects: false,
    };
    let mut volume = Given {
        name: 1,
        size: 1,
        modes: vec![MODES[1]],
        block: true,
        class: 1,
        attributes: 1,
        zone: 0,
        available: true,
        deleted: true,
        reference: 0,
        labelled: false,
    };
    let why = |volume: &Given| mismatch(&volume.object(), &asked.object()).map(|m| m.to_string());
    let deleted = "the volume is marked for deletion \"v1\"";
    assert_eq!(why(&volume).as_deref(), Some(deleted));
    volume.deleted = false;
    assert_eq!(why(&volume).as_deref(), Some("requested PV is too small"));
    volume.size = 2;
    assert_eq!(
        why(&volume).as_deref(),
        Some("storageClassName does not match")
    );
    volume.class = 0;
    let attributes = "volumeAttributesClassName does not match";
    assert_eq!(why(&volume).as_deref(), Some(attributes));
    volume.attributes = 0;
    assert_eq!(why(&volume).as_deref(), Some("incompatible volumeMode"));
    volume.block = false;
    assert_eq!(why(&volume).as_deref(), Some("incompatible accessMode"));
    volume.modes.push(MODES[0]);
    assert_eq!(why(&volume), None);
}
