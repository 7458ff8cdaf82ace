//! What becomes of a configuration's plugins.

use serde_json::json;

use super::*;
use crate::plugins::testing::devices;

/// A client that nobody answers.
fn client() -> kube::Client {
    let never = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
    });
    davit_client::in_process(never, "default")
}

fn built_with(registry: &PluginRegistry, rest: &str) -> Result<Vec<Profile>, String> {
    let text = format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n{rest}"
    );
    let configuration = KubeSchedulerConfiguration::parse(&text).unwrap();
    configuration.validate().unwrap();
    let handle = FrameworkHandle::new("", Some(client()), devices());
    build(&configuration, registry, &handle).map_err(|e| e.to_string())
}

fn built(rest: &str) -> Result<Profile, String> {
    built_with(&PluginRegistry::default(), rest).map(|mut list| list.remove(0))
}

fn scores(profile: &Profile) -> Vec<(&'static str, i64)> {
    let plugins = profile.points.score.iter();
    plugins
        .map(|p| (p.name(), profile.weight(p.name())))
        .collect()
}

fn filters(profile: &Profile) -> Vec<&'static str> {
    profile.points.filter.iter().map(|p| p.name()).collect()
}

#[tokio::test]
async fn without_configuration_all_plugins_take_part_in_the_usual_order() {
    let profile = built("").unwrap();
    assert_eq!(
        scores(&profile),
        [
            ("TaintToleration", 3),
            ("NodeAffinity", 2),
            ("NodeResourcesFit", 1),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
            ("DynamicResources", 2),
            ("NodeResourcesBalancedAllocation", 1),
            ("ImageLocality", 1),
        ]
    );
    let names = filters(&profile);
    let at = |name: &str| names.iter().position(|n| *n == name).unwrap();
    assert_eq!(at("ClassicDynamicResources"), at("DynamicResources") + 1);
    assert_eq!(*names.last().unwrap(), "NodeResourceTopologyMatch");
    assert_eq!(
        profile.points.post_filter.last().unwrap().name(),
        "DefaultPreemption"
    );
    assert_eq!(profile.points.bind.len(), 1);
}

#[tokio::test]
async fn the_tree_has_what_it_says() {
    let handle = FrameworkHandle::new("p", Some(client()), devices());
    for name in crate::plugins::BUILT_IN {
        let args = PluginArgs::default_of(name);
        let plugin = crate::plugins::built_in(name, args.as_ref(), &handle);
        assert_eq!(plugin.map(|p| p.name()), Some(name));
    }
}

#[tokio::test]
async fn points_are_switched_by_themselves() {
    let without_scores =
        built("profiles: [{plugins: {score: {disabled: [{name: '*'}]}}}]").unwrap();
    assert!(scores(&without_scores).is_empty());
    assert!(filters(&without_scores).contains(&"TaintToleration"));
    let heavier = "profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: 7}]}}}]";
    // What the point names itself goes first.
    assert_eq!(scores(&built(heavier).unwrap())[0], ("ImageLocality", 7));
    let weights =
        "profiles: [{plugins: {multiPoint: {enabled: [{name: ImageLocality, weight: 7}]}}}]";
    assert_eq!(
        *scores(&built(weights).unwrap()).last().unwrap(),
        ("ImageLocality", 7)
    );
    let idle = "profiles: [{plugins: {preFilter: {enabled: [{name: NodeResourcesFit}]}}}]";
    assert!(built(idle).is_ok());
    let own =
        "profiles: [{plugins: {multiPoint: {disabled: [{name: NodeResourceTopologyMatch}]}}}]";
    assert!(!filters(&built(own).unwrap()).contains(&"NodeResourceTopologyMatch"));
}

#[tokio::test]
async fn what_cannot_be_built_is_refused() {
    let prefix = "initializing profiles: creating profile for scheduler name default-scheduler: ";
    for (plugins, expected) in [
        (
            "{multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: NodeName}]}}",
            "at least one bind plugin is needed for profile with scheduler name \"default-scheduler\"",
        ),
        (
            "{multiPoint: {disabled: [{name: PrioritySort}]}}",
            "only one queue sort plugin required for profile with scheduler name \"default-scheduler\", but got 0",
        ),
        (
            "{filter: {enabled: [{name: Nobody}]}}",
            "FilterPlugin \"Nobody\" does not exist",
        ),
        (
            "{filter: {enabled: [{name: ImageLocality}]}}",
            "plugin \"ImageLocality\" does not extend FilterPlugin plugin",
        ),
        (
            "{score: {enabled: [{name: ImageLocality}, {name: ImageLocality}]}}",
            "plugin \"ImageLocality\" already registered as \"ScorePlugin\"",
        ),
    ] {
        let error = built(&format!("profiles: [{{plugins: {plugins}}}]")).unwrap_err();
        assert_eq!(error, format!("{prefix}{expected}"));
    }
}

