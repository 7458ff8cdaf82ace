//! How pods are connected: what the flags say, and the ranges of addresses that belong to it.

mod bridge;

use crate::args::{NodeOptions, PodNetwork, RuntimeKind, Up};
use crate::paths::{self, NodePaths};
use crate::pod_ranges::ClusterCidrs;
use anyhow::{Context, Result, bail};
use davit_apiserver::ServiceRanges;
use davit_controllers::NodeRanges;
use davit_netplan::{ENFORCES_POLICIES, Family, Network, PROXIES_SERVICES};
use davit_network::{Claims, CniOrOwn, DnsOptions, NodeNetwork, RangeError};
use davit_node::network_abilities::NetworkAbilities;
use davit_oci::network::{Loopback, Network as Connects};
use davit_oci::{Cni, CniOptions};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

/// Pods have a loopback device only.
const NO_NETWORK: NetworkAbilities = NetworkAbilities {
    host_ports: false,
    bandwidth: false,
};
/// Says that the node answers pods' questions for names; the controllers look for it.
const SERVES_DNS: &str = "davit.dev/cluster-dns";
/// Below the data directory: which range was chosen.
const CHOSEN: &str = "network/cluster-cidr";

/// What connects pods, and davit's own network where that is a part of it.
pub(crate) struct Opened {
    pub(crate) connects: Arc<dyn Connects>,
    own: Option<NodeNetwork>,
}

