//! Certificates, nodes, tokens and the node's server: who somebody is, and what follows from it.
//!
//! One cluster for all of it: each attack has names of its own.

mod client;
mod rights;

use crate::harness::{Cluster, eventually};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Ca, Connection, Identity, JSON, SOON, admin, impostor, subject};
use http::StatusCode;
use rcgen::{DnType, KeyPair};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the shortest certificates live: enough for a handshake on a busy machine.
const SHORT_LIFE: Duration = Duration::from_secs(12);
const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// The common name, spelled so that the builder takes it for something else: a subject then holds two.
const SECOND_NAME: [u64; 4] = [2, 5, 4, 3];

fn request(names: &[(DnType, &str)]) -> String {
    let key = KeyPair::generate().unwrap();
    let request = subject(names).serialize_request(&key).unwrap();
    STANDARD.encode(request.pem().unwrap())
}

fn csr(name: &str, signer: &str, request: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": format!("kubernetes.io/{signer}"), "request": request,
            "usages": ["digital signature", "client auth"],
        },
    })
}

/// A pod on a node whose first volume has a token for the audience `vault`, and its second a Secret.
fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": node, "serviceAccountName": "default",
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [
                {"name": "vault", "projected": {"sources": [
                    {"serviceAccountToken": {"audience": "vault", "path": "token"}}]}},
                {"name": "secret", "secret": {"secretName": format!("{name}-secret")}},
            ],
        },
    })
}

fn bound_token(pod: &Value, audiences: &Value) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": audiences, "boundObjectRef": {
            "apiVersion": "v1", "kind": "Pod",
            "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
        }},
    })
}

#[test]
fn identities_are_what_they_were_judged_to_be() {
    let other_ca = Ca::made("other");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &other_ca.pem).unwrap();
    let path = file.path().display().to_string();
    let c = Cluster::up(&[
        "--runtime",
        "none",
        "--node-name",
        "node-1",
        "--client-ca-file",
        &path,
    ]);
    let ca = Ca::of(&c);
    let mut admin = Connection::to(&c, &admin(&c));
    admin_sets_up(&mut admin);
    // while the other attacks go on
    let expiry = a_certificate_ends_under_its_connections(&c, &ca, &mut admin);

    two_names_are_nobody(&c, &ca, &mut admin);
    nodes_ask_for_what_is_theirs(&c, &ca, &mut admin);
    nodes_write_what_is_theirs(&c, &ca, &mut admin);
    nobody_grants_more_than_he_has(&c, &ca, &mut admin);
    rights::labels_grant_nothing(&c, &ca, &mut admin);
    rights::a_node_is_no_api_server(&c, &ca, &mut admin);
    rights::a_node_stops_no_service(&c, &ca, &mut admin);
    rights::errors_show_nothing(&c, &ca, &mut admin);
    rights::policies_read_nothing_for_their_writer(&c, &ca, &mut admin);
    rights::odd_values_are_answered(&mut admin);
    the_nodes_server_is_known_by_its_certificate(&c, &mut admin);
    tokens_end_with_their_pod(&c, &mut admin);
    an_authority_that_is_replaced_is_not_believed(&c, &other_ca, file.path());
    expiry.join().unwrap();
}

/// The API server and the node's server forget who somebody is when the certificate ends, not when the connection does.
fn a_certificate_ends_under_its_connections(
    c: &Cluster,
    ca: &Ca,
    admin: &mut Connection,
) -> JoinHandle<()> {
    let names = [
        (DnType::CommonName, "short"),
        (DnType::OrganizationName, "system:masters"),
    ];
    let short = ca.client(&names, SHORT_LIFE);
    let mut api = Connection::to(c, &short);
    assert_eq!(api.whoami().as_deref(), Some("short"));
    let mut node = Connection::at(&node_address(admin), &ca.pem, &short);
    assert_eq!(node.get("/healthz").0, 200);
    std::thread::spawn(move || {
        eventually("the certificate has ended", SOON, || {
            let (at_api, at_node) = (api.whoami(), node.get("/healthz").0);
            at_api.is_none() && at_node == 401
        });
    })
}

