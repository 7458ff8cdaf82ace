//! What people see of a cluster in a terminal: `davit status`, `top`, `events`, `logs`, `kubeconfig`.

use crate::harness::{
    Cluster, DAVIT, any_kubectl, eventually, kubectl_stdin, output, program, run, temp_dir,
};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const INVENTORY: &str = "
resources:
- name: hardware-vendor.example/foo
  count: 3
  devices: [{ id: foo-2, healthy: false }]
";

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: holder}
spec:
  containers:
  - name: main
    image: none
    resources: {limits: {hardware-vendor.example/foo: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  containers:
  - name: main
    image: none
    resources: {limits: {hardware-vendor.example/foo: 9}}
";

fn davit(cluster: &Cluster, line: &str) -> Output {
    let mut command = Command::new(DAVIT);
    command.args(line.split_whitespace());
    command.env("KUBECONFIG", &cluster.kubeconfig);
    output(&mut command)
}

fn told(cluster: &Cluster, line: &str) -> String {
    let output = davit(cluster, line);
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_cluster_is_seen_at_a_glance() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let dir = temp_dir();
    let file = dir.path().join("devices.yaml");
    std::fs::write(&file, INVENTORY).unwrap();
    let devices = file.display().to_string();
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "1", "--devices", &devices]);
    kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], PODS);
    let mut seen = String::new();
    eventually("the status has all", Duration::from_secs(90), || {
        seen = told(&cluster, "status");
        let all = [
            "Nodes        1 of 1 ready",
            "hardware-vendor.example/foo   3       1      1",
            "hardware-vendor.example/foo on node sim-0 is not healthy: foo-2",
            "davit devices --node sim-0 -o wide",
            "pod default/greedy has no node",
            "davit explain pod greedy -n default",
        ];
        all.iter().all(|wanted| seen.contains(wanted))
    });
    println!("{seen}");
    assert!(
        seen.contains(" ready\n") && seen.contains("1 Pending, 1 Running"),
        "{seen}"
    );
    assert_eq!(davit(&cluster, "status --exit-code").status.code(), Some(3));
    let json: serde_json::Value = serde_json::from_str(&told(&cluster, "status -o json")).unwrap();
    assert_eq!(json["ready"], true);
    assert_eq!(
        json["devices"]["hardware-vendor.example/foo"]["notHealthy"],
        1
    );

    let events = told(&cluster, "events --for pod/greedy");
    let header = "LAST SEEN   TYPE      REASON             OBJECT       MESSAGE";
    assert!(events.starts_with(header), "{events}");
    assert!(
        events.contains("FailedScheduling") && !events.contains("pod/holder"),
        "{events}"
    );
    assert!(told(&cluster, "events --for node/sim-0").contains("node/sim-0"));

    let top = told(&cluster, "top --once");
    println!("{top}");
    for wanted in [
        "NODE    RESOURCE                      DEVICE   HEALTH      NUMA   POD",
        "Unhealthy",
        "default/holder",
        "greedy",
    ] {
        assert!(top.contains(wanted), "{wanted}\n{top}");
    }
    assert!(!top.contains('\x1b'));
    for (line, says) in [
        ("logs nobody", "there is no pod nobody in namespace default"),
        (
            "logs holder -c other",
            "the pod has no container other; it has main",
        ),
    ] {
        let output = davit(&cluster, line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
    top_draws_on_a_terminal(&cluster);
    events_come_live(&cluster, &kubectl_binary);
}

/// `davit top` with a terminal of its own, which `script` makes.
fn on_a_terminal(cluster: &Cluster) -> Child {
    let mut command = Command::new("timeout");
    let line = format!("stty rows 24 cols 80; {DAVIT} top --interval 1; echo code=$?; stty -a");
    command
        .args(["60", "script", "-qec", &line, "/dev/null"])
        .env("KUBECONFIG", &cluster.kubeconfig)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Reads until the text has come; what has come so far.
fn until(out: &mut impl Read, seen: &mut String, wanted: &str) {
    let mut piece = [0; 4096];
    while !seen.contains(wanted) {
        let read = out.read(&mut piece).unwrap();
        assert!(read > 0, "{wanted:?} does not come: {seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
}

fn top_draws_on_a_terminal(cluster: &Cluster) {
    if program("script").is_none() {
        return;
    }
    let mut child = on_a_terminal(cluster);
    let (mut keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut seen = String::new();
    until(&mut out, &mut seen, "[Devices]");
    assert!(seen.contains("\x1b[?1049h"), "{seen:?}");
    keys.write_all(b"\t").unwrap();
    until(&mut out, &mut seen, "[Pods]");
    until(&mut out, &mut seen, "greedy");
    keys.write_all(b"q").unwrap();
    drop(keys);
    until(&mut out, &mut seen, "-cstopb");
    child.wait().unwrap();
    // The screen, the cursor and the modes are as before.
    let (_, after) = seen.rsplit_once("\x1b[?25h\x1b[?1049l").unwrap();
    assert!(
        after.contains("code=0") && after.contains(" icanon") && after.contains(" echo "),
        "{after}"
    );
    let lines = seen.split("\x1b[K");
    let longest = lines.map(|line| line.rsplit("\r\n").next().unwrap().chars().count());
    assert!(longest.max().unwrap() < 200);
}

fn events_come_live(cluster: &Cluster, kubectl_binary: &Path) {
    let mut command = Command::new(DAVIT);
    command.args(["events", "-w", "--for", "pod/late"]);
    command
        .env("KUBECONFIG", &cluster.kubeconfig)
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut seen = String::new();
    until(&mut out, &mut seen, "LAST SEEN");
    let late = PODS.split("---").next().unwrap().replace("holder", "late");
    kubectl_stdin(cluster, kubectl_binary, &["apply", "-f", "-"], &late);
    until(&mut out, &mut seen, "pod/late");
    run(Command::new("kill").arg(child.id().to_string()));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_cluster_is_put_beside_others_into_kubectls_file() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let cluster = Cluster::up(&["--no-node"]);
    let home = temp_dir();
    let file = home.path().join(".kube/config");
    std::fs::create_dir(home.path().join(".kube")).unwrap();
    let other = "apiVersion: v1\nkind: Config\ncurrent-context: other\ncontexts: [{name: other, context: {cluster: o, user: o}}]\n\
                 clusters: [{name: o, cluster: {server: 'https://o.example'}}]\nusers: [{name: o, user: {token: t}}]\n";
    std::fs::write(&file, other).unwrap();
    let merge = |more: &str| {
        let mut command = Command::new(DAVIT);
        command.args(["kubeconfig", "--merge", "--name", "lab"]);
        command
            .args(more.split_whitespace())
            .env("HOME", home.path());
        command.env("KUBECONFIG", &cluster.kubeconfig);
        run(&mut command)
    };
    let kubectl = |line: &str| {
        let mut command = Command::new(&kubectl_binary);
        command
            .args(line.split_whitespace())
            .env("HOME", home.path());
        run(command.env_remove("KUBECONFIG")).trim().to_owned()
    };
    assert!(merge("").contains("kubectl --context lab"));
    assert_eq!(kubectl("config current-context"), "other");
    assert!(kubectl("--context lab get namespaces").contains("kube-system"));
    assert!(kubectl("config view").contains("https://o.example"));
    merge("--switch");
    assert_eq!(kubectl("config current-context"), "lab");
    assert_eq!(kubectl("config get-contexts -o name"), "lab\nother");
    // Without --merge it is printed, as kubectl reads it.
    let printed = told(&cluster, "kubeconfig");
    std::fs::write(&file, printed).unwrap();
    assert!(kubectl("get namespaces").contains("kube-system"));
}
