//! In-place resize of pods.

use super::*;

fn sized(cpu: &str, memory: &str) -> Value {
    let mut main = container("main", "sleep");
    main["resources"] = json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}});
    main
}

fn resize(node: &Node, path: &str, cpu: &str, memory: &str) {
    let mut pod = node.api.get(path).unwrap();
    pod["spec"]["containers"][0]["resources"] = sized(cpu, memory)["resources"].clone();
    let generation = pod["metadata"]["generation"].as_i64().unwrap_or(1);
    pod["metadata"]["generation"] = json!(generation + 1);
    node.api.put(path, pod);
}

fn has_condition(pod: &Value, kind: &str) -> bool {
    let list = pod["status"]["conditions"].as_array();
    list.into_iter().flatten().any(|c| c["type"] == kind)
}

async fn allocated(node: &Node, path: &str, cpu: &str) -> Value {
    let api = node.api.clone();
    wait(&format!("{cpu} are allocated"), || {
        let pod = api.get(path)?;
        let status = &pod["status"]["containerStatuses"][0];
        let done = status["allocatedResources"]["cpu"] == cpu
            && status["resources"]["limits"]["cpu"] == cpu
            && !has_condition(&pod, "PodResizeInProgress")
            && !has_condition(&pod, "PodResizePending");
        done.then_some(pod)
    })
    .await
}

fn updates(node: &Node) -> Vec<String> {
    let calls = node.runtime.calls();
    calls
        .into_iter()
        .filter(|c| c.starts_with("update"))
        .collect()
}

#[tokio::test]
async fn a_running_container_gets_its_new_size_without_a_restart() {
    let mut node = Node::start().await;
    let path = node.pod("a", json!({"containers": [sized("100m", "64Mi")]}));
    node.phase(&path, "Running").await;
    resize(&node, &path, "200m", "128Mi");
    let pod = allocated(&node, &path, "200m").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(
        updates(&node),
        ["update main shares=204 quota=20000 memory=134217728"]
    );
    // Nothing is done again after a restart of the agent.
    node.stop().await;
    node.run();
    resize(&node, &path, "300m", "128Mi");
    allocated(&node, &path, "300m").await;
    assert_eq!(updates(&node).len(), 2, "{:?}", updates(&node));
    node.stop().await;
}

