//! The cluster roles for people and components.

use davit_api::features::{GENERIC_WORKLOAD, WORKLOAD_CLAIMS, WORKLOAD_WITH_JOB};

/// Roles whose rules are gathered: name, the label gathered by, the label they carry themselves.
pub(super) const AGGREGATED: [(&str, &str); 3] =
    [("admin", ""), ("edit", "admin"), ("view", "edit")];

/// What roles have besides where a feature gate is on: the gate, the role, rules.
pub(super) const GATED_RULES: [(&str, &str, &[&str]); 4] = [
    (
        GENERIC_WORKLOAD,
        "system:aggregate-to-edit",
        &["write scheduling.k8s.io podgroups,workloads"],
    ),
    (
        GENERIC_WORKLOAD,
        "system:aggregate-to-view",
        &["read scheduling.k8s.io podgroups,podgroups/status,workloads"],
    ),
    (
        WORKLOAD_WITH_JOB,
        "system:controller:job-controller",
        &["read,create scheduling.k8s.io podgroups,workloads"],
    ),
    (
        WORKLOAD_CLAIMS,
        "system:controller:resource-claim-controller",
        &[
            "read scheduling.k8s.io podgroups",
            "patch,update scheduling.k8s.io podgroups/status",
        ],
    ),
];

/// Name, the role they are gathered into (or nothing), rules.
pub(super) const CLUSTER_ROLES: &[(&str, &str, &[&str])] = &[
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
            "get,list,update,watch coordination.k8s.io leases kube-scheduler",
            "read,create,delete,deletecollection,patch,update coordination.k8s.io leasecandidates",
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
    // of metrics-server, whose API is answered here until another server does
    (
        "system:aggregated-metrics-reader",
        "admin,edit,view",
        &["read metrics.k8s.io nodes,pods"],
    ),
    // davit's scheduler looks at what nodes publish of their NUMA nodes
    (
        "davit:scheduler",
        "",
        &["read topology.node.k8s.io noderesourcetopologies"],
    ),
    // davit's nodes do what kube-proxy and the DNS server do elsewhere
    (
        "davit:node-network",
        "",
        &[
            "list,watch - namespaces,services",
            "list,watch discovery.k8s.io endpointslices",
            "list,watch networking.k8s.io servicecidrs",
        ],
    ),
    // and what network plugins do: whom a policy lets through depends on pods of all nodes. Nodes have it by no group of
    // theirs, since who holds one node is not to see the pods of all others; the node inside `davit up` has
    (
        "davit:network-policy",
        "",
        &[
            "list,watch - pods",
            "list,watch networking.k8s.io networkpolicies",
        ],
    ),
    // what only davit's controllers do, and all of them where they have no service accounts of their own, goes by one identity
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
pub(super) const NODE: &[&str] = &[
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
