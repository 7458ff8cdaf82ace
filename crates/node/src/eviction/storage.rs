//! Limits on local storage: a pod that uses more of it than its emptyDir volumes, its containers or the pod as a whole
//! may is evicted, however much is left on the node.

use super::measure;
use davit_pods::paths::Paths;
use davit_pods::pod::{PodExt, Role};
use davit_pods::resources::{container_limit, value};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

const RESOURCE: &str = "ephemeral-storage";

/// What one pod has on the node's disks, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StorageUse {
    /// Writable layers and logs, by container name.
    pub containers: BTreeMap<String, i64>,
    /// Volumes, by name.
    pub volumes: BTreeMap<String, i64>,
    /// What the node keeps for the pod and its containers may write (`/etc/hosts` and termination messages), and what its
    /// containers have deleted and still hold.
    pub files: i64,
}

/// A limit that was passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Excess {
    /// The kubelet's name of the kind of limit, a label of its metrics.
    pub signal: &'static str,
    /// What the pod's status says.
    pub message: String,
}

fn empty_dirs(pod: &Pod) -> impl Iterator<Item = (&Volume, &EmptyDirVolumeSource)> {
    let volumes = pod.pod_spec().volumes.iter().flatten();
    volumes.filter_map(|v| Some((v, v.empty_dir.as_ref()?)))
}

fn size_limit(source: &EmptyDirVolumeSource) -> Option<i64> {
    source.size_limit.as_ref().map(value).filter(|n| *n > 0)
}

/// The sum of the containers' limits, raised to the greatest of the init containers; `None` when there is none.
fn pod_limit(pod: &Pod) -> Option<i64> {
    let (mut sum, mut sidecars, mut peak) = (None, 0, None);
    for (role, container) in pod.all_containers() {
        let Some(limit) = container_limit(&container, RESOURCE) else {
            continue;
        };
        match role {
            Role::Main => sum = Some(sum.unwrap_or(0) + limit),
            Role::Sidecar => {
                sum = Some(sum.unwrap_or(0) + limit);
                sidecars += limit;
            }
            Role::Init => peak = peak.max(Some(sidecars + limit)),
            Role::Ephemeral => {}
        }
    }
    sum.max(peak)
}

/// Whether the pod has any limit, so that measuring is worth while.
#[must_use]
pub(crate) fn is_limited(pod: &Pod) -> bool {
    pod_limit(pod).is_some() || empty_dirs(pod).any(|(_, s)| size_limit(s).is_some())
}

/// The first limit that a pod has passed: of a volume, of the pod, of a container.
#[must_use]
pub(crate) fn excess(pod: &Pod, used: &StorageUse) -> Option<Excess> {
    for (volume, source) in empty_dirs(pod) {
        let of_volume = used.volumes.get(&volume.name).copied().unwrap_or(0);
        if size_limit(source).is_some_and(|limit| of_volume > limit) {
            let limit = source.size_limit.as_ref().map_or("", |q| q.0.as_str());
            return Some(Excess {
                signal: "emptydirfs.limit",
                message: format!(
                    "Usage of EmptyDir volume \"{}\" exceeds the limit \"{limit}\". ",
                    volume.name
                ),
            });
        }
    }
    let in_memory = |name: &str| {
        empty_dirs(pod).any(|(v, s)| v.name == name && s.medium.as_deref() == Some("Memory"))
    };
    let volumes = used.volumes.iter().filter(|(name, _)| !in_memory(name));
    let containers: i64 = used.containers.values().sum();
    let total = containers + volumes.map(|(_, n)| n).sum::<i64>() + used.files;
    if let Some(limit) = pod_limit(pod).filter(|limit| total > *limit) {
        return Some(Excess {
            signal: "ephemeralpodfs.limit",
            message: format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
                super::rank::binary(limit)
            ),
        });
    }
    pod.pod_spec().containers.iter().find_map(|container| {
        let limit = container_limit(container, RESOURCE)?;
        let of_container = *used.containers.get(&container.name)?;
        (of_container > limit).then(|| {
            let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
            let limit = limits
                .and_then(|l| l.get(RESOURCE))
                .map_or("", |q| q.0.as_str());
            Excess {
                signal: "ephemeralcontainerfs.limit",
                message: format!(
                    "Container {} exceeded its local ephemeral storage limit \"{limit}\". ",
                    container.name
                ),
            }
        })
    })
}

