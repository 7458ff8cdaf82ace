//! The roles and bindings every cluster has, as data.
//!
//! A rule is written `VERBS GROUPS RESOURCES [NAMES]` or `VERBS PATHS`, lists separated by commas;
//! `-` is the core group, `read` stands for get, list and watch, `write` for the verbs that change,
//! and `events` for the rule that lets events be written. What the roles are for:
//! <https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings>.

use serde_json::{Value, json};

use super::rule::Rule;
use crate::user::{AUTHENTICATED, MASTERS, UNAUTHENTICATED};

const LABEL: &str = "kubernetes.io/bootstrapping";
/// Roles and bindings with this annotation are brought back to their contents at each start.
pub(super) const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
const CONTROLLER: &str = "system:controller:";
const EVENTS: &str = "create,patch,update -,events.k8s.io events";

fn rule(text: &str) -> Rule {
    let text = if text == "events" { EVENTS } else { text };
    let list = |words: &str| -> Vec<String> {
        words
            .split(',')
            .flat_map(|word| match word {
                "-" => vec![""],
                "read" => vec!["get", "list", "watch"],
                "write" => vec!["create", "delete", "deletecollection", "patch", "update"],
                word => vec![word],
            })
            .map(str::to_owned)
            .collect()
    };
    let mut words = text.split(' ').map(list);
    let mut next = || words.next().unwrap_or_default();
    let (verbs, second) = (next(), next());
    let resources = next();
    if resources.is_empty() {
        return Rule {
            verbs,
            urls: second,
            ..Rule::default()
        };
    }
    Rule {
        verbs,
        groups: second,
        resources,
        names: next(),
        urls: Vec::new(),
    }
}

fn rules(texts: &[&str]) -> Value {
    texts.iter().map(|text| rule(text).to_value()).collect()
}

/// Roles whose rules are gathered: name, the label gathered by, the label they carry themselves.
const AGGREGATED: [(&str, &str); 3] = [("admin", ""), ("edit", "admin"), ("view", "edit")];

