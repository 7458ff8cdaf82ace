//! What asking kube-apiserver the same (tests/differential.rs) has found, kind by kind.

use serde_json::{Value, json};

use crate::strategy;
use crate::testing::{faults, status_faults, update_faults};

const RBAC: &str = "rbac.authorization.k8s.io";
const UNQUALIFIED: &str = "name is neither a standard finalizer name nor is it fully qualified";

#[test]
fn finalizers_have_a_domain_but_where_the_original_does_not_ask() {
    let with = |name: &str| json!({"metadata": {"name": name, "namespace": "n", "finalizers": ["a.example.com"]}});
    for (group, version, kind) in [
        ("apps", "v1", "Deployment"),
        ("storage.k8s.io", "v1", "StorageClass"),
    ] {
        assert!(
            faults(group, version, kind, &with("x")).contains(UNQUALIFIED),
            "{kind}"
        );
    }
    let free = [
        ("policy", "v1", "PodDisruptionBudget"),
        (
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingWebhookConfiguration",
        ),
    ];
    for (group, version, kind) in free {
        assert!(
            !faults(group, version, kind, &with("x")).contains(UNQUALIFIED),
            "{kind}"
        );
    }
}

#[test]
fn budgets_have_any_name_and_a_status_of_counts() {
    let of = |status: Value| json!({"metadata": {"name": "A_b", "namespace": "n"}, "spec": {"minAvailable": 1, "selector": {}}, "status": status});
    assert_eq!(
        faults("policy", "v1", "PodDisruptionBudget", &of(json!({}))),
        ""
    );
    let status = |status: Value| {
        status_faults(
            "policy",
            "v1",
            "PodDisruptionBudget",
            &of(status),
            &of(json!({})),
        )
    };
    assert_eq!(status(json!({"currentHealthy": 1})), "");
    assert_eq!(
        status(json!({"disruptionsAllowed": -1})),
        "status.disruptionsAllowed: Invalid value: -1: must be greater than or equal to 0"
    );
}

#[test]
fn bindings_say_which_kinds_there_are() {
    let of = |subject: &str, role: &str| {
        json!({"metadata": {"name": "b", "namespace": "n"}, "subjects": [{"kind": subject, "name": "s"}],
            "roleRef": {"kind": role, "name": "r"}})
    };
    let found = faults(RBAC, "v1", "RoleBinding", &of("", ""));
    assert_eq!(
        found,
        "roleRef.kind: Unsupported value: \"\": supported values: \"Role\", \"ClusterRole\"\n\
         subjects[0].kind: Unsupported value: \"\": supported values: \"ServiceAccount\", \"User\", \"Group\""
    );
    let (new, old) = (of("User", "Role"), of("User", "ClusterRole"));
    assert!(
        update_faults(RBAC, "v1", "RoleBinding", &new, &old).contains(
            r#"roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"Role","Name":"r"}: cannot change roleRef"#
        )
    );
}

#[test]
fn the_status_of_pods_is_looked_at() {
    let of = |status: Value| json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": status});
    let found = |new: Value| {
        status_faults(
            "",
            "v1",
            "Pod",
            &of(new),
            &of(json!({"qosClass": "BestEffort"})),
        )
    };
    assert_eq!(
        found(
            json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "::1"}], "hostIP": "10.0.0.2", "hostIPs": [{"ip": "10.0.0.2"}]})
        ),
        ""
    );
    for (status, fault) in [
        (
            json!({"qosClass": "Burstable"}),
            "status.qosClass: Invalid value: \"Burstable\": field is immutable",
        ),
        (
            json!({"podIPs": [{"ip": "x"}]}),
            "status.podIPs[0]: Invalid value: \"x\": must be a valid IP address",
        ),
        (
            json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}),
            "may specify no more than one IP for each IP family",
        ),
        (
            json!({"hostIP": "10.0.0.2", "hostIPs": [{"ip": "10.0.0.1"}]}),
            "status.hostIPs[0].ip: Invalid value: \"10.0.0.1\": must be equal to `hostIP`",
        ),
        (
            json!({"observedGeneration": -1}),
            "status.observedGeneration: Invalid value: -1",
        ),
    ] {
        let text = found(status);
        assert!(text.contains(fault), "{fault}: {text}");
    }
}

