//! Names of drivers, and the directories that they stand for.

use std::fmt;
use std::path::PathBuf;

/// The vendor whose directories are those of volumes that are built in.
const RESERVED_VENDOR: &str = "kubernetes.io";
/// Parts the names of drivers from those of volumes where volumes are mounted for all pods.
pub(crate) const MOUNTS: &str = "mounts";
/// Longest name of a directory.
const LONGEST: usize = 255;

/// A name that stands for no directory of a driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a name of a FlexVolume driver: {why}")]
pub struct InvalidDriverName {
    /// The name.
    pub name: String,
    why: &'static str,
}

/// The name of a driver, `vendor/driver` or only `driver`. None leads out of the directory of drivers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverName(String);

impl DriverName {
    /// Reads a name as volumes have it.
    ///
    /// # Errors
    /// It has parts that are no names of files, or those of volumes that are built in.
    pub fn new(name: &str) -> Result<Self, InvalidDriverName> {
        let refused = |why| InvalidDriverName {
            name: name.to_owned(),
            why,
        };
        if name.len() > LONGEST {
            return Err(refused("it is too long"));
        }
        if name.starts_with('.') {
            return Err(refused("names that begin with a dot are passed over"));
        }
        if name
            .split('/')
            .any(|p| p.is_empty() || p == "." || p == "..")
        {
            return Err(refused("it has an empty part, \".\" or \"..\""));
        }
        if name.split('/').any(|p| p == MOUNTS) {
            return Err(refused("it has a part \"mounts\""));
        }
        if name.contains(|c: char| c == '~' || c.is_control()) {
            return Err(refused("it contains \"~\" or a control character"));
        }
        if name.split('/').next() == Some(RESERVED_VENDOR) {
            return Err(refused("this vendor stands for volumes that are built in"));
        }
        Ok(Self(name.to_owned()))
    }

    /// The name of which this is the directory, of an executable or of a pod's volumes; `None` for others' directories.
    pub fn of_directory(directory: &str) -> Option<Self> {
        Self::new(&directory.replace('~', "/")).ok()
    }

    /// As volumes have it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the directories of the driver: `vendor~driver`.
    pub fn directory(&self) -> String {
        self.0.replace('/', "~")
    }

    /// Where the executable is, below the directory of drivers.
    pub fn executable(&self) -> PathBuf {
        let file = self.0.rsplit('/').next().unwrap_or(&self.0);
        PathBuf::from(self.directory()).join(file)
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn names_are_directories() {
        let name = DriverName::new("acme/mem").unwrap();
        assert_eq!(name.directory(), "acme~mem");
        assert_eq!(name.executable(), Path::new("acme~mem/mem"));
        let bare = DriverName::new("nfs").unwrap();
        assert_eq!(bare.executable(), Path::new("nfs/nfs"));
        assert_eq!(DriverName::of_directory("acme~mem"), Some(name));
        assert_eq!(DriverName::of_directory("kubernetes.io~csi"), None);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [
            "",
            "/a",
            "a/",
            "a//b",
            "../a",
            "a/..",
            ".a",
            "a~b",
            "a\0b",
            "kubernetes.io/csi",
            "a/mounts",
        ] {
            assert!(DriverName::new(name).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn no_name_leaves_the_directory(name in "[a.~/]{0,8}|.*") {
            if let Ok(name) = DriverName::new(&name) {
                let path = name.executable();
                prop_assert_eq!(path.components().count(), 2);
                prop_assert!(path.components().all(|c| matches!(c, Component::Normal(_))));
                prop_assert_eq!(DriverName::of_directory(&name.directory()), Some(name));
            }
        }
    }
}
