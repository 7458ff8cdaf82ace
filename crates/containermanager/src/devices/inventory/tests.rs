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
    list(&message(&devices)).unwrap()
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
        list(&message(&[("a", "Healthy"), ("b", "Foo")])).unwrap(),
        now,
    );
    assert_eq!(count(&inv), (2, 1));
    assert_eq!(out.health, ids(&["b"]));
    let out = inv.listed(R, InstanceId(1), healthy(&["a"]), now);
    assert_eq!((count(&inv), out.health), ((1, 1), ids(&["b"])));
    assert_eq!(inv.health(R, &"b".into()), Health::Unknown);
    let out = inv.listed(R, InstanceId(1), healthy(&["a"]), now);
    assert_eq!(out, Outcome::default());
    let twice = list(&message(&[("a", "Healthy"), ("a", "Unhealthy")])).unwrap();
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
    assert_eq!(inv.expire(GRACE, now + GRACE), [R.to_owned()]);
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

/// A plugin lists other devices each time.
#[tokio::test]
async fn devices_that_are_gone_are_not_kept() {
    let (mut inv, now) = (Inventory::default(), Instant::now());
    inv.connected(R, InstanceId(1), now);
    for round in 0..400 {
        let names: Vec<String> = (0..200).map(|n| format!("{round}-{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let out = inv.listed(R, InstanceId(1), healthy(&names), now);
        assert!(out.health.len() <= 400);
    }
    assert_eq!(count(&inv), (200, 200));
}

/// Of plugins that list very many devices the worst are left out, and nobody else.
#[tokio::test]
async fn what_all_lists_weigh_is_limited() {
    let (mut inv, now) = (Inventory::default(), Instant::now());
    let long = |n: usize| {
        let id = |i: usize| format!("{i}{}", "x".repeat(4000));
        let names: Vec<String> = (0..n).map(id).collect();
        healthy(&names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    inv.connected(R, InstanceId(0), now);
    inv.listed(R, InstanceId(0), healthy(&["a", "b"]), now);
    let mut shed = Vec::new();
    for n in 1..=40 {
        let resource = format!("example.com/r{n}");
        inv.connected(&resource, InstanceId(n), now);
        inv.listed(&resource, InstanceId(n), long(1000), now);
        shed.extend(inv.shed(now));
        if n % 2 == 0 {
            inv.disconnected(&resource, InstanceId(n), now);
        }
    }
    assert!(shed.len() > 20, "{}", shed.len());
    assert!(shed.iter().all(|(resource, _)| resource != R));
    assert!(
        shed.iter().any(|(_, id)| id.is_none()),
        "what has gone counts, too"
    );
    let kept: usize = inv.resources.values().map(Resource::weight).sum();
    assert!(kept <= MAX_WEIGHT);
    assert_eq!(count(&inv), (2, 2));
}
