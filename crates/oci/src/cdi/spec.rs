//! One CDI file: its form and its rules.

use davit_api::json_values::JsonValues;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Versions of the format that are understood, the oldest first.
const VERSIONS: [&str; 8] = [
    "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0",
];

/// Edits of each sort that one device has, and one file for all of its devices: as many are looked through for each.
pub(super) const MAX_EDITS: usize = 2048;

/// Bytes of a path: what is longer is none, and would be told where it is not found.
const MAX_PATH: usize = 4096;

/// Values of a file, which take many times its length when it is read. The reader of YAML has such a limit of its own.
const MAX_VALUES: usize = 250_000;

/// The oldest version of [`VERSIONS`] that has something, by its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Since {
    V030 = 0,
    V040 = 1,
    V050 = 2,
    V060 = 3,
    V070 = 4,
    V110 = 7,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Spec {
    cdi_version: String,
    /// `vendor.com/class`.
    pub(super) kind: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) devices: Vec<Device>,
    /// For every device of the file.
    #[serde(default)]
    pub(super) container_edits: Edits,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Device {
    pub(super) name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) container_edits: Edits,
}

/// What a container gets.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Edits {
    #[serde(default)]
    pub(super) env: Vec<String>,
    #[serde(default)]
    pub(super) device_nodes: Vec<DeviceNode>,
    #[serde(default)]
    pub(super) net_devices: Vec<NetDevice>,
    #[serde(default)]
    pub(super) hooks: Vec<Hook>,
    #[serde(default)]
    pub(super) mounts: Vec<Mount>,
    #[serde(default)]
    pub(super) intel_rdt: Option<IntelRdt>,
    #[serde(default, rename = "additionalGids")]
    pub(super) additional_gids: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DeviceNode {
    pub(super) path: String,
    #[serde(default)]
    pub(super) host_path: String,
    #[serde(default, rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) major: i64,
    #[serde(default)]
    pub(super) minor: i64,
    pub(super) file_mode: Option<u32>,
    #[serde(default)]
    pub(super) permissions: String,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NetDevice {
    pub(super) host_interface_name: String,
    pub(super) name: String,
}

/// What the container may have of the processor's caches and of the way to memory.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct IntelRdt {
    #[serde(rename = "closID")]
    pub(super) clos_id: String,
    pub(super) l3_cache_schema: String,
    pub(super) mem_bw_schema: String,
    pub(super) schemata: Vec<String>,
    pub(super) enable_monitoring: bool,
    #[serde(rename = "enableCMT")]
    pub(super) enable_cmt: bool,
    #[serde(rename = "enableMBM")]
    pub(super) enable_mbm: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Mount {
    pub(super) host_path: String,
    pub(super) container_path: String,
    #[serde(default)]
    pub(super) options: Vec<String>,
    #[serde(default, rename = "type")]
    pub(super) kind: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Hook {
    pub(super) hook_name: String,
    pub(super) path: String,
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) env: Vec<String>,
    pub(super) timeout: Option<i64>,
}

/// The points of a container's life at which hooks may run.
const HOOKS: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

impl Spec {
    /// Reads and checks a file; unknown fields are errors.
    pub(super) fn parse(text: &str, json: bool) -> Result<Self, String> {
        let spec: Self = if json {
            if JsonValues::of(text.as_bytes()) > MAX_VALUES {
                return Err(format!("more than {MAX_VALUES} values"));
            }
            serde_json::from_str(text).map_err(|e| e.to_string())?
        } else {
            serde_saphyr::from_str(text).map_err(|e| e.to_string())?
        };
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), String> {
        let version = self.cdi_version.strip_prefix('v');
        let version = version.unwrap_or(&self.cdi_version);
        let Some(version) = VERSIONS.iter().position(|known| *known == version) else {
            return Err(format!("invalid version {:?}", self.cdi_version));
        };
        let needed = self.since() as usize;
        if version < needed {
            let least = VERSIONS[needed];
            return Err(format!("the spec version must be at least v{least}"));
        }
        let (vendor, class) = self
            .kind
            .split_once('/')
            .ok_or_else(|| format!("invalid kind {:?}", self.kind))?;
        check_part("vendor", vendor)?;
        check_part("class", class)?;
        self.container_edits.check()?;
        if self.devices.is_empty() {
            return Err("invalid spec, no devices".to_owned());
        }
        let mut names = BTreeSet::new();
        for device in &self.devices {
            check_device_name(&device.name)?;
            if device.container_edits == Edits::default() {
                return Err("invalid device, empty device edits".to_owned());
            }
            let edits = device.container_edits.check();
            edits.map_err(|e| format!("invalid device {:?}: {e}", device.name))?;
            if !names.insert(&device.name) {
                return Err(format!("invalid spec, multiple device {:?}", device.name));
            }
        }
        Ok(())
    }
}

impl Spec {
    /// The oldest version that has all that the file uses.
    fn since(&self) -> Since {
        let mut since = self.container_edits.since();
        let annotated = |annotations: &BTreeMap<_, _>| !annotations.is_empty();
        let class = self.kind.split_once('/').map_or("", |(_, class)| class);
        if annotated(&self.annotations) || class.contains('.') {
            since = since.max(Since::V060);
        }
        for device in &self.devices {
            since = since.max(device.container_edits.since());
            if annotated(&device.annotations) {
                since = since.max(Since::V060);
            }
            if !device.name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                since = since.max(Since::V050);
            }
        }
        since
    }
}