#[test]
fn conditions_of_flow_control_have_types() {
    for kind in ["FlowSchema", "PriorityLevelConfiguration"] {
        let of = |conditions: Value| json!({"metadata": {"name": "f"}, "status": {"conditions": conditions}});
        let new = of(json!([{"type": ""}, {"type": "A"}, {"type": "A"}]));
        let found = status_faults(
            "flowcontrol.apiserver.k8s.io",
            "v1",
            kind,
            &new,
            &of(json!([])),
        );
        assert_eq!(
            found,
            "status.conditions[0].type: Required value\nstatus.conditions[2].type: Duplicate value: \"A\""
        );
    }
}

#[test]
fn taints_of_devices_get_their_time_as_a_default() {
    let mut slice = json!({"spec": {"devices": [{"taints": [{"key": "k"}, {"key": "l", "timeAdded": "2024-01-01T00:00:00Z"}]}]}});
    strategy("resource.k8s.io", "v1", "ResourceSlice").default(&mut slice);
    let taints = &slice["spec"]["devices"][0]["taints"];
    assert!(taints[0]["timeAdded"].is_string());
    assert_eq!(taints[1]["timeAdded"], "2024-01-01T00:00:00Z");
}

#[test]
fn daemon_sets_count_changes_of_their_template_in_an_annotation() {
    const COUNT: &str = "deprecated.daemonset.template.generation";
    let strategy = strategy("apps", "v1", "DaemonSet");
    let of = |image: &str| json!({"metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": [{"image": image}]}}}});
    let mut old = of("a");
    strategy.default(&mut old);
    strategy.prepare_for_create(&mut old);
    assert_eq!(old["metadata"]["annotations"][COUNT], "1");
    for (image, count) in [("a", "1"), ("b", "2")] {
        let mut new = of(image);
        strategy.default(&mut new);
        strategy.prepare_for_update(&mut new, &old);
        assert_eq!(new["metadata"]["annotations"][COUNT], count);
    }
}

#[test]
fn csi_drivers_count_from_their_first_change() {
    let strategy = strategy("storage.k8s.io", "v1", "CSIDriver");
    let mut old = json!({"metadata": {"name": "d"}, "spec": {}});
    strategy.default(&mut old);
    strategy.prepare_for_create(&mut old);
    assert!(old["metadata"]["generation"].is_null());
    let mut new = old.clone();
    new["spec"]["requiresRepublish"] = json!(true);
    strategy.prepare_for_update(&mut new, &old);
    assert_eq!(new["metadata"]["generation"], 1);
}

#[test]
fn a_job_without_labels_has_those_made_for_its_pods() {
    let mut job =
        json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {"spec": {}}}});
    let strategy = strategy("batch", "v1", "Job");
    strategy.default(&mut job);
    strategy.prepare_for_create(&mut job);
    assert_eq!(
        job["metadata"]["labels"]["batch.kubernetes.io/controller-uid"],
        "u"
    );
    assert_eq!(
        job["metadata"]["labels"],
        job["spec"]["template"]["metadata"]["labels"]
    );
}

#[test]
fn pods_whose_devices_take_of_the_node_are_not_resized() {
    let pod = |cpu: &str| {
        json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"},
            "spec": {"restartPolicy": "Always", "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"nodeAllocatableResourceClaimStatuses": [
                {"resourceClaimName": "x", "containers": ["c"], "resources": {"cpu": "1"}}]}})
    };
    let faults =
        strategy("", "v1", "Pod").validate_subresource_update("resize", &pod("2"), &pod("1"));
    let told = crate::testing::lines(&faults);
    let fault = "spec: Forbidden: pods with node allocatable resource claims cannot be resized";
    assert!(told.contains(fault), "{told}");
}

#[test]
fn a_resize_changes_cpu_and_memory_of_containers_that_stay_where_they_are() {
    let pod = |containers: Value| {
        json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"},
            "spec": {"containers": containers, "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
                "terminationGracePeriodSeconds": 30}})
    };
    let container = |name: &str, change: Value| {
        let mut all = json!({"name": name, "image": "i", "imagePullPolicy": "Always",
            "terminationMessagePolicy": "File", "resources": {"requests": {"cpu": "1"}}});
        for (key, value) in change.as_object().unwrap() {
            all[key] = value.clone();
        }
        all
    };
    let old = pod(json!([container("c", json!({}))]));
    let strategy = strategy("", "v1", "Pod");
    let found = |containers: Value| {
        let mut new = pod(containers);
        strategy.prepare_subresource_update("resize", &mut new, &old);
        let faults = strategy.validate_subresource_update("resize", &new, &old);
        (new, crate::testing::lines(&faults))
    };
    let more = json!({"resources": {"requests": {"cpu": "2"}}, "image": "other"});
    let (new, faults) = found(json!([container("c", more)]));
    assert_eq!(
        (&new["spec"]["containers"][0]["image"], &*faults),
        (&json!("i"), "")
    );
    for (containers, fault) in [
        (
            json!([container("c", json!({})), container("d", json!({}))]),
            "spec.containers: Forbidden: containers may not be added or removed on resize",
        ),
        (
            json!([container("d", json!({}))]),
            "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize",
        ),
        (
            json!([container(
                "c",
                json!({"resources": {"requests": {"cpu": "1", "ephemeral-storage": "1"}}})
            )]),
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
        (
            json!([container(
                "c",
                json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]})
            )]),
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
        (
            json!([container("c", json!({"resources": {}}))]),
            "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing",
        ),
    ] {
        let faults = found(containers).1;
        assert!(faults.contains(fault), "{fault}: {faults}");
    }
}