/// Measures a pod, as far as it is done at `until`. `layers` are the writable layers of its containers; `deleted` is what
/// these have deleted and still hold.
pub(super) fn measure(
    paths: &Paths,
    pod: &Pod,
    layers: &BTreeMap<String, i64>,
    deleted: i64,
    until: Instant,
) -> StorageUse {
    let bytes = |dir: &Path| measure::directory(dir, until).map_or(0, |seen| seen.bytes);
    let logs = paths.pod_log_dir(pod.ns(), pod.pod_name(), pod.uid());
    let of_container = |name: &String, layer: i64| (name.clone(), layer + bytes(&logs.join(name)));
    let names = pod.all_containers().into_iter();
    let names = names.map(|(_, c)| c.name.clone());
    let containers = names
        .map(|name| of_container(&name, layers.get(&name).copied().unwrap_or(0)))
        .collect();
    let volume = |volume: &Volume| {
        let plugin = if volume.empty_dir.is_some() {
            "kubernetes.io~empty-dir"
        } else if volume.config_map.is_some() {
            "kubernetes.io~configmap"
        } else if volume.downward_api.is_some() {
            "kubernetes.io~downward-api"
        } else {
            return None;
        };
        let dir = paths.volume(pod.uid(), plugin, &volume.name);
        Some((volume.name.clone(), bytes(&dir)))
    };
    let volumes = pod.pod_spec().volumes.iter().flatten();
    let hosts = std::fs::symlink_metadata(paths.hosts_file(pod.uid()));
    let hosts = hosts.map_or(0, |meta| {
        std::os::unix::fs::MetadataExt::blocks(&meta) * 512
    });
    let messages = bytes(&paths.pod(pod.uid()).join("containers"));
    StorageUse {
        containers,
        volumes: volumes.filter_map(volume).collect(),
        files: messages
            .saturating_add(deleted)
            .saturating_add(i64::try_from(hosts).unwrap_or(i64::MAX / 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(limits: [Option<&str>; 2], size: Option<&str>, medium: &str) -> Pod {
        let container = |name: &str, limit: Option<&str>| match limit {
            Some(limit) => {
                json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}})
            }
            None => json!({"name": name}),
        };
        let mut source = json!({"medium": medium});
        if let Some(size) = size {
            source["sizeLimit"] = json!(size);
        }
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "containers": [container("a", limits[0]), container("b", limits[1])],
                "volumes": [{"name": "v", "emptyDir": source}],
            },
        }))
        .unwrap()
    }

    fn later() -> Instant {
        Instant::now() + std::time::Duration::from_secs(60)
    }

    fn used(a: i64, b: i64, v: i64) -> StorageUse {
        StorageUse {
            containers: BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]),
            volumes: BTreeMap::from([("v".to_owned(), v)]),
            files: 0,
        }
    }

    /// CVE-2020-8557: what containers write to their `/etc/hosts` fills the node's disk.
    #[test]
    fn files_that_the_node_keeps_for_a_pod_count() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().join("kubelet"), dir.path().join("log/pods"));
        let pod = pod([Some("16Ki"), Some("16Ki")], None, "");
        let message = paths.container("u", "a").join("message");
        for file in [paths.hosts_file("u"), message] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, vec![1; 20_000]).unwrap();
        }
        let seen = measure(&paths, &pod, &BTreeMap::new(), 0, later());
        assert!(seen.files >= 40_000, "{seen:?}");
        let excess = excess(&pod, &seen).unwrap();
        assert_eq!(excess.signal, "ephemeralpodfs.limit");
    }

    #[test]
    fn each_limit_has_its_words() {
        let message = |pod: &Pod, used: &StorageUse| excess(pod, used).map(|e| e.message);
        let volume = pod([None, None], Some("1Mi"), "");
        assert_eq!(message(&volume, &used(9 << 20, 9 << 20, 1 << 20)), None);
        assert_eq!(
            message(&volume, &used(0, 0, (1 << 20) + 1)).unwrap(),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
        );
        let both = pod([Some("2Mi"), Some("1Mi")], None, "");
        assert_eq!(
            message(&both, &used(2 << 20, 0, (1 << 20) + 1)).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. "
        );
        assert_eq!(
            message(&both, &used(0, (1 << 20) + 1, 0)).unwrap(),
            "Container b exceeded its local ephemeral storage limit \"1Mi\". "
        );
        assert_eq!(message(&both, &used(2 << 20, 1 << 20, 0)), None);
        // What is in memory is not on the disk.
        let in_memory = pod([Some("2Mi"), None], None, "Memory");
        assert_eq!(message(&in_memory, &used(1 << 20, 0, 5 << 20)), None);
    }

    #[test]
    fn only_limited_pods_are_measured() {
        assert!(!is_limited(&pod([None, None], None, "")));
        assert!(is_limited(&pod([None, Some("1")], None, "")));
        assert!(is_limited(&pod([None, None], Some("1"), "")));
    }

    #[test]
    fn layers_logs_and_volumes_count() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().join("kubelet"), dir.path().join("log/pods"));
        let pod = pod([None, None], None, "");
        let volume = paths.volume("u", "kubernetes.io~empty-dir", "v");
        let logs = paths.pod_log_dir("ns", "p", "u").join("a");
        for dir in [&volume, &logs] {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::write(dir.join("file"), vec![1; 20_000]).unwrap();
        }
        let seen = measure(
            &paths,
            &pod,
            &BTreeMap::from([("b".to_owned(), 7)]),
            3,
            later(),
        );
        assert_eq!(seen.files, 3);
        assert!(seen.volumes["v"] >= 20_000 && seen.containers["a"] >= 20_000);
        assert_eq!(seen.containers["b"], 7);
    }
}
