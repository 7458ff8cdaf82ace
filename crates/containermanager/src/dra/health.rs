//! What drivers say of the health of their devices.

use super::driver::{Health as Version, Instance};
use davit_api::names::{LABEL_MAX, SUBDOMAIN_MAX};
use davit_proto::drahealth::{v1, v1alpha1};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::{Request, Status, Streaming};

/// How long a device's health counts when the driver names no time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest message of a device, in bytes; more is cut.
const MAX_MESSAGE: usize = 1024;
/// Devices of one driver that are kept.
const MAX_DEVICES: usize = 100_000;

/// Pool and name of a device.
pub(super) type DeviceKey = (String, String);

/// The health of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceHealth {
    /// `Healthy`, `Unhealthy` or `Unknown`.
    pub(crate) word: &'static str,
    /// What the driver adds.
    pub(crate) message: Option<String>,
}

impl DeviceHealth {
    fn unknown() -> Self {
        Self {
            word: "Unknown",
            message: None,
        }
    }
}

#[derive(Debug, Clone)]
struct Seen {
    health: DeviceHealth,
    until: SystemTime,
}

/// All that is known, by driver. Pure.
#[derive(Debug, Default)]
pub(super) struct HealthTable {
    drivers: BTreeMap<String, BTreeMap<DeviceKey, Seen>>,
}

impl HealthTable {
    /// Takes a message in; returns the devices whose health has changed.
    pub(super) fn update(
        &mut self,
        driver: &str,
        devices: Vec<v1::DeviceHealth>,
        now: SystemTime,
    ) -> BTreeSet<DeviceKey> {
        let mut changed = BTreeSet::new();
        let table = self.drivers.entry(driver.to_owned()).or_default();
        for device in devices {
            let Some(id) = device.device.clone() else {
                continue;
            };
            // No slice has others.
            if id.pool_name.len() > SUBDOMAIN_MAX || id.device_name.len() > LABEL_MAX {
                continue;
            }
            let key = (id.pool_name, id.device_name);
            if table.len() >= MAX_DEVICES && !table.contains_key(&key) {
                continue;
            }
            let seen = seen(&device, now);
            let before = table.get(&key).map(|s| &s.health);
            if before != Some(&seen.health) {
                changed.insert(key.clone());
            }
            table.insert(key, seen);
        }
        changed
    }

    /// Forgets what is too old; returns the devices that are unknown from now on, by driver.
    pub(super) fn expire(&mut self, now: SystemTime) -> Vec<(String, BTreeSet<DeviceKey>)> {
        let mut all = Vec::new();
        for (driver, devices) in &mut self.drivers {
            let mut expired = BTreeSet::new();
            for (key, seen) in devices.iter_mut() {
                if seen.until <= now && seen.health.word != "Unknown" {
                    seen.health = DeviceHealth::unknown();
                    expired.insert(key.clone());
                }
            }
            if !expired.is_empty() {
                all.push((driver.clone(), expired));
            }
        }
        all
    }

    /// Forgets a driver; returns its devices.
    pub(super) fn forget(&mut self, driver: &str) -> BTreeSet<DeviceKey> {
        let devices = self.drivers.remove(driver).unwrap_or_default();
        devices.into_keys().collect()
    }

    /// The health of one device.
    pub(super) fn of(&self, driver: &str, pool: &str, device: &str) -> DeviceHealth {
        let key = (pool.to_owned(), device.to_owned());
        let seen = self.drivers.get(driver).and_then(|d| d.get(&key));
        seen.map_or_else(DeviceHealth::unknown, |s| s.health.clone())
    }
}

fn seen(device: &v1::DeviceHealth, now: SystemTime) -> Seen {
    let updated = u64::try_from(device.last_updated_time)
        .ok()
        .filter(|s| *s > 0)
        .and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s)))
        // A clock that is ahead must not keep a silent device healthy.
        .map_or(now, |at| at.min(now));
    let timeout = u64::try_from(device.health_check_timeout_seconds)
        .ok()
        .filter(|s| *s > 0)
        .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let until = updated.checked_add(timeout).unwrap_or(now);
    let word = match v1::HealthStatus::try_from(device.health) {
        _ if until <= now => "Unknown",
        Ok(v1::HealthStatus::Healthy) => "Healthy",
        Ok(v1::HealthStatus::Unhealthy) => "Unhealthy",
        _ => "Unknown",
    };
    Seen {
        health: DeviceHealth {
            word,
            message: message(&device.message),
        },
        until,
    }
}

fn message(text: &str) -> Option<String> {
    if text.len() <= MAX_MESSAGE {
        return (!text.is_empty()).then(|| text.to_owned());
    }
    let mut end = MAX_MESSAGE - 3;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(format!("{}...", &text[..end]))
}