/// Name, the role they are gathered into (or nothing), rules.
const CLUSTER_ROLES: &[(&str, &str, &[&str])] = &[
    ("cluster-admin", "", &["* * *", "* *"]),
    (
        "system:aggregate-to-admin",
        "admin",
        &[
            "create authorization.k8s.io localsubjectaccessreviews",
            "read,write rbac.authorization.k8s.io rolebindings,roles",
        ],
    ),
    (
        "system:aggregate-to-edit",
        "edit",
        &[
            "read - pods/attach,pods/exec,pods/portforward,pods/proxy,secrets,services/proxy",
            "impersonate - serviceaccounts",
            "write - pods,pods/attach,pods/exec,pods/portforward,pods/proxy",
            "create - pods/eviction",
            "write - configmaps,events,persistentvolumeclaims,replicationcontrollers,replicationcontrollers/scale,secrets,serviceaccounts,services,services/proxy",
            "create - serviceaccounts/token",
            "write apps daemonsets,deployments,deployments/rollback,deployments/scale,replicasets,replicasets/scale,statefulsets,statefulsets/scale",
            "write autoscaling horizontalpodautoscalers",
            "write batch cronjobs,jobs",
            "write extensions daemonsets,deployments,deployments/rollback,deployments/scale,ingresses,networkpolicies,replicasets,replicasets/scale,replicationcontrollers/scale",
            "write policy poddisruptionbudgets",
            "write networking.k8s.io ingresses,networkpolicies",
            "read,write coordination.k8s.io leases",
            "write resource.k8s.io resourceclaims,resourceclaimtemplates",
        ],
    ),
    (
        "system:aggregate-to-view",
        "view",
        &[
            "read - configmaps,endpoints,persistentvolumeclaims,persistentvolumeclaims/status,pods,replicationcontrollers,replicationcontrollers/scale,serviceaccounts,services,services/status",
            "read - bindings,events,limitranges,namespaces/status,pods/log,pods/status,replicationcontrollers/status,resourcequotas,resourcequotas/status",
            "read - namespaces",
            "read discovery.k8s.io endpointslices",
            "read apps controllerrevisions,daemonsets,daemonsets/status,deployments,deployments/scale,deployments/status,replicasets,replicasets/scale,replicasets/status,statefulsets,statefulsets/scale,statefulsets/status",
            "read autoscaling horizontalpodautoscalers,horizontalpodautoscalers/status",
            "read batch cronjobs,cronjobs/status,jobs,jobs/status",
            "read extensions daemonsets,daemonsets/status,deployments,deployments/scale,deployments/status,ingresses,ingresses/status,networkpolicies,replicasets,replicasets/scale,replicasets/status,replicationcontrollers/scale",
            "read policy poddisruptionbudgets,poddisruptionbudgets/status",
            "read networking.k8s.io ingresses,ingresses/status,networkpolicies",
            "read resource.k8s.io resourceclaims,resourceclaims/status,resourceclaimtemplates",
        ],
    ),
    (
        "system:auth-delegator",
        "",
        &[
            "create authentication.k8s.io tokenreviews",
            "create authorization.k8s.io subjectaccessreviews",
        ],
    ),
    (
        "system:basic-user",
        "",
        &[
            "create authorization.k8s.io selfsubjectaccessreviews,selfsubjectrulesreviews",
            "create authentication.k8s.io selfsubjectreviews",
        ],
    ),
    (
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        "",
        &["create certificates.k8s.io certificatesigningrequests/nodeclient"],
    ),
    (
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        "",
        &["create certificates.k8s.io certificatesigningrequests/selfnodeclient"],
    ),
    (
        "system:certificates.k8s.io:kube-apiserver-client-approver",
        "",
        &["approve certificates.k8s.io signers kubernetes.io/kube-apiserver-client"],
    ),
    (
        "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver",
        "",
        &["approve certificates.k8s.io signers kubernetes.io/kube-apiserver-client-kubelet"],
    ),
    (
        "system:certificates.k8s.io:kubelet-serving-approver",
        "",
        &["approve certificates.k8s.io signers kubernetes.io/kubelet-serving"],
    ),
    (
        "system:certificates.k8s.io:legacy-unknown-approver",
        "",
        &["approve certificates.k8s.io signers kubernetes.io/legacy-unknown"],
    ),
    (
        "system:cluster-trust-bundle-discovery",
        "",
        &["read certificates.k8s.io clustertrustbundles"],
    ),
    (
        "system:discovery",
        "",
        &[
            "get /api,/api/*,/apis,/apis/*,/healthz,/livez,/openapi,/openapi/*,/readyz,/version,/version/",
        ],
    ),
    (
        "system:heapster",
        "",
        &[
            "read - events,namespaces,nodes,pods",
            "read extensions deployments",
        ],
    ),
    ("system:kube-aggregator", "", &["read - endpoints,services"]),
    (
        "system:kube-controller-manager",
        "",
        &[
            "events",
            "create coordination.k8s.io leases",
            "get,update coordination.k8s.io leases kube-controller-manager",
            "create - secrets,serviceaccounts",
            "delete - secrets",
            "get - configmaps,namespaces,secrets,serviceaccounts",
            "update - secrets,serviceaccounts",
            "create authentication.k8s.io tokenreviews",
            "create authorization.k8s.io subjectaccessreviews",
            "list,watch * *",
            "create - serviceaccounts/token",
        ],
    ),
    (
        "system:kube-dns",
        "",
        &[
            "list,watch - endpoints,services",
            "list,watch discovery.k8s.io endpointslices",
        ],
    ),
    (
        "system:kube-scheduler",
        "",
        &[
            "events",
            "create coordination.k8s.io leases",
            "get,list,watch coordination.k8s.io leasecandidates",
            "get,update coordination.k8s.io leases kube-scheduler",
            "read - nodes",
            "delete,get,list,watch - pods",
            "create - bindings,pods/binding",
            "patch,update - pods/status",
            "read - replicationcontrollers,services",
            "read apps,extensions replicasets",
            "read apps statefulsets",
            "read policy poddisruptionbudgets",
            "read - persistentvolumeclaims,persistentvolumes",
            "create authentication.k8s.io tokenreviews",
            "create authorization.k8s.io subjectaccessreviews",
            "read storage.k8s.io csinodes",
            "read - namespaces",
            "read storage.k8s.io csidrivers",
            "read storage.k8s.io csistoragecapacities",
            "read storage.k8s.io volumeattachments",
            "read,create,delete,patch,update resource.k8s.io resourceclaims",
            "patch,update resource.k8s.io resourceclaims/binding,resourceclaims/status",
            "read resource.k8s.io deviceclasses,devicetaintrules,resourceclaimtemplates,resourceslices",
            "read resource.k8s.io resourceclasses,resourceclassparameters,resourceclaimparameters",
            "read,create,delete,patch,update resource.k8s.io podschedulings,podschedulingcontexts",
            "update - pods/finalizers",
            "read scheduling.k8s.io podgroups,workloads",
            "patch,update scheduling.k8s.io podgroups/status",
        ],
    ),
    (
        "system:kubelet-api-admin",
        "",
        &[
            "read - nodes",
            "proxy - nodes",
            "* - nodes/checkpoint,nodes/configz,nodes/healthz,nodes/log,nodes/metrics,nodes/pods,nodes/proxy,nodes/stats",
        ],
    ),
    (
        "system:monitoring",
        "",
        &[
            "get /flagz,/healthz,/healthz/*,/livez,/livez/*,/metrics,/metrics/slis,/readyz,/readyz/*,/statusz",
        ],
    ),
    ("system:node", "", NODE),
    (
        "system:node-bootstrapper",
        "",
        &["read,create certificates.k8s.io certificatesigningrequests"],
    ),
    (
        "system:node-problem-detector",
        "",
        &["get - nodes", "patch - nodes/status", "events"],
    ),
    (
        "system:node-proxier",
        "",
        &[
            "list,watch - endpoints,services",
            "read - nodes",
            "events",
            "list,watch discovery.k8s.io endpointslices",
            "list,watch networking.k8s.io servicecidrs",
        ],
    ),
    (
        "system:persistent-volume-provisioner",
        "",
        &[
            "read,create,delete - persistentvolumes",
            "read,update - persistentvolumeclaims",
            "read storage.k8s.io storageclasses",
            "watch - events",
            "events",
        ],
    ),
    (
        "system:public-info-viewer",
        "",
        &["get /healthz,/livez,/readyz,/version,/version/"],
    ),
    (
        "system:service-account-issuer-discovery",
        "",
        &[
            "get /.well-known/openid-configuration,/.well-known/openid-configuration/,/openid/v1/jwks,/openid/v1/jwks/",
        ],
    ),
    (
        "system:volume-scheduler",
        "",
        &[
            "read,patch,update - persistentvolumes",
            "read storage.k8s.io storageclasses",
            "read,patch,update - persistentvolumeclaims",
        ],
    ),
    // davit's controllers run under one identity instead of one service account each
    (
        "davit:controllers",
        "",
        &[
            "read,write * *",
            "escalate rbac.authorization.k8s.io clusterroles",
            "approve certificates.k8s.io signers kubernetes.io/kube-apiserver-client-kubelet",
            "sign certificates.k8s.io signers kubernetes.io/kube-apiserver-client,kubernetes.io/kube-apiserver-client-kubelet,kubernetes.io/kubelet-serving,kubernetes.io/legacy-unknown",
            "attest certificates.k8s.io signers kubernetes.io/kube-apiserver-serving",
        ],
    ),
];