#[test]
fn the_one_address_of_a_pod_is_the_first_of_all() {
    let strategy = strategy("", "v1", "Pod");
    let old = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {}, "status": {}});
    let settled = |status: Value| {
        let mut new = old.clone();
        new["status"] = status;
        strategy.prepare_status_update(&mut new, &old);
        (
            new["status"]["podIP"].clone(),
            new["status"]["podIPs"].clone(),
        )
    };
    let both = |ip: &str| (json!(ip), json!([{ "ip": ip }]));
    assert_eq!(settled(json!({"podIP": "10.0.0.1"})), both("10.0.0.1"));
    assert_eq!(
        settled(json!({"podIPs": [{"ip": "10.0.0.1"}]})),
        both("10.0.0.1")
    );
    let other = json!({"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "::1"}]});
    assert_eq!(settled(other), both("10.0.0.2"));
    assert_eq!(settled(json!({})), (Value::Null, Value::Null));
}

/// A pod template in an object of a kind.
fn of_template(kind: &str, template: &Value) -> Value {
    let meta = json!({"name": "w", "namespace": "n"});
    let selector = json!({"matchLabels": {"a": "b"}});
    let mut template = template.clone();
    match kind {
        "PodTemplate" => json!({"metadata": meta, "template": template}),
        "ReplicationController" => {
            json!({"metadata": meta, "spec": {"selector": {"a": "b"}, "template": template}})
        }
        "Job" | "CronJob" => {
            template["spec"]["restartPolicy"] = json!("Never");
            let spec = json!({"selector": selector, "manualSelector": kind == "Job", "template": template});
            match kind {
                "Job" => json!({"metadata": meta, "spec": spec}),
                _ => {
                    let spec = json!({"template": template});
                    json!({"metadata": meta, "spec": {"schedule": "@daily", "jobTemplate": {"spec": spec}}})
                }
            }
        }
        _ => json!({"metadata": meta, "spec": {"selector": selector, "template": template}}),
    }
}

#[test]
fn init_containers_that_restart_for_a_resize_may_stay() {
    let container = |name: &str, image: &str, word: &str| json!({"name": name, "image": image, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": word}]});
    let with = |init: Value| {
        json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"initContainers": init, "containers": [{"name": "c", "image": "i"}]}})
    };
    let old = with(json!([container("i", "i", "RestartContainer")]));
    let moved = with(json!([
        container("first", "i", "NotRequired"),
        container("i", "j", "RestartContainer")
    ]));
    let free = with(json!([container("i", "i", "NotRequired")]));
    const FAULT: &str = "must not be set to 'RestartContainer' for non-sidecar initContainers";
    for (group, kind) in [
        ("apps", "Deployment"),
        ("apps", "ReplicaSet"),
        ("apps", "DaemonSet"),
        ("", "ReplicationController"),
        ("", "PodTemplate"),
        ("batch", "CronJob"),
    ] {
        let of = |template: &Value| of_template(kind, template);
        assert!(
            faults(group, "v1", kind, &of(&old)).contains(FAULT),
            "{kind}"
        );
        let update =
            |new: &Value, old: &Value| update_faults(group, "v1", kind, &of(new), &of(old));
        assert_eq!(update(&moved, &old), "", "{kind}");
        assert!(update(&old, &free).contains(FAULT), "{kind}");
    }
    // what else is wrong with a template that was let in may stay where it is, and nowhere else
    let mut wrong = free.clone();
    wrong["spec"]["dnsPolicy"] = json!("x");
    let mut worse = wrong.clone();
    worse["spec"]["restartPolicy"] = json!("x");
    let of = |template: &Value| of_template("Deployment", template);
    let update =
        |new: &Value, old: &Value| update_faults("apps", "v1", "Deployment", &of(new), &of(old));
    assert_eq!(update(&wrong, &wrong), "");
    let found = update(&worse, &wrong);
    assert!(
        found.contains("restartPolicy") && !found.contains("dnsPolicy"),
        "{found}"
    );

    let pod = |template: &Value, more: Value| {
        let mut spec = template["spec"].clone();
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
    };
    let strategy = strategy("", "v1", "Pod");
    let subresource = |name: &str, more: Value| {
        let (mut new, mut old) = (pod(&old, more), pod(&old, json!({})));
        strategy.default(&mut old);
        strategy.default(&mut new);
        strategy.prepare_subresource_update(name, &mut new, &old);
        crate::testing::lines(&strategy.validate_subresource_update(name, &new, &old))
    };
    assert_eq!(subresource("resize", json!({})), "");
    let more = json!({"ephemeralContainers": [{"name": "e", "image": "i"}]});
    assert_eq!(subresource("ephemeralcontainers", more), "");
}

