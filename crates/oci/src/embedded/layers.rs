//! What containers have written.

use super::container::Container;
use super::{Embedded, lock};
use davit_beneath::{DiskUse, disk_use};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

impl Embedded {
    /// What a container has written, if that is known by `until`; containers make it as large as they like.
    pub(super) fn layer(&self, container: &Container, until: Instant) -> Option<DiskUse> {
        let found = disk_use(container.dir.join("upper"), until)?;
        // Any of the pod's containers may have written it, and each counts it: only who overdoes it notices.
        let sandbox = self.sandbox(&container.record().sandbox_id);
        let shared = sandbox.map_or(0, |sandbox| sandbox.written());
        Some(DiskUse {
            bytes: found.bytes.saturating_add(shared),
            ..found
        })
    }

    /// What is known by `until` of all that run, by ID.
    pub(super) fn layers(&self, until: Instant) -> BTreeMap<String, DiskUse> {
        let all: Vec<Arc<Container>> = lock(&self.inner.containers).values().cloned().collect();
        let running = all.iter().filter(|container| container.is_running());
        let running: Vec<_> = running.collect();
        // All are wanted before one is waited for.
        for container in &running {
            let _ = self.layer(container, Instant::now());
        }
        let known = running.into_iter().filter_map(|container| {
            let layer = self.layer(container, until)?;
            Some((container.record().id, layer))
        });
        known.collect()
    }
}
