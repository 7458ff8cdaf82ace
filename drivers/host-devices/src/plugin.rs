//! The device plugin of one resource.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use davit_sdk::deviceplugin::{Allocation, Device, DevicePlugin, Offer, Refusal};
use davit_sdk::{async_trait, watch};

use crate::scan::Found;

/// What stands between an ID and the number of a share.
const SHARE: &str = "::";

/// The devices of a resource, served; clones share them.
#[derive(Clone)]
pub(crate) struct HostDevices {
    found: watch::Sender<Vec<Found>>,
    devices: watch::Sender<Vec<Device>>,
    shared: bool,
}

impl HostDevices {
    pub(crate) fn new(found: Vec<Found>) -> Self {
        let shared = found.iter().any(|f| f.group.shares > 1);
        let devices = watch::Sender::new(shares(&found));
        Self {
            found: watch::Sender::new(found),
            devices,
            shared,
        }
    }

    /// Takes in what was found now.
    pub(crate) fn update(&self, found: &[Found]) {
        let changed = self.found.send_if_modified(|old| {
            let changed = old.as_slice() != found;
            for was in old.iter().filter(|was| was.present) {
                if !found.iter().any(|f| f.id == was.id && f.present) {
                    tracing::warn!(device = was.id, path = was.path, "is gone");
                }
            }
            *old = found.to_vec();
            changed
        });
        if changed {
            self.devices.send_replace(shares(found));
        }
    }
}

/// A device once for each of its shares.
fn shares(found: &[Found]) -> Vec<Device> {
    let mut all = Vec::new();
    for found in found {
        for share in 0..found.group.shares {
            let id = match share {
                0 => found.id.clone(),
                n => format!("{}{SHARE}{n}", found.id),
            };
            let numa_nodes = found.numa.into_iter().collect();
            all.push(Device {
                id,
                healthy: found.present,
                numa_nodes,
            });
        }
    }
    all
}

/// The device of a share.
fn device_of(id: &str) -> &str {
    id.split_once(SHARE).map_or(id, |(device, _)| device)
}

#[async_trait]
impl DevicePlugin for HostDevices {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.devices.subscribe()
    }

    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        let found = self.found.borrow().clone();
        let mut wanted: BTreeMap<&str, &Found> = BTreeMap::new();
        for id in ids {
            let device = device_of(id);
            let known = found.iter().find(|f| f.id == device);
            let known =
                known.ok_or_else(|| Refusal::new(format!("there is no device {device}")))?;
            // The list may be a second old.
            if !Path::new(&known.path).exists() {
                return Err(Refusal::new(format!("{} is gone", known.path)));
            }
            wanted.insert(device, known);
        }
        Ok(give(wanted.values().copied()))
    }

    fn has_preference(&self) -> bool {
        self.shared
    }

    /// Shares of different devices, those first of which most shares are left.
    async fn preferred(&self, offer: Offer) -> Result<Vec<String>, Refusal> {
        Ok(spread(offer))
    }
}

fn spread(offer: Offer) -> Vec<String> {
    let mut chosen = offer.must_include;
    let mut left: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for id in offer.available.iter().filter(|id| !chosen.contains(id)) {
        left.entry(device_of(id)).or_default().push(id);
    }
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    for id in &chosen {
        *used.entry(device_of(id).to_owned()).or_default() += 1;
    }
    while chosen.len() < offer.size {
        let free = left.iter().filter(|(_, ids)| !ids.is_empty());
        let best = free.min_by_key(|(device, ids)| {
            let used = used.get(**device).copied().unwrap_or_default();
            (used, std::cmp::Reverse(ids.len()))
        });
        let Some(device) = best.map(|(device, _)| *device) else {
            break;
        };
        *used.entry(device.to_owned()).or_default() += 1;
        if let Some(id) = left.get_mut(device).and_then(Vec::pop) {
            chosen.push(id.clone());
        }
    }
    chosen
}

