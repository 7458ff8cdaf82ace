use davit_access::query::Query;
use davit_access::{RequestInfo, UserInfo};
use http::HeaderMap;
use serde_json::json;

use super::*;

fn info(method: &str, url: &str) -> RequestInfo {
    let method = method.parse().unwrap();
    RequestInfo::parse(&method, url, &Query::parse(""))
}

fn policy(rules: &str) -> Policy {
    Policy::parse(&format!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n{rules}"
    ))
    .unwrap()
}

#[test]
fn the_first_rule_that_matches_decides() {
    let policy = policy(
        "- {level: None, users: [probe], verbs: [get], nonResourceURLs: [\"/healthz*\", /version]}\n\
         - {level: Metadata, resources: [{group: \"\", resources: [secrets, pods/log]}]}\n\
         - {level: Request, namespaces: [kube-system], omitStages: [ResponseStarted], omitManagedFields: true}\n\
         - {level: RequestResponse, userGroups: [dev], resources: [{group: apps, resources: [\"*/status\", deployments/*], resourceNames: [web]}]}\n\
         - {level: Metadata, resources: [{group: apps}]}\n",
    );
    let probe = UserInfo::new("probe", &[]);
    let dev = UserInfo::new("u", &["dev"]);
    let level =
        |user: &UserInfo, method: &str, url: &str| policy.judge(user, &info(method, url)).level;
    assert_eq!(level(&probe, "GET", "/healthz/ping"), Level::None);
    assert_eq!(level(&probe, "GET", "/metrics"), Level::None);
    assert_eq!(
        level(&dev, "GET", "/api/v1/namespaces/a/secrets/s"),
        Level::Metadata
    );
    assert_eq!(
        level(&dev, "GET", "/api/v1/namespaces/a/pods/p/log"),
        Level::Metadata
    );
    assert_eq!(
        level(&dev, "GET", "/api/v1/namespaces/a/pods/p"),
        Level::None
    );
    let verdict = policy.judge(&dev, &info("GET", "/api/v1/namespaces/kube-system/pods/p"));
    assert_eq!(verdict.level, Level::Request);
    assert_eq!(
        verdict.omit_stages,
        [Stage::RequestReceived, Stage::ResponseStarted]
    );
    assert!(verdict.omit_managed_fields);
    let status = "/apis/apps/v1/namespaces/a/deployments/web/status";
    assert_eq!(level(&dev, "PUT", status), Level::RequestResponse);
    assert_eq!(level(&probe, "PUT", status), Level::Metadata);
    let scale = "/apis/apps/v1/namespaces/a/deployments/web/scale";
    assert_eq!(level(&dev, "PUT", scale), Level::RequestResponse);
    let other = "/apis/apps/v1/namespaces/a/deployments/other/scale";
    assert_eq!(level(&dev, "PUT", other), Level::Metadata);
}

