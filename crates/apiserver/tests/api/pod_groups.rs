//! Workloads, pod groups and the pods that name one; the numbers are those of the scheduler's checklist.

use davit_access::UserInfo;
use davit_access::authz::{Authorization, Mode};
use serde_json::json;

use crate::cluster::{Cluster, PODS, whole};

const GROUPS: &str = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups";
const WORKLOADS: &str = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/workloads";

async fn cluster(gates: &str, versions: &str) -> Cluster {
    Cluster::with(|options| {
        options.features = gates.parse().unwrap();
        options.runtime_config = versions.parse().unwrap();
    })
    .await
}

async fn with_groups() -> Cluster {
    cluster("GenericWorkload=true", "scheduling.k8s.io/v1alpha2=true").await
}

fn pod(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulingGroup": {"podGroupName": "g"},
            "containers": [{"name": "c", "image": "example.test/none"}]}})
}

#[tokio::test]
async fn item_58_without_the_gate_there_are_no_groups() {
    for (gates, versions) in [
        ("", "scheduling.k8s.io/v1alpha2=true"),
        ("GenericWorkload=true", ""),
    ] {
        let c = cluster(gates, versions).await;
        for path in [GROUPS, WORKLOADS, "/apis/scheduling.k8s.io/v1alpha2"] {
            assert_eq!(c.get(path).await.code, 404, "{path}");
        }
    }
    let c = cluster("", "").await;
    c.service_account().await;
    let answer = c.post(PODS, &pod("p")).await;
    assert!(answer.warnings().is_empty());
    assert_eq!(answer.ok(201)["spec"].get("schedulingGroup"), None);
}

