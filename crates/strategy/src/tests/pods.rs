//! Pods and their containers.

use super::*;

/// Words and places of kube-apiserver 1.36.
#[test]
fn containers_use_claims_that_the_pod_names() {
    let uses = |claims: Value, used: Value| {
        let p = pod(|p| {
            p["spec"]["resourceClaims"] = claims;
            p["spec"]["containers"][0]["resources"]["claims"] = used;
        });
        faults("", "v1", "Pod", &p)
    };
    let used = |name: &str| json!([{"name": name}]);
    let at = "spec.containers[0].resources.claims[0]";
    assert_eq!(
        uses(json!([]), used("f")),
        format!(
            "{at}: Not found: \"f\": must be one of the names in pod.spec.resourceClaims which is empty"
        )
    );
    let claims = json!([
        {"name": "b", "resourceClaimName": "x"},
        {"name": "a", "resourceClaimName": "y"},
    ]);
    assert_eq!(
        uses(claims.clone(), used("f")),
        format!(
            "{at}: Not found: \"f\": must be one of the names in pod.spec.resourceClaims: a, b"
        )
    );
    assert_eq!(
        uses(claims.clone(), used("")),
        format!("{at}: Required value")
    );
    let twice = json!([{"name": "a", "request": "r"}, {"name": "a", "request": "r"}]);
    assert_eq!(
        uses(claims.clone(), twice),
        "spec.containers[0].resources.claims[1]: Duplicate value: \"a/r\""
    );
    let odd = uses(claims, json!([{"name": "a", "request": "R"}]));
    assert!(
        odd.starts_with(&format!(
            "{at}.request: Invalid value: \"R\": a lowercase RFC 1123"
        )),
        "{odd}"
    );
}

#[test]
fn a_pod_gets_its_defaults() {
    let pod = pod(|p| {
        p["spec"]["containers"][0]["livenessProbe"] = json!({"httpGet": {"port": 80}});
        p["spec"]["volumes"] = json!([{"name": "e"}, {"name": "c", "configMap": {"name": "m"}},
            {"name": "h", "hostPath": {"path": "/dev"}},
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]);
        p["spec"]["resourceClaims"] =
            json!([{"name": "cat", "source": {"resourceClaimTemplateName": "cats"}}]);
    });
    assert_eq!(faults("", "v1", "Pod", &pod), "");
    insta::assert_json_snapshot!(pod);
}

/// The form of 1.26 stays readable for programs of 1.26, and no others have to know it.
#[test]
fn nested_claims_of_pods_round_trip() {
    let strategy = strategy("", "v1", "Pod");
    let old = pod(|p| {
        p["spec"]["resourceClaims"] =
            json!([{"name": "cat", "source": {"resourceClaimName": "c"}}]);
        p["metadata"]["resourceVersion"] = json!("1");
    });
    let entry =
        json!([{"name": "cat", "resourceClaimName": "c", "source": {"resourceClaimName": "c"}}]);
    assert_eq!(old["spec"]["resourceClaims"], entry);
    for member in ["source", "resourceClaimName"] {
        let mut new = old.clone();
        new["spec"]["resourceClaims"][0]
            .as_object_mut()
            .unwrap()
            .remove(member);
        strategy.default(&mut new);
        strategy.prepare_for_update(&mut new, &old);
        assert_eq!(new["spec"]["resourceClaims"], entry, "{member}");
        assert!(strategy.validate_update(&new, &old).is_empty(), "{member}");
    }
    // Templates have the flat form only, and an old writer can change them.
    let mut spec = json!({"resourceClaims": [{"name": "cat", "resourceClaimTemplateName": "old",
        "source": {"resourceClaimTemplateName": "new"}}]});
    pod_defaults::pod_spec(&mut spec);
    let flat = json!([{"name": "cat", "resourceClaimTemplateName": "new"}]);
    assert_eq!(spec["resourceClaims"], flat);
}