/// What every node may do; the Node authorizer narrows it to what is the node's own.
const NODE: &[&str] = &[
    "create authentication.k8s.io tokenreviews",
    "create authorization.k8s.io localsubjectaccessreviews,subjectaccessreviews",
    "read - services",
    "create,get,list,watch - nodes",
    "patch,update - nodes/status",
    "patch,update - nodes",
    "create,patch,update - events",
    "read - pods",
    "create,delete - pods",
    "patch,update - pods/status",
    "create - pods/eviction",
    "read - configmaps,secrets",
    "get - persistentvolumeclaims,persistentvolumes",
    "get - endpoints",
    "read,create certificates.k8s.io certificatesigningrequests",
    "create,delete,get,patch,update coordination.k8s.io leases",
    "get storage.k8s.io volumeattachments",
    "create - serviceaccounts/token",
    "get,patch,update - persistentvolumeclaims/status",
    "read storage.k8s.io csidrivers",
    "create,delete,get,patch,update storage.k8s.io csinodes",
    "read node.k8s.io runtimeclasses",
    "get resource.k8s.io resourceclaims",
    "read,write resource.k8s.io resourceslices",
    "read certificates.k8s.io clustertrustbundles",
    "read,create certificates.k8s.io podcertificaterequests",
];

/// What every node may do.
pub(crate) fn node_rules() -> Vec<Rule> {
    NODE.iter().map(|text| rule(text)).collect()
}

