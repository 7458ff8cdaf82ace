//! The plan against slices as a server keeps them.

use super::*;
use crate::dra::devices::{DeviceExt, device};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const PUBLISHER: Publisher<'static> = Publisher {
    driver: "gpu.example.com",
    node: Some("node-1"),
};

fn now() -> Timestamp {
    "2026-05-04T03:02:01.5Z".parse().unwrap()
}

/// Does what the plan says; returns how many writes that took.
fn apply(slices: &mut Vec<ResourceSlice>, plan: Plan) -> usize {
    let writes = plan.delete.len() + plan.update.len() + plan.create.len();
    let name = |s: &ResourceSlice| s.metadata.name.clone().unwrap();
    for old in plan.delete {
        slices.retain(|s| name(s) != old.name);
    }
    for (old, spec) in plan.update {
        let slice = slices.iter_mut().find(|s| name(s) == old.name).unwrap();
        slice.spec = spec;
    }
    for (new, spec) in plan.create {
        assert!(slices.iter().all(|s| name(s) != new));
        slices.push(ResourceSlice {
            metadata: ObjectMeta {
                name: Some(new),
                ..ObjectMeta::default()
            },
            spec,
        });
    }
    writes
}

fn sync(slices: &mut Vec<ResourceSlice>, wanted: &Resources) -> usize {
    let plan = plan(&PUBLISHER, wanted, slices, &Accepted::new(), now());
    apply(slices, plan)
}

fn generations(slices: &[ResourceSlice]) -> BTreeSet<i64> {
    slices.iter().map(|s| s.spec.pool.generation).collect()
}

fn many(count: usize) -> Resources {
    let devices = (0..count).map(|n| device(format!("gpu-{n}")).capacity("memory", "1024Mi"));
    Resources::new().pool("node-1", Pool::new(devices))
}

#[test]
fn item_119_unchanged_sets_are_not_written_and_generations_rise_with_two_changes() {
    let mut slices = Vec::new();
    let mut wanted = many(300);
    assert_eq!(sync(&mut slices, &wanted), 3);
    assert_eq!(generations(&slices), BTreeSet::from([1]));
    assert_eq!(sync(&mut slices, &wanted), 0);
    let pool = wanted.pools.get_mut("node-1").unwrap();
    pool.devices[0] = device("gpu-0").text("model", "new");
    assert_eq!(sync(&mut slices, &wanted), 1);
    assert_eq!(generations(&slices), BTreeSet::from([1]));
    let pool = wanted.pools.get_mut("node-1").unwrap();
    pool.devices[0] = device("gpu-0");
    pool.devices[200] = device("gpu-200");
    assert_eq!(sync(&mut slices, &wanted), 3);
    assert_eq!(generations(&slices), BTreeSet::from([2]));
    assert_eq!(sync(&mut slices, &wanted), 0);
    // Fewer slices: the count changes in all of them.
    assert_eq!(sync(&mut slices, &many(200)), 3);
    assert_eq!(generations(&slices), BTreeSet::from([3]));
    assert_eq!(slices.len(), 2);
    assert!(slices.iter().all(|s| s.spec.pool.resource_slice_count == 2));
}

#[test]
fn item_120_deleted_slices_come_back_and_pools_go() {
    let mut slices = Vec::new();
    let wanted = many(300).pool("other", Pool::default());
    sync(&mut slices, &wanted);
    let before = slices.clone();
    slices.remove(1);
    assert_eq!(sync(&mut slices, &wanted), 1);
    slices.sort_by_key(|s| s.metadata.name.clone());
    let mut expected = before;
    expected.sort_by_key(|s| s.metadata.name.clone());
    assert_eq!(slices, expected);
    assert_eq!(sync(&mut slices, &many(300)), 1);
    assert!(slices.iter().all(|s| s.spec.pool.name == "node-1"));
    assert_eq!(sync(&mut slices, &Resources::new()), 3);
    assert!(slices.is_empty());
}

#[test]
fn item_121_names_sort_in_the_order_of_the_devices() {
    let mut slices = Vec::new();
    sync(&mut slices, &many(17 * 128));
    slices.reverse();
    slices.sort_by_key(|s| s.metadata.name.clone());
    let devices = slices.iter().flat_map(|s| s.spec.devices.iter().flatten());
    let names: Vec<String> = devices.map(|d| d.name.clone()).collect();
    let expected: Vec<String> = (0..17 * 128).map(|n| format!("gpu-{n}")).collect();
    assert_eq!(names, expected);
    let long = Publisher {
        driver: &"d".repeat(63),
        node: Some(&"n".repeat(240)),
    };
    let name = long.name(0x12345, "pool/of/parts");
    assert!(
        davit_api::names::check_dns1123_subdomain(&name).is_empty(),
        "{name}"
    );
}

#[test]
fn an_interrupted_write_is_finished_in_its_generation() {
    let mut slices = Vec::new();
    let mut wanted = many(300);
    sync(&mut slices, &wanted);
    for n in [0, 200] {
        wanted.pools.get_mut("node-1").unwrap().devices[n] = device(format!("gpu-{n}"));
    }
    let mut half = plan(&PUBLISHER, &wanted, &slices, &Accepted::new(), now());
    half.update.truncate(1);
    apply(&mut slices, half);
    assert_eq!(generations(&slices), BTreeSet::from([1, 2]));
    assert_eq!(sync(&mut slices, &wanted), 2);
    assert_eq!(generations(&slices), BTreeSet::from([2]));
}

