//! Profiles made of their configuration: each plugin once, at the points where it is enabled, in the order of
//! [`expand`].

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{
    DEFAULT_PLUGINS, EnabledPlugin, ExtensionPoint, KubeSchedulerConfiguration,
    KubeSchedulerProfile, PluginArgs, PluginSets, expand,
};
use crate::framework::{MOST_PLUGINS, Plugin, Points, Profile};
use crate::registry::{FrameworkHandle, PluginError, PluginRegistry};

/// Plugins that kube-scheduler does not have and that take part wherever they are not disabled, and the plugin behind
/// which each stands; the rest stands last.
const OWN_PLUGINS: [(&str, &str); 2] = [
    ("ClassicDynamicResources", "DynamicResources"),
    ("NodeResourceTopologyMatch", ""),
];

/// Points that plugins of kube-scheduler have and those here do without: they can be named there, and are not called.
const IDLE_POINTS: [(&str, &[ExtensionPoint]); 4] = [
    (
        "NodeResourcesFit",
        &[ExtensionPoint::PreFilter, ExtensionPoint::PreScore],
    ),
    ("TaintToleration", &[ExtensionPoint::PreScore]),
    // these score only with the gate StorageCapacityScoring, which is off
    (
        "VolumeBinding",
        &[ExtensionPoint::PreScore, ExtensionPoint::Score],
    ),
    ("DefaultPreemption", &[ExtensionPoint::PreEnqueue]),
];

/// Why profiles cannot be made of a configuration.
#[derive(Debug, thiserror::Error)]
#[error("initializing profiles: creating profile for scheduler name {profile}: {fault}")]
pub struct ProfileError {
    /// The scheduler name.
    pub profile: String,
    /// What is wrong with it.
    pub fault: ProfileFault,
}

/// What is wrong with a profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileFault {
    /// A plugin that is unknown, has not the point at which it is enabled, or stands there twice.
    #[error("{0}")]
    Plugins(String),
    /// Not exactly one plugin orders the queue.
    #[error(
        "only one queue sort plugin required for profile with scheduler name {profile:?}, but got {count}"
    )]
    QueueSort {
        /// The scheduler name.
        profile: String,
        /// How many there are.
        count: usize,
    },
    /// Nothing would bind pods.
    #[error("at least one bind plugin is needed for profile with scheduler name {0:?}")]
    Bind(String),
    /// A plugin refuses its arguments.
    #[error("initializing plugin {plugin:?}: {cause}")]
    Plugin {
        /// The plugin.
        plugin: String,
        /// What it says.
        cause: PluginError,
    },
    /// A plugin calls itself otherwise than it is registered.
    #[error("plugin {registered:?} calls itself {own:?}")]
    Name {
        /// As it is registered.
        registered: String,
        /// As it calls itself.
        own: &'static str,
    },
    /// More plugins than there is room for.
    #[error("{0} plugins are enabled, at most {MOST_PLUGINS} can be")]
    TooMany(usize),
}

/// The profiles of a configuration.
///
/// # Errors
/// When one of them cannot be made.
pub(crate) fn build(
    configuration: &KubeSchedulerConfiguration,
    registry: &PluginRegistry,
    handle: &FrameworkHandle,
) -> Result<Vec<Profile>, ProfileError> {
    let ignored: Vec<String> = configuration
        .extenders
        .iter()
        .flat_map(|e| &e.managed_resources)
        .filter(|r| r.ignored_by_scheduler)
        .map(|r| r.name.clone())
        .collect();
    let share = configuration.percentage_of_nodes_to_score;
    let profiles = configuration.profiles.iter().map(|config| {
        let mut config = config.clone();
        leave_to_extenders(&mut config, &ignored);
        let handle = handle.of_profile(config.name());
        let profile = assemble(&config, registry, &handle);
        let mut profile = profile.map_err(|fault| ProfileError {
            profile: config.name().to_owned(),
            fault,
        })?;
        let share = config.percentage_of_nodes_to_score.unwrap_or(share);
        profile.percentage_of_nodes_to_score = usize::try_from(share).unwrap_or(0);
        Ok(profile)
    });
    profiles.collect()
}

