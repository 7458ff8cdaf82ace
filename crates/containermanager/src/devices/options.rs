//! Merging the answers of several plugins for one container. Pure.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use davit_proto::cri::v1 as cri;
use davit_proto::deviceplugin::v1beta1 as pb;

use crate::answer::ContainerOptions;

/// The merged options and, for the log, where answers contradicted each other.
pub(super) struct Merged {
    pub(super) options: ContainerOptions,
    pub(super) conflicts: Vec<String>,
}

/// First answers win; so the order, by resource name, decides.
#[derive(Default)]
struct Merge {
    envs: BTreeMap<String, String>,
    mounts: BTreeMap<String, String>,
    devices: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    cdi: BTreeMap<String, String>,
    conflicts: Vec<String>,
}

/// Merges answers in the given order.
pub(super) fn merge<'a>(
    answers: impl IntoIterator<Item = (&'a str, pb::ContainerAllocateResponse)>,
) -> Merged {
    let (mut merge, mut options) = (Merge::default(), ContainerOptions::default());
    for (resource, answer) in answers {
        let Merge {
            envs,
            mounts,
            devices,
            annotations,
            cdi,
            conflicts,
        } = &mut merge;
        let mut first = |seen: &mut BTreeMap<String, String>,
                         what: &str,
                         key: &str,
                         value: &str| match seen.entry(key.to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(value.to_owned());
                true
            }
            Entry::Occupied(entry) if entry.get() == value => false,
            Entry::Occupied(_) => {
                conflicts.push(format!(
                    "{what} {key} of {resource} contradicts an earlier one and is left out"
                ));
                false
            }
        };
        for (key, value) in answer.envs {
            if first(envs, "environment variable", &key, &value) {
                options.envs.push(cri::KeyValue::new(key, value));
            }
        }
        for m in answer.mounts {
            if first(mounts, "mount", &m.container_path, &m.host_path) {
                options.mounts.push(cri::Mount {
                    container_path: m.container_path,
                    host_path: m.host_path,
                    readonly: m.read_only,
                    ..Default::default()
                });
            }
        }
        for d in answer.devices {
            if first(devices, "device", &d.container_path, &d.host_path) {
                options.devices.push(cri::Device {
                    container_path: d.container_path,
                    host_path: d.host_path,
                    permissions: d.permissions,
                });
            }
        }
        for (key, value) in answer.annotations {
            if first(annotations, "annotation", &key, &value) {
                options.annotations.insert(key, value);
            }
        }
        for c in answer.cdi_devices {
            if first(cdi, "CDI device", &c.name, "") {
                options.cdi_devices.push(cri::CdiDevice { name: c.name });
            }
        }
    }
    Merged {
        options,
        conflicts: merge.conflicts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(env: &str, path: &str, host: &str, cdi: &str) -> pb::ContainerAllocateResponse {
        pb::ContainerAllocateResponse {
            envs: [("A".to_owned(), env.to_owned())].into(),
            mounts: vec![pb::Mount {
                container_path: path.into(),
                host_path: host.into(),
                read_only: true,
            }],
            devices: vec![pb::DeviceSpec {
                container_path: path.into(),
                host_path: host.into(),
                permissions: "rw".into(),
            }],
            annotations: [("k".to_owned(), env.to_owned())].into(),
            cdi_devices: vec![pb::CdiDevice { name: cdi.into() }],
        }
    }

    #[test]
    fn items_081_to_083_and_090_first_answers_win() {
        let merged = merge([
            ("a", answer("1", "/x", "/h1", "v.com/c=1")),
            ("b", answer("2", "/x", "/h2", "v.com/c=1")),
            ("c", answer("1", "/y", "/h2", "v.com/c=2")),
        ]);
        let options = merged.options;
        assert_eq!(options.envs, vec![cri::KeyValue::new("A", "1")]);
        let paths: Vec<_> = options
            .mounts
            .iter()
            .map(|m| (&*m.container_path, &*m.host_path))
            .collect();
        assert_eq!(paths, [("/x", "/h1"), ("/y", "/h2")]);
        assert!(options.mounts[0].readonly);
        assert_eq!(options.devices.len(), 2);
        assert_eq!(options.devices[0].permissions, "rw");
        assert_eq!(options.annotations["k"], "1");
        let cdi: Vec<_> = options.cdi_devices.iter().map(|c| &*c.name).collect();
        assert_eq!(cdi, ["v.com/c=1", "v.com/c=2"]);
        assert_eq!(merged.conflicts.len(), 4);
    }
}
