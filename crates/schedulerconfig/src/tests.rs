//! What is read, what it becomes, and what is said of faults.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const HEADER: &str =
    "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

fn parse(rest: &str) -> Result<KubeSchedulerConfiguration, ConfigurationError> {
    KubeSchedulerConfiguration::parse(&format!("{HEADER}{rest}"))
}

/// What is said of a configuration that is read but not taken.
fn faults(rest: &str) -> Vec<String> {
    match parse(rest).unwrap().validate() {
        Ok(()) => Vec::new(),
        Err(ConfigurationError::Invalid(list)) => list.iter().map(ToString::to_string).collect(),
        Err(other) => panic!("{other}"),
    }
}

/// The same for the arguments of a plugin.
fn args_faults(plugin: &str, args: &str) -> Vec<String> {
    let prefix = "profiles[0].pluginConfig[0].args.";
    let list = faults(&format!(
        "profiles: [{{pluginConfig: [{{name: {plugin}, args: {args}}}]}}]"
    ));
    list.iter()
        .map(|f| {
            f.strip_prefix(prefix)
                .unwrap_or_else(|| panic!("{f}"))
                .to_owned()
        })
        .collect()
}

#[test]
fn what_is_left_open_has_the_defaults_of_kube_scheduler() {
    let written: Value = serde_json::to_value(parse("").unwrap()).unwrap();
    let plugin = |name: &str, weight: i32| json!({"name": name, "weight": weight});
    let args = |kind: &str, mut fields: Value| {
        fields["apiVersion"] = json!(API_VERSION);
        fields["kind"] = json!(format!("{kind}Args"));
        json!({"name": kind, "args": fields})
    };
    let both = json!([{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]);
    let expected = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "parallelism": 16,
        "leaderElection": {
            "leaderElect": true, "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s",
            "resourceLock": "leases", "resourceName": "kube-scheduler", "resourceNamespace": "kube-system",
        },
        "clientConnection": {
            "kubeconfig": "", "acceptContentTypes": "", "contentType": "application/vnd.kubernetes.protobuf",
            "qps": 50.0, "burst": 100,
        },
        "enableProfiling": true,
        "enableContentionProfiling": true,
        "percentageOfNodesToScore": 0,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 10,
        "profiles": [{
            "schedulerName": "default-scheduler",
            "plugins": {
                "preEnqueue": {}, "queueSort": {}, "preFilter": {}, "filter": {}, "postFilter": {}, "preScore": {},
                "score": {}, "reserve": {}, "permit": {}, "preBind": {}, "bind": {}, "postBind": {},
                "placementGenerate": {}, "placementScore": {},
                "multiPoint": {"enabled": DEFAULT_PLUGINS.map(|(name, weight)| plugin(name, weight))},
            },
            "pluginConfig": [
                args("DefaultPreemption", json!({"minCandidateNodesPercentage": 10, "minCandidateNodesAbsolute": 100})),
                args("DynamicResources", json!({"filterTimeout": "10s", "bindingTimeout": "10m0s"})),
                args("InterPodAffinity",
                    json!({"hardPodAffinityWeight": 1, "ignorePreferredTermsOfExistingPods": false})),
                args("NodeAffinity", json!({})),
                args("NodeResourcesBalancedAllocation", json!({"resources": both})),
                args("NodeResourcesFit", json!({"scoringStrategy": {"type": "LeastAllocated", "resources": both}})),
                args("PodTopologySpread", json!({"defaultingType": "System"})),
                args("VolumeBinding", json!({"bindTimeoutSeconds": 600})),
            ],
        }],
    });
    assert_eq!(written, expected);
    assert!(faults("").is_empty());
}

#[test]
fn what_is_written_can_be_read() {
    let first = parse(
        "profiles:\n- schedulerName: a\n  plugins: {score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality, weight: 7}]}}\n\
         - schedulerName: b\n  percentageOfNodesToScore: 30\nextenders: [{urlPrefix: 'http://x', filterVerb: f, httpTimeout: 1.5s}]\n",
    )
    .unwrap();
    let again = KubeSchedulerConfiguration::parse(&first.to_yaml().unwrap()).unwrap();
    assert_eq!(again, first);
}

