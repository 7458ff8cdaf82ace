//! Classic dynamic resource allocation (`resource.k8s.io/v1alpha1`): the test driver as processes of its own against the
//! real binary, looked at through kubectl. The numbers are those of the DRA checklist.

#[path = "peers/classic.rs"]
mod peer;

use crate::harness;
use harness::{Cluster, DAVIT, any_kubectl, eventually, kubectl, kubectl_stdin, output, root, run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);
const CLAIMS: &str = "resourceclaims.v1alpha1.resource.k8s.io";
const TEST_DRIVER: &str = "test-driver.cdi.k8s.io";
const CAT_DRIVER: &str = "resource-driver.example.com";

/// What the announcement of the test driver shows, in the words of its files.
const INLINE: &str = r#"
apiVersion: resource.k8s.io/v1alpha1
kind: ResourceClass
metadata: {name: example}
driverName: test-driver.cdi.k8s.io
---
apiVersion: v1
kind: ConfigMap
metadata: {name: test-inline-claim-parameters}
data: {a: b}
---
apiVersion: resource.k8s.io/v1alpha1
kind: ResourceClaimTemplate
metadata: {name: test-inline-claim-template}
spec:
  metadata: {labels: {app: inline-resource}}
  spec:
    resourceClassName: example
    parametersRef: {kind: ConfigMap, name: test-inline-claim-parameters}
---
apiVersion: v1
kind: Pod
metadata: {name: test-inline-claim}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  containers:
  - name: with-resource
    image: davit.local/host
    command: ["sh", "-c", "set"]
    resources: {claims: [{name: resource}]}
  - name: without-resource
    image: davit.local/host
    command: ["sh", "-c", "set"]
  resourceClaims:
  - name: resource
    source: {resourceClaimTemplateName: test-inline-claim-template}
"#;

/// The kind of the cats' parameters.
const CATS_CRD: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: claimparameters.cats.resource.example.com}
spec:
  group: cats.resource.example.com
  scope: Namespaced
  names: {kind: ClaimParameters, plural: claimparameters, singular: claimparameter, listKind: ClaimParametersList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {color: {type: string}, size: {type: string}}}
"#;

/// The cats of the API documentation of 1.26; the image is one that is there.
const CATS: &str = r#"
apiVersion: resource.k8s.io/v1alpha1
kind: ResourceClass
metadata:
  name: resource.example.com
driverName: resource-driver.example.com
---
apiVersion: cats.resource.example.com/v1
kind: ClaimParameters
metadata:
  name: large-black-cats
spec:
  color: black
  size: large
---
apiVersion: resource.k8s.io/v1alpha1
kind: ResourceClaimTemplate
metadata:
  name: large-black-cats
spec:
  spec:
    resourceClassName: resource.example.com
    parametersRef:
      apiGroup: cats.resource.example.com
      kind: ClaimParameters
      name: large-black-cats
---
apiVersion: v1
kind: Pod
metadata:
  name: pod-with-cats
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: first-example
    image: davit.local/host
    command: ["sleep", "9999"]
    resources:
      claims:
      - name: cat-0
  - name: second-example
    image: davit.local/host
    command: ["sleep", "9999"]
    resources:
      claims:
      - name: cat-1
  resourceClaims:
  - name: cat-0
    source:
      resourceClaimTemplateName: large-black-cats
  - name: cat-1
    source:
      resourceClaimTemplateName: large-black-cats
"#;

/// One half of a driver as a process.
struct Half(Child);