#[test]
fn a_valid_pod_is_valid() {
    let pod = pod(|_| {});
    assert_eq!(faults("", "v1", "Pod", &pod), "");
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["requests"]["hardware-vendor.example/foo"],
        "2"
    );
    assert_eq!(
        pod["status"],
        json!({"phase": "Pending", "qosClass": "BestEffort"})
    );
    assert_eq!(pod["metadata"]["generation"], 1);
}

#[test]
fn faults_of_pods() {
    type Change = fn(&mut Value);
    let cases: &[Change] = &[
        |p| p["metadata"]["name"] = json!("Bad_Name"),
        |p| p["metadata"]["labels"] = json!({"-x": "a b"}),
        |p| p["spec"]["containers"] = json!([]),
        |p| p["spec"]["containers"] = json!([{"name": "a"}, {"name": "a", "image": " i"}]),
        |p| p["spec"]["restartPolicy"] = json!("Sometimes"),
        |p| {
            p["spec"]["containers"][0]["ports"] = json!([{"containerPort": 70000, "name": "TOO_bad"},
            {"containerPort": 0, "protocol": "ICMP"}]);
        },
        |p| {
            p["spec"]["containers"][0]["env"] = json!([{"name": ""}, {"name": "A=B"},
            {"name": "C", "valueFrom": {}}, {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]);
        },
        |p| {
            p["spec"]["containers"][0]["volumeMounts"] =
                json!([{"name": "gone", "mountPath": "/x", "subPath": "../y"}]);
        },
        |p| {
            p["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}, "hostPath": {"path": "/a/../b"}}, {"name": "v"}]);
        },
        |p| {
            p["spec"]["containers"][0]["livenessProbe"] =
                json!({"periodSeconds": -1, "successThreshold": 2});
        },
        |p| {
            p["spec"]["tolerations"] =
                json!([{"operator": "Equal"}, {"key": "k", "effect": "Nope"}]);
        },
        |p| p["spec"]["activeDeadlineSeconds"] = json!(0),
        |p| p["spec"]["nodeSelector"] = json!({"a/b/c": "x"}),
        |p| {
            p["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "k", "operator": "In"}, {"key": "k", "operator": "Near"}]}]}}});
        },
        |p| {
            p["spec"]["initContainers"] = json!([{"name": "c", "image": "i", "readinessProbe": {"exec": {"command": ["x"]}}}]);
        },
        |p| p["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "nope"}]}),
        |p| {
            p["spec"]["hostnameOverride"] = json!("Not_A_Name");
            p["spec"]["setHostnameAsFQDN"] = json!(true);
        },
        |p| {
            p["spec"]["hostIPC"] = json!(true);
            p["spec"]["securityContext"] = json!({"sysctls": [{"name": "foo-"}, {"name": "kernel/shmmax", "value": "1"},
                {"name": "bar.."}, {"name": "kernel/shmmax", "value": "1"}, {"value": "1"}]});
        },
    ];
    let text: Vec<String> = cases
        .iter()
        .map(|c| faults("", "v1", "Pod", &pod(c)))
        .collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn faults_of_extended_resources() {
    let with = |resources: Value| {
        let pod = pod(|p| p["spec"]["containers"][0]["resources"] = resources);
        faults("", "v1", "Pod", &pod)
    };
    let cases = [
        with(json!({"limits": {"example.com/foo": "1500m"}})),
        with(json!({"limits": {"example.com/foo": "-1"}})),
        with(json!({"requests": {"example.com/foo": "1"}})),
        with(json!({"requests": {"example.com/foo": "1"}, "limits": {"example.com/foo": "2"}})),
        with(json!({"limits": {"foo": "1"}})),
        with(json!({"limits": {"requests.example.com/foo": "1"}})),
        with(json!({"limits": {"UPPER.example/foo": "1"}})),
        with(json!({"limits": {"pods": "1"}})),
        with(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})),
        with(json!({"limits": {"hugepages-2Mi": "4Mi"}})),
    ];
    insta::assert_snapshot!(cases.join("\n"));
}

#[test]
fn updates_of_pods() {
    let strategy = strategy("", "v1", "Pod");
    let old = pod(|p| p["spec"]["tolerations"] = json!([{"key": "a", "operator": "Exists"}]));
    let update = |change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        strategy.prepare_for_update(&mut new, &old);
        (lines(&strategy.validate_update(&new, &old)), new)
    };
    let (none, same) = update(&|_| {});
    assert_eq!(none, "");
    assert_eq!(same, old);
    let (none, new) = update(&|p| p["spec"]["containers"][0]["image"] = json!("other"));
    assert_eq!(none, "");
    assert_eq!(new["metadata"]["generation"], 2);
    let (none, new) = update(&|p| p["status"]["phase"] = json!("Running"));
    assert_eq!(none, "");
    assert_eq!(new["status"]["phase"], "Pending");
    let more = json!([{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]);
    assert_eq!(update(&|p| p["spec"]["tolerations"] = more.clone()).0, "");

    let cases = [
        update(&|p| p["spec"]["nodeName"] = json!("n")).0,
        update(&|p| p["spec"]["containers"][0]["command"] = json!(["x"])).0,
        update(&|p| p["spec"]["tolerations"] = json!([])).0,
        update(&|p| p["spec"]["containers"].as_array_mut().unwrap().clear()).0,
        update(&|p| p["spec"]["schedulingGates"] = json!([{"name": "g"}])).0,
        update(&|p| p["metadata"]["uid"] = json!("other")).0,
    ];
    insta::assert_snapshot!(cases.join("\n"));
}

#[test]
fn pods_go_gracefully_once_they_are_bound() {
    let strategy = strategy("", "v1", "Pod");
    let mut pod = pod(|_| {});
    assert_eq!(strategy.grace_period(&pod, None), Some(0));
    pod["spec"]["nodeName"] = json!("n");
    assert_eq!(strategy.grace_period(&pod, None), Some(30));
    assert_eq!(strategy.grace_period(&pod, Some(5)), Some(5));
    assert_eq!(strategy.grace_period(&pod, Some(-5)), Some(1));
    pod["status"]["phase"] = json!("Failed");
    assert_eq!(strategy.grace_period(&pod, Some(5)), Some(0));
}

#[test]
fn ended_containers_do_not_come_back() {
    let strategy = strategy("", "v1", "Pod");
    let mut old = pod(|p| p["spec"]["restartPolicy"] = json!("Never"));
    old["status"]["containerStatuses"] =
        json!([{"name": "c", "state": {"terminated": {"exitCode": 1}}}]);
    let mut new = old.clone();
    new["status"]["containerStatuses"][0]["state"] = json!({"running": {}});
    let errors = strategy.validate_status_update(&new, &old);
    assert_eq!(
        aggregate(&errors),
        "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
    );
}

#[test]
fn restart_rules_are_checked() {
    let of = |container: Value| {
        faults(
            "",
            "v1",
            "Pod",
            &pod(|p| {
                for (key, value) in container.as_object().unwrap() {
                    p["spec"]["containers"][0][key] = value.clone();
                }
            }),
        )
    };
    let rule = |action: &str, codes: Value| json!({"action": action, "exitCodes": codes});
    let good = rule("Restart", json!({"operator": "In", "values": [42]}));
    assert_eq!(
        of(json!({"restartPolicy": "Never", "restartPolicyRules": [good]})),
        ""
    );
    let at = "spec.containers[0]";
    assert_eq!(
        of(json!({"restartPolicyRules": [good]})),
        format!(
            "{at}.restartPolicy: Required value: must specify restartPolicy when restart rules are used"
        )
    );
    let bad = [
        rule("RestartEverything", json!({"operator": "Near"})),
        json!({"action": "Restart"}),
    ];
    assert_eq!(
        of(json!({"restartPolicy": "Never", "restartPolicyRules": bad})),
        format!(
            "{at}.restartPolicyRules[0].action: Unsupported value: \"RestartEverything\": supported values: \"Restart\", \"RestartAllContainers\"\n\
             {at}.restartPolicyRules[0].exitCodes.operator: Unsupported value: \"Near\": supported values: \"In\", \"NotIn\"\n\
             {at}.restartPolicyRules[1].exitCodes: Required value: must be specified"
        )
    );
}

#[test]
fn ephemeral_containers_have_no_rules_of_their_own() {
    let of = |container: Value| {
        let pod = pod(|p| p["spec"]["ephemeralContainers"] = json!([container]));
        faults("", "v1", "Pod", &pod)
    };
    let found = of(json!({"name": "e", "image": "i",
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}));
    let at = "spec.ephemeralContainers";
    let why = "Forbidden: cannot be set for an Ephemeral Container";
    assert_eq!(
        found,
        format!(
            "{at}[0].resizePolicy: {why}\n{at}[0].restartPolicyRules: {why}\n{at}: Forbidden: cannot be set on create"
        )
    );
}

#[test]
fn a_pod_says_by_keys_what_stands_in_its_selectors() {
    let term = json!({"topologyKey": "k", "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["a"], "mismatchLabelKeys": ["c"]});
    let mut pod = json!({"metadata": {"name": "p", "namespace": "d", "labels": {"a": "1", "c": "2"}}, "spec": {
        "containers": [{"name": "c", "image": "i"}],
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["c"], "labelSelector": {}}]}});
    let strategy = strategy("", "v1", "Pod");
    strategy.default(&mut pod);
    for _ in 0..2 {
        strategy.prepare_for_create(&mut pod);
    }
    let at = |pointer: &str| pod.pointer(pointer).cloned().unwrap_or_default();
    let said = |key: &str, operator: &str, value: &str| json!({"key": key, "operator": operator, "values": [value]});
    assert_eq!(
        at(
            "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/labelSelector/matchExpressions"
        ),
        json!([said("a", "In", "1"), said("c", "NotIn", "2")])
    );
    assert_eq!(
        at("/spec/topologySpreadConstraints/0/labelSelector/matchExpressions"),
        json!([said("c", "In", "2")])
    );
    let found = testing::lines(&strategy.validate(&pod));
    assert_eq!(
        found,
        "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0][0]: Invalid value: \"a\": exists in both matchLabelKeys and labelSelector"
    );
}

#[test]
fn what_is_rarely_given_in_a_pod_is_looked_at_too() {
    let faults_of = |part: Value| {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        if let (Value::Object(spec), Value::Object(part)) = (&mut spec, part) {
            spec.extend(part);
        }
        let pod = json!({"metadata": {"name": "p", "namespace": "d"}, "spec": spec});
        testing::faults("", "v1", "Pod", &pod)
    };
    let cases = [
        (
            json!({"securityContext": {"supplementalGroups": [1, -1]}}),
            "spec.securityContext.supplementalGroups[1]: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ),
        (
            json!({"securityContext": {"supplementalGroupsPolicy": "x"}}),
            "spec.securityContext.supplementalGroupsPolicy: Unsupported value: \"x\": supported values: \"Merge\", \"Strict\"",
        ),
        (
            json!({"dnsConfig": {"searches": [".", "a_b.c.", "A"]}}),
            "spec.dnsConfig.searches[2]: Invalid value: \"A\": a lowercase RFC 1123 subdomain",
        ),
        (
            json!({"os": {"name": "b"}}),
            "spec.os: Unsupported value: \"b\": supported values: \"linux\", \"windows\"",
        ),
        (
            json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]}),
            "spec.topologySpreadConstraints[0].minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
        ),
        (
            json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["a"]}]}),
            "spec.topologySpreadConstraints[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
        ),
    ];
    let long = faults_of(json!({"dnsConfig": {"searches": ["a".repeat(254)]}}));
    assert!(
        long.ends_with(": must be no more than 253 characters"),
        "{long}"
    );
    for (part, wanted) in cases {
        let found = faults_of(part);
        assert!(
            found.starts_with(wanted) && !found.contains('\n'),
            "{found}"
        );
    }
}

