//! `davit lab`: simulated devices and nodes, and conformance checks.

mod check;

use crate::paths::{self, NodePaths};
use crate::shutdown::{STOPPING, Signals};
use anyhow::{Context, Result, bail};
use davit_client::certificate::{CertificateError, CertificateRequest};
use davit_lab::devices::{self, Inventory};
use davit_lab::{drivers, nodes};
use futures::{StreamExt, TryStreamExt};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum What {
    /// Serve simulated devices to a node agent, davit's or a kubelet
    Devices(Devices),
    /// Run simulated nodes with devices against any Kubernetes API server
    Nodes(Box<Nodes>),
    /// Play the node agent to a program and report what it does
    Check(check::Check),
}

#[derive(Debug, Clone, clap::Args)]
struct Devices {
    /// Inventory of devices (YAML)
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Directory of the node agent
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Serve only what the file gives to this node; simulated drivers need it
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// How simulated drivers reach the API server [default: $KUBECONFIG, the davit cluster of this machine, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Where simulated drivers put CDI files
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
}

#[derive(Debug, Clone, clap::Args)]
struct Nodes {
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: usize,
    /// What their names begin with
    #[arg(long, value_name = "TEXT", default_value = "sim-")]
    prefix: String,
    /// How to reach the API server [default: $KUBECONFIG, the davit cluster of this machine, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Inventory of the nodes' devices (YAML) [default: eight devices of hardware-vendor.example/foo]
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    /// Where the nodes' directories are [default: sim below the data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    kubelet: crate::kubelet_flags::KubeletFlags,
}

pub(crate) async fn run(args: Lab) -> Result<()> {
    match args.what {
        What::Devices(args) => serve_devices(args).await,
        What::Nodes(args) => run_nodes(*args).await,
        What::Check(args) => check::run(args).await,
    }
}

/// Reads an inventory, naming the file in errors.
pub(crate) fn read_inventory(file: &Path) -> Result<Inventory> {
    Inventory::read(file).with_context(|| format!("devices of {}", file.display()))
}

async fn serve_devices(args: Devices) -> Result<()> {
    let mut signals = Signals::new()?;
    let inventory = read_inventory(&args.file)?.for_node(args.node.as_deref());
    let cancel = CancellationToken::new();
    let say: davit_lab::Say = Arc::new(|line| println!("{line}"));
    let place = match (&args.node, inventory.drivers.is_empty()) {
        (_, true) => None,
        (None, false) => bail!("drivers publish the devices of a node: name it with --node NAME"),
        (Some(node), false) => {
            let kubeconfig = paths::find_kubeconfig(args.kubeconfig.as_deref())?;
            Some(drivers::DriverPaths {
                client: davit_client::from_kubeconfig(&kubeconfig).await?,
                node: node.clone(),
                kubelet_dir: args.kubelet_dir.clone(),
                cdi_dir: args.cdi_dir.clone(),
            })
        }
    };
    let work = async {
        let devices = devices::serve(&inventory, &args.kubelet_dir, &say, cancel.clone());
        let devices = async { devices.await.map_err(anyhow::Error::new) };
        let drivers = async {
            match &place {
                Some(place) => {
                    let serving = drivers::serve(&inventory.drivers, place, &say, cancel.clone());
                    Ok(serving.await?)
                }
                None => Ok(()),
            }
        };
        tokio::try_join!(devices, drivers).map(drop)
    };
    until_signal(&mut signals, &cancel, work).await
}

/// Where a node's runtime finds CDI files that are written now.
pub(crate) fn cdi_dir(asked: &[PathBuf], paths: &NodePaths) -> PathBuf {
    let of_node = paths.cdi();
    let dirs = if asked.is_empty() { &of_node } else { asked };
    // The last one wins over the others.
    dirs.last().cloned().unwrap_or_default()
}

async fn run_nodes(args: Nodes) -> Result<()> {
    let mut signals = Signals::new()?;
    let dir = match &args.dir {
        Some(dir) => {
            std::path::absolute(dir).with_context(|| format!("directory {}", dir.display()))?
        }
        None => paths::data_dir(None)?.join("sim"),
    };
    let mut options = nodes::Options::new(args.count, dir);
    options.prefix.clone_from(&args.prefix);
    if let Some(file) = &args.devices {
        options.inventory = read_inventory(file)?;
    }
    let kubeconfig = paths::find_kubeconfig(args.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    // Wrong flags are told before the first node is there.
    args.kubelet.check()?;
    match (args.count, &args.prefix) {
        (1, prefix) => println!("1 simulated node, {prefix}0"),
        (n, prefix) => println!(
            "{n} simulated nodes, {prefix}0 to {prefix}{}",
            n.saturating_sub(1)
        ),
    }
    let cancel = CancellationToken::new();
    // Who asks the nodes' servers for logs and devices is known by the cluster's authority, and so are they.
    let ca = crate::cluster_ca::cluster_ca(&kubeconfig)?.map(String::into_bytes);
    let asking = async { Ok(serving_certificates(&client, &options).await) };
    let Some(certificates) = signals.unless_received(asking).await? else {
        return Ok(());
    };
    let adjust = |node: &mut davit_node::NodeOptions| {
        node.client_ca.clone_from(&ca);
        node.serving_certificate = certificates.get(&node.node_name).cloned();
        args.kubelet.apply_checked(node);
    };
    let running = nodes::run(&options, |_| client.clone(), adjust, cancel.clone());
    until_signal(&mut signals, &cancel, async { Ok(running.await?) }).await
}

/// Certificate and key of a server, both in PEM.
type ServingCertificate = (Vec<u8>, Vec<u8>);

/// Certificates for the nodes' servers, by node. Whoever may not have them makes nodes with certificates of their own
/// making, which an API server that looks at them does not believe.
async fn serving_certificates(
    client: &kube::Client,
    options: &nodes::Options,
) -> HashMap<String, ServingCertificate> {
    const AT_A_TIME: usize = 16;
    let requests = options.names().map(|name| async move {
        let wanted = CertificateRequest {
            signer: "kubernetes.io/kubelet-serving",
            usages: &["digital signature", "server auth"],
            common_name: format!("system:node:{name}"),
            organizations: vec!["system:nodes".to_owned()],
            dns_names: vec![name.clone()],
            ip_addresses: vec![nodes::ADDRESS],
        };
        let pem = wanted.obtain_approved(client).await?.into_bytes();
        Ok((name, (pem.clone(), pem)))
    });
    let obtained: Result<_, CertificateError> = futures::stream::iter(requests)
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await;
    obtained.unwrap_or_else(|error| {
        eprintln!(
            "warning: the nodes' servers have certificates that no cluster vouches for: {error}"
        );
        HashMap::new()
    })
}

async fn until_signal(
    signals: &mut Signals,
    cancel: &CancellationToken,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        () = signals.recv() => cancel.cancel(),
        ended = &mut work => return ended,
    }
    signals.stop_within(STOPPING, work).await
}
