//! Part of `cargo xtask layers`: which modules may resolve paths.
//!
//! A container, an image or a volume can exchange any part of a path for a link, so what is below their roots is reached
//! through `beneath` only. In the crates that work there, every file that resolves paths itself stands in a table here,
//! with what its paths are and why nobody but the host shapes them.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose files are looked at.
const FOLDERS: [&str; 10] = [
    "crates/disk/src",
    "crates/oci/src",
    "crates/containermanager/src",
    "crates/pods/src",
    "crates/podvolumes/src",
    "crates/podimages/src",
    "crates/cadvisor/src",
    "crates/nodelogs/src",
    "crates/machine/src",
    "crates/node/src",
];

/// What resolves a path. A leading dot is a method of `Path`; the others are functions and types.
const CALLS: [&str; 41] = [
    "fs::read(",
    "fs::read_to_string(",
    "fs::read_dir(",
    "fs::read_link(",
    "fs::write(",
    "fs::create_dir(",
    "fs::create_dir_all(",
    "fs::remove_file(",
    "fs::remove_dir(",
    "fs::remove_dir_all(",
    "fs::rename(",
    "fs::copy(",
    "fs::metadata(",
    "fs::symlink_metadata(",
    "fs::set_permissions(",
    "fs::canonicalize(",
    "fs::hard_link(",
    "fs::exists(",
    "fs::open(",
    "fs::statfs(",
    "fs::chown(",
    "symlink(",
    "chown(",
    "DirBuilder::new(",
    "File::open(",
    "File::create(",
    "File::create_new(",
    "File::options(",
    "OpenOptions::new(",
    "CWD",
    "mount_bind(",
    "mount_change(",
    "unmount(",
    "set_current_dir(",
    ".exists()",
    ".try_exists()",
    ".is_dir()",
    ".is_file()",
    ".is_symlink()",
    ".canonicalize()",
    ".symlink_metadata()",
];

/// Files that may, and why.
const MAY: &[(&str, &str)] = &[
    (
        "disk/src/copy.rs",
        "the directory of the node's local volumes, to write it out; what is copied is reached through `beneath`",
    ),
    (
        "disk/src/directories",
        "the directory of the node's local volumes; what pods write is removed through `beneath`",
    ),
    (
        "disk/src/loop_device.rs",
        "loop devices of the host in /dev and /sys/block",
    ),
    (
        "disk/src/published.rs",
        "volume directories of the node; their content goes through `beneath`",
    ),
    (
        "oci/src/cdi.rs",
        "CDI specifications below /etc/cdi and /var/run/cdi",
    ),
    (
        "oci/src/cdi/",
        "device files of the host that specifications name",
    ),
    ("oci/src/cgroup.rs", "cgroup hierarchies of the host"),
    (
        "oci/src/cgroup/breakdown.rs",
        "cgroup hierarchies of the host",
    ),
    (
        "oci/src/cgroup/disk_traffic.rs",
        "cgroup hierarchies of the host, names of its devices in /sys",
    ),
    (
        "oci/src/cgroup/pressure.rs",
        "cgroup hierarchies of the host, /proc of the host",
    ),
    ("oci/src/kernel.rs", "/proc of the host"),
    ("oci/src/cni", "configuration, plugins and results of CNI"),
    ("oci/src/contract", "tests"),
    (
        "oci/src/deleted_files.rs",
        "/proc/PID of the host, held open; what is below it is only looked at",
    ),
    ("oci/src/embedded.rs", "davit's own state directory"),
    (
        "oci/src/embedded/connection.rs",
        "control sockets in davit's state directory",
    ),
    (
        "oci/src/embedded/container.rs",
        "records in davit's state directory",
    ),
    (
        "oci/src/embedded/container/alive.rs",
        "records in davit's state directory",
    ),
    (
        "oci/src/embedded/container/create.rs",
        "davit's state directory",
    ),
    (
        "oci/src/embedded/container/reconnect.rs",
        "records in davit's state directory",
    ),
    ("oci/src/embedded/exec.rs", "davit's own pipes"),
    (
        "oci/src/embedded/sandbox.rs",
        "davit's state directory and pinned namespaces",
    ),
    (
        "oci/src/embedded/spec.rs",
        "devices, seccomp profiles and mount sources that the node names",
    ),
    (
        "oci/src/embedded/user.rs",
        "lists of the host image, which is the host's root",
    ),
    (
        "oci/src/embedded/users.rs",
        "whether the kernel has user namespaces",
    ),
    (
        "oci/src/host_ids.rs",
        "lists of processes in /proc and of accounts' ranges in /etc",
    ),
    (
        "oci/src/image.rs",
        "records and finished layers, in a directory that containers see read-only",
    ),
    (
        "oci/src/image/archive.rs",
        "the archive that the administrator names, and a directory for its files",
    ),
    ("oci/src/image/pull.rs", "davit's own temporary files"),
    (
        "oci/src/monitor.rs",
        "records in davit's state directory, /proc/PID/stat",
    ),
    (
        "oci/src/monitor/confine.rs",
        "an empty file system that stands for the root",
    ),
    (
        "oci/src/monitor/directory.rs",
        "the container's root by openat2",
    ),
    (
        "oci/src/monitor/init.rs",
        "the container's list of users by openat2; /proc of the host",
    ),
    (
        "oci/src/monitor/logs.rs",
        "log files in the pod's log directory, which containers do not see",
    ),
    (
        "oci/src/monitor/mounts.rs",
        "mount sources that the node names, and the overlay's own directories",
    ),
    (
        "oci/src/monitor/mounts/images.rs",
        "layers of finished images, and the mount's own directories",
    ),
    (
        "oci/src/monitor/namespaces.rs",
        "pinned namespaces in davit's state directory",
    ),
    (
        "oci/src/monitor/pause.rs",
        "pinned namespaces in davit's state directory",
    ),
    ("oci/src/monitor/serve.rs", "the control socket"),
    ("oci/src/monitor/start.rs", "the control socket and records"),
    (
        "oci/src/monitor/terminal.rs",
        "the container's terminal by openat2",
    ),
    (
        "oci/src/monitor/userns.rs",
        "a device file system that is mounted nowhere, and layers of finished images",
    ),
    ("oci/src/netdev.rs", "pinned namespaces"),
    ("oci/src/network.rs", "pinned namespaces"),
    ("oci/src/rdt.rs", "the resctrl file system"),
    ("containermanager/src/allocation/", "the allocation log"),
    (
        "containermanager/src/devices/",
        "checkpoints and sockets of plugins",
    ),
    (
        "containermanager/src/dra/",
        "records of claims, devices of the host",
    ),
    (
        "cadvisor/src/disks.rs",
        "counters of the host's disks, in /proc",
    ),
    (
        "nodelogs/src/files.rs",
        "kinds of entries, as the directory has listed them; files go through `beneath`",
    ),
    ("containermanager/src/plugins", "sockets of plugins"),
    ("node/src/admission.rs", "what the kernel enforces, in /sys"),
    ("node/src/agent", "the node's own directories, static pods"),
    (
        "node/src/container_config.rs",
        "files that the node makes for its pods; sub-paths go through `beneath`",
    ),
    ("node/src/eviction/", "usage of the node's file systems"),
    (
        "podimages/src",
        "credential providers and their configuration, records of pulls",
    ),
    ("node/src/kubelet_config", "the kubelet's configuration"),
    ("machine/src/kernel.rs", "settings of the kernel, in /proc"),
    ("machine/src/machine", "/proc and /sys of the host"),
    ("node/src/resize/", "the record of resizes"),
    ("node/src/se_linux.rs", "what the kernel enforces, in /sys"),
    ("node/src/security.rs", "the kernel's list of processors"),
    (
        "node/src/server/",
        "certificates of the node's server, usage",
    ),
    (
        "node/src/users.rs",
        "which pods have a directory of the node's own",
    ),
    (
        "podvolumes/src",
        "volume directories of the node, host paths; their content goes through `beneath`",
    ),
];

