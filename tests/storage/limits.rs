//! Volumes of davit's own provisioner that are held to their size: a file system on an image each.

use super::block::{LOOK, devices_of, loop_devices, may_resize};
use super::{Kube, claim as kube_claim, pod};
use crate::harness;

const CLASS: &str = "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: limited}
provisioner: local.davit.dev
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {davit.dev/limit: image}
";

fn claim(name: &str, size: &str, more: &str) -> String {
    let spec = format!(
        "storageClassName: limited, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}{more}"
    );
    kube_claim(name, &spec)
}

/// Writes as many MiB as are said into a file, as an account that owns nothing.
fn fill(name: &str, mebibytes: u32) -> String {
    format!("dd if=/dev/zero of=/mnt/{name} bs=1M count={mebibytes} conv=fsync 2>&1; echo done")
}

#[test]
fn item_125_a_volume_has_its_size_and_no_more() {
    if loop_devices().is_none() || !may_resize() {
        return;
    }
    let Some(mut kube) = Kube::up(&[]) else {
        return;
    };
    kube.apply(CLASS);
    kube.apply(&claim("data", "32Mi", ""));
    // whoever it is may write into it, and nothing is in it
    let anybody = pod("one", "data", "ls -A /mnt | wc -l; sleep 100000")
        .replace("spec:\n", "spec:\n  securityContext: {runAsUser: 12345}\n");
    kube.apply(&anybody);
    kube.wait("pod/one", "{.status.phase}", "Running");
    let exec = |kube: &Kube, pod: &str, script: &str| {
        kube.try_run(&["exec", pod, "--", "/bin/sh", "-c", script])
    };
    kube.eventually("the pod has looked", || kube.run(&["logs", "one"]) == "0\n");
    let volume = kube.get("pvc/data", "{.spec.volumeName}");
    let object = format!("pv/{volume}");
    let limit = r"{.metadata.annotations.davit\.dev/limit}";
    assert_eq!(kube.get(&object, limit), "image");
    let said = exec(&kube, "one", &fill("much", 40)).unwrap();
    assert!(said.contains("No space left on device"), "{said}");
    exec(&kube, "one", "rm /mnt/much && echo kept > /mnt/file").unwrap();

    // it grows while it is in use
    kube.apply(&claim("data", "64Mi", ""));
    kube.within(LOOK, "it has grown", || {
        kube.get("pvc/data", "{.status.capacity.storage}") == "64Mi"
    });
    assert_eq!(kube.get("pvc/data", "{.status.conditions}"), "");
    let said = exec(&kube, "one", &fill("more", 40)).unwrap();
    assert!(!said.contains("No space left"), "{said}");

    // a copy waits until nobody changes the file system
    let source = ", dataSource: {kind: PersistentVolumeClaim, name: data}";
    kube.apply(&claim("copy", "96Mi", source));
    kube.apply(&pod(
        "two",
        "copy",
        "cat /mnt/file; df -m /mnt | tail -1; sleep 100000",
    ));
    let copy = |kube: &Kube| kube.get("pvc/copy", "{.spec.volumeName}");
    kube.eventually("the copy is bound", || !copy(&kube).is_empty());
    kube.has_event(&copy(&kube), "ProvisioningFailed", "is in use");

    // what a power cut leaves is found again
    let image = kube.volumes().join(&volume).join("data.img");
    let device = devices_of(&image);
    assert_eq!(device.len(), 1, "{device:?}");
    kube.cluster.keep_port();
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.eventually("it is there after a restart", || {
        exec(&kube, "one", "cat /mnt/file").is_ok_and(|said| said == "kept\n")
    });
    assert_eq!(devices_of(&image), device);
    kube.run(&["delete", "pod", "one", "--timeout=60s"]);
    kube.eventually("no device is left", || devices_of(&image).is_empty());
    kube.within(LOOK, "the copy's pod runs", || {
        kube.get("pod/two", "{.status.phase}") == "Running"
    });
    kube.eventually("the copy has said what is in it", || {
        let said = kube.run(&["logs", "two"]);
        let size = said.split_whitespace().nth(2).and_then(|n| n.parse().ok());
        said.starts_with("kept\n") && size.is_some_and(|mebibytes: u64| mebibytes > 64)
    });

    // it grows when it is next mounted, too
    kube.apply(&claim("data", "80Mi", ""));
    kube.wait(
        "pvc/data",
        "{.status.conditions[*].type}",
        "FileSystemResizePending",
    );
    let said = kube.say("three", "data", "cat /mnt/file; df -m /mnt | tail -1");
    let size = said.split_whitespace().nth(2).unwrap();
    assert!(said.starts_with("kept\n"), "{said}");
    assert!(size.parse::<u64>().unwrap() > 64, "{said}");
    kube.wait("pvc/data", "{.status.capacity.storage}", "80Mi");

    // and goes with its claim
    kube.run(&["delete", "pvc", "data", "--timeout=60s"]);
    kube.gone(&object);
    kube.eventually("the image is gone", || !image.exists());

    // or with the cluster, of which no device is left
    let image = kube.volumes().join(copy(&kube)).join("data.img");
    assert_eq!(devices_of(&image).len(), 1);
    let down = std::process::Command::new(harness::DAVIT)
        .args(["down", "--grace-period", "1", "--data-dir"])
        .arg(kube.dir().join("data"))
        .output()
        .unwrap();
    assert!(down.status.success(), "{down:?}");
    assert!(image.exists() && devices_of(&image).is_empty());
}

#[test]
fn what_a_class_asks_for_and_nobody_has_is_said() {
    let Some(kube) = Kube::up(&[]) else {
        return;
    };
    let wrong = CLASS.replace("image}", "quota}");
    kube.apply(&wrong);
    kube.apply(&claim("data", "32Mi", ""));
    kube.apply(&pod("one", "data", "true"));
    let why = "davit.dev/limit is \"none\" or \"image\" with local.davit.dev, not \"quota\"";
    kube.has_event("data", "ProvisioningFailed", why);
}
