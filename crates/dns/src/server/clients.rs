//! What each client may use, so that one cannot take it from the others (spec network.md 10.10).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Limits;

/// How much of its rate a client may use at once.
const BURST: Duration = Duration::from_secs(1);

/// How often a full table is searched for clients that are gone.
const SWEEP: Duration = Duration::from_millis(100);

/// The part of its share that a client has where many wait.
const IN_A_CROWD: usize = 16;

/// What a client holds for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientHold {
    Connection,
    Forward,
}

#[derive(Debug)]
struct Client {
    /// The time up to which its questions have used its rate.
    used: Instant,
    connections: usize,
    forwards: usize,
}

impl Client {
    fn new(now: Instant) -> Self {
        Self {
            used: now,
            connections: 0,
            forwards: 0,
        }
    }

    /// Whether forgetting it would change nothing.
    fn is_idle(&self, now: Instant) -> bool {
        self.used <= now && self.connections == 0 && self.forwards == 0
    }

    fn count(&mut self, held: ClientHold) -> &mut usize {
        match held {
            ClientHold::Connection => &mut self.connections,
            ClientHold::Forward => &mut self.forwards,
        }
    }
}

#[derive(Debug)]
struct Table {
    clients: HashMap<IpAddr, Client>,
    /// All whom the table has no room for share one allowance.
    others: Client,
    /// What all clients together have of [`ClientHold::Forward`].
    forwards: usize,
    swept: Instant,
}

/// The clients of a server, at most as many as its limits say.
#[derive(Debug)]
pub(super) struct Clients {
    limits: Limits,
    table: Mutex<Table>,
}

impl Clients {
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        let table = Table {
            clients: HashMap::new(),
            others: Client::new(now),
            forwards: 0,
            swept: now,
        };
        Self {
            limits,
            table: Mutex::new(table),
        }
    }

    /// Whether a client may ask now; if so, that counts.
    pub(super) fn admit(&self, address: IpAddr, now: Instant) -> bool {
        let mut table = self.table.lock();
        let (client, _) = table.client(address, self.limits.clients, now);
        let rate = self.limits.queries_per_second.max(1);
        let used = client.used.max(now) + Duration::from_secs(1) / rate;
        if used > now + BURST {
            return false;
        }
        client.used = used;
        true
    }

    /// Lets a client hold one more, until the claim is dropped; none when it has its share.
    pub(super) fn claim(
        self: &Arc<Self>,
        address: IpAddr,
        held: ClientHold,
        now: Instant,
    ) -> Option<Claim> {
        let mut table = self.table.lock();
        let share = self.limits.forwards_per_client;
        let most = match held {
            ClientHold::Connection => self.limits.connections_per_client,
            ClientHold::Forward if table.forwards < self.limits.crowd => share,
            ClientHold::Forward => (share / IN_A_CROWD).max(1),
        };
        let (client, key) = table.client(address, self.limits.clients, now);
        let count = client.count(held);
        if *count >= most {
            return None;
        }
        *count += 1;
        if held == ClientHold::Forward {
            table.forwards += 1;
        }
        Some(Claim {
            clients: self.clone(),
            key,
            held,
        })
    }
}

impl Table {
    /// The account of a client, and its key: none for that of all others.
    fn client(
        &mut self,
        address: IpAddr,
        most: usize,
        now: Instant,
    ) -> (&mut Client, Option<IpAddr>) {
        let address = address.to_canonical();
        let full = self.clients.len() >= most && !self.clients.contains_key(&address);
        if full && now.duration_since(self.swept) >= SWEEP {
            self.swept = now;
            self.clients.retain(|_, client| !client.is_idle(now));
        }
        if full && self.clients.len() >= most {
            return (&mut self.others, None);
        }
        let client = self
            .clients
            .entry(address)
            .or_insert_with(|| Client::new(now));
        (client, Some(address))
    }
}

/// Something a client holds.
#[derive(Debug)]
pub(super) struct Claim {
    clients: Arc<Clients>,
    key: Option<IpAddr>,
    held: ClientHold,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.clients.table.lock();
        if self.held == ClientHold::Forward {
            table.forwards = table.forwards.saturating_sub(1);
        }
        // Who holds something is not idle, so the account is still there.
        let client = match self.key {
            Some(key) => table.clients.get_mut(&key),
            None => Some(&mut table.others),
        };
        if let Some(client) = client {
            let count = client.count(self.held);
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from(number).into()
    }

    fn clients(limits: Limits, now: Instant) -> Arc<Clients> {
        Arc::new(Clients::new(limits, now))
    }

    #[test]
    fn one_client_does_not_slow_another() {
        let now = Instant::now();
        let clients = clients(Limits::default(), now);
        let admitted = (0..5000).filter(|_| clients.admit(address(1), now)).count();
        assert_eq!(admitted, 1000);
        assert!(clients.admit(address(2), now));
        let later = now + Duration::from_millis(100);
        let admitted = (0..5000)
            .filter(|_| clients.admit(address(1), later))
            .count();
        assert_eq!(admitted, 100);
    }

    #[test]
    fn the_table_is_bounded() {
        let now = Instant::now();
        let limits = Limits {
            clients: 10,
            queries_per_second: 5,
            ..Limits::default()
        };
        let clients = clients(limits, now);
        let admitted = (0..1000)
            .filter(|number| clients.admit(address(*number), now))
            .count();
        assert_eq!(admitted, 10 + 5);
        assert_eq!(clients.table.lock().clients.len(), 10);
        let later = now + Duration::from_secs(2);
        assert!(clients.admit(address(5000), later));
        assert_eq!(clients.table.lock().clients.len(), 1);
    }

    /// Names that their servers never answer wait for seconds each.
    #[test]
    fn few_clients_do_not_leave_nothing_to_the_others() {
        let now = Instant::now();
        let clients = clients(Limits::default(), now);
        let mut held = Vec::new();
        for number in 1..=16 {
            let more = || clients.claim(address(number), ClientHold::Forward, now);
            held.extend(std::iter::from_fn(more));
        }
        assert!(held.len() < 700, "{} of a thousand", held.len());
        assert!(
            clients
                .claim(address(99), ClientHold::Forward, now)
                .is_some()
        );
        held.clear();
        let all = std::iter::from_fn(|| clients.claim(address(1), ClientHold::Forward, now));
        held.extend(all);
        assert_eq!(held.len(), 128);
    }

    #[test]
    fn claims_are_given_back() {
        let now = Instant::now();
        let limits = Limits {
            connections_per_client: 2,
            clients: 1,
            ..Limits::default()
        };
        let clients = clients(limits, now);
        let claim = |number| clients.claim(address(number), ClientHold::Connection, now);
        let first = claim(1).unwrap();
        let second = claim(1).unwrap();
        assert!(claim(1).is_none());
        let other = claim(2).unwrap();
        drop(first);
        assert!(claim(1).is_some());
        drop((second, other));
        let table = clients.table.lock();
        assert_eq!(
            (
                table.others.connections,
                table.clients[&address(1)].connections
            ),
            (0, 0)
        );
    }
}
