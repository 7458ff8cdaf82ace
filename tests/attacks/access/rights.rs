//! More than one's rights by a detour: what gathers rules, who asks in whose name, what an error shows.

use super::client::{Ca, Connection, Identity, JSON, SOON, pki};
use super::{APPLY, MERGE};
use crate::harness::{Cluster, eventually};
use rcgen::DnType;
use serde_json::{Value, json};
use std::time::Duration;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON_PATCH: &str = "application/json-patch+json";

/// A user who holds these rules in the whole cluster.
fn user(c: &Cluster, ca: &Ca, admin: &mut Connection, name: &str, rules: &Value) -> Connection {
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules,
    });
    admin.make(&format!("{RBAC}/clusterroles"), &role);
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    });
    admin.make(&format!("{RBAC}/clusterrolebindings"), &binding);
    let names = [(DnType::CommonName, name)];
    Connection::to(c, &ca.client(&names, Duration::from_secs(3600)))
}

/// The rules of a role that others gather are as good as granted, and rules that multiply are not worked through.
pub(super) fn labels_grant_nothing(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let rules = json!([{
        "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
        "verbs": ["get", "create", "update", "patch"],
    }]);
    let mut labeller = user(c, ca, admin, "labeller", &rules);
    let labels =
        json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}});
    let role = |name: &str| format!("{RBAC}/clusterroles/{name}");
    let by_apply = format!("{}?fieldManager=labeller&force=true", role("cluster-admin"));
    labeller.refused("a label", "PATCH", &role("cluster-admin"), MERGE, &labels);
    let mut applied = labels.clone();
    applied["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    applied["kind"] = json!("ClusterRole");
    labeller.refused("a label by apply", "PATCH", &by_apply, APPLY, &applied);
    // what she holds herself she may let others gather
    let (code, answer) = labeller.send("PATCH", &role("labeller"), MERGE, Some(&labels));
    assert_eq!(code, 200, "{answer}");

    let many = |what: &str| -> Vec<String> { (0..100).map(|n| format!("{what}{n}")).collect() };
    let cube = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "cube"},
        "rules": [{"verbs": many("v"), "apiGroups": many("g"), "resources": many("r"), "resourceNames": many("n")}],
    });
    let (code, answer) = labeller.post(&format!("{RBAC}/clusterroles"), &cube);
    assert_eq!(code, 400, "{answer}");
    assert!(answer.to_string().len() < 4096);
}

/// A node that says it is where the API server is would have it asked with the API server's own rights.
pub(super) fn a_node_is_no_api_server(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "detour"}});
    admin.make("/api/v1/nodes", &object);
    let mut node = Connection::to(c, &ca.node("detour"));
    let service = admin
        .get("/api/v1/namespaces/default/services/kubernetes")
        .1;
    let endpoints = admin
        .get("/api/v1/namespaces/default/endpoints/kubernetes")
        .1;
    let subset = &endpoints["subsets"][0];
    let own: u16 = c.server.rsplit(':').next().unwrap().parse().unwrap();
    for (address, port) in [
        (service["spec"]["clusterIP"].clone(), json!(443)),
        (
            subset["addresses"][0]["ip"].clone(),
            subset["ports"][0]["port"].clone(),
        ),
        (json!("127.0.0.1"), json!(own)),
    ] {
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        let path = "/api/v1/nodes/detour/status";
        assert_eq!(node.send("PATCH", path, MERGE, Some(&status)).0, 200);
        for path in ["proxy/api/v1/secrets", "proxy/metrics", "proxy/configz"] {
            let (code, answer) = admin.get(&format!("/api/v1/nodes/detour/{path}"));
            assert!(code >= 400, "{address}:{port}: {answer}");
            let told = answer.to_string();
            assert!(
                told.contains("address not allowed"),
                "{address}:{port}: {told}"
            );
        }
    }
    // and whoever is asked in the API server's name learns nothing but what nodes tell
    let read = |kind: &str| {
        let file = format!("apiserver-kubelet-client.{kind}");
        std::fs::read_to_string(pki(c).join(file)).unwrap()
    };
    let mut client = Connection::to(c, &Identity::Certificate(read("crt"), read("key")));
    assert_eq!(
        client.whoami().as_deref(),
        Some("kube-apiserver-kubelet-client")
    );
    client.refused(
        "the kubelet client",
        "GET",
        "/api/v1/secrets",
        JSON,
        &Value::Null,
    );
    client.refused("the kubelet client", "GET", PODS, JSON, &Value::Null);
}

