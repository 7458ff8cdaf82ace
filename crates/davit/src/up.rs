//! `davit up`: a whole cluster in one process.

use crate::args::{DefaultStorageClass, Up};
use crate::components::{
    CONTROLLERS, NodeStart, RunningServer, SCHEDULER, Stop, lacks_privileges, node_name, run_node,
    start_server,
};
use crate::paths::NodePaths;
use crate::scratch::{self, Scratch};
use crate::shutdown::{Received, STOPPING, Signals};
use crate::single::Candidate;
use crate::{demo, lab, owner, paths, pod_network, scheduler, service_manager, single};
use anyhow::{Context, Result, bail};
use davit_apiserver::KubeletAuthority;
use davit_controllers::LoadBalancing;
use davit_lab::devices::Inventory;
use davit_lab::nodes;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long a node may take to become Ready.
const NODE_READY: Duration = Duration::from_secs(60);
/// The same where the controllers are somebody else's: a node may wait for what they give it, the range of its pods, and
/// they for the kubeconfig that is named when all is ready.
const NODE_READY_ALONE: Duration = Duration::from_secs(5);

pub(crate) async fn run(mut args: Up) -> Result<()> {
    let started = Instant::now();
    if !args.no_node
        && let Some(lacks) = lacks_privileges(&args.node)?
    {
        bail!("{lacks}");
    }
    let mut signals = Signals::new()?;
    if args.exit_with_parent {
        signals = signals.with_parent()?;
    }
    if args.ephemeral {
        scratch::sweep(&args).await;
        args.server.port.get_or_insert(0);
        args.node.node_port.get_or_insert(0);
        args.node.proxy.keep_to_itself();
    }
    let scratch = Scratch::for_cluster(&mut args)?;
    let data_dir = paths::data_dir(args.server.data_dir.as_deref())?;
    paths::protect_data_dir(&data_dir)?;
    let _owned = owner::own(&data_dir, "up")?;
    if !args.no_node {
        args.node.node_name = Some(crate::node_name::keep(
            args.node.node_name.take(),
            &data_dir,
        )?);
    }
    let starting = Cluster::start(&args, &data_dir);
    let outcome = match signals.unless_received(starting).await {
        Ok(Some(cluster)) => cluster.attend(&args, started, &mut signals).await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Some(scratch) = scratch {
        scratch.remove().await;
    }
    outcome
}

struct Cluster {
    server: RunningServer,
    /// Node, scheduler and controllers; they stop before the API server does.
    components: JoinSet<Result<()>>,
    serving: JoinSet<Result<()>>,
    stop_components: CancellationToken,
    /// Cancelled by SIGTERM.
    terminated: CancellationToken,
    /// How long everything may take to stop.
    stopping: Duration,
    stop_serving: CancellationToken,
}

impl Cluster {
    async fn start(args: &Up, data_dir: &Path) -> Result<Self> {
        let (mut serving, mut components) = (JoinSet::new(), JoinSet::new());
        let (stop_components, stop_serving) = (CancellationToken::new(), CancellationToken::new());
        let terminated = CancellationToken::new();
        let features = args.node.kubelet.features()?;
        let server = start_server(
            &args.server,
            features.clone(),
            KubeletAuthority::Cluster,
            None,
            data_dir,
            &mut serving,
            stop_serving.clone(),
        )
        .await?;
        // Of several clusters on the same objects one schedules and one controls at a time.
        let shared = args.server.store.is_shared();
        let candidate = |lease| shared.then(|| Candidate::usual(lease, &features));
        if !args.no_scheduler {
            let configuration =
                scheduler::embedded_configuration(args.scheduler_config.as_deref(), &features)?;
            let client = server.client(SCHEDULER, &[]);
            let metrics = davit_scheduler::Metrics::default();
            server.server.include_metrics(|page| metrics.register(page));
            let work = {
                let client = scheduler::client_of(client.clone(), &configuration);
                let features = features.clone();
                move |cancel| {
                    let options = davit_scheduler::SchedulerOptions {
                        configuration: configuration.clone(),
                        features: features.clone(),
                        metrics: metrics.clone(),
                        ..davit_scheduler::SchedulerOptions::default()
                    };
                    let scheduler = davit_scheduler::Scheduler::new(client.clone(), options);
                    async move {
                        let scheduler = scheduler.context("scheduler")?;
                        scheduler.run(cancel).await.context("scheduler")
                    }
                }
            };
            let cancel = stop_components.clone();
            let candidate = candidate("kube-scheduler");
            components.spawn(single::in_terms(client, candidate, cancel, work));
        }
        if !args.no_controllers {
            let client = server.client(CONTROLLERS, &[]);
            let work = {
                let (server, client, args) = (server.clone(), client.clone(), args.clone());
                let ranges = pod_network::cluster_ranges(&args, data_dir)?;
                let load_balancing = args
                    .load_balancer
                    .or_range(&args.balancer_range, ranges.all())?;
                move |cancel| {
                    let options =
                        controllers(&server, &args, ranges.clone(), load_balancing.clone());
                    let (client, accounts) = (client.clone(), accounts(&server, &args));
                    async move {
                        let mut controllers = davit_controllers::Controllers::new(client, options?);
                        if let Some(accounts) = accounts {
                            controllers = controllers.with_accounts(accounts);
                        }
                        controllers.run(cancel).await.context("controllers")
                    }
                }
            };
            let cancel = stop_components.clone();
            let candidate = candidate("kube-controller-manager");
            components.spawn(single::in_terms(client, candidate, cancel, work));
        }
        let has_nodes = !args.no_node || args.sim_nodes > 0;
        if has_nodes && args.node.kubelet.publishes_topology()? {
            // Nodes may write what they publish, not define its kind.
            let client = server.client("davit:up", &["system:masters"]);
            let defined = davit_node::agent::define_topologies(&client).await;
            defined.context("cannot define NodeResourceTopology")?;
        }
        if !args.no_node {
            let name = node_name(&args.node)?;
            // It is on the machine that holds the store: nothing is given away by letting it see all pods.
            let groups = ["system:nodes", "davit:network-policy"];
            let client = server.client(&format!("system:node:{name}"), &groups);
            let (options, data_dir, ca) = (args.node.clone(), PathBuf::from(data_dir), server.ca());
            let (demo, stays) = (args.demo, !args.ephemeral && !args.exit_after_demo);
            let cancel = stop_components.clone();
            let (running, listen) = (server.clone(), args.server.bind_address);
            let services = args.server.services.service_cluster_ip_range;
            let stop = Stop {
                cancel: cancel.clone(),
                terminated: terminated.clone(),
            };
            let (gateway, reached) = tokio::sync::oneshot::channel();
            let (for_pods, closed) = (server.clone(), stop_serving.clone());
            if listen.is_loopback() {
                serving.spawn(async move { for_pods.serve_pods(reached, closed).await });
            } else if listen.is_unspecified() {
                serving.spawn(async move { for_pods.name_gateway(reached, closed).await });
            }
            let inventory = match &args.devices {
                Some(file) => lab::read_inventory(file)?.for_node(Some(&name)),
                None => Inventory::default(),
            };
            components.spawn(async move {
                let paths = NodePaths::new(options.root.as_deref(), &data_dir)?;
                let kubelet = paths.kubelet();
                let place = davit_lab::drivers::DriverPaths {
                    client: client.clone(),
                    node: name,
                    kubelet_dir: kubelet.clone(),
                    cdi_dir: lab::cdi_dir(&options.cdi_spec_dirs, &paths),
                };
                let say: davit_lab::Say = Arc::new(|line| tracing::info!("{line}"));
                let devices = async {
                    let serving =
                        davit_lab::devices::serve(&inventory, &kubelet, &say, cancel.clone());
                    serving.await.context("simulated devices")
                };
                let drivers = &inventory.drivers;
                let drivers = async {
                    let serving = davit_lab::drivers::serve(drivers, &place, &say, cancel.clone());
                    serving.await.context("simulated drivers")
                };
                let start = NodeStart {
                    client,
                    gateway: Some(gateway),
                    options: &options,
                    data_dir: &data_dir,
                    client_ca: ca,
                    listen,
                    services,
                    demo,
                    stays,
                };
                let node = run_node(start, |node| running.attach_node(node), stop);
                tokio::try_join!(node, devices, drivers).map(drop)
            });
        }
        if args.sim_nodes > 0 {
            let nodes = simulated_nodes(args, data_dir, &server)?;
            let cancel = stop_components.clone();
            components.spawn(nodes(cancel));
        }
        Ok(Self {
            server,
            components,
            serving,
            stop_components,
            terminated,
            stopping: STOPPING
                + args.node.kubelet.shutdown()?.total()
                + args.server.protection.shutdown_delay_duration,
            stop_serving,
        })
    }

    /// Waits for readiness, runs the demo where asked for, waits for a signal and stops everything.
    async fn attend(mut self, args: &Up, started: Instant, signals: &mut Signals) -> Result<()> {
        let mut demo = None;
        let life = async {
            if !args.no_node {
                let name = node_name(&args.node)?;
                wait_for_node(&self.server, &name, started, args.no_controllers).await?;
            }
            self.server.ready().await;
            let (ms, kubeconfig) = (
                started.elapsed().as_millis(),
                self.server.kubeconfig.display(),
            );
            println!(
                "ready in {ms} ms  kubeconfig={kubeconfig}  server={}",
                self.server.url
            );
            service_manager::ready(&format!("serving at {}", self.server.url));
            if args.demo {
                demo = Some(demo::Demo::start(&self.server, args).await?);
            }
            if !args.exit_after_demo {
                service_manager::watched(async || self.server.answers().await).await;
            }
            anyhow::Ok(())
        };
        // A component that ends by itself has failed: there is no cluster without it.
        let outcome = tokio::select! {
            received = signals.receive() => {
                service_manager::stopping();
                if received == Received::Terminate {
                    self.terminated.cancel();
                }
                Ok(())
            }
            ended = life => ended,
            // There may be none.
            Some(ended) = self.components.join_next() => single::finish(Some(ended)),
            ended = self.serving.join_next() => single::finish(ended),
        };
        if let Some(demo) = demo {
            demo.stop(&self.server).await;
        }
        let limit = self.stopping;
        let stopped = signals.stop_within(limit, self.stop()).await;
        outcome.and(stopped)
    }

    async fn stop(mut self) -> Result<()> {
        self.stop_components.cancel();
        while let Some(ended) = self.components.join_next().await {
            single::finish(Some(ended))?;
        }
        self.stop_serving.cancel();
        while let Some(ended) = self.serving.join_next().await {
            single::finish(Some(ended))?;
        }
        Ok(())
    }
}

/// The clients of the controllers' service accounts, if they have some: in this process nobody asks for a token.
fn accounts(server: &RunningServer, args: &Up) -> Option<davit_controllers::AccountClients> {
    let server = server.clone();
    let client = move |name: &str| server.account_client(name);
    args.use_service_account_credentials
        .then(|| Arc::new(client) as _)
}

/// How the controllers of a whole cluster work.
fn controllers(
    server: &RunningServer,
    args: &Up,
    ranges: davit_controllers::NodeRanges,
    load_balancing: LoadBalancing,
) -> Result<davit_controllers::Options> {
    Ok(davit_controllers::Options {
        selection: args.controllers.controllers.clone(),
        concurrency: args.controllers.concurrency.by_controller(),
        node_monitor: args.controllers.node_monitor(),
        terminated_pods: args.controllers.terminated_pod_gc_threshold,
        autoscaling: args.controllers.autoscaling(),
        load_balancing,
        root_ca: server.ca(),
        authority: server.authority()?,
        token_signer: Some(server.token_signer()?),
        node_ranges: Some(ranges),
        dns_addresses: single::dns_addresses(
            args.server.services.service_cluster_ip_range,
            args.node.dns,
        ),
        default_storage_class: args.default_storage_class == DefaultStorageClass::Local,
        flex_volume_plugin_dir: flex_volume_plugin_dir(args),
        features: args.node.kubelet.features()?,
    })
}

/// The work of the simulated nodes, as a task for [`Cluster::start`].
fn simulated_nodes(
    args: &Up,
    data_dir: &Path,
    server: &RunningServer,
) -> Result<impl FnOnce(CancellationToken) -> futures::future::BoxFuture<'static, Result<()>>> {
    let mut options = nodes::Options::new(args.sim_nodes, data_dir.join("sim"));
    if let Some(file) = &args.devices {
        options.inventory = lab::read_inventory(file)?;
    }
    args.node.kubelet.check()?;
    let (flags, ca) = (
        args.node.kubelet.clone(),
        server.ca().map(String::into_bytes),
    );
    let clients: std::collections::BTreeMap<String, kube::Client> = options
        .names()
        .map(|name| {
            let client = server.client(&format!("system:node:{name}"), &["system:nodes"]);
            (name, client)
        })
        .collect();
    let running = server.clone();
    Ok(move |cancel: CancellationToken| {
        let work = async move {
            let adjust = |node: &mut davit_node::NodeOptions| {
                node.client_ca.clone_from(&ca);
                flags.apply_checked(node);
                if let Err(error) = running.attach_node(node) {
                    // it serves with a certificate of its own, which the API server does not believe
                    let (node, error) = (&node.node_name, format!("{error:#}"));
                    tracing::error!(node, error, "logs and exec of a simulated node will fail");
                }
            };
            let client = |name: &str| clients[name].clone();
            let running = nodes::run(&options, client, adjust, cancel);
            running.await.context("simulated nodes")
        };
        Box::pin(work) as futures::future::BoxFuture<'static, Result<()>>
    })
}

