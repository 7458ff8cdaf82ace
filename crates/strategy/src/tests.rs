mod costs;
mod defaulting;
mod pods;
mod writes;

use davit_api::field::aggregate;
use davit_api::kinds;
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
fn a_selector_that_is_no_selector_stops_at_it() {
    use crate::testing::faults;
    let obj = json!({"metadata": {"name": "d", "namespace": "d"}, "spec": {"selector": {"matchLabels": {"a": "b c"}},
        "template": {"metadata": {"labels": {"x": "y z"}}, "spec": {"containers": []}}}});
    let found = faults("apps", "v1", "Deployment", &obj);
    assert!(found.ends_with("spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b c\"}}: invalid label selector"), "{found}");
    assert!(!found.contains("template"), "{found}");
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
