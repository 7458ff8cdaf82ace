use davit_api::kinds;
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-02T03:04:05Z";

/// Objects as `kubectl get -o wide` would print them, headings first, cells parted by ` | `.
fn printed(group: &str, version: &str, kind: &str, objects: &[Value]) -> String {
    let now = NOW.parse().unwrap();
    let heads: Vec<String> = columns(group, version, kind)
        .iter()
        .map(|c| c.name.to_uppercase())
        .collect();
    let mut lines = vec![heads.join(" | ")];
    for object in objects {
        let row: Vec<String> = cells(group, version, kind, object, now)
            .iter()
            .map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned))
            .collect();
        assert_eq!(row.len(), heads.len());
        lines.push(row.join(" | "));
    }
    lines.join("\n")
}

fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "creationTimestamp": "2026-01-02T03:01:00Z"},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
        "status": {"phase": "Pending"},
    });
    change(&mut pod);
    pod
}

#[test]
fn pods() {
    let ready = json!({"ready": true, "state": {"running": {}}});
    let done = json!({"state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
    let pods = [
        pod("new", |_| {}),
        pod("gated", |p| {
            p["status"]["conditions"] =
                json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
        }),
        pod("init", |p| {
            p["spec"]["initContainers"] = json!([{"name": "i"}, {"name": "j"}]);
            p["status"]["initContainerStatuses"] =
                json!([{"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j"}]);
        }),
        pod("init-crash", |p| {
            p["spec"]["initContainers"] = json!([{"name": "i"}]);
            p["status"]["initContainerStatuses"] = json!([{"name": "i", "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"finishedAt": "2026-01-02T03:03:35Z"}}}]);
        }),
        pod("init-exit", |p| {
            p["spec"]["initContainers"] = json!([{"name": "i"}]);
            p["status"]["initContainerStatuses"] =
                json!([{"name": "i", "state": {"terminated": {"exitCode": 7}}}]);
        }),
        pod("sidecar", |p| {
            p["spec"]["nodeName"] = json!("n1");
            p["spec"]["initContainers"] = json!([{"name": "s", "restartPolicy": "Always"}]);
            p["status"] = json!({"phase": "Running", "podIP": "10.0.0.9",
                "initContainerStatuses": [{"name": "s", "started": true, "ready": true,
                    "state": {"running": {}}}],
                "containerStatuses": [ready, ready]});
        }),
        pod("crashing", |p| {
            p["status"] = json!({"phase": "Running", "containerStatuses": [
                {"restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"finishedAt": "2026-01-02T02:59:05Z"}}}, ready]});
        }),
        pod("half-done", |p| {
            p["status"] = json!({"phase": "Running", "containerStatuses": [done, ready],
                "conditions": [{"type": "Ready", "status": "True"}]});
        }),
        pod("completed", |p| {
            p["status"] = json!({"phase": "Succeeded", "containerStatuses": [done, done]});
        }),
        pod("killed", |p| {
            p["status"] = json!({"phase": "Failed", "containerStatuses": [
                {"state": {"terminated": {"signal": 9, "exitCode": 137}}}, done]});
        }),
        pod("refused", |p| {
            p["status"] = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError"});
        }),
        pod("going", |p| {
            p["metadata"]["deletionTimestamp"] = json!(NOW);
            p["status"]["phase"] = json!("Running");
        }),
        pod("lost", |p| {
            p["metadata"]["deletionTimestamp"] = json!(NOW);
            p["status"] = json!({"phase": "Running", "reason": "NodeLost"});
        }),
    ];
    insta::assert_snapshot!(printed("", "v1", "Pod", &pods));
    assert_eq!(
        row_conditions("", "Pod", &pods[8])[0]["reason"],
        "Succeeded"
    );
    assert!(row_conditions("", "Pod", &pods[0]).is_empty());
}

#[test]
fn cluster_objects() {
    let node = json!({
        "metadata": {"name": "n1", "creationTimestamp": "2025-12-25T03:04:05Z",
            "labels": {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "edge"}},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0+davit", "kernelVersion": "6.1"}},
    });
    let event = json!({
        "metadata": {"name": "e.1"}, "type": "Warning", "reason": "Failed", "message": "x \n",
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{a}"},
        "source": {"component": "kubelet", "host": "n1"},
        "firstTimestamp": "2026-01-02T02:04:05Z", "lastTimestamp": "2026-01-02T03:03:05Z",
        "count": 4,
    });
    let new_event = json!({
        "metadata": {"name": "e.2"}, "type": "Normal", "reason": "Bound", "note": "y",
        "regarding": {"kind": "Pod", "name": "p"}, "eventTime": "2026-01-02T03:04:00.000001Z",
        "reportingController": "scheduler", "reportingInstance": "s-1",
    });
    let service = |kind: &str, extra: Value| {
        let mut s = json!({"metadata": {"name": "s"}, "spec": {"type": kind, "clusterIP": "10.0.0.1",
            "selector": {"app": "x"}, "ports": [{"port": 80, "protocol": "TCP"},
            {"port": 53, "nodePort": 30053, "protocol": "UDP"}]}});
        for (k, v) in extra.as_object().unwrap() {
            s["spec"][k] = v.clone();
        }
        s
    };
    let services = [
        service("ClusterIP", json!({"clusterIP": "None"})),
        service("NodePort", json!({"externalIPs": ["192.0.2.7"]})),
        service("LoadBalancer", json!({})),
        service(
            "ExternalName",
            json!({"externalName": "a.example", "clusterIP": "", "ports": []}),
        ),
    ];
    let deployment = json!({
        "metadata": {"name": "d", "creationTimestamp": "2026-01-02T01:00:00Z"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "d"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["b", "a"]},
                {"key": "aaa", "operator": "DoesNotExist"}]},
            "template": {"spec": {"containers": [{"name": "c", "image": "i:1"}]}}},
        "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 2},
    });
    let job = json!({
        "metadata": {"name": "j", "creationTimestamp": "2026-01-02T01:00:00Z"},
        "spec": {"parallelism": 2, "template": {"spec": {"containers": []}}},
        "status": {"startTime": "2026-01-02T03:00:00Z", "succeeded": 1,
            "completionTime": "2026-01-02T03:01:30Z",
            "conditions": [{"type": "Complete", "status": "True"}]},
    });
    let claim = json!({"metadata": {"name": "c", "deletionTimestamp": NOW},
        "status": {"allocation": {}, "reservedFor": [{}]}});
    let classic = json!({"metadata": {"name": "c", "creationTimestamp": "2026-01-02T03:03:57Z"},
        "spec": {"resourceClassName": "example", "allocationMode": "WaitForFirstConsumer"},
        "status": {"allocation": {}, "reservedFor": [{}]}});
    let text = [
        printed("", "v1", "Node", &[node]),
        printed("", "v1", "Event", &[event]),
        printed("events.k8s.io", "v1", "Event", &[new_event]),
        printed("", "v1", "Service", &services),
        printed("apps", "v1", "Deployment", &[deployment]),
        printed("batch", "v1", "Job", &[job]),
        printed(
            "resource.k8s.io",
            "v1",
            "ResourceClaim",
            &[claim, json!({"metadata": {}})],
        ),
        printed("resource.k8s.io", "v1alpha1", "ResourceClaim", &[classic]),
    ]
    .join("\n\n");
    insta::assert_snapshot!(text);
}

#[test]
fn every_kind_prints_an_empty_object() {
    let now = NOW.parse().unwrap();
    for row in &kinds::builtin().resources {
        let columns = columns(row.group, row.version, row.kind);
        let cells = cells(row.group, row.version, row.kind, &json!({}), now);
        assert_eq!(columns.len(), cells.len(), "{}", row.kind);
        assert!(columns.iter().any(|c| c.format == "name"), "{}", row.kind);
        for (column, cell) in columns.iter().zip(cells) {
            let fits = match column.r#type {
                "integer" => cell.is_i64() || cell.is_u64(),
                "boolean" => cell.is_boolean(),
                _ => cell.is_string(),
            };
            assert!(fits, "{} {}: {cell}", row.kind, column.name);
        }
    }
}

#[test]
fn durations_read_as_kubectl_writes_them() {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 3600;
    const DAY: i64 = 86400;
    let cases = [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (303, "5m3s"),
        (10 * MINUTE + 5, "10m"),
        (179 * MINUTE, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 25 * MINUTE, "3h25m"),
        (8 * HOUR + MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (2 * DAY + 4 * HOUR, "2d4h"),
        (8 * DAY + 4 * HOUR, "8d"),
        (400 * DAY, "400d"),
        (3 * 365 * DAY + 8 * DAY, "3y8d"),
        (9 * 365 * DAY, "9y"),
    ];
    for (seconds, text) in cases {
        assert_eq!(human_duration(seconds), text);
    }
}
