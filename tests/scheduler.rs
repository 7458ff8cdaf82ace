//! A cluster whose scheduler has a configuration: two profiles, and an extender that has a say in both. One whose pods are
//! scheduled in groups.

use crate::harness;
use harness::{Cluster, DAVIT, any_kubectl, eventually, kubectl_stdin, output, run, temp_dir};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// An extender that leaves of the nodes the one with the number in the pod's label `rack`.
fn racks() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Answers requests until the connection ends.
fn answer(stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).is_ok_and(|n| n > 0) && line != "\r\n" {
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if length == 0 || reader.read_exact(&mut body).is_err() {
            return;
        }
        let answer = judge(&serde_json::from_slice(&body).unwrap()).to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
        let sent = write!(writer, "{head} {}\r\n\r\n{answer}", answer.len());
        if sent.is_err() {
            return;
        }
    }
}

fn judge(question: &Value) -> Value {
    let rack = question["Pod"]["metadata"]["labels"]["rack"].as_str();
    let names = question["NodeNames"].as_array().unwrap().iter();
    let fits = |name: &&Value| rack.is_none_or(|rack| **name == format!("sim-{rack}"));
    let (left, out): (Vec<&Value>, Vec<&Value>) = names.partition(fits);
    let failed = out
        .iter()
        .map(|n| (n.as_str().unwrap().to_owned(), json!("wrong rack")));
    json!({"NodeNames": left, "FailedNodes": failed.collect::<serde_json::Map<_, _>>()})
}

fn pod(name: &str, scheduler: &str, rack: Option<&str>) -> Value {
    let labels = rack.map_or(json!({}), |rack| json!({"rack": rack}));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "example.test/none"}]},
    })
}

fn configuration(extender: SocketAddr) -> String {
    format!(
        "apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: first
  pluginConfig:
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchFields: [{{key: metadata.name, operator: In, values: [sim-0]}}]
extenders:
- urlPrefix: http://{extender}/racks
  filterVerb: filter
  nodeCacheCapable: true
"
    )
}

fn apply(cluster: &Cluster, kubectl: &Path, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    kubectl_stdin(cluster, kubectl, &["apply", "-f", "-"], &list.to_string());
}

#[test]
fn pods_land_where_their_profile_and_the_extender_say() {
    let Some(kubectl) = any_kubectl() else { return };
    let extender = racks();
    let dir = temp_dir();
    let file = dir.path().join("scheduler.yaml");
    std::fs::write(&file, configuration(extender)).unwrap();
    let file = file.display().to_string();
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "2", "--scheduler-config", &file]);
    apply(
        &cluster,
        &kubectl,
        &[
            pod("any-rack-1", "default-scheduler", Some("1")),
            pod("any-rack-0", "default-scheduler", Some("0")),
            pod("first-a", "first", None),
            pod("first-b", "first", None),
            pod("first-rack-1", "first", Some("1")),
            pod("foreign", "somebody-else", None),
        ],
    );
    let get = |kind: &str, name: &str, path: &str| {
        let path = format!("jsonpath={path}");
        let found = output(
            cluster
                .kubectl(&kubectl)
                .args(["get", kind, name, "-o", &path]),
        );
        String::from_utf8(found.stdout).unwrap()
    };
    let minute = Duration::from_secs(60);
    for (name, node) in [
        ("any-rack-1", "sim-1"),
        ("any-rack-0", "sim-0"),
        ("first-a", "sim-0"),
        ("first-b", "sim-0"),
    ] {
        eventually(&format!("{name} is on {node}"), minute, || {
            get("pod", name, "{.spec.nodeName}") == node
        });
    }
    let both = "0/2 nodes are available: 1 node(s) didn't match scheduler-enforced node affinity, 1 wrong rack.";
    eventually("the refusal names both", minute, || {
        get("pod", "first-rack-1", "{.status.conditions[0].message}").starts_with(both)
    });
    eventually("the event is the profile's", minute, || {
        let path = "{range .items[?(@.reason=='FailedScheduling')]}{.involvedObject.name}={.reportingComponent} {end}";
        let listed = output(cluster.kubectl(&kubectl).args([
            "get",
            "events",
            "-o",
            &format!("jsonpath={path}"),
        ]));
        String::from_utf8_lossy(&listed.stdout).contains("first-rack-1=first ")
    });
    let explained = output(
        Command::new(DAVIT)
            .args(["explain", "pod", "first-rack-1"])
            .env("KUBECONFIG", &cluster.kubeconfig),
    );
    let explained = String::from_utf8(explained.stdout).unwrap();
    assert!(
        explained.contains(&format!("http://{extender}/racks")),
        "{explained}"
    );
    assert!(explained.contains("wrong rack"), "{explained}");
    assert_eq!(
        get("pod", "foreign", "{.spec.nodeName}{.status.conditions}"),
        ""
    );
    // What is written is complete, and is read again.
    let (once, twice) = (dir.path().join("once.yaml"), dir.path().join("twice.yaml"));
    for (from, to) in [(file.as_ref(), &once), (once.as_path(), &twice)] {
        run(Command::new(DAVIT)
            .arg("kube-scheduler")
            .arg("--config")
            .arg(from)
            .arg("--write-config-to")
            .arg(to));
    }
    let written = std::fs::read_to_string(&once).unwrap();
    assert!(written.contains("podMaxBackoffSeconds: 10"), "{written}");
    assert_eq!(std::fs::read_to_string(&twice).unwrap(), written);
}

