//! Which fields a configuration can have, for strict reading.

/// What fields a value may have.
pub(super) enum Shape {
    /// Any: a scalar, or something that others judge.
    Any,
    /// A list of such.
    List(&'static Shape),
    /// An object with these fields.
    Fields(&'static [(&'static str, Shape)]),
    /// An object with any keys and such values.
    Map(&'static Shape),
}

use Shape::{Any, Fields, List};

pub(super) const CONFIGURATION: Shape = Fields(&[
    ("apiVersion", Any),
    ("kind", Any),
    ("parallelism", Any),
    (
        "leaderElection",
        Fields(&[
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
        Fields(&[
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

const PROFILE: Shape = Fields(&[
    ("schedulerName", Any),
    ("percentageOfNodesToScore", Any),
    (
        "plugins",
        Fields(&[
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
        List(&Fields(&[("name", Any), ("args", Any)])),
    ),
]);

const PLUGIN_SET: Shape = Fields(&[("enabled", List(&PLUGIN)), ("disabled", List(&PLUGIN))]);
const PLUGIN: Shape = Fields(&[("name", Any), ("weight", Any)]);

const EXTENDER: Shape = Fields(&[
    ("urlPrefix", Any),
    ("filterVerb", Any),
    ("preemptVerb", Any),
    ("prioritizeVerb", Any),
    ("weight", Any),
    ("bindVerb", Any),
    ("enableHTTPS", Any),
    (
        "tlsConfig",
        Fields(&[
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
        List(&Fields(&[("name", Any), ("ignoredByScheduler", Any)])),
    ),
    ("ignorable", Any),
]);

const RESOURCES: Shape = List(&Fields(&[("name", Any), ("weight", Any)]));
const SHAPE_POINTS: Shape = List(&Fields(&[("utilization", Any), ("score", Any)]));
const REQUIREMENTS: Shape = List(&Fields(&[
    ("key", Any),
    ("operator", Any),
    ("values", List(&Any)),
]));
const NODE_TERM: Shape = Fields(&[
    ("matchExpressions", REQUIREMENTS),
    ("matchFields", REQUIREMENTS),
]);

/// The fields of a plugin's arguments.
pub(super) fn args_shape(plugin: &str) -> Shape {
    match plugin {
        "DefaultPreemption" => Fields(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("minCandidateNodesPercentage", Any),
            ("minCandidateNodesAbsolute", Any),
        ]),
        "InterPodAffinity" => Fields(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("hardPodAffinityWeight", Any),
            ("ignorePreferredTermsOfExistingPods", Any),
        ]),
        "NodeAffinity" => Fields(&[
            ("apiVersion", Any),
            ("kind", Any),
            (
                "addedAffinity",
                Fields(&[
                    (
                        "requiredDuringSchedulingIgnoredDuringExecution",
                        Fields(&[("nodeSelectorTerms", List(&NODE_TERM))]),
                    ),
                    (
                        "preferredDuringSchedulingIgnoredDuringExecution",
                        List(&Fields(&[("weight", Any), ("preference", NODE_TERM)])),
                    ),
                ]),
            ),
        ]),
        "NodeResourcesBalancedAllocation" => {
            Fields(&[("apiVersion", Any), ("kind", Any), ("resources", RESOURCES)])
        }
        "NodeResourcesFit" => Fields(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("ignoredResources", Any),
            ("ignoredResourceGroups", Any),
            (
                "scoringStrategy",
                Fields(&[
                    ("type", Any),
                    ("resources", RESOURCES),
                    (
                        "requestedToCapacityRatio",
                        Fields(&[("shape", SHAPE_POINTS)]),
                    ),
                ]),
            ),
        ]),
        "PodTopologySpread" => Fields(&[
            ("apiVersion", Any),
            ("kind", Any),
            (
                "defaultConstraints",
                List(&Fields(&[
                    ("maxSkew", Any),
                    ("topologyKey", Any),
                    ("whenUnsatisfiable", Any),
                    (
                        "labelSelector",
                        Fields(&[
                            ("matchLabels", Shape::Map(&Any)),
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
        "VolumeBinding" => Fields(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("bindTimeoutSeconds", Any),
            ("shape", SHAPE_POINTS),
        ]),
        "DynamicResources" => Fields(&[
            ("apiVersion", Any),
            ("kind", Any),
            ("filterTimeout", Any),
            ("bindingTimeout", Any),
        ]),
        _ => Any,
    }
}
