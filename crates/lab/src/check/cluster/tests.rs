#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::facts::{Attempt, Facts, Tried};
use super::probes::Control;
use super::{CLUSTER_CHECKS, report};
use crate::check::{Check, CheckResult};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A cluster where everything was seen, and nothing is wrong.
fn quiet() -> Facts {
    let answers = [
        (Attempt::Profiler, (404, Value::Null)),
        (
            Attempt::ReviewOfNobody,
            (201, json!({"status": {"allowed": false}})),
        ),
        (
            Attempt::ReviewOfNode,
            (
                201,
                json!({"status": {"allowed": false, "reason": "no relationship found between node 'n' and this object"}}),
            ),
        ),
        (
            Attempt::ReviewOfScheduler,
            (
                201,
                json!({"status": {"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding"}}),
            ),
        ),
        (
            Attempt::Pod,
            (
                201,
                json!({"spec": {"serviceAccountName": "default", "containers": [{"imagePullPolicy": "Always"}]}}),
            ),
        ),
        (Attempt::NoNamespace, (404, Value::Null)),
        (Attempt::ExternalAddress, (403, Value::Null)),
        (
            Attempt::OtherNode,
            (
                403,
                json!({"message": "node \"a\" is not allowed to modify node \"b\""}),
            ),
        ),
    ];
    Facts {
        namespaces: Ok(vec![read(json!({"metadata": {"name": "app"}}))]),
        nodes: Ok(vec![read(json!({"metadata": {"name": "n"}}))]),
        pods: Ok(vec![read(pod("app", "good", &json!({})))]),
        services: Ok(vec![read(
            json!({"metadata": {"namespace": "default", "name": "kubernetes"}}),
        )]),
        accounts: Ok(vec![read(
            json!({"metadata": {"namespace": "app", "name": "default"}, "automountServiceAccountToken": false}),
        )]),
        network_policies: Ok(vec![read(
            json!({"metadata": {"namespace": "app", "name": "none"}}),
        )]),
        roles: Ok(Vec::new()),
        role_bindings: Ok(Vec::new()),
        cluster_roles: Ok(vec![read(json!({
            "metadata": {"name": "cluster-admin"},
            "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
        }))]),
        cluster_role_bindings: Ok(vec![read(json!({
            "metadata": {"name": "cluster-admin"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "Group", "name": "system:masters"}],
        }))]),
        kubelets: BTreeMap::from([("n".to_owned(), Ok(kubelet()))]),
        exempt: BTreeSet::new(),
        tried: Tried {
            own_groups: Ok(vec!["admins".to_owned()]),
            anonymous: Ok(BTreeMap::from([("/api".to_owned(), 401)])),
            kubelet_port: BTreeMap::from([("n".to_owned(), Some(401))]),
            kubelet_open_port: BTreeMap::from([("n".to_owned(), None)]),
            admits: BTreeMap::from([(
                "app".to_owned(),
                Ok(Control::ALL.into_iter().map(|c| (c, false)).collect()),
            )]),
            answers: answers.into(),
            no_dry_run: None,
            tls: true,
        },
    }
}

