//! Controllers that clients take for granted, through kubectl, on a control plane without a node: the test plays the
//! kubelet and says that pods are ready (items 85, 118, 196 to 199).

mod accounts;
mod chosen;
mod clock;
mod gangs;
mod jobs;
mod services;
mod volumes;

use crate::harness;
use harness::{Cluster, any_kubectl, eventually, kubectl, kubectl_stdin, output};
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// The pod runs and is ready, at an address.
fn make_ready(cluster: &Cluster, k: &Path, pod: &str, ip: &str) {
    let status = format!(
        r#"{{"status":{{"phase":"Running","podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}],"conditions":[{{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}}]}}}}"#
    );
    kubectl(
        cluster,
        k,
        [
            "patch",
            "pod",
            pod,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ],
    );
}

fn names(cluster: &Cluster, k: &Path, what: &[&str]) -> Vec<String> {
    let mut args = vec!["get"];
    args.extend(what);
    args.extend(["-o", "jsonpath={.items[*].metadata.name}"]);
    let text = kubectl(cluster, k, args);
    text.split_whitespace().map(str::to_owned).collect()
}

fn value(cluster: &Cluster, k: &Path, object: &str, path: &str) -> String {
    kubectl(
        cluster,
        k,
        ["get", object, "-o", &format!("jsonpath={{{path}}}")],
    )
}

/// A class of volume attributes stays while a claim names it, and goes after that.
fn attributes_classes_go_when_nothing_uses_them(cluster: &Cluster, k: &Path) {
    let manifest = "apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: fast}
driverName: example.com/disks
parameters: {iops: '100'}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  volumeAttributesClassName: fast
  resources: {requests: {storage: 1Gi}}
";
    kubectl_stdin(cluster, k, &["create", "-f", "-"], manifest);
    let class = "volumeattributesclass.storage.k8s.io/fast";
    kubectl(cluster, k, ["delete", class, "--wait=false"]);
    let ends = value(cluster, k, class, ".metadata.deletionTimestamp");
    assert!(!ends.is_empty());
    kubectl(cluster, k, ["delete", "pvc/data", "--timeout=30s"]);
    kubectl(cluster, k, ["wait", "--for=delete", class, "--timeout=30s"]);
}

#[test]
fn services_have_endpoints_and_slices_of_their_ready_pods() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    attributes_classes_go_when_nothing_uses_them(&cluster, &k);
    let manifest = "apiVersion: v1
kind: ReplicationController
metadata: {name: web}
spec:
  replicas: 2
  selector: {app: web}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: example.test/c:1, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, labels: {tier: front}}
spec: {selector: {app: web}, ports: [{name: main, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {ports: [{port: 443}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: outside}
subsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 8443}]}]
";
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], manifest);
    eventually("two pods", SOON, || {
        names(&cluster, &k, &["pods"]).len() == 2
    });
    let slices = "-l=kubernetes.io/service-name=web";
    eventually("a slice without endpoints", SOON, || {
        names(&cluster, &k, &["endpointslices", slices]).len() == 1
    });
    let empty = names(&cluster, &k, &["endpointslices", slices]);
    for (i, pod) in names(&cluster, &k, &["pods"]).iter().enumerate() {
        make_ready(&cluster, &k, pod, &format!("10.1.0.{}", i + 1));
    }
    eventually("both addresses", SOON, || {
        let ips = value(&cluster, &k, "endpoints/web", ".subsets[*].addresses[*].ip");
        ips == "10.1.0.1 10.1.0.2"
    });
    assert_eq!(
        value(&cluster, &k, "endpoints/web", ".subsets[0].ports[0].port"),
        "8080"
    );
    eventually("both endpoints", SOON, || {
        let args = [
            "get",
            "endpointslices",
            slices,
            "-o",
            "jsonpath={.items[*].endpoints[*].addresses[0]}",
        ];
        kubectl(&cluster, &k, args).split_whitespace().count() == 2
    });
    // The empty one has become it: nobody sees one without ports beside one that has them.
    assert_eq!(names(&cluster, &k, &["endpointslices", slices]), empty);
    let slice = format!("endpointslices/{}", empty[0]);
    assert_eq!(
        value(&cluster, &k, &slice, ".metadata.labels.tier"),
        "front"
    );
    assert_eq!(
        value(&cluster, &k, &slice, ".metadata.ownerReferences[0].kind"),
        "Service"
    );
    assert_eq!(value(&cluster, &k, &slice, ".ports[0].name"), "main");
    assert!(
        value(&cluster, &k, &slice, ".metadata.annotations").contains("last-change-trigger-time")
    );
    eventually("the mirror of hand-made endpoints", SOON, || {
        let args = [
            "get",
            "endpointslices",
            "-l=kubernetes.io/service-name=outside",
            "-o",
            "jsonpath={.items[*].endpoints[*].addresses[0]}:{.items[*].ports[*].port}",
        ];
        kubectl(&cluster, &k, args) == "192.0.2.7:8443"
    });
    kubectl(&cluster, &k, ["delete", "service", "web"]);
    eventually("both go with the service", SOON, || {
        names(&cluster, &k, &["endpointslices", slices]).is_empty()
            && !names(&cluster, &k, &["endpoints"]).contains(&"web".to_owned())
    });
}