fn give<'a>(devices: impl Iterator<Item = &'a Found> + Clone) -> Allocation {
    let mut given = Allocation::new();
    let mut env: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut besides: BTreeMap<&str, &str> = BTreeMap::new();
    let mut mounts: BTreeMap<String, (&str, bool)> = BTreeMap::new();
    let mut groups: Vec<&Arc<crate::Group>> = Vec::new();
    for device in devices {
        let permissions = &device.group.permissions;
        given = given.device(&device.path, &device.container_path, permissions);
        for (name, value) in &device.env {
            env.entry(name).or_default().push(value);
        }
        if !groups.iter().any(|group| Arc::ptr_eq(group, &device.group)) {
            groups.push(&device.group);
        }
    }
    for group in groups {
        for path in group.with.iter().filter(|path| Path::new(path).exists()) {
            besides.insert(path, &group.permissions);
        }
        for mount in &group.mounts {
            let container = mount
                .container
                .clone()
                .unwrap_or_else(|| mount.host.clone());
            mounts.insert(container, (&mount.host, mount.writable));
        }
    }
    for (path, permissions) in besides {
        given = given.device(path, path, permissions);
    }
    for (container, (host, writable)) in mounts {
        given = match writable {
            true => given.mount(host, container),
            false => given.read_only_mount(host, container),
        };
    }
    for (name, values) in env {
        given = given.env(name, values.join(","));
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Scanner};

    fn served(config: &str) -> HostDevices {
        let mut scanner = Scanner::new(Config::parse(config).unwrap(), "/");
        HostDevices::new(scanner.scan().remove(0).1)
    }

    #[tokio::test]
    async fn a_shared_device_is_given_once_with_all_that_belongs_to_it() {
        let plugin = served(
            "
resources:
- name: a.com/x
  devices:
  - paths: [/dev/null, /dev/zero]
    shares: 2
    permissions: r
    with: [/dev/full, /dev/no-such]
    env: {DEVICES: '{name}'}
    containerPath: '/dev/x/{name}'
    mounts: [{host: /etc}]
",
        );
        let list: Vec<String> = plugin
            .devices()
            .borrow()
            .iter()
            .map(|d| d.id.clone())
            .collect();
        assert_eq!(list, ["null", "null::1", "zero", "zero::1"]);
        let given = plugin.allocate(&list).await.unwrap();
        let expected = Allocation::new()
            .device("/dev/null", "/dev/x/null", "r")
            .device("/dev/zero", "/dev/x/zero", "r")
            .device("/dev/full", "/dev/full", "r")
            .read_only_mount("/etc", "/etc")
            .env("DEVICES", "null,zero");
        assert_eq!(given, expected);
        assert!(plugin.allocate(&["one".to_owned()]).await.is_err());
    }

    #[tokio::test]
    async fn shares_of_different_devices_are_preferred() {
        let offer = |available: &[&str], must: &[&str], size| Offer {
            available: available.iter().map(|&s| s.to_owned()).collect(),
            must_include: must.iter().map(|&s| s.to_owned()).collect(),
            size,
        };
        let chosen = spread(offer(&["a", "a::1", "b"], &[], 2));
        let devices: Vec<&str> = chosen.iter().map(|id| device_of(id)).collect();
        assert_eq!(devices, ["a", "b"]);
        let chosen = spread(offer(&["a", "a::1", "b"], &["a"], 2));
        assert_eq!(chosen, ["a", "b"]);
        assert_eq!(spread(offer(&["a"], &[], 3)), ["a"]);
    }

    #[test]
    fn a_device_that_vanishes_is_unhealthy() {
        let plugin = served("resources: [{name: a.com/x, devices: [{paths: [/dev/null]}]}]");
        let mut found = plugin.found.borrow().clone();
        found[0].present = false;
        plugin.update(&found);
        assert!(!plugin.devices().borrow()[0].healthy);
    }
}