/// An open health stream, of either version.
pub(super) enum Messages {
    V1(Streaming<v1::NodeWatchResourcesResponse>),
    V1alpha1(Streaming<v1alpha1::NodeWatchResourcesResponse>),
}

impl Messages {
    pub(super) async fn open(instance: &Instance, version: Version) -> Result<Self, Status> {
        let channel = instance.connection().await?;
        Ok(match version {
            Version::V1 => {
                use v1::dra_resource_health_client::DraResourceHealthClient as Client;
                let mut client = Client::new(channel);
                let request = Request::new(v1::NodeWatchResourcesRequest {});
                Self::V1(client.node_watch_resources(request).await?.into_inner())
            }
            Version::V1alpha1 => {
                use v1alpha1::dra_resource_health_client::DraResourceHealthClient as Client;
                let mut client = Client::new(channel);
                let request = Request::new(v1alpha1::NodeWatchResourcesRequest {});
                Self::V1alpha1(client.node_watch_resources(request).await?.into_inner())
            }
        })
    }

    /// The next message; `None` at the stream's end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<v1::DeviceHealth>>, Status> {
        Ok(match self {
            Self::V1(stream) => stream.message().await?.map(|m| m.devices),
            Self::V1alpha1(stream) => stream
                .message()
                .await?
                .map(|m| m.devices.into_iter().map(newer).collect()),
        })
    }
}

fn newer(old: v1alpha1::DeviceHealth) -> v1::DeviceHealth {
    v1::DeviceHealth {
        device: old.device.map(|d| v1::DeviceIdentifier {
            pool_name: d.pool_name,
            device_name: d.device_name,
        }),
        health: old.health,
        last_updated_time: old.last_updated_time,
        health_check_timeout_seconds: old.health_check_timeout_seconds,
        message: old.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(health: v1::HealthStatus, at: u64, message: &str) -> v1::DeviceHealth {
        v1::DeviceHealth {
            device: Some(v1::DeviceIdentifier {
                pool_name: "p".into(),
                device_name: "0".into(),
            }),
            health: health.into(),
            last_updated_time: i64::try_from(at).unwrap(),
            health_check_timeout_seconds: 0,
            message: message.into(),
        }
    }

    #[test]
    fn item_115_health_comes_changes_and_runs_out() {
        let (mut table, at) = (HealthTable::default(), |s| {
            UNIX_EPOCH + Duration::from_secs(s)
        });
        let (good, bad) = (v1::HealthStatus::Healthy, v1::HealthStatus::Unhealthy);
        let first = table.update("d", vec![report(good, 100, "")], at(100));
        assert_eq!(first.len(), 1);
        let again = table.update("d", vec![report(good, 101, "")], at(101));
        assert!(again.is_empty());
        table.update("d", vec![report(bad, 102, "hot")], at(102));
        let health = table.of("d", "p", "0");
        assert_eq!(
            (health.word, health.message.as_deref()),
            ("Unhealthy", Some("hot"))
        );
        assert!(table.expire(at(131)).is_empty());
        assert_eq!(table.expire(at(132)).len(), 1);
        assert_eq!(table.of("d", "p", "0").word, "Unknown");
        assert!(table.expire(at(133)).is_empty());
        // A clock that is ahead counts from now.
        table.update("d", vec![report(good, 9_999, "")], at(200));
        assert_eq!(table.expire(at(231)).len(), 1);
        assert_eq!(table.forget("d").len(), 1);
        assert_eq!(table.of("d", "p", "0").word, "Unknown");
    }

    #[test]
    fn names_that_no_device_has_are_not_kept() {
        let mut table = HealthTable::default();
        let good = v1::HealthStatus::Healthy;
        let named = |pool: usize, device: usize| {
            let mut report = report(good, 100, "");
            report.device = Some(v1::DeviceIdentifier {
                pool_name: "p".repeat(pool),
                device_name: "d".repeat(device),
            });
            report
        };
        let told = vec![
            named(254, 1),
            named(1, 64),
            named(1 << 20, 1),
            named(253, 63),
        ];
        let changed = table.update("d", told, UNIX_EPOCH + Duration::from_secs(100));
        assert_eq!(changed.len(), 1);
        assert_eq!(table.forget("d").len(), 1);
    }

    #[test]
    fn long_messages_are_cut() {
        let long = "ä".repeat(1000);
        let cut = message(&long).unwrap();
        assert!(cut.len() <= MAX_MESSAGE && cut.ends_with("..."));
        assert_eq!(message(""), None);
    }
}
