//! Images that are imported, and a runtime that is not davit's own.

use crate::pods::{Kube, NODE, harness, pod};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PAUSE: &str = "registry.k8s.io/pause:2.0";
const SHELL: &str = "davit.local/shell:1";
const RESOURCE: &str = "hardware-vendor.example/foo";

/// The widest known example of a device pod, unchanged.
const DEVICE_POD: &str = "apiVersion: v1
kind: Pod
metadata:
  name: demo-pod
spec:
  containers:
    - name: demo-container-1
      image: registry.k8s.io/pause:2.0
      resources:
        limits:
          hardware-vendor.example/foo: 2
";

pub(crate) fn busybox() -> Option<PathBuf> {
    let found = ["/usr/bin/busybox", "/bin/busybox"]
        .into_iter()
        .map(PathBuf::from)
        .find(|p| p.is_file());
    harness::part("busybox", found)
}

type Archive = tar::Builder<Vec<u8>>;

fn header(kind: tar::EntryType, size: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn add(archive: &mut Archive, path: &str, bytes: &[u8], mode: u32) {
    let mut header = header(tar::EntryType::Regular, bytes.len(), mode);
    archive.append_data(&mut header, path, bytes).unwrap();
}

/// A layer with busybox and links for what the tests call.
fn layer(busybox: &Path) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for dir in ["bin", "tmp"] {
        let mut header = header(tar::EntryType::Directory, 0, 0o755);
        archive.append_data(&mut header, dir, &[][..]).unwrap();
    }
    add(
        &mut archive,
        "bin/busybox",
        &std::fs::read(busybox).unwrap(),
        0o755,
    );
    for applet in ["sh", "echo", "env", "sleep", "cat", "ls"] {
        let mut header = header(tar::EntryType::Symlink, 0, 0o777);
        archive
            .append_link(&mut header, format!("bin/{applet}"), "busybox")
            .unwrap();
    }
    archive.into_inner().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn config(layer: &[u8]) -> String {
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let config = serde_json::json!({
        "architecture": arch,
        "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "1000000"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(layer))] },
    });
    config.to_string()
}

/// An archive as `docker save` writes it.
fn docker_archive(busybox: &Path, name: &str) -> Vec<u8> {
    let layer = layer(busybox);
    let config = config(&layer);
    let file = format!("{}.json", hex(config.as_bytes()));
    let manifest =
        serde_json::json!([{ "Config": file, "RepoTags": [name], "Layers": ["layer.tar"] }]);
    let mut archive = tar::Builder::new(Vec::new());
    add(&mut archive, "layer.tar", &layer, 0o644);
    add(&mut archive, &file, config.as_bytes(), 0o644);
    add(
        &mut archive,
        "manifest.json",
        manifest.to_string().as_bytes(),
        0o644,
    );
    archive.into_inner().unwrap()
}

/// An archive of an OCI layout.
fn oci_archive(busybox: &Path, name: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut blob = |kind: &str, bytes: &[u8]| {
        let digest = hex(bytes);
        add(
            &mut archive,
            &format!("blobs/sha256/{digest}"),
            bytes,
            0o644,
        );
        serde_json::json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        })
    };
    let layer = layer(busybox);
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", config(&layer).as_bytes()),
        "layers": [blob("layer.v1.tar", &layer)],
    });
    let mut manifest = blob("manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": name });
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [manifest] });
    add(
        &mut archive,
        "oci-layout",
        br#"{"imageLayoutVersion":"1.0.0"}"#,
        0o644,
    );
    add(
        &mut archive,
        "index.json",
        index.to_string().as_bytes(),
        0o644,
    );
    archive.into_inner().unwrap()
}

