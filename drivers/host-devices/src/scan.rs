//! Looking at the host: which devices are there now, and which were.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::config::{Config, Group};
use crate::glob::{below, expand};
use crate::sysfs::{Known, number};

/// Longest ID that the interface knows.
const LONGEST_ID: usize = 63;

/// A device that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its ID, without the number of its share.
    pub id: String,
    /// The file.
    pub path: String,
    /// Whether it is there now.
    pub present: bool,
    /// NUMA node it is local to.
    pub numa: Option<i64>,
    /// Where it is in the container.
    pub container_path: String,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// How it is given.
    pub group: std::sync::Arc<Group>,
}

impl Found {
    /// The device for people.
    pub fn line(&self) -> String {
        let shares = if self.group.shares > 1 {
            format!(", {} shares", self.group.shares)
        } else {
            String::new()
        };
        let numa = self
            .numa
            .map(|n| format!(", NUMA node {n}"))
            .unwrap_or_default();
        format!("{}: {}{numa}{shares}", self.id, self.path)
    }
}

/// Looks for devices, and remembers those that were there: a device that vanishes is reported as
/// unhealthy, not forgotten, since a container may hold it and it may be plugged in again.
pub struct Scanner {
    resources: Vec<(String, Vec<std::sync::Arc<Group>>)>,
    root: PathBuf,
    known: BTreeMap<String, BTreeMap<String, Found>>,
    told: BTreeSet<String>,
}

impl Scanner {
    /// A scanner of the host below `root`.
    pub fn new(config: Config, root: impl Into<PathBuf>) -> Self {
        let resources = config.resources.into_iter().map(|r| {
            (
                r.name,
                r.devices.into_iter().map(std::sync::Arc::new).collect(),
            )
        });
        Self {
            resources: resources.collect(),
            root: root.into(),
            known: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// The devices of each resource, in the order of the configuration; sorted by their IDs.
    pub fn scan(&mut self) -> Vec<(String, Vec<Found>)> {
        let mut taken = BTreeSet::new();
        let resources = self.resources.clone();
        for (resource, groups) in &resources {
            let mut now = BTreeMap::new();
            for group in groups {
                for pattern in &group.paths {
                    for path in expand(&self.root, pattern) {
                        self.consider(resource, group, path, &mut taken, &mut now);
                    }
                }
            }
            let known = self.known.entry(resource.clone()).or_default();
            for found in known.values_mut() {
                found.present = false;
            }
            known.extend(now);
        }
        let devices = |(name, _): &(String, _)| {
            let known = self.known.get(name).into_iter().flat_map(BTreeMap::values);
            (name.clone(), known.cloned().collect())
        };
        resources.iter().map(devices).collect()
    }

    fn consider(
        &mut self,
        resource: &str,
        group: &std::sync::Arc<Group>,
        path: String,
        taken: &mut BTreeSet<PathBuf>,
        now: &mut BTreeMap<String, Found>,
    ) {
        let file = below(&self.root, &path);
        let Some(number) = number(&file) else { return };
        // By several names, as udev's links make them, it is one device.
        let real = file.canonicalize().unwrap_or(file);
        if taken.contains(&real) {
            return;
        }
        let device = Known::of(&self.root, number);
        let fits = device.has_attributes(&group.attributes)
            && device.has_properties(&group.properties)
            && group
                .driver
                .as_ref()
                .is_none_or(|d| device.links("driver", d))
            && group
                .subsystem
                .as_ref()
                .is_none_or(|s| device.links("subsystem", s));
        if !fits {
            return;
        }
        let id = short(&clean(&fill(&group.id, &path, &device)));
        if id.is_empty() || now.contains_key(&id) {
            if self.told.insert(path.clone()) {
                tracing::warn!(
                    resource,
                    path,
                    id,
                    "left out: its ID is empty or another device's"
                );
            }
            return;
        }
        taken.insert(real);
        let container_path = match &group.container_path {
            Some(template) => fill(template, &path, &device),
            None => path.clone(),
        };
        let env = group
            .env
            .iter()
            .map(|(k, v)| (k.clone(), fill(v, &path, &device)))
            .collect();
        let found = Found {
            id: id.clone(),
            path,
            present: true,
            numa: device.numa_node(),
            container_path,
            env,
            group: group.clone(),
        };
        now.insert(id, found);
    }
}

/// Fills in what a template names.
fn fill(template: &str, path: &str, device: &Known) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        out += &rest[..open];
        let Some(close) = rest[open..].find('}') else {
            break;
        };
        let word = &rest[open + 1..open + close];
        let value = match word.split_once(':') {
            Some(("attribute", name)) => device.attribute(name),
            Some(("property", name)) => device.property(name),
            _ if word == "name" => Path::new(path)
                .file_name()
                .map(|n| n.to_string_lossy().into_owned()),
            _ if word == "path" => Some(
                path.trim_start_matches("/dev/")
                    .trim_start_matches('/')
                    .replace('/', "-"),
            ),
            // What is no name of ours stays.
            _ => Some(format!("{{{word}}}")),
        };
        out += &value.unwrap_or_default();
        rest = &rest[open + close + 1..];
    }
    out + rest
}

