//! A scheduler with two plugins of its own: `QuietNodes` keeps nodes at a number of pods, `LastResort` prefers nodes
//! without a label. They are enabled and get their arguments by the configuration, like those in the tree:
//!
//! ```yaml
//! apiVersion: kubescheduler.config.k8s.io/v1
//! kind: KubeSchedulerConfiguration
//! profiles:
//! - schedulerName: quiet
//!   plugins: {multiPoint: {enabled: [{name: QuietNodes}, {name: LastResort, weight: 5}]}}
//!   pluginConfig:
//!   - {name: QuietNodes, args: {mostPods: 20}}
//!   - {name: LastResort, args: {label: example.com/last-resort}}
//! ```
//!
//! `cargo run -p davit-scheduler --example quiet_nodes -- KUBECONFIG CONFIGURATION`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use davit_scheduler::cache::Snapshot;
use davit_scheduler::config::KubeSchedulerConfiguration;
use davit_scheduler::framework::{
    Action, ClusterEvent, CycleState, EventResource, Filter, MAX_NODE_SCORE, Plugin, Points, Score,
    Status,
};
use davit_scheduler::node::NodeInfo;
use davit_scheduler::pod::PodInfo;
use davit_scheduler::registry::{PluginExists, PluginRegistry};
use davit_scheduler::{Scheduler, SchedulerOptions};
use tokio_util::sync::CancellationToken;

/// Refuses nodes that have enough pods.
struct QuietNodes {
    most_pods: usize,
}

impl Plugin for QuietNodes {
    fn name(&self) -> &'static str {
        "QuietNodes"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let pod_gone = ClusterEvent::new(EventResource::AssignedPod, Action::DELETE);
        vec![
            pod_gone,
            ClusterEvent::new(EventResource::Node, Action::ADD),
        ]
    }
}

impl Filter for QuietNodes {
    fn filter(&self, _: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        if node.pods.len() < self.most_pods {
            return Status::success();
        }
        Status::unschedulable("node(s) had enough pods")
    }
}

/// Prefers nodes without a label.
struct LastResort {
    label: String,
}

impl Plugin for LastResort {
    fn name(&self) -> &'static str {
        "LastResort"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.score.push(self);
    }
}

impl Score for LastResort {
    fn score(&self, _: &CycleState, _: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        if node.label(&self.label).is_some() {
            0
        } else {
            MAX_NODE_SCORE
        }
    }
}

/// The plugins that a configuration can name beside those in the tree.
fn plugins() -> Result<PluginRegistry, PluginExists> {
    let mut registry = PluginRegistry::default();
    registry.register("QuietNodes", |_, args| {
        let most = args["mostPods"].as_u64().ok_or("mostPods is missing")?;
        let most_pods = usize::try_from(most)?;
        Ok(Arc::new(QuietNodes { most_pods }))
    })?;
    registry.register("LastResort", |_, args| {
        let label = args["label"].as_str().ok_or("label is missing")?.to_owned();
        Ok(Arc::new(LastResort { label }))
    })?;
    Ok(registry)
}

/// A scheduler with these plugins and this configuration.
fn scheduler(client: kube::Client, configuration: &str) -> Result<Scheduler, Box<dyn Error>> {
    let configuration = KubeSchedulerConfiguration::parse(configuration)?;
    configuration.validate()?;
    let options = SchedulerOptions {
        configuration,
        plugins: plugins()?,
        ..SchedulerOptions::default()
    };
    Ok(Scheduler::new(client, options)?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(kubeconfig), Some(file)) = (args.next(), args.next()) else {
        return Err("usage: quiet_nodes KUBECONFIG CONFIGURATION".into());
    };
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    if provider.install_default().is_err() {
        return Err("another TLS provider is installed already".into());
    }
    let client = davit_client::from_kubeconfig(Path::new(&kubeconfig)).await?;
    let scheduler = scheduler(client, &std::fs::read_to_string(file)?)?;
    scheduler.run(CancellationToken::new()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that nobody answers.
    fn client() -> kube::Client {
        let never = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        davit_client::in_process(never, "default")
    }

    fn with_args(quiet: &str) -> String {
        format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n\
             - plugins: {{multiPoint: {{enabled: [{{name: QuietNodes}}, {{name: LastResort, weight: 5}}]}}}}\n  \
             pluginConfig: [{{name: QuietNodes, args: {quiet}}}, {{name: LastResort, args: {{label: a}}}}]\n"
        )
    }

    #[tokio::test]
    async fn plugins_are_made_of_the_configuration() {
        assert!(scheduler(client(), &with_args("{mostPods: 3}")).is_ok());
        let refused = scheduler(client(), &with_args("{}"))
            .unwrap_err()
            .to_string();
        assert!(
            refused.ends_with("initializing plugin \"QuietNodes\": mostPods is missing"),
            "{refused}"
        );
    }

    #[test]
    fn enough_is_enough() {
        let mut node = NodeInfo::new("n".into());
        let pod = || Arc::new(PodInfo::new(Arc::default()));
        let plugin = QuietNodes { most_pods: 1 };
        let asked = |node: &NodeInfo| plugin.filter(&CycleState::new(), &pod(), node).is_success();
        assert!(asked(&node));
        node.add_pod(pod());
        assert!(!asked(&node));
    }
}