/// What a registry serves of an image, by path: media type and bytes.
pub(crate) fn registry_content(
    busybox: &Path,
    name: &str,
    tag: &str,
) -> HashMap<String, (String, Vec<u8>)> {
    let mut content = HashMap::new();
    let mut put = |place: &str, kind: &str, bytes: Vec<u8>| {
        let digest = format!("sha256:{}", hex(&bytes));
        let kind = format!("application/vnd.oci.image.{kind}");
        let about = serde_json::json!({ "mediaType": kind, "digest": digest, "size": bytes.len() });
        for reference in [digest.as_str(), tag] {
            let path = format!("/v2/{name}/{place}/{reference}");
            content.insert(path, (kind.clone(), bytes.clone()));
        }
        about
    };
    let layer = layer(busybox);
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put("blobs", "config.v1+json", config(&layer).into_bytes()),
        "layers": [put("blobs", "layer.v1.tar", layer)],
    });
    put(
        "manifests",
        "manifest.v1+json",
        manifest.to_string().into_bytes(),
    );
    content
}

fn import(kube: &Kube, archive: &[u8], name: &str) {
    let file = kube.dir().join("image.tar");
    std::fs::write(&file, archive).unwrap();
    let mut command = Command::new(harness::DAVIT);
    command
        .args(["image", "import"])
        .arg(&file)
        .arg("--data-dir")
        .arg(kube.dir().join("data"));
    assert_eq!(harness::run(&mut command), format!("{name}\n"));
}

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let id = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _gone = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
        let _status = self.0.wait();
    }
}

