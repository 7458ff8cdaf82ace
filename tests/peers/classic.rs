//! A driver of classic resource allocation that is built on the official libraries of Kubernetes 1.26, controller and
//! node plugin. The numbers are those of the DRA checklist.

use super::{Bed, CLAIMS, claim, pod};
use crate::peers::parts;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const DRIVER: &str = "slots.peers.davit.dev";

/// Classes with two slots on the real node, and with two on each simulated one.
const CLASSES: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: here}
data: {nodes: node-1, slots: "2", site: office}
---
apiVersion: resource.k8s.io/v1alpha1
kind: ResourceClass
metadata: {name: here}
driverName: slots.peers.davit.dev
parametersRef: {kind: ConfigMap, name: here, namespace: default}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: there}
data: {nodes: "sim-1,sim-2", slots: "2"}
---
apiVersion: resource.k8s.io/v1alpha1
kind: ResourceClass
metadata: {name: there}
driverName: slots.peers.davit.dev
parametersRef: {kind: ConfigMap, name: there, namespace: default}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: red}
data: {color: red}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: large}
data: {slots: "2"}
"#;

/// One half of the driver as a process, killed when it is dropped.
struct Peer {
    child: Child,
    log: PathBuf,
}

impl Peer {
    fn start(bed: &Bed, program: &Path, half: &str, args: &[(&str, &Path)]) -> Self {
        let log = bed.cluster.dir.path().join(format!("peer-{half}.log"));
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let mut command = Command::new(program);
        command.arg(half).args(["-driver", DRIVER]);
        for (flag, value) in args {
            command.arg(flag).arg(value);
        }
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        Self {
            child: command.spawn().unwrap(),
            log,
        }
    }

    fn controller(bed: &Bed, program: &Path, content: &str) -> Self {
        let args = [
            ("-kubeconfig", bed.cluster.kubeconfig.as_path()),
            ("-content-type", Path::new(content)),
        ];
        Self::start(bed, program, "controller", &args)
    }

    fn node(bed: &Bed, program: &Path) -> Self {
        let root = bed.cluster.dir.path().join("root");
        let kubelet = root.join("var/lib/kubelet");
        let socket = kubelet.join("plugins").join(DRIVER).join("plugin.sock");
        let args = [
            ("-registry", &*kubelet.join("plugins_registry")),
            ("-socket", &*socket),
            ("-cdi-dir", &*root.join("var/run/cdi")),
            ("-node", Path::new("node-1")),
        ];
        Self::start(bed, program, "node", &args)
    }

    fn has_said(&self, line: &str) -> bool {
        let log = std::fs::read_to_string(&self.log).unwrap();
        log.lines().any(|l| l == line)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            println!("{}:\n{log}", self.log.display());
        }
    }
}

fn template(name: &str, class: &str, parameters: &str) -> String {
    json!({"apiVersion": "resource.k8s.io/v1alpha1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": {"resourceClassName": class, "parametersRef": {"kind": "ConfigMap", "name": parameters}}}})
    .to_string()
}

fn of_template<'a>(entry: &'a str, template: &'a str) -> (&'a str, &'a str, &'a str) {
    (entry, "resourceClaimTemplateName", template)
}

/// Allocated with the node that was selected for a pod, or with the pod's own.
fn delayed(bed: &Bed, controller: &Peer, node: &Peer) {
    for (name, extra) in [
        ("delayed", json!({})),
        ("placed", json!({"nodeName": "node-1"})),
    ] {
        bed.apply(&pod(name, &[of_template("slot", "red")], &extra));
        bed.eventually(name, || bed.phase(name) == "Running");
        let own = format!("{name}-slot");
        assert_eq!(bed.state(&own), "allocated,reserved");
        let object = bed.object(CLAIMS, &own);
        assert_eq!(object["status"]["driverName"], DRIVER);
        let finalizers = json!([format!("{DRIVER}/deletion-protection")]);
        assert_eq!(object["metadata"]["finalizers"], finalizers);
        assert!(controller.has_said(&format!("allocated {own} on node-1 selected node-1")));
        assert!(node.has_said(&format!("prepared default {own}")));
        let env = bed.environment(name, "main");
        for line in [
            "CLASSIC_SLOTS=1",
            "CLASSIC_color=red",
            "CLASSIC_site=office",
            &format!("CLASSIC_CLAIM={own}"),
        ] {
            assert!(env.lines().any(|l| l == line), "{line}: {env}");
        }
        let uid = object["metadata"]["uid"].as_str().unwrap();
        bed.delete_pod(name);
        bed.eventually("the claim is given back", || {
            bed.is_gone(CLAIMS, &own) && controller.has_said(&format!("deallocated {own}"))
        });
        let undone = format!("unprepared default {own} [{DRIVER}/slots=claim-{uid}]");
        assert!(node.has_said(&undone), "{undone}");
        assert_eq!(bed.cdi_files(), 0);
    }
}

/// 128, 131: without a pod, for one pod after another.
fn immediate(bed: &Bed, controller: &Peer) {
    bed.apply(&claim("at-once", "here", "Immediate"));
    bed.eventually("allocated at once", || bed.state("at-once") == "allocated");
    assert!(controller.has_said("allocated at-once on node-1 selected "));
    let uses = [("c", "resourceClaimName", "at-once")];
    bed.apply(&pod("first", &uses, &json!({})));
    bed.eventually("first runs", || bed.phase("first") == "Running");
    bed.apply(&pod("second", &uses, &json!({})));
    bed.eventually("second waits", || {
        bed.is_pending_with("second", "resourceclaim in use")
    });
    bed.delete_pod("first");
    bed.eventually("second runs", || bed.phase("second") == "Running");
    bed.delete_pod("second");
    assert_eq!(bed.state("at-once"), "allocated");
    bed.kubectl(&["delete", CLAIMS, "at-once", "--timeout=60s"]);
}

