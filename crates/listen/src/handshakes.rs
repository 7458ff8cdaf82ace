//! TLS handshakes, one after the other: they are what a stranger gets most work for.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::sync::oneshot;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::connections::Lease;
use crate::pool::Holder;
use crate::socket::Socket;

/// Addresses of clients that have shown who they are, so many of the latest.
const KNOWN: usize = 4096;

/// Takes the client's word and answers it. The work that this is, an exchange of keys and a signature, is done when it is the
/// connection's turn: addresses take turns, those from which somebody known has come go before every second stranger, and so
/// many are at work as leave room for requests.
///
/// # Errors
/// The client wants something else, or goes away.
pub async fn handshake(
    config: Arc<ServerConfig>,
    socket: Socket,
    lease: &Lease,
) -> io::Result<TlsStream<Socket>> {
    let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), socket);
    let begun = acceptor.await?;
    let mut rest = std::pin::pin!(begun.into_stream(config));
    let turn = lease.turn().await;
    let done = poll_fn(|cx| Poll::Ready(rest.as_mut().poll(cx))).await;
    drop(turn);
    match done {
        Poll::Ready(done) => done,
        Poll::Pending => rest.await,
    }
}

/// Whose turn it is.
#[derive(Debug)]
pub(crate) struct Handshakes {
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    /// How many more may be at work.
    free: usize,
    waiting: [Ring; 2],
    /// Which of the two is asked first the next time.
    first: usize,
    known: Addresses,
}

const KNOWN_FIRST: usize = 0;
const STRANGERS: usize = 1;

/// Those who wait, by address; addresses take turns.
#[derive(Debug, Default)]
struct Ring {
    order: VecDeque<Holder>,
    by: HashMap<Holder, VecDeque<oneshot::Sender<Turn>>>,
}

/// The latest addresses, the oldest first.
#[derive(Debug, Default)]
struct Addresses {
    order: VecDeque<Holder>,
    uses: HashMap<Holder, usize>,
}

/// Somebody is at work; it is the next one's turn when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Handshakes>>);

impl Ring {
    fn push(&mut self, holder: Holder, sender: oneshot::Sender<Turn>) {
        let own = self.by.entry(holder.clone()).or_default();
        if own.is_empty() {
            self.order.push_back(holder);
        }
        own.push_back(sender);
    }

    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
        let holder = self.order.pop_front()?;
        let own = self.by.get_mut(&holder)?;
        let next = own.pop_front();
        if own.is_empty() {
            self.by.remove(&holder);
        } else {
            self.order.push_back(holder);
        }
        next
    }
}

impl Addresses {
    fn insert(&mut self, holder: Holder) {
        if self.order.back() == Some(&holder) {
            return;
        }
        *self.uses.entry(holder.clone()).or_default() += 1;
        self.order.push_back(holder);
        while self.order.len() > KNOWN {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            if let Some(uses) = self.uses.get_mut(&oldest) {
                *uses -= 1;
                if *uses == 0 {
                    self.uses.remove(&oldest);
                }
            }
        }
    }
}

impl Handshakes {
    /// So many at once.
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self {
            line: Mutex::new(Line {
                free: at_once.max(1),
                waiting: [Ring::default(), Ring::default()],
                first: KNOWN_FIRST,
                known: Addresses::default(),
            }),
        })
    }

    /// Somebody at this address has shown who they are.
    pub(crate) fn know(&self, holder: Holder) {
        self.line.lock().known.insert(holder);
    }

    /// Waits until it is this address's turn.
    pub(crate) async fn turn(self: &Arc<Self>, holder: Holder) -> Turn {
        let waiting = {
            let mut line = self.line.lock();
            if line.free > 0 {
                line.free -= 1;
                return Turn(Some(Arc::clone(self)));
            }
            let ring = match line.known.uses.contains_key(&holder) {
                true => KNOWN_FIRST,
                false => STRANGERS,
            };
            let (sender, receiver) = oneshot::channel();
            line.waiting[ring].push(holder, sender);
            receiver
        };
        // Nobody gives up a line that somebody waits in.
        waiting.await.unwrap_or(Turn(None))
    }

    fn next(self: Arc<Self>) {
        let mut line = self.line.lock();
        loop {
            let first = line.first;
            let next = line.waiting[first].pop();
            line.first = 1 - first;
            let Some(next) = next.or_else(|| line.waiting[1 - first].pop()) else {
                line.free += 1;
                return;
            };
            match next.send(Turn(Some(Arc::clone(&self)))) {
                Ok(()) => return,
                // Who has gone takes no turn, and does not give one on either: that is done here.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(handshakes) = self.0.take() {
            handshakes.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use tokio::sync::mpsc;

    fn at(last: u8) -> Holder {
        Holder::of(IpAddr::from([192, 0, 2, last]))
    }

    /// Has everybody wait in this order behind one who is at work, and tells in which they come to work.
    async fn order(handshakes: &Arc<Handshakes>, waiting: &[u8]) -> Vec<u8> {
        let working = handshakes.turn(at(0)).await;
        let (tell, mut told) = mpsc::unbounded_channel();
        for last in waiting.iter().copied() {
            let (handshakes, tell) = (handshakes.clone(), tell.clone());
            tokio::spawn(async move {
                let turn = handshakes.turn(at(last)).await;
                tell.send(last).unwrap();
                drop(turn);
            });
            tokio::task::yield_now().await;
        }
        drop((working, tell));
        let mut out = Vec::new();
        while let Some(last) = told.recv().await {
            out.push(last);
        }
        out
    }

    #[tokio::test]
    async fn addresses_take_turns() {
        let handshakes = Handshakes::new(1);
        let order_of_three = order(&handshakes, &[1, 1, 1, 1, 2, 3]).await;
        assert_eq!(order_of_three, [1, 2, 3, 1, 1, 1]);
        assert_eq!(handshakes.line.lock().free, 1);
    }

    #[tokio::test]
    async fn who_is_known_goes_before_a_crowd() {
        let handshakes = Handshakes::new(1);
        handshakes.know(at(9));
        let order = order(&handshakes, &[1, 2, 3, 4, 5, 9, 9]).await;
        let places: Vec<usize> = (0..order.len()).filter(|i| order[*i] == 9).collect();
        assert!(places[0] <= 1 && places[1] <= 3, "{order:?}");
    }

    #[tokio::test]
    async fn who_goes_away_gives_the_turn_on() {
        let handshakes = Handshakes::new(1);
        let working = handshakes.turn(at(1)).await;
        let waiting = tokio::spawn({
            let handshakes = handshakes.clone();
            async move { drop(handshakes.turn(at(2)).await) }
        });
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.is_err());
        drop(working);
        assert_eq!(handshakes.line.lock().free, 1);
        drop(handshakes.turn(at(3)).await);
    }

    #[test]
    fn the_known_are_the_latest() {
        let mut known = Addresses::default();
        known.insert(at(1));
        for round in 0..KNOWN {
            known.insert(at(2 + u8::try_from(round % 2).unwrap()));
        }
        assert!(!known.uses.contains_key(&at(1)) && known.uses.contains_key(&at(3)));
        assert_eq!(known.order.len(), KNOWN);
    }
}
