//! A driver written with the SDK, and claims of every kind through kubectl, while the driver is updated, killed and
//! started again all the time.

use crate::{gpu_harness, harness};
use gpu_harness::{DRIVER, Gpus, Site, apply, claim, class, class_of, devices, pod, running};
use harness::{Cluster, any_kubectl, eventually, kubectl, output, root, temp_dir};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);
const INVENTORY: &[&str] = &[
    "--gpus",
    "5",
    "--partitions",
    "--uncut",
    "1",
    "--shared",
    "1",
    "--numa-nodes",
    "2",
    "--device-nodes",
    "--device-metadata",
];

/// Updates the driver without a gap, or kills it and starts it again, in turns.
struct Shift {
    stop: Arc<AtomicBool>,
    changes: Arc<AtomicUsize>,
    task: Option<std::thread::JoinHandle<()>>,
}

impl Shift {
    fn begin(site: Site) -> Self {
        let (stop, changes) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (stopped, changed) = (stop.clone(), changes.clone());
        let task = std::thread::spawn(move || {
            let mut n = 0;
            let mut current = Gpus::start(&site, "0", INVENTORY);
            while !stopped.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_secs(4));
                let new = (n + 1).to_string();
                if n % 3 == 2 {
                    current.kill();
                    current = Gpus::start(&site, &new, INVENTORY);
                } else {
                    let next = Gpus::start(&site, &new, INVENTORY);
                    eventually("the new instance serves", SOON, || site.serves(&new));
                    std::thread::sleep(Duration::from_secs(2));
                    current.stop();
                    current = next;
                }
                n += 1;
                changed.store(n, Ordering::SeqCst);
            }
        });
        Self {
            stop,
            changes,
            task: Some(task),
        }
    }

    fn end(mut self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.task.take().unwrap().join().unwrap();
        self.changes.load(Ordering::SeqCst)
    }
}

impl Drop for Shift {
    /// A test that fails would leave its drivers behind otherwise: they end with the thread that holds them.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(task) = self.task.take() {
            let _panicked = task.join();
        }
    }
}

struct Test {
    cluster: Cluster,
    kubectl: PathBuf,
    site: Site,
}

impl Test {
    fn apply(&self, manifest: &str) {
        apply(&self.cluster, &self.kubectl, manifest);
    }

    fn running(&self, pods: &[&str]) {
        running(&self.cluster, &self.kubectl, pods);
    }

    fn devices(&self, pod: &str, container: &str) -> (Vec<String>, String) {
        devices(&self.cluster, &self.kubectl, pod, container)
    }

    fn run(&self, args: &str) -> String {
        kubectl(&self.cluster, &self.kubectl, args.split_whitespace())
    }

    /// Ends all pods and claims.
    fn clear(&self) {
        self.run("delete pods,resourceclaims --all --timeout=120s");
    }

    fn waits(&self, pod: &str, why: &str) {
        eventually(&format!("{pod} waits because of {why:?}"), SOON, || {
            let path =
                "jsonpath={.status.phase}|{.status.conditions[?(@.type=='PodScheduled')].message}";
            let told = kubectl(
                &self.cluster,
                &self.kubectl,
                ["get", "pod", pod, "-o", path],
            );
            told.starts_with("Pending|") && told.contains(why)
        });
    }
}

const ONE_GPU: &str = "    requests: [{name: gpu, exactly: {deviceClassName: gpu}}]";

#[test]
fn claims_of_every_kind_with_a_driver_of_the_sdk() {
    let (Some(()), Some(kubectl)) = (root(), any_kubectl()) else {
        return;
    };
    let cluster = Cluster::up(&["--node-name", "node-1", "--allow-host-image"]);
    let site = Site::of(&cluster);
    let test = Test {
        cluster,
        kubectl,
        site: site.clone(),
    };
    let shift = Shift::begin(site);
    eventually("slices", SOON, || {
        test.run("get resourceslices -o name").lines().count() == 2
    });
    eventually("the service account", SOON, || {
        test.run("get serviceaccounts -o name").contains("default")
    });
    let slices = test.run("get resourceslices -o name");
    let classes = [
        class("gpu", "'gpu'"),
        class("part", "'half', 'quarter'"),
        class("shared", "'shared'"),
    ];
    test.apply(&classes.concat());

    shared_between_containers_and_pods(&test);
    several_requests_with_selectors(&test);
    alternatives_and_attributes(&test);
    parameters_and_admin_access(&test);
    amounts_of_a_shared_device(&test);
    taints(&test);
    parts_count_against_the_whole(&test);
    extended_resources(&test);
    several_drivers_and_one_that_is_away(&test);
    devices_that_are_attached_first(&test);

    assert!(shift.end() >= 3);
    // Those of the drivers that were there for a while go later.
    let still = test.run("get resourceslices -o name");
    let own: String = still
        .split_inclusive('\n')
        .filter(|name| name.contains(&format!("-{DRIVER}-")))
        .collect();
    assert_eq!(own, slices);
    assert_eq!(test.site.cdi_files(), Vec::<String>::new());
}