#[test]
fn foreign_names_and_doubles_are_replaced() {
    let mut slices = Vec::new();
    sync(&mut slices, &many(3));
    let mut foreign = slices[0].clone();
    foreign.metadata.name = Some("gpu-x7xw2".into());
    slices.push(foreign);
    let mut double = slices[0].clone();
    double.metadata.name = Some("00000-z".into());
    slices.push(double);
    let made = plan(&PUBLISHER, &many(3), &slices, &Accepted::new(), now());
    let gone: Vec<&str> = made.delete.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(gone, ["00000-z", "gpu-x7xw2"]);
    assert!(made.update.is_empty() && made.create.is_empty());
}

#[test]
fn item_122_what_the_server_drops_is_told_and_not_sent_again() {
    let wanted = Resources::new().pool(
        "node-1",
        Pool::new([device("a").taint("x.dev/y", "", "NoSchedule").shareable()]),
    );
    let mut slices = Vec::new();
    let first = plan(&PUBLISHER, &wanted, &slices, &Accepted::new(), now());
    let (name, sent) = first.create[0].clone();
    apply(&mut slices, first);
    let mut stored = sent.clone();
    for device in stored.devices.iter_mut().flatten() {
        device.taints = None;
        device.allow_multiple_allocations = None;
    }
    slices[0].spec = stored.clone();
    assert_eq!(
        dropped(&sent, &stored),
        ["DRAConsumableCapacity", "DRADeviceTaints"]
    );
    assert!(!plan(&PUBLISHER, &wanted, &slices, &Accepted::new(), now()).is_empty());
    let mut sent = sent;
    // Time goes on; what the taint's time is does not matter while it is dropped.
    for taint in sent
        .devices
        .iter_mut()
        .flatten()
        .flat_map(|d| d.taints.iter_mut().flatten())
    {
        taint.time_added = Some(Time("2020-01-01T00:00:00Z".parse().unwrap()));
    }
    let accepted = Accepted::from([(name, (sent, stored))]);
    assert!(plan(&PUBLISHER, &wanted, &slices, &accepted, now()).is_empty());
}

#[test]
fn taints_keep_their_time_and_amounts_their_meaning() {
    let tainted = |memory: &str| {
        let gpu = device("a").capacity("memory", memory);
        let gpu = gpu.taint("x.dev/y", "v", "NoExecute");
        Resources::new().pool("node-1", Pool::new([gpu]))
    };
    let mut slices = Vec::new();
    sync(&mut slices, &tainted("1024Mi"));
    let later = "2026-05-04T04:00:00Z".parse().unwrap();
    let again = plan(
        &PUBLISHER,
        &tainted("1Gi"),
        &slices,
        &Accepted::new(),
        later,
    );
    assert!(again.is_empty(), "{again:?}");
    let taints = slices[0].spec.devices.as_ref().unwrap()[0].taints.clone();
    let time = taints.unwrap()[0].time_added.clone().unwrap();
    assert_eq!(time.0.to_string(), "2026-05-04T03:02:01Z");
}

/// A server fills in what a mapping multiplies by and writes amounts in its own way.
#[test]
fn what_devices_take_of_their_node_is_not_written_again() {
    let wanted = |amount: &str| {
        let mut core = device("core-0")
            .takes_of_node("memory", amount)
            .capacity("cores", "8");
        let mappings = core
            .node_allocatable_resource_mappings
            .get_or_insert_default();
        let by_capacity =
            serde_json::from_value(serde_json::json!({"capacityKey": "cores"})).unwrap();
        mappings.insert("cpu".to_owned(), by_capacity);
        Resources::new().pool("node-1", Pool::new([core]))
    };
    let mut slices = Vec::new();
    assert_eq!(sync(&mut slices, &wanted("1024Mi")), 1);
    let sent = slices[0].spec.clone();
    let stored = |slice: &mut ResourceSliceSpec| {
        let device = &mut slice.devices.as_mut().unwrap()[0];
        let mappings = device.node_allocatable_resource_mappings.as_mut().unwrap();
        mappings.get_mut("memory").unwrap().allocation_multiplier =
            Some(Quantity("1Gi".to_owned()));
        mappings.get_mut("cpu").unwrap().allocation_multiplier = Some(Quantity("1".to_owned()));
    };
    stored(&mut slices[0].spec);
    assert_eq!(dropped(&sent, &slices[0].spec), Vec::<&str>::new());
    assert_eq!(sync(&mut slices, &wanted("1024Mi")), 0);
    assert_eq!(sync(&mut slices, &wanted("2Gi")), 1);
    let device = &mut slices[0].spec.devices.as_mut().unwrap()[0];
    device.node_allocatable_resource_mappings = None;
    assert_eq!(
        dropped(&sent, &slices[0].spec),
        ["DRANodeAllocatableResources"]
    );
}
