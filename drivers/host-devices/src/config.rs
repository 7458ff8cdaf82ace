//! The configuration file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Times that one device may be given away.
const MAX_SHARES: u32 = 10_000;

/// Why a file is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its YAML says something else.
    #[error("not a configuration of host devices: {0}")]
    Syntax(String),
    /// A resource contradicts itself.
    #[error("resource {resource:?}: {problem}")]
    Resource {
        /// Its name.
        resource: String,
        /// What is wrong.
        problem: String,
    },
}

/// Which devices make which resources.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// The resources. A device file goes to the first group that it fits.
    pub resources: Vec<Resource>,
}

/// An extended resource.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Resource {
    /// Its name, such as `example.com/serial`.
    pub name: String,
    /// What it consists of.
    pub devices: Vec<Group>,
}

/// Device files that are treated alike.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Group {
    /// Paths, with `*`, `?` and `[abc]` within one folder's names. Links are followed.
    pub paths: Vec<String>,
    /// Attributes in sysfs that the device, or one of those it hangs on, has all of; with `*`.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    /// Properties in udev's database that the device has all of; with `*`.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Driver of the device or of one of those it hangs on.
    pub driver: Option<String>,
    /// Subsystem of the device or of one of those it hangs on, such as `usb`.
    pub subsystem: Option<String>,
    /// What the ID is made of: `{name}` is the file's name, `{path}` its path with dashes,
    /// `{attribute:serial}` an attribute, `{property:ID_SERIAL}` a property.
    #[serde(default = "by_path")]
    pub id: String,
    /// How many containers may have the device at the same time.
    #[serde(default = "one")]
    pub shares: u32,
    /// Letters of `r`, `w`, `m`.
    #[serde(default = "read_and_write")]
    pub permissions: String,
    /// Where it is in the container, made like `id`; where it is on the host by default.
    pub container_path: Option<String>,
    /// Device files that every container gets besides, where they are there.
    #[serde(default)]
    pub with: Vec<String>,
    /// Files and folders that every container gets.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Environment variables, made like `id`. Those of several devices are joined with commas.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// A file or folder of the host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Mount {
    /// On the host.
    pub host: String,
    /// In the container; the same by default.
    pub container: Option<String>,
    /// Whether the container may change it.
    #[serde(default)]
    pub writable: bool,
}

fn by_path() -> String {
    "{path}".to_owned()
}

fn one() -> u32 {
    1
}

fn read_and_write() -> String {
    "rw".to_owned()
}

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// It is not YAML of this form, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self =
            serde_saphyr::from_str(text).map_err(|e| ConfigError::Syntax(e.to_string()))?;
        let mut names = BTreeSet::new();
        for resource in &config.resources {
            let twice = !names.insert(&resource.name);
            let problem = resource
                .devices
                .iter()
                .find_map(Group::problem)
                .or_else(|| twice.then(|| "it is there twice".to_owned()));
            if let Some(problem) = problem {
                let resource = resource.name.clone();
                return Err(ConfigError::Resource { resource, problem });
            }
        }
        Ok(config)
    }

    /// Reads and checks the configuration in a file.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), or the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text)
    }
}

impl Group {
    fn problem(&self) -> Option<String> {
        if self.paths.is_empty() {
            return Some("a group without paths".to_owned());
        }
        let paths = self.paths.iter().chain(&self.with);
        let paths = paths.chain(self.mounts.iter().map(|m| &m.host));
        if let Some(bad) = paths.into_iter().find(|p| !p.starts_with('/')) {
            return Some(format!("path {bad:?} is not absolute"));
        }
        if self.shares == 0 || self.shares > MAX_SHARES {
            return Some(format!(
                "shares: {} is not between 1 and {MAX_SHARES}",
                self.shares
            ));
        }
        let letters: BTreeSet<char> = self.permissions.chars().collect();
        let fine = !letters.is_empty()
            && letters.len() == self.permissions.len()
            && letters.iter().all(|c| "rwm".contains(*c));
        (!fine).then(|| {
            format!(
                "permissions: {:?} are not letters of r, w and m",
                self.permissions
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| Config::parse(text).unwrap_err().to_string();
        let group = |more: &str| {
            error(&format!(
                "resources: [{{name: a.com/x, devices: [{{{more}}}]}}]"
            ))
        };
        assert!(group("paths: [dev/x]").contains("not absolute"));
        assert!(group("paths: []").contains("without paths"));
        assert!(group("paths: [/dev/x], shares: 0").contains("shares"));
        assert!(group("paths: [/dev/x], permissions: rx").contains("permissions"));
        assert!(group("paths: [/dev/x], attributs: {}").contains("attributs"));
        let twice = "{name: a.com/x, devices: [{paths: [/dev/x]}]}";
        assert!(error(&format!("resources: [{twice}, {twice}]")).contains("twice"));
    }
}
