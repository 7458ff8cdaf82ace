//! Which drivers are there. Pure but for the tasks it owns.
//!
//! A driver may have several instances at once, so that it can be replaced without a gap: the newest that is connected
//! is called, else the newest.

use super::driver::Instance;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

struct Running {
    instance: Arc<Instance>,
    _connection: Option<AbortOnDropHandle<()>>,
}

#[derive(Default)]
struct Driver {
    /// In the order in which they came.
    instances: Vec<Running>,
    /// No instance is connected since then.
    lost: Option<Instant>,
    /// Its slices have been dealt with after that loss.
    wiped: bool,
}

impl Driver {
    fn is_connected(&self) -> bool {
        self.instances.iter().any(|r| r.instance.is_connected())
    }
}

/// All drivers that have registered in this run of the agent.
#[derive(Default)]
pub(super) struct Drivers {
    by_name: BTreeMap<String, Driver>,
}

/// An instance cannot take the endpoint of another one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {endpoint} already registered for DRA driver plugin {driver}")]
pub(super) struct Taken {
    driver: String,
    endpoint: String,
}

impl Drivers {
    /// Whether an instance may be added.
    pub(super) fn check(&self, driver: &str, endpoint: &Path) -> Result<(), Taken> {
        let instances = self.by_name.get(driver).into_iter();
        let mut instances = instances.flat_map(|d| &d.instances);
        if instances.any(|r| r.instance.endpoint == endpoint) {
            return Err(Taken {
                driver: driver.to_owned(),
                endpoint: endpoint.display().to_string(),
            });
        }
        Ok(())
    }

    /// Adds an instance with the task that keeps its connection.
    pub(super) fn add(
        &mut self,
        instance: Arc<Instance>,
        connection: Option<AbortOnDropHandle<()>>,
    ) -> Result<(), Taken> {
        self.check(&instance.driver, &instance.endpoint)?;
        let driver = self.by_name.entry(instance.driver.clone()).or_default();
        driver.instances.push(Running {
            instance,
            _connection: connection,
        });
        Ok(())
    }

    /// Removes the instances that came by a socket of the registry; returns them.
    pub(super) fn remove(&mut self, registry_socket: &Path) -> Vec<Arc<Instance>> {
        let mut removed = Vec::new();
        for driver in self.by_name.values_mut() {
            driver.instances.retain(|running| {
                let gone = running.instance.registry_socket == registry_socket;
                if gone {
                    removed.push(running.instance.clone());
                }
                !gone
            });
        }
        removed
    }

    /// Takes note that a connection has been made or lost, or an instance has gone.
    pub(super) fn settle(&mut self, name: &str, now: Instant) {
        if let Some(driver) = self.by_name.get_mut(name) {
            if driver.is_connected() {
                (driver.lost, driver.wiped) = (None, false);
            } else {
                driver.lost.get_or_insert(now);
            }
        }
    }

    /// The instance to call.
    pub(super) fn get(&self, name: &str) -> Option<Arc<Instance>> {
        let instances = &self.by_name.get(name)?.instances;
        let connected = instances.iter().rfind(|r| r.instance.is_connected());
        connected.or(instances.last()).map(|r| r.instance.clone())
    }

    /// Whether some instance is connected.
    pub(super) fn is_connected(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(Driver::is_connected)
    }

    /// Since when a driver is gone, `start` when it has not come at all; `None` while it is there.
    pub(super) fn gone_since(&self, name: &str, start: Instant) -> Option<Instant> {
        match self.by_name.get(name) {
            None => Some(start),
            Some(driver) if driver.is_connected() => None,
            Some(driver) => Some(driver.lost.unwrap_or(start)),
        }
    }

    /// Drivers whose slices are to be deleted now; each is returned once a loss.
    pub(super) fn take_overdue(&mut self, after: Duration, now: Instant) -> Vec<String> {
        let mut due = Vec::new();
        for (name, driver) in &mut self.by_name {
            let late = driver.lost.is_some_and(|at| at + after <= now);
            if late && !driver.wiped {
                driver.wiped = true;
                due.push(name.clone());
            }
        }
        due
    }

    /// Ends all connections.
    pub(super) fn clear(&mut self) {
        self.by_name.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::{Offer, Service};
    use super::super::metrics::Metrics;
    use super::*;
    use tonic::transport::Endpoint;

    fn instance(socket: &str) -> Arc<Instance> {
        let offer = Offer {
            service: Service::V1,
            health: None,
        };
        let registry = format!("/reg/{socket}").into();
        Arc::new(Instance::new(
            "d",
            socket.into(),
            registry,
            offer,
            Metrics::default(),
        ))
    }

    fn connect(instance: &Instance) {
        let channel = Endpoint::from_static("http://localhost").connect_lazy();
        instance.set_channel(Some(channel));
    }

    #[tokio::test]
    async fn item_114_newest_connected_instance_is_called() {
        let (mut drivers, now) = (Drivers::default(), Instant::now());
        let (old, new) = (instance("/a"), instance("/b"));
        drivers.add(old.clone(), None).unwrap();
        connect(&old);
        drivers.settle("d", now);
        assert_eq!(
            drivers.add(instance("/a"), None).unwrap_err().to_string(),
            "endpoint /a already registered for DRA driver plugin d"
        );
        drivers.add(new.clone(), None).unwrap();
        // The new one is not connected yet.
        assert_eq!(drivers.get("d").unwrap().endpoint, old.endpoint);
        connect(&new);
        assert_eq!(drivers.get("d").unwrap().endpoint, new.endpoint);
        new.set_channel(None);
        assert_eq!(drivers.get("d").unwrap().endpoint, old.endpoint);
        drivers.remove(Path::new("/reg//a"));
        assert_eq!(drivers.get("d").unwrap().endpoint, new.endpoint);
        assert!(!drivers.is_connected("d"));
    }

    #[tokio::test]
    async fn item_113_slices_are_wiped_once_thirty_seconds_after_the_loss() {
        let (mut drivers, start) = (Drivers::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let after = Duration::from_secs(30);
        let one = instance("/a");
        drivers.add(one.clone(), None).unwrap();
        connect(&one);
        drivers.settle("d", start);
        assert!(drivers.take_overdue(after, at(1000)).is_empty());
        // A restart of twenty seconds.
        one.set_channel(None);
        drivers.settle("d", at(1000));
        assert!(drivers.take_overdue(after, at(1020)).is_empty());
        connect(&one);
        drivers.settle("d", at(1020));
        assert!(drivers.take_overdue(after, at(2000)).is_empty());
        // Gone for good.
        drivers.remove(Path::new("/reg//a"));
        drivers.settle("d", at(2000));
        drivers.settle("d", at(2010));
        assert!(drivers.take_overdue(after, at(2029)).is_empty());
        assert_eq!(drivers.take_overdue(after, at(2030)), ["d"]);
        assert!(drivers.take_overdue(after, at(2031)).is_empty());
        assert_eq!(drivers.gone_since("d", start), Some(at(2000)));
        assert_eq!(drivers.gone_since("never", start), Some(start));
    }
}