#[test]
fn item_198_stateful_sets_are_ordered_and_keep_their_claims() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let manifest = "apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: example.test/c:1, volumeMounts: [{name: data, mountPath: /data}]}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], manifest);
    eventually("the first pod", SOON, || {
        names(&cluster, &k, &["pods"]) == ["db-0"]
    });
    assert_eq!(value(&cluster, &k, "pod/db-0", ".spec.hostname"), "db-0");
    assert_eq!(
        value(
            &cluster,
            &k,
            "pod/db-0",
            ".spec.volumes[0].persistentVolumeClaim.claimName"
        ),
        "data-db-0"
    );
    make_ready(&cluster, &k, "db-0", "10.1.0.1");
    eventually("then the second", SOON, || {
        names(&cluster, &k, &["pods"]) == ["db-0", "db-1"]
    });
    make_ready(&cluster, &k, "db-1", "10.1.0.2");
    assert_eq!(names(&cluster, &k, &["pvc"]), ["data-db-0", "data-db-1"]);
    kubectl(
        &cluster,
        &k,
        ["rollout", "status", "statefulset/db", "--timeout=30s"],
    );

    let cause = "kubernetes.io/change-cause=a second image";
    kubectl(&cluster, &k, ["annotate", "statefulset/db", cause]);
    kubectl(
        &cluster,
        &k,
        ["set", "image", "statefulset/db", "c=example.test/c:2"],
    );
    let image = |pod: &str| {
        let got = output(cluster.kubectl(&k).args([
            "get",
            "pod",
            pod,
            "-o",
            "jsonpath={.spec.containers[0].image}",
        ]));
        String::from_utf8_lossy(&got.stdout).into_owned()
    };
    eventually("the last is replaced first", SOON, || {
        image("db-1") == "example.test/c:2"
    });
    assert_eq!(image("db-0"), "example.test/c:1");
    make_ready(&cluster, &k, "db-1", "10.1.0.3");
    eventually("then the first", SOON, || {
        image("db-0") == "example.test/c:2"
    });
    make_ready(&cluster, &k, "db-0", "10.1.0.4");
    kubectl(
        &cluster,
        &k,
        ["rollout", "status", "statefulset/db", "--timeout=30s"],
    );
    let history = kubectl(&cluster, &k, ["rollout", "history", "statefulset/db"]);
    let causes: Vec<&str> = history
        .lines()
        .filter(|l| l.contains("a second image"))
        .collect();
    assert_eq!(causes.len(), 1, "{history}");
    kubectl(&cluster, &k, ["rollout", "undo", "statefulset/db"]);
    eventually("back again", SOON, || image("db-1") == "example.test/c:1");

    kubectl(&cluster, &k, ["scale", "statefulset/db", "--replicas=0"]);
    eventually("no pods", SOON, || {
        // Those that came back are ready, so that none is waited for.
        for pod in names(&cluster, &k, &["pods"]) {
            if value(&cluster, &k, "pods", ".items[*].metadata.name").contains(&pod) {
                let _gone = output(cluster.kubectl(&k).args(["patch", "pod", &pod, "--subresource=status", "--type=merge", "-p",
                    r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#]));
            }
        }
        names(&cluster, &k, &["pods"]).is_empty()
    });
    assert_eq!(names(&cluster, &k, &["pvc"]), ["data-db-0", "data-db-1"]);
}

/// What API servers said about versions goes with them; objects of which nothing is left go.
fn storage_versions_go_with_their_servers(cluster: &Cluster, k: &Path) {
    let identity = "apiserver.kubernetes.io/identity=kube-apiserver";
    let servers = names(cluster, k, &["leases", "-n", "kube-system", "-l", identity]);
    let said = |id: &str| {
        format!(r#"{{"apiServerID":"{id}","encodingVersion":"v1","decodableVersions":["v1"]}}"#)
    };
    let there = said(&servers[0]);
    let gone = said("gone");
    let both = format!("{there},{gone}");
    for (name, said) in [("a.one", &both), ("a.two", &gone)] {
        let empty = format!(
            "apiVersion: internal.apiserver.k8s.io/v1alpha1\nkind: StorageVersion\nmetadata: {{name: {name}}}\nspec: {{}}\n"
        );
        kubectl_stdin(cluster, k, &["create", "-f", "-"], &empty);
        let patch =
            format!(r#"{{"status":{{"storageVersions":[{said}],"commonEncodingVersion":"v1"}}}}"#);
        kubectl(
            cluster,
            k,
            [
                "patch",
                "storageversion",
                name,
                "--subresource=status",
                "--type=merge",
                "-p",
                &patch,
            ],
        );
    }
    kubectl(
        cluster,
        k,
        [
            "wait",
            "--for=delete",
            "storageversion/a.two",
            "--timeout=60s",
        ],
    );
    let left = ".status.storageVersions[*].apiServerID";
    eventually("the server that is gone is forgotten", SOON, || {
        value(cluster, k, "storageversion/a.one", left) == servers[0]
    });
    let common = ".status.commonEncodingVersion";
    assert_eq!(value(cluster, k, "storageversion/a.one", common), "v1");
}

#[test]
fn objects_that_own_one_another_are_deleted_with_their_dependents() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let ring = ["a", "b", "c"];
    for name in ring {
        kubectl(&cluster, &k, ["create", "configmap", name]);
    }
    for (at, name) in ring.iter().enumerate() {
        let owner = ring[(at + 2) % 3];
        let uid = value(&cluster, &k, &format!("configmap/{owner}"), ".metadata.uid");
        let patch = format!(
            r#"{{"metadata":{{"ownerReferences":[{{"apiVersion":"v1","kind":"ConfigMap","name":"{owner}","uid":"{uid}","blockOwnerDeletion":true}}]}}}}"#
        );
        kubectl(&cluster, &k, ["patch", "configmap", name, "-p", &patch]);
    }
    let delete = [
        "delete",
        "configmap",
        "a",
        "--cascade=foreground",
        "--wait=false",
    ];
    kubectl(&cluster, &k, delete);
    eventually("all are gone", SOON, || {
        let left = names(&cluster, &k, &["configmaps"]);
        !ring.iter().any(|name| left.iter().any(|l| l == name))
    });
    storage_versions_go_with_their_servers(&cluster, &k);
}

#[test]
fn item_118_and_198_budgets_refuse_and_cron_jobs_start() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let manifest = "apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: '* * * * *'
  jobTemplate:
    spec:
      template:
        spec: {restartPolicy: Never, containers: [{name: c, image: example.test/c:1}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: example.test/c:1}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
";
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], manifest);
    let web = ["pods", "-l=app=web"];
    eventually("two pods", SOON, || names(&cluster, &k, &web).len() == 2);
    let pods = names(&cluster, &k, &web);
    make_ready(&cluster, &k, &pods[0], "10.1.0.1");
    make_ready(&cluster, &k, &pods[1], "10.1.0.2");
    eventually("one disruption is allowed", SOON, || {
        value(&cluster, &k, "pdb/web", ".status.disruptionsAllowed") == "1"
    });
    assert_eq!(value(&cluster, &k, "pdb/web", ".status.expectedPods"), "2");
    let evict = |pod: &str| {
        let body = cluster.dir.path().join("eviction.json");
        let text = format!(
            r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{pod}","namespace":"default"}}}}"#
        );
        std::fs::write(&body, text).unwrap();
        let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
        output(
            cluster
                .kubectl(&k)
                .args(["create", "--raw", &path, "-f"])
                .arg(&body),
        )
    };
    assert!(evict(&pods[0]).status.success());
    let refused = evict(&pods[1]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("disruption budget"));
    eventually("a job at the next minute", Duration::from_secs(75), || {
        !names(&cluster, &k, &["jobs"]).is_empty()
    });
    let job = names(&cluster, &k, &["jobs"])[0].clone();
    assert!(job.starts_with("tick-"), "{job}");
    eventually("it is active", SOON, || {
        value(&cluster, &k, "cronjob/tick", ".status.active[0].name") == job
    });
    assert!(!value(&cluster, &k, "cronjob/tick", ".status.lastScheduleTime").is_empty());
}

/// The replica sets that a deployment left behind are those of the next that selects them.
#[test]
fn deployments_adopt_replica_sets() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let manifest = "apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template: {metadata: {labels: {app: d}}, spec: {containers: [{name: c, image: i}]}}
";
    kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], manifest);
    eventually("a set", SOON, || names(&cluster, &k, &["rs"]).len() == 1);
    let set = format!("rs/{}", names(&cluster, &k, &["rs"])[0]);
    kubectl(&cluster, &k, ["delete", "deploy/d", "--cascade=orphan"]);
    let owner = || value(&cluster, &k, &set, ".metadata.ownerReferences[*].name");
    eventually("it is left alone", SOON, || owner().is_empty());
    let other = manifest.replace("name: d}", "name: other}");
    kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], &other);
    eventually("it is adopted", SOON, || owner() == "other");
    assert_eq!(
        names(&cluster, &k, &["rs"]).len(),
        1,
        "its template is the same"
    );
}