#[tokio::test]
async fn a_container_restarts_where_its_policy_says_so() {
    let mut node = Node::start().await;
    let mut main = sized("100m", "64Mi");
    main["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    // Its end counts as success; the pod goes on nevertheless.
    let spec = json!({"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 5, "containers": [main]});
    let path = node.pod("a", spec);
    node.phase(&path, "Running").await;
    resize(&node, &path, "150m", "128Mi");
    let pod = allocated(&node, &path, "150m").await;
    let api = node.api.clone();
    wait("second instance", || {
        let status = api.get(&path)?["status"]["containerStatuses"][0].clone();
        (status["restartCount"] == 1 && !status["state"]["running"].is_null()).then_some(())
    })
    .await;
    assert_eq!(pod["status"]["phase"], "Running");
    assert!(updates(&node).is_empty());
    let (_, instance) = node.runtime.running().remove(0);
    let limits = instance.config.linux.unwrap().resources.unwrap();
    assert_eq!(limits.memory_limit_in_bytes, 128 << 20);
    node.stop().await;
}

/// KEP-1287 for init containers that are no sidecars: one that runs gets its new size, one that has not run begins with it.
#[tokio::test]
async fn init_containers_get_their_new_size_too() {
    let mut node = Node::start().await;
    let init = |name: &str| {
        let mut init = sized("100m", "64Mi");
        init["name"] = json!(name);
        init
    };
    let spec = json!({"initContainers": [init("first"), init("second")], "containers": [sized("100m", "64Mi")]});
    let path = node.pod("a", spec);
    let runtime = node.runtime.clone();
    let running = async |name: &str| {
        wait(name, || {
            let all = runtime.running().into_iter();
            let mut these =
                all.filter(|(_, i)| i.config.metadata.as_ref().is_some_and(|m| m.name == name));
            these.next()
        })
        .await
    };
    let (first, _) = running("first").await;
    let mut pod = node.api.get(&path).unwrap();
    for i in 0..2 {
        pod["spec"]["initContainers"][i]["resources"] = sized("200m", "128Mi")["resources"].clone();
    }
    pod["metadata"]["generation"] = json!(2);
    node.api.put(&path, pod);
    let api = node.api.clone();
    wait("the first has its size", || {
        let pod = api.get(&path)?;
        let status = &pod["status"]["initContainerStatuses"][0];
        let done = status["allocatedResources"]["cpu"] == "200m"
            && status["resources"]["limits"]["cpu"] == "200m"
            && !has_condition(&pod, "PodResizeInProgress");
        done.then_some(())
    })
    .await;
    assert_eq!(
        updates(&node),
        ["update first shares=204 quota=20000 memory=134217728"]
    );
    node.runtime.exit(&first, 0);
    let (second, instance) = running("second").await;
    let limits = instance.config.linux.unwrap().resources.unwrap();
    assert_eq!(limits.memory_limit_in_bytes, 128 << 20);
    node.runtime.exit(&second, 0);
    node.phase(&path, "Running").await;
    assert_eq!(updates(&node).len(), 1, "{:?}", updates(&node));
    node.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_waits_and_what_never_will_is_said_so() {
    let mut node = Node::start().await;
    let object = node.api.get("/api/v1/nodes/n1").unwrap();
    let cpus = object["status"]["allocatable"]["cpu"].as_str().unwrap();
    let cpus: i64 = cpus.parse().unwrap();
    let path = node.pod("a", json!({"containers": [sized("100m", "64Mi")]}));
    let most = format!("{}m", cpus * 1000 - 200);
    let other = node.pod(
        "b",
        json!({"containers": [sized(&most, "64Mi")], "terminationGracePeriodSeconds": 1}),
    );
    node.phase(&path, "Running").await;
    node.phase(&other, "Running").await;
    let api = node.api.clone();
    let pending = |reason: &str| {
        let api = api.clone();
        let (path, reason) = (path.clone(), reason.to_owned());
        async move {
            wait(&reason.clone(), || {
                condition(&api.get(&path)?, "PodResizePending").filter(|c| c["reason"] == reason)
            })
            .await
        }
    };
    resize(&node, &path, &format!("{}", cpus + 1), "64Mi");
    let never = pending("Infeasible").await;
    assert_eq!(
        never["message"],
        format!(
            "Node didn't have enough capacity: cpu, requested: {}, capacity: {}",
            (cpus + 1) * 1000,
            cpus * 1000
        )
    );
    assert_eq!(never["observedGeneration"], 2);
    resize(&node, &path, "500m", "64Mi");
    let later = pending("Deferred").await;
    let text = later["message"].as_str().unwrap();
    assert!(
        text.starts_with("Node didn't have enough resource: cpu, requested: 500, used: "),
        "{text}"
    );
    // What is granted is what others see meanwhile, also after a restart of the agent.
    node.stop().await;
    node.run();
    let seen = pending("Deferred").await;
    assert_eq!(seen["lastTransitionTime"], later["lastTransitionTime"]);
    assert_eq!(
        node.api.get(&path).unwrap()["status"]["containerStatuses"][0]["allocatedResources"]["cpu"],
        "100m"
    );
    node.delete(&other, 1);
    allocated(&node, &path, "500m").await;
    node.stop().await;
}

#[tokio::test]
async fn a_runtime_that_refuses_is_reported_and_asked_again() {
    let mut node = Node::start().await;
    let path = node.pod("a", json!({"containers": [sized("100m", "64Mi")]}));
    node.phase(&path, "Running").await;
    node.runtime.refuse_updates(true);
    resize(&node, &path, "200m", "64Mi");
    let api = node.api.clone();
    let failed = wait("error", || {
        condition(&api.get(&path)?, "PodResizeInProgress").filter(|c| c["reason"] == "Error")
    })
    .await;
    assert!(
        failed["message"].as_str().unwrap().contains("main"),
        "{failed}"
    );
    let pod = node.api.get(&path).unwrap();
    let status = &pod["status"]["containerStatuses"][0];
    assert_eq!(status["allocatedResources"]["cpu"], "200m");
    // What the container really has.
    assert_eq!(status["resources"]["limits"]["cpu"], "100m");
    // The agent restarts in between and goes on where it was.
    node.stop().await;
    node.runtime.refuse_updates(false);
    node.run();
    allocated(&node, &path, "200m").await;
    assert_eq!(updates(&node).len(), 1);
    node.stop().await;
}

#[tokio::test]
async fn resizes_that_wait_are_served_by_priority_as_soon_as_there_is_room() {
    let mut node = Node::start().await;
    let object = node.api.get("/api/v1/nodes/n1").unwrap();
    let cpus = object["status"]["allocatable"]["cpu"].as_str().unwrap();
    let cpus: i64 = cpus.parse().unwrap();
    let pod = |name: &str, cpu: &str, priority: i64| {
        let spec = json!({"containers": [sized(cpu, "64Mi")], "priority": priority, "terminationGracePeriodSeconds": 1});
        node.pod(name, spec)
    };
    let low = pod("low", "100m", 0);
    let high = pod("high", "100m", 1000);
    let holder = pod("holder", &format!("{}m", cpus * 1000 - 200), 0);
    for path in [&low, &high, &holder] {
        node.phase(path, "Running").await;
    }
    let more = format!("{}m", cpus * 1000 - 300);
    let api = node.api.clone();
    for path in [&low, &high] {
        resize(&node, path, &more, "64Mi");
        wait("deferred", || {
            condition(&api.get(path)?, "PodResizePending").filter(|c| c["reason"] == "Deferred")
        })
        .await;
    }
    node.delete(&holder, 1);
    let grown = allocated(&node, &high, &more).await;
    assert_eq!(grown["status"]["allocatedResources"]["cpu"], json!(more));
    let other = node.api.get(&low).unwrap();
    assert!(has_condition(&other, "PodResizePending"), "{other}");
    // What it asked for comes when the other one wants it no more.
    resize(&node, &high, "100m", "64Mi");
    allocated(&node, &low, &more).await;
    node.stop().await;
}

#[tokio::test]
async fn the_status_tells_the_size_of_the_pod_as_a_whole() {
    let mut node = Node::start().await;
    let level = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "64Mi"}, "limits": {"cpu": cpu, "memory": "64Mi"}});
    let spec = json!({"containers": [container("main", "sleep")], "resources": level("100m")});
    let path = node.pod("a", spec);
    let running = node.phase(&path, "Running").await;
    assert_eq!(running["status"]["resources"], level("100m"));
    node.runtime.refuse_updates(true);
    let mut pod = node.api.get(&path).unwrap();
    pod["spec"]["resources"] = level("200m");
    pod["metadata"]["generation"] = json!(2);
    node.api.put(&path, pod);
    let api = node.api.clone();
    let refused = wait("it is granted and does not come", || {
        let pod = api.get(&path)?;
        condition(&pod, "PodResizeInProgress").filter(|c| c["reason"] == "Error")?;
        Some(pod)
    });
    let refused = refused.await;
    assert_eq!(
        refused["status"]["allocatedResources"],
        level("200m")["requests"]
    );
    assert_eq!(refused["status"]["resources"], level("100m"));
    node.runtime.refuse_updates(false);
    wait("it is there", || {
        let status = api.get(&path)?["status"].clone();
        (status["resources"] == level("200m")).then_some(())
    })
    .await;
    node.stop().await;
}