/// A pod that keeps every control, with other fields of its spec.
fn pod(namespace: &str, name: &str, fields: &Value) -> Value {
    let mut pod = super::probes::harmless();
    pod["metadata"] = json!({"namespace": namespace, "name": name});
    for (key, value) in fields.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn kubelet() -> Value {
    json!({
        "authentication": {"anonymous": {"enabled": false}, "x509": {"clientCAFile": "/ca.crt"}},
        "authorization": {"mode": "Webhook"},
        "serverTLSBootstrap": true,
        "podPidsLimit": 1000,
        "seccompDefault": true,
    })
}

fn check(facts: &Facts, id: &str) -> Check {
    report("test".to_owned(), facts).check(id).unwrap().clone()
}

fn not_passed(facts: &Facts) -> Vec<(String, CheckResult)> {
    let report = report("test".to_owned(), facts);
    let checks = report.checks.into_iter();
    let bad = checks.filter(|c| matches!(c.verdict, CheckResult::Fail | CheckResult::Warn));
    bad.map(|c| (c.id, c.verdict)).collect()
}

#[test]
fn ids_are_unique_and_in_order() {
    let key = |id: &str| -> Vec<u32> { id.split('.').map(|n| n.parse().unwrap()).collect() };
    let keys: Vec<_> = CLUSTER_CHECKS.iter().map(|c| key(c.id)).collect();
    assert!(keys.is_sorted_by(|a, b| a < b));
}

#[test]
fn a_cluster_in_order_passes() {
    let facts = quiet();
    assert_eq!(
        not_passed(&facts),
        [],
        "{}",
        report(String::new(), &facts).table()
    );
    // The control plane is not run as pods: what only flags tell does not apply, with the reason.
    let etcd = check(&facts, "2.2");
    assert_eq!(etcd.verdict, CheckResult::Skip);
    assert!(
        etcd.seen.contains("etcd is not run as a pod"),
        "{}",
        etcd.seen
    );
}

#[test]
fn what_was_not_answered_is_skipped_with_the_reason() {
    let mut facts = quiet();
    facts.pods = Err("cannot list pods: forbidden".to_owned());
    let found = check(&facts, "5.2.2");
    assert_eq!(
        (found.verdict, found.seen.as_str()),
        (CheckResult::Skip, "cannot list pods: forbidden")
    );
}

#[test]
fn each_control_finds_the_pod_that_breaks_it() {
    for (index, control) in Control::ALL.into_iter().enumerate() {
        let id = format!("5.2.{}", index + 2);
        let mut offender = control.offender();
        offender["metadata"]["namespace"] = json!("app");
        let mut facts = quiet();
        facts.pods.as_mut().unwrap().push(read(offender.clone()));
        let found = check(&facts, &id);
        assert_eq!(found.verdict, CheckResult::Fail, "{id}: {found:?}");
        assert_eq!(found.objects, ["pod app/davit-lab-check"]);
        // In a namespace of the cluster's own it is nothing.
        facts.exempt.insert("app".to_owned());
        assert_eq!(check(&facts, &id).verdict, CheckResult::Pass, "{id}");
        // A namespace that would admit it is for people to judge.
        let mut facts = quiet();
        let admits = Ok(BTreeMap::from([(control, true)]));
        facts.tried.admits.insert("app".to_owned(), admits);
        let found = check(&facts, &id);
        assert_eq!(found.verdict, CheckResult::Warn, "{id}");
        assert_eq!(found.objects, ["namespace app admits it"]);
    }
}

#[test]
fn other_faults_of_pods_are_found() {
    let secret = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    let mut container = super::probes::harmless()["spec"]["containers"][0].clone();
    container["env"] = secret;
    let cases = [
        ("5.4.1", json!({"containers": [container]})),
        ("5.6.2", json!({"securityContext": {"runAsNonRoot": true}})),
        (
            "5.6.3",
            json!({"securityContext": {}, "containers": [{"name": "c"}]}),
        ),
        ("5.1.5", json!({"automountServiceAccountToken": true})),
        (
            "5.1.6",
            json!({"automountServiceAccountToken": true, "serviceAccountName": "own"}),
        ),
    ];
    for (id, fields) in cases {
        let mut facts = quiet();
        facts
            .pods
            .as_mut()
            .unwrap()
            .push(read(pod("app", "bad", &fields)));
        let found = check(&facts, id);
        assert_eq!(found.verdict, CheckResult::Fail, "{id}: {found:?}");
        assert!(found.objects[0].contains("app/bad"), "{id}: {found:?}");
    }
    let mut facts = quiet();
    facts
        .pods
        .as_mut()
        .unwrap()
        .push(read(pod("default", "bad", &json!({}))));
    assert_eq!(check(&facts, "5.6.4").objects, ["pod default/bad"]);
    assert_eq!(check(&facts, "5.3.2").objects, ["default"]);
}

/// A role of its own, bound to a subject.
fn granting(rule: &Value, subject: &Value) -> Facts {
    let mut facts = quiet();
    let role = json!({"metadata": {"name": "r"}, "rules": [rule]});
    facts.cluster_roles.as_mut().unwrap().push(read(role));
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [subject],
    });
    facts
        .cluster_role_bindings
        .as_mut()
        .unwrap()
        .push(read(binding));
    facts
}

