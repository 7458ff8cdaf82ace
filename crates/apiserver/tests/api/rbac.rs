//! Role-based access control, escalation checks, nodes.

use std::time::Duration;

use davit_access::UserInfo;
use davit_access::authz::{Authorization, Mode};
use serde_json::{Value, json};

use crate::cluster::*;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn cluster() -> Cluster {
    Cluster::with(|options| {
        let modes = vec![Mode::Node, Mode::Rbac];
        options.authorization = Authorization::Modes(modes);
    })
    .await
}

async fn as_user(c: &Cluster, user: &UserInfo, method: &str, url: &str, body: &Value) -> Answer {
    let headers = [("content-type", "application/json")];
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    whole(c.send_as(user, method, url, &headers, body).await).await
}

async fn get_as(c: &Cluster, user: &UserInfo, url: &str) -> Answer {
    as_user(c, user, "GET", url, &Value::Null).await
}

async fn cluster_role(c: &Cluster, name: &str, rules: Value) {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    c.post(&format!("{RBAC}/clusterroles"), &role).await.ok(201);
}

async fn bind(c: &Cluster, namespace: &str, role: &str, user: &str) {
    let binding = json!({
        "metadata": {"name": format!("{role}-{user}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let url = match namespace {
        "" => format!("{RBAC}/clusterrolebindings"),
        namespace => format!("{RBAC}/namespaces/{namespace}/rolebindings"),
    };
    c.post(&url, &binding).await.ok(201);
}

/// Browsers open WebSockets by GET: that may not get around the right to start something.
#[tokio::test]
async fn item_129_a_shell_by_get_needs_the_right_to_create_one() {
    let c = cluster().await;
    c.service_account().await;
    c.post(PODS, &pod("p")).await.ok(201);
    let rule =
        |verbs: Value| json!([{"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}]);
    cluster_role(&c, "looks", rule(json!(["get"]))).await;
    cluster_role(&c, "opens", rule(json!(["get", "create"]))).await;
    bind(&c, "default", "looks", "bob").await;
    bind(&c, "default", "opens", "eve").await;
    let url = format!("{PODS}/p/exec?command=ls&stdout=true");
    let status = get_as(&c, &UserInfo::new("bob", &[]), &url)
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"p\" is forbidden: User \"bob\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"default\""
    );
    let status = get_as(&c, &UserInfo::new("eve", &[]), &url)
        .await
        .error(400, "BadRequest");
    assert_eq!(status["message"], "pod p does not have a host assigned");
}

#[tokio::test]
async fn item_188_bindings_allow_and_the_refusal_names_all() {
    let c = cluster().await;
    let bob = UserInfo::new("bob", &[]);
    let status = get_as(&c, &bob, PODS).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods is forbidden: User \"bob\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    cluster_role(
        &c,
        "reader",
        json!([
            {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]},
        ]),
    )
    .await;
    bind(&c, "default", "reader", "bob").await;
    get_as(&c, &bob, PODS).await.ok(200);
    get_as(&c, &bob, "/api/v1/pods")
        .await
        .error(403, "Forbidden");
    let secrets = "/api/v1/namespaces/default/secrets";
    get_as(&c, &bob, &format!("{secrets}/a"))
        .await
        .error(404, "NotFound");
    get_as(&c, &bob, &format!("{secrets}/b"))
        .await
        .error(403, "Forbidden");
    get_as(&c, &bob, &format!("{PODS}/p/log"))
        .await
        .error(403, "Forbidden");
    // taken away at once
    let url = format!("{RBAC}/namespaces/default/rolebindings/reader-bob");
    c.delete(&url, &Value::Null).await.ok(200);
    get_as(&c, &bob, PODS).await.error(403, "Forbidden");
}

#[tokio::test]
async fn item_188_paths_are_granted_to_all_as_the_bootstrap_roles_say() {
    let c = cluster().await;
    let (bob, nobody) = (UserInfo::new("bob", &[]), UserInfo::anonymous());
    // a server is healthy a moment after it answers, when it knows who else serves
    let healthy = async {
        while get_as(&c, &bob, "/healthz").await.code != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), healthy)
        .await
        .unwrap();
    for (user, path, code) in [
        (&nobody, "/version", 200),
        (&nobody, "/healthz", 200),
        (&nobody, "/apis", 403),
        (&bob, "/apis", 200),
        (&bob, "/openapi/v2", 200),
        (&bob, "/metrics", 403),
    ] {
        assert_eq!(get_as(&c, user, path).await.code, code, "{path}");
    }
}

#[tokio::test]
async fn item_189_nobody_grants_what_they_do_not_hold() {
    let c = cluster().await;
    let bob = UserInfo::new("bob", &[]);
    let rules = json!([
        {"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"]},
    ]);
    cluster_role(
        &c,
        "granter",
        json!([{
            "verbs": ["create", "update", "get"], "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["roles", "rolebindings"],
        }]),
    )
    .await;
    bind(&c, "default", "granter", "bob").await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    let wanted = json!({"metadata": {"name": "r"}, "rules": [
        {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]},
    ]});
    let status = as_user(&c, &bob, "POST", &roles, &wanted)
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"bob\" (groups=[\"system:authenticated\"]) \
         is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\" \"list\"]}"
    );
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:heapster"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
    });
    as_user(&c, &bob, "POST", &bindings, &binding)
        .await
        .error(403, "Forbidden");
    let mut missing = binding.clone();
    missing["roleRef"]["name"] = json!("gone");
    as_user(&c, &bob, "POST", &bindings, &missing)
        .await
        .error(404, "NotFound");
    // with the verbs bind and escalate, or holding the rules, it is allowed
    cluster_role(
        &c,
        "binder",
        json!([{
            "verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["clusterroles"], "resourceNames": ["system:heapster"],
        }]),
    )
    .await;
    bind(&c, "default", "binder", "bob").await;
    as_user(&c, &bob, "POST", &bindings, &binding).await.ok(201);
    cluster_role(&c, "podreader", wanted["rules"].clone()).await;
    bind(&c, "default", "podreader", "bob").await;
    as_user(&c, &bob, "POST", &roles, &wanted).await.ok(201);
    cluster_role(&c, "escalator", rules).await;
    bind(&c, "default", "escalator", "bob").await;
    let all = json!({"metadata": {"name": "all"}, "rules": [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    ]});
    as_user(&c, &bob, "POST", &roles, &all).await.ok(201);
}

