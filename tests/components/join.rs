//! Machines that join by a token, and how they leave (spec scale-out.md 6.1, 6.2).

use super::{Processes, component};
use crate::harness::{DAVIT, FULL_DISK, any_kubectl, eventually, output, run, temp_dir};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// A cluster without nodes.
struct Site {
    dir: tempfile::TempDir,
    kubectl: PathBuf,
    _processes: Processes,
}

impl Site {
    fn start() -> Option<Self> {
        let kubectl = any_kubectl()?;
        let dir = temp_dir();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let own = ["--data-dir", &path("server"), "--port", "0"];
        let mut server = component(dir.path(), "server", &own).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        let mut processes = Processes(vec![server]);
        let signing = [
            "--kubeconfig",
            &path("server/admin.kubeconfig"),
            "--cluster-signing-cert-file",
            &path("server/pki/ca.crt"),
            "--cluster-signing-key-file",
            &path("server/pki/ca.key"),
            "--secure-port",
            "0",
        ];
        let controllers = component(dir.path(), "controllers", &signing).spawn();
        processes.0.push(controllers.unwrap());
        Some(Self {
            dir,
            kubectl,
            _processes: processes,
        })
    }

    fn admin(&self) -> PathBuf {
        self.dir.path().join("server/admin.kubeconfig")
    }

    fn kubectl(&self, args: &[&str]) -> String {
        run(&mut self.kubectl_command(args))
    }

    fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .args(args)
            .env("KUBECONFIG", self.admin())
            .env("HOME", self.dir.path());
        command
    }

    /// `davit token`
    fn token(&self, args: &[&str]) -> String {
        let mut command = Command::new(DAVIT);
        command
            .arg("token")
            .args(args)
            .arg("--kubeconfig")
            .arg(self.admin());
        run(&mut command).trim().to_owned()
    }

    fn data(&self, place: &str) -> PathBuf {
        self.dir.path().join(place).join("data")
    }

    /// A machine of its own, as far as its directories go, on which `davit node` is started with these flags.
    fn node(&self, place: &str, name: &str, flags: &[&str]) -> Command {
        let dir = self.dir.path().join(place);
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = component(&dir, "node", flags);
        command
            .arg("--data-dir")
            .arg(dir.join("data"))
            .arg("--root")
            .arg(dir.join("root"))
            .args(["--runtime", "none", "--node-name", name, "--node-port", "0"])
            .args(FULL_DISK)
            // it must not be taken for the node's
            .env("KUBECONFIG", self.admin());
        command
    }

    fn log(&self, place: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(place).join("node.log")).unwrap()
    }

    /// Waits for a node that is refused; what it says. Nothing of a node may be left.
    fn refused(&self, place: &str, mut node: Child) -> String {
        let end = Instant::now() + LONG;
        while node.try_wait().unwrap().is_none() {
            if Instant::now() > end {
                let _gone = node.kill();
                let _reaped = node.wait();
                panic!("{place} goes on: {}", self.log(place));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = self.log(place);
        assert!(!node.wait().unwrap().success(), "{log}");
        for left in ["node.kubeconfig", "node-pki/kubelet-client-current.pem"] {
            assert!(!self.data(place).join(left).exists(), "{left}");
        }
        log
    }

    fn is_ready(&self, node: &str) -> bool {
        let nodes = output(&mut self.kubectl_command(&["get", "node", node, "--no-headers"]));
        let text = String::from_utf8_lossy(&nodes.stdout).into_owned();
        text.split_whitespace().any(|word| word == "Ready")
    }

    fn uid(&self, node: &str) -> String {
        self.kubectl(&["get", "node", node, "-o", "jsonpath={.metadata.uid}"])
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn down(place: &Path) -> Output {
    let mut command = Command::new(DAVIT);
    command.args(["down", "--purge", "--data-dir"]);
    command
        .arg(place.join("data"))
        .arg("--root")
        .arg(place.join("root"));
    output(&mut command)
}

/// Items 64 to 67, 70 and 71: docs/node.md, "A second machine" and "Taking a machine away", word for word.
#[test]
fn items_064_to_071_a_machine_joins_by_a_token_and_is_taken_away() {
    let Some(site) = Site::start() else { return };
    // Nobody has signed for this one: it is looked for as long as a signature could take, beside everything else.
    let unsigned = site.token(&[
        "create",
        "--usages",
        "authentication",
        "--print-join-command",
    ]);
    let unsigned = words(&unsigned)[2..].to_vec();
    let unsigned = site
        .node("unsigned", "unsigned", &unsigned)
        .spawn()
        .unwrap();

    let command = site.token(&["create", "--print-join-command", "--description", "edge"]);
    let join = words(&command);
    assert_eq!(join[..3], ["davit", "node", "--join"], "{command}");
    let join = &join[2..];
    let mut first = Processes(vec![site.node("first", "edge", join).spawn().unwrap()]);
    eventually("the node has joined", LONG, || site.is_ready("edge"));
    let (uid, certificate) = (
        site.uid("edge"),
        site.data("first")
            .join("node-pki/kubelet-client-current.pem"),
    );
    let issued = std::fs::read(&certificate).unwrap();
    let lease = ["-n", "kube-node-lease", "get", "lease", "edge"];
    let lease = [&lease[..], &["-o", "jsonpath={.spec.renewTime}"]].concat();
    eventually("the node has its lease", LONG, || {
        output(&mut site.kubectl_command(&lease)).status.success()
    });
    // The certificate of its server waits for somebody to approve it.
    eventually("a request for the server", LONG, || {
        site.kubectl(&["get", "csr"])
            .contains("kubernetes.io/kubelet-serving")
    });

    // Another machine by that name.
    let twin = site.node("twin", "edge", join).spawn().unwrap();
    let said = site.refused("twin", twin);
    assert!(
        said.contains("a Node with name \"edge\" and status \"Ready\" already exists in the cluster. \
                       You must delete the existing Node or change the name of this new joining Node"),
        "{said}"
    );
    // Another authority, another secret of the same token.
    let mut wrong = join.to_vec();
    let other = format!("sha256:{}", "0".repeat(64));
    *wrong.last_mut().unwrap() = &other;
    let said = site.refused(
        "pinned",
        site.node("pinned", "other", &wrong).spawn().unwrap(),
    );
    assert!(
        said.contains("are pinned") && said.contains("cluster CA found in cluster-info"),
        "{said}"
    );
    let guessed = format!("{}.0123456789abcdef", &join[3][..6]);
    let mut wrong = join.to_vec();
    wrong[3] = &guessed;
    let said = site.refused(
        "guessed",
        site.node("guessed", "other", &wrong).spawn().unwrap(),
    );
    assert!(said.contains("failed to verify JWS signature"), "{said}");

    // A token that ends after the cluster was found, here by a file.
    let info = "jsonpath={.data.kubeconfig}";
    let info = site.kubectl(&[
        "-n",
        "kube-public",
        "get",
        "configmap",
        "cluster-info",
        "-o",
        info,
    ]);
    let file = site.dir.path().join("discovery");
    std::fs::write(&file, info).unwrap();
    let file = file.display().to_string();
    let short = site.token(&["create", "--ttl", "1s"]);
    eventually("the token is over", LONG, || {
        !site.token(&["list"]).contains(&short)
    });
    let by_file = ["--discovery-file", &file, "--token", &short];
    let said = site.refused(
        "late",
        site.node("late", "other", &by_file).spawn().unwrap(),
    );
    assert!(said.contains("Unauthorized"), "{said}");

    // Joined already: the token is not asked for any more.
    let token = join[3];
    assert!(site.token(&["list"]).contains("edge"));
    assert_eq!(
        site.token(&["delete", token]),
        format!("bootstrap token \"{}\" deleted", &token[..6])
    );
    drop(first);
    first = Processes(vec![site.node("first", "edge", join).spawn().unwrap()]);
    let before = site.kubectl(&lease);
    eventually("the same node goes on", LONG, || {
        site.kubectl(&lease) != before
    });
    assert_eq!(site.uid("edge"), uid);
    assert_eq!(std::fs::read(&certificate).unwrap(), issued);

    // Deleted: its lease goes; an agent that starts again registers with the certificate it has.
    site.kubectl(&[
        "drain",
        "edge",
        "--ignore-daemonsets",
        "--delete-emptydir-data",
    ]);
    site.kubectl(&["delete", "node", "edge"]);
    eventually("nothing of the node is left", LONG, || {
        let left = site.kubectl(&["get", "leases,csinodes", "-A", "-o", "name"]);
        !left.contains("edge")
    });
    drop(first);
    let back = Processes(vec![site.node("first", "edge", join).spawn().unwrap()]);
    eventually("the machine is a node again", LONG, || {
        site.is_ready("edge")
    });
    assert_ne!(site.uid("edge"), uid);
    site.kubectl(&["delete", "node", "edge"]);
    drop(back);
    let place = site.dir.path().join("first");
    let ended = down(&place);
    assert!(ended.status.success(), "{ended:?}");
    assert!(!place.join("data").exists());

    let said = site.refused("unsigned", unsigned);
    assert!(
        said.contains("is invalid for this cluster or it has expired"),
        "{said}"
    );
    let nodes = site.kubectl(&["get", "nodes", "-o", "name"]);
    assert_eq!(nodes, "", "no half-made node");
}