/// KEP-5732.
#[test]
fn a_gang_goes_into_one_rack() {
    let Some(kubectl) = any_kubectl() else { return };
    let gates = "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true";
    let mut args = vec!["--no-node", "--sim-nodes", "4", "--feature-gates", gates];
    args.extend(["--runtime-config", "scheduling.k8s.io/v1alpha2=true"]);
    let cluster = Cluster::up(&args);
    let minute = Duration::from_secs(60);
    let ask = |args: &[&str]| run(cluster.kubectl(&kubectl).args(args));
    eventually("the nodes are there", minute, || {
        ask(&["get", "nodes", "-o", "name"]).contains("sim-3")
    });
    let label = |node: &str, rack: &str| {
        ask(&[
            "label",
            "node",
            node,
            &format!("example.com/rack={rack}"),
            "--overwrite",
        ]);
    };
    for (node, rack) in [("sim-0", "a"), ("sim-1", "b"), ("sim-2", "b")] {
        label(node, rack);
    }
    let constraints = json!({"topology": [{"key": "example.com/rack"}]});
    let group = json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}, "schedulingConstraints": constraints}});
    // One pod a node.
    let members = (0..3).map(|i| {
        let mut member = pod(&format!("m{i}"), "default-scheduler", Some("x"));
        member["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        member["spec"]["affinity"] = json!({"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"rack": "x"}}}]}});
        member
    });
    let objects: Vec<Value> = [group].into_iter().chain(members).collect();
    apply(&cluster, &kubectl, &objects);
    let message = "jsonpath={.status.conditions[0].message}";
    eventually("the group says that no rack has room", minute, || {
        ask(&["get", "podgroup", "g", "-o", message]).starts_with("0/2 placements are available")
    });
    let nodes = || {
        let nodes = ask(&["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"]);
        let mut nodes: Vec<String> = nodes.split_whitespace().map(str::to_owned).collect();
        nodes.sort();
        nodes
    };
    assert_eq!(nodes(), Vec::<String>::new());
    label("sim-3", "b");
    eventually("it goes where there is room", minute, || {
        nodes() == ["sim-1", "sim-2", "sim-3"]
    });
}