#[tokio::test]
async fn item_190_bootstrap_roles_come_back_at_the_next_start() {
    let c = cluster().await;
    let url = format!("{RBAC}/clusterroles/system:basic-user");
    let role = c.get(&url).await.ok(200);
    assert_eq!(
        role["metadata"]["labels"]["kubernetes.io/bootstrapping"],
        "rbac-defaults"
    );
    assert_eq!(
        role["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"],
        "true"
    );
    let admin = c.get(&format!("{RBAC}/clusterroles/admin")).await.ok(200);
    assert!(admin["aggregationRule"].is_object());
    let patch = json!({"rules": []});
    c.patch(&url, "merge", &patch).await.ok(200);
    let modes = vec![Mode::Rbac];
    let mut options = davit_apiserver::Options::new(c.store());
    options.authorization = Authorization::Modes(modes);
    let second = davit_apiserver::ApiServer::new(options).await.unwrap();
    assert!(second.is_ready());
    let again = c.get(&url).await.ok(200);
    // one for each of the three resources
    assert_eq!(again["rules"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn item_187_rules_are_listed_with_reasons() {
    let c = cluster().await;
    cluster_role(
        &c,
        "reader",
        json!([
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
        ]),
    )
    .await;
    bind(&c, "default", "reader", "bob").await;
    let bob = UserInfo::new("bob", &[]);
    let review = json!({"spec": {"namespace": "default"}});
    let url = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let status = as_user(&c, &bob, "POST", url, &review).await.ok(201);
    let rules = status["status"]["resourceRules"].as_array().unwrap();
    assert!(rules.contains(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]})));
    assert_eq!(status["status"]["incomplete"], false);
    let review = json!({"spec": {"user": "bob", "resourceAttributes": {
        "namespace": "default", "verb": "get", "resource": "pods",
    }}});
    let url = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let status = c.post(url, &review).await.ok(201);
    assert_eq!(
        status["status"],
        json!({
            "allowed": true,
            "reason": "RBAC: allowed by RoleBinding \"reader-bob/default\" of ClusterRole \"reader\" to User \"bob\"",
        })
    );
}

