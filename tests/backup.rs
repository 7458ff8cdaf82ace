//! A cluster's objects in a file, and a cluster made of it: in another directory, and in etcd and back.

mod damage;

use crate::etcd::server::Server;
use crate::harness;
use harness::{Cluster, any_kubectl, kubectl_stdin, output, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const STEP: Duration = Duration::from_secs(60);
/// As `davit restore` says it.
const BUMP: u64 = 1_000_000_000;

const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: '1'}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {p: very-secret-word}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: monitor}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: monitor}
rules: [{nonResourceURLs: ['*'], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: monitor}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: monitor}
subjects: [{kind: ServiceAccount, name: monitor, namespace: default}]
";

fn davit(args: &[&str]) -> Result<String, String> {
    let out = output(Command::new(env!("CARGO_BIN_EXE_davit")).args(args));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if out.status.success() {
        Ok(text(&out.stdout))
    } else {
        Err(text(&out.stderr))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

struct Kube {
    cluster: Cluster,
    binary: PathBuf,
}

impl Kube {
    fn run(&self, args: &[&str]) -> String {
        run(self.cluster.kubectl(&self.binary).args(args))
    }

    /// What tells objects apart: names, uids, contents but for the cluster's certificate.
    fn objects(&self) -> String {
        let path = "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.data.a}{.data.p}{'\\n'}{end}";
        self.run(&["get", "configmaps,secrets,serviceaccounts", "-o", path])
    }

    fn backup(&self, file: &Path) -> u64 {
        let said = davit(&[
            "backup",
            text(file),
            "--kubeconfig",
            text(&self.cluster.kubeconfig),
        ]);
        let said = said.unwrap();
        let word = said.split(" at revision ").nth(1).unwrap();
        word.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn revision(&self) -> u64 {
        let list = self.run(&[
            "get",
            "--raw",
            "/api/v1/namespaces/default/configmaps?limit=1",
        ]);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let version = list["metadata"]["resourceVersion"].as_str();
        version.unwrap().parse().unwrap()
    }
}

fn cluster(binary: PathBuf, args: &[&str]) -> Kube {
    let args = [&["--no-node"], args].concat();
    let kube = Kube {
        cluster: Cluster::up(&args),
        binary,
    };
    harness::eventually("what a namespace has from the start", STEP, || {
        let get = [
            "get",
            "configmap/kube-root-ca.crt",
            "serviceaccount/default",
        ];
        output(kube.cluster.kubectl(&kube.binary).args(get))
            .status
            .success()
    });
    kube
}

#[test]
fn a_backup_becomes_the_cluster_it_was() {
    let Some(binary) = any_kubectl() else { return };
    let mut kube = cluster(binary, &[]);
    kubectl_stdin(&kube.cluster, &kube.binary, &["apply", "-f", "-"], OBJECTS);
    let before = kube.objects();
    let file = kube.cluster.dir.path().join("backup");
    let revision = kube.backup(&file);
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let bytes = std::fs::read(&file).unwrap();
    let secret = b"dmVyeS1zZWNyZXQtd29yZA";
    assert!(bytes.windows(secret.len()).any(|some| some == secret));

    // What comes after it is gone later, and what goes is back.
    kube.run(&["delete", "configmap", "settings"]);
    kube.run(&["create", "configmap", "later"]);

    // Whoever may read all paths may not read all Secrets.
    let token = kube.run(&["create", "token", "monitor"]);
    let url = format!("{}/davit.dev/backup", kube.cluster.server);
    if let Some(curl) = harness::program("curl") {
        for method in ["GET", "POST"] {
            let answer = output(
                Command::new(&curl)
                    .args(["-sk", "-X", method, &url, "-H"])
                    .arg(format!("Authorization: Bearer {}", token.trim())),
            );
            let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
            assert!(!answer.contains("very-secret-word"), "{method}");
            assert!(
                answer.contains("forbidden") || answer.contains("not found"),
                "{answer}"
            );
        }
    }

    // A store that is there is not replaced, and a damaged file makes none.
    assert!(kube.cluster.interrupt().success());
    let data = kube.cluster.dir.path().join("data");
    let refused = davit(&["restore", text(&file), "--data-dir", text(&data)]).unwrap_err();
    assert!(refused.contains("is not empty"), "{refused}");
    let damaged = kube.cluster.dir.path().join("damaged");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    std::fs::rename(data.join("store"), data.join("old-store")).unwrap();
    let refused = davit(&["restore", text(&damaged), "--data-dir", text(&data)]).unwrap_err();
    assert!(refused.contains("damaged"), "{refused}");
    assert!(!data.join("store").exists());

    davit(&["restore", text(&file), "--data-dir", text(&data)]).unwrap();
    kube.cluster.start_again();
    assert_eq!(kube.objects(), before);
    assert!(kube.revision() >= revision + BUMP);
    kube.run(&["create", "configmap", "again"]);
    // Tokens that were given out before count.
    let asked = kube
        .cluster
        .kubectl(&kube.binary)
        .args(["auth", "whoami", "--token", token.trim()])
        .output();
    assert!(asked.unwrap().status.success());
}

#[test]
fn a_check_says_what_is_damaged() {
    let Some(binary) = any_kubectl() else { return };
    let mut kube = cluster(binary, &[]);
    kubectl_stdin(&kube.cluster, &kube.binary, &["apply", "-f", "-"], OBJECTS);
    let data = kube.cluster.dir.path().join("data");
    let check = || davit(&["check", text(&data), "--root", text(&data.join("root"))]);
    let refused = check().unwrap_err();
    assert!(refused.contains("runs with"), "{refused}");
    assert!(kube.cluster.interrupt().success());
    let said = check().unwrap();
    assert!(
        said.contains("store") && said.contains(" objects of "),
        "{said}"
    );
    assert!(!said.contains("damaged"), "{said}");

    // Keys that belong to nobody, and a flipped bit among the objects.
    std::fs::copy(data.join("pki/sa.key"), data.join("pki/ca.key")).unwrap();
    let journal = data.join("store/db/0.jnl");
    let mut bytes = std::fs::read(&journal).unwrap();
    let place = bytes.windows(8).position(|some| some == b"settings");
    bytes[place.unwrap()] ^= 1;
    std::fs::write(&journal, &bytes).unwrap();
    let out = output(Command::new(env!("CARGO_BIN_EXE_davit")).args([
        "check",
        text(&data),
        "-o",
        "json",
    ]));
    assert!(!out.status.success());
    let parts: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let part = |name: &str| {
        let parts = parts.as_array().unwrap();
        parts.iter().find(|part| part["part"] == name).unwrap()
    };
    for name in ["store", "keys"] {
        assert_eq!(part(name)["faults"].as_array().unwrap().len(), 1, "{parts}");
        assert!(part(name)["advice"].is_string());
    }
    assert!(
        part("keys")["faults"][0]
            .as_str()
            .unwrap()
            .contains("not that of the certificate")
    );
}

#[test]
fn objects_move_to_etcd_and_back() {
    let Some(binary) = any_kubectl() else { return };
    let Some(curl) = harness::program("curl") else {
        return;
    };
    let Some(server) = Server::start() else {
        return;
    };
    let mut kube = cluster(binary.clone(), &[]);
    kubectl_stdin(&kube.cluster, &kube.binary, &["apply", "-f", "-"], OBJECTS);
    let before = kube.objects();
    let file = kube.cluster.dir.path().join("backup");
    let revision = kube.backup(&file);
    assert!(kube.cluster.interrupt().success());
    let data = kube.cluster.dir.path().join("data");
    let url = server.url().to_string();
    let restore = || {
        davit(&[
            "restore",
            text(&file),
            "--data-dir",
            text(&data),
            "--etcd-servers",
            &url,
        ])
    };
    // An etcd that lies behind would let clients wait for ever.
    let refused = restore().unwrap_err();
    assert!(refused.contains("--bump-revision"), "{refused}");
    let put = format!("{url}/v3/kv/put");
    let puts = vec![put.as_str(); usize::try_from(revision).unwrap()];
    run(Command::new(curl)
        .args(["-s", "-d", r#"{"key": "eA=="}"#])
        .args(puts));
    restore().unwrap();
    let refused = restore().unwrap_err();
    assert!(
        refused.contains("there are objects in that etcd already"),
        "{refused}"
    );

    let mut moved = cluster(binary, &["--etcd-servers", &url]);
    assert_eq!(moved.objects(), before);
    moved.run(&["create", "configmap", "in-etcd"]);
    let before = moved.objects();
    let back = kube.cluster.dir.path().join("back");
    let revision = moved.backup(&back);
    assert!(moved.cluster.interrupt().success());

    std::fs::remove_dir_all(data.join("store")).unwrap();
    davit(&["restore", text(&back), "--data-dir", text(&data)]).unwrap();
    kube.cluster.start_again();
    assert_eq!(kube.objects(), before);
    assert!(kube.revision() >= revision + BUMP);
}

/// Values that are encrypted at rest are so in a backup, too.
#[test]
fn secrets_stay_encrypted() {
    let Some(binary) = any_kubectl() else { return };
    let dir = harness::temp_dir();
    let config = dir.path().join("encryption.yaml");
    std::fs::write(&config, ENCRYPTION).unwrap();
    let kube = cluster(binary, &["--encryption-provider-config", text(&config)]);
    kubectl_stdin(&kube.cluster, &kube.binary, &["apply", "-f", "-"], OBJECTS);
    let file = dir.path().join("backup");
    kube.backup(&file);
    let bytes = std::fs::read(&file).unwrap();
    let holds = |what: &[u8]| bytes.windows(what.len()).any(|some| some == what);
    assert!(holds(b"/registry/core/secrets/default/password"));
    // As JSON has it, and as text.
    assert!(!holds(b"dmVyeS1zZWNyZXQtd29yZA") && !holds(b"very-secret-word"));
}

const ENCRYPTION: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox:
      keys: [{name: key1, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]
";