#[tokio::test]
async fn groups_are_judged_and_never_change() {
    let c = with_groups().await;
    let group = json!({"metadata": {"name": "g"}, "spec": {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        // of gates that are off
        "disruptionMode": "PodGroup", "priorityClassName": "high",
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}});
    let made = c.post(GROUPS, &group).await.ok(201);
    assert_eq!(
        made["spec"],
        json!({"podGroupTemplateRef": null, "schedulingPolicy": {"gang": {"minCount": 2}}})
    );
    assert_eq!(
        made["metadata"]["finalizers"],
        json!(["scheduling.k8s.io/podgroup-protection"])
    );
    let changed = json!({"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}});
    let refused = c
        .patch(&format!("{GROUPS}/g"), "merge", &changed)
        .await
        .ok(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("spec.schedulingPolicy: Invalid value")
            && message.contains("field is immutable"),
        "{message}"
    );
    let bad = json!({"metadata": {"name": "h"}, "spec": {"schedulingPolicy": {"gang": {"minCount": -1}}}});
    let refused = c.post(GROUPS, &bad).await.ok(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("must be greater than or equal to 1"),
        "{message}"
    );
    let empty = c
        .post(
            GROUPS,
            &json!({"metadata": {"name": "h"}, "spec": {"schedulingPolicy": {}}}),
        )
        .await;
    let message = empty.ok(422)["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("must specify one of: `basic`, `gang`"),
        "{message}"
    );
}

#[tokio::test]
async fn a_group_has_one_topology_with_its_gate() {
    let gates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true";
    let c = cluster(gates, "scheduling.k8s.io/v1alpha2=true").await;
    let group = |keys: &[&str]| {
        let topology: Vec<_> = keys.iter().map(|key| json!({ "key": key })).collect();
        json!({"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}},
            "schedulingConstraints": {"topology": topology}}})
    };
    let refused = |answer: serde_json::Value| answer["message"].as_str().unwrap().to_owned();
    let message = refused(c.post(GROUPS, &group(&["a", "b"])).await.ok(422));
    assert!(
        message.contains("topology: Too many: 2: must have at most 1 item"),
        "{message}"
    );
    let message = refused(c.post(GROUPS, &group(&["no key"])).await.ok(422));
    assert!(
        message.contains("topology[0].key: Invalid value"),
        "{message}"
    );
    let made = c.post(GROUPS, &group(&["example.com/rack"])).await.ok(201);
    let kept = &made["spec"]["schedulingConstraints"]["topology"];
    assert_eq!(*kept, json!([{"key": "example.com/rack"}]));
    let other = json!({"spec": {"schedulingConstraints": {"topology": [{"key": "zone"}]}}});
    let changed = c.patch(&format!("{GROUPS}/g"), "merge", &other).await;
    let message = refused(changed.ok(422));
    assert!(message.contains("field is immutable"), "{message}");
}

/// KEP-5710; with PriorityClasses of the cluster, of which one is the default.
#[tokio::test]
async fn a_group_has_a_priority_and_says_how_it_goes_with_the_gate() {
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let gates = "GenericWorkload=true,GangScheduling=true,WorkloadAwarePreemption=true";
    let c = cluster(gates, "scheduling.k8s.io/v1alpha2=true").await;
    let group = |name: &str, fields: serde_json::Value| {
        let mut group =
            json!({"metadata": {"name": name}, "spec": {"schedulingPolicy": {"basic": {}}}});
        for (field, value) in fields.as_object().unwrap() {
            group["spec"][field] = value.clone();
        }
        group
    };
    let refused = |answer: serde_json::Value| answer["message"].as_str().unwrap().to_owned();
    let none = c.post(GROUPS, &group("none", json!({}))).await.ok(201);
    let spec = &none["spec"];
    assert_eq!(
        (&spec["priority"], &spec["disruptionMode"]),
        (&json!(0), &json!("Pod"))
    );
    assert_eq!(spec.get("priorityClassName"), None);
    let missing = group("g", json!({"priorityClassName": "high"}));
    let message = refused(c.post(GROUPS, &missing).await.ok(403));
    assert!(
        message.ends_with("no PriorityClass with name high was found"),
        "{message}"
    );
    for (name, value, default) in [("high", 1000, false), ("usual", 7, true)] {
        let class = json!({"metadata": {"name": name}, "value": value, "globalDefault": default});
        c.post(CLASSES, &class).await.ok(201);
    }
    let whole = json!({"priorityClassName": "high", "disruptionMode": "PodGroup"});
    let made = c.post(GROUPS, &group("g", whole)).await.ok(201);
    assert_eq!(made["spec"]["priority"], 1000);
    assert_eq!(made["spec"]["disruptionMode"], "PodGroup");
    let usual = c.post(GROUPS, &group("usual", json!({}))).await.ok(201);
    assert_eq!(usual["spec"]["priority"], 7);
    assert_eq!(usual["spec"]["priorityClassName"], "usual");
    let other = group("h", json!({"priorityClassName": "high", "priority": 5}));
    let message = refused(c.post(GROUPS, &other).await.ok(403));
    assert!(
        message.ends_with(
            "priority set in the pod group (5) must match the priority computed (1000) based on the priority class set in the spec"
        ),
        "{message}"
    );
    let mode = group("h", json!({"disruptionMode": "Node"}));
    let message = refused(c.post(GROUPS, &mode).await.ok(422));
    assert!(
        message.contains("spec.disruptionMode: Unsupported value: \"Node\""),
        "{message}"
    );
    for (field, value) in [("disruptionMode", json!("Pod")), ("priority", json!(3))] {
        let change = json!({"spec": {field: value}});
        let changed = c.patch(&format!("{GROUPS}/g"), "merge", &change).await;
        let message = refused(changed.ok(422));
        assert!(
            message.contains(&format!("spec.{field}: Invalid value"))
                && message.contains("field is immutable"),
            "{message}"
        );
    }
    let template = json!({"name": "t", "schedulingPolicy": {"basic": {}}, "disruptionMode": "PodGroup",
        "priorityClassName": "high"});
    let workload = json!({"metadata": {"name": "w"}, "spec": {"podGroupTemplates": [template]}});
    let made = c.post(WORKLOADS, &workload).await.ok(201);
    let kept = &made["spec"]["podGroupTemplates"][0];
    assert_eq!(
        (&kept["disruptionMode"], &kept["priorityClassName"]),
        (&json!("PodGroup"), &json!("high"))
    );
}

#[tokio::test]
async fn claims_of_a_group_are_kept_with_their_gate() {
    let gates = "GenericWorkload=true,DRAWorkloadResourceClaims=true";
    let c = cluster(gates, "scheduling.k8s.io/v1alpha2=true").await;
    let claims = json!([{"name": "c", "resourceClaimTemplateName": "t"}]);
    let group = |claims: &serde_json::Value| {
        json!({"metadata": {"name": "g"}, "spec": {
            "schedulingPolicy": {"basic": {}}, "resourceClaims": claims}})
    };
    let made = c.post(GROUPS, &group(&claims)).await.ok(201);
    assert_eq!(made["spec"]["resourceClaims"], claims);
    let five: Vec<_> = (0..5)
        .map(|i| json!({"name": format!("c{i}"), "resourceClaimName": "x"}))
        .collect();
    let refused = c.post(GROUPS, &group(&json!(five))).await.ok(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("spec.resourceClaims: Too many: 5: must have at most 4 items"),
        "{message}"
    );
    let path = format!("{GROUPS}/g");
    let changed = json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimName": "x"}]}});
    let refused = c.patch(&path, "merge", &changed).await.ok(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("spec.resourceClaims: Invalid value")
            && message.contains("field is immutable"),
        "{message}"
    );
    let told = |name: &str| json!({"status": {"resourceClaimStatuses": [{"name": name, "resourceClaimName": "g-c-x"}]}});
    let path = format!("{path}/status");
    let written = c.patch(&path, "merge", &told("c")).await.ok(200);
    assert_eq!(
        written["status"]["resourceClaimStatuses"][0]["resourceClaimName"],
        "g-c-x"
    );
    c.patch(&path, "merge", &told("d")).await.ok(422);
}

#[tokio::test]
async fn a_group_is_made_from_a_template_that_exists() {
    let c = with_groups().await;
    let templates: Vec<_> = (0..9)
        .map(|i| json!({"name": format!("t{i}"), "schedulingPolicy": {"basic": {}}}))
        .collect();
    let workload =
        |templates| json!({"metadata": {"name": "w"}, "spec": {"podGroupTemplates": templates}});
    let refused = c.post(WORKLOADS, &workload(&templates[..])).await.ok(422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("must have at most 8 items"), "{message}");
    let group = |template: &str| {
        json!({"metadata": {"name": template}, "spec": {"schedulingPolicy": {"basic": {}},
            "podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": template}}}})
    };
    let refused = |answer: serde_json::Value| answer["message"].as_str().unwrap().to_owned();
    let message = refused(c.post(GROUPS, &group("t0")).await.ok(403));
    assert!(
        message.ends_with("PodGroup rejected: Workload \"w\" not found"),
        "{message}"
    );
    c.post(WORKLOADS, &workload(&templates[..8])).await.ok(201);
    let message = refused(c.post(GROUPS, &group("t8")).await.ok(403));
    assert!(
        message.ends_with("PodGroupTemplate \"t8\" not found in Workload \"w\""),
        "{message}"
    );
    c.post(GROUPS, &group("t0")).await.ok(201);
}

