use super::*;
use davit_topology::NumaMask;
use proptest::prelude::*;

const R: &str = "example.com/foo";
const KINDS: [ContainerKind; 3] = [
    ContainerKind::Init,
    ContainerKind::Sidecar,
    ContainerKind::App,
];

fn hold(pod: u8, container: u8, kind: usize, devices: &[u8]) -> Change {
    Change::Hold(DeviceHold {
        pod: PodName {
            uid: format!("p{pod}"),
            namespace: "default".into(),
            name: format!("p{pod}"),
        },
        // The kind goes with the name, as it does in a pod.
        container: format!("c{container}-{kind}"),
        kind: KINDS[kind],
        resource: R.into(),
        devices: devices
            .iter()
            .map(|d| (format!("d{d}").into(), NumaMask::EMPTY))
            .collect(),
        response: vec![1],
        since: 1,
    })
}

fn compute(pod: u8, container: u8, kind: usize, cpus: &[u8]) -> Change {
    Change::Compute(ComputeHold {
        pod: PodName {
            uid: format!("p{pod}"),
            namespace: "default".into(),
            name: format!("p{pod}"),
        },
        container: format!("c{container}-{kind}"),
        kind: KINDS[kind],
        cpus: cpus.iter().map(|c| u32::from(*c)).collect(),
        memory: Vec::new(),
        since: 1,
    })
}

fn change() -> impl Strategy<Value = Change> {
    let devices = prop::collection::vec(0u8..6, 0..4);
    let cpus = prop::collection::vec(0u8..6, 0..4);
    prop_oneof![
        4 => (0u8..4, 0u8..3, 0usize..3, cpus).prop_map(|(p, c, k, d)| compute(p, c, k, &d)),
        6 => (0u8..4, 0u8..3, 0usize..3, devices).prop_map(|(p, c, k, d)| hold(p, c, k, &d)),
        2 => (0u8..4).prop_map(|p| Change::Release { uid: format!("p{p}") }),
        1 => any::<bool>().prop_map(|pre_start| Change::Learned { resource: R.into(), pre_start }),
        1 => Just(Change::Forgotten { resource: R.into() }),
    ]
}

/// What the invariant says, read off the holdings without the owners' index.
fn check(table: &Table) {
    let mut keepers: BTreeMap<DeviceId, Vec<(String, String)>> = BTreeMap::new();
    for (uid, pod) in table.pods() {
        for (name, container) in &pod.containers {
            for cpu in cpu_ids(&container.cpus) {
                assert_eq!(table.owner(CPU, &cpu), Some(uid.as_str()));
                if container.kind != ContainerKind::Init {
                    keepers
                        .entry(format!("cpu {cpu}").into())
                        .or_default()
                        .push((uid.clone(), name.clone()));
                }
            }
            for held in container.devices.values() {
                for id in held.devices.keys() {
                    assert_eq!(table.owner(R, id), Some(uid.as_str()));
                    if container.kind != ContainerKind::Init {
                        keepers
                            .entry(id.clone())
                            .or_default()
                            .push((uid.clone(), name.clone()));
                    }
                }
            }
        }
    }
    assert!(keepers.values().all(|k| k.len() == 1), "{keepers:?}");
    let holders = table.holders();
    assert!(holders.values().all(|pods| pods.len() == 1), "{holders:?}");
    let owned: usize = table.owned_resources().map(|(_, n)| n).sum();
    assert_eq!(owned, holders.len(), "claims without holder are gone");
}

proptest! {
    #[test]
    fn one_device_has_one_owner_whatever_happens(changes in prop::collection::vec(change(), 0..60)) {
        let mut table = Table::default();
        for change in &changes {
            let before = table.changes();
            if table.apply(change).is_err() {
                prop_assert_eq!(table.changes(), before, "a refused change changes nothing");
            }
            check(&table);
        }
        // The short log says the same as the long one.
        let mut again = Table::default();
        for change in table.changes() {
            again.apply(&change).unwrap();
        }
        prop_assert_eq!(again.changes(), table.changes());
        check(&again);
    }
}

#[test]
fn an_init_containers_device_is_handed_on_inside_its_pod_only() {
    let mut table = Table::default();
    table.apply(&hold(1, 0, 0, &[1, 2])).unwrap();
    table.apply(&hold(1, 1, 2, &[1])).unwrap();
    assert!(table.apply(&hold(1, 2, 2, &[1])).is_err(), "one keeper");
    assert!(table.apply(&hold(2, 0, 2, &[2])).is_err(), "another pod");
    table.apply(&hold(1, 2, 2, &[2])).unwrap();
    table.apply(&Change::Release { uid: "p1".into() }).unwrap();
    table.apply(&hold(2, 0, 2, &[1, 2])).unwrap();
}
