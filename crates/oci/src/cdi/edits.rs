//! Edits put into an OCI configuration, as its JSON.

use super::spec::{DeviceNode, Edits, Hook, IntelRdt, Mount};
use crate::cgroup::{DeviceKind, DeviceRule};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Edits that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EditError {
    #[error("failed to stat CDI host device {path:?}: {why}")]
    Device { path: String, why: String },
    #[error("CDI device ({path}), host type mismatch ({wanted}, {found})")]
    Mismatch {
        path: String,
        wanted: String,
        found: String,
    },
    #[error("CDI network device {0:?} needs a pod with a network of its own")]
    HostNetwork(String),
    #[error("two CDI network devices are to be called {name:?}: {first:?} and {second:?}")]
    SameName {
        name: String,
        first: String,
        second: String,
    },
    #[error("CDI network device {device:?} is to be called {first:?} and {second:?}")]
    TwoNames {
        device: String,
        first: String,
        second: String,
    },
}

/// Applies edits; what may be done with device nodes goes into `rules`.
pub(crate) fn apply(
    edits: &Edits,
    spec: &mut Value,
    rules: &mut Vec<DeviceRule>,
) -> Result<(), EditError> {
    for pair in &edits.env {
        set_env(list(&mut spec["process"]["env"]), pair);
    }
    let user = &spec["process"]["user"];
    let owner = (user["uid"].as_u64(), user["gid"].as_u64());
    for node in &edits.device_nodes {
        let device = device(node, owner, rules)?;
        let devices = list(&mut spec["linux"]["devices"]);
        devices.retain(|old| old["path"] != device["path"]);
        devices.push(device);
    }
    for mount in &edits.mounts {
        let mounts = list(&mut spec["mounts"]);
        mounts.retain(|old| old["destination"] != *mount.container_path);
        mounts.push(mount_of(mount));
    }
    if !edits.mounts.is_empty() {
        // A parent that comes later would hide its child. The sort is stable.
        list(&mut spec["mounts"]).sort_by_key(|mount| {
            let path = mount["destination"].as_str().unwrap_or_default();
            Path::new(path).components().count()
        });
    }
    for hook in &edits.hooks {
        add_hook(spec, hook);
    }
    for gid in edits.additional_gids.iter().filter(|gid| **gid != 0) {
        let gids = list(&mut spec["process"]["user"]["additionalGids"]);
        if !gids.contains(&json!(gid)) {
            gids.push(json!(gid));
        }
    }
    if let Some(rdt) = &edits.intel_rdt {
        spec["linux"]["intelRdt"] = intel_rdt(rdt);
    }
    add_net_devices(edits, spec)
}

/// `linux.intelRdt`; the two old switches of monitoring are one today.
fn intel_rdt(rdt: &IntelRdt) -> Value {
    let mut value = json!({});
    let texts = [
        ("closID", &rdt.clos_id),
        ("l3CacheSchema", &rdt.l3_cache_schema),
        ("memBwSchema", &rdt.mem_bw_schema),
    ];
    for (name, text) in texts {
        if !text.is_empty() {
            value[name] = json!(text);
        }
    }
    if !rdt.schemata.is_empty() {
        value["schemata"] = json!(rdt.schemata);
    }
    if rdt.enable_monitoring || rdt.enable_cmt || rdt.enable_mbm {
        value["enableMonitoring"] = json!(true);
    }
    value
}

/// `linux.netDevices`: each device of the host once, and each name once.
fn add_net_devices(edits: &Edits, spec: &mut Value) -> Result<(), EditError> {
    let mut named: BTreeMap<&str, &str> = BTreeMap::new();
    let mut hosts: BTreeMap<&str, &str> = BTreeMap::new();
    for device in &edits.net_devices {
        let (host, name) = (&*device.host_interface_name, &*device.name);
        match (hosts.insert(host, name), named.insert(name, host)) {
            (Some(first), _) if first != name => {
                return Err(EditError::TwoNames {
                    device: host.to_owned(),
                    first: first.to_owned(),
                    second: name.to_owned(),
                });
            }
            (_, Some(first)) if first != host => {
                return Err(EditError::SameName {
                    name: name.to_owned(),
                    first: first.to_owned(),
                    second: host.to_owned(),
                });
            }
            _ => {}
        }
    }
    let Some(first) = hosts.keys().next() else {
        return Ok(());
    };
    let namespaces = spec["linux"]["namespaces"].as_array().into_iter().flatten();
    let mut namespaces = namespaces.filter_map(|namespace| namespace["type"].as_str());
    if !namespaces.any(|kind| kind == "network") {
        return Err(EditError::HostNetwork((*first).to_owned()));
    }
    for (host, name) in hosts {
        spec["linux"]["netDevices"][host] = json!({"name": name});
    }
    Ok(())
}

