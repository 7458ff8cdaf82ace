//! Which fields a configuration can have, for strict reading.

use davit_api::config_shape::ConfigShape::{self, Any, List, Map, Object};

/// The file itself.
pub(super) const CONFIGURATION: ConfigShape = Object(&[
    ("apiVersion", Any),
    ("kind", Any),
    ("parallelism", Any),
    (
        "leaderElection",
        Object(&[
            ("leaderElect", Any),
            ("leaseDuration", Any),
            ("renewDeadline", Any),
            ("retryPeriod", Any),
            ("resourceLock", Any),
            ("resourceName", Any),
            ("resourceNamespace", Any),
        ]),
    ),
    (
        "clientConnection",
        Object(&[
            ("kubeconfig", Any),
            ("acceptContentTypes", Any),
            ("contentType", Any),
            ("qps", Any),
            ("burst", Any),
        ]),
    ),
    ("enableProfiling", Any),
    ("enableContentionProfiling", Any),
    ("percentageOfNodesToScore", Any),
    ("podInitialBackoffSeconds", Any),
    ("podMaxBackoffSeconds", Any),
    ("profiles", List(&PROFILE)),
    ("extenders", List(&EXTENDER)),
    ("delayCacheUntilActive", Any),
]);

const PROFILE: ConfigShape = Object(&[
    ("schedulerName", Any),
    ("percentageOfNodesToScore", Any),
    (
        "plugins",
        Object(&[
            ("preEnqueue", PLUGIN_SET),
            ("queueSort", PLUGIN_SET),
            ("preFilter", PLUGIN_SET),
            ("filter", PLUGIN_SET),
            ("postFilter", PLUGIN_SET),
            ("preScore", PLUGIN_SET),
            ("score", PLUGIN_SET),
            ("reserve", PLUGIN_SET),
            ("permit", PLUGIN_SET),
            ("preBind", PLUGIN_SET),
            ("bind", PLUGIN_SET),
            ("postBind", PLUGIN_SET),
            ("multiPoint", PLUGIN_SET),
            ("placementGenerate", PLUGIN_SET),
            ("placementScore", PLUGIN_SET),
        ]),
    ),
    (
        "pluginConfig",
        List(&Object(&[("name", Any), ("args", Any)])),
    ),
]);

const PLUGIN_SET: ConfigShape = Object(&[("enabled", List(&PLUGIN)), ("disabled", List(&PLUGIN))]);
const PLUGIN: ConfigShape = Object(&[("name", Any), ("weight", Any)]);

const EXTENDER: ConfigShape = Object(&[
    ("urlPrefix", Any),
    ("filterVerb", Any),
    ("preemptVerb", Any),
    ("prioritizeVerb", Any),
    ("weight", Any),
    ("bindVerb", Any),
    ("enableHTTPS", Any),
    (
        "tlsConfig",
        Object(&[
            ("insecure", Any),
            ("serverName", Any),
            ("certFile", Any),
            ("keyFile", Any),
            ("caFile", Any),
            ("certData", Any),
            ("keyData", Any),
            ("caData", Any),
        ]),
    ),
    ("httpTimeout", Any),
    ("nodeCacheCapable", Any),
    (
        "managedResources",
        List(&Object(&[("name", Any), ("ignoredByScheduler", Any)])),
    ),
    ("ignorable", Any),
]);

const RESOURCES: ConfigShape = List(&Object(&[("name", Any), ("weight", Any)]));
const SHAPE_POINTS: ConfigShape = List(&Object(&[("utilization", Any), ("score", Any)]));
const REQUIREMENTS: ConfigShape = List(&Object(&[
    ("key", Any),
    ("operator", Any),
    ("values", List(&Any)),
]));
const NODE_TERM: ConfigShape = Object(&[
    ("matchExpressions", REQUIREMENTS),
    ("matchFields", REQUIREMENTS),
]);

/// The fields of a plugin's arguments.
pub(super) fn args_shape(plugin: &str) -> ConfigShape {
    match plugin {
        "DefaultPreemption" => Object(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("minCandidateNodesPercentage", Any),
            ("minCandidateNodesAbsolute", Any),
        ]),
        "InterPodAffinity" => Object(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("hardPodAffinityWeight", Any),
            ("ignorePreferredTermsOfExistingPods", Any),
        ]),
        "NodeAffinity" => Object(&[
            ("apiVersion", Any),
            ("kind", Any),
            (
                "addedAffinity",
                Object(&[
                    (
                        "requiredDuringSchedulingIgnoredDuringExecution",
                        Object(&[("nodeSelectorTerms", List(&NODE_TERM))]),
                    ),
                    (
                        "preferredDuringSchedulingIgnoredDuringExecution",
                        List(&Object(&[("weight", Any), ("preference", NODE_TERM)])),
                    ),
                ]),
            ),
        ]),
        "NodeResourcesBalancedAllocation" => {
            Object(&[("apiVersion", Any), ("kind", Any), ("resources", RESOURCES)])
        }
        "NodeResourcesFit" => Object(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("ignoredResources", Any),
            ("ignoredResourceGroups", Any),
            (
                "scoringStrategy",
                Object(&[
                    ("type", Any),
                    ("resources", RESOURCES),
                    (
                        "requestedToCapacityRatio",
                        Object(&[("shape", SHAPE_POINTS)]),
                    ),
                ]),
            ),
        ]),
        "PodTopologySpread" => Object(&[
            ("apiVersion", Any),
            ("kind", Any),
            (
                "defaultConstraints",
                List(&Object(&[
                    ("maxSkew", Any),
                    ("topologyKey", Any),
                    ("whenUnsatisfiable", Any),
                    (
                        "labelSelector",
                        Object(&[
                            ("matchLabels", Map(&Any)),
                            ("matchExpressions", REQUIREMENTS),
                        ]),
                    ),
                    ("minDomains", Any),
                    ("nodeAffinityPolicy", Any),
                    ("nodeTaintsPolicy", Any),
                    ("matchLabelKeys", Any),
                ])),
            ),
            ("defaultingType", Any),
        ]),
        "VolumeBinding" => Object(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("bindTimeoutSeconds", Any),
            ("shape", SHAPE_POINTS),
        ]),
        "DynamicResources" => Object(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("filterTimeout", Any),
            ("bindingTimeout", Any),
        ]),
        _ => Any,
    }
}
