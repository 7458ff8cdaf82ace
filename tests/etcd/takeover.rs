//! davit on the etcd of a real kube-apiserver, and that beside it (spec scale-out.md, items 26, 27, 30 and 31).

use super::kube_apiserver::{KubeApiserver, kube_apiserver};
use super::server::Server;
use super::{Kube, STEP};
use crate::harness::{Cluster, any_kubectl, eventually, program};
use serde_json::Value;

const OBJECTS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: made}
data: {a: b}
---
apiVersion: v1
kind: Event
metadata: {name: made}
involvedObject: {kind: ConfigMap, namespace: default, name: made}
reason: Made
message: kept in an etcd of its own
type: Normal
---
apiVersion: v1
kind: Secret
metadata: {name: made}
stringData: {a: b}
---
apiVersion: v1
kind: Service
metadata: {name: made}
spec: {type: NodePort, selector: {a: b}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: made}
spec:
  replicas: 0
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: made}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}
";

/// What a server lists. Whether the items of a list say of which kind they are is not compared.
fn listed(kubectl: impl Fn(&[&str]) -> String, path: &str) -> Vec<Value> {
    let mut list: Value = serde_json::from_str(&kubectl(&["get", "--raw", path])).unwrap();
    let items = list["items"].as_array_mut().into_iter().flatten();
    let bare = items.map(|item| {
        let item = item.as_object_mut().unwrap();
        item.retain(|key, _| !["apiVersion", "kind"].contains(&key.as_str()));
        Value::Object(std::mem::take(item))
    });
    bare.collect()
}

/// Lists of what nobody changes by itself.
const QUIET: [&str; 10] = [
    "/api/v1/namespaces/default/events?fieldSelector=reason%3DMade",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/services",
    "/apis/apps/v1/deployments",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/networking.k8s.io/v1/ipaddresses",
    "/apis/example.com/v1/namespaces/default/things",
];

#[test]
fn davit_works_beside_kube_apiserver_and_goes_again() {
    let (Some(binary), Some(kubectl), Some(_)) =
        (kube_apiserver(), any_kubectl(), program("openssl"))
    else {
        return;
    };
    let (Some(etcd), Some(of_events)) = (Server::start(), Server::start()) else {
        return;
    };
    let url = etcd.url().to_string();
    let overrides = format!("--etcd-servers-overrides=/events#{}", of_events.url());
    let theirs = KubeApiserver::start(&binary, &url, &kubectl, &[&overrides]);
    let objects = theirs.dir.path().join("objects.yaml");
    std::fs::write(&objects, OBJECTS).unwrap();
    theirs.run(&["create", "-f", &objects.display().to_string()]);
    theirs.run(&[
        "wait",
        "--for=condition=Established",
        "crd/things.example.com",
    ]);
    let thing = theirs.dir.path().join("thing.yaml");
    let text = "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: made}\nspec: {a: 1}\n";
    std::fs::write(&thing, text).unwrap();
    eventually("a custom object", STEP, || {
        theirs
            .try_run(&["create", "-f", &thing.display().to_string()])
            .is_ok()
    });

    let args = [
        "--no-node",
        "--etcd-servers",
        &url,
        &overrides,
        "--etcd-shared",
    ];
    let more = [
        "--advertise-address",
        "192.0.2.22",
        "--service-node-port-range",
        "30100-30109",
    ];
    let more = [
        more.as_slice(),
        &["--service-cluster-ip-range", "10.96.0.0/16"],
    ]
    .concat();
    let mut own = Kube {
        cluster: Cluster::up(&[args.as_slice(), &more].concat()),
        binary: kubectl.clone(),
    };
    own.eventually("the custom kind", || {
        own.try_run(&["get", "things"]).is_ok()
    });
    // Both say the same of all that is there, revisions included.
    for path in QUIET {
        let same = || listed(|args| own.run(args), path) == listed(|args| theirs.run(args), path);
        eventually(&format!("the same answer to {path}"), STEP, same);
    }

    // What davit writes kube-apiserver reads, and the other way round.
    own.run(&[
        "patch",
        "configmap",
        "made",
        "-p",
        r#"{"data":{"a":"davit"}}"#,
    ]);
    let data = "jsonpath={.data.a}";
    assert_eq!(
        theirs.run(&["get", "configmap", "made", "-o", data]),
        "davit"
    );
    theirs.run(&[
        "patch",
        "configmap",
        "made",
        "-p",
        r#"{"data":{"a":"theirs"}}"#,
    ]);
    assert_eq!(own.run(&["get", "configmap", "made", "-o", data]), "theirs");
    own.run(&[
        "create",
        "deployment",
        "own",
        "--image",
        "i",
        "--replicas",
        "0",
    ]);
    theirs.run(&["scale", "deployment", "own", "--replicas", "0"]);
    let patch = r#"{"spec":{"a":2}}"#;
    own.run(&["patch", "thing", "made", "--type=merge", "-p", patch]);
    assert_eq!(
        theirs.run(&["get", "thing", "made", "-o", "jsonpath={.spec.a}"]),
        "2"
    );
    own.run(&["label", "crd", "things.example.com", "by=davit"]);
    let label = "jsonpath={.metadata.labels.by}";
    assert_eq!(
        theirs.run(&["get", "crd", "things.example.com", "-o", label]),
        "davit"
    );

    // Of the ten ports one is taken: nine more are given, whoever is asked, and none twice.
    let mut given = 0;
    for at in 0..12 {
        let name = format!("port-{at}");
        let args = ["create", "service", "nodeport", &name, "--tcp", "80"];
        given += usize::from(match at % 2 {
            0 => own.try_run(&args).is_ok(),
            _ => theirs.try_run(&args).is_ok(),
        });
    }
    assert_eq!(given, 9);
    let ports = "jsonpath={.items[*].spec.ports[*].nodePort}";
    let ports = theirs.run(&["get", "services", "-o", ports]);
    let mut ports: Vec<&str> = ports.split_whitespace().collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 10, "{ports:?}");
    // Both are endpoints of the Service kubernetes.
    let addresses = || {
        let path = "jsonpath={.subsets[*].addresses[*].ip}";
        theirs.try_run(&["get", "endpoints", "kubernetes", "-o", path])
    };
    eventually("both endpoints", STEP, || {
        addresses().as_deref() == Ok("192.0.2.21 192.0.2.22")
    });

    // davit goes: kube-apiserver has everything, and its log no value that it cannot read.
    let kept = listed(|args| own.run(args), QUIET[3]);
    assert!(own.cluster.interrupt().success());
    eventually("one endpoint", STEP, || {
        addresses().as_deref() == Ok("192.0.2.21")
    });
    assert_eq!(listed(|args| theirs.run(args), QUIET[3]), kept);
    let log = std::fs::read_to_string(theirs.dir.path().join("log")).unwrap();
    for fault in ["unable to decode", "unable to transform", "no kind \""] {
        assert!(!log.contains(fault), "{fault}");
    }
}