/// Each is bound to the service account of the same name in kube-system.
const CONTROLLER_ROLES: &[(&str, &[&str])] = &[
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

const SCHEDULER: &str = "system:kube-scheduler";
const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

/// Role, then the subjects: `u:` a user, `g:` a group.
const CLUSTER_BINDINGS: &[(&str, &str, &[&str])] = &[
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
const ROLES: &[(&str, &str, &[&str])] = &[
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
            "watch - configmaps",
            "get,update - configmaps kube-controller-manager",
            "get,list,watch,create,update coordination.k8s.io leases",
        ],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-scheduler",
        &[
            "watch - configmaps",
            "get,update - configmaps kube-scheduler",
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
];

/// Namespace, name, role, users, service accounts of kube-system.
type RoleBindingRow = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const BINDINGS: &[RoleBindingRow] = &[
    (
        "kube-system",
        "system::extension-apiserver-authentication-reader",
        "extension-apiserver-authentication-reader",
        &[CONTROLLER_MANAGER, SCHEDULER],
        &[],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-controller-manager",
        "system::leader-locking-kube-controller-manager",
        &[CONTROLLER_MANAGER],
        &["kube-controller-manager", "leader-election-controller"],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-scheduler",
        "system::leader-locking-kube-scheduler",
        &[SCHEDULER],
        &["kube-scheduler"],
    ),
    (
        "kube-system",
        "system:controller:bootstrap-signer",
        "system:controller:bootstrap-signer",
        &[],
        &["bootstrap-signer"],
    ),
    (
        "kube-system",
        "system:controller:cloud-provider",
        "system:controller:cloud-provider",
        &[],
        &["cloud-provider"],
    ),
    (
        "kube-system",
        "system:controller:token-cleaner",
        "system:controller:token-cleaner",
        &[],
        &["token-cleaner"],
    ),
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        "system:controller:bootstrap-signer",
        &[],
        &["bootstrap-signer"],
    ),
];

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": { LABEL: "rbac-defaults" },
            "annotations": { AUTOUPDATE: "true" },
        },
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

fn role_ref(kind: &str, name: &str) -> Value {
    json!({ "apiGroup": super::GROUP, "kind": kind, "name": name })
}

fn subject(kind: &str, name: &str) -> Value {
    match kind {
        "ServiceAccount" => json!({ "kind": kind, "name": name, "namespace": "kube-system" }),
        _ => json!({ "apiGroup": super::GROUP, "kind": kind, "name": name }),
    }
}