/// KEP-5710: a gang of a high class has a whole group removed, the cheaper of what runs, and nobody goes in vain.
#[test]
fn a_gang_has_a_whole_group_removed() {
    let Some(kubectl) = any_kubectl() else { return };
    let gates = "GenericWorkload=true,GangScheduling=true,WorkloadAwarePreemption=true";
    let mut args = vec!["--no-node", "--sim-nodes", "3", "--feature-gates", gates];
    args.extend(["--runtime-config", "scheduling.k8s.io/v1alpha2=true"]);
    let cluster = Cluster::up(&args);
    let minute = Duration::from_secs(60);
    let ask = |args: &[&str]| run(cluster.kubectl(&kubectl).args(args));
    eventually("the nodes are there", minute, || {
        ask(&["get", "nodes", "-o", "name"]).contains("sim-2")
    });
    let class = |name: &str, value: i32| json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value});
    let group = |name: &str, spec: Value| json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec});
    // One pod a node: all want the same port of it.
    let holder = |name: &str, group: Option<&str>, class: Option<&str>| {
        let mut pod = pod(name, "default-scheduler", None);
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
        if let Some(group) = group {
            pod["spec"]["schedulingGroup"] = json!({"podGroupName": group});
        }
        if let Some(class) = class {
            pod["spec"]["priorityClassName"] = json!(class);
        }
        pod
    };
    let batch = json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": "PodGroup"});
    let running = [
        class("high", 100),
        class("middle", 50),
        group("batch", batch),
        holder("b0", Some("batch"), None),
        holder("b1", Some("batch"), None),
        holder("kept", None, Some("middle")),
    ];
    apply(&cluster, &kubectl, &running);
    let nodes_of = |pods: &[&str]| {
        let mut args = vec!["get", "pods", "--ignore-not-found"];
        args.extend(pods);
        args.extend(["-o", "jsonpath={..spec.nodeName}"]);
        ask(&args).split_whitespace().count()
    };
    eventually("all nodes are taken", minute, || {
        nodes_of(&["b0", "b1", "kept"]) == 3
    });

    let gang = |count: usize| json!({"schedulingPolicy": {"gang": {"minCount": count}}, "priorityClassName": "high"});
    let large: Vec<String> = (0..4).map(|i| format!("l{i}")).collect();
    let members = large.iter().map(|name| holder(name, Some("large"), None));
    let objects: Vec<Value> = [group("large", gang(4))]
        .into_iter()
        .chain(members)
        .collect();
    apply(&cluster, &kubectl, &objects);
    let why = "removing pods of lower priority does not help";
    let message = "jsonpath={.status.conditions[0].message}";
    eventually("what is too large says so", minute, || {
        ask(&["get", "podgroup", "large", "-o", message])
            == format!("pod group is unschedulable, {why}")
    });
    assert_eq!(
        ask(&[
            "get",
            "podgroup",
            "large",
            "-o",
            "jsonpath={.spec.priority}"
        ]),
        "100"
    );
    assert_eq!(nodes_of(&["b0", "b1", "kept"]), 3);
    let told = large.iter().any(|name| {
        let mut explain = Command::new(DAVIT);
        explain
            .args(["explain", "pod", name])
            .env("KUBECONFIG", &cluster.kubeconfig);
        let text = String::from_utf8(output(&mut explain).stdout).unwrap();
        text.contains(&format!("preemption: {why}"))
    });
    assert!(told, "no pod of the group says why nobody is removed");

    let members = ["g0", "g1"].map(|name| holder(name, Some("g"), None));
    let objects: Vec<Value> = [group("g", gang(2))].into_iter().chain(members).collect();
    apply(&cluster, &kubectl, &objects);
    eventually("it goes", minute, || nodes_of(&["g0", "g1"]) == 2);
    assert_eq!(nodes_of(&["b0", "b1"]), 0);
    assert_eq!(nodes_of(&["kept"]), 1);
    let target = "jsonpath={.status.conditions[?(@.type==\"DisruptionTarget\")].reason}";
    assert_eq!(
        ask(&["get", "podgroup", "batch", "-o", target]),
        "PreemptionByScheduler"
    );
    let scheduled = "jsonpath={.status.conditions[?(@.type==\"PodGroupScheduled\")].status}";
    eventually("it says so", minute, || {
        ask(&["get", "podgroup", "g", "-o", scheduled]) == "True"
    });
}