/// The ranges of a whole cluster in one process: as asked for, as chosen at its first start, or such that no other cluster
/// of this machine has. Of each family of Services there is one.
pub(crate) fn cluster_ranges(args: &Up, data_dir: &Path) -> Result<NodeRanges> {
    let network = args.node.pod_network()?;
    let has_links =
        !args.no_node && paths::is_root() && matches!(network, PodNetwork::Own | PodNetwork::Usual);
    let file = data_dir.join(CHOSEN);
    let before = std::fs::read_to_string(&file).ok();
    let before: Option<ClusterCidrs> = before.and_then(|text| text.trim().parse().ok());
    let services = args.server.services.service_cluster_ip_range;
    let given = args.cluster_cidr.clone().map(|given| given.0);
    let families: BTreeSet<Family> = services.families().collect();
    if let Some(given) = &given
        && given
            .iter()
            .map(|range| range.family())
            .collect::<BTreeSet<_>>()
            != families
    {
        bail!(
            "--cluster-cidr and --service-cluster-ip-range must be of the same IP families: pods reach Services of theirs only"
        );
    }
    let known = given.or(before.map(|before| before.0)).unwrap_or_default();
    let choices = services.families().map(|family| {
        let (first, within) = usual(family)?;
        let wanted = known.iter().find(|range| range.family() == family).copied();
        Ok((wanted, first, within))
    });
    let mut choices = choices.collect::<Result<Vec<_>>>()?;
    // the order is that of the flag
    if let Some(given) = &args.cluster_cidr {
        choices
            .sort_by_key(|(wanted, ..)| given.0.iter().position(|range| Some(*range) == *wanted));
    }
    let usual: Vec<Network> = choices
        .iter()
        .map(|(wanted, first, _)| wanted.unwrap_or(*first))
        .collect();
    let usual = args.node_sizes.ranges(&usual, services)?;
    if !has_links {
        return Ok(usual);
    }
    let claims = Claims::of_clusters();
    let mut claimed = Vec::new();
    for (wanted, first, within) in choices {
        let claim = match wanted {
            Some(range) => claims.claim(data_dir, range).map(|()| range),
            None => claims.choose(data_dir, first, within, &usual.services),
        };
        match claim {
            Ok(range) => claimed.push(range),
            // Whoever may not claim may not make links either, and runs without.
            Err(RangeError::Claims { dir, error }) if network == PodNetwork::Usual => {
                tracing::warn!(dir = %dir.display(), %error, "ranges of pods cannot be claimed");
                return Ok(usual);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let ranges = args.node_sizes.ranges(&claimed, services)?;
    std::fs::create_dir_all(data_dir.join("network"))
        .and_then(|()| std::fs::write(&file, format!("{}\n", ClusterCidrs(claimed))))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(ranges)
}

/// The first range of a family that a cluster tries to have, and where the others are that it tries.
fn usual(family: Family) -> Result<(Network, Network)> {
    let (first, within) = match family {
        Family::V4 => ("10.244.0.0/16", "10.0.0.0/8"),
        Family::V6 => ("fd00:10:244::/56", "fd00:10:200::/40"),
    };
    Ok((first.parse()?, within.parse()?))
}

/// Who does something for the network of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Its agent.
    Davit,
    /// Whoever is installed beside it, if anybody is.
    Others,
    /// It cannot be done.
    Nobody,
}

/// Has the node say who proxies Services and enforces network policies; the controllers tell whom it concerns.
fn say(node: &mut davit_node::NodeOptions, proxy: By, policies: By) {
    for (annotation, by) in [(PROXIES_SERVICES, proxy), (ENFORCES_POLICIES, policies)] {
        let value = match by {
            By::Davit => "true",
            By::Others => "external",
            By::Nobody => "false",
        };
        node.annotations
            .insert(annotation.to_owned(), value.to_owned());
    }
}

/// Opens what the flags name, and tells the node of it.
pub(crate) async fn open(
    options: &NodeOptions,
    node_paths: &NodePaths,
    data_dir: &Path,
    services: ServiceRanges,
    node: &mut davit_node::NodeOptions,
) -> Result<Opened> {
    let opened = choose(options, node_paths, data_dir, services, node).await?;
    if opened.own.is_none() {
        for (given, words) in [
            (options.proxy.given(), "this node proxies no Services"),
            (
                options.routes.given(),
                "davit does not connect pods on this node",
            ),
        ] {
            if !given.is_empty() {
                tracing::warn!("{}: {words}", given.join(", "));
            }
        }
    }
    Ok(opened)
}

async fn choose(
    options: &NodeOptions,
    node_paths: &NodePaths,
    data_dir: &Path,
    services: ServiceRanges,
    node: &mut davit_node::NodeOptions,
) -> Result<Opened> {
    let cni = |conf_dir: PathBuf| CniOptions {
        conf_dir,
        bin_dirs: options.cni_bin_dir.clone(),
        cache_dir: data_dir.join("cni/results"),
        wished_addresses: options.cni_pod_ips,
    };
    let alone = |connects: Arc<dyn Connects>| Opened {
        connects,
        own: None,
    };
    let network = options.pod_network()?;
    if options.cni_pod_ips && matches!(network, PodNetwork::Own | PodNetwork::None) {
        tracing::warn!("--cni-pod-ips: no CNI plugin of davit's connects pods on this node");
    }
    match network {
        PodNetwork::None => {
            match options.runtime()? {
                RuntimeKind::Embedded => {
                    node.network = NO_NETWORK;
                    say(node, By::Nobody, By::Nobody);
                }
                RuntimeKind::None => say(node, By::Nobody, By::Nobody),
                // other runtimes connect pods themselves
                RuntimeKind::Cri(_) => say(node, By::Others, By::Others),
            }
            return Ok(alone(Arc::new(Loopback)));
        }
        PodNetwork::Cni(dir) => {
            tracing::info!(
                "pods are connected by CNI plugins: network policies are theirs to enforce"
            );
            say(node, By::Others, By::Others);
            return Ok(alone(Arc::new(Cni::new(cni(dir)))));
        }
        PodNetwork::Bridge(networks) => {
            tracing::warn!(
                "pods are connected by a bridge: nobody enforces network policies on this node"
            );
            say(node, By::Others, By::Nobody);
            let dir = bridge::write(&networks, &options.cni_bin_dir, data_dir)?;
            return Ok(alone(Arc::new(Cni::new(cni(dir)))));
        }
        PodNetwork::Own | PodNetwork::Usual => {}
    }
    let usual = network == PodNetwork::Usual;
    let made = davit_network::Options {
        node: node.node_name.clone(),
        data_dir: data_dir.to_owned(),
        dns: options.dns.then(|| DnsOptions {
            domain: node.cluster_dns.domain.clone(),
            resolv_conf: node.resolv_conf.clone(),
        }),
        proxy: options.proxy.options(node.address)?,
        ways: options.routes.options(),
        strict_policies: options.network_policy_strict,
    };
    let opening = tokio::task::spawn_blocking(|| NodeNetwork::open(made));
    let own = match opening.await.context("the pods' network")? {
        Ok(own) => own,
        Err(error) if usual => {
            tracing::warn!(%error, "pods have a loopback device only: this machine does not let davit make links");
            node.network = NO_NETWORK;
            say(node, By::Nobody, By::Nobody);
            return Ok(alone(Arc::new(Loopback)));
        }
        Err(error) => return Err(error).context("--pod-network=own"),
    };
    say(node, By::Davit, By::Davit);
    let serves = if options.dns { "true" } else { "false" };
    let annotation = (SERVES_DNS.to_owned(), serves.to_owned());
    node.annotations.extend([annotation]);
    if options.dns && node.cluster_dns.servers.is_empty() {
        node.cluster_dns.servers = vec![services.primary().dns().to_string()];
    }
    node.network = NetworkAbilities::ALL;
    let links = own.links();
    let connects: Arc<dyn Connects> = if usual {
        Arc::new(CniOrOwn::new(cni(node_paths.cni_conf()), links))
    } else {
        Arc::new(links)
    };
    Ok(Opened {
        connects,
        own: Some(own),
    })
}

/// Keeps the node's network until `cancel`. When pods can be connected, `gateway` learns by which address they reach this
/// machine, and the node looks at itself again.
pub(crate) async fn run(
    opened: Opened,
    client: kube::Client,
    gateway: Option<oneshot::Sender<Vec<IpAddr>>>,
    look: Arc<Notify>,
    cancel: CancellationToken,
) {
    let Some(own) = opened.own else { return };
    let mut found = own.gateways();
    let tell = async {
        let addresses = found.wait_for(|found| !found.is_empty()).await;
        let addresses = addresses.ok().map(|addresses| addresses.clone());
        if let (Some(addresses), Some(gateway)) = (addresses, gateway) {
            // nobody listens when the server is reached anyway
            let _ = gateway.send(addresses);
        }
        look.notify_one();
    };
    tokio::join!(own.run(client, cancel), tell);
}
