//! A profile: the plugins that take part, by point, with the weights of the scores.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{
    AffectedPods, Bind, ClusterEvent, CycleState, EventObject, Filter, GroupPostFilter, Hint,
    Permit, PlacementGenerate, PlacementScore, Plugin, PostBind, PostFilter, PreBind, PreEnqueue,
    PreFilter, PreScore, QueueSort, Reserve, Score, Status,
};
use crate::cache::Snapshot;
use crate::config::ExtensionPoint;
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// The plugins of a profile by the point they take part in, each in the order of calls.
#[derive(Default, Clone)]
#[allow(
    missing_docs,
    reason = "the names of the fields are the names of the points"
)]
pub struct Points {
    pub pre_enqueue: Vec<Arc<dyn PreEnqueue>>,
    pub queue_sort: Option<Arc<dyn QueueSort>>,
    pub pre_filter: Vec<Arc<dyn PreFilter>>,
    pub filter: Vec<Arc<dyn Filter>>,
    pub post_filter: Vec<Arc<dyn PostFilter>>,
    pub pre_score: Vec<Arc<dyn PreScore>>,
    pub score: Vec<Arc<dyn Score>>,
    pub reserve: Vec<Arc<dyn Reserve>>,
    pub permit: Vec<Arc<dyn Permit>>,
    pub pre_bind: Vec<Arc<dyn PreBind>>,
    pub bind: Vec<Arc<dyn Bind>>,
    pub post_bind: Vec<Arc<dyn PostBind>>,
    pub placement_generate: Vec<Arc<dyn PlacementGenerate>>,
    pub placement_score: Vec<Arc<dyn PlacementScore>>,
    /// Makes room for groups: the plugin of PostFilter that does it.
    pub(crate) group_post_filter: Option<Arc<dyn GroupPostFilter>>,
}

impl Points {
    /// Whether there is anything at a point.
    pub(crate) fn has(&self, point: ExtensionPoint) -> bool {
        match point {
            ExtensionPoint::PreEnqueue => !self.pre_enqueue.is_empty(),
            ExtensionPoint::QueueSort => self.queue_sort.is_some(),
            ExtensionPoint::PreFilter => !self.pre_filter.is_empty(),
            ExtensionPoint::Filter => !self.filter.is_empty(),
            ExtensionPoint::PostFilter => !self.post_filter.is_empty(),
            ExtensionPoint::PreScore => !self.pre_score.is_empty(),
            ExtensionPoint::Score => !self.score.is_empty(),
            ExtensionPoint::Reserve => !self.reserve.is_empty(),
            ExtensionPoint::Permit => !self.permit.is_empty(),
            ExtensionPoint::PreBind => !self.pre_bind.is_empty(),
            ExtensionPoint::Bind => !self.bind.is_empty(),
            ExtensionPoint::PostBind => !self.post_bind.is_empty(),
            ExtensionPoint::PlacementGenerate => !self.placement_generate.is_empty(),
            ExtensionPoint::PlacementScore => !self.placement_score.is_empty(),
        }
    }

    /// Adds what `other` has at a point.
    pub(crate) fn take(&mut self, point: ExtensionPoint, other: &Self) {
        let more = other.clone();
        match point {
            ExtensionPoint::PreEnqueue => self.pre_enqueue.extend(more.pre_enqueue),
            ExtensionPoint::QueueSort => self.queue_sort = more.queue_sort,
            ExtensionPoint::PreFilter => self.pre_filter.extend(more.pre_filter),
            ExtensionPoint::Filter => self.filter.extend(more.filter),
            ExtensionPoint::PostFilter => {
                self.post_filter.extend(more.post_filter);
                let known = self.group_post_filter.take();
                self.group_post_filter = known.or(more.group_post_filter);
            }
            ExtensionPoint::PreScore => self.pre_score.extend(more.pre_score),
            ExtensionPoint::Score => self.score.extend(more.score),
            ExtensionPoint::Reserve => self.reserve.extend(more.reserve),
            ExtensionPoint::Permit => self.permit.extend(more.permit),
            ExtensionPoint::PreBind => self.pre_bind.extend(more.pre_bind),
            ExtensionPoint::Bind => self.bind.extend(more.bind),
            ExtensionPoint::PostBind => self.post_bind.extend(more.post_bind),
            ExtensionPoint::PlacementGenerate => {
                self.placement_generate.extend(more.placement_generate);
            }
            ExtensionPoint::PlacementScore => self.placement_score.extend(more.placement_score),
        }
    }
}