fn on(node: &str) -> Value {
    json!({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"kubernetes.io/hostname": node}})
}

/// 129: two claims of one pod are placed by what the driver says of the nodes that the scheduler proposes.
fn negotiation(bed: &Bed, controller: &Peer) {
    let anywhere = json!({"tolerations": [{"operator": "Exists"}]});
    bed.apply(&pod("single", &[of_template("c", "one")], &on("sim-1")));
    bed.eventually("single", || bed.node_of("single") == "sim-1");
    let both = [of_template("a", "one"), of_template("b", "one")];
    bed.apply(&pod("pair", &both, &anywhere));
    bed.eventually("where both find room", || bed.node_of("pair") == "sim-2");
    for own in ["pair-a", "pair-b"] {
        assert_eq!(bed.state(own), "allocated,reserved");
        assert!(controller.has_said(&format!("allocated {own} on sim-2 selected sim-2")));
    }
    // The scheduler told of all three nodes, and the driver refused two.
    let refused = "unsuitable for pair a [node-1 sim-1] of [node-1 sim-1 sim-2]";
    assert!(controller.has_said(refused), "{refused}");
    bed.eventually("129: it ends with the scheduling", || {
        bed.is_gone("podscheduling", "pair")
    });

    bed.apply(&pod("big", &[of_template("c", "two")], &anywhere));
    bed.eventually("nowhere", || {
        bed.is_pending_with(
            "big",
            "3 resourceclaim cannot be allocated for the node (unsuitable)",
        )
    });
    let scheduling = bed.object("podscheduling", "big");
    let unsuitable = &scheduling["status"]["resourceClaims"][0]["unsuitableNodes"];
    assert_eq!(*unsuitable, json!(["node-1", "sim-1", "sim-2"]));
    bed.force("single");
    bed.eventually("big takes what single left", || {
        bed.node_of("big") == "sim-1"
    });
    bed.force("big");
    bed.force("pair");
    bed.eventually("all claims gone", || {
        bed.kubectl(&["get", CLAIMS, "-o", "name"]).is_empty()
    });
}

/// 132: a claim that is allocated where the next pod may not be is taken back.
fn deallocation(bed: &Bed, controller: &Peer) {
    bed.apply(&claim("moves", "there", "WaitForFirstConsumer"));
    let uses = [("c", "resourceClaimName", "moves")];
    for node in ["sim-1", "sim-2"] {
        bed.apply(&pod(node, &uses, &on(node)));
        bed.eventually(node, || bed.node_of(node) == node);
        assert!(controller.has_said(&format!("allocated moves on {node} selected {node}")));
        bed.force(node);
        bed.eventually("unused", || bed.state("moves") == "allocated");
    }
    assert!(controller.has_said("deallocated moves"));
    let object = bed.object(CLAIMS, "moves");
    assert!(object["status"]["deallocationRequested"].is_null());
}

/// The next process knows what the one before allocated, and speaks protobuf.
fn another_controller(bed: &Bed, controller: &mut Peer, program: &Path) {
    bed.apply(&claim("held", "here", "Immediate"));
    bed.eventually("held", || bed.state("held") == "allocated");
    controller.child.kill().unwrap();
    controller.child.wait().unwrap();
    *controller = Peer::controller(bed, program, "application/vnd.kubernetes.protobuf");
    bed.eventually("it knows both", || controller.has_said("learned 2"));
    // One of two slots is taken, and the whole does not fit beside it.
    let whole = [of_template("c", "whole")];
    bed.apply(&pod("whole", &whole, &json!({})));
    bed.eventually("it waits", || bed.is_pending_with("whole", "(unsuitable)"));
    bed.kubectl(&["delete", CLAIMS, "held", "moves", "--timeout=60s"]);
    bed.eventually("it runs", || bed.phase("whole") == "Running");
    let env = bed.environment("whole", "main");
    assert!(env.contains("CLASSIC_SLOTS=2\n"), "{env}");
    bed.delete_pod("whole");
    bed.eventually("all claims gone", || {
        bed.kubectl(&["get", CLAIMS, "-o", "name"]).is_empty()
    });
}

/// 130, with another driver than the one of the announcement.
#[test]
fn a_driver_built_on_the_libraries_of_1_26() {
    let Some(program) = parts::classic_driver() else {
        return;
    };
    let Some(bed) = Bed::up() else { return };
    bed.simulate(&["sim-1", "sim-2"]);
    let mut controller = Peer::controller(&bed, &program, "application/json");
    let node = Peer::node(&bed, &program);
    let templates = [
        CLASSES.to_owned(),
        template("red", "here", "red"),
        template("whole", "here", "large"),
        template("one", "there", "red"),
        template("two", "there", "large"),
    ];
    bed.apply(&templates.join("\n---\n"));
    delayed(&bed, &controller, &node);
    immediate(&bed, &controller);
    negotiation(&bed, &controller);
    deallocation(&bed, &controller);
    another_controller(&bed, &mut controller, &program);
}