/// NodeResourcesFit does not judge resources that an extender answers for, beside those that its arguments name.
fn leave_to_extenders(config: &mut KubeSchedulerProfile, ignored: &[String]) {
    for entry in &mut config.plugin_config {
        if let PluginArgs::NodeResourcesFit(args) = &mut entry.args {
            let own = &mut args.ignored_resources;
            for name in ignored {
                if !own.contains(name) {
                    own.push(name.clone());
                }
            }
        }
    }
}

/// The sets that are called: with the own plugins, without those that are not built.
fn completed(config: &KubeSchedulerProfile, plugins: &[&str]) -> PluginSets {
    let mut sets = config.plugins.clone();
    let all = &mut sets.multi_point;
    for (name, behind) in OWN_PLUGINS {
        if all.disables(name) || all.enables(name) {
            continue;
        }
        let at = all.enabled.iter().position(|p| p.name == behind);
        let at = at.map_or(all.enabled.len(), |at| at + 1);
        let plugin = EnabledPlugin {
            name: name.to_owned(),
            weight: 0,
        };
        all.enabled.insert(at, plugin);
    }
    let built = |p: &EnabledPlugin| {
        let default = DEFAULT_PLUGINS.iter().any(|(name, _)| *name == p.name);
        !default || plugins.contains(&p.name.as_str())
    };
    sets.multi_point.enabled.retain(built);
    sets.retain_at_points(built);
    sets
}

/// Makes the plugins of a profile and puts them at their points.
fn assemble(
    config: &KubeSchedulerProfile,
    registry: &PluginRegistry,
    handle: &FrameworkHandle,
) -> Result<Profile, ProfileFault> {
    let own = OWN_PLUGINS.iter().map(|(name, _)| *name);
    let mut made: BTreeMap<&str, (Arc<dyn Plugin>, Points)> = BTreeMap::new();
    for name in config.plugins.enabled().into_iter().chain(own) {
        let Some(plugin) = registry.make(name, config.args(name), handle) else {
            continue;
        };
        let plugin = plugin.map_err(|cause| ProfileFault::Plugin {
            plugin: name.to_owned(),
            cause,
        })?;
        if plugin.name() != name {
            return Err(ProfileFault::Name {
                registered: name.to_owned(),
                own: plugin.name(),
            });
        }
        let mut points = Points::default();
        plugin.clone().attach(&mut points);
        made.insert(name, (plugin, points));
    }
    let names: Vec<&str> = made.keys().copied().collect();
    let sets = completed(config, &names);
    let mut points = Points::default();
    for point in ExtensionPoint::ALL {
        let idle = |name: &str| {
            let mut idle = IDLE_POINTS.iter();
            idle.any(|(plugin, points)| *plugin == name && points.contains(&point))
        };
        let takes_part = |name: &str| made.get(name).map(|(_, own)| own.has(point) || idle(name));
        let order = expand(&sets, point, takes_part).map_err(ProfileFault::Plugins)?;
        if point == ExtensionPoint::QueueSort && order.len() != 1 {
            return Err(ProfileFault::QueueSort {
                profile: config.name().to_owned(),
                count: order.len(),
            });
        }
        for (_, own) in order.iter().filter_map(|name| made.get(name)) {
            points.take(point, own);
        }
    }
    if points.bind.is_empty() {
        return Err(ProfileFault::Bind(config.name().to_owned()));
    }
    let enabled = sets.enabled();
    if enabled.len() > MOST_PLUGINS {
        return Err(ProfileFault::TooMany(enabled.len()));
    }
    let plugins = enabled.iter().filter_map(|name| made.get(name));
    let plugins = plugins.map(|(plugin, _)| (plugin.clone(), sets.score_weight(plugin.name())));
    Ok(Profile::assembled(config.name(), points, plugins))
}

#[cfg(test)]
mod tests;