fn admin_sets_up(admin: &mut Connection) {
    for (role, group) in [
        ("system:node-bootstrapper", "system:bootstrappers"),
        (
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            "system:bootstrappers",
        ),
        (
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            "system:nodes",
        ),
    ] {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"generateName": "join-"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
        });
        admin.make(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            &binding,
        );
    }
    admin.make(
        "/api/v1/namespaces/kube-system/secrets",
        &json!({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": "bootstrap-token-abcdef"},
            "stringData": {
                "token-id": "abcdef", "token-secret": "0123456789abcdef",
                "usage-bootstrap-authentication": "true",
            },
        }),
    );
    eventually("the service account", SOON, || {
        admin
            .get("/api/v1/namespaces/default/serviceaccounts/default")
            .0
            == 200
    });
}

/// What was judged (the last name) and what was believed (the first) were two names: a node's credential or a bootstrap
/// token alone became the controllers.
fn two_names_are_nobody(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let controllers = "system:kube-controller-manager";
    let second = || DnType::CustomDnType(SECOND_NAME.to_vec());
    let nodes = (DnType::OrganizationName, "system:nodes");
    let joiner = Identity::Token("abcdef.0123456789abcdef".to_owned());
    let renewing = ca.node("x");
    for (who, identity) in [("token", &joiner), ("node", &renewing)] {
        let mut attacker = Connection::to(c, identity);
        for (number, [first, last]) in [
            [controllers, "system:node:x"],
            ["system:node:x", controllers],
        ]
        .into_iter()
        .enumerate()
        {
            let names = [nodes.clone(), (DnType::CommonName, first), (second(), last)];
            for signer in [
                "kube-apiserver-client-kubelet",
                "kube-apiserver-client",
                "kubelet-serving",
            ] {
                let name = format!("{who}-{number}-{signer}");
                let object = csr(&name, signer, &request(&names));
                let why = attacker.refused("two names", "POST", CSRS, JSON, &object);
                assert!(why.contains("more than one common name"), "{why}");
            }
        }
        let country = [
            nodes.clone(),
            (DnType::CountryName, "DE"),
            (DnType::CommonName, "system:node:x"),
        ];
        let object = csr("more", "kube-apiserver-client-kubelet", &request(&country));
        attacker.refused("more than names", "POST", CSRS, JSON, &object);
        let masters = [
            (DnType::OrganizationName, "system:masters"),
            (DnType::CommonName, "system:node:x"),
        ];
        for signer in [
            "kube-apiserver-client-kubelet",
            "kube-apiserver-client",
            "kubelet-serving",
        ] {
            let object = csr("root", signer, &request(&masters));
            attacker.refused("masters", "POST", CSRS, JSON, &object);
        }
        // the signer that requires nothing, which v1 does not have
        let object = csr("root", "legacy-unknown", &request(&masters));
        let (code, answer) = attacker.post(CSRS, &object);
        assert!(code == 403 || code == 422, "{answer}");
    }
    // a node's credential is no way to another node's
    let other = [nodes.clone(), (DnType::CommonName, "system:node:other")];
    let object = csr("other", "kube-apiserver-client-kubelet", &request(&other));
    Connection::to(c, &renewing).refused("another node", "POST", CSRS, JSON, &object);
    // what an authority has signed before counts no more either
    let names = [
        nodes.clone(),
        (DnType::CommonName, controllers),
        (second(), "system:node:x"),
    ];
    let old = ca.client(&names, Duration::from_secs(3600));
    assert_eq!(Connection::to(c, &old).whoami(), None);
    // an honest request goes through, and says what was judged
    let own = [nodes, (DnType::CommonName, "system:node:x")];
    let object = csr("honest", "kube-apiserver-client-kubelet", &request(&own));
    Connection::to(c, &joiner).make(CSRS, &object);
    let path = format!("{CSRS}/honest");
    eventually("an honest certificate", SOON, || {
        !admin.get(&path).1["status"]["certificate"].is_null()
    });
}