fn check_part(what: &str, name: &str) -> Result<(), String> {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let bytes = name.as_bytes();
    let good = bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| inside(*b));
    good.then_some(())
        .ok_or_else(|| format!("invalid {what} {name:?}"))
}

fn check_device_name(name: &str) -> Result<(), String> {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"_-.:".contains(&b);
    let bytes = name.as_bytes();
    let good = bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| inside(*b));
    good.then_some(())
        .ok_or_else(|| format!("invalid device name {name:?}"))
}

impl Edits {
    fn since(&self) -> Since {
        let newer_rdt = |rdt: &IntelRdt| rdt.enable_monitoring || !rdt.schemata.is_empty();
        if !self.net_devices.is_empty() || self.intel_rdt.as_ref().is_some_and(newer_rdt) {
            Since::V110
        } else if self.intel_rdt.is_some() || !self.additional_gids.is_empty() {
            Since::V070
        } else if self.device_nodes.iter().any(|n| !n.host_path.is_empty()) {
            Since::V050
        } else if self.mounts.iter().any(|m| !m.kind.is_empty()) {
            Since::V040
        } else {
            Since::V030
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.most() > MAX_EDITS {
            return Err(format!("too many edits: more than {MAX_EDITS} of a sort"));
        }
        let env = self.env.iter();
        let env = env.chain(self.hooks.iter().flat_map(|h| &h.env));
        for pair in env {
            if pair.find('=').unwrap_or(0) == 0 {
                return Err(format!("invalid environment variable {pair:?}"));
            }
        }
        if self.paths().any(|path| path.len() > MAX_PATH) {
            return Err(format!("a path has more than {MAX_PATH} bytes"));
        }
        for node in &self.device_nodes {
            if node.path.is_empty() {
                return Err("invalid (empty) device path".to_owned());
            }
            if !["", "b", "c", "u", "p"].contains(&node.kind.as_str()) {
                return Err(format!(
                    "device {:?}: invalid type {:?}",
                    node.path, node.kind
                ));
            }
            if !node.permissions.bytes().all(|b| b"rwm".contains(&b)) {
                return Err(format!(
                    "device {:?}: invalid permissions {:?}",
                    node.path, node.permissions
                ));
            }
        }
        for device in &self.net_devices {
            for name in [&device.host_interface_name, &device.name] {
                if name.is_empty() {
                    return Err("invalid net device, empty name".to_owned());
                }
                if !crate::netdev::is_name(name) {
                    return Err(format!(
                        "invalid net device, no name of an interface: {name:?}"
                    ));
                }
            }
        }
        if let Some(rdt) = &self.intel_rdt {
            let id = &rdt.clos_id;
            if id.len() >= 4096 || [".", ".."].contains(&&**id) || id.contains(['/', '\n']) {
                return Err(format!("invalid Intel RDT class {id:?}"));
            }
        }
        for hook in &self.hooks {
            if !HOOKS.contains(&hook.hook_name.as_str()) {
                return Err(format!("invalid hook name {:?}", hook.hook_name));
            }
            if hook.path.is_empty() {
                return Err(format!("invalid hook {:?} with empty path", hook.hook_name));
            }
        }
        for mount in &self.mounts {
            if mount.host_path.is_empty() || mount.container_path.is_empty() {
                return Err("invalid mount, empty path".to_owned());
            }
        }
        Ok(())
    }

    fn paths(&self) -> impl Iterator<Item = &String> {
        let nodes = self
            .device_nodes
            .iter()
            .flat_map(|n| [&n.path, &n.host_path]);
        let mounts = self.mounts.iter();
        let mounts = mounts.flat_map(|m| [&m.host_path, &m.container_path]);
        nodes
            .chain(mounts)
            .chain(self.hooks.iter().map(|h| &h.path))
    }

    /// How many there are of the sort of which there are most.
    pub(super) fn most(&self) -> usize {
        let sizes = [
            self.env.len(),
            self.device_nodes.len(),
            self.net_devices.len(),
            self.hooks.len(),
            self.mounts.len(),
            self.additional_gids.len(),
        ];
        sizes.into_iter().max().unwrap_or(0)
    }

    /// Adds others after these.
    pub(super) fn append(&mut self, other: &Self) {
        self.env.extend(other.env.iter().cloned());
        self.device_nodes.extend(other.device_nodes.iter().cloned());
        self.net_devices.extend(other.net_devices.iter().cloned());
        self.hooks.extend(other.hooks.iter().cloned());
        self.mounts.extend(other.mounts.iter().cloned());
        if other.intel_rdt.is_some() {
            self.intel_rdt.clone_from(&other.intel_rdt);
        }
        self.additional_gids
            .extend(other.additional_gids.iter().copied());
    }
}