#[test]
fn permissions_of_everybody_fail_and_those_of_somebody_are_judged() {
    let rule = |group: &str, resource: &str, verb: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
    let cases = [
        ("5.1.1", rule("*", "*", "*")),
        ("5.1.2", rule("", "secrets", "list")),
        ("5.1.4", rule("", "pods", "create")),
        ("5.1.8", rule("", "users", "impersonate")),
        (
            "5.1.8",
            rule("rbac.authorization.k8s.io", "clusterroles", "escalate"),
        ),
        ("5.1.9", rule("", "persistentvolumes", "*")),
        ("5.1.10", rule("", "nodes/proxy", "get")),
        ("5.1.10", rule("", "*/proxy", "get")),
        (
            "5.1.11",
            rule(
                "certificates.k8s.io",
                "certificatesigningrequests/approval",
                "update",
            ),
        ),
        ("5.1.12", rule("admissionregistration.k8s.io", "*", "patch")),
        ("5.1.13", rule("", "serviceaccounts/token", "create")),
    ];
    for (id, rule) in cases {
        let everybody = json!({"kind": "Group", "name": "system:authenticated"});
        let found = check(&granting(&rule, &everybody), id);
        assert_eq!(found.verdict, CheckResult::Fail, "{id}: {found:?}");
        assert_eq!(found.objects, ["Group system:authenticated by b (r)"]);
        let somebody = json!({"kind": "User", "name": "ann"});
        let found = check(&granting(&rule, &somebody), id);
        assert_eq!(found.verdict, CheckResult::Warn, "{id}: {found:?}");
        let own = json!({"kind": "User", "name": "system:kube-scheduler"});
        assert_eq!(
            check(&granting(&rule, &own), id).verdict,
            CheckResult::Pass,
            "{id}"
        );
    }
    let account = json!({"kind": "ServiceAccount", "namespace": "app", "name": "ci"});
    let found = check(&granting(&rule("*", "*", "*"), &account), "5.1.1");
    assert_eq!(
        found.verdict,
        CheckResult::Fail,
        "an account of pods: {found:?}"
    );
    let found = check(
        &granting(
            &rule("*", "*", "*"),
            &json!({"kind": "User", "name": "ann"}),
        ),
        "5.1.3",
    );
    assert_eq!(
        (found.verdict, found.objects),
        (CheckResult::Fail, vec!["r".to_owned()])
    );
    let masters = json!({"kind": "Group", "name": "system:masters"});
    let found = check(&granting(&rule("", "pods", "get"), &masters), "5.1.7");
    assert_eq!(
        (found.verdict, found.objects),
        (CheckResult::Warn, vec!["b".to_owned()])
    );
}

#[test]
fn a_role_of_a_namespace_does_not_stand_for_the_clusters() {
    // A Role `r` elsewhere does not lend its rules to a binding of the ClusterRole `r`.
    let mut facts = granting(
        &json!({"verbs": ["get"]}),
        &json!({"kind": "User", "name": "ann"}),
    );
    let role = json!({
        "metadata": {"namespace": "app", "name": "r"},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
    });
    facts.roles.as_mut().unwrap().push(read(role));
    assert_eq!(check(&facts, "5.1.2").verdict, CheckResult::Pass);
}

#[test]
fn what_the_server_does_is_judged() {
    let cases = [
        (
            "1.2.6",
            Attempt::ReviewOfNobody,
            201,
            json!({"status": {"allowed": true}}),
            CheckResult::Fail,
        ),
        (
            "1.2.7",
            Attempt::ReviewOfNode,
            201,
            json!({"status": {"allowed": true}}),
            CheckResult::Fail,
        ),
        (
            "1.2.11",
            Attempt::Pod,
            201,
            json!({"spec": {"containers": [{"imagePullPolicy": "IfNotPresent"}]}}),
            CheckResult::Warn,
        ),
        (
            "1.2.12",
            Attempt::Pod,
            201,
            json!({"spec": {}}),
            CheckResult::Fail,
        ),
        (
            "1.2.13",
            Attempt::NoNamespace,
            201,
            Value::Null,
            CheckResult::Fail,
        ),
        (
            "1.2.3",
            Attempt::ExternalAddress,
            201,
            Value::Null,
            CheckResult::Warn,
        ),
        (
            "1.2.14",
            Attempt::OtherNode,
            201,
            Value::Null,
            CheckResult::Fail,
        ),
        (
            "1.2.15",
            Attempt::Profiler,
            200,
            Value::Null,
            CheckResult::Fail,
        ),
        (
            "1.2.8",
            Attempt::ReviewOfScheduler,
            201,
            json!({"status": {"allowed": true}}),
            CheckResult::Skip,
        ),
    ];
    for (id, attempt, code, body, verdict) in cases {
        let mut facts = quiet();
        facts.tried.answers.insert(attempt, (code, body));
        assert_eq!(check(&facts, id).verdict, verdict, "{id}");
    }
    let mut facts = quiet();
    let open = BTreeMap::from([
        ("/version".to_owned(), 200),
        ("/api/v1/pods".to_owned(), 200),
    ]);
    facts.tried.anonymous = Ok(open);
    let found = check(&facts, "1.2.1");
    assert_eq!(
        (found.verdict, found.objects),
        (CheckResult::Fail, vec!["/api/v1/pods".to_owned()])
    );
    facts.tried.anonymous = Ok(BTreeMap::from([("/version".to_owned(), 200)]));
    assert_eq!(check(&facts, "1.2.1").verdict, CheckResult::Warn);
    facts.tried.tls = false;
    assert_eq!(check(&facts, "1.2.24").verdict, CheckResult::Fail);
}

