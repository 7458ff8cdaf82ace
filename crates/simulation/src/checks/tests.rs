use super::*;
use davit_store::KeyValue;
use serde_json::json;

fn put(checks: &mut Checks, key: &str, object: &Value) -> Vec<String> {
    let key: Arc<str> = Arc::from(key);
    checks.take(&Change {
        revision: 1,
        key: Arc::clone(&key),
        current: Some(KeyValue {
            key,
            value: object.to_string().into(),
            mod_revision: 1,
            create_revision: 1,
        }),
        previous: None,
    })
}

fn pod(name: &str, node: Option<&str>, phase: &str) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "a", "uid": name},
        "spec": {"containers": [{"resources": {"requests": {"cpu": "600m"}}}]},
        "status": {"phase": phase},
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn claim(name: &str, device: &str, reserved: &[&str]) -> Value {
    let reserved: Vec<Value> = reserved.iter().map(|uid| json!({"uid": uid})).collect();
    json!({
        "metadata": {"name": name, "namespace": "a"},
        "status": {"reservedFor": reserved, "allocation": {"devices": {"results": [{"driver": "d", "pool": "n", "device": device}]}}},
    })
}

fn key(prefix: &str, name: &str) -> String {
    format!("{prefix}a/{name}")
}

#[test]
fn a_pod_is_bound_once_and_never_moved() {
    let mut checks = Checks::default();
    let node =
        json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "pods": "10"}}});
    assert!(put(&mut checks, "/registry/core/nodes/n", &node).is_empty());
    assert!(put(&mut checks, &key(PODS, "p"), &pod("p", None, "Pending")).is_empty());
    assert!(
        put(
            &mut checks,
            &key(PODS, "p"),
            &pod("p", Some("n"), "Pending")
        )
        .is_empty()
    );
    assert!(
        !put(
            &mut checks,
            &key(PODS, "p"),
            &pod("p", Some("m"), "Pending")
        )
        .is_empty()
    );
}

#[test]
fn pods_keep_to_what_their_node_has() {
    let mut checks = Checks::default();
    let node =
        json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "pods": "10"}}});
    put(&mut checks, "/registry/core/nodes/n", &node);
    assert!(
        put(
            &mut checks,
            &key(PODS, "p"),
            &pod("p", Some("n"), "Pending")
        )
        .is_empty()
    );
    assert!(
        !put(
            &mut checks,
            &key(PODS, "q"),
            &pod("q", Some("n"), "Pending")
        )
        .is_empty()
    );
}

#[test]
fn a_device_has_one_holder_and_is_not_taken_from_it() {
    let mut checks = Checks::default();
    put(
        &mut checks,
        "/registry/core/nodes/n",
        &json!({"status": {"allocatable": {"cpu": "4", "pods": "9"}}}),
    );
    put(
        &mut checks,
        &key(PODS, "p"),
        &pod("p", Some("n"), "Pending"),
    );
    assert!(put(&mut checks, &key(CLAIMS, "c"), &claim("c", "d0", &["p"])).is_empty());
    assert!(!put(&mut checks, &key(CLAIMS, "d"), &claim("d", "d0", &[])).is_empty());
    assert!(!put(&mut checks, &key(CLAIMS, "c"), &claim("c", "d0", &[])).is_empty());
}

#[test]
fn a_pod_of_a_job_is_counted_once() {
    let mut checks = Checks::default();
    let mut done = pod("p", None, "Succeeded");
    done["metadata"]["ownerReferences"] = json!([{"kind": "Job", "uid": "j", "controller": true}]);
    put(&mut checks, &key(PODS, "p"), &done);
    let job = |succeeded: u64| json!({"metadata": {"uid": "j"}, "spec": {"completions": 2}, "status": {"succeeded": succeeded}});
    assert!(put(&mut checks, &key(JOBS, "j"), &job(1)).is_empty());
    assert!(!put(&mut checks, &key(JOBS, "j"), &job(2)).is_empty());
}

#[test]
fn a_binding_may_be_on_its_way_while_its_node_goes() {
    let mut checks = Checks::default();
    let node = json!({"metadata": {"name": "n"}});
    put(&mut checks, "/registry/core/nodes/n", &node);
    checks.take(&Change {
        revision: 2,
        key: Arc::from("/registry/core/nodes/n"),
        current: None,
        previous: None,
    });
    let bound = |checks: &mut Checks, name, node| {
        put(checks, &key(PODS, name), &pod(name, None, "Pending"));
        let bound = pod(name, Some(node), "Pending");
        put(checks, &key(PODS, name), &bound)
    };
    assert!(bound(&mut checks, "p", "n").is_empty());
    assert_eq!(bound(&mut checks, "q", "never").len(), 1);
    put(&mut checks, "/registry/core/nodes/n", &node);
    assert!(
        bound(&mut checks, "r", "n").is_empty(),
        "it is back, and new"
    );
}
