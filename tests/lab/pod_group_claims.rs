//! Claims that the pods of a group share (KEP-5729), in a whole cluster.

use super::*;

const DRIVERS: &str = "
drivers:
- name: link.vendor.example
  devices:
  - {name: 'fabric-{n}', count: 2}
";

const OBJECTS: &str = r#"
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: link}
spec:
  selectors: [{cel: {expression: 'device.driver == "link.vendor.example"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: fabric}
spec:
  spec: {devices: {requests: [{name: link, exactly: {deviceClassName: link}}]}}
---
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: training}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  resourceClaims: [{name: fabric, resourceClaimTemplateName: fabric}]
"#;

/// A pod of the group; `entry` is its name for the claim.
fn worker(name: &str, entry: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  schedulingGroup: {{podGroupName: training}}
  resourceClaims: [{{name: {entry}, resourceClaimTemplateName: fabric}}]
  containers: [{{name: main, image: none, resources: {{claims: [{{name: {entry}}}]}}}}]
---"
    )
}

#[test]
fn pods_of_a_group_share_its_claim_for_as_long_as_it_is_there() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let dir = temp_dir();
    let file = dir.path().join("devices.yaml");
    std::fs::write(&file, DRIVERS).unwrap();
    let devices = file.display().to_string();
    let gates = "GenericWorkload=true,GangScheduling=true,DRAWorkloadResourceClaims=true";
    let mut args = vec!["--no-node", "--sim-nodes", "1", "--devices", &devices];
    args.extend(["--feature-gates", gates]);
    args.extend(["--runtime-config", "scheduling.k8s.io/v1alpha2=true"]);
    let cluster = Cluster::up(&args);
    let ask = |args: &[&str]| kubectl(&cluster, &kubectl_binary, args);
    let apply = |text: &str| kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], text);
    let long = Duration::from_secs(60);
    apply(OBJECTS);
    // The third names the claim otherwise than the group does: it has one of its own.
    let pods = [
        worker("a", "fabric"),
        worker("b", "fabric"),
        worker("c", "alone"),
    ];
    apply(&pods.concat());
    for pod in ["pod/a", "pod/b", "pod/c"] {
        ask(&["wait", pod, "--for=condition=Ready", "--timeout=60s"]);
    }
    let claim_of = |kind: &str, name: &str| {
        let path = "jsonpath={.status.resourceClaimStatuses[*].resourceClaimName}";
        ask(&["get", kind, name, "-o", path])
    };
    let shared = claim_of("podgroup", "training");
    assert!(shared.starts_with("training-fabric-"), "{shared}");
    assert_eq!(
        [claim_of("pod", "a"), claim_of("pod", "b")],
        [shared.clone(), shared.clone()]
    );
    assert!(claim_of("pod", "c").starts_with("c-alone-"));
    let field = |path: &str| ask(&["get", "resourceclaim", &shared, "-o", path]);
    let users = "jsonpath={.status.reservedFor[*]['apiGroup','resource','name']}";
    assert_eq!(field(users), "scheduling.k8s.io podgroups training");
    assert_eq!(
        field("jsonpath={.metadata.ownerReferences[*].kind}"),
        "PodGroup"
    );
    let mut explain = Command::new(DAVIT);
    explain.args(["explain", "claim", &shared]);
    let explained = run(explain.env("KUBECONFIG", &cluster.kubeconfig));
    assert!(explained.contains("podgroup/training"), "{explained}");

    // It outlives its pods, and pods that come later use it.
    ask(&["delete", "pod", "a", "b", "--now"]);
    assert_eq!(field(users), "scheduling.k8s.io podgroups training");
    apply(&worker("late", "fabric"));
    ask(&["wait", "pod/late", "--for=condition=Ready", "--timeout=60s"]);
    assert_eq!(claim_of("pod", "late"), shared);

    // A device that goes bad ends them, though no claim says that they use it.
    let device = field("jsonpath={.status.allocation.devices.results[0].device}");
    apply(&format!(
        "
apiVersion: resource.k8s.io/v1beta2
kind: DeviceTaintRule
metadata: {{name: broken}}
spec:
  deviceSelector: {{driver: link.vendor.example, device: {device}}}
  taint: {{key: broken, effect: NoExecute}}
"
    ));
    eventually("the pod is evicted", long, || {
        ask(&["get", "pod", "late", "--ignore-not-found", "-o", "name"]).is_empty()
    });
    assert!(ask(&["get", "pod", "c", "-o", "name"]).contains("pod/c"));

    // The group takes its claim along.
    ask(&["delete", "pod", "c", "--now"]);
    ask(&["delete", "podgroup", "training", "--wait=false"]);
    eventually("group and claims are gone", long, || {
        ask(&["get", "podgroup,resourceclaim", "-o", "name"]).is_empty()
    });
}