#[test]
fn owners_are_of_a_version() {
    let owned = |version: &str| {
        json!({"metadata": {"name": "c", "namespace": "n",
        "ownerReferences": [{"apiVersion": version, "kind": "K", "name": "o", "uid": "u"}]}})
    };
    for (version, is_one) in [
        ("v1", true),
        ("a/v1", true),
        ("", false),
        ("a/", false),
        ("a/b/c", false),
    ] {
        let faults = faults("", "v1", "ConfigMap", &owned(version));
        assert_eq!(
            !faults.contains("version must not be empty"),
            is_one,
            "{version}: {faults}"
        );
    }
}

#[test]
fn amounts_are_kept_to_a_thousandth() {
    let fine = || json!({"storage": "1.0000000001"});
    for (group, kind, pointer, obj) in [
        (
            "",
            "PersistentVolume",
            "/spec/capacity/storage",
            json!({"spec": {"capacity": fine()}}),
        ),
        (
            "",
            "PersistentVolumeClaim",
            "/spec/resources/requests/storage",
            json!({"spec": {"resources": {"requests": fine()}}}),
        ),
        (
            "",
            "PersistentVolumeClaim",
            "/status/capacity/storage",
            json!({"status": {"capacity": fine()}}),
        ),
        (
            "apps",
            "StatefulSet",
            "/spec/volumeClaimTemplates/0/spec/resources/limits/storage",
            json!({"spec": {"volumeClaimTemplates": [{"spec": {"resources": {"limits": fine()}}}]}}),
        ),
        (
            "",
            "ResourceQuota",
            "/status/used/storage",
            json!({"status": {"used": fine()}}),
        ),
        (
            "",
            "LimitRange",
            "/spec/limits/0/min/storage",
            json!({"spec": {"limits": [{"type": "PersistentVolumeClaim", "min": fine()}]}}),
        ),
    ] {
        let mut obj = obj;
        strategy(group, "v1", kind).default(&mut obj);
        assert_eq!(
            obj.pointer(pointer),
            Some(&json!("1001m")),
            "{kind}{pointer}"
        );
    }
}

#[test]
fn ports_of_nodes_stay_only_where_they_are_given() {
    let service = |kind: &str, gives: bool, port: Value| {
        json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"type": kind, "clusterIP": "10.96.0.9",
            "allocateLoadBalancerNodePorts": gives, "ports": [port]}})
    };
    let old = service("LoadBalancer", true, json!({"port": 80, "nodePort": 30001}));
    let strategy = strategy("", "v1", "Service");
    let kept = |mut new: Value| {
        strategy.prepare_for_update(&mut new, &old);
        new["spec"]["ports"][0]["nodePort"].clone()
    };
    let plain = json!({"port": 80});
    assert_eq!(kept(service("LoadBalancer", true, plain.clone())), 30001);
    assert_eq!(kept(service("NodePort", true, plain.clone())), 30001);
    assert_eq!(
        kept(service("LoadBalancer", false, plain.clone())),
        Value::Null
    );
    let asked = json!({"port": 80, "nodePort": 30001});
    assert_eq!(kept(service("LoadBalancer", false, asked)), 30001);
}

#[test]
fn jobs_that_are_told_apart_by_hand_stay_so() {
    let labels = json!({"a": "b"});
    let job = |manual: Value| {
        json!({"metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": {"manualSelector": manual,
            "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
    };
    let update = |new: Value| update_faults("batch", "v1", "Job", &new, &job(json!(true)));
    assert_eq!(update(job(json!(true))), "");
    assert!(update(job(Value::Null)).contains("`selector` not auto-generated"));
}
