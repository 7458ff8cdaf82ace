//! The contract: what every engine owes, as tests.
//!
//! An engine's tests implement [`Harness`] and call [`contract_tests!`](crate::contract_tests),
//! which makes one test of each function here. Every test opens a store of its own
//! and works below [`ROOT`]; it may find other keys and any revision there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{
    Change, Error, Expect, KeyValue, ListOptions, Operation, Store, WatchEvent, WatchStream, Write,
};

mod histories;
mod lists;
mod watches;
mod writes;

pub use histories::*;
pub use lists::*;
pub use watches::*;
pub use writes::*;

/// The prefix below which the tests write.
pub const ROOT: &str = "/contract/";

const PATIENCE: Duration = Duration::from_secs(20);

/// Makes stores for the tests.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens a store nobody else compacts.
    async fn open(&self) -> Arc<dyn Store>;

    /// How many changes may wait for a watcher before it is dropped; `None` skips
    /// the test of that.
    fn watch_limit(&self) -> Option<usize>;
}

/// Makes a `#[tokio::test]` of every test of the contract, run on what the
/// expression gives, a [`contract::Harness`](crate::contract::Harness).
#[macro_export]
macro_rules! contract_tests {
    ($harness:expr) => {
        $crate::contract_tests!($harness;
            a_new_key_is_read_back
            revisions_grow_by_every_write
            a_false_expectation_changes_nothing
            an_absent_key_cannot_be_deleted
            deleting_and_creating_starts_a_new_life
            one_of_many_racing_creators_wins
            racing_updates_lose_nothing
            lists_are_exact_at_every_revision
            pages_are_of_one_snapshot
            lists_keep_to_their_prefix
            the_future_cannot_be_read
            compaction_forgets_the_past_only
            a_watch_sees_everything_in_order
            a_watch_resumes_at_every_revision
            a_watch_from_the_future_waits
            a_watch_of_forgotten_changes_is_refused
            a_slow_watcher_is_dropped_and_delays_nobody
            progress_vouches_for_what_was_acknowledged
            marks_tell_without_a_round_trip
            big_values_and_odd_keys_survive
            bad_keys_are_refused
            a_closed_store_refuses_writes
            random_histories_match_a_model
        );
    };
    ($harness:expr; $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::contract::$name(&$harness).await;
            }
        )*
    };
}

fn key(name: impl std::fmt::Display) -> String {
    format!("{ROOT}{name}")
}

async fn put(store: &dyn Store, name: &str, value: impl Into<Bytes>) -> u64 {
    store
        .commit(Write::put(key(name), value))
        .await
        .expect("put")
        .revision
}

async fn delete(store: &dyn Store, name: &str) -> u64 {
    store
        .commit(Write::delete_any(key(name)))
        .await
        .expect("delete")
        .revision
}

fn pairs(items: &[KeyValue]) -> Vec<(String, Bytes)> {
    items
        .iter()
        .map(|pair| (pair.key[ROOT.len()..].to_owned(), pair.value.clone()))
        .collect()
}

async fn all(store: &dyn Store, revision: Option<u64>) -> Vec<(String, Bytes)> {
    let listing = store
        .list(
            ROOT,
            ListOptions {
                revision,
                ..ListOptions::default()
            },
        )
        .await
        .expect("list");
    assert!(!listing.more);
    pairs(&listing.items)
}

async fn next(watch: &mut WatchStream) -> WatchEvent {
    timeout(PATIENCE, watch.next())
        .await
        .expect("an event comes in time")
        .expect("the watch goes on")
        .expect("the watch is well")
}

async fn next_change(watch: &mut WatchStream) -> Arc<Change> {
    loop {
        if let WatchEvent::Change(change) = next(watch).await {
            return change;
        }
    }
}

fn small_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
