//! Paths below a root, a volume or an image that somebody else shapes.
//!
//! One cluster, many attacks. Each attack aims at a directory of the host, the victim: whatever becomes of the pod,
//! nothing may appear in the victim or change there.

use crate::harness::{self, Cluster, DAVIT, eventually, kubectl_stdin, output, part};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tar::EntryType;

const STEP: Duration = Duration::from_secs(60);
const IMAGE: &str = "davit.local/attack";

/// Layers of images, entry by entry, with names that honest tools do not write.
struct Layer(tar::Builder<Vec<u8>>);

impl Layer {
    fn new() -> Self {
        Layer(tar::Builder::new(Vec::new()))
    }

    /// A layer with the programs that the attacks run.
    fn with_shell(busybox: &Path) -> Self {
        let mut layer = Layer::new();
        layer.put(EntryType::Directory, "bin", "", b"");
        layer.put(
            EntryType::Regular,
            "bin/busybox",
            "",
            &fs::read(busybox).unwrap(),
        );
        for applet in ["sh", "sleep", "true", "ln", "mkdir", "cat"] {
            layer.put(EntryType::Symlink, &format!("bin/{applet}"), "busybox", b"");
        }
        layer
    }

    fn put(&mut self, kind: EntryType, path: &str, says: &str, content: &[u8]) -> &mut Self {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..says.len()].copy_from_slice(says.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    fn end(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

fn hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An archive as `docker save` writes it.
fn docker_archive(name: &str, layer: &[u8]) -> Vec<u8> {
    docker_archive_of(name, &[layer])
}

fn docker_archive_of(name: &str, layers: &[&[u8]]) -> Vec<u8> {
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let config = json!({
        "architecture": arch, "os": "linux", "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect::<Vec<_>>()},
    });
    let names: Vec<String> = (0..layers.len()).map(|n| format!("layer{n}.tar")).collect();
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": names}]);
    let mut archive = Layer::new();
    for (name, layer) in names.iter().zip(layers) {
        archive.put(EntryType::Regular, name, "", layer);
    }
    archive
        .put(
            EntryType::Regular,
            "config.json",
            "",
            config.to_string().as_bytes(),
        )
        .put(
            EntryType::Regular,
            "manifest.json",
            "",
            manifest.to_string().as_bytes(),
        );
    archive.end()
}

fn import(file: &Path, data: &Path) -> std::process::Output {
    let mut command = Command::new(DAVIT);
    output(
        command
            .args(["image", "import"])
            .arg(file)
            .arg("--data-dir")
            .arg(data),
    )
}

/// Kind, mode, owner, size and names of everything below a directory.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (u32, u32, u64, u64)> {
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let stat = path.symlink_metadata().unwrap();
        if stat.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        all.insert(path, (stat.mode(), stat.uid(), stat.size(), stat.nlink()));
    }
    all
}

/// A directory of the host with what attackers like to change.
fn victim(dir: &Path) -> PathBuf {
    let victim = dir.join("victim");
    fs::create_dir_all(victim.join("sub")).unwrap();
    fs::write(victim.join("null"), "a file, no device").unwrap();
    fs::write(victim.join("secret"), "secret").unwrap();
    victim
}

struct Attacks {
    cluster: Cluster,
    kubectl: PathBuf,
    victim: PathBuf,
    busybox: PathBuf,
}

impl Attacks {
    fn up() -> Option<Self> {
        harness::root()?;
        let busybox = ["/usr/bin/busybox", "/bin/busybox"]
            .iter()
            .map(PathBuf::from);
        let busybox = part("busybox", busybox.into_iter().find(|path| path.is_file()))?;
        let kubectl = harness::any_kubectl()?;
        let cluster = Cluster::up(&[]);
        let victim = victim(cluster.dir.path());
        let attacks = Attacks {
            cluster,
            kubectl,
            victim,
            busybox,
        };
        eventually("the default service account", STEP, || {
            attacks.get("serviceaccount/default").is_some()
        });
        Some(attacks)
    }

    fn get(&self, what: &str) -> Option<Value> {
        let out = output(
            self.cluster
                .kubectl(&self.kubectl)
                .args(["get", what, "-o", "json"]),
        );
        serde_json::from_slice(&out.stdout).ok()
    }

