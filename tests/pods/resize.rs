//! Containers get another size while they run, asked for as kubectl does.

use crate::pods::cgroups::PodGroup;
use crate::pods::{Kube, pod};

const SCRIPT: &str = "exec sleep 1000";

/// Reads the limits of the container's own cgroup, of either version.
const LIMITS: &str = "
for f in /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us; do
  [ -e $f ] && { cat $f; break; }
done
for f in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
  [ -e $f ] && { cat $f; break; }
done; :";

fn resize(kube: &Kube, name: &str, cpu: &str, memory: &str) {
    let patch = serde_json::json!({"spec": {"containers": [{"name": "main", "resources": {
        "requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}}]}});
    let patch = patch.to_string();
    kube.run([
        "patch",
        "pod",
        name,
        "--subresource",
        "resize",
        "-p",
        &patch,
    ]);
}

fn limits(kube: &Kube, name: &str) -> (String, String) {
    let text = kube.exec(name, LIMITS);
    let mut words = text.split_whitespace();
    let first = words.next().unwrap_or_default().to_owned();
    (first, words.last().unwrap_or_default().to_owned())
}

fn condition(kube: &Kube, name: &str, kind: &str, field: &str) -> String {
    kube.field(
        name,
        &format!(".status.conditions[?(@.type=='{kind}')].{field}"),
    )
}

fn settled(kube: &Kube, name: &str, cpu: &str) {
    kube.eventually(&format!("{name} has {cpu}"), || {
        let status =
            |field: &str| kube.field(name, &format!(".status.containerStatuses[0].{field}"));
        status("allocatedResources.cpu") == cpu
            && status("resources.limits.cpu") == cpu
            && condition(kube, name, "PodResizeInProgress", "status").is_empty()
            && condition(kube, name, "PodResizePending", "status").is_empty()
    });
}

pub(crate) fn scenario() {
    // The node's own verdict is asked for below; by default the API server refuses first.
    let flags = ["--disable-admission-plugins", "PodResizeValidator"];
    let Some(mut kube) = Kube::up("1.36", &flags) else {
        return;
    };
    let sized =
        "resources: {limits: {cpu: 250m, memory: 64Mi}, requests: {cpu: 250m, memory: 64Mi}}";
    kube.create(&pod("calm", "Always", SCRIPT, sized));
    let policy = "resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]";
    kube.create(&pod(
        "anew",
        "Always",
        SCRIPT,
        &format!("{sized}\n{policy}"),
    ));
    kube.wait_ready("calm");
    kube.wait_ready("anew");

    resize(&kube, "calm", "500m", "96Mi");
    settled(&kube, "calm", "500m");
    let wanted = ("50000".to_owned(), (96 << 20).to_string());
    assert_eq!(limits(&kube, "calm"), wanted);
    let group = PodGroup::of(&kube, "calm", "Guaranteed");
    let of_pod = || (group.quota(), group.memory());
    assert_eq!(of_pod(), (Some(50_000), Some(96 << 20)));
    let restarts = ".status.containerStatuses[0].restartCount";
    assert_eq!(kube.field("calm", restarts), "0");
    let events = kube.run(["get", "events", "-o", "jsonpath={.items[*].reason}"]);
    for reason in ["ResizeStarted", "ResizeCompleted"] {
        assert!(events.contains(reason), "{reason} is not among {events}");
    }

    resize(&kube, "anew", "300m", "128Mi");
    settled(&kube, "anew", "300m");
    kube.eventually("the second instance", || {
        kube.field("anew", restarts) == "1"
    });
    kube.wait_ready("anew");
    assert_eq!(limits(&kube, "anew").1, (128 << 20).to_string());

    // What can never be; the container keeps what it has.
    resize(&kube, "calm", "1000", "96Mi");
    kube.eventually("the verdict", || {
        condition(&kube, "calm", "PodResizePending", "reason") == "Infeasible"
    });
    let message = condition(&kube, "calm", "PodResizePending", "message");
    assert!(
        message.starts_with("Node didn't have enough capacity: cpu, requested: 1000000"),
        "{message}"
    );
    assert_eq!(limits(&kube, "calm"), wanted);
    // It stays so over a power cut, and an answer that can be given is given.
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.wait_ready("calm");
    assert_eq!(limits(&kube, "calm"), wanted);
    resize(&kube, "calm", "400m", "96Mi");
    settled(&kube, "calm", "400m");
    assert_eq!(limits(&kube, "calm").0, "40000");
    assert_eq!(of_pod(), (Some(40_000), Some(96 << 20)));
    assert_eq!(kube.field("calm", restarts), "0");

    // The class of a pod is for life.
    let less = r#"{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "100m"}}}]}}"#;
    let refused = kube.try_run([
        "patch",
        "pod",
        "calm",
        "--subresource",
        "resize",
        "-p",
        less,
    ]);
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("Pod QOS Class may not change as a result of resizing"),
        "{refused}"
    );
    storage(&kube);
    kube.clean_up();
}

/// A pod that takes more of the disk than it may is evicted.
fn storage(kube: &Kube) {
    let fill = "head -c 3000000 /dev/zero > /tmp/davit-scratch/file && exec sleep 1000";
    let mount = "volumeMounts: [{name: scratch, mountPath: /tmp/davit-scratch}]";
    let manifest = pod("greedy", "Never", fill, mount);
    let volume = "spec:\n  volumes: [{name: scratch, emptyDir: {sizeLimit: 1Mi}}]";
    kube.create(&manifest.replacen("spec:", volume, 1));
    kube.eventually("the eviction", || {
        kube.field("greedy", ".status.reason") == "Evicted"
    });
    assert_eq!(
        kube.field("greedy", ".status.message").trim_end(),
        "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\"."
    );
}
