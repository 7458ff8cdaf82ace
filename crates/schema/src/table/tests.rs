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
        let full = cells(group, version, kind, object, now);
        let part = read(group, kind, &serde_json::to_vec(object).unwrap()).unwrap();
        assert_eq!(cells(group, version, kind, &part, now), full, "{part}");
        assert_eq!(
            row_conditions(group, kind, &part),
            row_conditions(group, kind, object)
        );
        let row: Vec<String> = full
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
fn what_is_on_no_row_is_not_read() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "managedFields": [{"manager": "m"}], "labels": {"a": "b"}},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "value": "1"}]}],
        },
        "status": {"phase": "Running", "podIPs": [1, -2, 0.5, true, null, "\u{e9}"], "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True", "message": "m"}]},
    });
    let text = serde_json::to_vec(&pod).unwrap();
    let part = json!({
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "podIPs": pod["status"]["podIPs"],
            "conditions": [{"type": "Ready", "status": "True"}]},
    });
    assert_eq!(read("", "Pod", &text).unwrap(), part);
    let mut whole = pod.clone();
    whole["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("managedFields");
    assert_eq!(read("", "Secret", &text).unwrap(), whole);
    for broken in ["", "{", "{} {}", "{\"metadata\":}"] {
        assert!(read("", "Pod", broken.as_bytes()).is_err(), "{broken}");
    }
}