#[tokio::test]
async fn constrained_impersonation_needs_the_identity_and_the_action() {
    let c = cluster().await;
    let bob = UserInfo::new("bob", &[]);
    let list = async |as_whom: &str, url: &str| {
        let headers = [("impersonate-user", as_whom)];
        whole(c.send_as(&bob, "GET", url, &headers, "").await).await
    };
    cluster_role(
        &c,
        "reader",
        json!([
            {"verbs": ["list"], "apiGroups": [""], "resources": ["pods", "configmaps"]},
        ]),
    )
    .await;
    bind(&c, "", "reader", "alice").await;
    cluster_role(
        &c,
        "be-alice",
        json!([
            {"verbs": ["impersonate:user-info"], "apiGroups": ["authentication.k8s.io"],
                "resources": ["users"], "resourceNames": ["alice"]},
        ]),
    )
    .await;
    bind(&c, "", "be-alice", "bob").await;
    list("alice", PODS).await.error(403, "Forbidden");
    cluster_role(
        &c,
        "pods-as-others",
        json!([
            {"verbs": ["impersonate-on:user-info:list"], "apiGroups": [""], "resources": ["pods"]},
        ]),
    )
    .await;
    bind(&c, "default", "pods-as-others", "bob").await;
    list("alice", PODS).await.ok(200);
    // not what was not granted, not elsewhere, not as somebody else, and not as himself
    list("alice", CONFIG_MAPS).await.error(403, "Forbidden");
    list("alice", "/api/v1/pods").await.error(403, "Forbidden");
    let status = list("carol", PODS).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "users.authentication.k8s.io \"carol\" is forbidden: User \"bob\" cannot impersonate:user-info resource \"users\" in API group \"authentication.k8s.io\" at the cluster scope"
    );
    get_as(&c, &bob, PODS).await.error(403, "Forbidden");
}

#[tokio::test]
async fn item_193_impersonation_is_authorized_part_by_part() {
    let c = cluster().await;
    let bob = UserInfo::new("bob", &[]);
    let url = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ask = async |headers: &[(&str, &str)]| {
        let mut all = vec![("content-type", "application/json")];
        all.extend(headers);
        whole(c.send_as(&bob, "POST", url, &all, "{}").await).await
    };
    let headers = [("impersonate-user", "alice"), ("impersonate-group", "g")];
    ask(&headers).await.error(403, "Forbidden");
    cluster_role(&c, "impersonator", json!([
        {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["alice"]},
        {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["uids", "userextras/scopes"]},
    ]))
    .await;
    bind(&c, "", "impersonator", "bob").await;
    let status = ask(&headers).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "selfsubjectreviews.authentication.k8s.io is forbidden: User \"bob\" cannot impersonate-on:user-info:create resource \"selfsubjectreviews\" in API group \"authentication.k8s.io\" at the cluster scope"
    );
    let headers = [
        ("impersonate-user", "alice"),
        ("impersonate-uid", "u-1"),
        ("impersonate-extra-scopes", "view"),
    ];
    let status = ask(&headers).await.ok(201);
    assert_eq!(
        status["status"]["userInfo"],
        json!({
            "username": "alice", "uid": "u-1", "groups": ["system:authenticated"],
            "extra": {"scopes": ["view"]},
        })
    );
    ask(&[("impersonate-user", "carol")])
        .await
        .error(403, "Forbidden");
}

async fn bound_pod(c: &Cluster, name: &str, node: &str, secret: &str) {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = json!(node);
    pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": secret}}]);
    c.post(PODS, &pod).await.ok(201);
}