fn shared_between_containers_and_pods(test: &Test) {
    let both = [("left", "{name: common}"), ("right", "{name: common}")];
    test.apply(
        &[
            claim("common", ONE_GPU),
            pod("one", &["common"], &both),
            pod("two", &["common"], &both),
        ]
        .concat(),
    );
    test.running(&["one", "two"]);
    let mut seen = BTreeSet::new();
    for pod in ["one", "two"] {
        for container in ["left", "right"] {
            let (devices, env) = test.devices(pod, container);
            assert_eq!(devices.len(), 1, "{env}");
            assert!(env.contains("_SHARING=TimeSlicing"), "{env}");
            seen.extend(devices);
        }
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    // Item 125: a file says what the container has.
    let path = format!(
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/common/gpu/{DRIVER}-metadata.json"
    );
    let told = test.run(&format!("exec one -c left -- cat {path}"));
    let device = format!("\"name\":\"{}\"", seen.first().unwrap());
    assert!(
        told.contains(&device) && told.contains("\"uuid\":{"),
        "{told}"
    );
    // Item 95: a claim in use goes with its last pod.
    test.run("delete resourceclaim common --wait=false");
    test.run("delete pod one --timeout=60s");
    let state = test.run("get resourceclaim common --no-headers");
    assert!(state.contains("deleted,allocated,reserved"), "{state}");
    test.run("delete pod two --timeout=60s");
    eventually("the claim goes", SOON, || {
        test.run("get resourceclaims -o name").is_empty()
    });
}

fn several_requests_with_selectors(test: &Test) {
    let spec = format!(
        "    requests:\n    - name: big\n      exactly:\n        deviceClassName: gpu\n        selectors:\n        - cel: \
         {{expression: \"device.attributes['{DRIVER}'].model == 'OLDER-GPU-MODEL' && \
         device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0\"}}\n    - name: small\n      exactly:\n        \
         deviceClassName: part\n        count: 2\n        selectors:\n        - cel: \
         {{expression: \"device.attributes['{DRIVER}'].type == 'quarter'\"}}"
    );
    let containers = [
        ("big", "{name: c, request: big}"),
        ("small", "{name: c, request: small}"),
        ("all", "{name: c}"),
    ];
    test.apply(&[claim("c", &spec), pod("several", &["c"], &containers)].concat());
    test.running(&["several"]);
    let (big, env) = test.devices("several", "big");
    assert_eq!(big, ["gpu-1"], "{env}");
    let (small, _) = test.devices("several", "small");
    assert_eq!(small.len(), 2);
    assert!(
        small
            .iter()
            .all(|d| d.contains("-quarter-") && !d.starts_with("gpu-1-")),
        "{small:?}"
    );
    let (all, _) = test.devices("several", "all");
    assert_eq!(all.len(), 3);
    test.clear();
}

fn alternatives_and_attributes(test: &Test) {
    let alternatives = format!(
        "    requests:\n    - name: any\n      firstAvailable:\n      - name: best\n        deviceClassName: gpu\n        selectors:\n        \
         - cel: {{expression: \"device.attributes['{DRIVER}'].model == 'NO-SUCH-MODEL'\"}}\n      - name: half\n        deviceClassName: part\n        \
         selectors:\n        - cel: {{expression: \"device.attributes['{DRIVER}'].type == 'half'\"}}"
    );
    let quarters = |constraint: &str| {
        format!(
            "    requests:\n    - name: q\n      exactly:\n        deviceClassName: part\n        count: 2\n        selectors:\n        - cel: \
             {{expression: \"device.attributes['{DRIVER}'].type == 'quarter'\"}}\n    constraints: [{{{constraint}: {DRIVER}/parent}}]"
        )
    };
    test.apply(
        &[
            claim("any", &alternatives),
            claim("match", &quarters("matchAttribute")),
            claim("distinct", &quarters("distinctAttribute")),
            pod("any", &["any"], &[("main", "{name: any, request: any}")]),
            pod("match", &["match"], &[("main", "{name: match}")]),
            pod("distinct", &["distinct"], &[("main", "{name: distinct}")]),
        ]
        .concat(),
    );
    test.running(&["any", "match", "distinct"]);
    let (any, _) = test.devices("any", "main");
    assert!(any.len() == 1 && any[0].contains("-half-"), "{any:?}");
    let result =
        "get resourceclaim any -o jsonpath={.status.allocation.devices.results[0].request}";
    assert_eq!(test.run(result), "any/half");
    let parents = |pod: &str| {
        let (devices, _) = test.devices(pod, "main");
        assert_eq!(devices.len(), 2);
        let parent = |d: &String| d.split("-quarter").next().unwrap().to_owned();
        devices.iter().map(parent).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(parents("match"), 1);
    assert_eq!(parents("distinct"), 2);
    test.clear();
}

fn parameters_and_admin_access(test: &Test) {
    // An uncut one: counters stand in the way of supervisors as of everybody.
    let last = format!(
        "        selectors:\n        - cel: {{expression: \"device.attributes['{DRIVER}'].index == 4\"}}\n"
    );
    let with = |time_slice: &str| {
        format!(
            "    requests:\n    - name: gpu\n      exactly:\n        deviceClassName: gpu\n{last}    config:\n    - opaque:\n        driver: {DRIVER}\n        parameters: {{apiVersion: gpu.davit.dev/v1, \
             kind: GpuConfig, sharing: {{timeSlice: {time_slice}}}}}"
        )
    };
    let all = format!(
        "    requests:\n    - name: all\n      exactly:\n        deviceClassName: gpu\n        allocationMode: All\n        \
         adminAccess: true\n{last}"
    );
    test.run("label namespace default --overwrite resource.kubernetes.io/admin-access=true");
    test.apply(
        &[
            claim("tuned", &with("Long")),
            claim(
                "wrong",
                &with("Forever").replace("index == 4", "index == 3"),
            ),
            pod("tuned", &["tuned"], &[("main", "{name: tuned}")]),
            pod("wrong", &["wrong"], &[("main", "{name: wrong}")]),
        ]
        .concat(),
    );
    test.running(&["tuned"]);
    let (tuned, env) = test.devices("tuned", "main");
    assert!(env.contains("_TIMESLICE=Long"), "{env}");
    eventually("an event names the wrong parameter", SOON, || {
        let events = test.run("get events -o jsonpath={.items[*].message}");
        events.contains("opaque parameters of the claim: unknown variant `Forever`")
    });
    test.run("delete pod wrong --timeout=60s");
    test.apply(
        &[
            claim("admin", all.trim_end()),
            pod("admin", &["admin"], &[("main", "{name: admin}")]),
        ]
        .concat(),
    );
    test.running(&["admin"]);
    let (seen, env) = test.devices("admin", "main");
    assert_eq!(seen, tuned, "{env}");
    assert!(env.contains("_ADMIN=true"), "{env}");
    test.clear();
}

fn amounts_of_a_shared_device(test: &Test) {
    let memory = |amount: &str| {
        format!(
            "    requests: [{{name: m, exactly: {{deviceClassName: shared, capacity: {{requests: {{memory: {amount}}}}}}}}}]"
        )
    };
    let main = |claim: &str| format!("{{name: {claim}}}");
    let mut manifest = String::new();
    for (name, amount) in [("m1", "20Gi"), ("m2", "20479Mi")] {
        manifest += &claim(name, &memory(amount));
        manifest += &pod(name, &[name], &[("main", &main(name))]);
    }
    test.apply(&manifest);
    test.running(&["m1", "m2"]);
    let (device, env) = test.devices("m2", "main");
    assert_eq!(device, ["shared-0"]);
    assert!(env.contains("GPU_DEVICE_SHARED_0_MEMORY=20Gi"), "{env}");
    test.apply(
        &[
            claim("m3", &memory("1Gi")),
            pod("m3", &["m3"], &[("main", &main("m3"))]),
        ]
        .concat(),
    );
    test.waits("m3", "cannot allocate all claims");
    test.run("delete pod m1 --timeout=60s");
    test.run("delete resourceclaim m1 --timeout=60s");
    test.running(&["m3"]);
    test.clear();
}

fn taints(test: &Test) {
    let second = |extra: &str| {
        format!(
            "    requests:\n    - name: gpu\n      exactly:\n        deviceClassName: gpu\n        selectors:\n        - cel: \
             {{expression: \"device.attributes['{DRIVER}'].index == 1\"}}\n{extra}"
        )
    };
    let list: &Path = &test.site.dev_dir().join("tainted");
    std::fs::write(list, "gpu-1\n").unwrap();
    eventually("the taint is published", SOON, || {
        test.run("get resourceslices -o jsonpath={.items[*].spec.devices[*].taints[*].key}")
            .contains("maintenance")
    });
    let tolerant = "        tolerations: [{key: gpu.davit.dev/maintenance, operator: Exists}]";
    test.apply(
        &[
            claim("shy", &second("")),
            pod("shy", &["shy"], &[("main", "{name: shy}")]),
        ]
        .concat(),
    );
    test.waits("shy", "cannot allocate all claims");
    test.apply(
        &[
            claim("bold", &second(tolerant)),
            pod("bold", &["bold"], &[("main", "{name: bold}")]),
        ]
        .concat(),
    );
    test.running(&["bold"]);
    test.run("delete pod bold --timeout=60s");
    test.run("delete resourceclaim bold --timeout=60s");
    std::fs::remove_file(list).unwrap();
    test.running(&["shy"]);
    let (shy, _) = test.devices("shy", "main");
    assert_eq!(shy, ["gpu-1"]);
    test.clear();
}

/// Counters: a quarter that is given away keeps the whole from being given away.
fn parts_count_against_the_whole(test: &Test) {
    let of = |class: &str, expression: &str| {
        format!(
            "    requests:\n    - name: gpu\n      exactly:\n        deviceClassName: {class}\n        selectors:\n        - cel: \
             {{expression: \"device.attributes['{DRIVER}'].{expression}\"}}"
        )
    };
    let quarter = of(
        "part",
        "type == 'quarter' && device.attributes['DRIVER'].parent == 'gpu-2'",
    );
    let main = |claim: &str| format!("{{name: {claim}}}");
    test.apply(
        &[
            claim(
                "quarter",
                &quarter.replace("'DRIVER'", &format!("'{DRIVER}'")),
            ),
            pod("quarter", &["quarter"], &[("main", &main("quarter"))]),
        ]
        .concat(),
    );
    test.running(&["quarter"]);
    test.apply(
        &[
            claim("whole", &of("gpu", "index == 2")),
            pod("whole", &["whole"], &[("main", &main("whole"))]),
        ]
        .concat(),
    );
    test.waits("whole", "cannot allocate all claims");
    test.run("delete pod quarter --timeout=60s");
    test.run("delete resourceclaim quarter --timeout=60s");
    test.running(&["whole"]);
    let (whole, _) = test.devices("whole", "main");
    assert_eq!(whole, ["gpu-2"]);
    test.clear();
}

/// A pod that knows nothing of claims gets its devices by a class that stands for a resource.
fn extended_resources(test: &Test) {
    let patch = r#"{"spec":{"extendedResourceName":"davit.dev/gpu"}}"#;
    let args = ["patch", "deviceclass", "gpu", "--type=merge", "-p", patch];
    kubectl(&test.cluster, &test.kubectl, args);
    let manifest = pod("plain", &[], &[("main", "")]);
    let manifest = manifest
        .replace("{claims: []}", "{limits: {davit.dev/gpu: 2}}")
        .replace("  resourceClaims:\n", "");
    test.apply(&manifest);
    test.running(&["plain"]);
    let (devices, env) = test.devices("plain", "main");
    assert_eq!(devices.len(), 2, "{env}");
    let claims = test.run("get resourceclaims -o name");
    assert!(claims.contains("/plain-extended-resources-"), "{claims}");
    test.run("delete pod plain --timeout=60s");
    eventually("its claim goes with it", SOON, || {
        test.run("get resourceclaims -o name").is_empty()
    });
}

const SECOND: &str = "second.davit.dev";

/// One pod with devices of two drivers; one of them is not there at first.
fn several_drivers_and_one_that_is_away(test: &Test) {
    let args = [
        "--driver-name",
        SECOND,
        "--gpus",
        "1",
        "--device-nodes",
        "--shared",
        "1",
    ];
    let mut second = Gpus::start(&test.site, "second", &args);
    eventually("slices of the second driver", SOON, || {
        test.run("get resourceslices -o name").contains(SECOND)
    });
    second.kill();
    let both = format!(
        "    requests:\n    - name: own\n      exactly:\n        deviceClassName: gpu\n        selectors:\n        - cel: \
         {{expression: \"device.attributes['{DRIVER}'].index == 3\"}}\n    - {{name: other, exactly: {{deviceClassName: second}}}}"
    );
    test.apply(
        &[
            class_of("second", SECOND),
            claim("both", &both),
            pod(
                "both",
                &["both"],
                &[
                    ("main", "{name: both}"),
                    ("own", "{name: both, request: own}"),
                ],
            ),
        ]
        .concat(),
    );
    eventually("an event names the driver that is away", SOON, || {
        let events = test.run("get events -o jsonpath={.items[*].message}");
        events.contains(&format!("DRA driver {SECOND}"))
            || events.contains("NodePrepareResources: rpc error")
    });
    let phase = test.run("get pod both -o jsonpath={.status.phase}");
    assert_eq!(phase, "Pending");
    let mut second = Gpus::start(&test.site, "second", &args);
    test.running(&["both"]);
    let (devices, env) = test.devices("both", "main");
    assert_eq!(devices.len(), 2, "{env}");
    assert!(devices.contains(&"gpu-3".to_owned()), "{env}");
    let (own, _) = test.devices("both", "own");
    assert_eq!(own, ["gpu-3"]);
    test.clear();
    second.stop();
    eventually("the slices of a driver that is gone go", SOON, || {
        !test.run("get resourceslices -o name").contains(SECOND)
    });
}

const FABRIC: &str = "fabric.davit.dev";

/// Binding conditions: somebody else attaches the device, and says so in the claim's status.
fn devices_that_are_attached_first(test: &Test) {
    let args = ["--driver-name", FABRIC, "--gpus", "1", "--attach"];
    let mut fabric = Gpus::start(&test.site, "fabric", &args);
    eventually("slices of the fabric", SOON, || {
        test.run("get resourceslices -o name").contains(FABRIC)
    });
    let spec = "    requests: [{name: r, exactly: {deviceClassName: fabric}}]";
    test.apply(
        &[
            class_of("fabric", FABRIC),
            claim("remote", spec),
            pod("remote", &["remote"], &[("main", "{name: remote}")])
                .replace("ls /dev/davit-gpu; ", ""),
        ]
        .concat(),
    );
    eventually("it is allocated", SOON, || {
        let path = "jsonpath={.status.allocation.devices.results[0].device}";
        test.run(&format!("get resourceclaim remote -o {path}")) == "gpu-0"
    });
    eventually("it is told", SOON, || {
        test.run("get events -o jsonpath={.items[*].reason}")
            .contains("BindingConditionsPending")
    });
    let node = "get pod remote -o jsonpath={.spec.nodeName}";
    assert_eq!(test.run(node), "");
    let patch = format!(
        r#"{{"status":{{"devices":[{{"driver":"{FABRIC}","pool":"node-1","device":"gpu-0","conditions":[{{"type":
        "gpu.davit.dev/attached","status":"True","reason":"Attached","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}}]}}]}}}}"#
    );
    let args = [
        "patch",
        "resourceclaim",
        "remote",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    kubectl(&test.cluster, &test.kubectl, args);
    test.running(&["remote"]);
    let (_, env) = test.devices("remote", "main");
    assert!(env.contains("GPU_DEVICE_GPU_0="), "{env}");
    test.clear();
    fabric.stop();
}

const MACHINE: &str = "numaNodes:\n- {id: 0, memory: 16Gi, distances: [10, 21]}\n- {id: 1, memory: 16Gi, distances: [21, 10]}\ncpus:\n\
                       - {cpus: \"0-7\", node: 0, socket: 0, threads: 1}\n- {cpus: \"8-15\", node: 1, socket: 1, threads: 1}\n";

/// A described machine, since the one at hand may have one NUMA node only.
#[test]
fn cpus_are_chosen_beside_claimed_devices_or_the_pod_is_refused() {
    let Some(kubectl) = any_kubectl() else { return };
    let dir = temp_dir();
    let machine = dir.path().join("machine.yaml");
    std::fs::write(&machine, MACHINE).unwrap();
    let machine = machine.display().to_string();
    let managers = [
        "--machine-file",
        &machine,
        "--cpu-manager-policy",
        "static",
        "--reserved-cpus",
        "0",
        "--topology-manager-policy",
        "single-numa-node",
    ];
    let node = ["--node-name", "node-1", "--runtime", "none"];
    let cluster = Cluster::up(&[&node[..], &managers[..]].concat());
    let site = Site::of(&cluster);
    let test = Test {
        cluster,
        kubectl,
        site: site.clone(),
    };
    let _driver = Gpus::start(&site, "a", &["--gpus", "4", "--numa-nodes", "2"]);
    eventually("slices", SOON, || {
        !test.run("get resourceslices -o name").is_empty()
    });
    eventually("the service account", SOON, || {
        test.run("get serviceaccounts -o name").contains("default")
    });
    let gpus = |count: u32, expression: &str| {
        format!(
            "    requests:\n    - name: gpu\n      exactly:\n        deviceClassName: gpu\n        count: {count}\n        selectors:\n        - cel: \
             {{expression: \"device.attributes['{DRIVER}'].index {expression}\"}}"
        )
    };
    let exclusive = |name: &str| {
        let resources = format!("{{limits: {{cpu: 2, memory: 64Mi}}, claims: [{{name: {name}}}]}}");
        pod(name, &[name], &[("main", &format!("{{name: {name}}}"))])
            .replace(&format!("{{claims: [{{name: {name}}}]}}"), &resources)
    };
    // One that no scheduler is asked about.
    let placed = exclusive("both").replace("spec:\n", "spec:\n  nodeName: node-1\n");
    test.apply(
        &[
            class("gpu", "'gpu'"),
            claim("far", &gpus(1, "== 3")),
            claim("both", &gpus(2, "< 2")),
            exclusive("far"),
            placed,
        ]
        .concat(),
    );
    eventually("the pod beside its device", SOON, || {
        test.run("get pod far -o jsonpath={.status.phase}") == "Running"
    });
    let state = std::fs::read_to_string(site.kubelet_dir().join("cpu_manager_state")).unwrap();
    assert!(state.contains("\"8-9\""), "{state}");
    eventually("the pod that cannot be aligned is refused", SOON, || {
        test.run("get pod both -o jsonpath={.status.reason}") == "TopologyAffinityError"
    });
    let message = test.run("get pod both -o jsonpath={.status.message}");
    let fixed = format!(
        "claim both holds {DRIVER}/node-1/gpu-0 on NUMA node 0, {DRIVER}/node-1/gpu-1 on NUMA node 1"
    );
    assert!(message.ends_with(&fixed), "{message}");
    // The scheduler knows better, as soon as it has seen what the node publishes.
    test.run("delete pod both --timeout=60s");
    eventually("the scheduler keeps such a pod", SOON, || {
        test.apply(&exclusive("both"));
        eventually("a word about the pod", SOON, || {
            let path = "jsonpath={.status.conditions[0].message}{.status.reason}";
            !test.run(&format!("get pod both -o {path}")).is_empty()
        });
        let path = "jsonpath={.spec.nodeName}{.status.conditions[0].message}";
        let told = test.run(&format!("get pod both -o {path}"));
        let kept = told.contains("node(s) cannot align the resources of the pod on NUMA nodes");
        if !kept {
            test.run("delete pod both --timeout=60s");
        }
        kept
    });
    // A node writes its own only.
    let may_write = |object: &str| {
        let who = ["--as=system:node:node-1", "--as-group=system:nodes"];
        let mut command = test.cluster.kubectl(&test.kubectl);
        command.args(["auth", "can-i", "update", object]).args(who);
        output(&mut command).status.success()
    };
    assert!(may_write("noderesourcetopologies/node-1"));
    assert!(!may_write("noderesourcetopologies/node-2"));
    test.clear();
}
