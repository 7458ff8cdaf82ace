mod costs;
mod writes;

use davit_api::field::aggregate;
use davit_api::kinds;
use proptest::prelude::{Just, any, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as PropStrategy;
use serde_json::json;

use super::*;

/// A pod as a user writes it, defaulted and prepared, after a change.
fn pod(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "demo-pod", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:2.0",
            "resources": {"limits": {"hardware-vendor.example/foo": "2"}}}]},
    });
    change(&mut pod);
    let strategy = strategy("", "v1", "Pod");
    strategy.default(&mut pod);
    strategy.prepare_for_create(&mut pod);
    pod
}

fn deployment(change: impl FnOnce(&mut Value)) -> Value {
    let mut obj = json!({
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    });
    change(&mut obj);
    strategy("apps", "v1", "Deployment").default(&mut obj);
    obj
}

fn faults(group: &str, version: &str, kind: &str, obj: &Value) -> String {
    lines(&strategy(group, version, kind).validate(obj))
}

fn lines(errors: &ErrorList) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

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

/// The gate SELinuxMount is off.
#[test]
fn labels_of_volumes_are_changed_file_by_file() {
    let policy = |policy: &str| {
        let p = pod(|p| {
            p["spec"]["securityContext"] = json!({ "seLinuxChangePolicy": policy });
        });
        faults("", "v1", "Pod", &p)
    };
    assert_eq!(policy("Recursive"), "");
    assert_eq!(
        policy("MountOption"),
        "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"MountOption\": supported values: \"Recursive\""
    );
}