#[tokio::test]
async fn pods_name_their_group_once_and_for_all() {
    let c = with_groups().await;
    c.service_account().await;
    let made = c.post(PODS, &pod("p")).await.ok(201);
    assert_eq!(
        made["spec"]["schedulingGroup"],
        json!({"podGroupName": "g"})
    );
    let other = json!({"spec": {"schedulingGroup": {"podGroupName": "h"}}});
    c.patch(&format!("{PODS}/p"), "merge", &other).await.ok(422);
    let mut nameless = pod("q");
    nameless["spec"]["schedulingGroup"] = json!({});
    let refused = c.post(PODS, &nameless).await.ok(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("must specify one of: `podGroupName`"),
        "{message}"
    );
}

/// The admission plugin JobValidation.
#[tokio::test]
async fn jobs_whose_pods_are_a_gang_keep_their_parallelism() {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    let c = with_groups().await;
    let job = |name: &str, group: Option<&str>| {
        let group = group.map(|name| json!({ "podGroupName": name }));
        json!({"metadata": {"name": name}, "spec": {
            "completionMode": "Indexed", "completions": 3, "parallelism": 3,
            "template": {"spec": {"restartPolicy": "Never", "schedulingGroup": group,
                "containers": [{"name": "c", "image": "example.test/none"}]}}}})
    };
    let group = |name: &str, policy: &str, job: Option<&str>| {
        let policy = match policy {
            "gang" => json!({"gang": {"minCount": 3}}),
            _ => json!({"basic": {}}),
        };
        let owner =
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": true});
        let owners = job.into_iter().map(|uid| {
            let mut owner = owner.clone();
            owner["uid"] = json!(uid);
            owner
        });
        json!({"metadata": {"name": name, "ownerReferences": owners.collect::<Vec<_>>()},
            "spec": {"schedulingPolicy": policy}})
    };
    let fewer = |name: &str| {
        let path = format!("{JOBS}/{name}");
        let fewer = json!({"spec": {"parallelism": 2, "completions": 2}});
        let c = &c;
        async move { c.patch(&path, "merge", &fewer).await }
    };
    let refused = |answer: serde_json::Value, group: &str| {
        let message = answer["message"].as_str().unwrap();
        let why = format!(
            "cannot change parallelism for a Job referencing gang-scheduled PodGroup {group:?}"
        );
        assert!(message.ends_with(&why), "{message}");
    };
    // By the template.
    for (name, policy) in [("together", "gang"), ("apart", "basic")] {
        c.post(GROUPS, &group(name, policy, None)).await.ok(201);
    }
    for name in ["together", "apart", "none"] {
        c.post(JOBS, &job(name, Some(name))).await.ok(201);
    }
    refused(fewer("together").await.ok(403), "together");
    for name in ["apart", "none"] {
        fewer(name).await.ok(200);
    }
    // By owner.
    let uid = |job: serde_json::Value| job["metadata"]["uid"].as_str().unwrap().to_owned();
    let (mine, other) = (
        uid(c.post(JOBS, &job("j", None)).await.ok(201)),
        uid(c.post(JOBS, &job("other", None)).await.ok(201)),
    );
    c.post(GROUPS, &group("of-j", "gang", Some(&mine)))
        .await
        .ok(201);
    c.post(GROUPS, &group("of-other", "basic", Some(&other)))
        .await
        .ok(201);
    refused(fewer("j").await.ok(403), "of-j");
    fewer("other").await.ok(200);
    let suspended = json!({"spec": {"suspend": true}});
    c.patch(&format!("{JOBS}/j"), "merge", &suspended)
        .await
        .ok(200);
}