/// Waits until the node's agent has reported in this run that the node is ready: the API may still say so from before.
/// Without controllers of its own, that it has reported at all is enough after a while.
async fn wait_for_node(
    server: &RunningServer,
    name: &str,
    started: Instant,
    alone: bool,
) -> Result<()> {
    let since = (Timestamp::now() - started.elapsed()).as_second();
    let nodes: kube::Api<Node> = kube::Api::all(server.client("davit:up", &["system:masters"]));
    let waiting = Instant::now();
    let mut last_seen = "it has not registered".to_owned();
    while waiting.elapsed() < NODE_READY {
        if let Some(node) = nodes.get_opt(name).await.context("cannot read the node")? {
            let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
            match conditions.into_iter().find(|c| c.type_ == "Ready") {
                Some(ready)
                    if ready
                        .last_heartbeat_time
                        .as_ref()
                        .is_none_or(|t| t.0.as_second() < since) =>
                {
                    "its agent has not reported since this start".clone_into(&mut last_seen);
                }
                Some(ready) if ready.status == "True" => return Ok(()),
                Some(ready) => {
                    last_seen = ready.message.unwrap_or_default();
                    if alone && waiting.elapsed() >= NODE_READY_ALONE {
                        tracing::warn!(node = name, why = last_seen, "the node waits to be ready");
                        return Ok(());
                    }
                }
                None => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!(
        "node {name} did not become ready within {} s: {last_seen}",
        NODE_READY.as_secs()
    )
}

/// Where the controllers look for FlexVolume drivers: where the node of the same process does, unless told otherwise.
fn flex_volume_plugin_dir(args: &Up) -> Option<PathBuf> {
    let of_node = args.node.kubelet.volume_plugin_dir.as_ref();
    args.flex_volume_plugin_dir.as_ref().or(of_node).cloned()
}