/// What is wrong with a patch was told from the object that it would have changed.
pub(super) fn errors_show_nothing(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let mut node = Connection::to(c, &ca.node("ask-1"));
    let broken = json!({"spec": 7, "status": 7, "metadata": {"labels": 7}});
    let asking = json!([{"op": "test", "path": "/spec/serviceAccountName", "value": "default"}]);
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "foreign-volume"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"password": "s3cret"}},
        },
    });
    admin.make("/api/v1/persistentvolumes", &volume);
    for path in [
        format!("{PODS}/foreign/status"),
        "/api/v1/nodes/ask-2".to_owned(),
        "/api/v1/nodes/ask-2/status".to_owned(),
        "/api/v1/persistentvolumes/foreign-volume".to_owned(),
    ] {
        for (kind, patch) in [(MERGE, &broken), (JSON_PATCH, &asking)] {
            let told = node.refused("another's", "PATCH", &path, kind, patch);
            assert!(
                !told.contains("foreign-secret") && !told.contains("s3cret"),
                "{told}"
            );
        }
    }
    // what there is not is still not there
    let gone = format!("{PODS}/nobody/status");
    assert_eq!(
        node.send("PATCH", &gone, MERGE, Some(&json!({"status": {}})))
            .0,
        404
    );
    // nor are those shown more who may write
    let replaced = json!([{"op": "replace", "path": "/spec/containers", "value": 7}]);
    for (kind, patch) in [
        (MERGE, &json!({"spec": {"containers": 7}})),
        (JSON_PATCH, &replaced),
    ] {
        let (code, answer) = admin.send("PATCH", &format!("{PODS}/foreign"), kind, Some(patch));
        assert_eq!(code, 422, "{answer}");
        assert!(!answer.to_string().contains("foreign-secret"), "{answer}");
    }
    let requests = "/apis/certificates.k8s.io/v1beta1/podcertificaterequests";
    node.refused("others' requests", "GET", requests, JSON, &Value::Null);
    let own = format!("{requests}?fieldSelector=spec.nodeName%3Dask-1");
    assert_eq!(node.get(&own).0, 200);
    // a pod does not become another's mirror
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}});
    for path in [format!("{PODS}/own"), format!("{PODS}/own/status")] {
        let (code, answer) = node_or_admin(&path, &mut node, admin, &mirror);
        assert_eq!(code, 422, "{answer}");
    }
    let kept = json!({"metadata": {"finalizers": ["example.com/stays"]}});
    node.refused(
        "finalizers",
        "PATCH",
        &format!("{PODS}/own/status"),
        MERGE,
        &kept,
    );
}

fn node_or_admin(
    path: &str,
    node: &mut Connection,
    admin: &mut Connection,
    patch: &Value,
) -> (u16, Value) {
    let who = if path.ends_with("status") {
        node
    } else {
        admin
    };
    who.send("PATCH", path, MERGE, Some(patch))
}

/// Policies read their parameters with the server's rights.
pub(super) fn policies_read_nothing_for_their_writer(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let rules = json!([{
        "apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["get", "create", "update", "patch"],
    }, {
        "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"],
    }]);
    let mut writer = user(c, ca, admin, "policy-writer", &rules);
    let group = "/apis/admissionregistration.k8s.io/v1";
    let (policies, bindings) = (
        format!("{group}/validatingadmissionpolicies"),
        format!("{group}/validatingadmissionpolicybindings"),
    );
    let policy = |name: &str, kind: Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "paramKind": kind,
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"]}]},
                "validations": [{"expression": "true"}],
            },
        })
    };
    let binding = |name: &str, policy: &str, param: Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": policy, "paramRef": param, "validationActions": ["Deny"]},
        })
    };
    let param = json!({"name": "foreign-secret", "namespace": "default", "parameterNotFoundAction": "Deny"});
    let selected =
        json!({"selector": {}, "namespace": "default", "parameterNotFoundAction": "Deny"});
    let kind = |kind: &str| json!({"apiVersion": "v1", "kind": kind});
    let mut refused = |path: &str, object: &Value, what: &str| {
        let (code, answer) = writer.post(path, object);
        assert!(code == 422 && answer.to_string().contains(what), "{answer}");
    };
    refused(&policies, &policy("p-secrets", kind("Secret")), "paramKind");
    admin.make(&policies, &policy("p-secrets", kind("Secret")));
    refused(
        &bindings,
        &binding("b-1", "p-secrets", param.clone()),
        "paramRef",
    );
    refused(
        &bindings,
        &binding("b-1", "p-secrets", selected.clone()),
        "paramRef",
    );
    refused(
        &bindings,
        &binding("b-1", "p-not-yet", param.clone()),
        "paramRef",
    );
    // of what the writer reads the policy may be
    writer.make(&policies, &policy("p-maps", kind("ConfigMap")));
    writer.make(&policies, &policy("p-plain", Value::Null));
    writer.make(&bindings, &binding("b-maps", "p-maps", param));
    writer.make(&bindings, &binding("b-plain", "p-plain", Value::Null));
    let (code, answer) = writer.send(
        "PATCH",
        &format!("{bindings}/b-maps"),
        MERGE,
        Some(&json!({"spec": {"policyName": "p-secrets"}})),
    );
    assert_eq!(code, 422, "{answer}");
    let (code, answer) = writer.send(
        "PATCH",
        &format!("{policies}/p-maps"),
        MERGE,
        Some(&json!({"spec": {"paramKind": {"kind": "Secret"}}})),
    );
    assert_eq!(code, 422, "{answer}");
    assert_eq!(
        writer
            .post(&bindings, &binding("b-2", "p-maps", selected))
            .0,
        422,
        "list is not get"
    );
}

