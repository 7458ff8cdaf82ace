//! What the node agent keeps on disk and reads from files that containers write.

use crate::harness::{eventually, program, root, run};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::node_harness::{NodeCluster, within};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, LogParams, PostParams};
use serde_json::{Value, json};

const STEP: Duration = Duration::from_secs(60);
/// An account that owns nothing here.
const NOBODY: u32 = 65534;
/// What any account may see below a node's root; logs are links into directories that are closed.
const OPEN: [&str; 9] = [
    "root",
    "root/var",
    "root/var/lib",
    "root/var/log",
    "root/var/log/containers",
    "root/var/run",
    "root/var/run/cdi",
    "root/etc",
    "root/etc/cdi",
];

#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_node() {
    let (Some(()), Some(find)) = (root(), program("find")) else {
        return;
    };
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let victims = node.cluster.dir.path().join("victims");
    std::fs::create_dir(&victims).unwrap();

    termination_messages(&node).await;
    sub_path_links(&node, &victims).await;
    sub_path_races(&node, &victims).await;
    links_for_logs(&node, &victims).await;
    deep_trees(&node).await;
    deleted_files(&node, &victims).await;
    sockets_behind_links(&node, &victims).await;
    strange_files_of_plugins(&node, &victims);
    // Ends and starts davit again.
    let node = local_accounts(node, &find).await;
    node.clean_up().await;
}

fn pod(name: &str, spec: &Value) -> Pod {
    let mut spec = spec.clone();
    spec["terminationGracePeriodSeconds"] = json!(1);
    spec["automountServiceAccountToken"] = json!(false);
    spec["restartPolicy"] = json!("Never");
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
}

fn container(name: &str, script: &str, mounts: &Value) -> Value {
    json!({
        "name": name,
        "image": "davit.local/host",
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": mounts,
    })
}

/// A FIFO, a directory, a terabyte and a file of somebody else's where the termination message is expected, all by way of a
/// subPath: what a volume has there is no message.
async fn termination_messages(node: &NodeCluster) {
    let shapes = [
        ("file", "echo of another > /v/message; chmod 600 /v/message"),
        ("fifo", "mkfifo /v/message"),
        ("directory", "mkdir /v/message"),
        ("terabyte", "truncate -s 1T /v/message"),
    ];
    for (name, script) in shapes {
        let whole = json!([{ "name": "v", "mountPath": "/v" }]);
        let message = json!([{ "name": "v", "mountPath": "/message", "subPath": "message" }]);
        let mut ends = container("ends", "true", &message);
        ends["terminationMessagePath"] = json!("/message");
        node.create(&pod(
            name,
            &json!({
                "volumes": [{ "name": "v", "emptyDir": {} }],
                "initContainers": [container("shapes", script, &whole)],
                "containers": [ends],
            }),
        ))
        .await;
    }
    for (name, _) in shapes {
        let ended = node.wait_for_phase(name, "Succeeded").await;
        let status = ended.status.unwrap();
        let state = status.container_statuses.unwrap().remove(0).state.unwrap();
        let message = state.terminated.unwrap().message.unwrap_or_default();
        assert_eq!(message, "", "{name}");
        node.delete_now(name).await;
    }
}

/// A link in a volume, named by a subPath: what it leads to on the host is neither mounted, made nor changed.
async fn sub_path_links(node: &NodeCluster, victims: &Path) {
    let file = victims.join("file");
    std::fs::write(&file, "of the host").unwrap();
    chmod(&file, 0o600);
    let dir = victims.join("dir");
    std::fs::create_dir(&dir).unwrap();
    chmod(&dir, 0o700);
    let cases = [
        ("to-file", file.display().to_string(), "link"),
        ("to-dir", dir.display().to_string(), "link"),
        ("below-dir", dir.display().to_string(), "link/made/here"),
        (
            "upwards",
            "../../../../../../../../../../etc".to_owned(),
            "link/made",
        ),
        ("magic", "/proc/self/root/etc".to_owned(), "link/made"),
    ];
    for (name, target, sub_path) in &cases {
        let whole = json!([{ "name": "v", "mountPath": "/v" }]);
        let mounted = json!([{ "name": "v", "mountPath": "/m", "subPath": sub_path }]);
        let script = format!("chmod 777 /v; ln -s {target} /v/link");
        node.create(&pod(
            name,
            &json!({
                "volumes": [{ "name": "v", "emptyDir": {} }],
                "initContainers": [container("shapes", &script, &whole)],
                "containers": [container("uses", "cat /m /m/*; true", &mounted)],
            }),
        ))
        .await;
    }
    for (name, _, _) in &cases {
        let reason = within(
            STEP,
            &format!("pod {name} is refused its volume"),
            async || {
                let status = node.pods().get(name).await.ok()?.status?;
                let state = status.container_statuses?.into_iter().next()?.state?;
                assert!(
                    state.running.is_none() && state.terminated.is_none(),
                    "{name} has run"
                );
                state
                    .waiting?
                    .reason
                    .filter(|r| r.starts_with("CreateContainer"))
            },
        )
        .await;
        assert_eq!(reason, "CreateContainerConfigError", "{name}");
        node.delete_now(name).await;
    }
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    assert!(!Path::new("/etc/made").exists());
}

