//! Answers of plugins, kept by image, by registry or for everything.

use super::exec::{CacheKeyType, Response};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often answers that are over are dropped.
const PURGE: Duration = Duration::from_secs(15 * 60);

#[derive(Default)]
pub(super) struct Cache {
    /// By scope (plugin and service account) and key.
    entries: HashMap<(String, String), (Arc<Response>, Instant)>,
    purged: Option<Instant>,
}

fn registry(image: &str) -> &str {
    image
        .split_once('/')
        .map_or(image, |(registry, _)| registry)
}

impl Cache {
    /// What is known for an image: for itself, for its registry, for all.
    pub(super) fn get(&self, scope: &str, image: &str, now: Instant) -> Option<Arc<Response>> {
        let keys = [
            format!("image\0{image}"),
            format!("registry\0{}", registry(image)),
            "global".to_owned(),
        ];
        keys.into_iter().find_map(|key| {
            let (response, until) = self.entries.get(&(scope.to_owned(), key))?;
            (*until > now).then(|| response.clone())
        })
    }

    pub(super) fn put(
        &mut self,
        scope: &str,
        image: &str,
        kind: CacheKeyType,
        response: Arc<Response>,
        lifetime: Duration,
        now: Instant,
    ) {
        if self.purged.is_none_or(|at| now.duration_since(at) >= PURGE) {
            self.entries.retain(|_, (_, until)| *until > now);
            self.purged = Some(now);
        }
        let key = match kind {
            CacheKeyType::Image => format!("image\0{image}"),
            CacheKeyType::Registry => format!("registry\0{}", registry(image)),
            CacheKeyType::Global => "global".to_owned(),
        };
        // A lifetime beyond what the clock can tell is for good.
        let until = now.checked_add(lifetime);
        let until = until.unwrap_or_else(|| now + Duration::from_secs(10 * 365 * 24 * 3600));
        self.entries
            .insert((scope.to_owned(), key), (response, until));
    }
}