#[test]
fn item_115_196_and_199_namespaces_are_furnished_and_a_silent_node_loses_its_pods() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    kubectl(&cluster, &k, ["create", "namespace", "team"]);
    let furnished = || {
        let held = output(cluster.kubectl(&k).args([
            "-n",
            "team",
            "get",
            "serviceaccount/default",
            "configmap/kube-root-ca.crt",
        ]));
        held.status.success()
    };
    eventually(
        "the namespace is furnished",
        Duration::from_secs(10),
        furnished,
    );

    // The authority is also published for pods that ask for it by its signer.
    eventually("the trust bundle is published", SOON, || {
        let list = kubectl(&cluster, &k, ["get", "clustertrustbundles"]);
        list.contains("kubernetes.io:kube-apiserver-serving:")
    });

    // Who has an owner that is no more is collected.
    let orphan = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: orphan\n  ownerReferences:\n  \
                  - {apiVersion: v1, kind: ConfigMap, name: gone, uid: 5f0d7f70-6a0e-4c59-9d8b-000000000000}\n";
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], orphan);
    eventually("what is left behind is collected", SOON, || {
        let held = output(cluster.kubectl(&k).args(["get", "configmap", "orphan"]));
        !held.status.success()
    });

    // A node that says once that it is ready, and then nothing.
    let heartbeat = r#"{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"well","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#;
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: lost}\n";
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], node);
    let say = ["patch", "node", "lost", "--subresource=status", "-p"];
    kubectl(&cluster, &k, say.into_iter().chain([heartbeat]));
    let pod = |name: &str, seconds: u32| {
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: lost
  containers: [{{name: c, image: example.test/c:1}}]
  tolerations:
  - {{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: {seconds}}}
"
        )
    };
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], &pod("hasty", 1));
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], &pod("patient", 3600));
    let ready = ".status.conditions[?(@.type==\"Ready\")].status";
    eventually("the node is unknown", Duration::from_secs(120), || {
        value(&cluster, &k, "node/lost", ready) == "Unknown"
    });
    let table = kubectl(&cluster, &k, ["get", "nodes"]);
    assert!(table.contains("lost   NotReady"), "{table}");
    let effects = || value(&cluster, &k, "node/lost", ".spec.taints[*].effect");
    eventually("it is tainted", SOON, || !effects().is_empty());
    let taints = value(&cluster, &k, "node/lost", ".spec.taints[*].key");
    assert_eq!(taints, "node.kubernetes.io/unreachable");
    assert_eq!(effects(), "NoSchedule", "no other node reports, either");

    let other = "apiVersion: v1\nkind: Node\nmetadata: {name: well}\n";
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], other);
    let report = || {
        let now = jiff::Timestamp::now().to_string();
        let said = heartbeat.replace("2026-01-01T00:00:00Z", &now);
        let say = ["patch", "node", "well", "--subresource=status", "-p"];
        kubectl(&cluster, &k, say.into_iter().chain([said.as_str()]));
    };
    eventually("pods have to leave it", SOON, || {
        report();
        effects().contains("NoExecute")
    });
    let deleted = ".metadata.deletionTimestamp";
    eventually("the hasty pod is evicted", SOON, || {
        report();
        let shown = output(
            cluster
                .kubectl(&k)
                .args(["get", "pod", "hasty", "-o"])
                .arg(format!("jsonpath={{{deleted}}}")),
        );
        !shown.status.success() || !shown.stdout.is_empty()
    });
    assert_eq!(value(&cluster, &k, "pod/patient", deleted), "");
}

