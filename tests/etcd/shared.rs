//! Several API servers on one etcd (spec scale-out.md, items 42 to 51 and 58).

use super::server::Server;
use super::{Kube, STEP};
use crate::harness::{Cluster, any_kubectl, eventually, output, run, temp_dir};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Flags of the server that says that it is at 192.0.2.`host`.
fn flags(url: &str, address: &str) -> Vec<String> {
    let flags = [
        "--no-node",
        "--etcd-servers",
        url,
        "--etcd-shared",
        "--advertise-address",
        address,
        "--service-node-port-range",
        "30100-30109",
    ];
    flags.map(str::to_owned).to_vec()
}

fn start(url: &str, address: &str, binary: &Path, keys_of: Option<&Cluster>) -> Kube {
    let flags = flags(url, address);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let prepare = |dir: &Path| {
        let Some(other) = keys_of else { return };
        std::fs::create_dir_all(dir.join("data")).unwrap();
        let pki = other.dir.path().join("data/pki");
        run(Command::new("cp").arg("-r").arg(pki).arg(dir.join("data")));
    };
    Kube {
        cluster: Cluster::up_after(&flags, prepare),
        binary: binary.to_owned(),
    }
}

/// A server that must not start; what it says.
fn refused(url: &str, more: &[&str]) -> String {
    let dir = temp_dir();
    let out = Command::new(env!("CARGO_BIN_EXE_davit"))
        .args(["up", "--no-node", "--port", "0", "--etcd-servers", url])
        .args(more)
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .output()
        .unwrap();
    assert!(!out.status.success());
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn endpoints(kube: &Kube) -> BTreeSet<String> {
    let path = "jsonpath={.subsets[*].addresses[*].ip}";
    let text = kube.try_run(&["get", "endpoints", "kubernetes", "-o", path]);
    text.unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn both(addresses: [&str; 2]) -> BTreeSet<String> {
    addresses.map(str::to_owned).into()
}

/// Runs kubectl as often as there are arguments, at one server and the other in turn, all at once; how often it succeeded.
fn at_once(servers: [&Kube; 2], all: Vec<Vec<String>>) -> usize {
    std::thread::scope(|scope| {
        let runs: Vec<_> = all
            .into_iter()
            .enumerate()
            .map(|(i, args)| {
                let kube = servers[i % 2];
                scope.spawn(move || {
                    let out = output(kube.cluster.kubectl(&kube.binary).args(&args));
                    out.status.success()
                })
            })
            .collect();
        let done = runs.into_iter().map(|run| run.join().unwrap());
        done.filter(|succeeded| *succeeded).count()
    })
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// What one server has given or signed counts at the other.
fn agree(a: &Kube, b: &Kube) {
    // Tokens.
    a.eventually("the default service account", || {
        a.try_run(&["get", "serviceaccount", "default"]).is_ok()
    });
    let token = a.run(&["create", "token", "default"]);
    let review = b.cluster.dir.path().join("review.yaml");
    let text = format!(
        "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec: {{token: {}}}\n",
        token.trim()
    );
    std::fs::write(&review, text).unwrap();
    let file = review.display().to_string();
    let path = "jsonpath={.status.authenticated} {.status.user.username}";
    let reviewed = b.run(&["create", "-f", &file, "-o", path]);
    assert_eq!(reviewed, "true system:serviceaccount:default:default");
    // What one has written the other waits for, if it is asked for by its version.
    for i in 0..10 {
        let name = format!("seen-{i}");
        let version = "jsonpath={.metadata.resourceVersion}";
        let version = a.run(&["create", "configmap", &name, "-o", version]);
        let path = format!("/api/v1/namespaces/default/configmaps?resourceVersion={version}");
        assert!(b.run(&["get", "--raw", &path]).contains(&name));
    }
    // Roles.
    let can = ["auth", "can-i", "list", "secrets", "--as", "somebody"];
    assert!(b.try_run(&can).is_err());
    a.run(&[
        "create",
        "clusterrolebinding",
        "somebody",
        "--clusterrole=cluster-admin",
        "--user=somebody",
    ]);
    eventually(
        "the role at the other server",
        Duration::from_secs(2),
        || b.try_run(&can).is_ok(),
    );
    // Custom kinds.
    let definition = a.cluster.dir.path().join("definition.yaml");
    std::fs::write(&definition, super::WORK).unwrap();
    a.run(&["apply", "-f", &definition.display().to_string()]);
    a.run(&[
        "wait",
        "--for=condition=Established",
        "crd/things.example.com",
        "--timeout=30s",
    ]);
    let thing = b.cluster.dir.path().join("one.yaml");
    std::fs::write(
        &thing,
        "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: one}\n",
    )
    .unwrap();
    let file = thing.display().to_string();
    eventually(
        "a custom object at the other server",
        Duration::from_secs(10),
        || b.try_run(&["apply", "-f", &file]).is_ok(),
    );
    assert!(a.try_run(&["get", "thing", "one"]).is_ok());
}

/// Nothing is given twice, and no more than there is.
fn share(a: &Kube, b: &Kube) {
    let services = |name: &str, count: usize, port: &str| -> Vec<Vec<String>> {
        (0..count)
            .map(|i| {
                words(&format!(
                    "create service nodeport {name}{i} --tcp=80 {port}"
                ))
            })
            .collect()
    };
    assert_eq!(
        at_once([a, b], services("same", 4, "--node-port=30105")),
        1,
        "one port"
    );
    assert_eq!(at_once([a, b], services("any", 12, "")), 9, "ten ports");
    let path =
        "jsonpath={range .items[*]}{.spec.clusterIP} {.spec.ports[*].nodePort}{\"\\n\"}{end}";
    let given = a.run(&[
        "get",
        "services",
        "--field-selector=metadata.name!=kubernetes",
        "-o",
        path,
    ]);
    let given: Vec<(&str, &str)> = given
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let addresses: BTreeSet<&str> = given.iter().map(|(address, _)| *address).collect();
    let ports: BTreeSet<&str> = given.iter().map(|(_, port)| *port).collect();
    assert_eq!(
        (given.len(), addresses.len(), ports.len()),
        (10, 10, 10),
        "{given:?}"
    );
    let names = a.run(&["get", "services", "-o", "name"]);
    let names: Vec<&str> = names
        .lines()
        .filter(|name| !name.ends_with("/kubernetes"))
        .collect();
    b.run(&[&["delete"], &names[..]].concat());
    assert_eq!(
        at_once([a, b], services("again", 10, "")),
        10,
        "all are free again"
    );
    // One quota at both.
    a.run(&["create", "namespace", "q"]);
    a.run(&["-n", "q", "create", "quota", "q", "--hard=secrets=10"]);
    let secrets = (0..30).map(|i| words(&format!("-n q create secret generic s{i}")));
    assert_eq!(at_once([a, b], secrets.collect()), 10, "a quota");
}

fn holder(kube: &Kube, lease: &str) -> String {
    let path = "jsonpath={.spec.holderIdentity}";
    kube.try_run(&["-n", "kube-system", "get", "lease", lease, "-o", path])
        .unwrap_or_default()
}

#[test]
fn items_042_to_058_two_servers_share_an_etcd() {
    let Some(binary): Option<PathBuf> = any_kubectl() else {
        return;
    };
    let Some(server) = Server::start() else {
        return;
    };
    let url = server.url().to_string();
    let (one, other) = ("192.0.2.11", "192.0.2.12");
    let a = start(&url, one, &binary, None);
    // Another that has made keys of its own, or wants the store for itself.
    let said = refused(&url, &["--etcd-shared"]);
    assert!(said.contains("it must be a copy of theirs"), "{said}");
    let said = refused(&url, &[]);
    assert!(said.contains("owned by servers that share it"), "{said}");
    let mut b = start(&url, other, &binary, Some(&a.cluster));
    let all = both([one, other]);
    a.eventually("both serve", || {
        endpoints(&a) == all && endpoints(&b) == all
    });
    let label = "--selector=apiserver.kubernetes.io/identity=kube-apiserver";
    let leases = || a.run(&["-n", "kube-system", "get", "leases", label, "-o", "name"]);
    a.eventually("a lease of each", || leases().lines().count() == 2);
    agree(&a, &b);
    share(&a, &b);

    // Who leads is killed: the other one does the work, and nobody is sent to who is gone.
    let leader = format!("_{}", a.cluster.pid());
    a.eventually("the first one leads", || {
        holder(&a, "kube-controller-manager").ends_with(&leader)
    });
    let mut a = a;
    a.cluster.kill();
    let killed = Instant::now();
    let work = b.cluster.dir.path().join("work.yaml");
    std::fs::write(&work, super::WORK).unwrap();
    b.run(&["apply", "-f", &work.display().to_string()]);
    b.eventually("who is gone serves no more", || {
        endpoints(&b) == BTreeSet::from([other.to_owned()])
    });
    assert!(
        killed.elapsed() < Duration::from_secs(30),
        "{:?}",
        killed.elapsed()
    );
    eventually("the other one controls", Duration::from_secs(30), || {
        b.run(&["get", "pods", "-l", "app=web", "-o", "name"])
            .lines()
            .count()
            == 3
    });
    // It comes back; the other one ends in order, and is not among the endpoints then.
    a.cluster.start_again();
    a.eventually("both serve again", || endpoints(&a) == all);
    assert!(b.cluster.interrupt().success());
    assert_eq!(endpoints(&a), BTreeSet::from([one.to_owned()]));
    let replicas = ["scale", "deployment", "web", "--replicas=1"];
    a.run(&replicas);
    eventually("the first one controls", STEP, || {
        a.run(&["get", "pods", "-l", "app=web", "-o", "name"])
            .lines()
            .count()
            == 1
    });
    for kube in [&a, &b] {
        let log = kube.cluster.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}