#[test]
fn fields_are_read_strictly() {
    for (rest, expected) in [
        (
            "unknown: 1\nprofiles: [{schedulername: x}]\n",
            "strict decoding error: unknown field \"profiles[0].schedulername\", unknown field \"unknown\"",
        ),
        (
            "parallelism: 1\nparallelism: 2\n",
            "strict decoding error: yaml: unmarshal errors:\n  line 4: key \"parallelism\" already set in map",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeAffinity}, {name: InterPodAffinity, args: {weight: 1}}]}]\n",
            "strict decoding error: decoding .profiles[0].pluginConfig[1]: strict decoding error: decoding args for plugin \
             InterPodAffinity: strict decoding error: unknown field \"weight\"",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeAffinity, args: {kind: InterPodAffinityArgs}}]}]\n",
            "decoding .profiles[0].pluginConfig[0]: args for plugin NodeAffinity were not of type \
             NodeAffinityArgs.kubescheduler.config.k8s.io, got InterPodAffinityArgs.kubescheduler.config.k8s.io",
        ),
    ] {
        assert_eq!(parse(rest).unwrap_err().to_string(), expected);
    }
    // Arguments of plugins of others are theirs.
    let config =
        parse("profiles: [{pluginConfig: [{name: Mine, args: {a: null, b: [1]}}]}]").unwrap();
    let args = config.profiles[0].args("Mine");
    assert_eq!(args, Some(&PluginArgs::Other(json!({"a": null, "b": [1]}))));
}

#[test]
fn other_versions_and_kinds_are_refused() {
    for (text, expected) in [
        (
            "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration",
            "no kind \"KubeSchedulerConfiguration\" is registered for version \"kubescheduler.config.k8s.io/v1beta3\"",
        ),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: NodeAffinityArgs",
            "couldn't decode as KubeSchedulerConfiguration, got kubescheduler.config.k8s.io/v1, Kind=NodeAffinityArgs: ",
        ),
        (
            "kind: KubeSchedulerConfiguration",
            "Object 'apiVersion' is missing in the scheduler configuration",
        ),
        (
            "",
            "Object 'Kind' is missing in the scheduler configuration",
        ),
    ] {
        let error = KubeSchedulerConfiguration::parse(text).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    assert!(parse("parallelism: many").is_err());
}

#[test]
fn every_fault_is_named_with_its_field() {
    for (rest, expected) in [
        (
            "parallelism: 0",
            "parallelism: Invalid value: 0: should be an integer value greater than zero",
        ),
        (
            "clientConnection: {burst: -1}",
            "clientConnection.burst: Invalid value: -1: must be non-negative",
        ),
        (
            "percentageOfNodesToScore: 101",
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
        ),
        (
            "podInitialBackoffSeconds: 0",
            "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "podMaxBackoffSeconds: 0",
            "podMaxBackoffSeconds: Invalid value: 0: must be greater than or equal to PodInitialBackoffSeconds",
        ),
        (
            "leaderElection: {retryPeriod: -1s}",
            "leaderElection.retryPeriod: Invalid value: \"-1s\": must be greater than zero",
        ),
        (
            "leaderElection: {leaseDuration: 10s}",
            "leaderElection.leaseDuration: Invalid value: \"10s\": must be greater than `RenewDeadline`",
        ),
        (
            "leaderElection: {resourceLock: endpoints}",
            "leaderElection.resourceLock: Invalid value: \"endpoints\": resourceLock value must be \"leases\"",
        ),
        (
            "leaderElection: {leaderElect: false, leaseDuration: -10s}",
            "",
        ),
        (
            "profiles: [{percentageOfNodesToScore: -1}]",
            "profiles[0].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]",
        ),
        (
            "profiles: [{schedulerName: a}, {schedulerName: a}]",
            "profiles[1].schedulerName: Duplicate value: \"profiles[0].schedulerName\"",
        ),
        (
            "profiles: [{pluginConfig: [{name: Mine}, {name: Mine}]}]",
            "profiles[0].pluginConfig[1]: Duplicate value: \"Mine\"",
        ),
        (
            "profiles: [{plugins: {filter: {enabled: [{name: EBSLimits}]}}}]",
            "profiles[0].plugins.filter.enabled[0]: Invalid value: \"EBSLimits\": was invalid in version \"v1\" \
             (KubeSchedulerConfiguration is version \"kubescheduler.config.k8s.io/v1\")",
        ),
        (
            "profiles: [{plugins: {queueSort: {enabled: [{name: A}, {name: B}]}}}]",
            "profiles[0].plugins.queueSort.Enabled: Invalid value: 2: only one queue sort plugin can be enabled",
        ),
        (
            "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]",
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
        ),
        (
            "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]",
            "extenders: Invalid value: \"found 2 extenders implementing bind\": only one extender can implement bind",
        ),
        (
            "extenders: [{urlPrefix: 'http://x', managedResources: [{name: cpu}]}]",
            "extenders[0].managedResources[0].name: Invalid value: \"cpu\": is an invalid extended resource name",
        ),
        (
            "extenders: [{urlPrefix: 'http://x', managedResources: [{name: a.b/c}]}, \
             {urlPrefix: 'http://y', managedResources: [{name: a.b/c}]}]",
            "extenders[1].managedResources[0].name: Invalid value: \"a.b/c\": duplicate extender managed resource name",
        ),
        (
            "extenders: [{urlPrefix: 'https://x'}]",
            "extenders[0].tlsConfig: Required value: an authority (caFile, caData) or insecure must be given for https",
        ),
        (
            "extenders: [{urlPrefix: 'https://x', tlsConfig: {insecure: true}}]",
            "",
        ),
        (
            "extenders: [{urlPrefix: x}]",
            "extenders[0].urlPrefix: Invalid value: \"x\": must be a URL with scheme http or https",
        ),
    ] {
        assert_eq!(faults(rest).join("\n"), expected, "{rest}");
    }
    let nameless = faults("profiles: [{}, {}]");
    assert_eq!(
        nameless,
        [
            "profiles[0].schedulerName: Required value",
            "profiles[1].schedulerName: Required value",
            "profiles[1].schedulerName: Duplicate value: \"profiles[0].schedulerName\"",
        ]
    );
    let error = parse("parallelism: 0\npodInitialBackoffSeconds: -1").unwrap();
    assert_eq!(
        error.validate().unwrap_err().to_string(),
        "[parallelism: Invalid value: 0: should be an integer value greater than zero, \
         podInitialBackoffSeconds: Invalid value: -1: must be greater than 0]"
    );
}

