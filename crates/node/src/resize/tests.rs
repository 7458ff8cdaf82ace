use super::*;
use proptest::prelude::*;

fn pod(containers: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 4},
        "spec": {"containers": containers},
    }))
    .unwrap()
}

fn size(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn one(cpu: &str, memory: &str) -> Pod {
    pod(&json!([{"name": "c", "resources": size(cpu, memory)}]))
}

fn limits(allocatable: &Amounts) -> NodeLimits<'_> {
    NodeLimits {
        static_cpus: false,
        static_memory: false,
        allocatable,
    }
}

#[test]
fn sizes_are_compared_by_amount() {
    let (a, b) = (one("1", "1Gi"), one("1000m", "1024Mi"));
    assert!(Sizes::of(&a).same(&Sizes::of(&b)));
    assert!(!Sizes::of(&a).same(&Sizes::of(&one("1", "1025Mi"))));
    // Other resources do not count: they cannot be resized.
    let mut device = b.clone();
    let container = &mut device.spec.as_mut().unwrap().containers[0];
    let requests = container.resources.as_mut().unwrap();
    let requests = requests.requests.as_mut().unwrap();
    requests.insert(
        "example.com/x".to_owned(),
        serde_json::from_value(json!("1")).unwrap(),
    );
    assert!(Sizes::of(&device).same(&Sizes::of(&b)));
}

#[test]
fn the_status_tells_what_the_pod_as_a_whole_was_granted() {
    let with = |cpu: &str, status: Value| -> Pod {
        let level = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": "1Gi"}});
        let spec =
            json!({"containers": [{"name": "c"}], "resources": level, "overhead": {"cpu": "250m"}});
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec, "status": status}))
            .unwrap()
    };
    let before = with("1", json!({}));
    let told = davit_pods::resources::pod_resources(&before);
    let status = json!({"allocatedResources": told.requests, "resources": told});
    let wanted = with("3", status);
    let granted = Sizes::by_status(&wanted);
    assert!(granted.same(&Sizes::of(&before)), "{granted:?}");
    // A status of before there was this field says nothing.
    let silent = with("3", json!({}));
    assert!(Sizes::by_status(&silent).same(&Sizes::of(&silent)));
}

#[test]
fn the_status_tells_what_was_granted() {
    let mut wanted = one("2", "2Gi");
    // A status without resources says nothing.
    let bare = json!({"containerStatuses": [{"name": "c", "ready": true, "restartCount": 0, "image": "", "imageID": ""}]});
    wanted.status = serde_json::from_value(bare).unwrap();
    assert!(Sizes::by_status(&wanted).same(&Sizes::of(&wanted)));
    let status = json!({"containerStatuses": [{
        "name": "c", "ready": true, "restartCount": 0, "image": "", "imageID": "",
        "allocatedResources": {"cpu": "1", "memory": "1Gi"},
        "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1", "memory": "1Gi"}},
    }]});
    wanted.status = serde_json::from_value(status).unwrap();
    let granted = Sizes::by_status(&wanted);
    assert_eq!(
        serde_json::to_value(&granted.containers["c"]).unwrap(),
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1"}})
    );
    let mut seen = wanted.clone();
    granted.put_into(&mut seen);
    assert!(Sizes::of(&seen).same(&granted));
}

#[test]
fn restarts_follow_the_policy_of_what_changes() {
    let value = json!([{"name": "c", "resizePolicy": [
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]}]);
    let container = &pod(&value).spec.unwrap().containers[0];
    let of = |cpu, memory| serde_json::from_value(size(cpu, memory)).unwrap();
    assert!(!needs_restart(container, &of("1", "1Gi"), &of("2", "1Gi")));
    assert!(needs_restart(container, &of("1", "1Gi"), &of("1", "2Gi")));
    // The pod's limits are those of a container without any.
    let (small, large) = (of("1", "1Gi"), of("1", "2Gi"));
    let restarts = |size: ResourceRequirements| {
        let sizes = [&small, &large].map(|level| within(&size, Some(level)));
        needs_restart(container, &sizes[0], &sizes[1])
    };
    assert!(restarts(ResourceRequirements::default()));
    assert!(!restarts(of("500m", "512Mi")));
}

#[test]
fn what_can_never_be_is_said_so() {
    let allocatable = Amounts::from([("cpu".to_owned(), 4000), ("memory".to_owned(), 8 << 30)]);
    let node = limits(&allocatable);
    let granted = Sizes::of(&one("1", "1Gi"));
    assert_eq!(infeasible(&one("4", "8Gi"), &granted, &node), None);
    assert_eq!(
        infeasible(&one("5", "1Gi"), &granted, &node).unwrap(),
        "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000"
    );
    let pinned = NodeLimits {
        static_cpus: true,
        static_memory: true,
        ..node
    };
    assert_eq!(
        infeasible(&one("2", "1Gi"), &granted, &pinned).unwrap(),
        "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
    );
    assert_eq!(
        infeasible(&one("1", "2Gi"), &granted, &pinned).unwrap(),
        "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\""
    );
    // A Burstable pod has nothing pinned.
    let burstable =
        |cpu: &str| pod(&json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]));
    let granted = Sizes::of(&burstable("1"));
    assert_eq!(infeasible(&burstable("2"), &granted, &pinned), None);
    let mut fixed = one("2", "1Gi");
    let file = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    fixed.metadata.annotations = Some([file].into());
    assert_eq!(
        infeasible(&fixed, &granted, &limits(&allocatable)).unwrap(),
        "In-place resize of static-pods is not supported"
    );
}

#[test]
fn events_carry_the_sizes() {
    assert_eq!(
        serde_json::from_str::<Value>(&details(&one("1", "1Gi"), Some("no room"))).unwrap(),
        json!({"containers": [{"name": "c", "resources": size("1", "1Gi")}], "generation": 4, "error": "no room"})
    );
}

#[test]
fn a_record_survives() {
    let dir = tempfile::tempdir().unwrap();
    let paths = davit_pods::paths::Paths::new(dir.path().join("k"), dir.path().join("log"));
    assert_eq!(Record::load(&paths, "u").unwrap(), None);
    let record = Record {
        granted: Sizes::of(&one("1", "1Gi")),
        actual: BTreeMap::from([(
            "c".to_owned(),
            Actual {
                id: "x".to_owned(),
                size: serde_json::from_value(size("500m", "1Gi")).unwrap(),
                pod: None,
            },
        )]),
        in_progress: Some(4),
    };
    record.store(&paths, "u").unwrap();
    assert_eq!(Record::load(&paths, "u").unwrap(), Some(record));
    std::fs::write(paths.pod("u").join("resize.json"), "{").unwrap();
    assert!(Record::load(&paths, "u").is_err());
}

proptest! {
    /// What is put into a pod is what the pod then asks for.
    #[test]
    fn put_and_read_are_inverse(cpu in 1..10_000_i64, memory in 1..1_i64 << 40, other in 1..10_000_i64) {
        let granted = Sizes::of(&one(&format!("{cpu}m"), &memory.to_string()));
        let mut pod = one(&format!("{other}m"), "1");
        granted.put_into(&mut pod);
        prop_assert!(Sizes::of(&pod).same(&granted));
        prop_assert_eq!(Sizes::of(&pod), granted);
    }
}
