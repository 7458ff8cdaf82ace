//! Where a pod's containers are in the cgroup tree, and what the groups above them are limited to.
//!
//! <https://kubernetes.io/docs/concepts/architecture/cgroups/>; KEP-4033 for asking the runtime for its driver.

mod limits;
mod pods;
mod reserved;

pub use pods::{CgroupOptions, PodCgroups};
pub use reserved::{Enforced, Keeper, ReservedError, ReservedShare};

use davit_oci::runtime::Runtime;
use davit_pods::pod::PodExt;
use davit_pods::resources::Qos;
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;

/// Who makes cgroups, and how they are named therefore.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The runtime makes directories.
    #[default]
    Cgroupfs,
    /// The runtime asks systemd for slices and scopes.
    Systemd,
}

impl CgroupDriver {
    /// The driver with this name in a KubeletConfiguration.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "cgroupfs" => Some(Self::Cgroupfs),
            "systemd" => Some(Self::Systemd),
            _ => None,
        }
    }

    /// The driver's name in a KubeletConfiguration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }

    /// The runtime's driver, or this one if the runtime does not say.
    pub async fn of_runtime(self, runtime: &dyn Runtime) -> Self {
        match runtime.cgroup_driver().await {
            Ok(Some(cri::CgroupDriver::Systemd)) => Self::Systemd,
            Ok(Some(cri::CgroupDriver::Cgroupfs)) => Self::Cgroupfs,
            Ok(None) => self,
            Err(error) => {
                tracing::warn!(%error, driver = ?self, "the container runtime does not tell its cgroup driver");
                self
            }
        }
    }

    /// The cgroup that the runtime puts a pod's containers into, below `root`.
    pub fn pod_cgroup(self, root: &str, pod: &Pod) -> String {
        self.path(root, Qos::of(pod), Some(pod.uid()))
    }

    /// The cgroup of a pod of this class, or of all pods of the class; guaranteed pods have no group between them and
    /// that of all pods.
    fn path(self, root: &str, class: Qos, uid: Option<&str>) -> String {
        let class = match class {
            Qos::Guaranteed => None,
            class => Some(class.as_str().to_ascii_lowercase()),
        };
        let above = root.split('/').filter(|p| !p.is_empty()).map(str::to_owned);
        let mut parts: Vec<String> = above.collect();
        parts.push("kubepods".to_owned());
        parts.extend(class);
        parts.extend(uid.map(|uid| format!("pod{uid}")));
        match self {
            Self::Cgroupfs => parts.iter().fold(String::new(), |path, p| path + "/" + p),
            Self::Systemd => slices(&parts),
        }
    }
}

/// systemd's path of nested slices: each name repeats those above it, so a dash of its own becomes an underscore.
fn slices(parts: &[String]) -> String {
    let (mut path, mut name) = (String::new(), String::new());
    for part in parts {
        if !name.is_empty() {
            name.push('-');
        }
        name += &part.replace('-', "_");
        path += &format!("/{name}.slice");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(resources: &serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "12-ab"},
            "spec": {"containers": [{"name": "c", "image": "x", "resources": resources}]},
        }))
        .unwrap()
    }

    #[test]
    fn names_of_both_drivers() {
        let one = serde_json::json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = pod(&serde_json::json!({"limits": one, "requests": one}));
        let best_effort = pod(&serde_json::json!({}));
        let (files, systemd) = (CgroupDriver::Cgroupfs, CgroupDriver::Systemd);
        assert_eq!(files.pod_cgroup("", &guaranteed), "/kubepods/pod12-ab");
        assert_eq!(
            files.pod_cgroup("/edge/", &best_effort),
            "/edge/kubepods/besteffort/pod12-ab"
        );
        assert_eq!(
            systemd.pod_cgroup("/", &guaranteed),
            "/kubepods.slice/kubepods-pod12_ab.slice"
        );
        assert_eq!(
            systemd.pod_cgroup("/my-edge", &best_effort),
            "/my_edge.slice/my_edge-kubepods.slice/my_edge-kubepods-besteffort.slice/\
             my_edge-kubepods-besteffort-pod12_ab.slice"
        );
    }
}
