use super::*;

const R: &str = "example.com/foo";
const GRACE: Duration = Duration::from_secs(300);

fn message(devices: &[(&str, &str)]) -> pb::ListAndWatchResponse {
    let device = |&(id, health): &(&str, &str)| pb::Device {
        id: id.into(),
        health: health.into(),
        topology: None,
    };
    pb::ListAndWatchResponse {
        devices: devices.iter().map(device).collect(),
    }
}

fn healthy(ids: &[&str]) -> List {
    let devices: Vec<_> = ids.iter().map(|id| (*id, "Healthy")).collect();
    list(&message(&devices))
}

fn count(inventory: &Inventory) -> (u64, u64) {
    let c = inventory.counts()[R];
    (c.capacity, c.allocatable)
}

fn ids(names: &[&str]) -> BTreeSet<DeviceId> {
    names.iter().map(DeviceId::from).collect()
}

#[tokio::test]
async fn items_033_to_037_and_047_lists() {
    let (mut inv, now) = (Inventory::default(), Instant::now());
    inv.connected(R, InstanceId(1), now);
    inv.listed(R, InstanceId(1), healthy(&["a", "b"]), now);
    assert_eq!(count(&inv), (2, 2));
    let out = inv.listed(
        R,
        InstanceId(1),
        list(&message(&[("a", "Healthy"), ("b", "Foo")])),
        now,
    );
    assert_eq!(count(&inv), (2, 1));
    assert_eq!(out.health, ids(&["b"]));
    let out = inv.listed(R, InstanceId(1), healthy(&["a"]), now);
    assert_eq!((count(&inv), out.health), ((1, 1), ids(&["b"])));
    assert_eq!(inv.health(R, &"b".into()), Health::Unknown);
    let out = inv.listed(R, InstanceId(1), healthy(&["a"]), now);
    assert_eq!(out, Outcome::default());
    let twice = list(&message(&[("a", "Healthy"), ("a", "Unhealthy")]));
    inv.listed(R, InstanceId(1), twice, now);
    assert_eq!(count(&inv), (1, 0));
    inv.listed(R, InstanceId(1), healthy(&[]), now);
    assert_eq!(count(&inv), (0, 0));
}

#[tokio::test]
async fn items_038_to_043_and_104_going_and_coming_back() {
    let (mut inv, now) = (Inventory::default(), Instant::now());
    inv.remember(R, now);
    assert_eq!(count(&inv), (0, 0));
    inv.connected(R, InstanceId(1), now);
    inv.listed(R, InstanceId(1), healthy(&["a", "b"]), now);
    let out = inv.disconnected(R, InstanceId(1), now);
    assert!(out.changed && out.health.is_empty());
    assert_eq!(count(&inv), (2, 0));
    assert_eq!(inv.health(R, &"a".into()), Health::Healthy);
    assert!(
        inv.expire(GRACE, now + GRACE - Duration::from_secs(1))
            .is_empty()
    );
    assert_eq!(inv.next_expiry(GRACE), Some(now + GRACE));
    assert_eq!(
        inv.expire(GRACE, now + GRACE),
        vec![(R.to_owned(), ids(&["a", "b"]))]
    );
    assert!(inv.expire(GRACE, now + GRACE).is_empty());
    assert_eq!(count(&inv), (0, 0));
    assert_eq!(inv.health(R, &"a".into()), Health::PluginGone);
    inv.connected(R, InstanceId(2), now);
    assert_eq!(
        (count(&inv), inv.presence(R)),
        ((0, 0), Some(Presence::Absent(now)))
    );
    let out = inv.listed(R, InstanceId(2), healthy(&["a", "b"]), now);
    assert_eq!(out.health, ids(&["a", "b"]));
    assert_eq!(count(&inv), (2, 2));

    let mut inv = Inventory::default();
    inv.connected(R, InstanceId(1), now);
    inv.disconnected(R, InstanceId(1), now);
    assert_eq!(count(&inv), (0, 0));
}

#[tokio::test]
async fn items_044_and_045_several_instances() {
    let (mut inv, now) = (Inventory::default(), Instant::now());
    inv.connected(R, InstanceId(1), now);
    inv.listed(R, InstanceId(1), healthy(&["a"]), now);
    inv.connected(R, InstanceId(2), now);
    assert_eq!(inv.serving(R), Some(InstanceId(1)));
    inv.listed(R, InstanceId(2), healthy(&["a", "b"]), now);
    assert_eq!(inv.serving(R), Some(InstanceId(2)));
    // The older one talks on and then ends: nothing changes.
    assert_eq!(
        inv.listed(R, InstanceId(1), healthy(&[]), now),
        Outcome::default()
    );
    inv.connected(R, InstanceId(3), now);
    inv.listed(R, InstanceId(3), healthy(&["c"]), now);
    assert_eq!(count(&inv), (1, 1));
    assert_eq!(inv.disconnected(R, InstanceId(1), now), Outcome::default());
    // The newest goes: the one before it serves again.
    inv.disconnected(R, InstanceId(3), now);
    assert_eq!((count(&inv), inv.serving(R)), ((2, 2), Some(InstanceId(2))));
    for n in 10..30 {
        let surplus = inv.connected(R, InstanceId(n), now);
        for id in surplus {
            inv.disconnected(R, id, now);
        }
    }
    assert_eq!(inv.resources[R].instances.len(), MAX_INSTANCES);
}
