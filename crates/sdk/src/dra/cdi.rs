//! CDI files: what containers get with a device.
//!
//! A driver writes one file for each claim it prepares, and names the devices in it to the agent;
//! the runtime reads the file. See the [Container Device Interface](https://github.com/cncf-tags/container-device-interface).

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where drivers write CDI files by default; the folder does not outlive a reboot.
pub const CDI_DIR: &str = "/var/run/cdi";

/// A device node of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the host, when it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// Any of `r`, `w` and `m`; without it all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
}

/// A mount of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Options such as `ro` and `bind`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// A program that runs at some point of a container's life.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// When: `createRuntime`, `createContainer`, `startContainer`, `poststart` or `poststop`.
    pub hook_name: String,
    /// The program on the host.
    pub path: String,
    /// Its arguments, the first being its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// What changes in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Edits {
    /// Environment, `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Hooks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Groups of the container's process (CDI 0.7.0).
    #[serde(
        default,
        rename = "additionalGids",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub additional_gids: Vec<u32>,
}

impl Edits {
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.env
            .push(format!("{}={}", name.as_ref(), value.as_ref()));
        self
    }

    /// Adds a device node.
    #[must_use]
    pub fn device(
        mut self,
        host_path: impl Into<String>,
        path: impl Into<String>,
        permissions: impl Into<String>,
    ) -> Self {
        self.device_nodes.push(DeviceNode {
            path: path.into(),
            host_path: Some(host_path.into()),
            permissions: Some(permissions.into()),
        });
        self
    }

    /// Adds a mount nobody can write to.
    #[must_use]
    pub fn read_only_mount(
        mut self,
        host_path: impl Into<String>,
        container_path: impl Into<String>,
    ) -> Self {
        self.mounts.push(Mount {
            host_path: host_path.into(),
            container_path: container_path.into(),
            options: vec!["ro".into(), "nosuid".into(), "nodev".into(), "bind".into()],
        });
        self
    }

    /// The lowest version of CDI that knows all of it: older runtimes refuse newer files, and all refuse files that use
    /// more than their version has.
    fn version(&self) -> &'static str {
        if !self.additional_gids.is_empty() {
            "0.7.0"
        } else {
            // Devices are named after claims, whose UIDs may begin with a digit; and nodes have host paths.
            "0.5.0"
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    cdi_version: String,
    kind: String,
    devices: Vec<Device>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

/// The CDI files of a driver, one for each claim.
///
/// ```
/// use davit_sdk::dra::cdi::{CdiFiles, Edits};
///
/// # let dir = tempfile::tempdir()?;
/// let files = CdiFiles::new(dir.path(), "gpu.example.com");
/// let names = files.write("claim-uid", [("gpu-0".to_owned(), Edits::new().env("GPU_0", "yes"))])?;
/// assert_eq!(names["gpu-0"], "gpu.example.com/claim=claim-uid-gpu-0");
/// files.remove("claim-uid")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct CdiFiles {
    dir: PathBuf,
    driver: String,
}

impl CdiFiles {
    /// Files in `dir`, commonly [`CDI_DIR`], whose names begin with the driver's.
    pub fn new(dir: impl Into<PathBuf>, driver: impl Into<String>) -> Self {
        Self {
            dir: dir.into(),
            driver: driver.into(),
        }
    }

    /// The kind of the devices in the files.
    pub fn kind(&self) -> String {
        format!("{}/claim", self.driver)
    }

