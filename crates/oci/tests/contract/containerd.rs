//! containerd from Debian's package, through CRI.

use crate::{contract, image, run_tests};
use davit_oci::contract::Setup;
use davit_oci::cri::Remote;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

struct Containerd {
    process: Child,
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .arg(self.process.id().to_string())
            .status();
        let _ = self.process.wait();
    }
}

fn config(dir: &Path) -> String {
    let path = |name: &str| dir.join(name).display().to_string();
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#,
        root = path("root"),
        state = path("state"),
        socket = path("c.sock"),
        cni = path("cni"),
        image = image::NAME,
    )
}

const NETWORK: &str = r#"{"cniVersion":"0.4.0","name":"lo","plugins":[{"type":"loopback"}]}"#;

/// Tests that need more of the machine than the package gives, or what containerd 1.6 does in another way.
const SKIPPED: &[(&str, &str)] = &[("isolated_network", "needs a CNI network")];

/// Runs the contract on a containerd of its own.
pub(crate) async fn run(busybox: &Path, filters: &[String]) -> usize {
    if !["/usr/bin/containerd", "/usr/bin/ctr"]
        .iter()
        .all(|path| Path::new(path).exists())
    {
        println!("skipped: no containerd");
        return 0;
    }
    if !filters.is_empty()
        && !filters.iter().any(|filter| {
            contract()
                .iter()
                .any(|(name, _)| format!("containerd::{name}").contains(filter.as_str()))
        })
    {
        return 0;
    }
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    std::fs::create_dir_all(dir.join("cni")).unwrap();
    std::fs::write(dir.join("cni/10-lo.conflist"), NETWORK).unwrap();
    std::fs::write(dir.join("config.toml"), config(dir)).unwrap();
    let log = std::fs::File::create(dir.join("containerd.log")).unwrap();
    let process = Command::new("/usr/bin/containerd")
        .arg("--config")
        .arg(dir.join("config.toml"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let daemon = Containerd { process };
    let socket = dir.join("c.sock");
    let remote = match Remote::connect(&socket).await {
        Ok(remote) => remote,
        Err(error) => {
            println!("skipped: containerd does not come up: {error}");
            return 0;
        }
    };
    let archive = dir.join("image.tar");
    image::write(busybox, &archive);
    let imported = Command::new("/usr/bin/ctr")
        .arg("--address")
        .arg(&socket)
        .args(["-n", "k8s.io", "images", "import"])
        .arg(&archive)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(imported.success());
    let setup = Setup {
        runtime: Arc::new(remote),
        image: image::NAME.to_owned(),
        dir: dir.to_owned(),
        cgroup_parent: format!("/davit-containerd-{}", std::process::id()),
    };
    let tests: Vec<_> = contract()
        .iter()
        .copied()
        .filter(|(name, _)| !SKIPPED.iter().any(|(skipped, _)| skipped == name))
        .collect();
    for (name, why) in SKIPPED {
        println!("test containerd::{name} ... skipped: {why}");
    }
    let failed = run_tests("containerd", &setup, &tests, filters).await;
    for sandbox in setup.runtime.list_pod_sandboxes(None).await.unwrap() {
        let _ = setup.runtime.stop_pod_sandbox(&sandbox.id).await;
        let _ = setup.runtime.remove_pod_sandbox(&sandbox.id).await;
    }
    if failed > 0 {
        let log = std::fs::read_to_string(dir.join("containerd.log")).unwrap();
        println!(
            "{}",
            log.lines().rev().take(20).collect::<Vec<_>>().join("\n")
        );
    }
    drop(daemon);
    crate::remove_cgroups("davit-containerd-");
    failed
}
