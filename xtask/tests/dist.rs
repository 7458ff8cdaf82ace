//! What `cargo xtask dist` makes of a binary can be unpacked, verified and installed, and is the same each time.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The binary that `cargo test --workspace` builds beside this one.
fn davit() -> Option<PathBuf> {
    let binary = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("davit");
    if !binary.is_file() {
        println!("skipped: davit is not built");
    }
    binary.is_file().then_some(binary)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A binary as large as the debug build's takes long to pack: this one hands its questions on.
fn small(davit: &Path, dir: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.join("davit");
    let script = format!("#!/bin/sh\nexec {} \"$@\"\n", davit.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Runs it until it succeeds, for a minute at most.
fn until_it_succeeds(command: &mut Command) -> String {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let output = command.output().unwrap();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        assert!(Instant::now() < end, "{command:?}: {output:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether a part is there; a part that CI must have may not be missing.
fn is_there(part: &str, there: bool) -> bool {
    let required = std::env::var("DAVIT_REQUIRED_PARTS").unwrap_or_default();
    let required = required.split_whitespace().any(|name| name == part);
    assert!(there || !required, "{part} is required here but missing");
    if !there {
        println!("skipped: {part} is not on this machine");
    }
    there
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// davit's own import and, where it is, containerd's take the image.
fn is_taken(davit: &Path, image: &Path, dir: &Path) {
    let data = dir.join("data");
    let of_runtime = |args: &[&str]| {
        let mut command = Command::new(davit);
        command.arg("image").args(args).arg("--data-dir").arg(&data);
        run(&mut command)
    };
    let name = format!("davit.dev/davit:{}", env!("CARGO_PKG_VERSION"));
    of_runtime(&["import", image.to_str().unwrap()]);
    assert!(of_runtime(&["list", "-o", "json"]).contains(&name));
    let there = ["/usr/bin/containerd", "/usr/bin/ctr"];
    let there = there.iter().all(|path| Path::new(path).is_file());
    let is_root = run(Command::new("id").arg("-u")) == "0\n";
    if !is_there("containerd", there) || !is_there("root", is_root) {
        return;
    }
    let at = |name: &str| dir.join("containerd").join(name).display().to_string();
    std::fs::create_dir(at("")).unwrap();
    let config = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = {:?}\n",
        at("root"),
        at("state"),
        at("c.sock")
    );
    std::fs::write(at("config.toml"), config).unwrap();
    let mut containerd = Command::new("/usr/bin/containerd");
    containerd.args(["--config", &at("config.toml")]);
    containerd.stdout(Stdio::null()).stderr(Stdio::null());
    let _containerd = Process(containerd.spawn().unwrap());
    let mut ctr = Command::new("/usr/bin/ctr");
    ctr.args(["--address", &at("c.sock"), "images", "import"]);
    let told = until_it_succeeds(ctr.arg(image));
    assert!(told.contains(&name), "{told}");
}

/// The layout says what is in it, and everything is what its digest says.
fn is_a_layout(image: &Path, dir: &Path) {
    let place = dir.join("layout");
    std::fs::create_dir(&place).unwrap();
    run(Command::new("tar")
        .arg("-xf")
        .arg(image)
        .arg("-C")
        .arg(&place));
    let read = |path: &str| -> Value {
        serde_json::from_slice(&std::fs::read(place.join(path)).unwrap()).unwrap()
    };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        let path = format!("blobs/{}", digest.replace(':', "/"));
        let sum = run(Command::new("sha256sum").arg(place.join(&path)));
        assert!(sum.starts_with(digest.strip_prefix("sha256:").unwrap()));
        let size = std::fs::metadata(place.join(&path)).unwrap().len();
        assert_eq!(descriptor["size"], size, "{digest}");
        path
    };
    assert_eq!(read("oci-layout")["imageLayoutVersion"], "1.0.0");
    let index = read("index.json");
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
    let manifest = read(&blob(&index["manifests"][0]));
    let config = read(&blob(&manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/davit"]));
    assert_eq!(config["os"], "linux");
    let layer = place.join(blob(&manifest["layers"][0]));
    let plain = place.join("layer.tar");
    let unpacked = Command::new("gzip")
        .args(["-dc"])
        .arg(layer)
        .output()
        .unwrap();
    std::fs::write(&plain, unpacked.stdout).unwrap();
    let sum = run(Command::new("sha256sum").arg(&plain));
    let diff_id = config["rootfs"]["diff_ids"][0].as_str().unwrap();
    assert!(sum.starts_with(diff_id.strip_prefix("sha256:").unwrap()));
    let listed = run(Command::new("tar").arg("-tvf").arg(&plain));
    for line in ["-rwxr-xr-x 0/0", " usr/bin/davit\n", "drwxrwxrwt 0/0"] {
        assert!(listed.contains(line), "{line}: {listed}");
    }
}

#[test]
fn archive_package_and_image_are_whole_and_the_same_each_time() {
    let Some(davit) = davit() else { return };
    let dir = tempfile::tempdir().unwrap();
    let small = small(&davit, dir.path());
    let made = |to: &str| {
        let to = dir.path().join(to);
        let mut dist = Command::new(env!("CARGO_BIN_EXE_xtask"));
        dist.args(["dist", "--binary"])
            .arg(&small)
            .arg("--to")
            .arg(&to);
        run(&mut dist);
        to
    };
    let (first, second) = (made("first"), made("second"));
    let sums = |dir: &Path| std::fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&first), sums(&second));
    assert_eq!(sums(&first).lines().count(), 3);
    run(Command::new("sha256sum")
        .args(["-c", "SHA256SUMS"])
        .current_dir(&first));
    let file = |ending: &str| {
        let all = std::fs::read_dir(&first)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        all.into_iter()
            .find(|path| path.to_string_lossy().ends_with(ending))
            .unwrap()
    };
    let listed = run(Command::new("tar").arg("-tzf").arg(file(".tar.gz")));
    for name in [
        "/davit\n",
        "/completions/_davit\n",
        "/man/davit-up.1\n",
        "/LICENSE\n",
    ] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    is_a_layout(&file(".oci.tar"), dir.path());
    is_taken(&davit, &file(".oci.tar"), dir.path());
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        println!("skipped: dpkg-deb is not on this machine");
        return;
    }
    let package = file(".deb");
    let fields = run(Command::new("dpkg-deb").args(["--field"]).arg(&package));
    assert!(
        fields.contains("Package: davit\n") && fields.contains("Architecture: "),
        "{fields}"
    );
    let root = dir.path().join("root");
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(&package)
        .arg(&root));
    let unit = std::fs::read_to_string(root.join("usr/lib/systemd/system/davit.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/davit up"), "{unit}");
    assert!(root.join("etc/davit/davit.yaml").is_file());
    assert!(
        root.join("usr/share/man/man1/davit-explain-pod.1.gz")
            .is_file()
    );
    let version = run(Command::new(root.join("usr/bin/kubectl-davit")).arg("--version"));
    assert!(
        version.starts_with("davit ") || version.starts_with("kubectl-davit "),
        "{version}"
    );
    assert!(!first.join(".making").exists());
}