/// The cluster roles.
pub(super) fn cluster_roles() -> Vec<Value> {
    let gathered = AGGREGATED.iter().map(|(name, into)| {
        let mut role = object("ClusterRole", "", name);
        let label = format!("{AGGREGATE}{name}");
        role["aggregationRule"] =
            json!({ "clusterRoleSelectors": [{ "matchLabels": { label: "true" } }] });
        aggregate(&mut role, into);
        role
    });
    let plain = CLUSTER_ROLES.iter().map(|(name, into, texts)| {
        let mut role = object("ClusterRole", "", name);
        role["rules"] = rules(texts);
        aggregate(&mut role, into);
        role
    });
    let controllers = CONTROLLER_ROLES.iter().map(|(name, texts)| {
        let mut role = object("ClusterRole", "", &format!("{CONTROLLER}{name}"));
        role["rules"] = rules(texts);
        role
    });
    gathered.chain(plain).chain(controllers).collect()
}

fn aggregate(role: &mut Value, into: &str) {
    if !into.is_empty() {
        role["metadata"]["labels"][format!("{AGGREGATE}{into}")] = json!("true");
    }
}

/// The bindings of cluster roles.
pub(super) fn cluster_role_bindings() -> Vec<Value> {
    let plain = CLUSTER_BINDINGS.iter().map(|(name, role, subjects)| {
        let mut binding = object("ClusterRoleBinding", "", name);
        binding["roleRef"] = role_ref("ClusterRole", role);
        let (kind, names) = match subjects.split_first() {
            Some((kind, names)) => (*kind, names),
            None => ("", &[][..]),
        };
        let kind = if kind == "u" { "User" } else { "Group" };
        if !names.is_empty() {
            binding["subjects"] = names.iter().map(|name| subject(kind, name)).collect();
        }
        binding
    });
    let controllers = CONTROLLER_ROLES.iter().map(|(name, _)| {
        let role = format!("{CONTROLLER}{name}");
        let mut binding = object("ClusterRoleBinding", "", &role);
        binding["roleRef"] = role_ref("ClusterRole", &role);
        binding["subjects"] = json!([subject("ServiceAccount", name)]);
        binding
    });
    plain.chain(controllers).collect()
}

/// The roles of kube-system and kube-public.
pub(super) fn roles() -> Vec<Value> {
    let roles = ROLES.iter().map(|(namespace, name, texts)| {
        let mut role = object("Role", namespace, name);
        role["rules"] = rules(texts);
        role
    });
    roles.collect()
}