#[test]
fn profiles_share_the_order_of_the_queue() {
    let text = |second: &str| {
        format!(
            "profiles: [{{schedulerName: a, plugins: {{queueSort: {{enabled: [{{name: Q}}]}}}}, \
             pluginConfig: [{{name: Q, args: {{x: 1}}}}]}}, {{schedulerName: b, {second}}}]"
        )
    };
    let same = "plugins: {queueSort: {enabled: [{name: Q}]}}";
    assert!(
        faults(&text(&format!(
            "{same}, pluginConfig: [{{name: Q, args: {{x: 1}}}}]"
        )))
        .is_empty()
    );
    let other = faults(&text("plugins: {queueSort: {enabled: [{name: R}]}}"));
    assert_eq!(other.len(), 1);
    assert!(other[0].starts_with("profiles[1].plugins.queueSort: Invalid value: "));
    assert!(other[0].ends_with(": must be the same for all profiles"));
    let args = faults(&text(&format!(
        "{same}, pluginConfig: [{{name: Q, args: {{x: 2}}}}]"
    )));
    assert_eq!(
        args,
        [
            "profiles[1].pluginConfig.args: Invalid value: {\"x\":2}: queueSort must be the same for all profiles"
        ]
    );
}

#[test]
fn arguments_are_judged() {
    let shape = |points: &str| {
        format!(
            "{{scoringStrategy: {{type: RequestedToCapacityRatio, requestedToCapacityRatio: {{shape: [{points}]}}}}}}"
        )
    };
    let term = |operator: &str, values: &str| {
        format!(
            "{{addedAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: \
             [{{matchExpressions: [{{key: a, operator: {operator}, values: {values}}}]}}]}}}}}}"
        )
    };
    let expression = "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]";
    let constraint =
        |fields: &str| format!("{{defaultingType: List, defaultConstraints: [{{{fields}}}]}}");
    for (plugin, args, expected) in [
        (
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 101, minCandidateNodesAbsolute: -1}".to_owned(),
            "minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]\n\
             minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)"
                .to_owned(),
        ),
        (
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}".to_owned(),
            "minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute\n\
             minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage"
                .to_owned(),
        ),
        (
            "InterPodAffinity",
            "{hardPodAffinityWeight: 101}".to_owned(),
            "hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]".to_owned(),
        ),
        (
            "NodeResourcesBalancedAllocation",
            "{resources: [{name: a, weight: 2}, {name: a}]}".to_owned(),
            "resources[0].weight: Invalid value: 2: must be 1\nresources[1].name: Duplicate value: \"a\"".to_owned(),
        ),
        (
            "NodeResourcesFit",
            "{ignoredResourceGroups: [a/b], scoringStrategy: {type: MostAllocated, resources: [{name: a, weight: 101}]}}"
                .to_owned(),
            "ignoredResourceGroups[0]: Invalid value: \"a/b\": resource group name can't contain '/'\n\
             scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of a not in valid range (0, 100]"
                .to_owned(),
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: RequestedToCapacityRatio}}".to_owned(),
            "scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is \
             RequestedToCapacityRatio"
                .to_owned(),
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: LeastAllocated, requestedToCapacityRatio: {shape: []}}}".to_owned(),
            "scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not RequestedToCapacityRatio"
                .to_owned(),
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: Best}}".to_owned(),
            "scoringStrategy.type: Unsupported value: \"Best\": supported values: \"LeastAllocated\", \
             \"MostAllocated\", \"RequestedToCapacityRatio\""
                .to_owned(),
        ),
        (
            "NodeResourcesFit",
            shape(""),
            "scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be specified"
                .to_owned(),
        ),
        (
            "NodeResourcesFit",
            shape("{utilization: 50, score: 11}, {utilization: 50, score: 1}"),
            "scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 50: values must be sorted in \
             increasing order\n\
             scoringStrategy.requestedToCapacityRatio.shape[0].score: Invalid value: 11: not in valid range [0, 10]"
                .to_owned(),
        ),
        (
            "PodTopologySpread",
            "{defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway}]}".to_owned(),
            "defaultingType: Invalid value: \"System\": when .defaultConstraints are not empty".to_owned(),
        ),
        (
            "PodTopologySpread",
            constraint("maxSkew: 0, topologyKey: '', whenUnsatisfiable: Never, labelSelector: {}"),
            "defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)\n\
             defaultConstraints[0].topologyKey: Required value: can not be empty\n\
             defaultConstraints[0].whenUnsatisfiable: Unsupported value: \"Never\": supported values: \
             \"DoNotSchedule\", \"ScheduleAnyway\"\n\
             defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod"
                .to_owned(),
        ),
        (
            "PodTopologySpread",
            constraint(
                "maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway}, \
                 {maxSkew: 2, topologyKey: z, whenUnsatisfiable: ScheduleAnyway",
            ),
            "defaultConstraints[1]: Duplicate value: \"{z, ScheduleAnyway}\"".to_owned(),
        ),
        (
            "VolumeBinding",
            "{bindTimeoutSeconds: -1, shape: [{utilization: 0}]}".to_owned(),
            "bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value\n\
             shape: Invalid value: [{\"score\":0,\"utilization\":0}]: unexpected field `shape`, remove it or turn on the \
             feature gate StorageCapacityScoring"
                .to_owned(),
        ),
        (
            "DynamicResources",
            "{filterTimeout: -1s, bindingTimeout: 999ms}".to_owned(),
            "filterTimeout: Invalid value: \"-1s\": must be zero or positive\n\
             bindingTimeout: Invalid value: \"999ms\": must be at least 1 second"
                .to_owned(),
        ),
        (
            "NodeAffinity",
            term("In", "[]"),
            format!("{expression}.values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"),
        ),
        (
            "NodeAffinity",
            term("Near", "[]"),
            format!(
                "{expression}.operator: Unsupported value: \"Near\": supported values: \"In\", \"NotIn\", \"Exists\", \
                 \"DoesNotExist\", \"Gt\", \"Lt\""
            ),
        ),
        ("NodeAffinity", term("In", "[b]"), String::new()),
        ("NodeResourcesFit", shape("{utilization: 0}, {utilization: 100, score: 10}"), String::new()),
        ("DynamicResources", "{filterTimeout: 0s}".to_owned(), String::new()),
    ] {
        assert_eq!(args_faults(plugin, &args).join("\n"), expected, "{plugin} {args}");
    }
}

