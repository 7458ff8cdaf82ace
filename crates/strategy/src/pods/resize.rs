//! Resizes of pods in place (KEP-1287, KEP-5419): which pods can be resized, and what a request to `resize` may change.

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

use super::super::json::{
    at, entries_at, has, is_empty, keep, list_at, list_mut, remove, same, str_at,
};
use super::super::pod_defaults;
use super::is_mirror;

const LISTS: [&str; 2] = ["containers", "initContainers"];
/// The resources that can change while a container runs.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Takes over what a resize may change. Containers that come, go, or change their names or places stay as they were
/// written, so that validation finds them.
pub(super) fn keep_all_but_resources(spec: &mut Value, written: &Value) {
    let lengths = |spec: &Value| LISTS.map(|list| list_at(spec, &[list]).len());
    if lengths(spec) != lengths(written) {
        *spec = written.clone();
        return;
    }
    for list in LISTS {
        let names = |spec: &Value| -> Vec<String> {
            let names = list_at(spec, &[list]).iter();
            names.map(|c| str_at(c, &["name"]).to_owned()).collect()
        };
        if names(spec) != names(written) {
            keep(spec, written, list);
            continue;
        }
        let written = list_at(written, &[list]);
        for (c, w) in list_mut(spec, &[list]).zip(written) {
            keep(c, w, "resources");
            keep(c, w, "resizePolicy");
        }
    }
    keep(spec, written, "resources");
}

/// Why a pod cannot be resized, whatever is asked for.
pub(super) fn refusal(pod: &Value) -> Option<&'static str> {
    if is_mirror(pod) {
        return Some("static pods cannot be resized");
    }
    let is_windows = str_at(pod, &["spec", "os", "name"]) == "windows";
    is_windows.then_some("windows pods cannot be resized")
}

/// Faults of a resize: only cpu and memory may change, none may go, and the pod's quality of service stays.
pub(super) fn validate(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let class = match str_at(old, &["status", "qosClass"]) {
        "" => pod_defaults::qos_class(at(old, &["spec"])),
        class => class,
    };
    if pod_defaults::qos_class(at(new, &["spec"])) != class {
        let fault = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, class, fault));
    }
    if !node_can_follow(old) {
        let why = "Pod running on node without support for resize";
        errors.push(FieldError::forbidden(&path, why));
    }
    whole(new, old, &path, errors);
    if !list_at(old, &["status", "nodeAllocatableResourceClaimStatuses"]).is_empty() {
        let fault = "pods with node allocatable resource claims cannot be resized";
        errors.push(FieldError::forbidden(&path, fault));
    }
    let known = errors.len();
    order(new, old, errors);
    if errors.len() > known {
        return;
    }
    for list in LISTS {
        let before = list_at(old, &["spec", list]);
        for (i, (c, b)) in list_at(new, &["spec", list]).iter().zip(before).enumerate() {
            container(c, b, list, &path.child(list).index(i), errors);
        }
    }
}

/// Whether the node tells what a running container has, which nodes that cannot resize do not. Before a container runs
/// nothing is known of it.
fn node_can_follow(pod: &Value) -> bool {
    let statuses = list_at(pod, &["status", "containerStatuses"]).iter();
    let mut running = statuses.filter(|status| has(status, &["state", "running"]));
    running
        .next()
        .is_none_or(|status| has(status, &["resources"]))
}

/// The resources of the pod as a whole.
fn whole(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let of = |pod| at(pod, &["spec", "resources"]);
    let given = |resources: &Value| {
        let entries = |part| entries_at(resources, &[part]).next().is_some();
        entries("requests") || entries("limits")
    };
    let (now, before) = (of(new), of(old));
    if !given(now) && !given(before) {
        return;
    }
    let at_resources = path.child("resources");
    if now.is_null() && !before.is_null() {
        let why = "pod-level resources cannot be removed";
        errors.push(FieldError::forbidden(&at_resources, why));
        return;
    }
    let why = "pod-level resource";
    removed(now, before, why, &at_resources, errors);
    if !same(&fixed(now), &fixed(before)) {
        let why = "only cpu and memory resources are mutable at pod-level";
        errors.push(FieldError::forbidden(path, why));
    }
}

/// The containers stay where they are.
fn order(new: &Value, old: &Value, errors: &mut ErrorList) {
    for list in LISTS {
        let path = Path::new("spec").child(list);
        let (now, before) = (list_at(new, &["spec", list]), list_at(old, &["spec", list]));
        if now.len() != before.len() {
            let why = format!("{list} may not be added or removed on resize");
            errors.push(FieldError::forbidden(&path, why));
            continue;
        }
        for (i, (c, b)) in now.iter().zip(before).enumerate() {
            if str_at(c, &["name"]) != str_at(b, &["name"]) {
                let why = format!("{list} may not be renamed or reordered on resize");
                errors.push(FieldError::forbidden(&path.index(i).child("name"), why));
            }
        }
    }
}