#[test]
fn events_are_counted_as_they_say() {
    let seen = |count: Value| {
        let event =
            json!({"metadata": {"name": "e"}, "count": count, "involvedObject": {"kind": "Pod"}});
        cells("", "v1", "Event", &event, NOW.parse().unwrap())[8].clone()
    };
    assert_eq!(
        [json!(null), json!(0), json!(-1), json!(3)].map(seen),
        [1, 1, -1, 3]
    );
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
                // upstream declares counts of some kinds as strings, and prints words for some booleans
                "boolean" => cell.is_boolean() || cell.is_string(),
                _ => cell.is_string() || cell.is_u64() || cell.is_boolean(),
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

/// Group (nothing for core) and kind, the columns that are always shown, those of `-o wide`.
const COLUMNS: &str = "\
Pod|Name,Ready,Status,Restarts,Age|IP,Node,Nominated Node,Readiness Gates
PodTemplate|Name,Containers,Images,Pod Labels|
ReplicationController|Name,Desired,Current,Ready,Age|Containers,Images,Selector
apps ReplicaSet|Name,Desired,Current,Ready,Age|Containers,Images,Selector
apps Deployment|Name,Ready,Up-to-date,Available,Age|Containers,Images,Selector
apps StatefulSet|Name,Ready,Age|Containers,Images
apps DaemonSet|Name,Desired,Current,Ready,Up-to-date,Available,Node Selector,Age|Containers,Images,Selector
apps ControllerRevision|Name,Controller,Revision,Age|
batch Job|Name,Status,Completions,Duration,Age|Containers,Images,Selector
batch CronJob|Name,Schedule,Timezone,Suspend,Active,Last Schedule,Age|Containers,Images,Selector
Service|Name,Type,Cluster-IP,External-IP,Port(s),Age|Selector
Endpoints|Name,Endpoints,Age|
discovery.k8s.io EndpointSlice|Name,AddressType,Ports,Endpoints,Age|
networking.k8s.io Ingress|Name,Class,Hosts,Address,Ports,Age|
networking.k8s.io IngressClass|Name,Controller,Parameters,Age|
networking.k8s.io NetworkPolicy|Name,Pod-Selector,Age|
networking.k8s.io ServiceCIDR|Name,CIDRs,Age|
networking.k8s.io IPAddress|Name,ParentRef|
Node|Name,Status,Roles,Age,Version|Internal-IP,External-IP,OS-Image,Kernel-Version,Container-Runtime
Namespace|Name,Status,Age|
Event|Last Seen,Type,Reason,Object,Message|Subobject,Source,First Seen,Count,Name
ConfigMap|Name,Data,Age|
Secret|Name,Type,Data,Age|
ServiceAccount|Name,Age|
PersistentVolume|Name,Capacity,Access Modes,Reclaim Policy,Status,Claim,StorageClass,VolumeAttributesClass,Reason,Age|VolumeMode
PersistentVolumeClaim|Name,Status,Volume,Capacity,Access Modes,StorageClass,VolumeAttributesClass,Age|VolumeMode
storage.k8s.io StorageClass|Name,Provisioner,ReclaimPolicy,VolumeBindingMode,AllowVolumeExpansion,Age|
storage.k8s.io VolumeAttachment|Name,Attacher,PV,Node,Attached,Age|
storage.k8s.io VolumeAttributesClass|Name,DriverName,Age|
storage.k8s.io CSIDriver|Name,AttachRequired,PodInfoOnMount,StorageCapacity,TokenRequests,RequiresRepublish,Modes,Age|
storage.k8s.io CSINode|Name,Drivers,Age|
storage.k8s.io CSIStorageCapacity|Name,Created At|
ResourceQuota|Name,Request,Limit,Age|
LimitRange|Name,Created At|
resource.k8s.io DeviceClass|Name,Age|
resource.k8s.io ResourceClaimTemplate|Name,Age|
resource.k8s.io ResourceClaim|Name,State,Age|
resource.k8s.io ResourceSlice|Name,Node,Driver,Pool,Age|
autoscaling HorizontalPodAutoscaler|Name,Reference,Targets,MinPods,MaxPods,Replicas,Age|
policy PodDisruptionBudget|Name,Min Available,Max Unavailable,Allowed Disruptions,Age|
rbac.authorization.k8s.io Role|Name,Created At|
rbac.authorization.k8s.io ClusterRole|Name,Created At|
rbac.authorization.k8s.io RoleBinding|Name,Role,Age|Users,Groups,ServiceAccounts
rbac.authorization.k8s.io ClusterRoleBinding|Name,Role,Age|Users,Groups,ServiceAccounts
certificates.k8s.io CertificateSigningRequest|Name,Age,SignerName,Requestor,RequestedDuration,Condition|
certificates.k8s.io ClusterTrustBundle|Name,SignerName|
certificates.k8s.io PodCertificateRequest|Name,PodName,ServiceAccountName,NodeName,SignerName,State,UnverifiedUserAnnotations|
storagemigration.k8s.io StorageVersionMigration|Name,Resource,Status|
resource.k8s.io DeviceTaintRule|Name,Key,Value,Effect,TimeAdded,Age|
resource.k8s.io ResourcePoolStatusRequest|Name,Driver,Total,Available,Allocated,Unavailable,Errors,Pools,Status,Completed|
coordination.k8s.io Lease|Name,Holder,Age|
coordination.k8s.io LeaseCandidate|Name,LeaseName,BinaryVersion,EmulationVersion,Age|
scheduling.k8s.io PriorityClass|Name,Value,Global-Default,Age,PreemptionPolicy|
scheduling.k8s.io PodGroup|Name,Policy,Workload,Status,Age|
node.k8s.io RuntimeClass|Name,Handler,Age|
admissionregistration.k8s.io MutatingWebhookConfiguration|Name,Webhooks,Age|
admissionregistration.k8s.io ValidatingWebhookConfiguration|Name,Webhooks,Age|
admissionregistration.k8s.io ValidatingAdmissionPolicy|Name,Validations,ParamKind,Age|
admissionregistration.k8s.io MutatingAdmissionPolicy|Name,Mutations,ParamKind,Age|
admissionregistration.k8s.io ValidatingAdmissionPolicyBinding|Name,PolicyName,ParamRef,Age|
admissionregistration.k8s.io MutatingAdmissionPolicyBinding|Name,PolicyName,ParamRef,Age|
flowcontrol.apiserver.k8s.io FlowSchema|Name,PriorityLevel,MatchingPrecedence,DistinguisherMethod,Age,MissingPL|
flowcontrol.apiserver.k8s.io PriorityLevelConfiguration|Name,Type,NominalConcurrencyShares,Queues,HandSize,QueueLengthLimit,Age|
apiextensions.k8s.io CustomResourceDefinition|Name,Created At|
apiregistration.k8s.io APIService|Name,Service,Available,Age|";

#[test]
fn item_201_columns_are_those_of_upstream() {
    let kinds = &kinds::builtin().resources;
    for line in COLUMNS.lines() {
        let mut parts = line.split('|');
        let name = parts.next().unwrap();
        let (group, kind) = name.split_once(' ').unwrap_or(("", name));
        let rows: Vec<_> = kinds
            .iter()
            .filter(|row| row.group == group && row.kind == kind)
            .filter(|row| row.version != "v1alpha1")
            .collect();
        assert!(!rows.is_empty(), "{name} is no kind");
        let wanted: Vec<&str> = parts.collect();
        for row in rows {
            let of = |wide: bool| {
                let columns = columns(group, row.version, kind).iter();
                let names = columns.filter(|c| (c.priority > 0) == wide);
                names.map(|c| c.name).collect::<Vec<_>>().join(",")
            };
            assert_eq!([of(false), of(true)], wanted[..], "{name} {}", row.version);
        }
    }
}

#[test]
fn what_asking_kube_apiserver_about_tables_has_found() {
    let row = |group: &str, version: &str, kind: &str, object: Value| {
        let text = printed(group, version, kind, &[object]);
        text.lines().last().unwrap().to_owned()
    };
    let node = |architecture: &str| {
        let info = json!({"kernelVersion": "6.1", "architecture": architecture});
        row(
            "",
            "v1",
            "Node",
            json!({"metadata": {"name": "n"}, "status": {"nodeInfo": info}}),
        )
    };
    assert!(node("amd64").contains("| 6.1 (amd64) |") && node("").contains("| 6.1 |"));
    let class = json!({"metadata": {"name": "c", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}});
    assert!(row("networking.k8s.io", "v1", "IngressClass", class).starts_with("c (default) |"));
    // version 1 has the metrics of version 2 in annotations
    let metric = |name: &str, key: &str, value: Value| json!({"type": "Pods", "pods": {"metric": {"name": name}, key: value}});
    let kept = json!([metric(
        "qps",
        "target",
        json!({"type": "AverageValue", "averageValue": "10"})
    )]);
    let current = json!([metric("qps", "current", json!({"averageValue": "3"}))]);
    let scaler = json!({
        "metadata": {"name": "h", "annotations": {
            "autoscaling.alpha.kubernetes.io/metrics": kept.to_string(),
            "autoscaling.alpha.kubernetes.io/current-metrics": current.to_string(),
        }},
        "spec": {"maxReplicas": 5, "targetCPUUtilizationPercentage": 80},
        "status": {"currentCPUUtilizationPercentage": 50},
    });
    let row = row("autoscaling", "v1", "HorizontalPodAutoscaler", scaler);
    assert!(row.contains("| cpu: 50%/80%, 3/10 |"), "{row}");
}
