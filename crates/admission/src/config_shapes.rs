//! Which fields an `AdmissionConfiguration` has, and those of the plugins that take one.

use davit_api::config_shape::ConfigShape::{self, Any, List, Object, Scalar};

/// The file itself.
pub(super) const FILE: ConfigShape = Object(&[
    VERSION,
    KIND,
    (
        "plugins",
        List(&Object(&[
            ("name", Scalar),
            ("path", Scalar),
            ("configuration", Any),
        ])),
    ),
]);

/// By plugin.
pub(super) const PLUGINS: [(&str, ConfigShape); 8] = [
    ("PodSecurity", POD_SECURITY),
    ("ImagePolicyWebhook", IMAGE_POLICY),
    ("EventRateLimit", EVENT_RATE_LIMIT),
    ("ResourceQuota", RESOURCE_QUOTA),
    (
        "PodNodeSelector",
        Object(&[VERSION, KIND, ("podNodeSelectorPluginConfig", Any)]),
    ),
    (
        "PodTolerationRestriction",
        Object(&[
            VERSION,
            KIND,
            ("default", List(&Any)),
            ("whitelist", List(&Any)),
        ]),
    ),
    ("MutatingAdmissionWebhook", WEBHOOKS),
    ("ValidatingAdmissionWebhook", WEBHOOKS),
];

const VERSION: (&str, ConfigShape) = ("apiVersion", Scalar);
const KIND: (&str, ConfigShape) = ("kind", Scalar);
const WEBHOOKS: ConfigShape = Object(&[VERSION, KIND, ("kubeConfigFile", Scalar)]);
const POD_SECURITY: ConfigShape = Object(&[
    VERSION,
    KIND,
    (
        "defaults",
        Object(&[
            ("enforce", Scalar),
            ("enforce-version", Scalar),
            ("audit", Scalar),
            ("audit-version", Scalar),
            ("warn", Scalar),
            ("warn-version", Scalar),
        ]),
    ),
    (
        "exemptions",
        Object(&[
            ("usernames", List(&Scalar)),
            ("namespaces", List(&Scalar)),
            ("runtimeClasses", List(&Scalar)),
        ]),
    ),
]);
const IMAGE_POLICY: ConfigShape = Object(&[
    VERSION,
    KIND,
    (
        "imagePolicy",
        Object(&[
            ("kubeConfigFile", Scalar),
            ("allowTTL", Scalar),
            ("denyTTL", Scalar),
            ("retryBackoff", Scalar),
            ("defaultAllow", Scalar),
        ]),
    ),
]);
const EVENT_RATE_LIMIT: ConfigShape = Object(&[
    VERSION,
    KIND,
    (
        "limits",
        List(&Object(&[
            ("type", Scalar),
            ("qps", Scalar),
            ("burst", Scalar),
            ("cacheSize", Scalar),
        ])),
    ),
]);
const RESOURCE_QUOTA: ConfigShape = Object(&[
    VERSION,
    KIND,
    (
        "limitedResources",
        List(&Object(&[
            ("apiGroup", Scalar),
            ("resource", Scalar),
            ("matchContains", List(&Scalar)),
            (
                "matchScopes",
                List(&Object(&[
                    ("scopeName", Scalar),
                    ("operator", Scalar),
                    ("values", List(&Scalar)),
                ])),
            ),
        ])),
    ),
]);