/// Moments beyond all time, and tokens for somebody else.
pub(super) fn odd_values_are_answered(admin: &mut Connection) {
    let pod = super::pod("patient", "ask-1");
    admin.make(PODS, &pod);
    let patient = json!({"gracePeriodSeconds": i64::MAX});
    let path = format!("{PODS}/patient");
    let (code, answer) = admin.send("DELETE", &path, JSON, Some(&patient));
    assert_eq!(code, 200, "{answer}");
    let now = json!({"gracePeriodSeconds": 0});
    assert_eq!(admin.send("DELETE", &path, JSON, Some(&now)).0, 200);
    assert_eq!(admin.get(&path).0, 404);

    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let mut review = |audiences: Value| {
        let spec = json!({"token": "abcdef.0123456789abcdef", "audiences": audiences});
        let review =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
        admin.make(reviews, &review)["status"].clone()
    };
    assert_eq!(review(json!([]))["authenticated"], true);
    let other = review(json!(["vault"]));
    assert!(
        other["authenticated"] != true && other["user"] == json!({}),
        "{other}"
    );
}

/// A node says that its pod is at an address that no endpoint may have: the Service goes on by its other pods.
pub(super) fn a_node_stops_no_service(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let mut node = Connection::to(c, &ca.node("liar-1"));
    let registered =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "liar-1"}, "spec": {}});
    node.make("/api/v1/nodes", &registered);
    let namespace = "/api/v1/namespaces/default";
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "shared"},
        "spec": {"selector": {"app": "shared"}, "ports": [{"port": 80}]},
    });
    admin.make(&format!("{namespace}/services"), &service);
    let pods = format!("{namespace}/pods");
    let at = |address: &str| {
        json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }})
    };
    for name in ["liars", "others-1", "others-2"] {
        let on = if name == "liars" {
            "liar-1"
        } else {
            "not-there"
        };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "shared"}},
            "spec": {"nodeName": on, "containers": [{"name": "c", "image": "i"}]},
        });
        admin.make(&pods, &pod);
    }
    let say = |by: &mut Connection, pod: &str, address: &str| {
        let status = format!("{pods}/{pod}/status");
        let (code, answer) = by.send("PATCH", &status, MERGE, Some(&at(address)));
        assert_eq!(code, 200, "{address}: {answer}");
    };
    say(admin, "others-1", "10.9.9.1");
    for (n, address) in [
        "127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "fe80::1",
    ]
    .iter()
    .enumerate()
    {
        say(&mut node, "liars", address);
        let honest = format!("10.9.9.{}", n + 10);
        say(admin, "others-2", &honest);
        eventually("others are endpoints still", SOON, || {
            let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name%3Dshared";
            let (slices, endpoints) = (
                admin.get(slices).1,
                admin.get(&format!("{namespace}/endpoints/shared")).1,
            );
            [slices, endpoints].iter().all(|held| {
                let held = held.to_string();
                held.contains(&honest) && held.contains("10.9.9.1\"") && !held.contains(address)
            })
        });
    }
    let mapped = at("::ffff:127.0.0.1");
    let (code, answer) = node.send(
        "PATCH",
        &format!("{pods}/liars/status"),
        MERGE,
        Some(&mapped),
    );
    assert_eq!(code, 422, "{answer}");
    for name in ["liars", "others-1", "others-2"] {
        let path = format!("{pods}/{name}?gracePeriodSeconds=0");
        assert_eq!(admin.send("DELETE", &path, JSON, None).0, 200);
    }
}