/// A container exchanges a directory for a link and back while others are mounted by a subPath through it.
async fn sub_path_races(node: &NodeCluster, victims: &Path) {
    let dir = victims.join("raced");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("secret"), "of the host").unwrap();
    chmod(&dir, 0o700);
    let whole = json!([{ "name": "v", "mountPath": "/v" }]);
    // renameat2 with RENAME_EXCHANGE
    let script = format!(
        "mkdir /v/d; chmod 777 /v; ln -s {} /v/l; exec perl -e 'my ($a, $b) = (\"/v/d\", \"/v/l\"); \
         while (1) {{ syscall(316, -100, $a, -100, $b, 2) }}'",
        dir.display()
    );
    let mut containers = vec![container("swaps", &script, &whole)];
    for n in 0..8 {
        let mounted = json!([{ "name": "v", "mountPath": "/m", "subPath": format!("d/sub-{n}") }]);
        containers.push(container(
            &format!("uses-{n}"),
            "ls -A /m; exec sleep 1000",
            &mounted,
        ));
    }
    let spec = json!({ "volumes": [{ "name": "v", "emptyDir": {} }], "containers": containers });
    node.create(&pod("races", &spec)).await;
    within(STEP, "each container was tried", async || {
        let status = node.pods().get("races").await.ok()?.status?;
        let tried = status.container_statuses?.into_iter().all(|c| {
            let state = c.state.unwrap_or_default();
            let refused = state.waiting.and_then(|w| w.reason);
            state.running.is_some() || refused.is_some_and(|r| r.starts_with("CreateContainer"))
        });
        tried.then_some(())
    })
    .await;
    node.delete_now("races").await;
    within(STEP, "the pod that raced is gone", async || {
        node.pods()
            .get_opt("races")
            .await
            .ok()?
            .is_none()
            .then_some(())
    })
    .await;
    assert_eq!(mode(&dir), 0o700);
    let names: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["secret"]);
}

/// Who may write below /var/log/pods puts a link in the place of a log: nothing is read or written through it.
async fn links_for_logs(node: &NodeCluster, victims: &Path) {
    let file = victims.join("shadow");
    std::fs::write(
        &file,
        "2026-01-01T00:00:00.000000000Z stdout F of the host\n",
    )
    .unwrap();
    let running = container(
        "logs",
        "echo begun; while sleep 0.1; do echo more; done",
        &json!([]),
    );
    node.create(&pod("logged", &json!({ "containers": [running] })))
        .await;
    let pod = node.wait_for_phase("logged", "Running").await;
    let uid = pod.metadata.uid.unwrap();
    let logs = node.cluster.dir.path().join("root/var/log/pods");
    let log = logs.join(format!("default_logged_{uid}/logs/0.log"));
    std::fs::remove_file(&log).unwrap();
    symlink(&file, &log).unwrap();
    let answer = node.pods().logs("logged", &LogParams::default()).await;
    assert!(
        !answer
            .as_ref()
            .is_ok_and(|text| text.contains("of the host")),
        "{answer:?}"
    );
    // The same by a link in the place of the folder.
    let folder = log.parent().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    symlink(victims, folder).unwrap();
    symlink("shadow", victims.join("0.log")).unwrap();
    let answer = node.pods().logs("logged", &LogParams::default()).await;
    assert!(
        !answer
            .as_ref()
            .is_ok_and(|text| text.contains("of the host")),
        "{answer:?}"
    );
    node.delete_now("logged").await;
    within(STEP, "the logs of the pod are gone", async || {
        (!folder.parent().unwrap().exists()).then_some(())
    })
    .await;
    assert!(file.exists(), "removed through a link");
}

