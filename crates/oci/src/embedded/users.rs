//! User namespaces of pods: made by a small process of ours, since a program with threads cannot enter one, and kept by
//! files like the others.

use super::record::Namespaces;
use super::{Inner, io_error};
use crate::monitor::NAMESPACES_ARG;
use crate::runtime::{Error, Result};
use davit_proto::cri::v1 as cri;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::mount_bind;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

/// Kernels since then map the IDs of the file systems that volumes are on (tmpfs came last).
const KERNEL: (u32, u32) = (6, 3);

/// Whether this kernel can give pods users of their own.
pub(super) fn supported() -> bool {
    crate::kernel::version() >= KERNEL && Path::new("/proc/self/ns/user").exists()
}

/// How a pod's users map to the host's; empty lists where they are the host's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) uids: Vec<cri::IdMapping>,
    pub(super) gids: Vec<cri::IdMapping>,
}

impl Mapping {
    /// Reads what a sandbox or a container asks for. `None` where it is the host's users.
    pub(super) fn of(options: &cri::NamespaceOption) -> Result<Option<Self>> {
        let Some(wanted) = &options.userns_options else {
            return Ok(None);
        };
        match cri::NamespaceMode::try_from(wanted.mode) {
            Ok(cri::NamespaceMode::Node) => return Ok(None),
            Ok(cri::NamespaceMode::Pod) => {}
            _ => {
                return Err(Error::InvalidArgument(format!(
                    "user namespace mode {}",
                    wanted.mode
                )));
            }
        }
        let mapping = Mapping {
            uids: wanted.uids.clone(),
            gids: wanted.gids.clone(),
        };
        for list in [&mapping.uids, &mapping.gids] {
            check(list)?;
        }
        Ok(Some(mapping))
    }
}

/// One range from 0 on, away from the host's own root: what Kubernetes asks for.
fn check(list: &[cri::IdMapping]) -> Result<()> {
    match list {
        [map]
            if map.container_id == 0
                && map.host_id > 0
                && map.length > 0
                && map.host_id.checked_add(map.length - 1).is_some() =>
        {
            Ok(())
        }
        _ => Err(Error::InvalidArgument(
            "a user namespace needs one range of IDs, from 0 in the container".to_owned(),
        )),
    }
}

/// The text for `uid_map` and `gid_map`.
fn lines(list: &[cri::IdMapping]) -> String {
    list.iter()
        .map(|m| format!("{} {} {}\n", m.container_id, m.host_id, m.length))
        .collect()
}

/// What belongs to a pod's namespaces from the start.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Furnishing {
    /// The name of the machine, where the pod has one of its own.
    pub(super) hostname: Option<String>,
    /// There is a network, with its loopback device.
    pub(super) network: bool,
    /// There is an IPC namespace.
    pub(super) ipc: bool,
    pub(super) sysctls: Vec<(String, String)>,
}

impl Furnishing {
    /// Puts it into the namespaces of the calling thread.
    pub(super) fn apply(self) -> Result<()> {
        if self.network {
            crate::sys::loopback_up().map_err(io_error("loopback device"))?;
        }
        if let Some(name) = self.hostname {
            nix::unistd::sethostname(name)
                .map_err(|e| Error::Internal(format!("hostname: {}", e.desc())))?;
        }
        for (name, value) in self.sysctls {
            super::sandbox::set_sysctl(&name, &value, self.network, self.ipc)?;
        }
        Ok(())
    }
}

/// What the process that makes the namespaces is told.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    flags: i32,
    furnishing: Furnishing,
}