/// Tokens, certificates and Secrets: of the pods that run on a node, and for what they name.
fn nodes_ask_for_what_is_theirs(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let mut node = Connection::to(c, &ca.node("ask-1"));
    let mut uids = Vec::new();
    for name in ["ask-1", "ask-2"] {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        uids.push(admin.make("/api/v1/nodes", &object)["metadata"]["uid"].clone());
    }
    let (pods, secrets) = (
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/secrets",
    );
    for name in ["own-secret", "foreign-secret"] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
        admin.make(secrets, &secret);
    }
    let own = admin.make(pods, &pod("own", "ask-1"));
    let foreign = admin.make(pods, &pod("foreign", "ask-2"));
    // tokens
    let tokens = "/api/v1/namespaces/default/serviceaccounts/default/token";
    eventually("the pod's token", SOON, || {
        node.post(tokens, &bound_token(&own, &json!(["vault"]))).0 == 201
    });
    node.make(tokens, &bound_token(&own, &json!([])));
    for (what, token) in [
        (
            "audience of nobody",
            bound_token(&own, &json!(["registry.example.com"])),
        ),
        (
            "two audiences",
            bound_token(&own, &json!(["vault", "registry.example.com"])),
        ),
        (
            "another node's pod",
            bound_token(&foreign, &json!(["vault"])),
        ),
        (
            "bound to nothing",
            json!({"spec": {"audiences": ["vault"]}}),
        ),
        (
            "no uid",
            json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "own"}}}),
        ),
    ] {
        node.refused(what, "POST", tokens, JSON, &token);
    }
    // certificates of pods
    let account = admin
        .get("/api/v1/namespaces/default/serviceaccounts/default")
        .1;
    let certificate = |pod: &Value, node: &str, uid: &Value| {
        json!({
            "apiVersion": "certificates.k8s.io/v1beta1", "kind": "PodCertificateRequest",
            "metadata": {"generateName": "p-"},
            "spec": {
                "signerName": "example.com/signer", "nodeName": node, "nodeUID": uid,
                "podName": pod["metadata"]["name"], "podUID": pod["metadata"]["uid"],
                "serviceAccountName": "default", "serviceAccountUID": account["metadata"]["uid"],
                "stubPKCS10Request": "AAAA",
            },
        })
    };
    let requests = "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";
    for (what, request) in [
        (
            "another node's pod",
            certificate(&foreign, "ask-1", &uids[0]),
        ),
        (
            "in another node's name",
            certificate(&foreign, "ask-2", &uids[1]),
        ),
        (
            "a signer of no volume",
            certificate(&own, "ask-1", &uids[0]),
        ),
    ] {
        node.refused(what, "POST", requests, JSON, &request);
    }
    // Secrets
    let nothing = Value::Null;
    assert_eq!(node.get(&format!("{secrets}/own-secret")).0, 200);
    for path in [
        format!("{secrets}/foreign-secret"),
        secrets.to_owned(),
        "/api/v1/secrets".to_owned(),
    ] {
        node.refused("Secrets", "GET", &path, JSON, &nothing);
    }
    for path in [
        format!("{pods}/foreign"),
        "/api/v1/nodes/ask-2".to_owned(),
        "/api/v1/pods".to_owned(),
    ] {
        node.refused("another node's", "GET", &path, JSON, &nothing);
    }
    node.refused(
        "another's pod",
        "DELETE",
        &format!("{pods}/foreign"),
        JSON,
        &nothing,
    );
    let done = json!({"status": {"phase": "Succeeded"}});
    node.refused(
        "another's pod",
        "PATCH",
        &format!("{pods}/foreign/status"),
        MERGE,
        &done,
    );
}