/// Folders in folders, as many as a container likes: measured and removed in little memory.
async fn deep_trees(node: &NodeCluster) {
    const DEPTH: usize = 40_000;
    let mut holder = container(
        "holds",
        "exec sleep 1000",
        &json!([{ "name": "v", "mountPath": "/v" }]),
    );
    holder["resources"] = json!({ "limits": { "ephemeral-storage": "1Gi" } });
    let spec = json!({ "volumes": [{ "name": "v", "emptyDir": {} }], "containers": [holder] });
    node.create(&pod("deep", &spec)).await;
    let pod = node.wait_for_phase("deep", "Running").await;
    let uid = pod.metadata.uid.unwrap();
    let dir = node.kubelet_dir().join("pods").join(uid);
    let volume = dir.join("volumes/kubernetes.io~empty-dir/v");
    tokio::task::spawn_blocking(move || nest(&volume, DEPTH))
        .await
        .unwrap();
    node.delete_now("deep").await;
    within(STEP, "the deep pod's folder is gone", async || {
        (!dir.exists()).then_some(())
    })
    .await;
}

fn nest(dir: &Path, depth: usize) {
    use nix::fcntl::{AT_FDCWD, OFlag, openat};
    use nix::sys::stat::{Mode, mkdirat};
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_PATH;
    let mut at = openat(AT_FDCWD, dir, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
    }
}

/// Files that are deleted and go on being written: in what the node keeps for the pod they count, in a directory of the host, as in
/// a claim, they do not.
async fn deleted_files(node: &NodeCluster, victims: &Path) {
    let script = "exec 3>/v/file; rm /v/file; head -c 20000000 /dev/zero >&3; exec sleep 1000";
    let holder = |volume: &Value| {
        let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
        let mut container = container("holds", script, &mounts);
        container["resources"] = json!({ "limits": { "ephemeral-storage": "4Mi" } });
        let mut volume = volume.clone();
        volume["name"] = json!("v");
        json!({ "volumes": [volume], "containers": [container] })
    };
    let of_host = json!({ "hostPath": { "path": victims } });
    node.create(&pod("database", &holder(&of_host))).await;
    node.wait_for_phase("database", "Running").await;
    let own = json!({ "emptyDir": {} });
    node.create(&pod("hidden", &holder(&own))).await;
    let evicted = node.wait_for_phase("hidden", "Failed").await;
    let reason = evicted.status.unwrap().reason;
    assert_eq!(reason.as_deref(), Some("Evicted"));
    // It has been looked at as often by now.
    node.wait_for_phase("database", "Running").await;
    for name in ["database", "hidden"] {
        node.delete_now(name).await;
    }
}

/// A plugin names a link for its socket, and puts links among those that ask to be registered: nobody is called behind them.
async fn sockets_behind_links(node: &NodeCluster, victims: &Path) {
    use davit_proto::deviceplugin::v1beta1 as pb;
    let folder = node.kubelet_dir().join("device-plugins");
    let registry = node.kubelet_dir().join("plugins_registry");
    let victim = victims.join("of-the-host.sock");
    let listener = std::os::unix::net::UnixListener::bind(&victim).unwrap();
    listener.set_nonblocking(true).unwrap();
    symlink(&victim, folder.join("link.sock")).unwrap();
    symlink(&victim, registry.join("link.sock")).unwrap();
    symlink(victims, registry.join("folder")).unwrap();
    let kubelet = folder.join(pb::REGISTRATION_SOCKET);
    let channel = davit_proto::unix::connect_once(&kubelet, Duration::from_secs(10));
    let channel = channel.await.unwrap();
    let mut client = pb::registration_client::RegistrationClient::new(channel);
    for endpoint in ["link.sock", "../plugins_registry/link.sock", ".."] {
        let request = pb::RegisterRequest {
            version: pb::VERSION.to_owned(),
            endpoint: endpoint.to_owned(),
            resource_name: "example.com/attack".to_owned(),
            options: None,
        };
        let refused = client.register(request).await.unwrap_err();
        assert!(refused.message().contains("dial"), "{refused:?}");
    }
    let called = listener.accept().err().map(|error| error.kind());
    assert_eq!(called, Some(std::io::ErrorKind::WouldBlock));
}

