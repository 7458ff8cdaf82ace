//! The network of a node: what is opened once, and what runs as long as the node does.

use crate::follower::{Follower, Host, all};
use crate::node::{self, Seen};
use crate::pods::PodLinks;
use crate::ranges::{self, Claims};
use crate::tables::Tables;
use crate::told::ProxyOptions;
use crate::{DnsOptions, Error, dns, failed, links_of, metric_of, policy, sweep, table_of};
use davit_netplan::Network;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What a node's network is made from.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name.
    pub node: String,
    /// Where state lives; `network` below it. It also tells several clusters of one machine apart.
    pub data_dir: PathBuf,
    /// Answers pods' questions for names; nobody does without.
    pub dns: Option<DnsOptions>,
    /// What of the Service proxy can be chosen.
    pub proxy: ProxyOptions,
}

/// A node's network.
#[derive(Debug)]
pub struct NodeNetwork {
    options: Options,
    tables: Arc<Tables>,
    links: PodLinks,
    gateways: watch::Sender<Vec<IpAddr>>,
    /// Where nodes answer questions for names.
    resolvers: watch::Sender<BTreeSet<IpAddr>>,
}

impl NodeNetwork {
    /// Takes over what an earlier run left in the kernel. Blocks.
    ///
    /// # Errors
    /// Without the right to change the network, or a kernel without nf_tables; when the state cannot be read.
    pub fn open(options: Options) -> Result<Self, Error> {
        if let Some(dns) = &options.dns {
            dns::check(dns)?;
        }
        sweep(&options.data_dir)?;
        let links = links_of(&options.data_dir);
        let tables = Tables::open(&table_of(&links), &links);
        let tables = Arc::new(tables.map_err(failed("nf_tables"))?);
        let dir = options.data_dir.join("network/pods");
        let links = PodLinks::open(dir, tables.clone());
        Ok(Self {
            options,
            tables,
            links: links.map_err(failed("records of pods' networks"))?,
            gateways: watch::channel(Vec::new()).0,
            resolvers: watch::channel(BTreeSet::new()).0,
        })
    }

    /// What connects pods.
    #[must_use]
    pub fn links(&self) -> PodLinks {
        self.links.clone()
    }

    /// The addresses of this node by which its pods reach everything, once there are any: one of each family that they have,
    /// the first one first.
    #[must_use]
    pub fn gateways(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.gateways.subscribe()
    }

    /// Follows the API until `cancel` is cancelled.
    pub fn run(self, client: kube::Client, cancel: CancellationToken) -> BoxFuture<'static, ()> {
        self.run_until(client, cancel).boxed()
    }

    async fn run_until(self, client: kube::Client, cancel: CancellationToken) {
        let mut tasks = JoinSet::new();
        let (options, gateways) = (self.options.dns.clone(), self.gateways());
        let namespaces = all(&client, &mut tasks, &cancel);
        let known = policy::Known {
            node: self.options.node.clone(),
            namespaces: namespaces.clone(),
            resolvers: self.resolvers.subscribe(),
        };
        let table = policy::Table {
            tables: self.tables.clone(),
            links: self.links(),
        };
        tasks.spawn(policy::run(client.clone(), known, table, cancel.clone()));
        let (tables, node) = (self.tables.clone(), self.options.node.clone());
        let proxy = self.options.proxy.clone();
        let mut follower = Follower::start(
            Arc::new(self),
            tables,
            node,
            proxy,
            &client,
            &mut tasks,
            &cancel,
        );
        if let Some(options) = options {
            let sources = dns::Sources {
                services: follower.services.services.clone(),
                slices: follower.services.slices.clone(),
                namespaces,
                settings: dns::settings(&client, &mut tasks, &cancel),
            };
            tasks.spawn(dns::run_at_gateways(
                options,
                sources,
                gateways,
                cancel.clone(),
            ));
        }
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = follower.run() => {}
        }
        tasks.shutdown().await;
    }
}

impl Host for NodeNetwork {
    fn adjust(&self, seen: &Seen) -> Result<(), Error> {
        node::write_sets(&self.tables, seen).map_err(failed("sets of addresses"))?;
        let own = seen.own.iter().filter(|_| self.options.dns.is_some());
        let resolvers = own.chain(seen.others.keys()).copied();
        self.resolvers
            .send_replace(resolvers.map(Network::gateway).collect());
        if !seen.own.is_empty() {
            let taken = self.take(&seen.own);
            self.links
                .set_fault(taken.as_ref().err().map(ToString::to_string));
            taken?;
        }
        let metric = metric_of(&self.options.data_dir);
        let lost = node::write_routes(seen, metric).map_err(failed("routes to other nodes"))?;
        for node in lost {
            tracing::warn!(%node, "a node on none of this machine's networks: no way to its pods");
        }
        Ok(())
    }

    fn restored(&self) -> Result<(), Error> {
        let entered = self.links.enter_all();
        entered.map_err(failed("pods' ports"))
    }
}

impl NodeNetwork {
    fn take(&self, ranges: &[Network]) -> Result<(), Error> {
        for range in ranges {
            ranges::check_free(*range)?;
            Claims::of_nodes().claim(&self.options.data_dir, *range)?;
        }
        let made = node::become_gateway(ranges, &self.links);
        made.map_err(failed("gateway of the pods"))?;
        let gateways = ranges.iter().copied().map(Network::gateway);
        self.gateways.send_replace(gateways.collect());
        Ok(())
    }
}
