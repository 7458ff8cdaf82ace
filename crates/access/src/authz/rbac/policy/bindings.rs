//! The bindings of cluster roles, and the roles and bindings of namespaces.

use crate::user::{AUTHENTICATED, KUBELET_CLIENT, MASTERS, UNAUTHENTICATED};

pub(super) const SCHEDULER: &str = "system:kube-scheduler";
pub(super) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

/// Role, then the subjects: `u:` a user, `g:` a group.
pub(super) const CLUSTER_BINDINGS: &[(&str, &str, &[&str])] = &[
    ("cluster-admin", "cluster-admin", &["g", MASTERS]),
    (
        "system:monitoring",
        "system:monitoring",
        &["g", "system:monitoring"],
    ),
    (
        "system:discovery",
        "system:discovery",
        &["g", AUTHENTICATED],
    ),
    (
        "system:basic-user",
        "system:basic-user",
        &["g", AUTHENTICATED],
    ),
    (
        "system:public-info-viewer",
        "system:public-info-viewer",
        &["g", AUTHENTICATED, UNAUTHENTICATED],
    ),
    (
        "system:node-proxier",
        "system:node-proxier",
        &["u", "system:kube-proxy"],
    ),
    (
        "davit:kubelet-api-admin",
        "system:kubelet-api-admin",
        &["u", KUBELET_CLIENT],
    ),
    (
        CONTROLLER_MANAGER,
        CONTROLLER_MANAGER,
        &["u", CONTROLLER_MANAGER],
    ),
    (
        "davit:controllers",
        "davit:controllers",
        &["u", CONTROLLER_MANAGER],
    ),
    (SCHEDULER, SCHEDULER, &["u", SCHEDULER]),
    (
        "davit:node-network",
        "davit:node-network",
        &["g", "system:nodes"],
    ),
    (
        "davit:network-policy",
        "davit:network-policy",
        &["g", "davit:network-policy"],
    ),
    ("davit:scheduler", "davit:scheduler", &["u", SCHEDULER]),
    (
        "system:volume-scheduler",
        "system:volume-scheduler",
        &["u", SCHEDULER],
    ),
    (
        "system:service-account-issuer-discovery",
        "system:service-account-issuer-discovery",
        &["g", "system:serviceaccounts"],
    ),
    (
        "system:cluster-trust-bundle-discovery",
        "system:cluster-trust-bundle-discovery",
        &["g", "system:serviceaccounts"],
    ),
    ("system:node", "system:node", &[]),
];

/// Namespace, name, rules.
pub(super) const ROLES: &[(&str, &str, &[&str])] = &[
    (
        "kube-system",
        "extension-apiserver-authentication-reader",
        &["read - configmaps extension-apiserver-authentication"],
    ),
    (
        "kube-system",
        "system:controller:bootstrap-signer",
        &["read - secrets"],
    ),
    (
        "kube-system",
        "system:controller:cloud-provider",
        &["read,create - configmaps"],
    ),
    (
        "kube-system",
        "system:controller:token-cleaner",
        &["read,delete - secrets", "events"],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-controller-manager",
        &[
            "get,list,watch,create,update coordination.k8s.io leases",
            "get,list,watch,create,update coordination.k8s.io leasecandidates",
        ],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-scheduler",
        &[
            "get,list,watch,create,update coordination.k8s.io leases",
            "get,list,watch,create,update coordination.k8s.io leasecandidates",
        ],
    ),
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        &[
            "read - configmaps",
            "update - configmaps cluster-info",
            "events",
        ],
    ),
    (
        "kube-system",
        "davit:node-network",
        &["list,watch - configmaps kube-dns"],
    ),
];

/// Namespace, name, role, users, service accounts of kube-system, groups.
pub(super) type RoleBindingRow = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
);

pub(super) const BINDINGS: &[RoleBindingRow] = &[
    (
        "kube-system",
        "system::extension-apiserver-authentication-reader",
        "extension-apiserver-authentication-reader",
        &[CONTROLLER_MANAGER, SCHEDULER],
        &[],
        &[],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-controller-manager",
        "system::leader-locking-kube-controller-manager",
        &[CONTROLLER_MANAGER],
        &["kube-controller-manager", "leader-election-controller"],
        &[],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-scheduler",
        "system::leader-locking-kube-scheduler",
        &[SCHEDULER],
        &["kube-scheduler"],
        &[],
    ),
    (
        "kube-system",
        "system:controller:bootstrap-signer",
        "system:controller:bootstrap-signer",
        &[],
        &["bootstrap-signer"],
        &[],
    ),
    (
        "kube-system",
        "system:controller:cloud-provider",
        "system:controller:cloud-provider",
        &[],
        &["cloud-provider"],
        &[],
    ),
    (
        "kube-system",
        "system:controller:token-cleaner",
        "system:controller:token-cleaner",
        &[],
        &["token-cleaner"],
        &[],
    ),
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        "system:controller:bootstrap-signer",
        &[],
        &["bootstrap-signer"],
        &[],
    ),
    // davit's nodes answer questions for names, and take stub domains from there
    (
        "kube-system",
        "davit:node-network",
        "davit:node-network",
        &[],
        &[],
        &["system:nodes"],
    ),
];