/// A node may make mirror pods in any namespace. One that belonged to a group there would count for its gang, and keep it from
/// going when it is deleted.
#[tokio::test]
async fn a_node_joins_no_group() {
    let c = Cluster::with(|options| {
        options.features = "GenericWorkload=true".parse().unwrap();
        options.runtime_config = "scheduling.k8s.io/v1alpha2=true".parse().unwrap();
        options.authorization = Authorization::Modes(vec![Mode::Node, Mode::Rbac]);
    })
    .await;
    let made = c
        .post("/api/v1/nodes", &json!({"metadata": {"name": "n"}}))
        .await;
    let node = made.ok(201);
    let mut mirror = pod("p");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n",
        "uid": node["metadata"]["uid"], "controller": true}]);
    mirror["spec"]["nodeName"] = json!("n");
    let user = UserInfo::new("system:node:n", &["system:nodes", "system:authenticated"]);
    let headers = [("content-type", "application/json")];
    let post = async |pod: &serde_json::Value| {
        let answer = c.send_as(&user, "POST", PODS, &headers, pod.to_string());
        whole(answer.await).await
    };
    let status = post(&mirror).await.error(403, "Forbidden");
    let why = status["message"].as_str().unwrap();
    assert!(
        why.contains("can not create pods that reference podgroups"),
        "{why}"
    );
    mirror["spec"]
        .as_object_mut()
        .unwrap()
        .remove("schedulingGroup");
    post(&mirror).await.ok(201);
}
