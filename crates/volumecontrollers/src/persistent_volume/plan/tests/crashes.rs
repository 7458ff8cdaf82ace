//! Whoever stops after any write is continued by whoever comes next.

use super::model::Model;
use davit_volume::annotations::BIND_COMPLETED;
use davit_volume::binding::{annotation, bind_volume, claim_ref, uid_of, volume_name};
use davit_volume::matching::mismatch;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Event {
    /// A claim is looked at, and the controller dies after so many steps.
    Claim(usize, usize),
    Volume(usize, usize),
    /// A claim is deleted, and made again with another UID.
    Recreate(usize),
    /// Another binder, such as the scheduler, binds a volume that fits to a claim.
    Prebind(usize, usize),
}

const CLAIMS: usize = 6;
const VOLUMES: usize = 6;

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..CLAIMS, 1..5usize).prop_map(|(c, steps)| Event::Claim(c, steps)),
        6 => (0..VOLUMES, 1..4usize).prop_map(|(v, steps)| Event::Volume(v, steps)),
        1 => (0..CLAIMS).prop_map(Event::Recreate),
        1 => (0..VOLUMES, 0..CLAIMS).prop_map(|(v, c)| Event::Prebind(v, c)),
    ]
}

fn volume_spec() -> impl Strategy<Value = Value> {
    let kept = prop_oneof![4 => Just(None), 1 => (0..CLAIMS).prop_map(Some)];
    (1..5u8, kept).prop_map(|(size, kept)| {
        let kept = kept.map(|c| json!({"namespace": "n", "name": format!("c{c}")}));
        json!({"storage": format!("{size}Gi"), "accessModes": ["ReadWriteOnce"], "claimRef": kept,
            "persistentVolumeReclaimPolicy": "Retain"})
    })
}

fn claim_spec() -> impl Strategy<Value = Value> {
    let named = prop_oneof![4 => Just(None), 1 => (0..VOLUMES).prop_map(Some)];
    (1..5u8, named).prop_map(|(size, named)| {
        let named = named.map(|v| format!("v{v}"));
        json!({"storage": format!("{size}Gi"), "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "volumeName": named})
    })
}

fn happen(model: &mut Model, specs: &[Value], event: &Event, at: usize) {
    match event {
        Event::Claim(c, steps) => {
            model.sync_claim(&format!("c{c}"), *steps);
        }
        Event::Volume(v, steps) => {
            model.sync_volume(&format!("v{v}"), *steps);
        }
        Event::Recreate(c) => {
            model.add_claim(&format!("c{c}"), &format!("again-{at}"), specs[*c].clone());
        }
        Event::Prebind(v, c) => {
            let claim = model.claims[&format!("c{c}")].clone();
            let volume = &model.volumes[&format!("v{v}")];
            let free = claim_ref(volume).is_none()
                && mismatch(volume, &claim).is_none()
                && model.volume_phase(&format!("v{v}")) == "Available";
            if let Some(bound) = bind_volume(volume, &claim).filter(|_| free) {
                model.store(super::super::Write::Volume(Box::new(bound)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn all_ends_well(
        volumes in prop::collection::vec(volume_spec(), VOLUMES),
        claims in prop::collection::vec(claim_spec(), CLAIMS),
        events in prop::collection::vec(event(), 0..40),
    ) {
        let mut model = Model::default();
        for (v, spec) in volumes.iter().enumerate() {
            model.add_volume(&format!("v{v}"), spec.clone());
        }
        for (c, spec) in claims.iter().enumerate() {
            model.add_claim(&format!("c{c}"), &format!("uid-c{c}"), spec.clone());
        }
        for (at, event) in events.iter().enumerate() {
            happen(&mut model, &claims, event, at);
        }
        model.settle();
        let mut owners = BTreeMap::new();
        for (name, claim) in &model.claims {
            if model.claim_phase(name) == "Bound" {
                let volume = volume_name(claim).unwrap();
                prop_assert_eq!(owners.insert(volume, name), None, "two claims on {}", volume);
                prop_assert_eq!(model.volume_phase(volume), "Bound");
                let owner = claim_ref(&model.volumes[volume]).and_then(uid_of);
                prop_assert_eq!(owner, claim.metadata.uid.as_deref());
                prop_assert!(annotation(&claim.metadata, BIND_COMPLETED).is_some());
            } else {
                prop_assert_eq!(model.claim_phase(name), "Pending");
                prop_assert!(annotation(&claim.metadata, BIND_COMPLETED).is_none());
            }
        }
        for (name, volume) in &model.volumes {
            let phase = model.volume_phase(name);
            let owner = claim_ref(volume).and_then(uid_of);
            match phase {
                "Bound" => prop_assert!(owners.contains_key(&**name), "{} is bound to nobody", name),
                // data of a claim that is gone: nobody gets it
                "Released" => prop_assert!(model.claims.values().all(|c| c.metadata.uid.as_deref() != owner)),
                _ => prop_assert!(phase == "Available" && owner.is_none(), "{} is {}", name, phase),
            }
        }
    }
}
