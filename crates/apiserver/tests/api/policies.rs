//! Item 176: ValidatingAdmissionPolicy and MutatingAdmissionPolicy.

use serde_json::{Value, json};

use crate::cluster::*;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

fn rules(group: &str, resource: &str) -> Value {
    json!({ "resourceRules": [{
        "apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": [resource],
    }]})
}

fn policy(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    })
}

impl Cluster {
    async fn validating(&self, name: &str, spec: &Value) {
        let body = policy("ValidatingAdmissionPolicy", name, spec);
        let url = format!("{GROUP}/validatingadmissionpolicies");
        self.post(&url, &body).await.ok(201);
    }

    async fn bind(&self, name: &str, policy_name: &str, mut spec: Value) {
        spec["policyName"] = json!(policy_name);
        let body = policy("ValidatingAdmissionPolicyBinding", name, &spec);
        let url = format!("{GROUP}/validatingadmissionpolicybindings");
        self.post(&url, &body).await.ok(201);
    }

    async fn mutating(&self, name: &str, spec: &Value) {
        let body = policy("MutatingAdmissionPolicy", name, spec);
        let url = format!("{GROUP}/mutatingadmissionpolicies");
        self.post(&url, &body).await.ok(201);
        let binding = policy(
            "MutatingAdmissionPolicyBinding",
            name,
            &json!({"policyName": name}),
        );
        let url = format!("{GROUP}/mutatingadmissionpolicybindings");
        self.post(&url, &binding).await.ok(201);
    }
}

#[tokio::test]
async fn item_176_validations_deny_with_their_text_and_reason() {
    let c = Cluster::new().await;
    let spec = json!({
        "matchConstraints": rules("apps", "deployments"),
        "variables": [{"name": "most", "expression": "2"}],
        "validations": [
            {"expression": "object.spec.replicas <= variables.most",
             "messageExpression": "'at most ' + string(variables.most) + ' replicas'"},
            {"expression": "!has(object.metadata.labels) || !('bad' in object.metadata.labels)",
             "message": "no bad labels", "reason": "Forbidden"},
            {"expression": "request.userInfo.username != 'nobody' && namespaceObject.metadata.name == 'default'"},
            {"expression": "authorizer.group('apps').resource('deployments').namespace('default').check('create').allowed()"},
        ],
    });
    c.validating("replicas.example.com", &spec).await;
    let mut many = deployment("web");
    many["spec"]["replicas"] = json!(5);
    // a policy without a binding does nothing
    c.post(DEPLOYMENTS, &many).await.ok(201);
    c.bind(
        "everywhere",
        "replicas.example.com",
        json!({"validationActions": ["Deny"]}),
    )
    .await;
    many["metadata"]["name"] = json!("more");
    let status = c.post(DEPLOYMENTS, &many).await.error(422, "Invalid");
    assert_eq!(
        status["message"],
        "deployments.apps \"more\" is forbidden: ValidatingAdmissionPolicy 'replicas.example.com' \
         with binding 'everywhere' denied request: at most 2 replicas"
    );
    many["spec"]["replicas"] = json!(2);
    many["metadata"]["labels"] = json!({"bad": "x"});
    let status = c.post(DEPLOYMENTS, &many).await.error(403, "Forbidden");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .ends_with("denied request: no bad labels")
    );
    many["metadata"]["labels"] = json!({});
    c.post(DEPLOYMENTS, &many).await.ok(201);
}

#[tokio::test]
async fn item_176_warn_conditions_and_failures() {
    let c = Cluster::new().await;
    let spec = json!({
        "matchConstraints": rules("", "configmaps"),
        "matchConditions": [{"name": "marked", "expression": "object.metadata.name.startsWith('x')"}],
        "validations": [{"expression": "object.data.a == '1'"}],
    });
    c.validating("data", &spec).await;
    c.bind(
        "warn",
        "data",
        json!({"validationActions": ["Warn", "Audit"]}),
    )
    .await;
    let answer = c
        .post(CONFIG_MAPS, &config_map("x", &json!({"a": "2"})))
        .await;
    assert_eq!(
        answer.warnings(),
        [
            "299 - \"Validation failed for ValidatingAdmissionPolicy 'data' with binding 'warn': failed expression: object.data.a == '1'\""
        ]
    );
    answer.ok(201);
    c.bind("deny", "data", json!({"validationActions": ["Deny"]}))
        .await;
    // conditions that do not hold leave the request alone
    c.post(CONFIG_MAPS, &config_map("y", &json!({})))
        .await
        .ok(201);
    let status = c
        .post(CONFIG_MAPS, &config_map("x2", &json!({"b": "1"})))
        .await
        .error(422, "Invalid");
    assert_eq!(
        status["message"],
        "configmaps \"x2\" is forbidden: ValidatingAdmissionPolicy 'data' with binding 'deny' \
         denied request: expression 'object.data.a == '1'' resulted in error: no such key: a"
    );
    let url = format!("{GROUP}/validatingadmissionpolicies/data");
    let ignore = json!({"spec": {"failurePolicy": "Ignore"}});
    c.patch(&url, "merge", &ignore).await.ok(200);
    c.post(CONFIG_MAPS, &config_map("x2", &json!({"b": "1"})))
        .await
        .ok(201);
}

