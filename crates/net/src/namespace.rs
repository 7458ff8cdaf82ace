//! Work inside another network namespace.

use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io;

/// Runs something in a network namespace, on a thread that ends with it.
///
/// # Errors
/// When the namespace cannot be entered, or the work panics.
pub fn within<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let entered = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(netns, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
        thread.join()
    });
    entered.map_err(|_| io::Error::other("the thread in the namespace panicked"))?
}
