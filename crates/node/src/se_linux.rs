//! SELinux labels that pods ask for and do not get: said by an event, since the pod runs all the same, as with the kubelet.

use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::{Pod, SELinuxOptions};

/// Whether the kernel runs SELinux.
pub(crate) fn is_on() -> bool {
    std::path::Path::new("/sys/fs/selinux/enforce").exists()
}

/// What the pod asks for and does not get: reason and message of an event. `labels` tells whether the runtime sets labels, `on`
/// whether the kernel keeps to them.
pub(crate) fn missing(
    pod: &Pod,
    labels: bool,
    on: impl FnOnce() -> bool,
) -> Option<(&'static str, String)> {
    let asks = |options: Option<&SELinuxOptions>| {
        options.is_some_and(|options| *options != SELinuxOptions::default())
    };
    let of_pod = pod.pod_spec().security_context.as_ref();
    let wanted = asks(of_pod.and_then(|context| context.se_linux_options.as_ref()))
        || pod.all_containers().iter().any(|(_, container)| {
            let own = container.security_context.as_ref();
            asks(own.and_then(|context| context.se_linux_options.as_ref()))
        });
    let field = if wanted {
        "seLinuxOptions"
    } else if of_pod.is_some_and(|context| context.se_linux_change_policy.is_some()) {
        "seLinuxChangePolicy"
    } else {
        return None;
    };
    let why = if !labels {
        "davit's own runtime sets no SELinux labels"
    } else if !on() {
        "SELinux is not enabled on the host"
    } else {
        return None;
    };
    Some(("SELinuxNotApplied", format!("{field} has no effect: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn labels_that_nobody_sets_are_told_of() {
        let pod = |of_pod: Value, own: Value| -> Pod {
            let spec = json!({"securityContext": of_pod, "containers": [{"name": "c", "securityContext": own}]});
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
        };
        let level = json!({"seLinuxOptions": {"level": "s0:c1,c2"}});
        let none = json!({});
        let said = |pod: &Pod, labels: bool, on: bool| missing(pod, labels, || on).map(|m| m.1);
        for asks in [pod(level.clone(), none.clone()), pod(none.clone(), level)] {
            let own = "seLinuxOptions has no effect: davit's own runtime sets no SELinux labels";
            assert_eq!(said(&asks, false, true).as_deref(), Some(own));
            let kernel = "seLinuxOptions has no effect: SELinux is not enabled on the host";
            assert_eq!(said(&asks, true, false).as_deref(), Some(kernel));
            assert_eq!(said(&asks, true, true), None);
        }
        let policy = pod(json!({"seLinuxChangePolicy": "Recursive"}), none.clone());
        assert!(said(&policy, false, false).is_some_and(|m| m.starts_with("seLinuxChangePolicy")));
        let empty = pod(json!({"seLinuxOptions": {}}), none);
        assert_eq!(said(&empty, false, false), None);
    }
}
