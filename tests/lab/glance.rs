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
    names_and_drawings(&cluster);
    colours_are_for_terminals(&cluster);
    shells_are_told_the_names(&cluster);
    top_draws_on_a_terminal(&cluster);
    events_come_live(&cluster, &kubectl_binary);
}

fn names_and_drawings(cluster: &Cluster) {
    let names = told(cluster, "devices -o name");
    let expected = ["0", "1", "2"].map(|n| format!("sim-0/hardware-vendor.example/foo/foo-{n}\n"));
    assert_eq!(names, expected.concat());
    assert_eq!(
        told(cluster, "devices -o name --resource x.example/none"),
        ""
    );
    let events = told(cluster, "events -o name --for pod/greedy");
    assert!(events.starts_with("event/greedy."), "{events}");
    assert!(told(cluster, "features -o name").lines().count() > 50);
    let drawn = told(cluster, "devices --numa");
    let explained = told(cluster, "explain node sim-0");
    println!("{drawn}\n{explained}");
    for text in [&drawn, &explained] {
        assert!(
            text.contains("1 of 3 held") && text.contains("Unhealthy   foo-2"),
            "{text}"
        );
        assert!(text.contains("default/holder   foo-"), "{text}");
    }
    assert!(explained.starts_with("Node sim-0: ready\n"), "{explained}");
    let output = davit(cluster, "explain node nobody");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(davit(cluster, "explain nothing").status.code(), Some(2));
}

fn colours_are_for_terminals(cluster: &Cluster) {
    const RED: &str = "\x1b[31mUnhealthy\x1b[0m";
    assert!(!told(cluster, "devices").contains('\x1b'));
    assert!(told(cluster, "devices --color always").contains(RED));
    assert!(told(cluster, "explain pod greedy --color always").contains("\x1b["));
    assert!(told(cluster, "events --color always").contains("\x1b[33mWarning\x1b[0m"));
    assert!(told(cluster, "status --color always").contains("\x1b[1mNodes\x1b[0m"));
    for structured in [
        "devices -o json --color always",
        "devices -o name --color always",
    ] {
        assert!(!told(cluster, structured).contains('\x1b'), "{structured}");
    }
    if program("script").is_none() {
        return;
    }
    let shown = |line: &str, no_color: &str| {
        let mut command = Command::new("timeout");
        let line = format!("{DAVIT} {line}");
        command
            .args(["60", "script", "-qec", &line, "/dev/null"])
            .env("KUBECONFIG", &cluster.kubeconfig)
            .env("TERM", "xterm")
            .env("NO_COLOR", no_color)
            .stdin(Stdio::null());
        run(&mut command)
    };
    assert!(shown("devices", "").contains(RED));
    assert!(!shown("devices", "1").contains("\x1b["));
    assert!(!shown("devices --color never", "").contains("\x1b["));
}

/// What a shell's script asks for when somebody presses Tab at the end of the line.
fn completed(cluster: &Path, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = Command::new(DAVIT);
    command.env("DAVIT_COMPLETE", "bash");
    command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
    command.env("_CLAP_COMPLETE_COMP_TYPE", "9");
    command.env("_CLAP_COMPLETE_SPACE", "true");
    command.env("_CLAP_IFS", "\n").env("KUBECONFIG", cluster);
    let output = output(command.arg("--").args(words));
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn shells_are_told_the_names(cluster: &Cluster) {
    for (line, names) in [
        ("davit devices --node ", "sim-0"),
        (
            "davit devices --resource hardware",
            "hardware-vendor.example/foo",
        ),
        ("davit explain pod ", "greedy holder"),
        ("davit explain pod -n default h", "holder"),
        ("davit explain node s", "sim-0"),
        ("davit explain pod -n kube-p", "kube-public"),
        ("davit logs holder -c ", "main"),
        ("davit events --for pod/g", "pod/greedy"),
        ("davit events --for cl", "claim/"),
    ] {
        let got = completed(&cluster.kubeconfig, line);
        let got: Vec<&str> = got
            .split_whitespace()
            .filter(|name| !name.starts_with('-'))
            .collect();
        assert_eq!(got.join(" "), names, "{line}");
    }
    // kubectl asks by this name.
    let programs = temp_dir();
    let asks = programs.path().join("kubectl_complete-davit");
    std::os::unix::fs::symlink(DAVIT, &asks).unwrap();
    let mut kubectls = Command::new(&asks);
    kubectls.args(["explain", "pod", "-n", "default", "gr"]);
    assert_eq!(
        run(kubectls.env("KUBECONFIG", &cluster.kubeconfig)),
        "greedy\n:4\n"
    );
    // A cluster that is away.
    let nobody = cluster.dir.path().join("nobody");
    let text = std::fs::read_to_string(&cluster.kubeconfig).unwrap();
    std::fs::write(
        &nobody,
        text.replace(&cluster.server, "https://127.0.0.1:1"),
    )
    .unwrap();
    let away = output(
        Command::new(DAVIT)
            .arg("devices")
            .env("KUBECONFIG", &nobody),
    );
    let said = String::from_utf8(away.stderr).unwrap();
    let begins = said.starts_with("davit: cannot list nodes: client error");
    assert!(begins && said.contains("`davit up` starts one"), "{said}");
    let got = completed(&nobody, "davit devices --node ");
    assert!(!got.contains("sim-0"), "{got}");
    // What the shells are given asks davit.
    let directory = Path::new(DAVIT).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap();
    let ask = "source <(davit completion bash); COMP_WORDS=(davit explain node s); COMP_CWORD=3; COMP_TYPE=9; \
               _clap_complete_davit davit s node; printf '%s' \"${COMPREPLY[*]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", ask])
        .env("PATH", format!("{directory}:{path}"));
    assert_eq!(
        run(bash.env("KUBECONFIG", &cluster.kubeconfig)).trim(),
        "sim-0"
    );
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
    // The last that stty tells.
    until(&mut out, &mut seen, "extproc");
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