#[test]
fn flags_are_read_from_pods_of_the_control_plane() {
    let server = |args: Value| {
        let mut facts = quiet();
        // What the flag says is judged where nothing was seen.
        facts.tried.answers.clear();
        let pod = json!({
            "metadata": {"namespace": "kube-system", "name": "kube-apiserver-n"},
            "spec": {"containers": [{"name": "c", "command": ["/usr/bin/kube-apiserver"], "args": args}]},
        });
        facts.pods.as_mut().unwrap().push(read(pod));
        facts
    };
    let good = server(json!([
        "--audit-log-path=/var/log/audit",
        "--audit-log-maxage",
        "30",
        "--profiling=false",
        "--authorization-mode=Node,RBAC",
        "--kubelet-certificate-authority=/ca"
    ]));
    for id in [
        "1.2.5", "1.2.6", "1.2.7", "1.2.8", "1.2.15", "1.2.16", "1.2.17",
    ] {
        assert_eq!(check(&good, id).verdict, CheckResult::Pass, "{id}");
    }
    let bad = server(json!([
        "--authorization-mode=AlwaysAllow",
        "--audit-log-maxage=7",
        "--token-auth-file=/t"
    ]));
    for id in [
        "1.2.2", "1.2.5", "1.2.6", "1.2.7", "1.2.8", "1.2.15", "1.2.16", "1.2.17",
    ] {
        let found = check(&bad, id);
        assert_eq!(found.verdict, CheckResult::Fail, "{id}");
        assert!(
            found.objects[0].starts_with("kube-system/kube-apiserver-n: --"),
            "{found:?}"
        );
    }
    // What is seen goes before what a flag says.
    let mut seen = bad.clone();
    seen.tried.answers = quiet().tried.answers;
    assert_eq!(check(&seen, "1.2.6").verdict, CheckResult::Pass);
}

#[test]
fn node_agents_are_judged_by_configuration_and_by_what_they_serve() {
    let configured = |pointer: &str, value: Value| {
        let mut facts = quiet();
        let mut config = kubelet();
        *config.pointer_mut(pointer).unwrap() = value;
        facts.kubelets.insert("n".to_owned(), Ok(config));
        facts
    };
    let cases = [
        (
            "4.2.1",
            "/authentication/anonymous/enabled",
            json!(true),
            CheckResult::Fail,
        ),
        (
            "4.2.2",
            "/authorization/mode",
            json!("AlwaysAllow"),
            CheckResult::Fail,
        ),
        (
            "4.2.3",
            "/authentication/x509/clientCAFile",
            json!(""),
            CheckResult::Fail,
        ),
        (
            "4.2.9",
            "/serverTLSBootstrap",
            json!(false),
            CheckResult::Warn,
        ),
        ("4.2.13", "/podPidsLimit", json!(-1), CheckResult::Warn),
        ("4.2.14", "/seccompDefault", json!(false), CheckResult::Warn),
    ];
    for (id, pointer, value, verdict) in cases {
        assert_eq!(
            check(&configured(pointer, value), id).verdict,
            verdict,
            "{id}"
        );
    }
    let mut facts = quiet();
    facts.tried.kubelet_port.insert("n".to_owned(), Some(200));
    facts
        .tried
        .kubelet_open_port
        .insert("n".to_owned(), Some(200));
    for id in ["4.2.1", "4.2.2", "4.2.4"] {
        assert_eq!(check(&facts, id).verdict, CheckResult::Fail, "{id}");
    }
    // Neither within reach nor with a page.
    let mut facts = quiet();
    facts.tried.kubelet_port.insert("n".to_owned(), None);
    facts
        .kubelets
        .insert("n".to_owned(), Err("no page /configz".to_owned()));
    for id in ["4.2.1", "4.2.4", "4.2.14"] {
        assert_eq!(check(&facts, id).verdict, CheckResult::Skip, "{id}");
    }
}

#[test]
fn namespaces_without_policies_fail_when_pods_are_there() {
    let mut facts = quiet();
    facts.tried.admits.insert(
        "app".to_owned(),
        Ok(BTreeMap::from([(Control::Privileged, true)])),
    );
    assert_eq!(check(&facts, "5.2.1").verdict, CheckResult::Fail);
    facts.pods = Ok(Vec::new());
    assert_eq!(check(&facts, "5.2.1").verdict, CheckResult::Warn);
    // Without dry runs the namespace's label tells.
    facts.tried.admits.clear();
    let label = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    facts.namespaces = Ok(vec![read(
        json!({"metadata": {"name": "app", "labels": label}}),
    )]);
    assert_eq!(check(&facts, "5.2.1").verdict, CheckResult::Pass);
}
