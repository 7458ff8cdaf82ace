use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::framework::Code;
use crate::plugins::testing::{Bed, Shelf, pod};

const OUT_OF_REACH: &str = "node(s) didn't match PersistentVolume's node affinity";
const NOTHING_TO_BIND: &str = "node(s) didn't find available persistent volumes to bind";
const NOT_ENOUGH: &str = "node(s) did not have enough free storage";
const NO_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

fn plugin(shelf: &Shelf) -> VolumeBinding {
    VolumeBinding::new(None, shelf.volumes.clone(), &VolumeBindingArgs::default())
}

/// Nodes `a` and `b`; class `late` has volumes made by nobody, `made` by a driver, `now` binds at once.
fn cluster() -> (Shelf, Bed) {
    let shelf = Shelf::new();
    let class = |provisioner: &str, mode: &str| json!({"provisioner": provisioner, "volumeBindingMode": mode});
    shelf.class(
        "late",
        class("kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
    );
    shelf.class("made", class("csi.example.com", "WaitForFirstConsumer"));
    shelf.class("now", class("csi.example.com", "Immediate"));
    let mut bed = Bed::new();
    for name in ["a", "b"] {
        let labels = json!({"kubernetes.io/hostname": name, "zone": format!("zone-{name}")});
        bed.node(name, json!({"metadata": {"labels": labels}}));
    }
    (shelf, bed)
}

fn using(name: &str, claims: &[&str]) -> Arc<PodInfo> {
    let volume =
        |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let volumes: Vec<Value> = claims.iter().map(volume).collect();
    pod(name, json!({ "volumes": volumes }))
}

fn requesting(class: &str, size: &str) -> Value {
    json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}}})
}

/// A volume that is on a node.
fn local(class: &str, size: &str, node: &str) -> Value {
    let term = json!({"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]});
    json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}})
}

fn bound(shelf: &Shelf, claim: &str, volume: &str) {
    let meta = json!({"annotations": {"pv.kubernetes.io/bind-completed": "yes"}});
    shelf.whole_claim(
        claim,
        meta,
        json!({"volumeName": volume}),
        json!({"phase": "Bound"}),
    );
}

/// The reasons of nodes `a` and `b`; none: the node fits.
fn reasons(shelf: &Shelf, bed: &Bed, pod: &PodInfo) -> Vec<Vec<String>> {
    let verdicts = bed.verdicts(&plugin(shelf), pod);
    let unresolvable = |v: &Status| v.code == Code::UnschedulableAndUnresolvable;
    assert!(
        verdicts.iter().all(|v| v.is_success() || unresolvable(v)),
        "{verdicts:?}"
    );
    let texts = |v: &Status| v.reasons.iter().map(ToString::to_string).collect();
    verdicts.iter().map(texts).collect()
}

fn refusal(shelf: &Shelf, pod: &PodInfo) -> Option<String> {
    let (status, _) = cluster().1.pre_filter(&plugin(shelf), pod);
    status.is_rejected().then(|| {
        assert_eq!(status.code, Code::UnschedulableAndUnresolvable);
        status.message()
    })
}

