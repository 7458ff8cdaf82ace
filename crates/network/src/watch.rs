//! The network of a node: what is opened once, and what runs as long as the node does.

use crate::announce::{Announcer, Unannounced};
use crate::follower::{Follower, Host, all};
use crate::node::{self, Seen};
use crate::pods::PodLinks;
use crate::ranges::{self, Claims};
use crate::tables::Tables;
use crate::told::ProxyOptions;
use crate::ways::{Lost, WayOptions, Ways};
use crate::{
    DnsOptions, Error, dns, failed, links_of, metric_of, policy, presence, sweep, table_of,
};
use davit_client::EventRecorder;
use davit_net::nft::HeldTable;
use davit_netplan::{Network, RangesByNode};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
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
    /// How the pods of other nodes are reached.
    pub ways: WayOptions,
    /// Connections that stand end when a network policy forbids them.
    pub strict_policies: bool,
}

/// A node's network.
#[derive(Debug)]
pub struct NodeNetwork {
    options: Options,
    tables: Arc<Tables>,
    links: PodLinks,
    ways: Ways,
    announcer: Announcer,
    gateways: watch::Sender<Vec<IpAddr>>,
    /// Where nodes answer questions for names.
    resolvers: watch::Sender<BTreeSet<IpAddr>>,
    /// The ranges of pods of all nodes, once they are known.
    ranges: watch::Sender<Option<RangesByNode>>,
    /// Tells others that these tables are used.
    _present: Option<HeldTable>,
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
        let present = presence(&options.data_dir).hold();
        // Before Linux 5.12 nobody can tell, and nothing is taken from whoever may live.
        let present = present
            .inspect_err(
                |error| tracing::info!(%error, "tables of clusters that are gone are left"),
            )
            .ok();
        sweep(&options.data_dir, present.as_ref())?;
        let links = links_of(&options.data_dir);
        let tables = Tables::open(&table_of(&links), &links, Some(&options.data_dir));
        let tables = Arc::new(tables.map_err(failed("nf_tables"))?);
        // which the rules have the kernel remember connections for
        options.proxy.conntrack.set();
        let dir = options.data_dir.join("network/pods");
        let metric = metric_of(&options.data_dir);
        let ways = Ways::new(options.ways, tables.clone(), metric);
        let announcer = Announcer::new(&options.data_dir, tables.clone());
        let links = PodLinks::open(dir, tables.clone());
        Ok(Self {
            _present: present,
            options,
            tables,
            links: links.map_err(failed("records of pods' networks"))?,
            ways,
            announcer,
            gateways: watch::channel(Vec::new()).0,
            resolvers: watch::channel(BTreeSet::new()).0,
            ranges: watch::channel(None).0,
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
            strict: self.options.strict_policies,
            namespaces: namespaces.clone(),
            resolvers: self.resolvers.subscribe(),
            ranges: self.ranges.subscribe(),
        };
        let links = self.links();
        let (tables, node) = (self.tables.clone(), self.options.node.clone());
        let proxy = self.options.proxy.clone();
        let component = "route-controller";
        let events =
            EventRecorder::spawn(client.clone(), component, &node, &mut tasks, cancel.clone());
        let hosted = Hosted {
            network: self,
            events,
            lost: Mutex::default(),
            unannounced: Mutex::default(),
        };
        let mut follower = Follower::start(
            Arc::new(hosted),
            tables.clone(),
            node,
            proxy,
            &client,
            &mut tasks,
            &cancel,
        );
        let table = policy::Table {
            tables,
            links,
            metrics: follower.policies(),
        };
        tasks.spawn(policy::run(client.clone(), known, table, cancel.clone()));
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

/// A network that says on its node what is missing.
struct Hosted {
    network: NodeNetwork,
    events: EventRecorder,
    /// What was said last.
    lost: Mutex<Lost>,
    unannounced: Mutex<Unannounced>,
}

impl Host for Hosted {
    fn adjust(&self, seen: &Seen) -> Result<(), Error> {
        self.tell(self.network.adjust(seen)?);
        self.announce(seen)
    }

    fn keep(&self, seen: &Seen) -> Result<(), Error> {
        let ways = &self.network.ways;
        self.tell(ways.write(&ways.plan(seen)?)?);
        self.announce(seen)
    }

    fn restored(&self) -> Result<(), Error> {
        let entered = self.network.links.enter_all();
        entered.map_err(failed("pods' ports"))
    }
}

impl Hosted {
    /// Says to whose pods there is no way, once.
    fn tell(&self, lost: Lost) {
        let mut told = self.lost.lock();
        for (node, why) in lost
            .iter()
            .filter(|(node, why)| told.get(node) != Some(*why))
        {
            let words = format!("no way to the pods of the node at {node}: {why}");
            self.warn("FailedToCreateRoute", words);
        }
        *told = lost;
    }

    /// Answers for addresses of load balancers; says once for which it cannot.
    fn announce(&self, seen: &Seen) -> Result<(), Error> {
        let not = self.network.announcer.write(&seen.announced)?;
        let mut told = self.unannounced.lock();
        for (address, why) in not.iter().filter(|(at, why)| told.get(at) != Some(*why)) {
            let words = format!("nobody answers for {address}: {why}");
            self.warn("FailedToAnnounceAddress", words);
        }
        *told = not;
        Ok(())
    }

    fn warn(&self, reason: &str, words: String) {
        tracing::warn!("{words}");
        let about = policy::reference(&self.network.options.node);
        self.events.warning(&about, reason, words);
    }
}

impl NodeNetwork {
    /// Brings the kernel to what is seen; the nodes to whose pods there is no way.
    fn adjust(&self, seen: &Seen) -> Result<Lost, Error> {
        self.ranges.send_if_modified(|known| {
            let differ = known.as_ref() != Some(&seen.ranges);
            *known = Some(seen.ranges.clone());
            differ
        });
        node::write_sets(&self.tables, seen).map_err(failed("sets of addresses"))?;
        let own = seen.own.iter().filter(|_| self.options.dns.is_some());
        let resolvers = own.chain(seen.others.keys()).copied();
        self.resolvers
            .send_replace(resolvers.map(Network::gateway).collect());
        let plan = self.ways.plan(seen)?;
        self.links.set_mtu(plan.mtu);
        if !seen.own.is_empty() {
            let taken = self.take(&seen.own);
            self.links
                .set_fault(taken.as_ref().err().map(ToString::to_string));
            taken?;
        }
        self.ways.write(&plan)
    }

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