/// Characters that IDs are safe with: agents put them into environment variables, file names and
/// CDI names.
fn clean(id: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.:".contains(c) {
            c
        } else {
            '_'
        }
    };
    id.trim().chars().map(safe).collect()
}

/// An ID with room for the number of its share.
fn short(id: &str) -> String {
    let most = LONGEST_ID - "::9999".len();
    if id.len() <= most {
        return id.to_owned();
    }
    // FNV-1a tells long names apart that begin alike.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{}-{:08x}", &id[..most - 9], hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device files below a root, as links to devices that every machine has.
    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, target) in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        }
        root
    }

    fn ids(found: &[(String, Vec<Found>)], at: usize) -> Vec<(&str, bool)> {
        found[at]
            .1
            .iter()
            .map(|f| (f.id.as_str(), f.present))
            .collect()
    }

    #[test]
    fn a_device_goes_to_the_first_group_and_is_remembered_when_it_vanishes() {
        let root = host(&[
            ("dev/snd/a", "/dev/null"),
            ("dev/snd/b", "/dev/zero"),
            ("dev/by-id/a", "/dev/null"),
        ]);
        std::fs::write(root.path().join("dev/snd/file"), "").unwrap();
        let config = Config::parse(
            "
resources:
- name: a.com/first
  devices: [{paths: [/dev/snd/a]}]
- name: a.com/rest
  devices: [{paths: [/dev/snd/*, /dev/by-id/*], id: 'x {name}', shares: 3}]
",
        )
        .unwrap();
        let mut scanner = Scanner::new(config, root.path());
        let found = scanner.scan();
        assert_eq!(ids(&found, 0), [("snd-a", true)]);
        assert_eq!(ids(&found, 1), [("x_b", true)]);
        assert_eq!(found[1].1[0].line(), "x_b: /dev/snd/b, 3 shares");
        std::fs::remove_file(root.path().join("dev/snd/b")).unwrap();
        let found = scanner.scan();
        assert_eq!(ids(&found, 1), [("x_b", false)]);
        std::os::unix::fs::symlink("/dev/zero", root.path().join("dev/snd/b")).unwrap();
        assert_eq!(ids(&scanner.scan(), 1), [("x_b", true)]);
    }

    #[test]
    fn ids_are_made_of_templates_and_short() {
        let device = Known::default();
        assert_eq!(
            fill("{name}-{path}-{attribute:serial}{x}", "/dev/a/b", &device),
            "b-a-b-{x}"
        );
        assert_eq!(fill("{name", "/dev/a", &device), "{name");
        let (a, b) = (
            short(&format!("{}a", "x".repeat(80))),
            short(&format!("{}b", "x".repeat(80))),
        );
        assert!(a != b && a.len() <= 57, "{a} {b}");
    }
}
