//! Which plugins take part at which point: the default set, merging it with the user's, and the order of calls.

use davit_api::features::{Features, GANG_SCHEDULING, TOPOLOGY_AWARE};
use serde::{Deserialize, Serialize};

/// A point of the framework at which plugins can be enabled and disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are those of the points")]
pub enum ExtensionPoint {
    PreFilter,
    Filter,
    PostFilter,
    Reserve,
    PreScore,
    Score,
    PreBind,
    Bind,
    PostBind,
    Permit,
    PreEnqueue,
    QueueSort,
    PlacementGenerate,
    PlacementScore,
}

impl ExtensionPoint {
    /// All of them, in the order in which a profile is put together.
    pub const ALL: [Self; 14] = [
        Self::PreFilter,
        Self::Filter,
        Self::PostFilter,
        Self::Reserve,
        Self::PreScore,
        Self::Score,
        Self::PreBind,
        Self::Bind,
        Self::PostBind,
        Self::Permit,
        Self::PreEnqueue,
        Self::QueueSort,
        Self::PlacementGenerate,
        Self::PlacementScore,
    ];

    /// The name of the Go interface, which error texts show.
    pub fn interface(self) -> String {
        format!("{self:?}Plugin")
    }
}

/// A plugin that is enabled.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EnabledPlugin {
    /// The plugin.
    pub name: String,
    /// What its scores are multiplied by; 0 is 1.
    pub weight: i32,
}

/// A plugin that is disabled, or `*` for all defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DisabledPlugin {
    /// The plugin.
    pub name: String,
}

/// What is enabled and disabled at a point.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PluginSet {
    /// In the order of calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enabled: Vec<EnabledPlugin>,
    /// Of the defaults and of those enabled at all points.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<DisabledPlugin>,
}

impl PluginSet {
    /// Whether a plugin is enabled here.
    pub fn enables(&self, plugin: &str) -> bool {
        self.enabled.iter().any(|p| p.name == plugin)
    }

    /// Whether a plugin is disabled here, by name or with all others.
    pub fn disables(&self, plugin: &str) -> bool {
        self.disabled
            .iter()
            .any(|p| p.name == plugin || p.name == "*")
    }

    /// What remains of these defaults beside the user's set: those in `disabled` go, those that the user enables as well
    /// are replaced in place, other plugins of the user follow.
    #[must_use]
    pub fn merged(&self, custom: &Self) -> Self {
        let mut disabled = custom.disabled.clone();
        disabled.extend(self.disabled.iter().cloned());
        let gone = Self {
            enabled: Vec::new(),
            disabled,
        };
        let mut replacing = vec![false; custom.enabled.len()];
        let mut enabled = Vec::new();
        for default in self.enabled.iter().filter(|p| !gone.disables(&p.name)) {
            // Of repetitions the last counts; the others stay, and are refused when the profile is built.
            let own = custom.enabled.iter().rposition(|p| p.name == default.name);
            if let Some(at) = own {
                replacing[at] = true;
            }
            enabled.push(own.map_or(default, |at| &custom.enabled[at]).clone());
        }
        let rest = custom.enabled.iter().zip(&replacing);
        enabled.extend(
            rest.filter(|(_, replaces)| !**replaces)
                .map(|(p, _)| p.clone()),
        );
        Self {
            enabled,
            disabled: gone.disabled,
        }
    }
}

/// What is enabled and disabled at each point.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(
    missing_docs,
    reason = "the names of the fields are those of the points"
)]
pub struct PluginSets {
    pub pre_enqueue: PluginSet,
    pub queue_sort: PluginSet,
    pub pre_filter: PluginSet,
    pub filter: PluginSet,
    pub post_filter: PluginSet,
    pub pre_score: PluginSet,
    pub score: PluginSet,
    pub reserve: PluginSet,
    pub permit: PluginSet,
    pub pre_bind: PluginSet,
    pub bind: PluginSet,
    pub post_bind: PluginSet,
    /// At all points that a plugin has.
    pub multi_point: PluginSet,
    pub placement_generate: PluginSet,
    pub placement_score: PluginSet,
}