    /// Writes the file of a claim, whole or not at all, and returns the names of its devices for
    /// the agent. Device names contain the claim's UID: runtimes remember what a name stands
    /// for, so none is used twice.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(
        &self,
        claim_uid: &str,
        devices: impl IntoIterator<Item = (String, Edits)>,
    ) -> io::Result<BTreeMap<String, String>> {
        let kind = self.kind();
        let mut names = BTreeMap::new();
        let mut file = File {
            cdi_version: Edits::new().version().to_owned(),
            kind: kind.clone(),
            devices: Vec::new(),
        };
        for (device, edits) in devices {
            let name = format!("{claim_uid}-{device}");
            if edits.version() > file.cdi_version.as_str() {
                file.cdi_version = edits.version().to_owned();
            }
            names.insert(device, format!("{kind}={name}"));
            file.devices.push(Device {
                name,
                container_edits: edits,
            });
        }
        let bytes = serde_json::to_vec(&file).map_err(io::Error::other)?;
        write_atomically(&self.path(claim_uid), &bytes)?;
        Ok(names)
    }

    /// Removes the file of a claim; that there is none is fine.
    ///
    /// # Errors
    /// The file is there and cannot be removed.
    pub fn remove(&self, claim_uid: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path(claim_uid)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Which claims there are files of, with the devices in each: what a driver that was
    /// restarted has prepared since the machine booted. Files that do not parse are left out.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn claims(&self) -> io::Result<BTreeMap<String, Vec<String>>> {
        let prefix = self.prefix();
        let entries = match std::fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            entries => entries?,
        };
        let mut found = BTreeMap::new();
        for entry in entries {
            let name = entry?.file_name();
            let uid = name
                .to_str()
                .and_then(|n| n.strip_prefix(&prefix)?.strip_suffix(".json"));
            if let Some(uid) = uid
                && let Ok(bytes) = std::fs::read(self.path(uid))
                && let Ok(file) = serde_json::from_slice::<File>(&bytes)
            {
                let own = format!("{uid}-");
                let devices = file.devices.into_iter().map(|d| {
                    let device = d.name.strip_prefix(&own).map(str::to_owned);
                    device.unwrap_or(d.name)
                });
                found.insert(uid.to_owned(), devices.collect());
            }
        }
        Ok(found)
    }

    fn prefix(&self) -> String {
        format!("{}-claim_", self.driver)
    }

    fn path(&self, claim_uid: &str) -> PathBuf {
        self.dir.join(format!("{}{claim_uid}.json", self.prefix()))
    }
}

/// Makes a file that was not there: nothing is written through a link that somebody has put in its place. One that an earlier
/// try has left goes. Containers of any user read what drivers write for them.
fn create_new(path: &Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o644);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            options.open(path)
        }
        opened => opened,
    }
}

/// Runtimes read `.json` and `.yaml` only, so that they never see the half-written file.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = create_new(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path))
        .and_then(|()| match path.parent() {
            Some(dir) => std::fs::File::open(dir)?.sync_all(),
            None => Ok(()),
        });
    if written.is_err() {
        // The error is the one to tell of; the file may never have been made.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn nothing_is_written_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("a.json"));
        std::fs::write(&victim, "kept").unwrap();
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        for link in [&path, &temporary] {
            std::os::unix::fs::symlink(&victim, link).unwrap();
        }
        write_atomically(&path, b"{}").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"kept");
        assert!(path.symlink_metadata().unwrap().is_file());
        assert!(!temporary.exists());
    }

    #[test]
    fn files_come_and_go_whole() {
        let dir = tempfile::tempdir().unwrap();
        let files = CdiFiles::new(dir.path().join("cdi"), "gpu.example.com");
        assert!(files.claims().unwrap().is_empty());
        let edits = Edits::new()
            .env("GPU", "a=b")
            .device("/dev/null", "/dev/gpu0", "rw")
            .read_only_mount("/etc", "/mnt");
        let names = files.write("u-1", [("gpu-0".to_owned(), edits)]).unwrap();
        assert_eq!(names["gpu-0"], "gpu.example.com/claim=u-1-gpu-0");
        let path = dir.path().join("cdi/gpu.example.com-claim_u-1.json");
        let value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let expected = json!({"cdiVersion": "0.5.0", "kind": "gpu.example.com/claim", "devices": [
            {"name": "u-1-gpu-0", "containerEdits": {
                "env": ["GPU=a=b"],
                "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null", "permissions": "rw"}],
                "mounts": [{"hostPath": "/etc", "containerPath": "/mnt",
                    "options": ["ro", "nosuid", "nodev", "bind"]}]}}]});
        assert_eq!(value, expected);
        let known = files.claims().unwrap();
        assert_eq!(
            known,
            BTreeMap::from([("u-1".into(), vec!["gpu-0".to_owned()])])
        );
        files.remove("u-1").unwrap();
        files.remove("u-1").unwrap();
        assert_eq!(
            std::fs::read_dir(dir.path().join("cdi")).unwrap().count(),
            0
        );
    }

    #[test]
    fn the_version_is_the_lowest_that_will_do() {
        let mut edits = Edits::new().env("A", "1");
        assert_eq!(edits.version(), "0.5.0");
        edits.additional_gids.push(44);
        assert_eq!(edits.version(), "0.7.0");
    }
}
