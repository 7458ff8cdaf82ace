//! Groups of pods that are scheduled together (KEP-4671).

use k8s_openapi::api::core::v1::Pod;

/// The name of the PodGroup that a pod belongs to, in the pod's namespace (`spec.schedulingGroup.podGroupName`).
pub fn pod_group_of(pod: &Pod) -> Option<&str> {
    let group = pod.spec.as_ref()?.scheduling_group.as_ref()?;
    group.pod_group_name.as_deref()
}
