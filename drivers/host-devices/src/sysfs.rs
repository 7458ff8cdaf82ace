//! What sysfs and udev know of a device file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, major, minor, stat};

/// How far up the devices are followed that a device hangs on.
const ANCESTORS: usize = 32;
/// Attributes are short; some files in sysfs are not attributes of this sort.
const LONGEST: usize = 4096;

/// A device file's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    block: bool,
    major: u32,
    minor: u32,
}

/// The number of a device file; nothing for other files.
pub(crate) fn number(path: &Path) -> Option<Number> {
    let stat = stat(path).ok()?;
    let block = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => false,
        FileType::BlockDevice => true,
        _ => return None,
    };
    Some(Number {
        block,
        major: major(stat.st_rdev),
        minor: minor(stat.st_rdev),
    })
}

/// A device and those it hangs on, in sysfs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// The device's own folder first.
    folders: Vec<PathBuf>,
    /// udev's database.
    properties: BTreeMap<String, String>,
}

impl Known {
    /// What is known of the device with this number, below a root.
    pub(crate) fn of(root: &Path, number: Number) -> Self {
        let Number {
            block,
            major,
            minor,
        } = number;
        let (kind, letter) = if block { ("block", 'b') } else { ("char", 'c') };
        let link = root.join(format!("sys/dev/{kind}/{major}:{minor}"));
        let mut folders = Vec::new();
        let top = root.join("sys/devices");
        let top = top.canonicalize().unwrap_or(top);
        if let Ok(own) = link.canonicalize() {
            let up = own
                .ancestors()
                .take_while(|dir| dir.starts_with(&top) && *dir != top);
            folders.extend(up.take(ANCESTORS).map(Path::to_path_buf));
        }
        let database = root.join(format!("run/udev/data/{letter}{major}:{minor}"));
        let text = std::fs::read_to_string(database).unwrap_or_default();
        let properties = text
            .lines()
            .filter_map(|line| line.strip_prefix("E:")?.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Self {
            folders,
            properties,
        }
    }

    /// Whether the device, or one of those it hangs on, has all of these attributes.
    pub(crate) fn has_attributes(&self, wanted: &BTreeMap<String, String>) -> bool {
        let has = |dir: &PathBuf| {
            wanted.iter().all(|(name, pattern)| {
                read(dir, name).is_some_and(|value| crate::glob::fits(pattern, &value))
            })
        };
        wanted.is_empty() || self.folders.iter().any(has)
    }

    pub(crate) fn has_properties(&self, wanted: &BTreeMap<String, String>) -> bool {
        wanted.iter().all(|(name, pattern)| {
            self.properties
                .get(name)
                .is_some_and(|value| crate::glob::fits(pattern, value))
        })
    }

    /// Whether a link of one of the folders (`driver`, `subsystem`) leads to something of this name.
    pub(crate) fn links(&self, link: &str, name: &str) -> bool {
        let leads = |dir: &PathBuf| {
            let target = std::fs::read_link(dir.join(link)).ok();
            target.is_some_and(|t| t.file_name().is_some_and(|n| n == name))
        };
        self.folders.iter().any(leads)
    }

    /// An attribute, of the device itself or of the nearest one it hangs on.
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        self.folders.iter().find_map(|dir| read(dir, name))
    }

    pub(crate) fn property(&self, name: &str) -> Option<String> {
        self.properties.get(name).cloned()
    }

    /// The NUMA node it is local to.
    pub(crate) fn numa_node(&self) -> Option<i64> {
        let nodes = self
            .folders
            .iter()
            .filter_map(|dir| read(dir, "numa_node")?.parse().ok());
        // -1 is for: no node.
        nodes.into_iter().find(|node: &i64| *node >= 0)
    }
}

fn read(dir: &Path, name: &str) -> Option<String> {
    // The name is the user's; it shall not lead out of the folder.
    if name.contains("..") || name.starts_with('/') {
        return None;
    }
    let bytes = std::fs::read(dir.join(name))
        .ok()
        .filter(|b| b.len() <= LONGEST)?;
    Some(String::from_utf8(bytes).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A serial adapter as the kernel shows it, for the number of `/dev/null`.
    pub(crate) fn adapter(root: &Path) {
        let usb = "sys/devices/pci0000:00/0000:00:14.0/usb1/1-2";
        let own = format!("{usb}/1-2:1.0/ttyUSB0/tty/ttyUSB0");
        std::fs::create_dir_all(root.join(&own)).unwrap();
        std::fs::create_dir_all(root.join("sys/dev/char")).unwrap();
        std::fs::create_dir_all(root.join("sys/bus/usb/drivers/ftdi_sio")).unwrap();
        std::fs::create_dir_all(root.join("run/udev/data")).unwrap();
        let write = |file: String, text: &str| std::fs::write(root.join(file), text).unwrap();
        write(format!("{usb}/idVendor"), "0403\n");
        write(format!("{usb}/idProduct"), "6001\n");
        write(format!("{usb}/serial"), "A50285BI\n");
        write(
            "sys/devices/pci0000:00/0000:00:14.0/numa_node".to_owned(),
            "1\n",
        );
        write(format!("{usb}/1-2:1.0/numa_node"), "-1\n");
        write(
            "run/udev/data/c1:3".to_owned(),
            "I:1\nE:ID_MODEL=FT232R_USB_UART\nE:ID_PATH=x=y\n",
        );
        symlink(root.join(&own), root.join("sys/dev/char/1:3")).unwrap();
        symlink(
            root.join("sys/bus/usb/drivers/ftdi_sio"),
            root.join(format!("{usb}/1-2:1.0/driver")),
        )
        .unwrap();
    }

    #[test]
    fn a_device_is_known_by_what_it_hangs_on() {
        let root = tempfile::tempdir().unwrap();
        adapter(root.path());
        let null = number(Path::new("/dev/null")).unwrap();
        assert_eq!(
            null,
            Number {
                block: false,
                major: 1,
                minor: 3
            }
        );
        assert_eq!(number(Path::new("/etc")), None);
        let known = Known::of(root.path(), null);
        let wanted = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        assert!(known.has_attributes(&wanted(&[("idVendor", "0403"), ("idProduct", "6*")])));
        // Both have to be of the same device.
        assert!(!known.has_attributes(&wanted(&[("idVendor", "0403"), ("numa_node", "1")])));
        assert!(!known.has_attributes(&wanted(&[("../../x", "*")])));
        assert!(known.has_properties(&wanted(&[("ID_MODEL", "FT232R*")])));
        assert_eq!(known.property("ID_PATH").as_deref(), Some("x=y"));
        assert!(known.links("driver", "ftdi_sio") && !known.links("driver", "usb"));
        assert_eq!(known.attribute("serial").as_deref(), Some("A50285BI"));
        assert_eq!(known.numa_node(), Some(1));
    }
}