#[tokio::test]
async fn item_191_nodes_see_what_their_pods_use() {
    let c = cluster().await;
    c.service_account().await;
    bound_pod(&c, "p", "n1", "mine").await;
    bound_pod(&c, "q", "n2", "theirs").await;
    let node = UserInfo::new("system:node:n1", &["system:nodes"]);
    let secrets = "/api/v1/namespaces/default/secrets";
    get_as(&c, &node, &format!("{secrets}/mine"))
        .await
        .error(404, "NotFound");
    let status = get_as(&c, &node, &format!("{secrets}/theirs"))
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "secrets \"theirs\" is forbidden: User \"system:node:n1\" cannot get resource \"secrets\" in API group \"\" \
         in the namespace \"default\": no relationship found between node 'n1' and this object"
    );
    get_as(&c, &node, secrets).await.error(403, "Forbidden");
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    get_as(&c, &node, slices).await.error(403, "Forbidden");
    get_as(
        &c,
        &node,
        &format!("{slices}?fieldSelector=spec.nodeName%3Dn1"),
    )
    .await
    .ok(200);
    get_as(
        &c,
        &node,
        &format!("{slices}?fieldSelector=spec.nodeName%3Dn2"),
    )
    .await
    .error(403, "Forbidden");
    get_as(&c, &node, "/api/v1/pods")
        .await
        .error(403, "Forbidden");
    get_as(&c, &node, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await
        .ok(200);
    get_as(&c, &node, "/api/v1/nodes")
        .await
        .error(403, "Forbidden");
    // the pod goes, and what it led to with it
    let options = json!({"gracePeriodSeconds": 0});
    c.delete(&format!("{PODS}/p"), &options).await.ok(200);
    get_as(&c, &node, &format!("{secrets}/mine"))
        .await
        .error(403, "Forbidden");
}

#[tokio::test]
async fn item_191_nodes_write_only_what_is_theirs() {
    let c = cluster().await;
    c.service_account().await;
    let node = UserInfo::new("system:node:n1", &["system:nodes"]);
    let nodes = "/api/v1/nodes";
    let own = json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}}});
    as_user(&c, &node, "POST", nodes, &own).await.ok(201);
    let other = json!({"metadata": {"name": "n2"}});
    let status = as_user(&c, &node, "POST", nodes, &other)
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\""
    );
    let patch = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}});
    let headers = [("content-type", "application/merge-patch+json")];
    let url = format!("{nodes}/n1");
    let answer = whole(
        c.send_as(&node, "PATCH", &url, &headers, patch.to_string())
            .await,
    )
    .await;
    let status = answer.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "nodes \"n1\" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/a"
    );
    as_user(&c, &node, "POST", PODS, &pod("p"))
        .await
        .error(403, "Forbidden");
    // tokens: of service accounts of its pods, bound to them
    bound_pod(&c, "q", "n1", "s").await;
    let made = c.get(&format!("{PODS}/q")).await.ok(200);
    let url = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let unbound = json!({"spec": {}});
    let status = as_user(&c, &node, "POST", url, &unbound)
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "serviceaccounts \"default\" is forbidden: node requested token not bound to a pod"
    );
    let bound = json!({"spec": {"boundObjectRef": {
        "apiVersion": "v1", "kind": "Pod", "name": "q", "uid": made["metadata"]["uid"],
    }}});
    as_user(&c, &node, "POST", url, &bound).await.ok(201);
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let slice = |node: &str| {
        json!({
            "metadata": {"name": format!("s-{node}")},
            "spec": {"driver": "d.example.com", "nodeName": node, "devices": [],
                     "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}},
        })
    };
    as_user(&c, &node, "POST", slices, &slice("n2"))
        .await
        .error(403, "Forbidden");
    as_user(&c, &node, "POST", slices, &slice("n1"))
        .await
        .ok(201);
    let url = format!("{slices}/s-n1");
    as_user(&c, &node, "DELETE", &url, &Value::Null)
        .await
        .ok(200);
}

