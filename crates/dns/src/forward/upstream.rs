//! Servers to ask, and which of them are worth it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};
use rand::seq::SliceRandom;
use tokio::time::Instant;

use super::exchange::{self, ExchangeError, Heard};
use super::{ForwardError, Times, Upstreams};

/// One server.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    /// Set by a question without answer, cleared by a probe that has one.
    failing: AtomicBool,
}

/// Which servers to ask for which names.
#[derive(Debug, Default)]
pub(super) struct Routes {
    default: Vec<Arc<Upstream>>,
    stubs: HashMap<Name, Vec<Arc<Upstream>>>,
}

impl Routes {
    /// Checks a configuration; servers that stay keep what is known of them.
    pub(super) fn new(
        upstreams: &Upstreams,
        own: &[SocketAddr],
        before: &Self,
    ) -> Result<Self, ForwardError> {
        let mut known: HashMap<SocketAddr, Arc<Upstream>> = HashMap::new();
        for upstream in before.default.iter().chain(before.stubs.values().flatten()) {
            known.insert(upstream.address, upstream.clone());
        }
        let mut resolve = |addresses: &[SocketAddr]| -> Result<Vec<Arc<Upstream>>, ForwardError> {
            let servers = addresses.iter().map(|address| {
                if own.iter().any(|own| same(*own, *address)) {
                    return Err(ForwardError::Loop(*address));
                }
                let fresh = || {
                    Arc::new(Upstream {
                        address: *address,
                        failing: AtomicBool::new(false),
                    })
                };
                Ok(known.entry(*address).or_insert_with(fresh).clone())
            });
            servers.collect()
        };
        let mut stubs = HashMap::new();
        for (domain, servers) in &upstreams.stubs {
            let name =
                Name::from_ascii(domain).map_err(|_| ForwardError::Domain(domain.clone()))?;
            if servers.is_empty() {
                return Err(ForwardError::NoServers(domain.clone()));
            }
            let mut name = name.to_lowercase();
            name.set_fqdn(true);
            stubs.insert(name, resolve(servers)?);
        }
        Ok(Self {
            default: resolve(&upstreams.default)?,
            stubs,
        })
    }

    /// The servers of the longest domain that holds the name.
    pub(super) fn servers(&self, name: &Name) -> &[Arc<Upstream>] {
        let mut domain = name.clone();
        while !self.stubs.is_empty() && !domain.is_root() {
            if let Some(servers) = self.stubs.get(&domain) {
                return servers;
            }
            domain = domain.base_name();
        }
        self.stubs.get(&domain).unwrap_or(&self.default)
    }
}

/// Whether a question to `address` comes back to the socket at `own`.
fn same(own: SocketAddr, address: SocketAddr) -> bool {
    let (mine, theirs) = (own.ip().to_canonical(), address.ip().to_canonical());
    let everywhere = mine.is_unspecified() && theirs.is_loopback();
    // The kernel takes the unspecified address for its own loopback one.
    let nowhere = theirs.is_unspecified() && (mine.is_loopback() || mine.is_unspecified());
    own.port() == address.port() && (mine == theirs || everywhere || nowhere)
}

/// The order to ask in: those that answer at random, then one of those that do not, since it may again by
/// now. A lonely server is asked twice: one datagram is easily lost.
pub(super) fn order(servers: &[Arc<Upstream>]) -> Vec<Arc<Upstream>> {
    let mut shuffled = servers.to_vec();
    shuffled.shuffle(&mut rand::rng());
    let (mut order, failing): (Vec<_>, Vec<_>) = shuffled
        .into_iter()
        .partition(|server| !server.is_failing());
    order.extend(failing.into_iter().next());
    if let [only] = order.as_slice() {
        order.push(only.clone());
    }
    order
}

impl Upstream {
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Asks this server; when it does not answer, probes begin.
    pub(super) async fn ask(
        self: &Arc<Self>,
        query: &Query,
        times: Times,
        end: Instant,
    ) -> Result<Heard, ExchangeError> {
        let heard = exchange::ask(self.address, query, times.attempt, end).await;
        match &heard {
            Ok(_) => self.failing.store(false, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(server = %self.address, name = %query.name, %error, "no answer");
                let theirs = !matches!(error, ExchangeError::Local(_));
                if theirs && !self.failing.swap(true, Ordering::Relaxed) {
                    tokio::spawn(probe(Arc::downgrade(self), times));
                }
            }
        }
        heard
    }
}