/// What a device plugin's container can put into the folders it shares with the node agent.
fn strange_files_of_plugins(node: &NodeCluster, victims: &Path) {
    let file = victims.join("written");
    std::fs::write(&file, "of the host").unwrap();
    let dir = node.kubelet_dir().join("device-plugins");
    let staged = dir.join(".kubelet_internal_checkpoint");
    let _none = std::fs::remove_file(&staged);
    symlink(&file, &staged).unwrap();
    run(Command::new("mkfifo").arg(dir.join("fifo.sock")));
    let checkpoint = dir.join("kubelet_internal_checkpoint");
    let _none = std::fs::remove_file(&checkpoint);
    run(Command::new("mkfifo").arg(&checkpoint));
}

/// Another account of the machine: before and after davit has started on directories that an older one left open.
async fn local_accounts(mut node: NodeCluster, find: &Path) -> NodeCluster {
    let secret = json!({ "metadata": { "name": "keys" }, "stringData": { "password": "sesame" } });
    let secrets: Api<Secret> = Api::default_namespaced(node.client.clone());
    let secret = serde_json::from_value(secret).unwrap();
    secrets
        .create(&PostParams::default(), &secret)
        .await
        .unwrap();
    let mounts =
        json!([{ "name": "keys", "mountPath": "/keys" }, { "name": "v", "mountPath": "/v" }]);
    let script = "cp /bin/true /v/root-shell && chmod 4755 /v/root-shell && exec sleep 1000";
    let spec = json!({
        "volumes": [{ "name": "keys", "secret": { "secretName": "keys" } }, { "name": "v", "emptyDir": {} }],
        "containers": [container("main", script, &mounts)],
    });
    node.create(&pod("private", &spec)).await;
    node.wait_for_phase("private", "Running").await;

    let dir = node.cluster.dir.path().to_owned();
    chmod(&dir, 0o755);
    assert_closed(find, &dir);
    let checkpoint = dir.join("root/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint");
    node.cluster.kill();
    // As an older davit made them.
    let open = [
        "data",
        "data/store",
        "data/store/db",
        "data/pki",
        "data/runtime",
        "data/runtime/layers",
        "data/runtime/run",
    ];
    let kubelet = [
        "",
        "pods",
        "device-plugins",
        "plugins",
        "plugins_registry",
        "pod-resources",
        "pki",
    ];
    for name in open {
        chmod(&dir.join(name), 0o755);
    }
    for name in kubelet {
        chmod(&dir.join("root/var/lib/kubelet").join(name), 0o755);
    }
    chmod(&dir.join("root/var/log/pods"), 0o755);
    let node = node.start_again().await;
    node.wait_for_phase("private", "Running").await;
    assert_closed(find, &dir);
    // The agent has written its checkpoint in the place of the FIFO, not through the link beside it that a plugin had left.
    eventually("the checkpoint is written", STEP, || {
        let is_file = std::fs::symlink_metadata(&checkpoint).is_ok_and(|found| found.is_file());
        is_file && std::fs::read_to_string(&checkpoint).is_ok_and(|text| text.contains("Checksum"))
    });
    assert_eq!(
        std::fs::read_to_string(dir.join("victims/written")).unwrap(),
        "of the host"
    );
    node
}

/// Nothing below the data directory and the node's root can be read, listed, entered or executed by another account.
fn assert_closed(find: &Path, dir: &Path) {
    let out = Command::new(find)
        .args([
            "data",
            "root",
            "(",
            "-readable",
            "-o",
            "-executable",
            ")",
            "-print",
        ])
        .current_dir(dir)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let links = Path::new("root/var/log/containers");
    let seen: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
    assert!(
        !seen.is_empty(),
        "the other account sees nothing at all: {out:?}"
    );
    let open: Vec<&PathBuf> = seen
        .iter()
        .filter(|path| !OPEN.iter().any(|o| *path == Path::new(o)) && path.parent() != Some(links))
        .collect();
    assert!(open.is_empty(), "open to other accounts: {open:#?}");
}

fn chmod(path: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}