/// Why no pod is made is said in the API server's words, by the event, the set and the deployment; what the controller
/// notes on a deployment does not count in its generation.
#[test]
fn item_197_a_refused_pod_is_told_in_one_sentence() {
    let Some(k) = any_kubectl() else { return };
    let c = Cluster::up(&["--no-node"]);
    let account = || names(&c, &k, &["serviceaccounts"]).contains(&"default".to_owned());
    eventually("pods have an account", SOON, account);
    kubectl(&c, &k, ["create", "quota", "none", "--hard=pods=0"]);
    let hard = || value(&c, &k, "quota/none", ".status.hard.pods") == "0";
    eventually("the quota is in force", SOON, hard);
    kubectl(&c, &k, ["create", "deployment", "d", "--image=x"]);
    let failure = ".status.conditions[?(@.type=='ReplicaFailure')].message";
    let said = || value(&c, &k, "deployment/d", failure);
    eventually("the deployment says it", SOON, || !said().is_empty());
    let refusal =
        "is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0";
    let is_refusal = |text: &str| text.starts_with("pods \"d-") && text.ends_with(refusal);
    assert!(is_refusal(&said()), "{}", said());
    let sets = names(&c, &k, &["replicasets"]);
    let of_set = value(&c, &k, &format!("replicaset/{}", sets[0]), failure);
    assert!(is_refusal(&of_set), "{of_set}");
    let events = [
        "get",
        "events",
        "--field-selector=reason=FailedCreate",
        "-o=jsonpath={range .items[*]}{.message}{'\\n'}{end}",
    ];
    // Events are written beside everything else.
    let told = || kubectl(&c, &k, events);
    eventually("an event says it", SOON, || !told().is_empty());
    let told = told();
    let event = told.lines().next().unwrap_or_default();
    let event = event.strip_prefix("Error creating: ").unwrap_or_default();
    assert!(is_refusal(event), "{event}");
    let revision = ".metadata.annotations.deployment\\.kubernetes\\.io/revision";
    assert_eq!(value(&c, &k, "deployment/d", revision), "1");
    assert_eq!(value(&c, &k, "deployment/d", ".metadata.generation"), "1");
    // and it is taken back
    kubectl(&c, &k, ["delete", "quota", "none"]);
    eventually("pods are made", SOON, || said().is_empty());
    let ending = || value(&c, &k, "deployment/d", ".status.terminatingReplicas");
    eventually("none of them is ending", SOON, || ending() == "0");
    let pod = format!("pod/{}", names(&c, &k, &["pods"])[0]);
    let held = r#"{"metadata":{"finalizers":["example.com/held"]}}"#;
    kubectl(&c, &k, ["patch", &pod, "--type=merge", "-p", held]);
    kubectl(&c, &k, ["delete", &pod, "--wait=false"]);
    eventually("one is", SOON, || ending() == "1");
    let free = r#"{"metadata":{"finalizers":null}}"#;
    kubectl(&c, &k, ["patch", &pod, "--type=merge", "-p", free]);
    eventually("it is gone", SOON, || ending() == "0");
}
