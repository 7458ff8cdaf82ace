//! Item 195, priority and fairness, the audit log, graceful shutdown.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use davit_access::UserInfo;
use davit_apiserver::{ApiServer, Options};
use davit_audit::{LogOptions, Policy};
use davit_encryption::Encryption;
use davit_flowcontrol::FlowOptions;
use serde_json::{Value, json};

use crate::cluster::*;
use crate::serve::Served;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";

/// Secrets are written with the first key.
pub(crate) fn encryption(keys: &[&str]) -> String {
    use base64::Engine as _;
    let keys: Vec<String> = keys
        .iter()
        .map(|name| {
            let secret = format!("{name:x<32}");
            let secret = base64::engine::general_purpose::STANDARD.encode(secret);
            format!("{{name: {name}, secret: {secret}}}")
        })
        .collect();
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers: [{{aescbc: {{keys: [{}]}}}}, {{identity: {{}}}}]\n",
        keys.join(", ")
    )
}

#[tokio::test]
async fn item_195_secrets_are_unreadable_in_storage() {
    let config = Arc::new(Encryption::parse(&encryption(&["k1"])).unwrap());
    let shared = Arc::clone(&config);
    let c = Cluster::with(move |options| options.encryption = Some(shared)).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    c.post(SECRETS, &secret).await.ok(201);
    let stored = async || {
        let pair = c.store().get("/registry/core/secrets/default/s").await;
        pair.unwrap().unwrap().value
    };
    assert!(stored().await.starts_with(b"k8s:enc:aescbc:v1:k1:"));
    let url = format!("{SECRETS}/s");
    let read = c.get(&url).await.ok(200);
    assert_eq!(read["data"]["password"], "aHVudGVyMg==");
    let list = c.get(SECRETS).await.ok(200);
    assert_eq!(list["items"][0]["data"], read["data"]);
    let mut events = c.watch(&format!("{SECRETS}?watch=1")).await;
    assert_eq!(events.summary().await, ("ADDED".to_owned(), "s".to_owned()));
    // what is not named is stored as it is
    c.config_map("plain", &json!({"a": "b"})).await;
    let pair = c
        .store()
        .get("/registry/core/configmaps/default/plain")
        .await;
    assert!(pair.unwrap().unwrap().value.starts_with(b"{"));
    // rotation: a write that changes nothing brings the new key
    config.reload(&encryption(&["k2", "k1"])).await.unwrap();
    let same = c.get(&url).await.ok(200);
    let again = c.put(&url, &same).await.ok(200);
    assert!(stored().await.starts_with(b"k8s:enc:aescbc:v1:k2:"));
    assert_ne!(rv(&again), rv(&same));
    let unchanged = c.put(&url, &again).await.ok(200);
    assert_eq!(rv(&unchanged), rv(&again));
    // the watcher goes on
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    c.patch(&url, "merge", &patch).await.ok(200);
    for _ in 0..2 {
        assert_eq!(events.summary().await.0, "MODIFIED");
    }
    // without the key nothing is given out
    config.reload(&encryption(&["k3"])).await.unwrap();
    c.get(&url).await.error(500, "InternalError");
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn requests_are_recorded_as_the_policy_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let log = LogOptions::new(&path);
    let c = Cluster::with(move |options| {
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n\
            - {level: None, verbs: [list]}\n\
            - {level: RequestResponse, resources: [{group: \"\", resources: [configmaps]}], omitManagedFields: true}\n\
            - {level: Metadata, omitStages: [RequestReceived]}\n";
        options.audit.policy = Some(Policy::parse(policy).unwrap());
        options.audit.log = Some(log);
    })
    .await;
    let answer = c
        .request(
            "POST",
            CONFIG_MAPS,
            &[("content-type", "application/json"), ("audit-id", "mine")],
            config_map("x", &json!({"a": "b"})).to_string(),
        )
        .await;
    assert_eq!(answer.header("audit-id"), "mine");
    let events = lines(&path);
    let stages: Vec<&str> = events
        .iter()
        .map(|e| e["stage"].as_str().unwrap())
        .collect();
    assert_eq!(stages, ["RequestReceived", "ResponseComplete"]);
    let event = &events[1];
    assert_eq!(event["auditID"], "mine");
    assert_eq!(event["objectRef"]["name"], "x");
    assert_eq!(event["user"]["username"], "tester");
    assert_eq!(event["responseStatus"]["code"], 201);
    assert_eq!(event["requestObject"]["data"], json!({"a": "b"}));
    assert!(event["responseObject"]["metadata"]["uid"].is_string());
    assert!(
        event["responseObject"]["metadata"]
            .get("managedFields")
            .is_none()
    );
    assert_eq!(
        event["annotations"]["authorization.k8s.io/decision"],
        "allow"
    );
    // lists are not recorded, errors of others are
    c.get(CONFIG_MAPS).await.ok(200);
    assert_eq!(lines(&path).len(), 2);
    c.get(&format!("{SECRETS}/none"))
        .await
        .error(404, "NotFound");
    let event = lines(&path).pop().unwrap();
    assert_eq!(event["responseStatus"]["reason"], "NotFound");
    assert_eq!(event["level"], "Metadata");
    assert!(event.get("responseObject").is_none());
    // a watch is recorded when it starts and when it ends
    let watch = c.watch(&format!("{SECRETS}?watch=1")).await;
    assert_eq!(lines(&path).pop().unwrap()["stage"], "ResponseStarted");
    drop(watch);
    assert_eq!(lines(&path).pop().unwrap()["stage"], "ResponseComplete");
    // refusals and impersonation
    let nobody = UserInfo::anonymous();
    whole(
        c.send_as(&nobody, "GET", &format!("{SECRETS}/s"), &[], "")
            .await,
    )
    .await
    .error(403, "Forbidden");
    let event = lines(&path).pop().unwrap();
    assert_eq!(
        event["annotations"]["authorization.k8s.io/decision"],
        "forbid"
    );
    let as_alice = [("impersonate-user", "alice")];
    c.request("GET", &format!("{SECRETS}/none"), &as_alice, "")
        .await;
    let event = lines(&path).pop().unwrap();
    assert_eq!(event["impersonatedUser"]["username"], "alice");
    assert_eq!(event["user"]["username"], "tester");
}

#[tokio::test]
async fn requests_without_a_valid_credential_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let log = LogOptions::new(&path);
    let c = Cluster::new().await;
    let served = Served::with(&c, |options: &mut Options| {
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]";
        options.audit.policy = Some(Policy::parse(policy).unwrap());
        options.audit.log = Some(log);
    })
    .await;
    let (code, _) = served
        .get("/api/v1/pods", &[("authorization", "Bearer wrong")])
        .await;
    assert_eq!(code, 401);
    let event = lines(&path).pop().unwrap();
    assert_eq!(event["responseStatus"]["code"], 401);
    assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]));
    served.stop().await;
}

