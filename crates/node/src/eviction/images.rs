//! Image garbage collection: images that no container uses go when the disk is full, those used longest ago first.

use super::measure::image_space;
use davit_oci::runtime::{Error as RuntimeError, Runtime};
use davit_proto::cri::v1 as cri;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When images are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Use of the disk in hundredths from which on images go.
    pub high: u8,
    /// Use of the disk at which it ends.
    pub low: u8,
    /// Younger images stay.
    pub min_age: Duration,
    /// Images unused for longer go at any use of the disk; zero for never.
    pub max_age: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            high: 85,
            low: 80,
            min_age: Duration::from_secs(2 * 60),
            max_age: Duration::ZERO,
        }
    }
}

/// Why there is no more room.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The runtime.
    #[error("container runtime: {0}")]
    Runtime(#[from] RuntimeError),
    /// Nothing is known about the disk.
    #[error("invalid capacity {0} on image filesystem")]
    Capacity(i64),
    /// Too little could be removed.
    #[error(
        "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {found} \
         bytes eligible to free."
    )]
    TooLittle {
        /// Bytes that were to be freed.
        wanted: i64,
        /// Bytes that were freed.
        found: i64,
    },
}

impl Error {
    /// The reason of the event about it, for those that have one of their own.
    #[must_use]
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::TooLittle { .. } => "FreeDiskSpaceFailed",
            Self::Capacity(_) => "InvalidDiskCapacity",
            Self::Runtime(_) => "ImageGCFailed",
        }
    }
}

/// What is known of an image.
#[derive(Debug, Clone, Copy)]
struct Seen {
    first: Instant,
    /// When a container was last seen to use it.
    used: Option<Instant>,
}

/// Removes images. Looks at them now and then, to know since when they are unused.
pub(crate) struct Collector {
    runtime: Arc<dyn Runtime>,
    policy: Policy,
    seen: Mutex<HashMap<String, Seen>>,
}

/// An image that may go.
struct Unused {
    id: String,
    size: i64,
    seen: Seen,
}

impl Collector {
    /// Removes by `policy`.
    pub(crate) fn new(runtime: Arc<dyn Runtime>, policy: Policy) -> Self {
        Self {
            runtime,
            policy,
            seen: Mutex::default(),
        }
    }

    /// Looks at images and containers; the images that nobody uses, those unused longest first.
    async fn look(&self, now: Instant) -> Result<Vec<Unused>, RuntimeError> {
        let images = self.runtime.list_images(None).await?;
        // After the images: one that a container was made from meanwhile is in use.
        let containers = self.runtime.list_containers(None).await?;
        let mut used = HashSet::new();
        for container in containers {
            used.extend(self.mounted(&container.id).await?);
            used.extend([container.image_id, container.image_ref]);
            used.extend(container.image.map(|i| i.image));
        }
        used.remove("");
        let mut seen = self.seen.lock();
        seen.retain(|id, _| images.iter().any(|image| image.id == *id));
        let mut unused = Vec::new();
        for image in images {
            let entry = seen.entry(image.id.clone()).or_insert(Seen {
                first: now,
                used: None,
            });
            if is_used(&image, &used) {
                entry.used = Some(now);
            } else if !image.pinned {
                unused.push(Unused {
                    size: i64::try_from(image.size).unwrap_or(i64::MAX),
                    id: image.id,
                    seen: *entry,
                });
            }
        }
        unused.sort_by_key(|image| (image.seen.used, image.seen.first));
        Ok(unused)
    }

    /// The images that a container mounts as volumes.
    async fn mounted(&self, container: &str) -> Result<Vec<String>, RuntimeError> {
        match self.runtime.container_status(container).await {
            Ok(status) => {
                let images = status.mounts.into_iter().filter_map(|mount| mount.image);
                Ok(images.map(|image| image.image).collect())
            }
            Err(RuntimeError::NotFound(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Removes what is too old, and what is too much for the disk.
    ///
    /// # Errors
    /// The runtime's; too little to remove.
    pub(crate) async fn collect(&self) -> Result<(), Error> {
        let now = Instant::now();
        let mut unused = self.look(now).await?;
        if !self.policy.max_age.is_zero() {
            let (old, rest) = unused.into_iter().partition(|image| {
                let since = image.seen.used.unwrap_or(image.seen.first);
                now.duration_since(since) > self.policy.max_age
            });
            self.free(old, i64::MAX, now).await;
            unused = rest;
        }
        // A runtime that names no file system has no images.
        let Some(space) = image_space(&*self.runtime).await else {
            return Ok(());
        };
        let wanted = to_free(self.policy, space.available, space.capacity)?;
        if wanted <= 0 {
            return Ok(());
        }
        tracing::info!(
            wanted,
            "disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold"
        );
        let found = self.free(unused, wanted, now).await;
        if found < wanted {
            return Err(Error::TooLittle { wanted, found });
        }
        Ok(())
    }

    /// Removes all images that nobody uses and that are old enough; the bytes that are free then.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) async fn delete_unused(&self) -> Result<i64, Error> {
        let now = Instant::now();
        let unused = self.look(now).await?;
        Ok(self.free(unused, i64::MAX, now).await)
    }

    async fn free(&self, unused: Vec<Unused>, wanted: i64, now: Instant) -> i64 {
        let mut freed = 0_i64;
        for image in unused {
            if freed >= wanted {
                break;
            }
            if now.duration_since(image.seen.first) < self.policy.min_age {
                continue;
            }
            let spec = cri::ImageSpec {
                image: image.id.clone(),
                ..cri::ImageSpec::default()
            };
            match self.runtime.remove_image(spec).await {
                Ok(()) => {
                    tracing::info!(image = %image.id, bytes = image.size, "removed an image to free space");
                    self.seen.lock().remove(&image.id);
                    freed = freed.saturating_add(image.size);
                }
                Err(error) => {
                    tracing::warn!(image = %image.id, %error, "cannot remove an image");
                }
            }
        }
        freed
    }
}

fn is_used(image: &cri::Image, used: &HashSet<String>) -> bool {
    let names = image.repo_tags.iter().chain(&image.repo_digests);
    names.chain([&image.id]).any(|name| used.contains(name))
}

/// Bytes to free; at most zero when there is room.
fn to_free(policy: Policy, available: i64, capacity: i64) -> Result<i64, Error> {
    if capacity <= 0 {
        return Err(Error::Capacity(capacity));
    }
    let available = available.min(capacity);
    let part = |percent: i64| i128::from(capacity) * i128::from(percent) / 100;
    let used = 100 - i64::try_from(i128::from(available) * 100 / i128::from(capacity)).unwrap_or(0);
    if used < i64::from(policy.high) {
        return Ok(0);
    }
    let wanted = part(100 - i64::from(policy.low)) - i128::from(available);
    Ok(i64::try_from(wanted).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_the_thresholds_nothing_goes() {
        let policy = Policy::default();
        assert_eq!(to_free(policy, 160, 1000).unwrap(), 0);
        assert_eq!(to_free(policy, 150, 1000).unwrap(), 50);
        assert_eq!(to_free(policy, 10, 1000).unwrap(), 190);
        assert!(matches!(to_free(policy, 0, 0), Err(Error::Capacity(0))));
        assert_eq!(
            Error::TooLittle {
                wanted: 9,
                found: 1
            }
            .to_string(),
            "Failed to garbage collect required amount of images. Attempted to free 9 bytes, but only found 1 bytes \
             eligible to free."
        );
    }
}