#[tokio::test]
async fn items_33_34_the_status_of_a_claim_is_written_part_by_part() {
    let c = cluster().await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let spec =
        json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "k"}}]}});
    let claim = c
        .post(claims, &json!({"metadata": {"name": "c"}, "spec": spec}))
        .await
        .ok(201);
    let url = format!("{claims}/c/status");
    let rule = |resource: &str, verbs: &[&str], names: &[&str]| json!({"verbs": verbs, "apiGroups": ["resource.k8s.io"], "resources": [resource], "resourceNames": names});
    let status = rule("resourceclaims/status", &["update", "patch"], &[]);
    cluster_role(&c, "status", json!([status])).await;
    let binding = rule("resourceclaims/binding", &["update"], &[]);
    cluster_role(&c, "binding", json!([binding])).await;
    let local = ["associated-node:update"];
    let driver = rule("resourceclaims/driver", &local, &["d.example"]);
    cluster_role(&c, "driver", json!([driver])).await;

    let mut allocated = claim;
    allocated["status"] = json!({"allocation": {
        "devices": {"results": [{"request": "r", "driver": "d.example", "pool": "p", "device": "0"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["n-1"]}]}]}}});
    let allocator = UserInfo::new("allocator", &[]);
    bind(&c, "", "status", "allocator").await;
    let refused = as_user(&c, &allocator, "PUT", &url, &allocated).await;
    let refused = refused.error(422, "Invalid");
    let text = refused["message"].as_str().unwrap();
    assert!(
        text.contains("changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\""),
        "{text}"
    );
    bind(&c, "", "binding", "allocator").await;
    let mut told = as_user(&c, &allocator, "PUT", &url, &allocated)
        .await
        .ok(200);

    let name = "system:serviceaccount:default:d";
    bind(&c, "", "status", name).await;
    bind(&c, "", "driver", name).await;
    let on = |node: &str| {
        let mut user = UserInfo::new(name, &[]);
        let key = "authentication.kubernetes.io/node-name";
        user.extra.insert(key.to_owned(), vec![node.to_owned()]);
        user
    };
    told["status"]["devices"] =
        json!([{"driver": "d.example", "pool": "p", "device": "0", "data": {"a": 1}}]);
    let refused = as_user(&c, &on("n-2"), "PUT", &url, &told).await;
    let refused = refused.error(422, "Invalid");
    let text = refused["message"].as_str().unwrap();
    assert!(text.contains("status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\""), "{text}");
    as_user(&c, &on("n-1"), "PUT", &url, &told).await.ok(200);
}

