//! davit on the etcd of a real kube-apiserver, and that beside it (spec scale-out.md, items 26, 27, 30 and 31).

use super::etcd::Server;
use super::{Kube, STEP};
use crate::harness::{
    Cluster, any_kubectl, eventually, output, part, program, run, temp_dir, tests_dir,
};
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

/// The real kube-apiserver; it ends with the value.
struct KubeApiserver {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
    kubectl: PathBuf,
}

impl Drop for KubeApiserver {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn binary() -> Option<PathBuf> {
    let path = tests_dir().join(".cache/kube-apiserver");
    part("kube-apiserver", path.is_file().then_some(path))
}

impl KubeApiserver {
    fn start(binary: &Path, etcd: &str, kubectl: &Path) -> Self {
        let dir = temp_dir();
        let file = |name: &str| dir.path().join(name).display().to_string();
        run(Command::new("openssl").args(["genrsa", "-out", &file("sa.key"), "2048"]));
        std::fs::write(file("tokens"), "admin,admin,admin,\"system:masters\"\n").unwrap();
        // free again when it is known
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.unwrap().port();
        let log = std::fs::File::create(file("log")).unwrap();
        let child = Command::new(binary)
            .args(["--etcd-servers", etcd, "--bind-address", "127.0.0.1"])
            .args([
                "--secure-port",
                &port.to_string(),
                "--cert-dir",
                &file("certs"),
            ])
            .args(["--service-account-issuer", "https://kubernetes.default.svc"])
            .args(["--service-account-signing-key-file", &file("sa.key")])
            .args(["--service-account-key-file", &file("sa.key")])
            .args(["--service-cluster-ip-range", "10.96.0.0/16"])
            .args(["--service-node-port-range", "30100-30109"])
            .args([
                "--authorization-mode",
                "RBAC",
                "--token-auth-file",
                &file("tokens"),
            ])
            .args(["--advertise-address", "192.0.2.21"])
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let server = Self {
            child,
            dir,
            port,
            kubectl: kubectl.to_owned(),
        };
        eventually("kube-apiserver to be ready", STEP * 2, || {
            server.try_run(&["get", "--raw", "/readyz"]).is_ok()
        });
        server
    }

    fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let url = format!("https://127.0.0.1:{}", self.port);
        let mut command = Command::new(&self.kubectl);
        command
            .env("HOME", self.dir.path())
            .env_remove("KUBECONFIG");
        command.args([
            "--server",
            &url,
            "--insecure-skip-tls-verify",
            "--token",
            "admin",
        ]);
        let out = output(command.args(args));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match out.status.success() {
            true => Ok(text(&out.stdout)),
            false => Err(text(&out.stderr)),
        }
    }

    fn run(&self, args: &[&str]) -> String {
        self.try_run(args)
            .unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }
}

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
const QUIET: [&str; 9] = [
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
    let (Some(binary), Some(kubectl), Some(_)) = (binary(), any_kubectl(), program("openssl"))
    else {
        return;
    };
    let Some(etcd) = Server::start() else {
        return;
    };
    let url = etcd.url().to_string();
    let theirs = KubeApiserver::start(&binary, &url, &kubectl);
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

    let args = ["--no-node", "--etcd-servers", &url, "--etcd-shared"];
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
