//! What is mounted on peers of the host's mounts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use davit_beneath::mountinfo::{is_mount_point, part_from_outside};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use std::path::Path;

fn memory(at: &Path) -> bool {
    mount("tmpfs", at, "tmpfs", MountFlags::NOSUID, None).is_ok()
}

/// A pod has a part of a directory in which something is mounted later.
#[test]
fn what_is_mounted_on_a_peer_stays_when_it_is_unmounted_here() {
    let tmp = tempfile::tempdir().unwrap();
    let (host, pod) = (tmp.path().join("host"), tmp.path().join("pods/u"));
    let part = pod.join("part");
    for dir in [&host, &part] {
        std::fs::create_dir_all(dir).unwrap();
    }
    if !rustix::process::geteuid().is_root() || !memory(&host) {
        println!("skipped: this machine does not let mount");
        return;
    }
    mount_change(&host, MountPropagationFlags::SHARED).unwrap();
    let disk = host.join("part/disk");
    std::fs::create_dir_all(&disk).unwrap();
    mount_bind(host.join("part"), &part).unwrap();
    let mut stays = Vec::new();
    for parted in [false, true] {
        memory(&disk);
        let here = is_mount_point(&part.join("disk")).unwrap();
        if parted {
            part_from_outside(&pod).unwrap();
        }
        unmount(part.join("disk"), UnmountFlags::NOFOLLOW).unwrap();
        stays.push((here, is_mount_point(&disk).unwrap()));
    }
    for left in [&disk, &part, &host] {
        let _ = unmount(left, UnmountFlags::DETACH);
    }
    assert_eq!(stays, [(true, false), (true, true)]);
}