/// The list at this place, made when it is not there.
fn list(place: &mut Value) -> &mut Vec<Value> {
    if !place.is_array() {
        *place = json!([]);
    }
    place.as_array_mut().expect("it was made one above")
}

fn set_env(env: &mut Vec<Value>, pair: &str) {
    let name = pair.split_inclusive('=').next().unwrap_or(pair);
    let same = |old: &&mut Value| old.as_str().is_some_and(|old| old.starts_with(name));
    match env.iter_mut().find(same) {
        Some(old) => *old = json!(pair),
        None => env.push(json!(pair)),
    }
}

fn device(
    node: &DeviceNode,
    (uid, gid): (Option<u64>, Option<u64>),
    rules: &mut Vec<DeviceRule>,
) -> Result<Value, EditError> {
    let given = node.kind == "p" || (!node.kind.is_empty() && node.major != 0);
    let (kind, major, minor, mode) = if given {
        (node.kind.clone(), node.major, node.minor, None)
    } else {
        host_device(node)?
    };
    let access = if node.permissions.is_empty() {
        "rwm"
    } else {
        &node.permissions
    };
    let class = match kind.as_str() {
        "b" => Some(DeviceKind::Block),
        "c" | "u" => Some(DeviceKind::Char),
        _ => None,
    };
    let numbers = u32::try_from(major).ok().zip(u32::try_from(minor).ok());
    if let (Some(class), Some((major, minor))) = (class, numbers) {
        let rule = DeviceRule::allow(class, Some(major), Some(minor), access);
        rules.push(rule);
    }
    let mut device = json!({"path": node.path, "type": kind, "major": major, "minor": minor});
    let owner = |own: Option<u32>, user: Option<u64>| {
        // A process that is not root gets devices of its own, when the file does not say otherwise.
        own.map(u64::from).or(user.filter(|id| *id != 0))
    };
    let fields = [
        ("fileMode", node.file_mode.or(mode).map(u64::from)),
        ("uid", owner(node.uid, uid)),
        ("gid", owner(node.gid, gid)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            device[name] = json!(value);
        }
    }
    Ok(device)
}

/// Type, numbers and mode of the host's device file.
fn host_device(node: &DeviceNode) -> Result<(String, i64, i64, Option<u32>), EditError> {
    let path = if node.host_path.is_empty() {
        &node.path
    } else {
        &node.host_path
    };
    let failed = |why: String| EditError::Device {
        path: path.clone(),
        why,
    };
    let metadata = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?;
    let kind = metadata.file_type();
    let found = if kind.is_char_device() {
        "c"
    } else if kind.is_block_device() {
        "b"
    } else if kind.is_fifo() {
        "p"
    } else {
        return Err(failed("not a device node".to_owned()));
    };
    let same = node.kind.is_empty() || node.kind == found || (node.kind == "u" && found == "c");
    if !same {
        return Err(EditError::Mismatch {
            path: node.path.clone(),
            wanted: node.kind.clone(),
            found: found.to_owned(),
        });
    }
    let (mut major, mut minor) = (node.major, node.minor);
    if major == 0 && found != "p" {
        major = i64::from(rustix::fs::major(metadata.rdev()));
        minor = i64::from(rustix::fs::minor(metadata.rdev()));
    }
    Ok((
        found.to_owned(),
        major,
        minor,
        Some(metadata.mode() & 0o777),
    ))
}

fn mount_of(mount: &Mount) -> Value {
    let mut options = mount.options.clone();
    let kind = if mount.kind.is_empty() {
        if !options.iter().any(|o| o == "bind" || o == "rbind") {
            options.insert(0, "rbind".to_owned());
        }
        "bind"
    } else {
        &mount.kind
    };
    json!({
        "destination": mount.container_path, "source": mount.host_path,
        "type": kind, "options": options,
    })
}

fn add_hook(spec: &mut Value, hook: &Hook) {
    if !spec["hooks"].is_object() {
        spec["hooks"] = json!({});
    }
    // The old name of the same moment: outside the container, once its namespaces exist.
    let point = match hook.hook_name.as_str() {
        "prestart" => "createRuntime",
        name => name,
    };
    let mut value = json!({"path": hook.path});
    if !hook.args.is_empty() {
        value["args"] = json!(hook.args);
    }
    if !hook.env.is_empty() {
        value["env"] = json!(hook.env);
    }
    if let Some(timeout) = hook.timeout {
        value["timeout"] = json!(timeout);
    }
    list(&mut spec["hooks"][point]).push(value);
}