#[test]
fn claims_that_cannot_be_used_are_named() {
    let (shelf, _) = cluster();
    assert!(
        cluster()
            .1
            .pre_filter(&plugin(&shelf), &using("p", &[]))
            .0
            .is_skip()
    );
    let one = |claim: &str| refusal(&shelf, &using("p", &[claim])).unwrap_or_default();
    assert_eq!(one("gone"), "persistentvolumeclaim \"gone\" not found");
    let lost = json!({"phase": "Lost"});
    shelf.whole_claim("lost", json!({}), json!({"volumeName": "pv"}), lost);
    let expected = "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"pv\"";
    assert_eq!(one("lost"), expected);
    let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    shelf.whole_claim("going", going, json!({}), json!({}));
    assert_eq!(
        one("going"),
        "persistentvolumeclaim \"going\" is being deleted"
    );
    let immediate = "pod has unbound immediate PersistentVolumeClaims";
    shelf.claim("now", requesting("now", "1Gi"));
    assert_eq!(one("now"), immediate);
    shelf.claim("unknown", requesting("unheard-of", "1Gi"));
    assert_eq!(one("unknown"), immediate);
    shelf.claim("none", requesting("", "1Gi"));
    assert_eq!(one("none"), immediate);
    shelf.claim(
        "prebound",
        json!({"storageClassName": "late", "volumeName": "pv"}),
    );
    assert_eq!(one("prebound"), immediate);
    shelf.claim("late", requesting("late", "1Gi"));
    assert_eq!(refusal(&shelf, &using("p", &["late"])), None);
    let unknown = VolumeBinding::new(None, VolumeCache::default(), &VolumeBindingArgs::default());
    let (status, _) = cluster().1.pre_filter(&unknown, &using("p", &["late"]));
    assert_eq!(status, Status::unresolvable(UNKNOWN_YET));
}

#[test]
fn claims_of_ephemeral_volumes_are_waited_for_and_must_be_the_pods_own() {
    let (shelf, _) = cluster();
    let pod = pod("p", json!({"volumes": [{"name": "v", "ephemeral": {}}]}));
    let waiting =
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-v\"";
    assert_eq!(refusal(&shelf, &pod).as_deref(), Some(waiting));
    shelf.claim("p-v", requesting("late", "1Gi"));
    let foreign = "PVC default/p-v was not created for pod default/p (pod is not owner)";
    assert_eq!(refusal(&shelf, &pod).as_deref(), Some(foreign));
    let owner =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    let meta = json!({ "ownerReferences": owner });
    shelf.whole_claim("p-v", meta, requesting("late", "1Gi"), json!({}));
    assert_eq!(refusal(&shelf, &pod), None);
}

#[test]
fn bound_volumes_must_be_there_and_within_reach() {
    let (shelf, bed) = cluster();
    bound(&shelf, "data", "pv");
    let pod = using("p", &["data"]);
    assert_eq!(reasons(&shelf, &bed, &pod), [[NO_VOLUME], [NO_VOLUME]]);
    shelf.volume("pv", &json!({}), local("late", "1Gi", "b"));
    assert_eq!(reasons(&shelf, &bed, &pod), [vec![OUT_OF_REACH], vec![]]);
    let verdicts = bed.verdicts(&plugin(&shelf), &pod);
    let why = "its volume \"pv\" cannot be reached from the node";
    assert_eq!(
        (&*verdicts[0].volumes[0].claim, &*verdicts[0].volumes[0].why),
        ("data", why)
    );
}

#[test]
fn delayed_claims_get_volumes_that_the_node_reaches() {
    let (shelf, bed) = cluster();
    shelf.claim("data", requesting("late", "1Gi"));
    let pod = using("p", &["data"]);
    assert_eq!(
        reasons(&shelf, &bed, &pod),
        [[NOTHING_TO_BIND], [NOTHING_TO_BIND]]
    );
    shelf.volume("pv", &json!({}), local("late", "1Gi", "b"));
    assert_eq!(reasons(&shelf, &bed, &pod), [vec![NOTHING_TO_BIND], vec![]]);
    shelf.claim("more", requesting("late", "2Gi"));
    assert_eq!(
        reasons(&shelf, &bed, &using("p", &["more"])),
        [[NOTHING_TO_BIND], [NOTHING_TO_BIND]]
    );
}