/// A scheduler name with its plugins.
#[derive(Clone)]
pub struct Profile {
    name: String,
    /// The plugins by point.
    pub points: Points,
    plugins: BTreeMap<&'static str, (Arc<dyn Plugin>, Vec<ClusterEvent>)>,
    weights: BTreeMap<&'static str, i64>,
    /// Share of the nodes to be looked for, in percent; 0 means "as the size of the cluster asks".
    pub percentage_of_nodes_to_score: usize,
}

/// Filters and scores are skipped by bits of a word.
pub(crate) const MOST_PLUGINS: usize = 64;

impl Profile {
    /// A profile without plugins.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            points: Points::default(),
            plugins: BTreeMap::new(),
            weights: BTreeMap::new(),
            percentage_of_nodes_to_score: 0,
        }
    }

    /// A profile of these points. The plugins are those at the points, with the weights of their scores.
    pub(crate) fn assembled(
        name: &str,
        points: Points,
        plugins: impl Iterator<Item = (Arc<dyn Plugin>, i64)>,
    ) -> Self {
        let mut profile = Self {
            points,
            ..Self::new(name)
        };
        for (plugin, weight) in plugins {
            profile.enter(plugin, weight);
        }
        profile
    }

    /// Adds a plugin at all its points; its scores count `weight` times.
    ///
    /// # Panics
    /// With more than 64 plugins.
    #[must_use]
    pub fn with(mut self, plugin: Arc<dyn Plugin>, weight: i64) -> Self {
        assert!(
            self.plugins.len() < MOST_PLUGINS,
            "a profile has at most {MOST_PLUGINS} plugins"
        );
        plugin.clone().attach(&mut self.points);
        self.enter(plugin, weight);
        self
    }

    fn enter(&mut self, plugin: Arc<dyn Plugin>, weight: i64) {
        let (name, events) = (plugin.name(), plugin.events());
        self.plugins.insert(name, (plugin, events));
        self.weights.insert(name, weight);
    }

    /// The scheduler name pods use to choose this profile.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How often a plugin's scores count.
    pub fn weight(&self, plugin: &str) -> i64 {
        self.weights.get(plugin).copied().unwrap_or(1)
    }

    /// Tells the plugins of another pod that is imagined on a node, or away from it.
    pub(crate) fn imagine(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        (other, there): (&PodInfo, bool),
        node: &NodeInfo,
        snapshot: &Snapshot,
    ) {
        for plugin in &self.points.pre_filter {
            if there {
                plugin.add_pod(state, pod, other, node, snapshot);
            } else {
                plugin.remove_pod(state, pod, other, node, snapshot);
            }
        }
    }

    /// The pod's rank in the queue.
    pub fn rank(&self, pod: &PodInfo) -> i64 {
        self.points
            .queue_sort
            .as_ref()
            .map_or(0, |sort| sort.rank(pod))
    }

    /// The first refusal to queue the pod, if there is one.
    pub fn gate(&self, pod: &PodInfo) -> Option<Status> {
        let gates = self.points.pre_enqueue.iter();
        gates
            .map(|g| g.pre_enqueue(pod).by(g.name()))
            .find(|s| !s.is_success())
    }

    /// Whether a change can help a pod that this plugin refused. A plugin this profile does not know
    /// (an extender, an older configuration) is helped by everything.
    pub fn hint(
        &self,
        plugin: &str,
        event: &ClusterEvent,
        pod: &PodInfo,
        object: &EventObject,
    ) -> Hint {
        let Some((plugin, patterns)) = self.plugins.get(plugin) else {
            return Hint::Queue;
        };
        if patterns.iter().any(|p| p.covers(event)) {
            plugin.hint(event, pod, object)
        } else {
            Hint::Skip
        }
    }

    /// Which of the pods that this plugin refused a change can help at all.
    pub fn affected(
        &self,
        plugin: &str,
        event: &ClusterEvent,
        object: &EventObject,
    ) -> AffectedPods {
        match self.plugins.get(plugin) {
            None => AffectedPods::All,
            Some((plugin, patterns)) if patterns.iter().any(|p| p.covers(event)) => {
                plugin.affected(event, object)
            }
            Some(_) => AffectedPods::Nobody,
        }
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("plugins", &self.plugins.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
