//! How pods end.

use super::*;

/// KEP-753 and its test in `test/e2e_node`: hooks of sidecars begin when the pod begins to end; only the stop signals come
/// in the reverse of the order, after the app containers.
#[tokio::test]
async fn hooks_of_sidecars_run_together_and_signals_in_turn() {
    let mut node = Node::start().await;
    let sidecar = |name: &str| {
        let mut sidecar = container(name, "sleep");
        sidecar["restartPolicy"] = json!("Always");
        sidecar["lifecycle"] = json!({"preStop": {"exec": {"command": ["bye", name]}}});
        sidecar
    };
    let mut main = container("main", "sleep");
    main["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 1}}});
    let spec = json!({"initContainers": [sidecar("one"), sidecar("two")], "containers": [main],
        "terminationGracePeriodSeconds": 20});
    let path = node.pod("a", spec);
    node.phase(&path, "Running").await;
    node.delete(&path, 20);
    let api = node.api.clone();
    wait("pod is gone", || api.get(&path).is_none().then_some(())).await;
    let calls = node.runtime.calls();
    let mut ending: Vec<String> = calls
        .iter()
        .filter(|c| c.starts_with("exec ") || c.starts_with("stop "))
        .map(|c| c.split(' ').take(3).filter(|w| w.parse::<f64>().is_err()))
        .map(|words| words.collect::<Vec<_>>().join(" "))
        .collect();
    // Which of the hooks is the first does not matter.
    ending[..2].sort();
    assert_eq!(
        ending,
        [
            "exec bye one",
            "exec bye two",
            "stop main",
            "stop two",
            "stop one"
        ]
    );
    node.stop().await;
}

/// As in the kubelet and `test/e2e_node`: a hook that takes longer than the grace period is not cut off before its container is
/// killed, and does not hold that up.
#[tokio::test]
async fn a_hook_without_end_goes_on_until_its_container_is_killed() {
    let mut node = Node::start().await;
    let mut main = container("main", "sleep");
    main["lifecycle"] = json!({"preStop": {"exec": {"command": ["hang"]}}});
    let spec = json!({"containers": [main], "terminationGracePeriodSeconds": 1});
    let path = node.pod("a", spec);
    node.phase(&path, "Running").await;
    node.delete(&path, 1);
    let api = node.api.clone();
    wait("pod is gone", || api.get(&path).is_none().then_some(())).await;
    let calls = node.runtime.calls();
    let at = |start: &str| calls.iter().position(|c| c.starts_with(start));
    assert!(at("exec hang") < at("stop main"), "{calls:?}");
    assert_eq!(at("exec was cut off"), None, "{calls:?}");
    node.stop().await;
}

/// What a probe ends starts again unless the policy is Never, even if it ends well, as in Kubernetes: the pod is told that it
/// "will be restarted". So in `test/e2e_node`, where a container with `OnFailure` has its image changed after its liveness failed.
#[tokio::test]
async fn a_container_that_ends_well_for_its_liveness_is_started_again_on_failure() {
    let mut node = Node::start().await;
    let probe = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1});
    for (name, kind) in [("live", "livenessProbe"), ("begun", "startupProbe")] {
        let mut main = container("main", "obeys");
        main[kind] = probe.clone();
        let path = node.pod(
            name,
            json!({"restartPolicy": "OnFailure", "containers": [main]}),
        );
        let api = node.api.clone();
        wait("it was started again", || {
            let of = &api.get(&path)?["status"]["containerStatuses"][0];
            (of["restartCount"].as_i64()? > 0).then_some(())
        })
        .await;
        assert_ne!(api.get(&path).unwrap()["status"]["phase"], "Succeeded");
    }
    let mut main = container("main", "obeys");
    main["livenessProbe"] = probe;
    let path = node.pod(
        "never",
        json!({"restartPolicy": "Never", "containers": [main]}),
    );
    node.phase(&path, "Succeeded").await;
    node.stop().await;
}