#[test]
fn each_claim_of_a_pod_gets_a_volume_of_its_own() {
    let (shelf, bed) = cluster();
    shelf.claim("small", requesting("late", "1Gi"));
    shelf.claim("large", requesting("late", "5Gi"));
    shelf.volume("pv1", &json!({}), local("late", "10Gi", "a"));
    let pod = using("p", &["large", "small"]);
    assert_eq!(
        reasons(&shelf, &bed, &pod),
        [[NOTHING_TO_BIND], [NOTHING_TO_BIND]]
    );
    shelf.volume("pv2", &json!({}), local("late", "1Gi", "a"));
    assert_eq!(reasons(&shelf, &bed, &pod), [vec![], vec![NOTHING_TO_BIND]]);
    let plugin = plugin(&shelf);
    let mut state = CycleState::new();
    plugin.pre_filter(&mut state, &pod, &bed.snapshot);
    plugin.filter(&state, &pod, bed.snapshot.node(0));
    let given: Vec<_> = found(&state, "a")
        .bindings
        .iter()
        .map(|b| (b.claim.metadata.name.clone().unwrap(), b.volume.clone()))
        .collect();
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(given, [pair("small", "pv2"), pair("large", "pv1")]);
}

#[test]
fn a_selected_node_holds() {
    let (shelf, bed) = cluster();
    let meta = json!({"annotations": {"volume.kubernetes.io/selected-node": "b"}});
    shelf.whole_claim("data", meta, requesting("made", "1Gi"), json!({}));
    shelf.volume("pv", &json!({}), local("made", "1Gi", "a"));
    assert_eq!(
        reasons(&shelf, &bed, &using("p", &["data"])),
        [vec![NOTHING_TO_BIND], vec![]]
    );
}