#[test]
fn what_has_no_effect_is_said() {
    assert_eq!(parse("").unwrap().without_effect(), Vec::<String>::new());
    let said = parse("parallelism: 4\nclientConnection: {contentType: application/cbor}").unwrap();
    assert_eq!(
        said.without_effect(),
        [
            "parallelism: nodes are looked at one after the other; the setting has no effect",
            "clientConnection.contentType: requests are written as JSON; the setting has no effect",
        ]
    );
}

/// Names of plugins at points, weights, and which have the point.
fn a_set() -> impl Strategy<Value = PluginSet> {
    let enabled = prop::collection::vec((0..6_usize, 0..4), 0..5);
    let disabled = prop::collection::vec(0..8_usize, 0..3);
    (enabled, disabled).prop_map(|(enabled, disabled)| {
        let enabled: Vec<Value> = enabled
            .iter()
            .map(|(n, weight)| json!({"name": format!("p{n}"), "weight": weight}))
            .collect();
        let name = |n: &usize| {
            if *n == 7 {
                "*".to_owned()
            } else {
                format!("p{n}")
            }
        };
        let disabled: Vec<Value> = disabled.iter().map(|n| json!({"name": name(n)})).collect();
        serde_json::from_value(json!({"enabled": enabled, "disabled": disabled})).unwrap()
    })
}