/// Asks for the servers of the root until there is an answer, or nobody wants to know any more.
async fn probe(upstream: Weak<Upstream>, times: Times) {
    let query = Query::query(Name::root(), RecordType::NS);
    loop {
        tokio::time::sleep(times.probe).await;
        let address = match upstream.upgrade() {
            Some(upstream) if upstream.is_failing() => upstream.address,
            _ => return,
        };
        let end = Instant::now() + times.attempt;
        let heard = exchange::ask(address, &query, times.attempt, end).await;
        if let (Ok(_), Some(upstream)) = (heard, upstream.upgrade()) {
            upstream.failing.store(false, Ordering::Relaxed);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn loops_are_seen() {
        for (own, other, expected) in [
            ("10.0.0.1:53", "10.0.0.1:53", true),
            ("10.0.0.1:53", "10.0.0.1:5353", false),
            ("10.0.0.1:53", "10.0.0.2:53", false),
            ("10.0.0.1:53", "[::ffff:10.0.0.1]:53", true),
            ("0.0.0.0:53", "127.0.0.1:53", true),
            ("127.0.0.1:53", "0.0.0.0:53", true),
        ] {
            assert_eq!(
                same(address(own), address(other)),
                expected,
                "{own} {other}"
            );
        }
    }

    #[test]
    fn the_longest_domain_decides() {
        let upstreams = Upstreams {
            default: vec![address("10.0.0.1:53")],
            stubs: HashMap::from([
                ("Corp.example".to_owned(), vec![address("10.0.0.2:53")]),
                (
                    "deep.corp.example.".to_owned(),
                    vec![address("10.0.0.3:53")],
                ),
            ]),
        };
        let routes = Routes::new(&upstreams, &[], &Routes::default()).unwrap();
        for (name, expected) in [
            ("example.", "10.0.0.1:53"),
            (".", "10.0.0.1:53"),
            ("a.CORP.example.", "10.0.0.2:53"),
            ("corp.example.", "10.0.0.2:53"),
            ("x.deep.corp.example.", "10.0.0.3:53"),
            ("notcorp.example.", "10.0.0.1:53"),
        ] {
            let servers = routes.servers(&Name::from_str(name).unwrap());
            assert_eq!(servers[0].address, address(expected), "{name}");
        }
    }

    #[test]
    fn configurations_are_checked() {
        let own = [address("10.0.0.1:53")];
        let before = Routes::default();
        let check = |upstreams: &Upstreams| Routes::new(upstreams, &own, &before).unwrap_err();
        let to_itself = Upstreams {
            default: own.to_vec(),
            stubs: HashMap::new(),
        };
        assert!(matches!(check(&to_itself), ForwardError::Loop(_)));
        let stub = |domain: &str, servers: Vec<SocketAddr>| Upstreams {
            default: Vec::new(),
            stubs: HashMap::from([(domain.to_owned(), servers)]),
        };
        assert!(matches!(
            check(&stub("a.example", own.to_vec())),
            ForwardError::Loop(_)
        ));
        assert!(matches!(
            check(&stub("a.example", Vec::new())),
            ForwardError::NoServers(_)
        ));
        assert!(matches!(
            check(&stub("a..example", own.to_vec())),
            ForwardError::Domain(_)
        ));
    }

    #[test]
    fn failing_servers_come_last() {
        let upstreams = Upstreams {
            default: (1..=4)
                .map(|last| address(&format!("10.0.0.{last}:53")))
                .collect(),
            stubs: HashMap::new(),
        };
        let routes = Routes::new(&upstreams, &[], &Routes::default()).unwrap();
        routes.default[0].failing.store(true, Ordering::Relaxed);
        routes.default[1].failing.store(true, Ordering::Relaxed);
        for _ in 0..20 {
            let order = order(&routes.default);
            let failing: Vec<bool> = order.iter().map(|server| server.is_failing()).collect();
            assert_eq!(failing, [false, false, true]);
        }
        assert_eq!(order(&routes.default[..1]).len(), 2);
        assert!(order(&[]).is_empty());
    }
}