#[test]
fn no_more_than_all_pods_are_left_out() {
    use crate::testing::faults;
    let labels = json!({"a": "b"});
    let obj = json!({"metadata": {"name": "d", "namespace": "d"}, "spec": {"selector": {"matchLabels": labels},
        "strategy": {"rollingUpdate": {"maxUnavailable": "101%"}},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(
        faults("apps", "v1", "Deployment", &obj),
        "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"
    );
}

#[test]
fn images_of_no_form_are_not_the_latest() {
    let policy = |image: &str| {
        let mut pod = pod(|pod| pod["spec"]["containers"][0]["image"] = json!(image));
        pod["spec"]["containers"][0]["imagePullPolicy"].take()
    };
    for image in ["i", "a/b", "h:1/a/b:latest", "a.io/b_c/d-e", "localhost/x"] {
        assert_eq!(policy(image), "Always", "{image}");
    }
    for image in ["..", "Upper", "a//b", "a:1", "a_", "a.io/b:tag"] {
        assert_eq!(policy(image), "IfNotPresent", "{image}");
    }
}

#[test]
fn qos_classes() {
    let qos = |resources: Value| {
        pod_defaults::qos_class(&json!({"containers": [{"resources": resources}]}))
    };
    assert_eq!(qos(json!({})), "BestEffort");
    assert_eq!(qos(json!({"requests": {"cpu": "1"}})), "Burstable");
    let both = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(qos(json!({"requests": both, "limits": both})), "Guaranteed");
    let more = json!({"cpu": "2", "memory": "1Gi"});
    assert_eq!(qos(json!({"requests": both, "limits": more})), "Burstable");
    let device = json!({"example.com/foo": "1"});
    assert_eq!(
        qos(json!({"requests": device, "limits": device})),
        "BestEffort"
    );
}

#[test]
fn mounts_hooks_and_mirrors_say_what_can_be() {
    let said = |edit: &dyn Fn(&mut Value)| {
        let pod = pod(|pod| {
            pod["spec"]["terminationGracePeriodSeconds"] = json!(30);
            pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
            edit(pod);
        });
        lines(&strategy("", "v1", "Pod").validate(&pod))
    };
    let mount = |fields: Value| {
        said(&move |pod: &mut Value| {
            let mut mount = json!({"name": "v", "mountPath": "/v"});
            for (key, value) in fields.as_object().unwrap() {
                mount[key] = value.clone();
            }
            pod["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
        })
    };
    let enabled = "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true";
    assert!(mount(json!({"recursiveReadOnly": "Enabled"})).contains(enabled));
    assert!(
        !mount(json!({"recursiveReadOnly": "Enabled", "readOnly": true})).contains("recursive")
    );
    assert!(!mount(json!({"recursiveReadOnly": "Disabled"})).contains("recursive"));
    assert!(mount(json!({"recursiveReadOnly": "Yes"})).contains("Unsupported value: \"Yes\""));
    let sleeps = |seconds: i64| {
        said(&move |pod: &mut Value| {
            let hook = json!({"preStop": {"sleep": {"seconds": seconds}}});
            pod["spec"]["containers"][0]["lifecycle"] = hook;
        })
    };
    assert!(sleeps(31).contains("less than terminationGracePeriodSeconds (30)"));
    assert!(sleeps(-1).contains("must be non-negative"));
    assert!(!sleeps(30).contains("sleep"));
    let mirror = |node: &'static str| {
        said(&move |pod: &mut Value| {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            pod["spec"]["nodeName"] = json!(node);
        })
    };
    assert!(mirror("").contains("must set spec.nodeName"));
    assert!(!mirror("n").contains("must set spec.nodeName"));
}

/// With the annotation of a mirror a pod is nobody's but the node's that says so.
#[test]
fn a_pod_does_not_become_a_mirror_or_cease_to_be_one() {
    let mirror = |text: &str| {
        let text = text.to_owned();
        pod(move |pod| {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": text});
        })
    };
    let plain = pod(|_| {});
    let rules = strategy("", "v1", "Pod");
    for (new, old, refused) in [
        (&mirror("a"), &plain, true),
        (&plain, &mirror("a"), true),
        (&mirror("b"), &mirror("a"), true),
        (&mirror("a"), &mirror("a"), false),
        (&plain, &plain, false),
    ] {
        for errors in [
            rules.validate_update(new, old),
            rules.validate_status_update(new, old),
        ] {
            assert_eq!(lines(&errors).contains("mirror pod annotation"), refused);
        }
    }
}