fn container(now: &Value, before: &Value, list: &str, path: &Path, errors: &mut ErrorList) {
    let is_init = list == "initContainers";
    let resources = |container| at(container, &["resources"]);
    let policies = |container| at(container, &["resizePolicy"]);
    let is_kept = same(policies(now), policies(before));
    if !is_kept || !same(&fixed(resources(now)), &fixed(resources(before))) {
        let (path, why) = match is_init {
            true => (
                path.clone(),
                "only cpu and memory resources for init or sidecar containers are mutable",
            ),
            false => (
                Path::new("spec"),
                "only cpu and memory resources are mutable",
            ),
        };
        errors.push(FieldError::forbidden(&path, why));
    }
    let restarts = |policy: &Value| str_at(policy, &["restartPolicy"]) == "RestartContainer";
    if is_init
        && str_at(now, &["restartPolicy"]) != "Always"
        && !(is_kept && same(resources(now), resources(before)))
        && list_at(now, &["resizePolicy"]).iter().any(restarts)
    {
        let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        errors.push(FieldError::forbidden(path, why));
    }
    let (now, before) = (resources(now), resources(before));
    removed(now, before, "resource", &path.child("resources"), errors);
}

/// Resources without what a resize may change; null where nothing is left.
fn fixed(resources: &Value) -> Value {
    let mut fixed = resources.clone();
    for part in ["requests", "limits"] {
        if let Some(list) = fixed.get_mut(part) {
            for name in RESIZABLE {
                remove(list, name);
            }
            if is_empty(list) {
                remove(&mut fixed, part);
            }
        }
    }
    match is_empty(&fixed) {
        true => Value::Null,
        false => fixed,
    }
}

/// What was asked for is asked for still; `what` is it that has the requests and limits.
fn removed(now: &Value, before: &Value, what: &str, path: &Path, errors: &mut ErrorList) {
    for part in ["requests", "limits"] {
        let is_gone = |(name, _): (&String, &Value)| !has(now, &[part, name.as_str()]);
        if entries_at(before, &[part]).any(is_gone) {
            let why = format!("{what} {part} cannot be removed");
            errors.push(FieldError::forbidden(&path.child(part), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn pod(change: impl FnOnce(&mut Value)) -> Value {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "d", "resourceVersion": "1"},
            "spec": {
                "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always",
                    "terminationMessagePolicy": "File",
                    "resources": {"requests": {"cpu": "1", "example.com/d": "1"}, "limits": {"example.com/d": "1"}}}],
                "restartPolicy": "Always", "dnsPolicy": "Default"},
            "status": {"qosClass": "Burstable"},
        });
        change(&mut pod);
        pod
    }

    fn faults(new: &Value, old: &Value) -> Vec<String> {
        let strategy = crate::strategy("", "v1", "Pod");
        let errors = strategy.validate_subresource_update("resize", new, old);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn cpu_changes_and_nothing_goes() {
        let old = pod(|_| {});
        let resources = |pod: &mut Value| pod["spec"]["containers"][0]["resources"].take();
        let more = pod(|p| p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2"));
        assert!(faults(&more, &old).is_empty());
        let none = pod(|p| drop(resources(p)));
        assert_eq!(
            faults(&none, &old)[2..],
            [
                "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
                "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"
            ]
        );
    }

    #[test]
    fn what_is_fixed_of_init_containers_is_told_of_them() {
        let with = |policy: Value, always: Value| {
            pod(|p| {
                let mut init = p["spec"]["containers"][0].clone();
                init["name"] = json!("i");
                init["resizePolicy"] = policy;
                init["restartPolicy"] = always;
                p["spec"]["initContainers"] = json!([init]);
            })
        };
        let policy = |word: &str| json!([{"resourceName": "cpu", "restartPolicy": word}]);
        let always = json!("Always");
        assert_eq!(
            faults(
                &with(policy("RestartContainer"), always.clone()),
                &with(policy("NotRequired"), always)
            ),
            [
                "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable"
            ]
        );
    }

    #[test]
    fn pods_as_a_whole_are_resized_like_containers() {
        let of = |resources: Value| pod(|p| p["spec"]["resources"] = resources);
        let old = of(json!({"requests": {"cpu": "2", "memory": "1Gi"}}));
        let more = of(json!({"requests": {"cpu": "3", "memory": "1Gi"}, "limits": {"cpu": "4"}}));
        assert!(faults(&more, &old).is_empty());
        assert_eq!(
            faults(&of(json!({"requests": {"cpu": "3"}})), &old),
            ["spec.resources.requests: Forbidden: pod-level resource requests cannot be removed"]
        );
        assert_eq!(
            faults(&pod(|_| {}), &old),
            ["spec.resources: Forbidden: pod-level resources cannot be removed"]
        );
    }

    #[test]
    fn some_pods_are_never_resized() {
        let running = |resources: Value| {
            let mut status = json!({"name": "c", "state": {"running": {}}});
            status["resources"] = resources;
            pod(|p| p["status"]["containerStatuses"] = json!([status]))
        };
        let tells = running(json!({}));
        assert!(faults(&tells, &tells).is_empty());
        let old = running(Value::Null);
        assert_eq!(
            faults(&old, &old),
            ["spec: Forbidden: Pod running on node without support for resize"]
        );
        let windows = pod(|p| p["spec"]["os"] = json!({"name": "windows"}));
        assert_eq!(
            faults(&windows, &windows),
            [": Forbidden: windows pods cannot be resized"]
        );
        let mirror = pod(|p| p["metadata"]["annotations"] = json!({super::super::MIRROR: "x"}));
        assert_eq!(
            faults(&mirror, &mirror),
            [": Forbidden: static pods cannot be resized"]
        );
    }
}