/// A policy of somebody else's, bound to a Secret, would tell its value in whatever message it is given.
#[tokio::test]
async fn who_changes_what_a_policy_says_reads_its_parameters() {
    let c = cluster().await;
    let rules = json!([
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["get", "update"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
    ]);
    cluster_role(&c, "policies", rules).await;
    bind(&c, "", "policies", "writer").await;
    let writer = UserInfo::new("writer", &[]);
    let group = "/apis/admissionregistration.k8s.io/v1";
    for (plural, kind) in [
        ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        ("mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
    ] {
        for (name, read) in [("Secret", false), ("ConfigMap", true)] {
            let mut policy = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": {"name": name.to_lowercase()},
                "spec": {
                    "paramKind": {"apiVersion": "v1", "kind": name},
                    "matchConstraints": {"resourceRules": [{
                        "apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"]}]},
                },
            });
            if kind.starts_with("Validating") {
                policy["spec"]["validations"] = json!([{"expression": "true"}]);
            } else {
                policy["spec"]["reinvocationPolicy"] = json!("Never");
                policy["spec"]["mutations"] = json!([
                    {"patchType": "JSONPatch", "jsonPatch": {
                        "expression": "[JSONPatch{op: 'add', path: '/metadata/labels/a', value: 'b'}]"}}]);
            }
            let url = format!("{group}/{plural}");
            let mut made = c.post(&url, &policy).await.ok(201);
            let url = format!("{url}/{}", name.to_lowercase());
            made["metadata"]["labels"] = json!({"a": "b"});
            let mut labelled = as_user(&c, &writer, "PUT", &url, &made).await.ok(200);
            labelled["spec"]["variables"] =
                json!([{"name": "told", "expression": "string(params)"}]);
            let changed = as_user(&c, &writer, "PUT", &url, &labelled).await;
            if read {
                changed.ok(200);
            } else {
                let text = changed.error(422, "Invalid").to_string();
                assert!(text.contains("paramKind"), "{text}");
            }
            // For whom it is told, too.
            let mut binding = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}Binding"),
                "metadata": {"name": name.to_lowercase()},
                "spec": {"policyName": name.to_lowercase(), "paramRef": {
                    "name": "x", "namespace": "default", "parameterNotFoundAction": "Deny"}},
            });
            if kind.starts_with("Validating") {
                binding["spec"]["validationActions"] = json!(["Deny"]);
            }
            let url = format!("{group}/{}bindings", kind.to_lowercase());
            let mut made = c.post(&url, &binding).await.ok(201);
            made["spec"]["matchResources"] =
                json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
            let url = format!("{url}/{}", name.to_lowercase());
            let changed = as_user(&c, &writer, "PUT", &url, &made).await;
            if read {
                changed.ok(200);
            } else {
                let text = changed.error(422, "Invalid").to_string();
                assert!(text.contains("paramRef"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn nodes_see_the_volumes_they_keep_and_say_what_became_of_them() {
    let c = cluster().await;
    let volumes = "/api/v1/persistentvolumes";
    let volume = |name: &str, node: &str| {
        json!({
            "metadata": {"name": name, "labels": {"local.davit.dev/node": node}},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "local": {"path": "/v"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}},
        })
    };
    c.post(volumes, &volume("mine", "n1")).await.ok(201);
    c.post(volumes, &volume("theirs", "n2")).await.ok(201);
    let node = UserInfo::new("system:node:n1", &["system:nodes"]);
    let own = format!("{volumes}?labelSelector=local.davit.dev%2Fnode%3Dn1");
    let list = get_as(&c, &node, &own).await.ok(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    for other in ["", "?labelSelector=local.davit.dev%2Fnode%3Dn2", "/mine"] {
        get_as(&c, &node, &format!("{volumes}{other}"))
            .await
            .error(403, "Forbidden");
    }
    let patch = async |name: &str, patch: Value| {
        let headers = [("content-type", "application/merge-patch+json")];
        let url = format!("{volumes}/{name}");
        whole(
            c.send_as(&node, "PATCH", &url, &headers, patch.to_string())
                .await,
        )
        .await
    };
    let ready = || json!({"metadata": {"annotations": {"local.davit.dev/state": "Ready"}}});
    patch("mine", ready()).await.ok(200);
    let status = patch("theirs", ready()).await.error(403, "Forbidden");
    let told = status["message"].as_str().unwrap();
    let why = "node \"n1\" can only update persistent volumes that it keeps";
    assert!(told.ends_with(why), "{told}");
    for more in [
        json!({"metadata": {"labels": {"local.davit.dev/node": "n2"}}}),
        json!({"metadata": {"finalizers": ["example.com/held"]}}),
        json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
        json!({"spec": {"claimRef": {"namespace": "kube-system", "name": "c"}}}),
    ] {
        patch("mine", more).await.error(403, "Forbidden");
    }
    let options = json!({});
    as_user(&c, &node, "DELETE", &format!("{volumes}/mine"), &options)
        .await
        .error(403, "Forbidden");
    let made = volume("new", "n1");
    as_user(&c, &node, "POST", volumes, &made)
        .await
        .error(403, "Forbidden");
}

/// What a node reads of ConfigMaps beside those of its pods: the one that names stub domains, where it means something.
#[tokio::test]
async fn nodes_list_the_settings_of_dns_in_its_namespace_alone() {
    let c = cluster().await;
    let node = UserInfo::new("system:node:n1", &["system:nodes"]);
    let list = |namespace: &str, selector: &str| {
        format!("/api/v1/namespaces/{namespace}/configmaps{selector}")
    };
    let named = "?fieldSelector=metadata.name%3Dkube-dns";
    get_as(&c, &node, &list("kube-system", named)).await.ok(200);
    for (namespace, selector) in [("default", named), ("kube-system", "")] {
        get_as(&c, &node, &list(namespace, selector))
            .await
            .error(403, "Forbidden");
    }
}
