//! Events go an hour after they were last written, as `--event-ttl` of kube-apiserver has it.
//!
//! Etcd does it by leases. In a store that has none a sweep reads the events once a minute and deletes those whose time
//! is over. An event written meanwhile stays: the deletion is for the revision that was read.

use std::sync::{Arc, Weak};
use std::time::Duration;

use davit_registry::storage::{self, EVENT_TTL, Storage};
use davit_store::ListOptions;
use jiff::Timestamp;
use serde_json::Value;

use crate::server::ApiServer;

const SWEEP: Duration = Duration::from_secs(60);

/// Sweeps until the server is gone; whoever spawns it ends it with the server.
pub(crate) async fn run(server: Weak<ApiServer>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(server) = server.upgrade() else {
            return;
        };
        let snapshot = server.registry().snapshot();
        let Some(resource) = snapshot.by_group_resource("", "events") else {
            return;
        };
        let storage = Arc::clone(&resource.storage);
        drop(server);
        if storage.store().expires() {
            return;
        }
        match sweep(&storage, Timestamp::now()).await {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "expired events deleted"),
            Err(error) => tracing::warn!(error, "deleting expired events"),
        }
    }
}

/// Deletes what has expired at `now`; answers how many.
async fn sweep(storage: &Storage, now: Timestamp) -> Result<usize, String> {
    let listing = storage.list(None, ListOptions::default()).await;
    let listing = listing.map_err(|error| error.to_string())?;
    let mut count = 0;
    for pair in &listing.items {
        let Ok(event) = storage::decode(pair) else {
            continue;
        };
        if last_written(&event.value, now).is_none_or(|at| is_alive(at, now)) {
            continue;
        }
        let namespace = davit_api::meta::namespace(&event.value);
        let name = davit_registry::object::name(&event.value);
        // A writer that was faster keeps its event.
        if storage
            .delete(namespace, name, event.revision)
            .await
            .is_ok()
        {
            count += 1;
        }
    }
    Ok(count)
}

fn is_alive(written: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(written)).is_ok_and(|age| age < EVENT_TTL)
        || written > now
}

/// When an event was made, or the latest of the times that its writers set. Of theirs none counts that is later than an
/// event written now would live: whoever may write events would have them stay for ever.
fn last_written(event: &Value, now: Timestamp) -> Option<Timestamp> {
    let time = |at: &str| event.pointer(at)?.as_str()?.parse().ok();
    let told = ["/lastTimestamp", "/eventTime", "/series/lastObservedTime"];
    let told = told
        .iter()
        .filter_map(|at| time(at))
        .filter(|at| now.checked_add(EVENT_TTL).is_ok_and(|latest| *at <= latest));
    told.chain(time("/metadata/creationTimestamp")).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_write_counts() {
        let event = json!({
            "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" },
            "lastTimestamp": "2026-01-01T02:00:00Z", "eventTime": null,
            "series": { "lastObservedTime": "2026-01-01T01:00:00.000001Z" },
        });
        let at = |now: &str| last_written(&event, now.parse().unwrap());
        let at = |now| at(now).unwrap().to_string();
        assert_eq!(at("2026-01-01T02:10:00Z"), "2026-01-01T02:00:00Z");
        // The clock of whoever wrote it may be ahead.
        assert_eq!(at("2026-01-01T01:00:00Z"), "2026-01-01T02:00:00Z");
        assert_eq!(at("2026-01-01T00:59:00Z"), "2026-01-01T01:00:00.000001Z");
        assert_eq!(last_written(&json!({}), Timestamp::UNIX_EPOCH), None);
    }

    #[tokio::test]
    async fn only_expired_events_go() {
        let dir = tempfile::tempdir().unwrap();
        let options = davit_store::embedded::EmbeddedOptions::default();
        let store = davit_store::embedded::EmbeddedStore::open(dir.path(), options).await;
        let store = Arc::new(store.unwrap());
        let registry = davit_registry::Registry::built_in(
            davit_registry::Stores::new(store, Vec::new()),
            |_| true,
        );
        let snapshot = registry.snapshot();
        let storage = &snapshot.by_group_resource("", "events").unwrap().storage;
        let never = "9999-12-30T00:00:00Z";
        for (name, time, told) in [
            ("old", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            ("new", "2026-01-01T00:30:00Z", "2026-01-01T00:30:00Z"),
            ("again", "2026-01-01T00:00:00Z", "2026-01-01T00:30:00Z"),
            ("immortal", "2026-01-01T00:00:00Z", never),
        ] {
            let event = json!({
                "apiVersion": "v1", "kind": "Event", "lastTimestamp": told,
                "eventTime": told, "series": { "lastObservedTime": told },
                "metadata": { "name": name, "namespace": "default", "creationTimestamp": time },
            });
            storage.create("default", name, &event).await.unwrap();
        }
        let now = "2026-01-01T01:10:00Z".parse().unwrap();
        assert_eq!(sweep(storage, now).await, Ok(2));
        for (name, stays) in [
            ("old", false),
            ("new", true),
            ("again", true),
            ("immortal", false),
        ] {
            let event = storage.get("default", name).await.unwrap();
            assert_eq!(event.is_some(), stays, "{name}");
        }
    }
}
