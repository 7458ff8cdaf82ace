//! A busybox image as a Docker archive, made of the machine's own static busybox.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Name of the image.
pub(crate) const NAME: &str = "docker.io/library/contract-busybox:1";

const APPLETS: &[&str] = &[
    "sh", "echo", "cat", "sleep", "true", "ls", "id", "touch", "mkdir", "head", "wc", "mknod",
    "tr", "grep", "tail", "ps", "hostname", "pwd", "kill", "printf", "nc", "tty", "stty", "cut",
    "test", "[", "unshare", "mount", "env", "rm",
];

/// The machine's busybox.
pub(crate) fn busybox() -> Option<PathBuf> {
    ["/usr/bin/busybox", "/bin/busybox"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
}

fn add(builder: &mut tar::Builder<Vec<u8>>, path: &str, bytes: &[u8], mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    builder.append_data(&mut header, path, bytes).unwrap();
}

fn layer(busybox: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for dir in ["bin", "etc", "tmp", "root"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        builder.append_data(&mut header, dir, &[][..]).unwrap();
    }
    add(
        &mut builder,
        "bin/busybox",
        &std::fs::read(busybox).unwrap(),
        0o755,
    );
    for applet in APPLETS {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        builder
            .append_link(&mut header, format!("bin/{applet}"), "busybox")
            .unwrap();
    }
    add(
        &mut builder,
        "etc/passwd",
        b"root:x:0:0:root:/:/bin/sh\n",
        0o644,
    );
    add(&mut builder, "etc/group", b"root:x:0:\n", 0o644);
    builder.into_inner().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Writes the archive.
pub(crate) fn write(busybox: &Path, target: &Path) {
    let layer = layer(busybox);
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let config = format!(
        r#"{{"architecture":"{arch}","os":"linux","config":{{"Env":["PATH=/bin"],"Cmd":["/bin/sleep","1000000"]}},"rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}}}}"#,
        hex(&layer)
    );
    let name = format!("{}.json", hex(config.as_bytes()));
    let manifest =
        format!(r#"[{{"Config":"{name}","RepoTags":["{NAME}"],"Layers":["layer.tar"]}}]"#);
    let mut builder = tar::Builder::new(Vec::new());
    add(&mut builder, "layer.tar", &layer, 0o644);
    add(&mut builder, &name, config.as_bytes(), 0o644);
    add(&mut builder, "manifest.json", manifest.as_bytes(), 0o644);
    std::fs::write(target, builder.into_inner().unwrap()).unwrap();
}