    /// Imports an image: busybox and what `add` puts in.
    fn image(&self, tag: &str, add: impl FnOnce(&mut Layer)) {
        let mut layer = Layer::with_shell(&self.busybox);
        add(&mut layer);
        let file = self.cluster.dir.path().join("image.tar");
        let archive = docker_archive(&format!("{IMAGE}:{tag}"), &layer.end());
        fs::write(&file, archive).unwrap();
        let out = import(&file, &self.cluster.dir.path().join("data"));
        assert!(
            out.status.success(),
            "{tag}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }

    fn pod(&self, name: &str, spec: &Value) {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
        }});
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        kubectl_stdin(
            &self.cluster,
            &self.kubectl,
            &["create", "-f", "-"],
            &pod.to_string(),
        );
    }

    /// Waits until the pod's only container has run or been refused, and says how: `ok`, or the reason and message.
    fn outcome(&self, name: &str) -> String {
        let mut found = String::new();
        eventually(&format!("an outcome of pod {name}"), STEP, || {
            let pod = self.get(&format!("pod/{name}")).unwrap_or_default();
            let state = &pod["status"]["containerStatuses"][0]["state"];
            let (ended, waiting) = (&state["terminated"], &state["waiting"]);
            let told = if ended["exitCode"] == 0 {
                json!("ok")
            } else {
                ended.clone()
            };
            found = match (told, waiting["reason"].as_str()) {
                (Value::String(ok), _) => ok,
                (Value::Object(ended), _) => format!("{} {}", ended["reason"], ended["message"]),
                (_, None | Some("ContainerCreating" | "PodInitializing")) => String::new(),
                (_, Some(reason)) => format!("{reason} {}", waiting["message"]),
            };
            !found.is_empty()
        });
        found
    }

    /// Where the node keeps an emptyDir of a pod.
    fn volume(&self, pod: &str, volume: &str) -> PathBuf {
        let mut found = PathBuf::new();
        eventually("the volume is made", STEP, || {
            let uid = self
                .get(&format!("pod/{pod}"))
                .and_then(|pod| Some(pod["metadata"]["uid"].as_str()?.to_owned()));
            let below = format!(
                "pods/{}/volumes/kubernetes.io~empty-dir/{volume}",
                uid.unwrap_or_default()
            );
            let roots = ["data/kubelet", "root/var/lib/kubelet", "data/node", "data"];
            let candidates = roots.map(|root| self.cluster.dir.path().join(root).join(&below));
            let there = candidates.into_iter().find(|path| path.is_dir());
            found = there.unwrap_or_default();
            found.is_absolute()
        });
        found
    }
}

/// A container that ends well at once, of the image with this tag.
fn container(tag: &str, mounts: &Value) -> Value {
    json!({"name": "main", "image": format!("{IMAGE}:{tag}"), "imagePullPolicy": "Never",
        "command": ["/bin/true"], "volumeMounts": mounts})
}

#[test]
fn roots_and_volumes() {
    let Some(attacks) = Attacks::up() else { return };
    let before = picture(&attacks.victim);
    attacks.image("plain", |_| {});
    links_of_images(&attacks);
    volumes_over_the_kernels_files(&attacks);
    a_volume_as_sys(&attacks);
    a_volume_as_dev(&attacks);
    lists_of_users(&attacks);
    names_that_are_no_text(&attacks);
    more_sub_paths_than_any_pod_needs(&attacks);
    assert_eq!(picture(&attacks.victim), before);
    exchanged_parents(&attacks);
    assert_eq!(picture(&attacks.victim), before);
}

/// `/dev`, `/proc`, `/sys` and parents of mount targets are links to the host in the image.
fn links_of_images(attacks: &Attacks) {
    let to = attacks.victim.to_str().unwrap();
    for name in ["dev", "proc", "sys"] {
        attacks.image(name, |layer| {
            layer.put(EntryType::Symlink, name, to, b"");
        });
        attacks.pod(name, &json!({"containers": [container(name, &json!([]))]}));
    }
    attacks.image("data", |layer| {
        layer.put(EntryType::Symlink, "data", to, b"");
        layer.put(
            EntryType::Symlink,
            "up",
            "../../../../../../../../../../tmp",
            b"",
        );
        // What is ordinary has to work: /var/run leads to a directory that does not exist yet.
        layer.put(EntryType::Directory, "var", "", b"");
        layer.put(EntryType::Symlink, "var/run", "/run", b"");
    });
    let mounts = json!([{"name": "v", "mountPath": "/data/in/x"}, {"name": "v", "mountPath": "/up/davit-evil/x"},
        {"name": "v", "mountPath": "/var/run/app"}]);
    attacks.pod(
        "data",
        &json!({"containers": [container("data", &mounts)], "volumes": [{"name": "v", "emptyDir": {}}]}),
    );
    for name in ["dev", "proc", "sys"] {
        let outcome = attacks.outcome(name);
        assert!(outcome.contains("symbolic link"), "{name}: {outcome}");
    }
    assert_eq!(attacks.outcome("data"), "ok");
    assert!(!Path::new("/tmp/davit-evil").exists());
}