#[test]
fn volumes_are_made_where_the_class_allows() {
    let (shelf, bed) = cluster();
    let topologies = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["zone-b"]}]}]);
    shelf.class(
        "zoned",
        json!({"provisioner": "csi.example.com", "allowedTopologies": topologies,
        "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    shelf.claim("data", requesting("made", "1Gi"));
    shelf.claim("zoned", requesting("zoned", "1Gi"));
    assert_eq!(
        reasons(&shelf, &bed, &using("p", &["data"])),
        [Vec::<String>::new(), vec![]]
    );
    assert_eq!(
        reasons(&shelf, &bed, &using("p", &["zoned"])),
        [vec![NOTHING_TO_BIND], vec![]]
    );
}

#[test]
fn a_copy_is_made_where_its_source_is() {
    let (shelf, bed) = cluster();
    shelf.class(
        "standard",
        json!({"provisioner": "local.davit.dev", "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    shelf.volume("pv", &json!({}), local("standard", "1Gi", "b"));
    bound(&shelf, "source", "pv");
    let mut copy = requesting("standard", "1Gi");
    copy["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "source"});
    shelf.claim("copy", copy);
    assert_eq!(
        reasons(&shelf, &bed, &using("p", &["copy"])),
        [vec![OUT_OF_REACH], vec![]]
    );
}

#[test]
fn capacity_counts_where_the_driver_keeps_account() {
    let (shelf, bed) = cluster();
    shelf.claim("data", requesting("made", "10Gi"));
    let pod = using("p", &["data"]);
    let on = |node: &str| json!({"matchLabels": {"kubernetes.io/hostname": node}});
    assert_eq!(reasons(&shelf, &bed, &pod), [Vec::<String>::new(), vec![]]);
    shelf.driver("csi.example.com", json!({"storageCapacity": true}));
    assert_eq!(reasons(&shelf, &bed, &pod), [[NOT_ENOUGH], [NOT_ENOUGH]]);
    let capacity = |class: &str, topology: Value, size: &str| json!({"storageClassName": class, "nodeTopology": topology, "capacity": size});
    shelf.capacity("b", capacity("made", on("b"), "5Gi"));
    shelf.capacity("other", capacity("other", json!({}), "50Gi"));
    shelf.capacity(
        "nowhere",
        json!({"storageClassName": "made", "capacity": "50Gi"}),
    );
    assert_eq!(reasons(&shelf, &bed, &pod), [[NOT_ENOUGH], [NOT_ENOUGH]]);
    let verdict = &bed.verdicts(&plugin(&shelf), &pod)[1];
    let why = "10Gi of class \"made\" requested, the largest that can be made has 5Gi";
    assert_eq!(verdict.volumes[0].why, why);
    shelf.capacity("b", capacity("made", on("b"), "20Gi"));
    assert_eq!(reasons(&shelf, &bed, &pod), [vec![NOT_ENOUGH], vec![]]);
    let mut limited = capacity("made", on("b"), "20Gi");
    limited["maximumVolumeSize"] = json!("9Gi");
    shelf.capacity("b", limited);
    assert_eq!(reasons(&shelf, &bed, &pod), [[NOT_ENOUGH], [NOT_ENOUGH]]);
    shelf.capacity("all", capacity("made", json!({}), "10Gi"));
    assert_eq!(reasons(&shelf, &bed, &pod), [Vec::<String>::new(), vec![]]);
}

#[test]
fn only_what_helps_wakes() {
    let (shelf, _) = cluster();
    let plugin = plugin(&shelf);
    let pod = using("p", &["data"]);
    fn read<K: serde::de::DeserializeOwned>(value: Value) -> Option<Arc<K>> {
        Some(Arc::new(serde_json::from_value(value).unwrap()))
    }
    let event = ClusterEvent::new(EventResource::Any, Action::ALL);
    let hint = |object: EventObject| plugin.hint(&event, &pod, &object) == Hint::Queue;
    let claim = |name: &str, namespace: &str| EventObject::VolumeClaim {
        old: None,
        new: read(json!({"metadata": {"name": name, "namespace": namespace}})),
    };
    assert!(hint(claim("data", "default")));
    assert!(!hint(claim("other", "default")) && !hint(claim("data", "elsewhere")));
    let capacity = |old: &str, new: &str| {
        let capacity =
            |size: &str| read(json!({"metadata": {}, "storageClassName": "c", "capacity": size}));
        EventObject::CsiStorageCapacity {
            old: capacity(old),
            new: capacity(new),
        }
    };
    assert!(hint(capacity("1Gi", "2Gi")) && !hint(capacity("2Gi", "1Gi")));
    let driver = |old: bool, new: bool| {
        let driver = |on: bool| read(json!({"metadata": {}, "spec": {"storageCapacity": on}}));
        EventObject::CsiDriver {
            old: driver(old),
            new: driver(new),
        }
    };
    assert!(hint(driver(true, false)) && !hint(driver(false, true)));
    let class = |old: Value, new: Value| {
        let class = |topologies: Value| {
            read(json!({"metadata": {}, "provisioner": "x", "allowedTopologies": topologies}))
        };
        EventObject::StorageClass {
            old: class(old),
            new: class(new),
        }
    };
    assert!(hint(class(
        json!([]),
        json!([{"matchLabelExpressions": []}])
    )));
    assert!(!hint(class(json!([]), json!([]))));
}

/// Decides about a pod as the scheduler does: the volumes that it gets, if it gets its node.
fn decide(plugin: &VolumeBinding, bed: &Bed, pod: &PodInfo) -> Option<(String, Vec<String>)> {
    let mut state = CycleState::new();
    if !plugin
        .pre_filter(&mut state, pod, &bed.snapshot)
        .0
        .is_success()
    {
        return None;
    }
    let nodes = bed.snapshot.nodes();
    let node = nodes
        .iter()
        .find(|node| plugin.filter(&state, pod, node).is_success())?;
    let given = found(&state, &node.name).bindings;
    let reserved = plugin.reserve(&mut state, pod, &node.name);
    assert!(reserved.is_success(), "nothing came between: {reserved:?}");
    Some((
        node.name.to_string(),
        given.into_iter().map(|b| b.volume).collect(),
    ))
}

#[test]
fn what_is_taken_back_can_be_given_again() {
    let (shelf, bed) = cluster();
    shelf.claim("one", requesting("late", "1Gi"));
    shelf.claim("two", requesting("late", "1Gi"));
    shelf.volume("pv", &json!({}), local("late", "1Gi", "a"));
    let plugin = plugin(&shelf);
    let (first, second) = (using("p", &["one"]), using("q", &["two"]));
    assert!(decide(&plugin, &bed, &first).is_some());
    assert_eq!(decide(&plugin, &bed, &second), None);
    plugin.unreserve(&mut CycleState::new(), &first, "a");
    plugin.unreserve(&mut CycleState::new(), &first, "a");
    assert!(decide(&plugin, &bed, &second).is_some());
}

#[test]
fn pods_that_share_a_claim_share_its_volume_and_node() {
    let (shelf, bed) = cluster();
    shelf.claim("data", requesting("late", "1Gi"));
    shelf.claim("new", requesting("made", "1Gi"));
    shelf.volume("pv1", &json!({}), local("late", "1Gi", "b"));
    shelf.volume("pv2", &json!({}), local("late", "1Gi", "a"));
    let plugin = plugin(&shelf);
    let pods = [using("p", &["data", "new"]), using("q", &["new", "data"])];
    let first = decide(&plugin, &bed, &pods[0]);
    assert!(first.is_some());
    assert_eq!(decide(&plugin, &bed, &pods[1]), first);
    plugin.unreserve(&mut CycleState::new(), &pods[0], "");
    let other = using("r", &["new"]);
    let node = decide(&plugin, &bed, &other).unwrap().0;
    assert_eq!(
        Some(node),
        first.map(|(node, _)| node),
        "the second pod still holds it"
    );
}

#[test]
fn news_of_a_volume_neither_end_nor_hide_what_is_decided() {
    let (shelf, bed) = cluster();
    shelf.claim("one", requesting("late", "1Gi"));
    shelf.claim("two", requesting("late", "1Gi"));
    let spec = local("late", "1Gi", "a");
    shelf.volume("pv", &json!({}), spec.clone());
    let plugin = plugin(&shelf);
    assert!(decide(&plugin, &bed, &using("p", &["one"])).is_some());
    shelf.volume("pv", &json!({"some": "label"}), spec.clone());
    assert_eq!(decide(&plugin, &bed, &using("q", &["two"])), None);
    let mut elsewhere = spec;
    elsewhere["claimRef"] = json!({"namespace": "default", "name": "two", "uid": "two"});
    shelf.volume("pv", &json!({}), elsewhere);
    assert!(decide(&plugin, &bed, &using("q", &["two"])).is_some());
}

proptest! {
    /// Pods that are scheduled one after the other, with some decisions taken back in between, never get the same volume.
    #[test]
    fn no_volume_is_given_twice(
        volumes in proptest::collection::vec((1..6u8, any::<bool>()), 0..8),
        pods in proptest::collection::vec((proptest::collection::vec(1..6u8, 1..4), any::<bool>()), 1..8),
    ) {
        let (shelf, bed) = cluster();
        for (i, (size, on_a)) in volumes.iter().enumerate() {
            let node = if *on_a { "a" } else { "b" };
            shelf.volume(&format!("pv{i}"), &json!({}), local("late", &format!("{size}Gi"), node));
        }
        let plugin = plugin(&shelf);
        let mut given: BTreeSet<String> = BTreeSet::new();
        for (i, (sizes, taken_back)) in pods.iter().enumerate() {
            let names: Vec<String> = (0..sizes.len()).map(|j| format!("c{i}-{j}")).collect();
            for (name, size) in names.iter().zip(sizes) {
                shelf.claim(name, requesting("late", &format!("{size}Gi")));
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let pod = using(&format!("p{i}"), &names);
            let Some((_, volumes)) = decide(&plugin, &bed, &pod) else { continue };
            prop_assert_eq!(volumes.len(), sizes.len());
            if *taken_back {
                plugin.unreserve(&mut CycleState::new(), &pod, "");
                continue;
            }
            for volume in volumes {
                prop_assert!(given.insert(volume.clone()), "{} twice", volume);
            }
        }
    }
}
