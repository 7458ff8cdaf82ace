//! The Service proxy alone, beside pods that others connect: what kube-proxy is elsewhere.

use crate::follower::{Follower, Host};
use crate::node::{self, Seen};
use crate::ruleset::table;
use crate::tables::Tables;
use crate::told::ProxyOptions;
use crate::{Error, failed, remove_table};
use davit_netplan::{Family, Network};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The one table of the proxies of this machine that run alone.
const TABLE: &str = "davit-proxy";
/// With what no link begins: it connects no pods.
const NO_LINKS: &str = "dvt-none";

/// Which connections come from pods of the cluster: they keep their sources on the way to cluster addresses, and reach
/// external ones as from within (`detectLocalMode`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LocalPods {
    /// It is not known: nothing is masqueraded on the way to cluster addresses, and nobody is inside.
    #[default]
    Unknown,
    /// Those from these ranges (`ClusterCIDR`).
    Within(BTreeSet<Network>),
    /// Those from the node's own range (`NodeCIDR`).
    OfNode,
}

/// What a proxy that runs alone is made from.
#[derive(Debug, Clone, Default)]
pub struct ProxyAlone {
    /// The name of its node.
    pub node: String,
    /// What it does there.
    pub proxy: ProxyOptions,
    /// Who is inside the cluster.
    pub pods: LocalPods,
    /// Masquerades whatever goes to cluster addresses.
    pub masquerade_all: bool,
}

struct Alone {
    tables: Arc<Tables>,
    inside: Inside,
}

/// Who is inside the cluster, and what follows from it.
struct Inside {
    pods: LocalPods,
    masquerade_all: bool,
}

impl Host for Alone {
    fn adjust(&self, seen: &Seen) -> Result<(), Error> {
        let seen = self.inside.sets(seen);
        node::write_sets(&self.tables, &seen).map_err(failed("sets of addresses"))
    }

    fn keep(&self, _: &Seen) -> Result<(), Error> {
        Ok(())
    }

    fn restored(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl Inside {
    /// Of what is seen, what is a proxy's matter: pods and routes are others'.
    fn sets(&self, seen: &Seen) -> Seen {
        let pods = match &self.pods {
            LocalPods::Unknown => BTreeSet::new(),
            LocalPods::Within(ranges) => ranges.clone(),
            LocalPods::OfNode => seen.own.iter().copied().collect(),
        };
        let unmasked = match (&self.pods, self.masquerade_all) {
            (_, true) => BTreeSet::new(),
            (LocalPods::Unknown, false) => Family::ALL.map(Family::everything).into(),
            (_, false) => pods.clone(),
        };
        Seen {
            addresses: seen.addresses.clone(),
            services: seen.services.clone(),
            foreign: pods,
            unmasked,
            ..Seen::default()
        }
    }
}

impl ProxyAlone {
    /// Proxies Services until `cancel` is cancelled. What stands in the kernel stays then.
    ///
    /// # Errors
    /// Without the right to change the network, or a kernel without nf_tables.
    pub fn run(
        self,
        client: kube::Client,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.run_until(client, cancel).boxed()
    }

    async fn run_until(self, client: kube::Client, cancel: CancellationToken) -> Result<(), Error> {
        let conntrack = self.proxy.conntrack;
        let opening = tokio::task::spawn_blocking(move || {
            let tables = Tables::open(TABLE, NO_LINKS, None)?;
            conntrack.set();
            Ok(tables)
        });
        let opened = opening.await.map_err(std::io::Error::other);
        let tables = opened.and_then(|opened| opened);
        let tables = Arc::new(tables.map_err(failed("nf_tables"))?);
        let host = Arc::new(Alone {
            tables: tables.clone(),
            inside: Inside {
                pods: self.pods,
                masquerade_all: self.masquerade_all,
            },
        });
        let mut tasks = JoinSet::new();
        let mut follower = Follower::start(
            host, tables, self.node, self.proxy, &client, &mut tasks, &cancel,
        );
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = follower.run() => {}
        }
        tasks.shutdown().await;
        Ok(())
    }

    /// Takes away what such a proxy has left in the kernel. Blocks.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn clean_up() -> Result<(), Error> {
        for family in Family::ALL {
            let removed = remove_table(&table(TABLE, family));
            removed.map_err(failed("removing the table"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_proxys_matter() {
        let range = |text: &str| text.parse::<Network>().unwrap();
        let seen = Seen {
            own: vec![range("10.244.3.0/24")],
            services: [range("10.96.0.0/16")].into(),
            ..Seen::default()
        };
        let sets = |pods: LocalPods, masquerade_all| {
            let inside = Inside {
                pods,
                masquerade_all,
            };
            let sets = inside.sets(&seen);
            assert_eq!((sets.own.len(), sets.services.len()), (0, 1));
            let texts = |set: BTreeSet<Network>| -> Vec<String> {
                set.iter().map(ToString::to_string).collect()
            };
            (texts(sets.foreign), texts(sets.unmasked))
        };
        let none: Vec<String> = Vec::new();
        let own = vec!["10.244.3.0/24".to_owned()];
        let all = vec!["10.244.0.0/16".to_owned()];
        let everywhere = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
        assert_eq!(sets(LocalPods::Unknown, false), (none.clone(), everywhere));
        assert_eq!(sets(LocalPods::Unknown, true), (none.clone(), none.clone()));
        assert_eq!(sets(LocalPods::OfNode, false), (own.clone(), own));
        let within = LocalPods::Within([range("10.244.0.0/16")].into());
        assert_eq!(sets(within.clone(), false), (all.clone(), all.clone()));
        assert_eq!(sets(within, true), (all, none));
    }
}