/// What davit masks and what programs trust cannot be covered (CVE-2019-16884, CVE-2023-27561).
fn volumes_over_the_kernels_files(attacks: &Attacks) {
    let to = attacks.victim.to_str().unwrap();
    attacks.image("kernel", |layer| {
        layer.put(EntryType::Symlink, "innocent", "/proc/self", b"");
        layer.put(
            EntryType::Symlink,
            "magic",
            &format!("/proc/self/root{to}"),
            b"",
        );
    });
    let covered = ["/proc", "/proc/sys", "/proc/self/attr", "/x/../proc/acpi"];
    let paths = covered.iter().chain(&["/innocent/task", "/magic/sub"]);
    for (index, path) in paths.clone().enumerate() {
        let mounts = json!([{"name": "v", "mountPath": path}]);
        attacks.pod(
            &format!("kernel-{index}"),
            &json!({"containers": [container("kernel", &mounts)], "volumes": [{"name": "v", "emptyDir": {}}]}),
        );
    }
    for (index, path) in paths.enumerate() {
        let outcome = attacks.outcome(&format!("kernel-{index}"));
        let refused = ["is inside /proc", "symbolic link"];
        assert!(
            refused.iter().any(|why| outcome.contains(why)),
            "{path}: {outcome}"
        );
    }
}

/// Devices of a machine that is not there may stand where programs look for them; what is hidden of `/sys` stays so.
fn a_volume_as_sys(attacks: &Attacks) {
    let mounts = |path| json!([{"name": "v", "mountPath": path}]);
    let mut prepare = container("plain", &mounts("/v"));
    prepare["name"] = json!("prepare");
    let dirs = ["/v/class/fake", "/v/firmware/fake", "/v/kernel/fake"];
    prepare["command"] = json!(["/bin/mkdir", "-p", dirs[0], dirs[1], dirs[2]]);
    let mut main = container("plain", &mounts("/sys"));
    main["volumeMounts"].as_array_mut().unwrap().push(
        json!({"name": "v", "mountPath": "/sys/kernel", "subPath": "class", "readOnly": true}),
    );
    main["command"] = json!([
        "/bin/sh",
        "-c",
        "test -d /sys/class/fake && test -d /sys/kernel/fake && ! test -e /sys/firmware/fake && ! mkdir /sys/kernel/more"
    ]);
    attacks.pod(
        "sys-volume",
        &json!({"initContainers": [prepare], "containers": [main], "volumes": [{"name": "v", "emptyDir": {}}]}),
    );
    assert_eq!(attacks.outcome("sys-volume"), "ok");
}

/// The null device that masks are made of is somebody's link to a setting of the kernel (CVE-2025-31133).
fn a_volume_as_dev(attacks: &Attacks) {
    let mounts = |path| json!([{"name": "v", "mountPath": path}]);
    let mut prepare = container("plain", &mounts("/v"));
    prepare["name"] = json!("prepare");
    prepare["command"] = json!(["/bin/ln", "-s", "/proc/sys/kernel/core_pattern", "/v/null"]);
    let pattern = || fs::read("/proc/sys/kernel/core_pattern").unwrap();
    let before = pattern();
    attacks.pod(
        "masks",
        &json!({"initContainers": [prepare], "containers": [container("plain", &mounts("/dev"))],
            "volumes": [{"name": "v", "emptyDir": {}}]}),
    );
    let outcome = attacks.outcome("masks");
    assert!(outcome.contains("mask"), "{outcome}");
    assert_eq!(pattern(), before);
}

