//! The network of a node: what is opened once, and what runs as long as the node does.

use crate::follower::{Follower, Host, all};
use crate::node::{self, Seen};
use crate::pods::PodLinks;
use crate::ranges::{self, Claims};
use crate::ruleset::Ruleset;
use crate::told::ProxyOptions;
use crate::{DnsOptions, Error, dns, failed, links_of, metric_of, policy, sweep, table_of};
use davit_netplan::Network;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
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
    ruleset: Arc<Ruleset>,
    links: PodLinks,
    gateway: watch::Sender<Option<Ipv4Addr>>,
    /// Where nodes answer questions for names.
    resolvers: watch::Sender<BTreeSet<Ipv4Addr>>,
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
        let ruleset = Ruleset::open(&table_of(&links), &links);
        let ruleset = Arc::new(ruleset.map_err(failed("nf_tables"))?);
        let dir = options.data_dir.join("network/pods");
        let links = PodLinks::open(dir, ruleset.clone(), &links);
        Ok(Self {
            options,
            ruleset,
            links: links.map_err(failed("records of pods' networks"))?,
            gateway: watch::channel(None).0,
            resolvers: watch::channel(BTreeSet::new()).0,
        })
    }

    /// What connects pods.
    #[must_use]
    pub fn links(&self) -> PodLinks {
        self.links.clone()
    }

    /// The address of this node by which its pods reach everything, once there is one.
    #[must_use]
    pub fn gateway(&self) -> watch::Receiver<Option<Ipv4Addr>> {
        self.gateway.subscribe()
    }

    /// Follows the API until `cancel` is cancelled.
    pub fn run(self, client: kube::Client, cancel: CancellationToken) -> BoxFuture<'static, ()> {
        self.run_until(client, cancel).boxed()
    }

    async fn run_until(self, client: kube::Client, cancel: CancellationToken) {
        let mut tasks = JoinSet::new();
        let (options, gateway) = (self.options.dns.clone(), self.gateway());
        let namespaces = all(&client, &mut tasks, &cancel);
        let known = policy::Known {
            node: self.options.node.clone(),
            namespaces: namespaces.clone(),
            resolvers: self.resolvers.subscribe(),
        };
        let table = policy::Table {
            ruleset: self.ruleset.clone(),
            links: self.links(),
        };
        tasks.spawn(policy::run(client.clone(), known, table, cancel.clone()));
        let (ruleset, node) = (self.ruleset.clone(), self.options.node.clone());
        let proxy = self.options.proxy.clone();
        let mut follower = Follower::start(
            Arc::new(self),
            ruleset,
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
            tasks.spawn(dns::run_at_gateway(
                options,
                sources,
                gateway,
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
        node::write_sets(&self.ruleset, seen).map_err(failed("sets of addresses"))?;
        let own = seen.own.filter(|_| self.options.dns.is_some());
        let resolvers = own.into_iter().chain(seen.others.keys().copied());
        self.resolvers
            .send_replace(resolvers.map(Network::gateway).collect());
        if let Some(range) = seen.own {
            let taken = self.take(range);
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
    fn take(&self, range: Network) -> Result<(), Error> {
        ranges::check_free(range)?;
        Claims::of_nodes().claim(&self.options.data_dir, range)?;
        let made = node::become_gateway(range, &self.links);
        made.map_err(failed("gateway of the pods"))?;
        self.gateway.send_replace(Some(range.gateway()));
        Ok(())
    }
}