fn plugin(kube: &Kube) -> Process {
    let child = Command::new(harness::DAVIT)
        .args([
            "example-device",
            "--resource",
            RESOURCE,
            "--count",
            "4",
            "--socket-dir",
        ])
        .arg(kube.dir().join("root/var/lib/kubelet/device-plugins"))
        .arg("--dev-dir")
        .arg(kube.dir().join("plugin"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    Process(child.unwrap())
}

pub(crate) fn scenario() {
    let Some(busybox) = busybox() else { return };
    let Some(kube) = Kube::up("1.27", &[]) else {
        return;
    };
    let _plugin = plugin(&kube);
    // A pod may wait for its image, which is imported while davit runs.
    kube.create(DEVICE_POD);
    import(&kube, &docker_archive(&busybox, PAUSE), PAUSE);
    kube.wait_ready("demo-pod");
    let env = kube.run(["exec", "demo-pod", "--", "env"]);
    let devices = env
        .lines()
        .find_map(|l| l.strip_prefix("FOO_DEVICES="))
        .unwrap_or_default();
    assert_eq!(devices.split(',').count(), 2, "{env}");
    let status = kube.field("demo-pod", ".status.containerStatuses[0].image");
    assert_eq!(status, PAUSE);

    import(&kube, &oci_archive(&busybox, SHELL), SHELL);
    let args = [
        "run",
        "shell",
        "-i",
        "--rm",
        "--restart=Never",
        "--image",
        SHELL,
        "--command",
        "--",
        "cat",
    ];
    let out = kube.pipe(&args, b"from an OCI archive\n");
    assert!(
        String::from_utf8_lossy(&out.stdout).contains("from an OCI archive\n"),
        "{out:?}"
    );
    kube.clean_up();
}

/// The files of an image, whole and in part, for the host's root and for that of a user namespace.
const VOLUMES: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  hostUsers: USERS
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: davit.local/shell:1
    command: [sleep, "100000"]
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: data, mountPath: /part, subPath: bin}
  volumes:
  - name: data
    image: {reference: "davit.local/pause:1", pullPolicy: IfNotPresent}
"#;

const UNPULLED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: davit.local/shell:1
    command: [sleep, "100000"]
    volumeMounts: [{name: data, mountPath: /data, subPath: "SUB"}]
  volumes:
  - name: data
    image: {reference: "IMAGE", pullPolicy: Never}
"#;

/// spec/storage.md 13.7, item 116.
pub(crate) fn volumes() {
    let Some(busybox) = busybox() else { return };
    let dir = harness::temp_dir();
    let file = dir.path().join("kubelet.yaml");
    std::fs::write(&file, GREEDY).unwrap();
    let Some(mut kube) = Kube::up("1.36", &["--config", &file.display().to_string()]) else {
        return;
    };
    let (shell, data) = ("davit.local/shell:1", "davit.local/pause:1");
    import(&kube, &oci_archive(&busybox, shell), shell);
    let passwd = docker_archive(Path::new("/etc/passwd"), data);
    import(&kube, &passwd, data);
    for (name, users) in [("plain", "true"), ("mapped", "false")] {
        kube.create(&VOLUMES.replace("NAME", name).replace("USERS", users));
        kube.wait_ready(name);
        let sh = |script: &str| kube.run(["exec", name, "--", "sh", "-c", script]);
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
        assert_eq!(sh("cat /data/bin/busybox"), passwd);
        assert_eq!(sh("cat /part/busybox"), passwd);
        let ids = sh("busybox stat -c %u:%g /data/bin/busybox");
        assert_eq!(ids.trim(), "0:0", "{name}");
        let no =
            sh("echo x 2>&1 >/data/new; echo x 2>&1 >/part/busybox; /data/bin/busybox 2>&1; true");
        assert_eq!(no.matches("Read-only file system").count(), 2, "{no}");
        assert!(no.contains("Permission denied"), "{no}");
        let mounts = sh("busybox grep /data /proc/mounts");
        assert!(mounts.contains(" ro,nosuid,nodev,noexec"), "{mounts}");
    }
    let absent = UNPULLED.replace("NAME", "absent").replace("SUB", "");
    kube.create(&absent.replace("IMAGE", "davit.local/absent:1"));
    let part = UNPULLED.replace("NAME", "part").replace("SUB", "no/such");
    kube.create(&part.replace("IMAGE", data));
    kube.eventually("both are told what is missing", || {
        let status = |pod: &str| kube.field(pod, ".status.containerStatuses[0]");
        status("absent").contains("ErrImageNeverPull")
            && status("part").contains(r#"the image has no sub-path \"no/such\""#)
            && status("part").contains("CreateContainerError")
    });
    // What only volumes use is not collected, and outlives davit.
    assert!(kube.cluster.interrupt().success());
    kube.cluster.start_again();
    kube.run(["delete", "pod", "absent", "part", "--wait"]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let mut list = Command::new(harness::DAVIT);
    list.args(["image", "list", "--data-dir"]);
    let images = harness::run(list.arg(kube.dir().join("data")));
    assert!(images.contains(data), "{images}");
    let still = kube.run(["exec", "plain", "--", "ls", "/part"]);
    assert!(still.contains("busybox"), "{still}");
    kube.clean_up();
}

const GREEDY: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
imageGCHighThresholdPercent: 1
imageGCLowThresholdPercent: 0
imageMinimumGCAge: 1ms
evictionHard:
  memory.available: 100Mi
";

/// Of two images the one in use stays.
pub(crate) fn collected() {
    let Some(busybox) = busybox() else { return };
    // Any use of the disk is too much.
    let dir = harness::temp_dir();
    let file = dir.path().join("kubelet.yaml");
    std::fs::write(&file, GREEDY).unwrap();
    let Some(mut kube) = Kube::up("1.36", &["--config", &file.display().to_string()]) else {
        return;
    };
    // Images of the same content are one image with two names.
    import(
        &kube,
        &docker_archive(Path::new("/etc/passwd"), PAUSE),
        PAUSE,
    );
    import(&kube, &oci_archive(&busybox, SHELL), SHELL);
    let run = ["run", "user", "--image", SHELL, "--image-pull-policy=Never"];
    kube.run(run.iter().chain(&["--command", "--", "sleep", "1000"]));
    kube.wait_ready("user");
    let images = |kube: &Kube| {
        let mut command = Command::new(harness::DAVIT);
        command.args(["image", "list", "--data-dir"]);
        harness::run(command.arg(kube.dir().join("data")))
    };
    assert!(images(&kube).contains(PAUSE) && images(&kube).contains(SHELL));
    // The node looks at its start and, as nothing was old enough then, soon again.
    assert!(kube.cluster.interrupt().success());
    kube.cluster.start_again();
    kube.eventually("the image that nobody uses is gone", || {
        !images(&kube).contains(PAUSE)
    });
    assert!(images(&kube).contains(SHELL), "{}", images(&kube));
    assert_eq!(kube.field("user", ".status.phase"), "Running");
    kube.clean_up();
}

const CONTAINERD: &str = r#"version = 2
root = "DIR/root"
state = "DIR/state"
[grpc]
  address = "DIR/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:2.0"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "DIR/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
"#;
const NETWORK: &str = r#"{"cniVersion":"0.4.0","name":"lo","plugins":[{"type":"loopback"}]}"#;

/// containerd on directories of its own, with the image that its sandboxes and our pods run.
fn start_containerd(dir: &Path, busybox: &Path) -> Option<Process> {
    let there = ["/usr/bin/containerd", "/usr/bin/ctr"]
        .iter()
        .all(|p| Path::new(p).exists());
    harness::part("containerd", there.then_some(()))?;
    std::fs::create_dir_all(dir.join("cni")).unwrap();
    std::fs::write(dir.join("cni/10-lo.conflist"), NETWORK).unwrap();
    let config = CONTAINERD.replace("DIR", &dir.display().to_string());
    std::fs::write(dir.join("config.toml"), config).unwrap();
    let log = std::fs::File::create(dir.join("containerd.log")).unwrap();
    let child = Command::new("/usr/bin/containerd")
        .arg("--config")
        .arg(dir.join("config.toml"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    let process = Process(child.unwrap());
    let image = dir.join("image.tar");
    std::fs::write(&image, docker_archive(busybox, PAUSE)).unwrap();
    let import = || {
        let mut ctr = Command::new("/usr/bin/ctr");
        ctr.arg("--address")
            .arg(dir.join("c.sock"))
            .args(["-n", "k8s.io", "images", "import"])
            .arg(&image);
        dir.join("c.sock").exists() && harness::output(&mut ctr).status.success()
    };
    harness::eventually("containerd takes an image", crate::pods::STEP, import);
    Some(process)
}

/// The configuration can name the runtime, as kubeadm's does.
const ENDPOINT: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: ENDPOINT
cgroupDriver: cgroupfs
evictionHard: {memory.available: 100Mi}
imageGCHighThresholdPercent: 100
";

/// Pods on containerd, whose own streaming server is behind exec.
pub(crate) fn containerd() {
    let (Some(()), Some(busybox)) = (harness::root(), busybox()) else {
        return;
    };
    let dir = harness::temp_dir();
    let Some(_containerd) = start_containerd(dir.path(), &busybox) else {
        return;
    };
    let runtime = format!("unix://{}/c.sock", dir.path().display());
    let config = dir.path().join("kubelet.yaml");
    let named = ENDPOINT.replace("ENDPOINT", &runtime);
    std::fs::write(&config, named).unwrap();
    let config = config.display().to_string();
    for (release, flags) in [
        ("1.27", ["--runtime", &runtime]),
        ("1.36", ["--config", &config]),
    ] {
        let Some(kube) = Kube::up(release, &flags) else {
            continue;
        };
        // Without a network plugin containerd runs pods in the host's network only.
        let host = "spec:\n  hostNetwork: true";
        let script = "echo hello from containerd; exec sleep 1000";
        kube.create(
            &pod("guest", "Always", script, "")
                .replace("davit.local/host", PAUSE)
                .replace("spec:", host),
        );
        kube.wait_ready("guest");
        kube.eventually("the log", || {
            kube.try_run(["logs", "guest"])
                .is_ok_and(|l| l == "hello from containerd\n")
        });
        assert_eq!(kube.exec("guest", "echo in it"), "in it\n");
        let out = kube.pipe(&["exec", "-i", "guest", "--", "cat"], b"hi\n");
        assert!(out.status.success() && out.stdout == b"hi\n", "{out:?}");
        let out = kube
            .command(["exec", "guest", "--", "/bin/sh", "-c", "exit 9"])
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(9));
        let version = kube.run([
            "get",
            "node",
            NODE,
            "-o",
            "jsonpath={.status.nodeInfo.containerRuntimeVersion}",
        ]);
        assert!(version.starts_with("containerd://"), "{version}");
        kube.clean_up();
    }
}
