//! A resource of fixed size, shared by those who come.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// So many of something for everybody together. One may take as long as one holds less than is free: whoever takes
/// everything to be had ends at half of it, two of them at a third each, and there is always some left for one more
/// (dynamic thresholds, Choudhury and Hahne, 1998).
#[derive(Debug)]
pub struct Shares {
    capacity: usize,
    held: Mutex<HeldShares>,
}

#[derive(Debug, Default)]
struct HeldShares {
    total: usize,
    by: HashMap<String, usize>,
}

/// What one has taken; given back on drop.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    who: String,
    amount: usize,
}

impl Shares {
    /// So many.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            held: Mutex::default(),
        })
    }

    /// Whether one may take more.
    pub fn has_room(&self, who: &str) -> bool {
        let held = self.held.lock();
        let own = held.by.get(who).copied().unwrap_or(0);
        own < self.capacity.saturating_sub(held.total)
    }

    /// Takes an amount if one may take more.
    pub fn try_take(self: &Arc<Self>, who: &str, amount: usize) -> Option<Share> {
        self.has_room(who).then(|| self.take(who, amount))
    }

    /// Takes an amount that cannot be refused any more.
    pub fn take(self: &Arc<Self>, who: &str, amount: usize) -> Share {
        if amount > 0 {
            let mut held = self.held.lock();
            held.total = held.total.saturating_add(amount);
            let own = held.by.entry(who.to_owned()).or_default();
            *own = own.saturating_add(amount);
        }
        Share {
            shares: Arc::clone(self),
            who: who.to_owned(),
            amount,
        }
    }

    /// How much is taken by all.
    pub fn taken(&self) -> usize {
        self.held.lock().total
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut held = self.shares.held.lock();
        held.total = held.total.saturating_sub(self.amount);
        if let Some(own) = held.by.get_mut(&self.who) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                held.by.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_everything_leaves_room_for_others() {
        let shares = Shares::new(100);
        let greedy: Vec<Share> = std::iter::from_fn(|| shares.try_take("a", 1)).collect();
        assert_eq!(greedy.len(), 50);
        let second: Vec<Share> = std::iter::from_fn(|| shares.try_take("b", 1)).collect();
        assert_eq!(second.len(), 25);
        assert!(shares.try_take("c", 1).is_some());
        drop(greedy);
        assert_eq!(shares.taken(), 25);
        assert!(shares.has_room("b"));
        drop(second);
        assert!(shares.held.lock().by.is_empty());
    }
}