/// The bindings of those.
pub(super) fn role_bindings() -> Vec<Value> {
    let bindings = BINDINGS
        .iter()
        .map(|(namespace, name, role, users, accounts)| {
            let mut binding = object("RoleBinding", namespace, name);
            binding["roleRef"] = role_ref("Role", role);
            let users = users.iter().map(|name| subject("User", name));
            let accounts = accounts.iter().map(|name| subject("ServiceAccount", name));
            binding["subjects"] = users.chain(accounts).collect();
            binding
        });
    bindings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_rules() {
        let parsed = rule("read,delete -,apps pods,pods/log a");
        assert_eq!(parsed.verbs, ["get", "list", "watch", "delete"]);
        assert_eq!(parsed.groups, ["", "apps"]);
        assert_eq!(parsed.resources, ["pods", "pods/log"]);
        assert_eq!(parsed.names, ["a"]);
        assert_eq!(rule("get /version").urls, ["/version"]);
        assert_eq!(rule("events").resources, ["events"]);
    }

    #[test]
    fn item_190_everything_is_labelled_and_named_once() {
        let all = [
            cluster_roles(),
            cluster_role_bindings(),
            roles(),
            role_bindings(),
        ];
        for objects in &all {
            let mut names = std::collections::HashSet::new();
            for object in objects {
                let metadata = &object["metadata"];
                assert_eq!(metadata["labels"][LABEL], "rbac-defaults");
                assert_eq!(metadata["annotations"][AUTOUPDATE], "true");
                let name = (
                    metadata["namespace"].as_str(),
                    metadata["name"].as_str().unwrap(),
                );
                assert!(names.insert(name), "{name:?}");
            }
        }
        let known: Vec<String> = all[0]
            .iter()
            .map(|role| role["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        for binding in &all[1] {
            let role = binding["roleRef"]["name"].as_str().unwrap();
            assert!(known.iter().any(|known| known == role), "{role}");
        }
    }
    /// The cluster roles of Kubernetes 1.36 with its default gates, and how many rules each has.
    const TABLE: &str = "\
admin 0
cluster-admin 2
edit 0
system:aggregate-to-admin 2
system:aggregate-to-edit 14
system:aggregate-to-view 11
system:auth-delegator 2
system:basic-user 2
system:certificates.k8s.io:certificatesigningrequests:nodeclient 1
system:certificates.k8s.io:certificatesigningrequests:selfnodeclient 1
system:certificates.k8s.io:kube-apiserver-client-approver 1
system:certificates.k8s.io:kube-apiserver-client-kubelet-approver 1
system:certificates.k8s.io:kubelet-serving-approver 1
system:certificates.k8s.io:legacy-unknown-approver 1
system:cluster-trust-bundle-discovery 1
system:controller:attachdetach-controller 8
system:controller:certificate-controller 6
system:controller:clusterrole-aggregation-controller 1
system:controller:cronjob-controller 6
system:controller:daemon-set-controller 8
system:controller:deployment-controller 6
system:controller:device-taint-eviction-controller 8
system:controller:disruption-controller 9
system:controller:endpoint-controller 4
system:controller:endpointslice-controller 4
system:controller:endpointslicemirroring-controller 5
system:controller:ephemeral-volume-controller 4
system:controller:expand-controller 5
system:controller:generic-garbage-collector 2
system:controller:horizontal-pod-autoscaler 8
system:controller:job-controller 5
system:controller:kube-apiserver-serving-clustertrustbundle-publisher 3
system:controller:legacy-service-account-token-cleaner 2
system:controller:namespace-controller 3
system:controller:node-controller 5
system:controller:persistent-volume-binder 10
system:controller:pod-garbage-collector 3
system:controller:podcertificaterequestcleaner 1
system:controller:pv-protection-controller 2
system:controller:pvc-protection-controller 3
system:controller:replicaset-controller 5
system:controller:replication-controller 5
system:controller:resource-claim-controller 7
system:controller:resourcequota-controller 3
system:controller:root-ca-cert-publisher 2
system:controller:route-controller 3
system:controller:selinux-warning-controller 5
system:controller:service-account-controller 2
system:controller:service-cidrs-controller 5
system:controller:service-controller 4
system:controller:statefulset-controller 10
system:controller:ttl-after-finished-controller 2
system:controller:ttl-controller 2
system:controller:validatingadmissionpolicy-status-controller 3
system:controller:volumeattributesclass-protection-controller 4
system:discovery 1
system:heapster 2
system:kube-aggregator 1
system:kube-controller-manager 11
system:kube-dns 2
system:kube-scheduler 28
system:kubelet-api-admin 3
system:monitoring 1
system:node 26
system:node-bootstrapper 1
system:node-problem-detector 3
system:node-proxier 5
system:persistent-volume-provisioner 5
system:public-info-viewer 1
system:service-account-issuer-discovery 1
system:volume-scheduler 3
view 0";

    #[test]
    fn item_190_the_cluster_roles_are_those_of_the_table() {
        let mut wanted: Vec<(String, usize)> = TABLE
            .lines()
            .filter_map(|line| line.trim().rsplit_once(' '))
            .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
            .collect();
        let mut held: Vec<(String, usize)> = cluster_roles()
            .iter()
            .map(|role| {
                let name = role["metadata"]["name"].as_str().unwrap().to_owned();
                (name, role["rules"].as_array().map_or(0, Vec::len))
            })
            .filter(|(name, _)| !name.starts_with("davit:"))
            .collect();
        wanted.sort();
        held.sort();
        assert_eq!(held, wanted);
        // each controller's role is bound to the service account of its name
        for binding in cluster_role_bindings() {
            let role = binding["roleRef"]["name"].as_str().unwrap();
            if let Some(account) = role.strip_prefix(CONTROLLER) {
                assert_eq!(binding["subjects"][0]["name"], account);
                assert_eq!(binding["subjects"][0]["namespace"], "kube-system");
            }
        }
    }
}