/// Its Node, its mirror pods, its slices: and nothing of them that frees it from what others have decided.
fn nodes_write_what_is_theirs(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let mut node = Connection::to(c, &ca.node("write-1"));
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0"}]);
    let registered = |extra: Value| {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "write-1"},
            "spec": {"taints": [{"key": "example.com/kept", "effect": "NoSchedule"}]},
        });
        for (part, fields) in extra.as_object().unwrap() {
            for (key, value) in fields.as_object().unwrap() {
                object[part][key] = value.clone();
            }
        }
        object
    };
    for extra in [
        json!({"metadata": {"ownerReferences": owner}}),
        json!({"metadata": {"finalizers": ["example.com/stays"]}}),
        json!({"metadata": {"labels": {"node-restriction.kubernetes.io/trusted": "yes"}}}),
        json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}}),
        json!({"metadata": {"name": "write-2"}}),
    ] {
        node.refused(
            "registering",
            "POST",
            "/api/v1/nodes",
            JSON,
            &registered(extra),
        );
    }
    node.make("/api/v1/nodes", &registered(json!({})));
    let path = "/api/v1/nodes/write-1";
    let cordon =
        json!({"spec": {"unschedulable": true}, "metadata": {"finalizers": ["example.com/kept"]}});
    assert_eq!(admin.send("PATCH", path, MERGE, Some(&cordon)).0, 200);
    for (what, patch) in [
        ("owners", json!({"metadata": {"ownerReferences": owner}})),
        ("finalizers", json!({"metadata": {"finalizers": null}})),
        ("taints", json!({"spec": {"taints": []}})),
        ("cordoned", json!({"spec": {"unschedulable": null}})),
        (
            "networks",
            json!({"spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"]}}),
        ),
        (
            "labels",
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        ),
    ] {
        node.refused(what, "PATCH", path, MERGE, &patch);
        // what the status's path does not take is not taken
        node.send("PATCH", &format!("{path}/status"), MERGE, Some(&patch));
    }
    let apply = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "write-1", "ownerReferences": owner}});
    let by_apply = format!("{path}?fieldManager=x&force=true");
    node.refused("owners by apply", "PATCH", &by_apply, APPLY, &apply);
    node.refused("itself", "DELETE", path, JSON, &Value::Null);
    let held = admin.get(path).1;
    let (metadata, spec) = (&held["metadata"], &held["spec"]);
    assert_eq!(
        metadata["finalizers"],
        json!(["example.com/kept"]),
        "{held}"
    );
    assert!(metadata["ownerReferences"].is_null(), "{held}");
    assert!(metadata["labels"]["node-role.kubernetes.io/control-plane"].is_null());
    assert!(
        spec["unschedulable"] == true && spec["podCIDR"] != "10.0.1.0/24",
        "{held}"
    );
    assert!(
        spec["taints"].to_string().contains("example.com/kept"),
        "{held}"
    );
    let labels = json!({"metadata": {"labels": {"kubernetes.io/hostname": "write-1"}}});
    assert_eq!(node.send("PATCH", path, MERGE, Some(&labels)).0, 200);
    node.refused(
        "another node",
        "PATCH",
        "/api/v1/nodes/node-1",
        MERGE,
        &labels,
    );

    let uid = admin.get(path).1["metadata"]["uid"].clone();
    let pods = "/api/v1/namespaces/default/pods";
    let mirror = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "mirror", "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "write-1", "uid": uid, "controller": true}],
        },
        "spec": {"nodeName": "write-1", "containers": [{"name": "c", "image": "i"}]},
    });
    let with = |pointer: &str, value: Value| {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let mut pod = mirror.clone();
        pod.pointer_mut(parent).unwrap()[key] = value;
        pod
    };
    let tokens =
        json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]);
    for (what, pod) in [
        ("no mirror", with("/metadata/annotations", json!({}))),
        ("elsewhere", with("/spec/nodeName", json!("node-1"))),
        (
            "an account",
            with("/spec/serviceAccountName", json!("default")),
        ),
        (
            "a Secret",
            with(
                "/spec/volumes",
                json!([{"name": "v", "secret": {"secretName": "foreign-secret"}}]),
            ),
        ),
        ("a token", with("/spec/volumes", tokens)),
        (
            "another's",
            with("/metadata/ownerReferences", owner.clone()),
        ),
    ] {
        node.refused(what, "POST", pods, JSON, &pod);
    }
    node.make(pods, &mirror);

    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let slice = |name: &str, node: &str| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {
                "driver": "gpu.example.com", "nodeName": node, "devices": [],
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            },
        })
    };
    node.refused(
        "another's slice",
        "POST",
        slices,
        JSON,
        &slice("forged", "node-1"),
    );
    admin.make(slices, &slice("foreign", "node-1"));
    node.refused(
        "another's slice",
        "DELETE",
        &format!("{slices}/foreign"),
        JSON,
        &Value::Null,
    );
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "foreign"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
    });
    admin.make(claims, &claim);
    node.refused(
        "another's claim",
        "GET",
        &format!("{claims}/foreign"),
        JSON,
        &Value::Null,
    );
}