/// Checks the files; the error lists those that resolve paths without being in the table.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    let mut used = vec![false; MAY.len()];
    let mut count = 0;
    for folder in FOLDERS {
        for file in sources(&root.join(folder))? {
            count += 1;
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let Some((line, call)) = first_call(&text) else {
                continue;
            };
            let below = file.strip_prefix(root.join("crates")).unwrap_or(&file);
            let name = below.to_string_lossy();
            match MAY.iter().position(|(prefix, _)| name.starts_with(prefix)) {
                Some(index) => used[index] = true,
                None => wrong.push(format!("crates/{name}:{line}: {call}")),
            }
        }
    }
    for ((prefix, _), _) in MAY.iter().zip(used).filter(|(_, used)| !used) {
        println!("paths: {prefix} resolves none any more: its row in xtask/src/paths.rs can go");
    }
    if wrong.is_empty() {
        println!("paths: {count} files in order");
        return Ok(());
    }
    bail!(
        "paths are resolved by modules that are not in the table of xtask/src/paths.rs (is it a case for davit-beneath?):\n  {}",
        wrong.join("\n  ")
    )
}

/// The source files of a folder, without those that are tests only.
pub(crate) fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "tests" {
            files.extend(sources(&path)?);
        } else if path.extension().is_some_and(|ext| ext == "rs") && name != "tests.rs" {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The first call in what is not tests: its line and itself.
fn first_call(text: &str) -> Option<(usize, &'static str)> {
    let program = text.split("\n#[cfg(test)]").next().unwrap_or(text);
    program.lines().enumerate().find_map(|(index, line)| {
        let line_of_code = !line.trim_start().starts_with("//");
        let call = CALLS
            .into_iter()
            .find(|call| line_of_code && calls(line, call))?;
        Some((index + 1, call))
    })
}

/// Whether the line makes this call: not another one whose name ends the same way, not a method of something else, not
/// a definition.
fn calls(line: &str, call: &str) -> bool {
    line.match_indices(call).any(|(at, _)| {
        let before = &line[..at];
        let joined = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        call.starts_with('.') || !(before.ends_with(joined) || before.ends_with("fn "))
    })
}

#[cfg(test)]
mod tests {
    use super::{calls, first_call};

    #[test]
    fn calls_are_found_and_others_are_not() {
        assert!(calls("    let x = std::fs::read(path)?;", "fs::read("));
        assert!(calls("if path.exists() {", ".exists()"));
        assert!(calls("openat(CWD, path)", "CWD"));
        assert!(!calls("root.symlink(says, path)", "symlink("));
        assert!(!calls("fn unmount(&self)", "unmount("));
        assert!(!calls("lfs::read(path)", "fs::read("));
        assert_eq!(
            first_call("a\n// fs::read(\n#[cfg(test)]\nfs::read(x)"),
            None
        );
        assert_eq!(first_call("a\nfs::read(x)"), Some((2, "fs::read(")));
    }
}