/// Items 58 to 60 of the scheduler's checklist.
#[test]
fn a_gang_gets_its_nodes_together_or_none() {
    let Some(kubectl) = any_kubectl() else { return };
    let cluster = Cluster::up(&[
        "--no-node",
        "--sim-nodes",
        "4",
        "--feature-gates",
        "GenericWorkload=true,GangScheduling=true",
        "--runtime-config",
        "scheduling.k8s.io/v1alpha2=true",
    ]);
    let minute = Duration::from_secs(60);
    let get = |what: &[&str], path: &str| {
        let path = format!("jsonpath={path}");
        let found = output(
            cluster
                .kubectl(&kubectl)
                .arg("get")
                .args(what)
                .args(["-o", &path]),
        );
        String::from_utf8(found.stdout).unwrap()
    };
    let placed = || {
        let nodes = get(&["pods"], "{.items[*].spec.nodeName}");
        nodes.split_whitespace().count()
    };
    let explained = || {
        let mut explain = Command::new(DAVIT);
        explain
            .args(["explain", "pod", "m0"])
            .env("KUBECONFIG", &cluster.kubeconfig);
        String::from_utf8(output(&mut explain).stdout).unwrap()
    };
    eventually("the nodes are there", minute, || {
        get(&["nodes"], "{.items[*].metadata.name}").contains("sim-3")
    });
    run(cluster.kubectl(&kubectl).args(["cordon", "sim-3"]));
    // One pod a node.
    let members: Vec<Value> = (0..5)
        .map(|i| {
            let mut member = pod(&format!("m{i}"), "default-scheduler", Some("x"));
            member["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
            member["spec"]["affinity"] = json!({"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"rack": "x"}}}]}});
            member
        })
        .collect();
    apply(&cluster, &kubectl, &members);
    let explanation = explained();
    assert!(
        explanation.contains("waits for PodGroup g, which does not exist"),
        "{explanation}"
    );
    let group = json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
        "metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}});
    apply(&cluster, &kubectl, &[group]);
    let condition = || {
        get(
            &["podgroup", "g"],
            "{.status.conditions[0].type}={.status.conditions[0].status} {.status.conditions[0].reason}",
        )
    };
    eventually("the group says that it waits", minute, || {
        condition() == "PodGroupScheduled=False Unschedulable"
    });
    let waits = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled";
    eventually("three pods say so", minute, || {
        let told = get(
            &["pods"],
            "{range .items[*]}{.status.conditions[0].message};{end}",
        );
        told.matches(waits).count() == 3
    });
    assert_eq!(placed(), 0);
    let explanation = explained();
    assert!(
        explanation.contains("PodGroup g waits for room: of 5 pods 0 have nodes, 4 more have to get theirs at the same time"),
        "{explanation}"
    );

    run(cluster.kubectl(&kubectl).args(["uncordon", "sim-3"]));
    eventually("four go", minute, || placed() == 4);
    eventually("the group says so", minute, || {
        condition() == "PodGroupScheduled=True Scheduled"
    });
    let listed = run(cluster.kubectl(&kubectl).args(["get", "podgroups"]));
    assert!(
        listed.contains("Gang") && listed.contains("Scheduled"),
        "{listed}"
    );

    // It stays as long as pods belong to it.
    run(cluster
        .kubectl(&kubectl)
        .args(["delete", "podgroup", "g", "--wait=false"]));
    assert_ne!(get(&["podgroup", "g"], "{.metadata.deletionTimestamp}"), "");
    run(cluster
        .kubectl(&kubectl)
        .args(["delete", "pods", "--all", "--wait=false"]));
    eventually("the group is gone", minute, || {
        get(&["podgroups"], "{.items[*].metadata.name}").is_empty()
    });
}
