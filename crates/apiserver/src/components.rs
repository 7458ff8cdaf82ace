//! The components beside this server: whether they work.
//!
//! kube-apiserver asks for `/healthz` at the ports that kube-controller-manager and kube-scheduler have by default on its own
//! machine. Here they may be in this process or anywhere, and one that works watches this server: that is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The components beside the store, and whom they are known as.
const KNOWN: [(&str, &str); 2] = [
    ("controller-manager", "system:kube-controller-manager"),
    ("scheduler", "system:kube-scheduler"),
];

/// How many watches the components have open.
#[derive(Debug, Default)]
pub(crate) struct Components([Arc<AtomicUsize>; KNOWN.len()]);

/// An open watch of a component.
#[derive(Debug)]
pub(crate) struct Presence(Arc<AtomicUsize>);

impl Components {
    /// Counts a watch of `user` until the answer is dropped, if it is one of the components.
    pub(crate) fn watches(&self, user: &str) -> Option<Presence> {
        let at = KNOWN.iter().position(|(_, known)| *known == user)?;
        let count = Arc::clone(&self.0[at]);
        count.fetch_add(1, Ordering::Relaxed);
        Some(Presence(count))
    }

    /// The components: their names, whom they are known as, whether they work.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        KNOWN.iter().zip(&self.0).map(|((name, user), watches)| {
            let works = watches.load(Ordering::Relaxed) > 0;
            (*name, *user, works)
        })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