#[tokio::test]
async fn priority_and_fairness_objects_are_there_and_kept() {
    let c = Cluster::new().await;
    let levels = c.get(LEVELS).await.ok(200);
    assert_eq!(levels["items"].as_array().unwrap().len(), 8);
    let schemas = c.get(SCHEMAS).await.ok(200);
    assert_eq!(schemas["items"].as_array().unwrap().len(), 13);
    for schema in schemas["items"].as_array().unwrap() {
        let condition = &schema["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["status"]),
            (&json!("Dangling"), &json!("False"))
        );
    }
    // a mandatory object comes back, with its own spec
    c.delete(&format!("{SCHEMAS}/catch-all"), &Value::Null)
        .await
        .ok(200);
    let url = format!("{LEVELS}/catch-all");
    let bad = json!({"spec": {"limited": {"nominalConcurrencyShares": 9}}});
    let status = c.patch(&url, "merge", &bad).await.error(422, "Invalid");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("spec of 'catch-all' must equal the fixed value"),
        "{status}"
    );
    // one that refers to nothing is dangling until it does
    let schema = json!({"metadata": {"name": "mine"}, "spec": {
        "matchingPrecedence": 50, "priorityLevelConfiguration": {"name": "later"},
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "bob"}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["configmaps"],
                "namespaces": ["*"]}]}]}});
    c.post(SCHEMAS, &schema).await.ok(201);
    let dangling = async |wanted: &str| {
        for _ in 0..200 {
            let held = c.get(&format!("{SCHEMAS}/mine")).await.ok(200);
            if held["status"]["conditions"][0]["status"] == wanted {
                return held;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the schema is not {wanted}");
    };
    let held = dangling("True").await;
    assert_eq!(
        held["status"]["conditions"][0]["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"later\" but there is no such object"
    );
    let level = json!({"metadata": {"name": "later"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}}}});
    let made = c.post(LEVELS, &level).await.ok(201);
    let schema = dangling("False").await;
    assert_eq!(c.get(&format!("{SCHEMAS}/catch-all")).await.code, 200);
    // the answer tells by whom it was let in
    let bob = UserInfo::new("bob", &[]);
    let answer = whole(c.send_as(&bob, "GET", CONFIG_MAPS, &[], "").await).await;
    assert_eq!(
        answer.header("x-kubernetes-pf-flowschema-uid"),
        schema["metadata"]["uid"]
    );
    assert_eq!(
        answer.header("x-kubernetes-pf-prioritylevel-uid"),
        made["metadata"]["uid"]
    );
    let dump = c
        .get("/debug/api_priority_and_fairness/dump_priority_levels")
        .await;
    assert!(
        dump.text()
            .contains("\nlater, 0, true, false, 0, 0, 1, 0, 0, 0\n"),
        "{}",
        dump.text()
    );
    let metrics = c.get("/metrics").await.text();
    assert!(
        metrics.contains("apiserver_flowcontrol_dispatched_requests_total{priority_level=\"later\",flow_schema=\"mine\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn flow_control_objects_are_validated() {
    let c = Cluster::new().await;
    let level = |limited: Value| json!({"metadata": {"name": "l"}, "spec": {"type": "Limited", "limited": limited}});
    let queue = |hand: u32, queues: u32| {
        level(json!({"limitResponse": {"type": "Queue",
            "queuing": {"handSize": hand, "queues": queues, "queueLengthLimit": 5}}}))
    };
    for (object, wanted) in [
        (
            queue(9, 8),
            "spec.limited.limitResponse.queuing.handSize: Invalid value: 9: should not be greater than queues (8)",
        ),
        (
            queue(8, 512),
            "required entropy bits of deckSize 512 and handSize 8 should not be greater than 60",
        ),
        (
            level(json!({"lendablePercent": 101, "limitResponse": {"type": "Reject"}})),
            "must be between 0 and 100, inclusive",
        ),
        (
            json!({"metadata": {"name": "l"}, "spec": {"type": "Limited"}}),
            "spec.limited: Required value: must not be empty when type is Limited",
        ),
    ] {
        let status = c.post(LEVELS, &object).await.error(422, "Invalid");
        assert!(
            status["message"].as_str().unwrap().contains(wanted),
            "{status}"
        );
    }
    let made = c.post(LEVELS, &queue(4, 16)).await.ok(201);
    assert_eq!(made["spec"]["limited"]["nominalConcurrencyShares"], 30);
    let schema = json!({"metadata": {"name": "s"}, "spec": {
        "matchingPrecedence": 1, "priorityLevelConfiguration": {"name": "l"}, "rules": [{}]}});
    let status = c.post(SCHEMAS, &schema).await.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    for wanted in [
        "only the schema named 'exempt' may have matchingPrecedence 1",
        "spec.rules[0].subjects: Required value: subjects must contain at least one value",
        "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
    ] {
        assert!(message.contains(wanted), "{message}");
    }
}

#[tokio::test]
async fn item_029_a_refused_request_is_told_when_to_come_back() {
    let c = Cluster::with(|options| {
        options.flow_control = FlowOptions {
            enabled: false,
            max_reads: 0,
            max_writes: 0,
        };
    })
    .await;
    let bob = UserInfo::new("bob", &[]);
    let answer = whole(c.send_as(&bob, "GET", CONFIG_MAPS, &[], "").await).await;
    assert_eq!(answer.header("retry-after"), "1");
    let status = answer.error(429, "TooManyRequests");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    // administrators are let in
    c.get(CONFIG_MAPS).await.ok(200);
}

#[tokio::test]
async fn readiness_fails_before_requests_are_turned_away() {
    let c = Cluster::new().await;
    let served = Served::with(&c, |options: &mut Options| {
        options.shutdown_delay = Duration::from_millis(1500);
    })
    .await;
    let token = [("authorization", "Bearer secret")];
    assert_eq!(served.get("/readyz", &token).await.0, 200);
    served.begin_stop();
    let mut failed = false;
    for _ in 0..50 {
        let (code, body) = served.get("/readyz", &token).await;
        if code == 500 {
            assert!(body.contains("[-]shutdown failed"), "{body}");
            failed = true;
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(failed);
    assert_eq!(served.get("/livez", &token).await.0, 200);
    assert_eq!(served.get("/api/v1/pods", &token).await.0, 200);
    served.stop().await;
}

#[tokio::test]
async fn a_server_without_its_policy_records_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let mut options = Options::new(Cluster::new().await.store());
    options.audit.log = Some(LogOptions::new(&path));
    ApiServer::new(options).await.unwrap();
    assert!(!path.exists());
}