impl Half {
    fn start(cluster: &Cluster, name: &str, args: &[&str]) -> Self {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(cluster.dir.path().join(format!("{name}-{}.log", args[0])))
            .unwrap();
        let child = Command::new(DAVIT)
            .args(["-v", "classic-test", "--drivername", name, "--kubeconfig"])
            .arg(&cluster.kubeconfig)
            .args(args)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn plugin(cluster: &Cluster, name: &str) -> Self {
        let root = cluster.dir.path().join("root");
        let registry = root.join("var/lib/kubelet/plugins_registry");
        let socket = root
            .join("var/lib/kubelet/plugins")
            .join(name)
            .join("dra.sock");
        let flags = [
            ("--plugin-registration-path", registry),
            ("--endpoint", socket),
            ("--cdi-dir", root.join("var/run/cdi")),
        ];
        let mut args = vec!["kubelet-plugin".to_owned()];
        for (flag, path) in flags {
            args.extend([flag.to_owned(), path.display().to_string()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Self::start(cluster, name, &args)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A cluster with one real node, and a kubectl for it.
struct Bed {
    cluster: Cluster,
    kubectl: PathBuf,
}

impl Bed {
    fn up() -> Option<Self> {
        root()?;
        let kubectl = any_kubectl()?;
        let cluster = Cluster::up(&["--node-name", "node-1", "--allow-host-image"]);
        let bed = Self { cluster, kubectl };
        bed.eventually("the default service account", || {
            bed.succeeds(&["get", "serviceaccount", "default"])
        });
        Some(bed)
    }

    fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        let mut holds = holds;
        eventually(what, SOON, || {
            let yes = holds();
            if !yes {
                std::thread::sleep(Duration::from_millis(100));
            }
            yes
        });
    }

    fn kubectl(&self, args: &[&str]) -> String {
        kubectl(&self.cluster, &self.kubectl, args)
    }

    fn succeeds(&self, args: &[&str]) -> bool {
        output(self.cluster.kubectl(&self.kubectl).args(args))
            .status
            .success()
    }

    fn apply(&self, manifest: &str) {
        kubectl_stdin(
            &self.cluster,
            &self.kubectl,
            &["apply", "-f", "-"],
            manifest,
        );
    }

    fn object(&self, kind: &str, name: &str) -> Value {
        let args = ["get", kind, name, "-o", "json", "--ignore-not-found"];
        serde_json::from_str(&self.kubectl(&args)).unwrap_or_default()
    }

    fn is_gone(&self, kind: &str, name: &str) -> bool {
        self.object(kind, name).is_null()
    }

    /// The columns of a claim but its age.
    fn row(&self, claim: &str) -> Vec<String> {
        let args = ["get", CLAIMS, claim, "--no-headers", "--ignore-not-found"];
        let line = self.kubectl(&args);
        let mut row: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        row.pop();
        row
    }

    fn state(&self, claim: &str) -> String {
        self.row(claim).pop().unwrap_or_default()
    }

    fn phase(&self, pod: &str) -> String {
        let pod = self.object("pod", pod);
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        assert_ne!(phase, "Failed", "{pod:#}");
        phase.to_owned()
    }

    fn node_of(&self, pod: &str) -> String {
        let pod = self.object("pod", pod);
        pod["spec"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    fn is_pending_with(&self, pod: &str, text: &str) -> bool {
        let pod = self.object("pod", pod);
        let conditions = pod["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.unwrap_or_default().into_iter();
        conditions.any(|c| {
            c["type"] == "PodScheduled" && c["message"].as_str().is_some_and(|m| m.contains(text))
        })
    }

    fn explain(&self, what: &str, name: &str) -> String {
        let mut command = Command::new(DAVIT);
        command.args(["explain", what, name, "--kubeconfig"]);
        run(command.arg(&self.cluster.kubeconfig))
    }

    fn environment(&self, pod: &str, container: &str) -> String {
        let mut shown = String::new();
        // kubectl loses what a short command says when it arrives before its streams are ready.
        self.eventually("the environment is shown", || {
            let args = ["exec", pod, "-c", container, "--", "env"];
            let told = output(self.cluster.kubectl(&self.kubectl).args(args));
            shown = String::from_utf8_lossy(&told.stdout).into_owned();
            told.status.success() && !shown.is_empty()
        });
        shown
    }

    /// Nodes without an agent, that pods can be bound to.
    fn simulate(&self, nodes: &[&str]) {
        for node in nodes {
            self.apply(
                &json!({"apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}})
                .to_string(),
            );
            let status = json!({"status": {
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"},
                "capacity": {"cpu": "4", "memory": "8Gi", "pods": "20"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Simulated", "message": "simulated"}]}});
            let status = status.to_string();
            self.kubectl(&["patch", "node", node, "--subresource=status", "-p", &status]);
        }
    }

    fn delete_pod(&self, pod: &str) {
        self.kubectl(&["delete", "pod", pod, "--wait=true"]);
    }

    /// Nobody runs on simulated nodes: their pods go by force.
    fn force(&self, pod: &str) {
        self.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"]);
    }

    fn cdi_files(&self) -> usize {
        let dir = self.cluster.dir.path().join("root/var/run/cdi");
        std::fs::read_dir(dir).map_or(0, Iterator::count)
    }
}

fn config(cluster: &Cluster, name: &str, resources: &Value) -> String {
    let path: &Path = cluster.dir.path();
    let path = path.join(format!("{name}.json"));
    std::fs::write(&path, resources.to_string()).unwrap();
    path.display().to_string()
}

/// 130 and dra-classic-test-driver.md.
fn the_test_driver_as_a_user_runs_it(bed: &Bed) {
    bed.apply(INLINE);
    bed.eventually("the pod completes", || {
        bed.phase("test-inline-claim") == "Succeeded"
    });
    let table = bed.kubectl(&["get", CLAIMS]);
    let columns: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    let expected = [
        "NAME",
        "RESOURCECLASSNAME",
        "ALLOCATIONMODE",
        "STATE",
        "AGE",
    ];
    assert_eq!(columns, expected, "{table}");
    assert_eq!(
        bed.row("test-inline-claim-resource"),
        [
            "test-inline-claim-resource",
            "example",
            "WaitForFirstConsumer",
            "allocated,reserved"
        ]
    );
    let pods = bed.kubectl(&["get", "pods", "test-inline-claim", "--no-headers"]);
    let pods: Vec<&str> = pods.split_whitespace().collect();
    assert_eq!(pods[..4], ["test-inline-claim", "0/2", "Completed", "0"]);
    let logs = |container| bed.kubectl(&["logs", "test-inline-claim", container]);
    let with = logs("with-resource");
    let line = with.lines().find(|l| l.contains("user_a"));
    assert_eq!(line, Some("user_a='b'"), "{with}");
    assert!(!logs("without-resource").contains("user_a"));
    assert!(
        bed.is_gone("podscheduling", "test-inline-claim"),
        "129: it ends with the scheduling"
    );
    let template = bed.object(
        "resourceclaimtemplates.v1alpha1.resource.k8s.io",
        "test-inline-claim-template",
    );
    assert_eq!(template["apiVersion"], "resource.k8s.io/v1alpha1");
    // The pod keeps the form it was written in.
    let entry = &bed.object("pod", "test-inline-claim")["spec"]["resourceClaims"][0];
    assert_eq!(
        entry["source"]["resourceClaimTemplateName"],
        "test-inline-claim-template"
    );
    bed.delete_pod("test-inline-claim");
    bed.eventually("the claim goes with its pod", || {
        bed.is_gone(CLAIMS, "test-inline-claim-resource")
    });
    bed.eventually("its CDI file too", || bed.cdi_files() == 0);
}

/// dra-classic-cats.yaml.
fn cats(bed: &Bed) {
    bed.apply(CATS_CRD);
    let crd = "crd/claimparameters.cats.resource.example.com";
    bed.kubectl(&["wait", "--for=condition=established", "--timeout=30s", crd]);
    bed.apply(CATS);
    bed.eventually("the cats run", || bed.phase("pod-with-cats") == "Running");
    for claim in ["pod-with-cats-cat-0", "pod-with-cats-cat-1"] {
        assert_eq!(bed.state(claim), "allocated,reserved");
        let claim = bed.object(CLAIMS, claim);
        assert_eq!(claim["status"]["driverName"], CAT_DRIVER);
        let finalizers = json!(["resource-driver.example.com/deletion-protection"]);
        assert_eq!(claim["metadata"]["finalizers"], finalizers);
    }
    for container in ["first-example", "second-example"] {
        let env = bed.environment("pod-with-cats", container);
        assert!(env.contains("user_color=black\n") && env.contains("user_size=large\n"));
    }
    let text = bed.explain("claim", "pod-with-cats-cat-0");
    assert!(text.contains("reserved for pod-with-cats"), "{text}");
    bed.delete_pod("pod-with-cats");
    bed.eventually("the cats are gone", || {
        bed.kubectl(&["get", CLAIMS, "-o", "name"]).is_empty()
    });
}

fn pod(name: &str, claims: &[(&str, &str, &str)], extra: &Value) -> String {
    let entry =
        |(entry, how, which): &(&str, &str, &str)| json!({"name": entry, "source": {*how: which}});
    let used: Vec<Value> = claims
        .iter()
        .map(|(entry, ..)| json!({"name": entry}))
        .collect();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "resourceClaims": claims.iter().map(entry).collect::<Vec<_>>(),
            "containers": [{"name": "main", "image": "davit.local/host",
                "command": ["sleep", "9999"], "resources": {"claims": used}}],
        },
    });
    for (key, value) in extra.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod.to_string()
}

fn claim(name: &str, class: &str, mode: &str) -> String {
    json!({"apiVersion": "resource.k8s.io/v1alpha1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"resourceClassName": class, "allocationMode": mode}})
    .to_string()
}

/// A pod with claims of two drivers, on a node that was chosen by hand (133, as davit has it).
fn two_drivers_and_a_chosen_node(bed: &Bed) {
    let claims = [
        (
            "a",
            "resourceClaimTemplateName",
            "test-inline-claim-template",
        ),
        ("cat", "resourceClaimTemplateName", "large-black-cats"),
    ];
    bed.apply(&pod("both", &claims, &json!({})));
    bed.apply(&pod("placed", &claims, &json!({"nodeName": "node-1"})));
    for name in ["both", "placed"] {
        bed.eventually(name, || bed.phase(name) == "Running");
        let env = bed.environment(name, "main");
        assert!(env.contains("user_a=b\n") && env.contains("user_color=black\n"));
        bed.eventually("negotiation over", || bed.is_gone("podscheduling", name));
        bed.delete_pod(name);
    }
    bed.eventually("all claims gone", || {
        bed.kubectl(&["get", CLAIMS, "-o", "name"]).is_empty()
    });
}

/// 128, 131, 95: an immediate claim, used by one pod at a time, deleted while in use.
fn a_claim_that_is_deleted_in_use(bed: &Bed) {
    bed.apply(&claim("alone", "example", "Immediate"));
    bed.eventually("allocated at once", || bed.state("alone") == "allocated");
    let uses = [("c", "resourceClaimName", "alone")];
    bed.apply(&pod("first", &uses, &json!({})));
    bed.eventually("first runs", || bed.phase("first") == "Running");
    bed.apply(&pod("second", &uses, &json!({})));
    bed.eventually("second waits", || {
        bed.is_pending_with("second", "resourceclaim in use")
    });
    bed.delete_pod("first");
    bed.eventually("second runs", || bed.phase("second") == "Running");
    bed.kubectl(&["delete", CLAIMS, "alone", "--wait=false"]);
    assert_eq!(bed.state("alone"), "deleted,allocated,reserved");
    bed.delete_pod("second");
    bed.eventually("the claim goes with its last user", || {
        bed.is_gone(CLAIMS, "alone")
    });
}

/// The controller is away, comes, is killed, and comes again.
fn a_controller_that_is_killed(bed: &Bed, controller: &mut Half) {
    controller.kill();
    let own = [(
        "a",
        "resourceClaimTemplateName",
        "test-inline-claim-template",
    )];
    bed.apply(&pod("patient", &own, &json!({})));
    bed.eventually("it waits for the driver", || {
        bed.is_pending_with(
            "patient",
            "waiting for resource driver to allocate resource",
        )
    });
    let text = bed.explain("pod", "patient");
    let says = "claim a (patient-a): waits for driver test-driver.cdi.k8s.io to say which of 1 proposed nodes";
    assert!(text.contains(says), "{text}");
    *controller = Half::start(&bed.cluster, TEST_DRIVER, &["controller"]);
    bed.eventually("it runs", || bed.phase("patient") == "Running");
    controller.kill();
    bed.delete_pod("patient");
    bed.eventually("the claim waits for the driver", || {
        bed.state("patient-a") == "deleted,allocated"
    });
    *controller = Half::start(&bed.cluster, TEST_DRIVER, &["controller"]);
    bed.eventually("the claim is gone", || bed.is_gone(CLAIMS, "patient-a"));
}

#[test]
fn the_examples_of_1_26_work_as_shown() {
    let Some(bed) = Bed::up() else { return };
    let mut controller = Half::start(&bed.cluster, TEST_DRIVER, &["controller"]);
    let _plugin = Half::plugin(&bed.cluster, TEST_DRIVER);
    let cat_args = ["controller", "--custom-parameters"];
    let _cat_controller = Half::start(&bed.cluster, CAT_DRIVER, &cat_args);
    let _cat_plugin = Half::plugin(&bed.cluster, CAT_DRIVER);
    the_test_driver_as_a_user_runs_it(&bed);
    cats(&bed);
    two_drivers_and_a_chosen_node(&bed);
    a_claim_that_is_deleted_in_use(&bed);
    a_controller_that_is_killed(&bed, &mut controller);
    // What a namespace holds goes with it, by way of the driver.
    bed.kubectl(&["create", "namespace", "passing"]);
    kubectl_stdin(
        &bed.cluster,
        &bed.kubectl,
        &["apply", "-n", "passing", "-f", "-"],
        &claim("left", "example", "Immediate"),
    );
    bed.eventually("allocated", || {
        bed.kubectl(&["get", CLAIMS, "left", "-n", "passing"])
            .contains("allocated")
    });
    bed.kubectl(&["delete", "namespace", "passing", "--timeout=60s"]);
}

/// 129, 132: resources of simulated nodes, one claim each.
#[test]
fn scheduler_and_driver_agree_on_nodes() {
    let Some(bed) = Bed::up() else { return };
    bed.simulate(&["sim-1", "sim-2"]);
    let resources = json!({"NodeLocal": true, "Nodes": ["sim-1", "sim-2"], "MaxAllocations": 1});
    let file = config(&bed.cluster, "resources", &resources);
    let _controller = Half::start(
        &bed.cluster,
        TEST_DRIVER,
        &["controller", "--resource-config", &file],
    );
    let templates: Vec<&str> = INLINE.split("---").take(3).collect();
    bed.apply(&templates.join("---"));
    let anywhere = json!({"tolerations": [{"operator": "Exists"}]});
    let own = [(
        "a",
        "resourceClaimTemplateName",
        "test-inline-claim-template",
    )];
    for name in ["p-1", "p-2"] {
        bed.apply(&pod(name, &own, &anywhere));
    }
    bed.eventually("both are placed", || {
        let mut nodes = [bed.node_of("p-1"), bed.node_of("p-2")];
        nodes.sort();
        nodes == ["sim-1", "sim-2"]
    });
    bed.apply(&pod("p-3", &own, &anywhere));
    let full = "3 resourceclaim cannot be allocated for the node (unsuitable)";
    bed.eventually("the third waits", || bed.is_pending_with("p-3", full));
    let text = bed.explain("pod", "p-3");
    assert!(text.contains("refuses the selected node"), "{text}");
    let freed = bed.node_of("p-1");
    bed.force("p-1");
    bed.eventually("the third takes the first's place", || {
        bed.node_of("p-3") == freed
    });
    bed.force("p-2");
    bed.force("p-3");
    bed.eventually("all claims gone", || {
        bed.kubectl(&["get", CLAIMS, "-o", "name"]).is_empty()
    });

    // A claim that is allocated where the next pod may not be is taken back and allocated anew.
    bed.apply(&claim("moves", "example", "WaitForFirstConsumer"));
    assert_eq!(bed.state("moves"), "pending");
    let uses = [("c", "resourceClaimName", "moves")];
    for node in ["sim-1", "sim-2"] {
        let mut there = anywhere.clone();
        there["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        bed.apply(&pod(node, &uses, &there));
        bed.eventually(node, || bed.node_of(node) == node);
        assert_eq!(bed.state("moves"), "allocated,reserved");
        let handle = bed.object(CLAIMS, "moves");
        let handle = handle["status"]["allocation"]["resourceHandle"].as_str();
        assert!(handle.unwrap().contains(node), "{handle:?}");
        bed.force(node);
        bed.eventually("unused", || bed.state("moves") == "allocated");
    }
    bed.kubectl(&["delete", CLAIMS, "moves", "--timeout=60s"]);
}
