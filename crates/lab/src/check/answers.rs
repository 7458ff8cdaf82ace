//! Whether an answer to Allocate can be used by a container runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use davit_proto::deviceplugin::v1beta1 as pb;

/// Looks at what a container is to get.
///
/// # Errors
/// The first thing that cannot be used.
pub(super) fn check(answer: &pb::ContainerAllocateResponse) -> Result<String, String> {
    for name in answer.envs.keys() {
        let odd = name.is_empty() || name.contains(['=', '\0']);
        if odd {
            return Err(format!("{name:?} is no name of an environment variable"));
        }
    }
    // What is there twice and the same is one thing: shares of a device have its nodes each.
    let mut devices: BTreeMap<&str, &pb::DeviceSpec> = BTreeMap::new();
    let mut mounts: BTreeMap<&str, &pb::Mount> = BTreeMap::new();
    for device in &answer.devices {
        absolute("device", &device.host_path, &device.container_path)?;
        let letters: BTreeSet<char> = device.permissions.chars().collect();
        let fine = !letters.is_empty()
            && letters.len() == device.permissions.len()
            && letters.iter().all(|c| "rwm".contains(*c));
        if !fine {
            return Err(format!(
                "device {} has the permissions {:?} instead of letters of r, w and m",
                device.host_path, device.permissions
            ));
        }
        if !Path::new(&device.host_path).exists() {
            return Err(format!("device {} is not there", device.host_path));
        }
        let held = devices.insert(&device.container_path, device);
        if held.is_some_and(|held| held != device) {
            return Err(format!(
                "two different devices for {} in the container",
                device.container_path
            ));
        }
    }
    for mount in &answer.mounts {
        absolute("mount", &mount.host_path, &mount.container_path)?;
        if !Path::new(&mount.host_path).exists() {
            return Err(format!("mount {} is not there", mount.host_path));
        }
        let path = mount.container_path.as_str();
        let held = mounts.insert(path, mount);
        if held.is_some_and(|held| held != mount) || devices.contains_key(path) {
            return Err(format!("two different things for {path} in the container"));
        }
    }
    for cdi in &answer.cdi_devices {
        if !is_qualified(&cdi.name) {
            return Err(format!(
                "CDI name {:?} is not of the form vendor/class=name",
                cdi.name
            ));
        }
    }
    Ok(summary(answer))
}

fn absolute(what: &str, host: &str, container: &str) -> Result<(), String> {
    for path in [host, container] {
        if !path.starts_with('/') {
            return Err(format!("{what} path {path:?} is not absolute"));
        }
    }
    Ok(())
}

fn is_qualified(name: &str) -> bool {
    let Some((kind, device)) = name.split_once('=') else {
        return false;
    };
    let Some((vendor, class)) = kind.split_once('/') else {
        return false;
    };
    let word = |text: &str, more: &str| {
        !text.is_empty()
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    word(vendor, "_-.") && word(class, "_-") && word(device, "_-.:")
}

fn summary(answer: &pb::ContainerAllocateResponse) -> String {
    let counts = [
        (answer.envs.len(), "variables"),
        (answer.devices.len(), "device nodes"),
        (answer.mounts.len(), "mounts"),
        (answer.annotations.len(), "annotations"),
        (answer.cdi_devices.len(), "CDI names"),
    ];
    let parts: Vec<String> = counts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect();
    if parts.is_empty() {
        "nothing".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_no_runtime_can_use_are_found() {
        let device = |host: &str, container: &str, permissions: &str| pb::DeviceSpec {
            host_path: host.to_owned(),
            container_path: container.to_owned(),
            permissions: permissions.to_owned(),
        };
        let with = |devices: Vec<pb::DeviceSpec>| pb::ContainerAllocateResponse {
            devices,
            ..Default::default()
        };
        assert!(check(&with(vec![device("/dev/null", "/dev/x", "rw")])).is_ok());
        for (bad, why) in [
            (device("/dev/null", "dev/x", "rw"), "not absolute"),
            (device("/dev/null", "/dev/x", "rx"), "permissions"),
            (device("/dev/null", "/dev/x", ""), "permissions"),
            (device("/dev/no-such", "/dev/x", "r"), "not there"),
        ] {
            let e = check(&with(vec![bad])).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
        let shared = device("/dev/null", "/dev/x", "r");
        assert!(check(&with(vec![shared.clone(), shared.clone()])).is_ok());
        let other = device("/dev/zero", "/dev/x", "r");
        let error = check(&with(vec![shared, other])).unwrap_err();
        assert!(error.contains("two different devices"), "{error}");
        for (name, good) in [
            ("vendor.example/class=gpu0", true),
            ("vendor.example/class=gpu:0", true),
            ("vendor.example=gpu0", false),
            ("gpu0", false),
            ("vendor.example/class=", false),
        ] {
            assert_eq!(is_qualified(name), good, "{name}");
        }
    }
}