/// The default plugins with the weights of their scores, in the order of calls.
/// <https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins>
pub const DEFAULT_PLUGINS: [(&str, i32); 20] = [
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeUnschedulable", 0),
    ("NodeName", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("NodeVolumeLimits", 0),
    ("VolumeBinding", 0),
    ("VolumeZone", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    // Before preemption: giving back an idle claim is better than removing a pod.
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
    ("NodeDeclaredFeatures", 0),
];

/// Plugins that are among the default ones, behind all others, where a feature gate is on.
const GATED_PLUGINS: [(&str, i32, &str); 3] = [
    ("GangScheduling", 0, GANG_SCHEDULING),
    ("TopologyPlacementGenerator", 0, TOPOLOGY_AWARE),
    ("PodGroupPodsCount", 1, TOPOLOGY_AWARE),
];

impl PluginSets {
    /// The default plugins, at all their points, with those of the gates that are on.
    pub fn defaults(features: &Features) -> Self {
        let gated = GATED_PLUGINS.iter().filter(|(.., g)| features.is_on(g));
        let gated = gated.map(|(name, weight, _)| (*name, *weight));
        let enabled = DEFAULT_PLUGINS.into_iter().chain(gated);
        let enabled = enabled.map(|(name, weight)| EnabledPlugin {
            name: name.to_owned(),
            weight,
        });
        Self {
            multi_point: PluginSet {
                enabled: enabled.collect(),
                disabled: Vec::new(),
            },
            ..Self::default()
        }
    }

    /// The set of a point.
    pub fn at(&self, point: ExtensionPoint) -> &PluginSet {
        match point {
            ExtensionPoint::PreFilter => &self.pre_filter,
            ExtensionPoint::Filter => &self.filter,
            ExtensionPoint::PostFilter => &self.post_filter,
            ExtensionPoint::Reserve => &self.reserve,
            ExtensionPoint::PreScore => &self.pre_score,
            ExtensionPoint::Score => &self.score,
            ExtensionPoint::PreBind => &self.pre_bind,
            ExtensionPoint::Bind => &self.bind,
            ExtensionPoint::PostBind => &self.post_bind,
            ExtensionPoint::Permit => &self.permit,
            ExtensionPoint::PreEnqueue => &self.pre_enqueue,
            ExtensionPoint::QueueSort => &self.queue_sort,
            ExtensionPoint::PlacementGenerate => &self.placement_generate,
            ExtensionPoint::PlacementScore => &self.placement_score,
        }
    }

    /// All sets with the names of their fields.
    pub fn named(&self) -> [(&'static str, &PluginSet); 15] {
        [
            ("preEnqueue", &self.pre_enqueue),
            ("queueSort", &self.queue_sort),
            ("preFilter", &self.pre_filter),
            ("filter", &self.filter),
            ("postFilter", &self.post_filter),
            ("preScore", &self.pre_score),
            ("score", &self.score),
            ("reserve", &self.reserve),
            ("permit", &self.permit),
            ("preBind", &self.pre_bind),
            ("bind", &self.bind),
            ("postBind", &self.post_bind),
            ("multiPoint", &self.multi_point),
            ("placementGenerate", &self.placement_generate),
            ("placementScore", &self.placement_score),
        ]
    }

    /// These defaults, point by point merged with the user's sets.
    #[must_use]
    pub fn merged(&self, custom: &Self) -> Self {
        Self {
            pre_enqueue: self.pre_enqueue.merged(&custom.pre_enqueue),
            queue_sort: self.queue_sort.merged(&custom.queue_sort),
            pre_filter: self.pre_filter.merged(&custom.pre_filter),
            filter: self.filter.merged(&custom.filter),
            post_filter: self.post_filter.merged(&custom.post_filter),
            pre_score: self.pre_score.merged(&custom.pre_score),
            score: self.score.merged(&custom.score),
            reserve: self.reserve.merged(&custom.reserve),
            permit: self.permit.merged(&custom.permit),
            pre_bind: self.pre_bind.merged(&custom.pre_bind),
            bind: self.bind.merged(&custom.bind),
            post_bind: self.post_bind.merged(&custom.post_bind),
            multi_point: self.multi_point.merged(&custom.multi_point),
            placement_generate: self.placement_generate.merged(&custom.placement_generate),
            placement_score: self.placement_score.merged(&custom.placement_score),
        }
    }

    /// Keeps at single points what `keep` says.
    pub fn retain_at_points(&mut self, keep: impl Fn(&EnabledPlugin) -> bool) {
        for set in [
            &mut self.pre_enqueue,
            &mut self.queue_sort,
            &mut self.pre_filter,
            &mut self.filter,
            &mut self.post_filter,
            &mut self.pre_score,
            &mut self.score,
            &mut self.reserve,
            &mut self.permit,
            &mut self.pre_bind,
            &mut self.bind,
            &mut self.post_bind,
            &mut self.placement_generate,
            &mut self.placement_score,
        ] {
            set.enabled.retain(&keep);
        }
    }

    /// The names of all plugins that are enabled anywhere, sorted, each once.
    pub fn enabled(&self) -> Vec<&str> {
        let sets = self.named();
        let all = sets.iter().flat_map(|(_, set)| &set.enabled);
        let names: std::collections::BTreeSet<&str> = all.map(|p| p.name.as_str()).collect();
        names.into_iter().collect()
    }

    /// What the scores of a plugin are multiplied by: as enabled at the point, else at all points.
    pub fn score_weight(&self, plugin: &str) -> i64 {
        let all = self.score.enabled.iter().chain(&self.multi_point.enabled);
        match all.into_iter().find(|p| p.name == plugin) {
            Some(found) if found.weight != 0 => i64::from(found.weight),
            _ => 1,
        }
    }
}

/// The plugins of a point in the order of calls. `takes_part` says of a plugin whether it has the point; `None`: nobody
/// knows the plugin.
///
/// First come those that the point enables and `multiPoint` as well, then the rest of `multiPoint`, then those that only
/// the point enables.
///
/// # Errors
/// The sentence of kube-scheduler about a plugin that is unknown, has not this point, or stands there twice.
pub fn expand(
    sets: &PluginSets,
    point: ExtensionPoint,
    takes_part: impl Fn(&str) -> Option<bool>,
) -> Result<Vec<&str>, String> {
    let (own, interface) = (sets.at(point), point.interface());
    let twice = |name: &str| format!("plugin {name:?} already registered as {interface:?}");
    let unknown = |name: &str| format!("{interface} {name:?} does not exist");
    let mut specific: Vec<&str> = Vec::new();
    for EnabledPlugin { name, .. } in &own.enabled {
        if !takes_part(name).ok_or_else(|| unknown(name))? {
            return Err(format!(
                "plugin {name:?} does not extend {interface} plugin"
            ));
        }
        if specific.contains(&name.as_str()) {
            return Err(twice(name));
        }
        specific.push(name);
    }
    if own.disables("*") {
        return Ok(specific);
    }
    let (mut overriding, mut general) = (Vec::new(), Vec::new());
    for EnabledPlugin { name, .. } in &sets.multi_point.enabled {
        let name = name.as_str();
        if !takes_part(name).ok_or_else(|| unknown(name))? || own.disables(name) {
            continue;
        }
        if specific.contains(&name) {
            overriding.push(name);
        } else if general.contains(&name) {
            return Err(twice(name));
        } else {
            general.push(name);
        }
    }
    let (mut order, rest): (Vec<&str>, Vec<&str>) = specific
        .into_iter()
        .partition(|name| overriding.contains(name));
    order.extend(general);
    order.extend(rest);
    Ok(order)
}