#[test]
fn policies_with_faults_are_refused() {
    for (text, wanted) in [
        (
            "apiVersion: v1\nkind: Policy\nrules: [{level: None}]",
            "is not audit.k8s.io/v1",
        ),
        ("apiVersion: audit.k8s.io/v1\nkind: Policy", "0 rules"),
        (
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Some}]",
            "unknown variant",
        ),
        (
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, namespaces: [a], nonResourceURLs: [/x]}]",
            "cannot apply to both",
        ),
        (
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, nonResourceURLs: [x]}]",
            "must begin with",
        ),
        // without the field the rule fits everything
        (
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, user: [probe]}, {level: Metadata}]",
            "unknown field `user`",
        ),
        (
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, resources: [{groups: [apps]}]}]",
            "unknown field `groups`",
        ),
    ] {
        let error = Policy::parse(text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

fn record(level: &str) -> (Record, tempfile::TempDir) {
    let policy = policy(&format!("- {{level: {level}, omitManagedFields: true}}\n"));
    let info = info("POST", "/api/v1/namespaces/a/pods");
    let user = UserInfo::new("u", &["g"]);
    let mut headers = HeaderMap::new();
    headers.insert("user-agent", "test/1".parse().unwrap());
    headers.insert("x-forwarded-for", "10.0.0.1, nonsense".parse().unwrap());
    let verdict = policy.judge(&user, &info);
    let request = Request {
        audit_id: "id",
        uri: "/api/v1/namespaces/a/pods?dryRun=All",
        headers: &headers,
        info: &info,
        user: &user,
        connection: None,
        received: jiff::Timestamp::UNIX_EPOCH,
    };
    (Record::new(verdict, &request), tempfile::tempdir().unwrap())
}

#[test]
fn events_hold_what_their_level_says() {
    let pod = json!({"metadata": {"name": "p", "managedFields": [{}]}, "spec": {}});
    let (record, _) = record("Metadata");
    record.request_object(&pod);
    record.response_object(|| pod.clone());
    record.annotate("k", "v");
    record.annotate("k", "other");
    record.outcome(201, None);
    assert!(record.event(Stage::RequestReceived).is_none());
    let mut event = record.event(Stage::ResponseComplete).unwrap();
    assert!(event["stageTimestamp"].is_string());
    event.as_object_mut().unwrap().remove("stageTimestamp");
    let wanted = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "id",
        "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/a/pods?dryRun=All",
        "verb": "create",
        "user": {"username": "u", "groups": ["g", "system:authenticated"]},
        "sourceIPs": ["10.0.0.1", "::1"], "userAgent": "test/1",
        "objectRef": {"resource": "pods", "namespace": "a", "name": "p", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "requestReceivedTimestamp": "1970-01-01T00:00:00.000000Z",
        "annotations": {"k": "v"},
    });
    assert_eq!(event, wanted);
    let (record, _) = self::record("Request");
    record.request_object(&pod);
    record.response_object(|| pod.clone());
    let event = record.event(Stage::ResponseComplete).unwrap();
    assert_eq!(
        event["requestObject"],
        json!({"metadata": {"name": "p"}, "spec": {}})
    );
    assert!(event.get("responseObject").is_none());
    let (record, _) = self::record("RequestResponse");
    record.response_object(|| pod.clone());
    assert_eq!(
        record.event(Stage::Panic).unwrap()["responseObject"],
        json!({"metadata": {"name": "p"}, "spec": {}})
    );
}

#[test]
fn full_log_files_are_rotated_and_old_ones_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/audit.log");
    let options = LogOptions {
        max_backups: 2,
        max_size_megabytes: 1,
        ..LogOptions::new(&path)
    };
    let log = LogFile::open(options).unwrap();
    let event = json!({"text": "x".repeat(300 * 1024)});
    for _ in 0..20 {
        log.write(&event).unwrap();
    }
    let mut names: Vec<String> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(
        names.iter().all(|name| name.starts_with("audit")),
        "{names:?}"
    );
    let text = std::fs::read_to_string(&path).unwrap();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line, event);
    }
}

/// Events with large bodies, to a receiver that takes the first batch and does not answer.
#[tokio::test]
async fn a_receiver_that_does_not_answer_costs_bounded_memory() {
    let receiver = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "s", "cluster": { "server": format!("https://{}", receiver.local_addr().unwrap()) } }],
        "contexts": [{ "name": "c", "context": { "cluster": "s", "user": "u" } }],
        "users": [{ "name": "u", "user": {} }],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let (events, errors) = (Counter::default(), Counter::default());
    let options = AuditOptions {
        policy: Some(policy("- {level: RequestResponse}\n")),
        webhook: Some(kubeconfig),
        ..AuditOptions::default()
    };
    let auditor = Auditor::new(options, events.clone(), errors.clone());
    let auditor = auditor.unwrap().unwrap();
    let large = json!({ "metadata": { "name": "p" }, "data": "x".repeat(1 << 20) });
    for _ in 0..100 {
        let (record, _) = record("Request");
        record.request_object(&large);
        record.outcome(201, None);
        auditor.stage(&record, Stage::ResponseComplete);
        tokio::task::yield_now().await;
    }
    assert_eq!(events.get(), 100);
    assert!((30..100).contains(&errors.get()), "{}", errors.get());
}