/// Roles and bindings that give more than their writer holds, however they are written.
fn nobody_grants_more_than_he_has(c: &Cluster, ca: &Ca, admin: &mut Connection) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let group = "rbac.authorization.k8s.io";
    let role = |name: &str, resources: &[&str]| {
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": name},
            "rules": [{"apiGroups": [group, ""], "resources": resources, "verbs": ["*"]}],
        })
    };
    let binding = |name: &str, kind: &str, role: &str| {
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "eve"}],
        })
    };
    let (roles, bindings) = (
        format!("{rbac}/namespaces/default/roles"),
        format!("{rbac}/namespaces/default/rolebindings"),
    );
    // all verbs but escalate and bind are left when they are not for these resources
    let mut writer = role("writer", &["roles", "rolebindings"]);
    writer["rules"][0]["verbs"] = json!(["get", "create", "update", "patch"]);
    admin.make(&roles, &writer);
    admin.make(&bindings, &binding("writer", "Role", "writer"));
    let mut eve = Connection::to(
        c,
        &ca.client(&[(DnType::CommonName, "eve")], Duration::from_secs(3600)),
    );
    let more = role("more", &["secrets"]);
    eve.refused("a role", "POST", &roles, JSON, &more);
    let path = |list: &str, name: &str| format!("{list}/{name}?fieldManager=eve&force=true");
    eve.refused(
        "a role by apply",
        "PATCH",
        &path(&roles, "more"),
        APPLY,
        &more,
    );
    let all = binding("all", "ClusterRole", "cluster-admin");
    eve.refused("a binding", "POST", &bindings, JSON, &all);
    eve.refused(
        "a binding by apply",
        "PATCH",
        &path(&bindings, "all"),
        APPLY,
        &all,
    );
    let widened = role("writer", &["secrets"]);
    eve.refused(
        "a wider role",
        "PATCH",
        &path(&roles, "writer"),
        APPLY,
        &widened,
    );
    eve.refused(
        "a wider role",
        "PATCH",
        &format!("{roles}/writer"),
        MERGE,
        &widened,
    );
}

fn node_address(admin: &mut Connection) -> String {
    let node = admin.get("/api/v1/nodes/node-1").1;
    let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    format!("127.0.0.1:{port}")
}

/// A server that answers at a node's address is not the node, and the node's own listens where the API does.
fn the_nodes_server_is_known_by_its_certificate(c: &Cluster, admin: &mut Connection) {
    let (code, answer) = admin.get("/api/v1/nodes/node-1/proxy/healthz");
    assert_eq!((code, &answer), (200, &json!("ok")), "the node itself");
    let port = node_address(admin)
        .rsplit(':')
        .next()
        .unwrap()
        .parse::<u16>()
        .unwrap();
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", c.pid())).unwrap();
    let listening = |address: &str| {
        let wanted = format!("{address}:{port:04X}");
        let mut sockets = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        sockets.any(|fields| fields.get(1) == Some(&&*wanted) && fields.get(3) == Some(&"0A"))
    };
    assert!(listening("0100007F") && !listening("00000000"), "{table}");

    let (impostor, heard) = impostor();
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "impostor"}});
    admin.make("/api/v1/nodes", &object);
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": impostor.ip()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": impostor.port()}},
    }});
    admin.send(
        "PATCH",
        "/api/v1/nodes/impostor/status",
        MERGE,
        Some(&status),
    );
    let (code, answer) = admin.get("/api/v1/nodes/impostor/proxy/pods");
    assert!(code >= 400, "{answer}");
    assert_eq!(
        heard.load(Ordering::SeqCst),
        0,
        "the impostor was asked: {answer}"
    );
}

fn tokens_end_with_their_pod(c: &Cluster, admin: &mut Connection) {
    let pods = "/api/v1/namespaces/default/pods";
    let made = admin.make(pods, &pod("short-lived", "ask-1"));
    let tokens = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = admin.make(tokens, &bound_token(&made, &json!([])));
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    let mut holder = Connection::to(c, &Identity::Token(token));
    let account = "system:serviceaccount:default:default";
    assert_eq!(holder.whoami().as_deref(), Some(account));
    let now = json!({"gracePeriodSeconds": 0});
    let path = format!("{pods}/short-lived");
    assert_eq!(admin.send("DELETE", &path, JSON, Some(&now)).0, 200);
    assert_eq!(holder.whoami(), None, "the pod is gone");
    // one of the same name is another
    admin.make(pods, &pod("short-lived", "ask-1"));
    assert_eq!(holder.whoami(), None, "the pod is another");
}

/// On a connection that was made when the authority was still believed.
fn an_authority_that_is_replaced_is_not_believed(c: &Cluster, other: &Ca, file: &Path) {
    let identity = other.client(&[(DnType::CommonName, "guest")], Duration::from_secs(3600));
    let mut guest = Connection::to(c, &identity);
    assert_eq!(guest.whoami().as_deref(), Some("guest"));
    std::fs::write(file, Ca::made("next").pem).unwrap();
    eventually("the authority is gone", SOON, || guest.whoami().is_none());
    let (code, _) = guest.get("/version");
    assert_eq!(
        code,
        StatusCode::UNAUTHORIZED,
        "the connection is still the same"
    );
}