#[tokio::test]
async fn item_176_parameters() {
    let c = Cluster::new().await;
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": rules("apps", "deployments"),
        "validations": [{"expression": "object.spec.replicas <= int(params.data.most)",
                         "messageExpression": "'most is ' + params.data.most"}],
    });
    c.validating("limit", &spec).await;
    let reference = |action: &str| {
        json!({"validationActions": ["Deny"],
               "paramRef": {"name": "limits", "parameterNotFoundAction": action}})
    };
    c.bind("named", "limit", reference("Deny")).await;
    let mut body = deployment("web");
    body["spec"]["replicas"] = json!(3);
    let status = c.post(DEPLOYMENTS, &body).await.error(422, "Invalid");
    assert!(status["message"].as_str().unwrap().ends_with(
        "denied request: failed to configure binding: no params found for policy binding with \
         `Deny` parameterNotFoundAction"
    ));
    c.config_map("limits", &json!({"most": "2"})).await;
    let status = c.post(DEPLOYMENTS, &body).await.error(422, "Invalid");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .ends_with("denied request: most is 2")
    );
    c.patch(
        &format!("{CONFIG_MAPS}/limits"),
        "merge",
        &json!({"data": {"most": "3"}}),
    )
    .await
    .ok(200);
    c.post(DEPLOYMENTS, &body).await.ok(201);
}

#[tokio::test]
async fn item_176_expressions_must_compile() {
    let c = Cluster::new().await;
    let url = format!("{GROUP}/validatingadmissionpolicies");
    let spec = json!({
        "matchConstraints": rules("", "pods"),
        "validations": [
            {"expression": "objct.x == 1"}, {"expression": "1 + 1"}, {"expression": "params.x"},
            {"expression": "request.nope == ''", "messageExpression": "1"},
        ],
    });
    let body = policy("ValidatingAdmissionPolicy", "wrong", &spec);
    let status = c.post(&url, &body).await.error(422, "Invalid");
    let causes = status["details"]["causes"].as_array().unwrap();
    let found: Vec<(&str, &str)> = causes
        .iter()
        .map(|cause| {
            (
                cause["field"].as_str().unwrap(),
                cause["message"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(found.len(), 5, "{found:?}");
    assert_eq!(
        found[0],
        (
            "spec.validations[0].expression",
            "Invalid value: \"objct.x == 1\": compilation failed: ERROR: <input>:1:1: undeclared \
             reference to 'objct' (in container '')\n | objct.x == 1\n | ^"
        )
    );
    assert!(found[1].1.ends_with("must evaluate to bool"));
    assert!(found[2].1.contains("undeclared reference to 'params'"));
    assert!(found[3].1.contains("undefined field 'nope'"));
    assert_eq!(found[4].0, "spec.validations[3].messageExpression");
    let url = format!("{GROUP}/validatingadmissionpolicybindings");
    let body = policy(
        "ValidatingAdmissionPolicyBinding",
        "wrong",
        &json!({"policyName": "x", "validationActions": ["Deny", "Warn"]}),
    );
    c.post(&url, &body).await.error(422, "Invalid");
}

#[tokio::test]
async fn item_176_mutations_apply_and_patch() {
    let c = Cluster::new().await;
    c.service_account().await;
    let spec = json!({
        "matchConstraints": rules("", "pods"),
        "reinvocationPolicy": "IfNeeded",
        "matchConditions": [{"name": "no-sidecar",
            "expression": "!object.spec.containers.exists(c, c.name == 'side')"}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression":
            "Object{spec: Object.spec{containers: [Object.spec.containers{name: 'side', image: 'proxy'}]}}"}}],
    });
    c.mutating("a-sidecar", &spec).await;
    let spec = json!({
        "matchConstraints": rules("", "pods"),
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
            "[JSONPatch{op: 'add', path: '/metadata/labels', value: {}}, \
              JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('example.com/n'), \
                        value: string(size(object.spec.containers))}]"}}],
    });
    c.mutating("b-labels", &spec).await;
    let made = c.pod("p").await;
    let names: Vec<&str> = made["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| container["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.contains(&"side"));
    assert_eq!(made["metadata"]["labels"], json!({"example.com/n": "2"}));
    // a mutation that fails refuses the request
    let spec = json!({
        "matchConstraints": rules("", "configmaps"),
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
            "[JSONPatch{op: 'remove', path: '/data/none'}]"}}],
    });
    c.mutating("c-broken", &spec).await;
    let status = c
        .post(CONFIG_MAPS, &config_map("x", &json!({})))
        .await
        .error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "configmaps \"x\" is forbidden: policy 'c-broken' with binding 'c-broken' denied request: "
        ),
        "{message}"
    );
}