/// Makes a user namespace with these mappings, and the pod's other namespaces in it.
pub(super) fn make(
    inner: &Inner,
    namespaces: &Namespaces,
    mapping: &Mapping,
    furnishing: Furnishing,
) -> Result<()> {
    let mut flags = CloneFlags::empty();
    let mut pins = Vec::new();
    for (file, flag, name) in [
        (&namespaces.user, CloneFlags::empty(), "user"),
        (&namespaces.net, CloneFlags::CLONE_NEWNET, "net"),
        (&namespaces.ipc, CloneFlags::CLONE_NEWIPC, "ipc"),
        (&namespaces.uts, CloneFlags::CLONE_NEWUTS, "uts"),
    ] {
        if let Some(file) = file {
            fs::write(file, "").map_err(io_error(file.display()))?;
            flags |= flag;
            pins.push((file, name));
        }
    }
    let order = Order {
        flags: flags.bits(),
        furnishing,
    };
    let failed = io_error("make user namespace");
    let mut child = std::process::Command::new(&inner.exe)
        .arg(NAMESPACES_ARG)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(io_error("start the maker of namespaces"))?;
    let pid = child.id();
    let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Error::Internal(
            "the maker of namespaces has no pipes".to_owned(),
        ));
    };
    let work = || -> std::io::Result<()> {
        let mut from = BufReader::new(from);
        let mut expect = |wanted: &str| {
            let mut line = String::new();
            from.read_line(&mut line)?;
            if line.trim_end() == wanted {
                Ok(())
            } else {
                Err(std::io::Error::other(line.trim_end().to_owned()))
            }
        };
        serde_json::to_writer(&mut to, &order)?;
        to.write_all(b"\n")?;
        expect("users")?;
        fs::write(format!("/proc/{pid}/uid_map"), lines(&mapping.uids))?;
        fs::write(format!("/proc/{pid}/gid_map"), lines(&mapping.gids))?;
        to.write_all(b"\n")?;
        expect("made")?;
        for (file, name) in &pins {
            mount_bind(format!("/proc/{pid}/ns/{name}"), *file)?;
        }
        Ok(())
    };
    let outcome = work().map_err(failed);
    drop(to);
    let _ = child.wait();
    outcome
}

/// The process that makes them. Ends when its input does.
pub(crate) fn main() -> i32 {
    let outcome = main_steps();
    if let Err(error) = &outcome {
        println!("{error}");
    }
    i32::from(outcome.is_err())
}

fn main_steps() -> Result<()> {
    let io = |error: std::io::Error| Error::Internal(error.to_string());
    let errno = |error: nix::errno::Errno| Error::Internal(error.desc().to_owned());
    nix::sys::prctl::set_dumpable(false).map_err(errno)?;
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).map_err(io)?;
    let order: Order = serde_json::from_str(&line).map_err(|e| Error::Internal(e.to_string()))?;
    unshare(CloneFlags::CLONE_NEWUSER).map_err(errno)?;
    println!("users");
    line.clear();
    input.read_line(&mut line).map_err(io)?;
    crate::monitor::become_namespace_root().map_err(Error::Internal)?;
    unshare(CloneFlags::from_bits_truncate(order.flags)).map_err(errno)?;
    order.furnishing.apply()?;
    println!("made");
    let mut rest = Vec::new();
    input.read_to_end(&mut rest).map(drop).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings() {
        let map = |container_id, host_id, length| cri::IdMapping {
            host_id,
            container_id,
            length,
        };
        let of = |mode, ids: Vec<cri::IdMapping>| {
            Mapping::of(&cri::NamespaceOption {
                userns_options: Some(cri::UserNamespace {
                    mode,
                    uids: ids.clone(),
                    gids: ids,
                }),
                ..cri::NamespaceOption::default()
            })
        };
        let (pod, node) = (0, 2);
        assert_eq!(of(node, Vec::new()).unwrap(), None);
        let good = of(pod, vec![map(0, 65536, 65536)]).unwrap().unwrap();
        assert_eq!(lines(&good.uids), "0 65536 65536\n");
        for bad in [
            vec![],
            vec![map(0, 0, 65536)],
            vec![map(1, 65536, 65536)],
            vec![map(0, 65536, 0)],
            vec![map(0, u32::MAX, 2)],
            vec![map(0, 65536, 1), map(1, 70000, 1)],
        ] {
            assert!(of(pod, bad.clone()).is_err(), "{bad:?}");
        }
        assert!(of(1, vec![map(0, 65536, 65536)]).is_err());
    }
}