proptest! {
    /// The rules of merging, asked of every plugin by itself.
    #[test]
    fn merging_keeps_its_rules(custom in a_set()) {
        let defaults: PluginSet = serde_json::from_value(
            json!({"enabled": [{"name": "p0", "weight": 9}, {"name": "p1"}, {"name": "p2"}]})).unwrap();
        let merged = defaults.merged(&custom);
        let gone = |name: &str| custom.disables(name);
        let kept: Vec<&str> = defaults.enabled.iter().map(|p| p.name.as_str()).filter(|n| !gone(n)).collect();
        let order: Vec<&str> = merged.enabled.iter().map(|p| p.name.as_str()).collect();
        prop_assert_eq!(&order[..kept.len()], &kept[..]);
        for (plugin, name) in merged.enabled.iter().zip(&kept) {
            let last = custom.enabled.iter().rfind(|p| p.name == *name);
            let default = defaults.enabled.iter().find(|p| p.name == *name).unwrap();
            prop_assert_eq!(plugin, last.unwrap_or(default));
        }
        // Each entry of the user's is there once, in its order.
        let replacing = kept.iter().filter(|n| custom.enables(n)).count();
        prop_assert_eq!(order.len(), kept.len() + custom.enabled.len() - replacing);
        prop_assert_eq!(&merged.disabled, &custom.disabled);
    }

    /// The order of calls, said in another way: by a key for each plugin.
    #[test]
    fn expanding_keeps_its_order(general in a_set(), own in a_set(), having in prop::collection::vec(any::<bool>(), 6)) {
        let sets = PluginSets { multi_point: general.clone(), score: own.clone(), ..PluginSets::default() };
        let has = |name: &str| name[1..].parse::<usize>().ok().map(|n| having[n]);
        let result = expand(&sets, ExtensionPoint::Score, has);
        let place = |set: &PluginSet, name: &str| set.enabled.iter().position(|p| p.name == name);
        let repeated = |set: &PluginSet, name: &str| set.enabled.iter().filter(|p| p.name == name).count() > 1;
        let in_general = |name: &str| !own.disables(name) && place(&general, name).is_some();
        let bad = own.enabled.iter().any(|p| has(&p.name) != Some(true) || repeated(&own, &p.name))
            || !own.disables("*") && general.enabled.iter().any(|p| {
                has(&p.name) == Some(true) && !own.disables(&p.name) && !own.enables(&p.name)
                    && repeated(&general, &p.name)
            });
        prop_assert_eq!(result.is_err(), bad);
        if let Ok(order) = result {
            let mut names: Vec<String> = (0..6).map(|n| format!("p{n}")).collect();
            names.retain(|n| has(n) == Some(true) && (own.enables(n) || in_general(n)));
            names.sort_by_key(|n| match (place(&own, n), in_general(n)) {
                (Some(at), true) => (0, at),
                (None, _) => (1, place(&general, n).unwrap()),
                (Some(at), false) => (2, at),
            });
            prop_assert_eq!(order, names);
        }
    }
}
