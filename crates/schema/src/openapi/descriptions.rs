//! Short descriptions of the types and fields people ask `kubectl explain` about most.

/// What a type is; empty when nothing is said of it.
pub(super) fn of_type(name: &str) -> &'static str {
    find(TYPES, name)
}

/// What a field of a type is; empty when nothing is said of it.
pub(super) fn of_field(owner: &str, field: &str) -> &'static str {
    let own = FIELDS.iter().find(|(o, f, _)| *o == owner && *f == field);
    own.map_or_else(|| find(EVERYWHERE, field), |(_, _, text)| text)
}

fn find(table: &[(&'static str, &'static str)], name: &str) -> &'static str {
    table
        .iter()
        .find(|(n, _)| *n == name)
        .map_or("", |(_, text)| text)
}

const TYPES: &[(&str, &str)] = &[
    ("ConfigMap", "Configuration data that pods can read."),
    ("Container", "One container of a pod."),
    ("ContainerPort", "A port a container listens on."),
    ("CronJob", "Jobs on a schedule."),
    ("DaemonSet", "One pod on every node that matches."),
    ("Deployment", "Replicated pods with rolling updates."),
    (
        "DeviceClass",
        "A class of devices with selectors and configuration.",
    ),
    ("Event", "Something that happened to an object."),
    ("Job", "Pods that run to completion."),
    (
        "LabelSelector",
        "Labels that objects must have; all requirements must hold.",
    ),
    ("Namespace", "A scope for names."),
    ("Node", "A machine that runs pods."),
    ("ObjectMeta", "Metadata every stored object has."),
    ("PersistentVolumeClaim", "A request for storage."),
    ("Pod", "Containers that run together on one node."),
    ("PodSpec", "What a pod shall be."),
    ("PodStatus", "What is known of a pod; it may lag behind."),
    ("PodTemplateSpec", "The pods a controller makes."),
    ("Probe", "A check whether a container is alive or ready."),
    (
        "Quantity",
        "A number with an optional suffix: m, k, M, G, Ki, Mi, Gi and so on.",
    ),
    ("ResourceClaim", "A request for devices."),
    (
        "ResourceRequirements",
        "Resources a container needs and may use at most.",
    ),
    ("ResourceSlice", "Devices a driver offers."),
    ("Secret", "Confidential data that pods can read."),
    ("Service", "A name and address for pods."),
    ("ServiceAccount", "An identity for processes in pods."),
    (
        "StatefulSet",
        "Replicated pods with stable names and storage.",
    ),
    ("Time", "An instant, RFC 3339, to the second."),
    ("MicroTime", "An instant, RFC 3339, to the microsecond."),
    ("IntOrString", "A number or a string such as 25%."),
];

const EVERYWHERE: &[(&str, &str)] = &[
    ("apiVersion", "Group and version of the object's schema."),
    ("kind", "Kind of the object."),
    ("metadata", "Name, labels and other metadata."),
    ("spec", "The desired state."),
    ("status", "The observed state, written by the system."),
    ("selector", "Labels of the objects meant."),
    ("template", "The pods to be made."),
    ("replicas", "How many pods there shall be."),
    ("conditions", "Latest observations of the object's state."),
];

const FIELDS: &[(&str, &str, &str)] = &[
    ("ObjectMeta", "annotations", "Arbitrary texts for tools."),
    (
        "ObjectMeta",
        "creationTimestamp",
        "CreationTimestamp is a timestamp of the time when the object was created.",
    ),
    (
        "ObjectMeta",
        "deletionTimestamp",
        "When the object is to be gone.",
    ),
    (
        "ObjectMeta",
        "finalizers",
        "What must be done before the object goes.",
    ),
    (
        "ObjectMeta",
        "generateName",
        "Beginning of a name that is completed by the server.",
    ),
    (
        "ObjectMeta",
        "generation",
        "Counts changes of the desired state.",
    ),
    (
        "ObjectMeta",
        "labels",
        "Keys and values that selectors match.",
    ),
    (
        "ObjectMeta",
        "name",
        "Name, unique among the objects of the kind in the namespace.",
    ),
    ("ObjectMeta", "namespace", "Namespace of the object."),
    (
        "ObjectMeta",
        "ownerReferences",
        "Objects this one depends on.",
    ),
    (
        "ObjectMeta",
        "resourceVersion",
        "Version of the stored object; opaque.",
    ),
    ("ObjectMeta", "uid", "Unique in time and space."),
    (
        "PodSpec",
        "affinity",
        "Which nodes and neighbours are wanted.",
    ),
    (
        "PodSpec",
        "activeDeadlineSeconds",
        "Seconds the pod may run.",
    ),
    (
        "PodSpec",
        "containers",
        "Containers of the pod; at least one.",
    ),
    (
        "PodSpec",
        "hostNetwork",
        "Whether the pod uses the network of the node.",
    ),
    (
        "PodSpec",
        "initContainers",
        "Containers that run before the others, in order.",
    ),
    ("PodSpec", "nodeName", "Node the pod is bound to."),
    ("PodSpec", "nodeSelector", "Labels the node must have."),
    (
        "PodSpec",
        "resourceClaims",
        "Claims whose devices containers may name.",
    ),
    (
        "PodSpec",
        "restartPolicy",
        "Whether containers are restarted: Always, OnFailure, Never.",
    ),
    (
        "PodSpec",
        "runtimeClassName",
        "Class of the container runtime.",
    ),
    ("PodSpec", "schedulerName", "Scheduler that places the pod."),
    (
        "PodSpec",
        "serviceAccountName",
        "Service account the pod runs as.",
    ),
    (
        "PodSpec",
        "terminationGracePeriodSeconds",
        "Seconds processes have to end.",
    ),
    (
        "PodSpec",
        "tolerations",
        "Taints of nodes that do not matter.",
    ),
    ("PodSpec", "volumes", "Volumes containers can mount."),
    ("Container", "args", "Arguments; the image's when missing."),
    (
        "Container",
        "command",
        "Command; the image's entry point when missing.",
    ),
    ("Container", "env", "Environment variables."),
    ("Container", "image", "Image the container is made from."),
    (
        "Container",
        "imagePullPolicy",
        "When the image is pulled: Always, IfNotPresent, Never.",
    ),
    (
        "Container",
        "livenessProbe",
        "Check after whose failure the container is restarted.",
    ),
    ("Container", "name", "Name, unique in the pod."),
    ("Container", "ports", "Ports the container listens on."),
    (
        "Container",
        "readinessProbe",
        "Check that tells whether the container takes traffic.",
    ),
    ("Container", "resources", "Resources needed and allowed."),
    (
        "Container",
        "volumeMounts",
        "Volumes and where they appear in the container.",
    ),
    (
        "ResourceRequirements",
        "claims",
        "Claims of the pod that the container uses.",
    ),
    (
        "ResourceRequirements",
        "limits",
        "The most the container may use.",
    ),
    (
        "ResourceRequirements",
        "requests",
        "What the container needs at least.",
    ),
];