/// `/etc/passwd` that costs memory, waits for a writer, or is a file of the host.
fn lists_of_users(attacks: &Attacks) {
    let large = vec![b'\n'; 2 * 1024 * 1024];
    attacks.image("large", |layer| {
        layer.put(EntryType::Regular, "etc/passwd", "", &large);
    });
    attacks.image("fifo", |layer| {
        layer.put(EntryType::Fifo, "etc/passwd", "", b"");
        layer.put(
            EntryType::Symlink,
            "etc/group",
            "/proc/self/root/etc/group",
            b"",
        );
    });
    for name in ["large", "fifo"] {
        attacks.pod(name, &json!({"containers": [container(name, &json!([]))]}));
    }
    let outcome = attacks.outcome("large");
    assert!(outcome.contains("etc/passwd"), "{outcome}");
    assert_eq!(attacks.outcome("fifo"), "ok");
}

/// A sub-path leads to a directory whose name is no UTF-8, and the kernel prints it as it is in everybody's list of mounts:
/// containers started no more on that node, no pod ended, and davit itself did not start again.
fn names_that_are_no_text(attacks: &Attacks) {
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let mut prepare = container("plain", &mounts);
    prepare["name"] = json!("prepare");
    let script = r#"n=a$(/bin/busybox printf '\377'); mkdir "/v/$n" && ln -s "$n" /v/l"#;
    prepare["command"] = json!(["/bin/sh", "-c", script]);
    let sub_path = json!([{"name": "v", "mountPath": "/x", "subPath": "l"}]);
    let mut hold = container("plain", &sub_path);
    hold["command"] = json!(["/bin/sleep", "1000"]);
    attacks.pod(
        "no-text",
        &json!({"initContainers": [prepare], "containers": [hold], "volumes": [{"name": "v", "emptyDir": {}}]}),
    );
    eventually("the pod runs", STEP, || {
        let pod = attacks.get("pod/no-text").unwrap_or_default();
        pod["status"]["phase"] == "Running"
    });
    let is_listed = || {
        let table = fs::read("/proc/self/mountinfo").unwrap();
        table.windows(4).any(|bytes| bytes == b"/a\xff ")
    };
    assert!(is_listed(), "the kernel prints the name as it is");
    let mut memory = container("plain", &mounts);
    memory["name"] = json!("main");
    attacks.pod(
        "beside",
        &json!({"containers": [memory], "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}),
    );
    assert_eq!(attacks.outcome("beside"), "ok");
    for pod in ["beside", "no-text"] {
        let delete = ["delete", "pod", pod, "--timeout=60s"];
        let out = output(attacks.cluster.kubectl(&attacks.kubectl).args(delete));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{pod}: {said}");
    }
    eventually("nothing stays mounted", STEP, || !is_listed());
}

/// Each is a mount of the node, which every container that starts there pays for.
fn more_sub_paths_than_any_pod_needs(attacks: &Attacks) {
    let mount =
        |index: usize| json!({"name": "v", "mountPath": format!("/v/{index}"), "subPath": "s"});
    let mounts: Vec<Value> = (0..300).map(mount).collect();
    attacks.pod(
        "many",
        &json!({"containers": [container("plain", &json!(mounts))], "volumes": [{"name": "v", "emptyDir": {}}]}),
    );
    let outcome = attacks.outcome("many");
    assert!(outcome.contains("at most 256 for a container"), "{outcome}");
}

/// CVE-2021-30465: the parent of a mount target, in a volume, is exchanged for a link to the host while containers start.
fn exchanged_parents(attacks: &Attacks) {
    const STARTS: usize = 12;
    let mut hold = container("plain", &json!([{"name": "v", "mountPath": "/v"}]));
    hold["name"] = json!("hold");
    hold["command"] = json!(["/bin/sleep", "1000"]);
    let starts = (0..STARTS).map(|index| {
        let mut one = container(
            "plain",
            &json!([{"name": "v", "mountPath": "/v"}, {"name": "w", "mountPath": format!("/v/p/m{index}/n")}]),
        );
        one["name"] = json!(format!("start-{index}"));
        one
    });
    let containers: Vec<Value> = std::iter::once(hold).chain(starts).collect();
    let volumes = json!([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]);
    attacks.pod(
        "race",
        &json!({"containers": containers, "volumes": volumes}),
    );
    let volume = attacks.volume("race", "v");
    // Before the first start or at any time after it: the volume is the pod's.
    let (parent, link) = (volume.join("p"), volume.join("l"));
    let _made = fs::create_dir(&parent);
    symlink(&attacks.victim, &link).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let flags = RenameFlags::RENAME_EXCHANGE;
                let _ = renameat2(AT_FDCWD, &parent, AT_FDCWD, &link, flags);
            }
        });
        let end = Instant::now() + STEP;
        let mut tried = 0;
        while tried < STARTS && Instant::now() < end {
            let pod = attacks.get("pod/race").unwrap_or_default();
            let statuses = pod["status"]["containerStatuses"].as_array();
            let ended = |status: &&Value| status["state"]["terminated"].is_object();
            tried = statuses.map_or(0, |all| all.iter().filter(ended).count());
            std::thread::sleep(Duration::from_millis(200));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(tried, STARTS, "containers that ran or were refused");
    });
}

