//! The cluster roles of controllers.

use davit_api::features::{GENERIC_WORKLOAD, STORAGE_VERSION_MIGRATOR};

/// Each is bound to the service account of the same name in kube-system.
pub(super) const CONTROLLER_ROLES: &[(&str, &[&str])] = &[
    (
        "attachdetach-controller",
        &[
            "list,watch - persistentvolumeclaims,persistentvolumes",
            "read - nodes",
            "patch,update - nodes/status",
            "list,watch - pods",
            "events",
            "read,create,delete storage.k8s.io volumeattachments",
            "read storage.k8s.io csidrivers",
            "read storage.k8s.io csinodes",
        ],
    ),
    (
        "certificate-controller",
        &[
            "read,delete certificates.k8s.io certificatesigningrequests",
            "update certificates.k8s.io certificatesigningrequests/approval,certificatesigningrequests/status",
            "approve certificates.k8s.io signers kubernetes.io/kube-apiserver-client-kubelet",
            "sign certificates.k8s.io signers kubernetes.io/kube-apiserver-client,kubernetes.io/kube-apiserver-client-kubelet,kubernetes.io/kubelet-serving,kubernetes.io/legacy-unknown",
            "create authorization.k8s.io subjectaccessreviews",
            "events",
        ],
    ),
    (
        "clusterrole-aggregation-controller",
        &["escalate,get,list,patch,update,watch rbac.authorization.k8s.io clusterroles"],
    ),
    (
        "cronjob-controller",
        &[
            "read,update batch cronjobs",
            "read,create,delete,patch,update batch jobs",
            "update batch cronjobs/status",
            "update batch cronjobs/finalizers",
            "delete,list,watch - pods",
            "events",
        ],
    ),
    (
        "daemon-set-controller",
        &[
            "read apps,extensions daemonsets",
            "update apps,extensions daemonsets/status",
            "update apps,extensions daemonsets/finalizers",
            "list,watch - nodes",
            "create,delete,list,patch,watch - pods",
            "create - pods/binding",
            "read,create,delete,patch,update apps controllerrevisions",
            "events",
        ],
    ),
    (
        "deployment-controller",
        &[
            "read,update apps,extensions deployments",
            "update apps,extensions deployments/status",
            "update apps,extensions deployments/finalizers",
            "read,create,delete,patch,update apps,extensions replicasets",
            "read,update - pods",
            "events",
        ],
    ),
    (
        "device-taint-eviction-controller",
        &[
            "read,delete - pods",
            "patch,update - pods/status",
            "read resource.k8s.io resourceclaims",
            "read resource.k8s.io resourceslices",
            "read resource.k8s.io deviceclasses",
            "read resource.k8s.io devicetaintrules",
            "patch,update resource.k8s.io devicetaintrules/status",
            "events",
        ],
    ),
    (
        "disruption-controller",
        &[
            "read apps,extensions deployments",
            "read apps,extensions replicasets",
            "read - replicationcontrollers",
            "read policy poddisruptionbudgets",
            "read apps statefulsets",
            "update policy poddisruptionbudgets/status",
            "patch,update - pods/status",
            "get * */scale",
            "events",
        ],
    ),
    (
        "endpoint-controller",
        &[
            "read - pods,services",
            "read,create,delete,update - endpoints",
            "create - endpoints/restricted",
            "events",
        ],
    ),
    (
        "endpointslice-controller",
        &[
            "read - nodes,pods,services",
            "update - services/finalizers",
            "read,create,delete,update discovery.k8s.io endpointslices",
            "events",
        ],
    ),
    (
        "endpointslicemirroring-controller",
        &[
            "read - endpoints,services",
            "update - services/finalizers",
            "update - endpoints/finalizers",
            "read,create,delete,update discovery.k8s.io endpointslices",
            "events",
        ],
    ),
    (
        "ephemeral-volume-controller",
        &[
            "read - pods",
            "update - pods/finalizers",
            "read,create - persistentvolumeclaims",
            "events",
        ],
    ),
    (
        "expand-controller",
        &[
            "read,patch,update - persistentvolumes",
            "patch,update - persistentvolumeclaims/status",
            "read - persistentvolumeclaims",
            "events",
            "get - services",
        ],
    ),
    (
        "generic-garbage-collector",
        &["delete,get,list,patch,update,watch * *", "events"],
    ),
    (
        "horizontal-pod-autoscaler",
        &[
            "read autoscaling horizontalpodautoscalers",
            "update autoscaling horizontalpodautoscalers/status",
            "get,update * */scale",
            "list,watch - pods",
            "list,watch metrics.k8s.io pods",
            "read custom.metrics.k8s.io *",
            "read external.metrics.k8s.io *",
            "events",
        ],
    ),
    (
        "job-controller",
        &[
            "read,patch,update batch jobs",
            "update batch jobs/status",
            "update batch jobs/finalizers",
            "create,delete,list,patch,watch - pods",
            "events",
        ],
    ),
    (
        "kube-apiserver-serving-clustertrustbundle-publisher",
        &[
            "attest certificates.k8s.io signers kubernetes.io/kube-apiserver-serving",
            "create,delete,list,update,watch certificates.k8s.io clustertrustbundles",
            "events",
        ],
    ),
    (
        "legacy-service-account-token-cleaner",
        &[
            "get - configmaps kube-apiserver-legacy-service-account-token-tracking",
            "delete,patch - secrets",
        ],
    ),
    (
        "namespace-controller",
        &[
            "read,delete - namespaces",
            "update - namespaces/finalize,namespaces/status",
            "read,delete,deletecollection * *",
        ],
    ),
    (
        "node-controller",
        &[
            "read,delete,patch,update - nodes",
            "patch,update - nodes/status",
            "patch,update - pods/status",
            "read,delete - pods",
            "events",
        ],
    ),
    (
        "persistent-volume-binder",
        &[
            "read,create,delete,update - persistentvolumes",
            "update - persistentvolumes/status",
            "read,update - persistentvolumeclaims",
            "update - persistentvolumeclaims/status",
            "read,create,delete - pods",
            "read storage.k8s.io storageclasses",
            "list,watch - nodes",
            "events",
            "watch - events",
            "get - services",
        ],
    ),
    (
        "pod-garbage-collector",
        &[
            "delete,list,watch - pods",
            "read - nodes",
            "patch - pods/status",
        ],
    ),
    (
        "podcertificaterequestcleaner",
        &["read,delete certificates.k8s.io podcertificaterequests"],
    ),
    (
        "pv-protection-controller",
        &["read,update - persistentvolumes", "events"],
    ),
    (
        "pvc-protection-controller",
        &[
            "read,update - persistentvolumeclaims",
            "read - pods",
            "events",
        ],
    ),
    (
        "replicaset-controller",
        &[
            "read,update apps,extensions replicasets",
            "update apps,extensions replicasets/status",
            "update apps,extensions replicasets/finalizers",
            "create,delete,list,patch,watch - pods",
            "events",
        ],
    ),
    (
        "replication-controller",
        &[
            "read,update - replicationcontrollers",
            "update - replicationcontrollers/status",
            "update - replicationcontrollers/finalizers",
            "create,delete,list,patch,watch - pods",
            "events",
        ],
    ),
    (
        "resource-claim-controller",
        &[
            "read - pods",
            "update - pods/finalizers",
            "read,create,delete resource.k8s.io resourceclaims",
            "read resource.k8s.io resourceclaimtemplates",
            "patch,update resource.k8s.io resourceclaims,resourceclaims/binding,resourceclaims/status",
            "patch,update - pods/status",
            "events",
        ],
    ),
    (
        "resourcequota-controller",
        &["list,watch * *", "update - resourcequotas/status", "events"],
    ),
    (
        "root-ca-cert-publisher",
        &["create,update - configmaps", "events"],
    ),
    (
        "route-controller",
        &["list,watch - nodes", "patch - nodes/status", "events"],
    ),
    (
        "selinux-warning-controller",
        &[
            "events",
            "read - persistentvolumes",
            "read - persistentvolumeclaims",
            "read - pods",
            "read storage.k8s.io csidrivers",
        ],
    ),
    (
        "service-account-controller",
        &["create - serviceaccounts", "events"],
    ),
    (
        "service-cidrs-controller",
        &[
            "read,patch,update networking.k8s.io servicecidrs",
            "patch,update networking.k8s.io servicecidrs/finalizers",
            "patch,update networking.k8s.io servicecidrs/status",
            "read networking.k8s.io ipaddresses",
            "events",
        ],
    ),
    (
        "service-controller",
        &[
            "read - services",
            "patch,update - services/status",
            "list,watch - nodes",
            "events",
        ],
    ),
    (
        "statefulset-controller",
        &[
            "list,watch - pods",
            "read apps statefulsets",
            "update apps statefulsets/status",
            "update apps statefulsets/finalizers",
            "create,delete,get,patch,update - pods",
            "read,create,delete,patch,update apps controllerrevisions",
            "read,create - persistentvolumeclaims",
            "delete,update - persistentvolumeclaims",
            "update - pods/finalizers",
            "events",
        ],
    ),
    (
        "ttl-after-finished-controller",
        &["read,delete batch jobs", "events"],
    ),
    (
        "ttl-controller",
        &["list,patch,update,watch - nodes", "events"],
    ),
    (
        "validatingadmissionpolicy-status-controller",
        &[
            "read admissionregistration.k8s.io validatingadmissionpolicies",
            "get,patch,update admissionregistration.k8s.io validatingadmissionpolicies/status",
            "events",
        ],
    ),
    (
        "volumeattributesclass-protection-controller",
        &[
            "read - persistentvolumeclaims",
            "read - persistentvolumes",
            "read,update storage.k8s.io volumeattributesclasses",
            "events",
        ],
    ),
];

