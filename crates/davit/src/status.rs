//! `davit status`: a cluster at a glance, and what in it needs attention.

mod glance;

use crate::cluster_flag::Cluster;
use crate::output::Output;
use crate::page::Paint;
use crate::{devices, paths};
use anyhow::{Context, Result, bail};
use futures::future::join_all;
use glance::{Component, Glance};
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use serde_json::Value;
use std::time::Duration;

/// How long one answer may take: a cluster that is not well is what this is for.
const DEADLINE: Duration = Duration::from_secs(10);
/// The leases of components of which one leads.
const LEADERS: [&str; 2] = ["kube-scheduler", "kube-controller-manager"];
/// What `--exit-code` ends with.
const ATTENTION: u8 = 3;

/// What `davit status` takes. It ends with 0 when the cluster has answered, with 1 when it cannot be asked.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StatusArgs {
    /// End with 3 if something needs attention
    #[arg(long)]
    exit_code: bool,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    #[command(flatten)]
    cluster: Cluster,
}

/// Runs `davit status`.
pub(crate) async fn run(args: StatusArgs, paint: Paint) -> Result<()> {
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let config = davit_client::kubeconfig(&kubeconfig).await?;
    let server = config.cluster_url.to_string();
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let report = gather(&client, server.trim_end_matches('/')).await?;
    match args.output {
        Some(Output::Json) => println!("{}", serde_json::to_string_pretty(&report)?),
        Some(Output::Yaml) => print!("{}", serde_saphyr::to_string(&report)?),
        Some(Output::Wide) => print!("{}", report.text(usize::MAX, paint)),
        None => print!("{}", report.text(glance::SHOWN, paint)),
    }
    if args.exit_code && !report.attention.is_empty() {
        return Err(crate::exit::ExitWith(ATTENTION).into());
    }
    Ok(())
}

async fn gather(client: &kube::Client, server: &str) -> Result<Glance> {
    let version = within(value(client, "/version")).await;
    let version = version.with_context(|| {
        format!("the API server {server} does not answer; `davit up` starts one")
    })?;
    let mut report = Glance::new(server, version["gitVersion"].as_str().unwrap_or("unknown"));
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    let pods: kube::Api<Pod> = kube::Api::all(client.clone());
    let all = ListParams::default();
    let (ready, nodes, pods, devices, services, components) = tokio::join!(
        within(text(client, "/readyz?verbose")),
        within(async { Ok(nodes.list(&all).await?.items) }),
        within(async { Ok(pods.list(&all).await?.items) }),
        // Each node has a deadline of its own.
        devices::collect(client, None),
        within(value(client, "/apis/apiregistration.k8s.io/v1/apiservices")),
        components(client),
    );
    report.readiness(&ready.unwrap_or_else(|why| format!("[-]not answered: {why:#}")));
    report.components = components;
    let now = jiff::Timestamp::now();
    match nodes {
        Ok(nodes) => report.nodes(&nodes),
        Err(why) => report.unknown("nodes", &why),
    }
    match devices {
        Ok(answers) => report.devices(&answers),
        Err(why) => report.unknown("devices", &why),
    }
    match pods {
        Ok(pods) => report.pods(&pods, now),
        Err(why) => report.unknown("pods", &why),
    }
    // Not every cluster lets everybody read these; what is missing is missed by nobody.
    if let Ok(services) = services {
        report.api_services(&services);
    }
    Ok(report)
}

/// Who leads, by leases; of components that run in one process with the API server, what it says.
async fn components(client: &kube::Client) -> Vec<Component> {
    let leases: kube::Api<Lease> = kube::Api::namespaced(client.clone(), "kube-system");
    let asked = LEADERS.map(|name| within(async { Ok(leases.get_opt(name).await?) }));
    let found = join_all(asked).await.into_iter().zip(LEADERS);
    let mut components: Vec<Component> = found
        .filter_map(|(lease, name)| {
            Component::of_lease(name, &lease.ok()??, jiff::Timestamp::now())
        })
        .collect();
    if components.is_empty()
        && let Ok(statuses) = within(value(client, "/api/v1/componentstatuses")).await
    {
        components = Component::of_statuses(&statuses);
    }
    components
}

async fn within<T>(asking: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(DEADLINE, asking).await {
        Ok(answer) => answer,
        Err(_) => bail!("not answered within {} s", DEADLINE.as_secs()),
    }
}

async fn value(client: &kube::Client, path: &str) -> Result<Value> {
    Ok(client.request(Request::get(path).body(Vec::new())?).await?)
}

async fn text(client: &kube::Client, path: &str) -> Result<String> {
    let request = Request::get(path).body(Vec::new())?;
    match client.request_text(request).await {
        // An API server that is not ready says in the error what is not.
        Err(kube::Error::Api(status)) if status.message.contains("[-]") => Ok(status.message),
        Err(kube::Error::Api(status)) => Ok(format!("[-]{}", status.message)),
        other => Ok(other?),
    }
}