/// Archives whose entries lead out, given to `davit image import`.
#[test]
fn archives() {
    let dir = harness::temp_dir();
    let victim = victim(dir.path());
    let before = picture(&victim);
    let to = victim.to_str().unwrap();
    let secret = format!("{to}/secret");
    let mut hostile: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut add = |name, build: &dyn Fn(&mut Layer)| {
        let mut archive = Layer::new();
        build(&mut archive);
        hostile.push((name, archive.end()));
    };
    add("directory through a link", &|archive| {
        archive.put(EntryType::Symlink, "out", to, b"");
        archive.put(EntryType::Directory, "out/evil/deep", "", b"");
    });
    add("file through a link", &|archive| {
        archive.put(EntryType::Symlink, "out", "../../../../../../../../..", b"");
        archive.put(EntryType::Regular, &format!("out{to}/evil"), "", b"x");
    });
    add("hard link", &|archive| {
        archive.put(EntryType::Link, "manifest.json", &secret, b"");
    });
    add("list that is a file of the host", &|archive| {
        archive.put(EntryType::Symlink, "manifest.json", &secret, b"");
    });
    add("names that lead up", &|archive| {
        archive.put(EntryType::Regular, "../evil", "", b"x");
    });
    add("device", &|archive| {
        archive.put(EntryType::Char, "manifest.json", "", b"");
    });
    let layers: [(&str, EntryType, &str, &str); 4] = [
        (
            "layer that leads up",
            EntryType::Regular,
            "a/../../evil",
            "",
        ),
        (
            "whiteout that leads up",
            EntryType::Regular,
            "../.wh.victim",
            "",
        ),
        ("whiteout of the parent", EntryType::Regular, ".wh...", ""),
        ("hard link of a layer", EntryType::Link, "x", &secret),
    ];
    for (name, kind, path, says) in layers {
        let mut layer = Layer::new();
        layer.put(kind, path, says, b"");
        hostile.push((name, docker_archive("a.io/evil:1", &layer.end())));
    }
    // A container of it would have the host's root, whatever the node allows; with layers it would stand in its place.
    let mut layer = Layer::new();
    layer.put(EntryType::Regular, "bin/sh", "", b"x");
    let layer = layer.end();
    hostile.push((
        "image that calls itself the host's",
        docker_archive_of("davit.local/host:latest", &[]),
    ));
    hostile.push((
        "image in the place of the host's",
        docker_archive("davit.local/host", &layer),
    ));
    hostile.push((
        "image with another tag of the host's",
        docker_archive("davit.local/host:1", &layer),
    ));
    for (name, archive) in hostile {
        let file = dir.path().join("x.tar");
        fs::write(&file, archive).unwrap();
        let out = import(&file, &dir.path().join("data"));
        assert!(!out.status.success(), "{name} was taken");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!said.contains("panicked"), "{name}: {said}");
        assert_eq!(picture(&victim), before, "{name}");
    }
    let mut names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["data", "victim", "x.tar"]);
}

/// Attributes and names stand before an entry and are kept in memory: an archive that asks for half a gigabyte of it, and
/// takes two blocks of the disk.
#[test]
fn archives_that_cost_memory() {
    const LARGE: u64 = 512 << 20;
    let dir = harness::temp_dir();
    for kind in [
        EntryType::XHeader,
        EntryType::GNULongName,
        EntryType::GNULongLink,
    ] {
        let mut note = tar::Header::new_gnu();
        note.set_entry_type(kind);
        note.set_size(LARGE);
        note.set_cksum();
        let mut entry = Layer::new();
        entry.put(EntryType::Regular, "file", "", b"x");
        let path = dir.path().join("x.tar");
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(note.as_bytes(), 0).unwrap();
        file.write_all_at(&entry.end(), 512 + LARGE).unwrap();
        let out = import(&path, &dir.path().join("data"));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success(), "{kind:?}");
        assert!(said.contains("stand before an entry"), "{kind:?}: {said}");
    }
}