#[test]
fn every_row_has_rules_that_bear_empty_objects() {
    for row in &kinds::builtin().resources {
        let strategy = strategy(row.group, row.version, row.kind);
        assert_eq!(strategy.kind().kind, row.kind);
        assert_eq!(strategy.kind().namespaced, row.namespaced);
        let mut obj = json!({});
        strategy.default(&mut obj);
        strategy.prepare_for_create(&mut obj);
        let once = obj.clone();
        strategy.default(&mut obj);
        assert_eq!(obj, once, "{}", row.kind);
        assert!(!strategy.validate(&obj).is_empty(), "{}", row.kind);
        strategy.prepare_for_update(&mut obj, &once);
        strategy.prepare_subresource_update("status", &mut obj, &once);
        let _ = strategy.validate_update(&obj, &once);
        let _ = strategy.validate_status_update(&obj, &once);
        let names: Vec<&str> = strategy.fields(&obj).into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, strategy.field_names(), "{}", row.kind);
    }
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
fn workloads() {
    let mut text = Vec::new();
    assert_eq!(faults("apps", "v1", "Deployment", &deployment(|_| {})), "");
    type Change = fn(&mut Value);
    let changes: &[Change] = &[
        |d| d["spec"]["selector"] = json!({"matchLabels": {"app": "other"}}),
        |d| d["spec"]["selector"] = json!({}),
        |d| d["spec"]["replicas"] = json!(-1),
        |d| d["spec"]["template"]["spec"]["restartPolicy"] = json!("Never"),
        |d| d["spec"]["strategy"] = json!({"type": "Recreate", "rollingUpdate": {}}),
        |d| {
            d["spec"]["strategy"] =
                json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}});
        },
        |d| d["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": "many"}}),
    ];
    for change in changes {
        text.push(faults("apps", "v1", "Deployment", &deployment(change)));
    }
    let old = deployment(|_| {});
    let mut new = old.clone();
    new["spec"]["selector"]["matchLabels"]["app"] = json!("e");
    new["spec"]["template"]["metadata"]["labels"]["app"] = json!("e");
    text.push(lines(
        &strategy("apps", "v1", "Deployment").validate_update(&new, &old),
    ));

    let rules = strategy("batch", "v1", "Job");
    let mut job = json!({"metadata": {"name": "j", "namespace": "n", "uid": "1-2"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    rules.default(&mut job);
    rules.prepare_for_create(&mut job);
    text.push(lines(&rules.validate(&job)));
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    assert_eq!(lines(&rules.validate(&job)), "");
    assert_eq!(
        job["spec"]["template"]["metadata"]["labels"]["job-name"],
        "j"
    );
    // What a faulty selector would select is not judged; none selects nothing.
    let mut manual = job.clone();
    manual["spec"]["manualSelector"] = json!(true);
    let mismatch = "`selector` does not match template `labels`";
    let faulty = json!({"matchExpressions": [{"key": "-a", "operator": "Exists"}]});
    for (selector, told) in [(faulty, false), (json!(null), true)] {
        manual["spec"]["selector"] = selector;
        let faults = lines(&rules.validate(&manual));
        assert_eq!(faults.contains(mismatch), told, "{faults}");
    }
    let mut changed = job.clone();
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("k");
    text.push(
        lines(&rules.validate_update(&changed, &job))
            .split(": must")
            .next()
            .unwrap()
            .into(),
    );

    let mut cron = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {
        "schedule": "*/5 * * *", "jobTemplate": {"spec": job["spec"]}}});
    strategy("batch", "v1", "CronJob").default(&mut cron);
    for schedule in ["*/5 * * *", "61 * * * *", "@often", "", "0 0 1 jan mon-fri"] {
        cron["spec"]["schedule"] = json!(schedule);
        text.push(faults("batch", "v1", "CronJob", &cron));
    }
    insta::assert_snapshot!(text.join("\n"));
    for (zone, fault) in [
        ("Not a zone", "unknown time zone Not a zone"),
        ("../UTC", "unknown time zone ../UTC"),
        ("Local", "must be an explicit time zone"),
        ("", "must be nil or non-empty"),
    ] {
        cron["spec"]["timeZone"] = json!(zone);
        let found = faults("batch", "v1", "CronJob", &cron);
        assert!(found.contains(fault), "{zone}: {found}");
    }
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
fn metadata_is_looked_at_the_same_at_updates() {
    use crate::testing::{faults, update_faults};
    let of = |meta: Value| {
        let mut obj = json!({"metadata": {"name": "c", "namespace": "d"}, "data": {}});
        if let (Value::Object(to), Value::Object(from)) = (&mut obj["metadata"], meta) {
            to.extend(from);
        }
        obj
    };
    let generation = faults("", "v1", "ConfigMap", &of(json!({"generation": -1})));
    assert_eq!(
        generation,
        "metadata.generation: Invalid value: -1: must be greater than or equal to 0"
    );
    let (old, new) = (of(json!({})), of(json!({"generateName": "A/b"})));
    let found = update_faults("", "v1", "ConfigMap", &new, &old);
    assert!(
        found.starts_with("metadata.generateName: Invalid value: \"A/b\": may not contain '/'"),
        "{found}"
    );
    let class = |value: i64| json!({"metadata": {"name": "p", "generation": 1}, "value": 1, "description": value.to_string()});
    let mut changed = class(2);
    strategy("scheduling.k8s.io", "v1", "PriorityClass")
        .prepare_for_update(&mut changed, &class(1));
    assert_eq!(changed["metadata"]["generation"], 1, "it is never counted");
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
fn a_selector_that_is_no_selector_stops_at_it() {
    use crate::testing::faults;
    let obj = json!({"metadata": {"name": "d", "namespace": "d"}, "spec": {"selector": {"matchLabels": {"a": "b c"}},
        "template": {"metadata": {"labels": {"x": "y z"}}, "spec": {"containers": []}}}});
    let found = faults("apps", "v1", "Deployment", &obj);
    assert!(found.ends_with("spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b c\"}}: invalid label selector"), "{found}");
    assert!(!found.contains("template"), "{found}");
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
fn what_is_of_no_use_to_a_kind_goes() {
    let mut service = json!({"metadata": {"name": "s", "namespace": "d"}, "spec": {"type": "ExternalName", "externalName": "a.b", "internalTrafficPolicy": "Local"}});
    strategy("", "v1", "Service").default(&mut service);
    assert!(service["spec"]["internalTrafficPolicy"].is_null());
    let mut node = json!({"metadata": {"name": "n"}, "spec": {"configSource": {}}, "status": {"config": {}, "phase": "x"}});
    strategy("", "v1", "Node").prepare_for_create(&mut node);
    assert_eq!(node["spec"], json!({}));
    assert_eq!(node["status"], json!({"phase": "x"}));
}

#[test]
fn only_the_exempt_level_is_exempt() {
    use crate::testing::faults;
    let level = |name: &str| json!({"metadata": {"name": name}, "spec": {"type": "Exempt"}});
    let of = |name: &str| {
        faults(
            "flowcontrol.apiserver.k8s.io",
            "v1",
            "PriorityLevelConfiguration",
            &level(name),
        )
    };
    let fault =
        "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'";
    assert!(of("other").contains(fault), "{}", of("other"));
    assert!(!of("exempt").contains(fault), "{}", of("exempt"));
}

#[test]
fn only_names_of_secrets_are_kept_by_service_accounts() {
    let mut account = json!({"metadata": {"name": "s", "namespace": "d"}, "secrets": [{"name": "a", "namespace": "x", "uid": "u"}]});
    strategy("", "v1", "ServiceAccount").prepare_for_create(&mut account);
    assert_eq!(account["secrets"], json!([{"name": "a"}]));
}

#[test]
fn names_that_are_no_labels_are_warned_about() {
    let text = |group: &str, kind: &str, name: &str| {
        let obj = json!({"metadata": {"name": name}});
        strategy(group, "v1", kind).create_warnings(&obj).join("\n")
    };
    for (group, kind) in [
        ("apps", "Deployment"),
        ("apps", "ReplicaSet"),
        ("batch", "Job"),
        ("batch", "CronJob"),
        ("", "ReplicationController"),
    ] {
        let warned = text(group, kind, "a.b");
        let start = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [";
        assert!(warned.starts_with(start), "{kind}: {warned}");
        assert_eq!(text(group, kind, "a-b"), "");
    }
    assert!(
        text("", "Pod", "a.b").starts_with("metadata.name: this is used in the Pod's hostname, ")
    );
    assert_eq!(text("", "ConfigMap", "a.b"), "");
}

#[test]
fn nodes_take_extended_resources_by_hand() {
    let rules = strategy("", "v1", "Node");
    let mut old = json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}});
    rules.default(&mut old);
    assert_eq!(old["status"]["allocatable"], json!({"cpu": "4"}));
    let mut new = old.clone();
    new["status"]["capacity"]["example.com/dongle"] = json!("4");
    rules.default(&mut new);
    rules.prepare_status_update(&mut new, &old);
    assert_eq!(lines(&rules.validate_status_update(&new, &old)), "");
    assert!(
        new["status"]["allocatable"]
            .get("example.com/dongle")
            .is_none()
    );
    new["status"]["capacity"] = json!({"example.com/dongle": "1500m", "dongle": "1"});
    let errors = lines(&rules.validate_status_update(&new, &old));
    insta::assert_snapshot!(errors);
    let mut spec = old.clone();
    spec["spec"]["taints"] = json!([{"key": "a", "effect": "NoSchedule"}]);
    assert_eq!(lines(&rules.validate_update(&spec, &old)), "");
}

#[test]
fn nodes_declare_features_in_order() {
    let rules = strategy("", "v1", "Node");
    let old = json!({"metadata": {"name": "n"}});
    let faults = |features: Value| {
        let mut new = old.clone();
        new["status"]["declaredFeatures"] = features;
        lines(&rules.validate_status_update(&new, &old))
    };
    assert_eq!(faults(json!(["A", "B/sub", "B2"])), "");
    let at = "status.declaredFeatures";
    assert_eq!(
        faults(json!(["B", "A"])),
        format!("{at}[1]: Invalid value: \"A\": list must be sorted alphabetically")
    );
    assert_eq!(
        faults(json!(["B", "B"])),
        format!("{at}[1]: Duplicate value: \"B\"")
    );
    for name in ["b", "", "B-c", "B/", "B/1"] {
        let text = faults(json!([name]));
        assert!(text.contains("must start with an UpperCamelCase"), "{text}");
    }
}

#[test]
fn namespaces_secrets_and_services() {
    let rules = strategy("", "v1", "Namespace");
    let mut ns = json!({"metadata": {"name": "a"}});
    rules.default(&mut ns);
    rules.prepare_for_create(&mut ns);
    assert_eq!(rules.spec_finalizers(&ns), ["kubernetes"]);
    assert_eq!(ns["metadata"]["labels"]["kubernetes.io/metadata.name"], "a");
    assert_eq!(lines(&rules.validate(&ns)), "");

    let rules = strategy("", "v1", "Secret");
    let mut secret = json!({"metadata": {"name": "s", "namespace": "n"},
        "stringData": {"a": "b"}, "immutable": true});
    rules.default(&mut secret);
    assert_eq!(secret["data"], json!({"a": "Yg=="}));
    assert_eq!(secret["type"], "Opaque");
    let mut changed = secret.clone();
    changed["type"] = json!("kubernetes.io/tls");
    changed["data"]["a"] = json!("Yw==");
    let mut text = vec![lines(&rules.validate_update(&changed, &secret))];

    let rules = strategy("", "v1", "Service");
    let mut service = json!({"metadata": {"name": "s", "namespace": "n"},
        "spec": {"ports": [{"port": 80}, {"port": 80}], "type": "Nope"}});
    rules.default(&mut service);
    assert_eq!(service["spec"]["ports"][0]["targetPort"], 80);
    text.push(lines(&rules.validate(&service)));
    service["spec"] = json!({"clusterIP": "None", "ports": []});
    rules.default(&mut service);
    rules.prepare_for_create(&mut service);
    assert_eq!(lines(&rules.validate(&service)), "");
    assert_eq!(service["spec"]["clusterIPs"], json!(["None"]));
    let mut plain = service.clone();
    plain["spec"]["clusterIP"] = json!("10.0.0.1");
    plain["spec"]["clusterIPs"] = json!(["10.0.0.1"]);
    text.push(lines(&rules.validate_update(&plain, &service)));
    insta::assert_snapshot!(text.join("\n"));
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

fn resource_list() -> impl Strategy_ {
    proptest::collection::btree_map(
        prop_oneof![Just("cpu"), Just("memory"), Just("example.com/foo")],
        prop_oneof![
            Just("1"),
            Just("100m"),
            Just("1Gi"),
            Just("1n"),
            Just("0.0001")
        ],
        0..3,
    )
    .prop_map(|list| json!(list))
}

/// Shorthand for generators of JSON.
trait Strategy_: PropStrategy<Value = Value> {}
impl<T: PropStrategy<Value = Value>> Strategy_ for T {}

fn container() -> impl Strategy_ {
    let image = prop_oneof![
        Just("a"),
        Just("a:latest"),
        Just("h:5000/a"),
        Just("a@sha256:1")
    ];
    let probe = prop_oneof![
        Just(Value::Null),
        Just(json!({"httpGet": {"port": 1}})),
        Just(json!({"grpc": {"port": 1}, "periodSeconds": 0})),
    ];
    (image, resource_list(), resource_list(), probe).prop_map(|(image, limits, requests, probe)| {
        json!({"name": "c", "image": image, "livenessProbe": probe,
            "ports": [{"containerPort": 80}],
            "resources": {"limits": limits, "requests": requests}})
    })
}

proptest! {
    #[test]
    fn defaulting_pods_twice_changes_nothing_more(
        containers in proptest::collection::vec(container(), 0..3),
        init in proptest::collection::vec(container(), 0..2),
        host in any::<bool>(),
        limits in resource_list(),
    ) {
        let mut obj = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
            "containers": containers, "initContainers": init, "hostNetwork": host,
            "resources": {"limits": limits}, "serviceAccount": "s", "volumes": [{"name": "v"}]}});
        let rules = strategy("", "v1", "Pod");
        rules.default(&mut obj);
        let once = obj.clone();
        rules.default(&mut obj);
        prop_assert_eq!(&obj, &once);
        let _ = rules.validate(&obj);
        let mut new = once.clone();
        rules.prepare_for_update(&mut new, &once);
        prop_assert_eq!(&new, &once);
    }
}

/// Each pair of a port and an address is an element in the kernel of every node.
#[test]
fn a_service_has_so_many_ways_in() {
    let service = |ports: u16, addresses: u8| {
        let ports: Vec<Value> = (1..=ports)
            .map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP", "targetPort": port}))
            .collect();
        let addresses: Vec<String> = (1..=addresses).map(|n| format!("192.0.2.{n}")).collect();
        json!({"metadata": {"name": "s", "namespace": "default"},
            "spec": {"type": "ClusterIP", "sessionAffinity": "None", "ports": ports, "externalIPs": addresses}})
    };
    let rules = strategy("", "v1", "Service");
    let refused = |errors: &ErrorList| lines(errors).contains("must not be more than 1000");
    assert!(!refused(&rules.validate(&service(100, 9))));
    assert!(refused(&rules.validate(&service(101, 9))));
    // what is there may stay, and shrink
    let (old, less, more) = (service(200, 100), service(200, 99), service(201, 100));
    assert!(!refused(&rules.validate_update(&old, &old)));
    assert!(!refused(&rules.validate_update(&less, &old)));
    assert!(refused(&rules.validate_update(&more, &old)));
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
