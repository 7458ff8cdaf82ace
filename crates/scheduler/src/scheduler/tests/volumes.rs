//! Pods with claims. The tests play the PersistentVolume controller and the provisioner.

use super::*;

const SELECTED: &str = "volume.kubernetes.io/selected-node";

fn meta(name: &str, namespace: &str) -> Value {
    json!({"name": name, "namespace": namespace, "uid": format!("uid-{name}")})
}

impl Bed {
    /// Nodes `a` and `b`; class `late` has volumes made by nobody, `made` by a provisioner.
    fn with_storage(options: SchedulerOptions) -> Self {
        let bed = Self::start(options);
        for name in ["a", "b"] {
            bed.api.put(
                "nodes",
                json!({"metadata": {"name": name, "uid": name, "labels": {"host": name}},
                "status": {"allocatable": {"cpu": "400", "memory": "8Gi", "pods": "400"}}}),
            );
        }
        for (name, provisioner) in [("late", "kubernetes.io/no-provisioner"), ("made", "x.io/p")] {
            let mut class =
                json!({"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"});
            class["metadata"] = json!({"name": name, "uid": name});
            bed.api.put("storageclasses", class);
        }
        bed
    }

    fn volume_claim(&self, name: &str, class: &str) {
        self.api.put(
            "persistentvolumeclaims",
            json!({"metadata": meta(name, "default"), "spec": {"storageClassName": class,
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                "status": {"phase": "Pending"}}),
        );
    }

    /// A volume on a node.
    fn local_volume(&self, name: &str, node: &str) {
        let term =
            json!({"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]});
        self.api.put(
            "persistentvolumes",
            json!({"metadata": {"name": name, "uid": name}, "spec": {"storageClassName": "late",
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
                "status": {"phase": "Available"}}),
        );
    }

    fn mounting(&self, name: &str, claims: &[&str], mut extra: Value) {
        let volume =
            |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        extra["volumes"] = claims.iter().map(volume).collect();
        self.pod(name, "0", extra);
    }

    fn the_claim(&self, name: &str) -> Value {
        self.api
            .get("persistentvolumeclaims", "default", name)
            .unwrap()
    }

    fn node_for(&self, claim: &str) -> Option<String> {
        let selected = &self.the_claim(claim)["metadata"]["annotations"][SELECTED];
        selected.as_str().map(str::to_owned)
    }

    /// The volume that is kept for a claim.
    fn kept(&self, claim: &str) -> Option<String> {
        let volumes = self.api.all("persistentvolumes");
        let mut kept = volumes
            .iter()
            .filter(|v| v["spec"]["claimRef"]["name"] == claim);
        kept.next()?["metadata"]["name"].as_str().map(str::to_owned)
    }

    /// The controller completes a binding.
    fn complete(&self, claim: &str, volume: &str) {
        let mut bound = self.the_claim(claim);
        bound["spec"]["volumeName"] = json!(volume);
        bound["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        bound["status"]["phase"] = json!("Bound");
        self.api.put("persistentvolumeclaims", bound);
    }

    /// The provisioner makes a volume for a claim.
    fn provision(&self, claim: &str) {
        let volume = format!("pvc-{claim}");
        self.api.put(
            "persistentvolumes",
            json!({"metadata": {"name": volume, "uid": volume}, "spec": {"storageClassName": "made",
                "claimRef": {"namespace": "default", "name": claim, "uid": format!("uid-{claim}")}},
                "status": {"phase": "Bound"}}),
        );
        self.complete(claim, &volume);
    }

    async fn until_told(&self, text: &str) {
        self.until(text, |b| {
            let events = b.events("FailedScheduling");
            events
                .iter()
                .any(|e| e["message"].as_str().is_some_and(|m| m.contains(text)))
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_follows_its_volume_and_is_bound_after_it() {
    let bed = Bed::with_storage(SchedulerOptions::default());
    bed.volume_claim("data", "late");
    bed.local_volume("pv", "b");
    bed.mounting("p", &["data"], json!({}));
    bed.until("kept", |b| b.kept("data").as_deref() == Some("pv"))
        .await;
    let volume = bed.api.get("persistentvolumes", "", "pv").unwrap();
    assert_eq!(volume["spec"]["claimRef"]["uid"], "uid-data");
    assert_eq!(
        volume["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"],
        "yes"
    );
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(bed.node_of("p"), None, "the claim is not bound");
    bed.complete("data", "pv");
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("b"))
        .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_waited_for() {
    let bed = Bed::with_storage(SchedulerOptions::default());
    bed.mounting("p", &["data"], json!({}));
    bed.until_told("persistentvolumeclaim \"data\" not found")
        .await;
    bed.volume_claim("data", "late");
    bed.until_told("node(s) didn't find available persistent volumes to bind")
        .await;
    bed.local_volume("pv", "a");
    bed.until("kept", |b| b.kept("data").is_some()).await;
    bed.complete("data", "pv");
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("a"))
        .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn refusals_are_not_resolved_by_preemption_and_stand_in_the_record() {
    let bed = Bed::with_storage(SchedulerOptions::default());
    bed.pod("lowly", "0", json!({"nodeName": "a", "priority": -5}));
    bed.volume_claim("data", "late");
    bed.mounting("p", &["data"], json!({"priority": 1000}));
    bed.until_told("2 node(s) didn't find available persistent volumes to bind. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.").await;
    assert!(bed.api.get("pods", "default", "lowly").is_some());
    let event = bed.events("FailedScheduling").remove(0);
    let record = event["metadata"]["annotations"][VERDICT_ANNOTATION]
        .as_str()
        .unwrap();
    let record: Record = serde_json::from_str(record).unwrap();
    assert_eq!(record.nodes[0].volumes[0].claim, "data");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_provisioner_that_gives_a_node_up_is_asked_for_another() {
    let bed = Bed::with_storage(SchedulerOptions::default());
    bed.volume_claim("data", "made");
    bed.mounting("p", &["data"], json!({}));
    bed.until("selected", |b| b.node_for("data").is_some())
        .await;
    let first = bed.node_for("data").unwrap();
    // The node cannot be used any more, or it would be chosen again.
    let mut node = bed.api.get("nodes", "", &first).unwrap();
    node["spec"]["unschedulable"] = json!(true);
    bed.api.put("nodes", node);
    let mut claim = bed.the_claim("data");
    claim["metadata"]["annotations"] = json!({"some": "thing"});
    bed.api.put("persistentvolumeclaims", claim);
    bed.until_told("binding volumes: provisioning failed for PVC \"data\"")
        .await;
    bed.until("selected anew", |b| {
        b.node_for("data").is_some_and(|n| n != first)
    })
    .await;
    bed.provision("data");
    bed.until("bound", |b| b.node_of("p").is_some_and(|n| n != first))
        .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_provisioner_is_waited_for_so_long_and_asked_again() {
    let options = options(
        "profiles:\n- schedulerName: default-scheduler\n  pluginConfig:\n  - name: VolumeBinding\n    args: {bindTimeoutSeconds: 20}\n",
    );
    let bed = Bed::with_storage(options);
    bed.volume_claim("data", "made");
    bed.mounting("p", &["data"], json!({}));
    let began = Instant::now();
    bed.until_told("binding volumes: context deadline exceeded")
        .await;
    assert!(began.elapsed() >= Duration::from_secs(20));
    let node = bed.node_for("data");
    assert!(node.is_some(), "the next attempt is held to the same node");
    tokio::time::sleep(Duration::from_secs(5)).await;
    bed.provision("data");
    bed.until("bound", |b| {
        b.node_of("p").is_some() && b.node_of("p") == node
    })
    .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_while_it_waits_frees_its_place() {
    let bed = Bed::with_storage(SchedulerOptions::default());
    bed.volume_claim("data", "late");
    bed.local_volume("pv", "a");
    bed.mounting(
        "p",
        &["data"],
        json!({"containers": [{"name": "c", "image": "x",
        "resources": {"requests": {"cpu": "300"}}}]}),
    );
    bed.until("kept", |b| b.kept("data").is_some()).await;
    bed.pod(
        "q",
        "0",
        json!({"nodeSelector": {"host": "a"}, "containers": [{"name": "c", "image": "x",
        "resources": {"requests": {"cpu": "300"}}}]}),
    );
    bed.until_told("Insufficient cpu").await;
    bed.api.delete("pods", "default", "p");
    bed.until("bound", |b| b.node_of("q").is_some()).await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_wait_for_volumes_do_not_hold_up_others() {
    let bed = Bed::with_storage(SchedulerOptions::default());
    for i in 0..200 {
        bed.volume_claim(&format!("c{i}"), "made");
        bed.mounting(&format!("p{i}"), &[&format!("c{i}")], json!({}));
    }
    bed.until("all asked", |b| {
        (0..200).all(|i| b.node_for(&format!("c{i}")).is_some())
    })
    .await;
    bed.pod("q", "0", json!({}));
    bed.until("bound", |b| b.node_of("q").is_some()).await;
    for i in 0..200 {
        bed.provision(&format!("c{i}"));
    }
    bed.until("all bound", |b| {
        (0..200).all(|i| b.node_of(&format!("p{i}")).is_some())
    })
    .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn many_pods_at_once_get_volumes_of_their_own() {
    let bed = Bed::with_storage(SchedulerOptions::default());
    for i in 0..60 {
        bed.local_volume(&format!("pv{i}"), if i % 2 == 0 { "a" } else { "b" });
        bed.volume_claim(&format!("c{i}"), "late");
        bed.mounting(&format!("p{i}"), &[&format!("c{i}")], json!({}));
    }
    bed.until("all kept", |b| {
        (0..60).all(|i| b.kept(&format!("c{i}")).is_some())
    })
    .await;
    for i in 0..60 {
        let claim = format!("c{i}");
        bed.complete(&claim, &bed.kept(&claim).unwrap());
    }
    bed.until("all bound", |b| {
        (0..60).all(|i| b.node_of(&format!("p{i}")).is_some())
    })
    .await;
    let writes = bed.api.log();
    let writes = writes
        .iter()
        .filter(|e| e.path.contains("/persistentvolumes/"));
    assert_eq!(writes.count(), 60, "no volume was written twice");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_for_one_pod_is_taken_from_a_lower_pod() {
    let bed = Bed::with_storage(SchedulerOptions::default());
    bed.volume_claim("one", "late");
    let mut claim = bed.the_claim("one");
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    bed.api.put("persistentvolumeclaims", claim);
    bed.local_volume("pv", "a");
    bed.complete("one", "pv");
    bed.mounting("p", &["one"], json!({"priority": 1}));
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("a"))
        .await;
    bed.mounting("equal", &["one"], json!({"priority": 1}));
    bed.until_told("2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod").await;
    bed.api.delete("pods", "default", "equal");
    bed.mounting("higher", &["one"], json!({"priority": 2}));
    bed.until("preempted", |b| b.api.get("pods", "default", "p").is_none())
        .await;
    bed.until("bound", |b| b.node_of("higher").as_deref() == Some("a"))
        .await;
    bed.stop().await;
}
