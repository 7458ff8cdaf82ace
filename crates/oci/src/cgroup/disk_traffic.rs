//! What the processes of a cgroup read from disks and wrote to them.

use super::{Cgroup, Hierarchies};
use std::fs;

/// What went from and to one block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Its numbers.
    pub device: (u32, u32),
    /// Bytes.
    pub read_bytes: u64,
    /// Bytes.
    pub written_bytes: u64,
    /// Requests.
    pub reads: u64,
    /// Requests.
    pub writes: u64,
}

impl DeviceTraffic {
    /// The name of the device's file below `/dev`, if the kernel knows it.
    #[must_use]
    pub fn device_name(&self) -> Option<String> {
        let (major, minor) = self.device;
        let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).ok()?;
        let name = text
            .lines()
            .find_map(|line| line.strip_prefix("DEVNAME="))?;
        Some(format!("/dev/{name}"))
    }
}

impl Hierarchies {
    /// Whether [`Cgroup::disk_traffic`] is counted: v1's `blkio` counts nothing where it limits nothing.
    #[must_use]
    pub fn counts_disk_traffic(&self) -> bool {
        self.is_unified()
    }
}

impl Cgroup {
    /// By device, as `io.stat` has it: what was not used is not in it.
    #[must_use]
    pub fn disk_traffic(&self) -> Vec<DeviceTraffic> {
        if !self.hierarchies.counts_disk_traffic() {
            return Vec::new();
        }
        let file = self.v2().map(|dir| dir.join("io.stat"));
        let text = file.and_then(|file| fs::read_to_string(file).ok());
        text.unwrap_or_default().lines().filter_map(line).collect()
    }
}

/// `254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn line(text: &str) -> Option<DeviceTraffic> {
    let (device, fields) = text.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    let number = |key: &str| {
        let mut fields = fields.split_whitespace();
        let value = fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
        value?.parse().ok()
    };
    Some(DeviceTraffic {
        device: (major.parse().ok()?, minor.parse().ok()?),
        read_bytes: number("rbytes")?,
        written_bytes: number("wbytes")?,
        reads: number("rios")?,
        writes: number("wios")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn by_device_as_the_kernel_counts_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        let text = "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n7:1 \n";
        fs::write(dir.path().join("a/io.stat"), text).unwrap();
        let of = |v1: BTreeMap<String, std::path::PathBuf>| Hierarchies {
            v1,
            unified: Some(dir.path().to_owned()),
        };
        let wanted = DeviceTraffic {
            device: (254, 0),
            read_bytes: 1,
            written_bytes: 2,
            reads: 3,
            writes: 4,
        };
        let unified = of(BTreeMap::new());
        assert_eq!(unified.cgroup("/a").disk_traffic(), [wanted]);
        assert_eq!(unified.cgroup("/b").disk_traffic(), []);
        let hybrid = of(BTreeMap::from([("memory".to_owned(), "/x".into())]));
        assert_eq!(hybrid.cgroup("/a").disk_traffic(), []);
    }
}