#[tokio::test]
async fn the_share_of_nodes_of_a_profile_wins() {
    let text = "percentageOfNodesToScore: 40\nprofiles: [{schedulerName: a}, {schedulerName: b, percentageOfNodesToScore: 70}]";
    let list = built_with(&PluginRegistry::default(), text).unwrap();
    let shares: Vec<usize> = list
        .iter()
        .map(|p| p.percentage_of_nodes_to_score)
        .collect();
    assert_eq!(shares, [40, 70]);
}

#[test]
fn resources_of_extenders_join_those_that_are_ignored_anyway() {
    let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
        profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [a.b/own]}}]}]";
    let mut profile = KubeSchedulerConfiguration::parse(text)
        .unwrap()
        .profiles
        .remove(0);
    leave_to_extenders(
        &mut profile,
        &["a.b/theirs".to_owned(), "a.b/own".to_owned()],
    );
    let Some(PluginArgs::NodeResourcesFit(args)) = profile.args("NodeResourcesFit") else {
        panic!("no arguments")
    };
    assert_eq!(args.ignored_resources, ["a.b/own", "a.b/theirs"]);
}

/// A plugin of somebody else.
struct Foreign(serde_json::Value);

impl Plugin for Foreign {
    fn name(&self) -> &'static str {
        "Foreign"
    }
    fn attach(self: Arc<Self>, points: &mut Points) {
        points.filter.push(self.clone());
        points.score.push(self);
    }
}

impl crate::framework::Filter for Foreign {
    fn filter(
        &self,
        _: &crate::framework::CycleState,
        _: &crate::pod::PodInfo,
        _: &crate::node::NodeInfo,
    ) -> crate::framework::Status {
        crate::framework::Status::unschedulable(self.0.to_string())
    }
}

impl crate::framework::Score for Foreign {
    fn score(
        &self,
        _: &crate::framework::CycleState,
        _: &crate::pod::PodInfo,
        _: &crate::node::NodeInfo,
        _: &crate::cache::Snapshot,
    ) -> i64 {
        0
    }
}

#[tokio::test]
async fn plugins_of_others_get_their_arguments_and_are_switched_like_any() {
    let mut registry = PluginRegistry::default();
    let factory = |handle: &FrameworkHandle, args: &serde_json::Value| {
        if args["fail"] == true {
            return Err("as you wish".into());
        }
        let heard = json!([&*handle.profile, args]);
        Ok(Arc::new(Foreign(heard)) as Arc<dyn Plugin>)
    };
    registry.register("Foreign", factory).unwrap();
    assert!(registry.register("Foreign", factory).is_err());
    assert!(registry.register("NodeName", factory).is_err());
    let profile = |fields: &str| {
        let text = format!(
            "profiles: [{{schedulerName: s, plugins: {{multiPoint: {{enabled: [{{name: Foreign}}]}}, {fields}"
        );
        built_with(&registry, &text).map(|mut list| list.remove(0))
    };
    let both = profile("}, pluginConfig: [{name: Foreign, args: {a: 1}}]}]").unwrap();
    assert_eq!(*scores(&both).last().unwrap(), ("Foreign", 1));
    let status = both
        .points
        .filter
        .iter()
        .find(|p| p.name() == "Foreign")
        .unwrap()
        .filter(
            &crate::framework::CycleState::new(),
            &crate::plugins::testing::pod("p", json!({})),
            &crate::node::NodeInfo::new("n".into()),
        );
    assert_eq!(status.message(), "[\"s\",{\"a\":1}]");
    let filter_only = profile("score: {disabled: [{name: Foreign}]}}}]").unwrap();
    assert!(filters(&filter_only).contains(&"Foreign"));
    assert!(
        scores(&filter_only)
            .iter()
            .all(|(name, _)| *name != "Foreign")
    );
    let refused = profile("}, pluginConfig: [{name: Foreign, args: {fail: true}}]}]").unwrap_err();
    assert!(
        refused.ends_with("initializing plugin \"Foreign\": as you wish"),
        "{refused}"
    );
}