/// Those that are there where a feature gate is on.
pub(super) const GATED_CONTROLLER_ROLES: &[(&str, &str, &[&str])] = &[
    (
        GENERIC_WORKLOAD,
        "podgroup-protection-controller",
        &["read,update scheduling.k8s.io podgroups", "read - pods"],
    ),
    (
        STORAGE_VERSION_MIGRATOR,
        "storage-version-migrator-controller",
        &[
            "create,list,patch * *",
            "get apiextensions.k8s.io customresourcedefinitions",
            "patch apiextensions.k8s.io customresourcedefinitions/status",
            "update storagemigration.k8s.io storageversionmigrations/status",
        ],
    ),
];

/// What davit's controllers do besides, in roles of their own: most of them patch what Kubernetes' replace, so that fields which
/// this version does not know stay.
pub(super) const OWN_CONTROLLER_ROLES: &[(&str, &[&str])] = &[
    ("deployment-controller", &["patch apps deployments/status"]),
    (
        "podgroup-protection-controller",
        &["patch scheduling.k8s.io podgroups"],
    ),
    ("pv-protection-controller", &["patch - persistentvolumes"]),
    (
        "pvc-protection-controller",
        &["patch - persistentvolumeclaims"],
    ),
    // Kubernetes has it with gate DRAResourcePoolStatus, which is always on here
    (
        "resourcepoolstatusrequest-controller",
        &[
            "read,delete resource.k8s.io resourcepoolstatusrequests",
            "patch,update resource.k8s.io resourcepoolstatusrequests/status",
            "read resource.k8s.io resourceslices",
            "read resource.k8s.io resourceclaims",
            "events",
        ],
    ),
    // what it tells nodes to announce stands in slices
    (
        "service-controller",
        &["read,create,delete,update discovery.k8s.io endpointslices"],
    ),
    (
        "statefulset-controller",
        &["patch - persistentvolumeclaims"],
    ),
    // Kubernetes has it with gate StorageVersionAPI; the kind is always served here
    (
        "storage-version-garbage-collector",
        &[
            "read coordination.k8s.io leases",
            "read,delete,patch,update internal.apiserver.k8s.io storageversions",
            "get,patch,update internal.apiserver.k8s.io storageversions/status",
        ],
    ),
    // types of parameters come from definitions
    (
        "validatingadmissionpolicy-status-controller",
        &["list apiextensions.k8s.io customresourcedefinitions"],
    ),
    (
        "volumeattributesclass-protection-controller",
        &["patch storage.k8s.io volumeattributesclasses"],
    ),
];
