//! FlexVolume drivers: which of them attach, and whether what they have attached still is.
//!
//! What a driver can do is known from its executable alone. Those of drivers that pods or nodes name are looked at again and
//! again, so that one that is installed later attaches the volumes that wait for it.

use super::actions::VolumeOnNode;
use super::operations::AttachError;
use super::wanted::{AttachSource, FlexSource};
use super::{AttachDetach, EndedOperation, OPERATION_DEADLINE, TASK, attempt};
use davit_flexvolume::DriverName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How often drivers that are named somewhere are looked at.
const PROBE_PERIOD: Duration = Duration::from_secs(5);

/// Which drivers are named where, and when they were looked at.
#[derive(Debug, Default)]
pub(super) struct FlexProbes {
    /// The drivers that the pods of a node name.
    wanted: BTreeMap<String, BTreeSet<String>>,
    /// When each was looked at last; only such as are named somewhere.
    begun: BTreeMap<String, Instant>,
    /// Those that are being looked at.
    running: BTreeSet<String>,
    /// Those that could not be found at the last look.
    missing: BTreeSet<String>,
}

impl FlexProbes {
    /// The drivers that the pods of a node name.
    pub(super) fn set(&mut self, node: &str, drivers: BTreeSet<String>) {
        if drivers.is_empty() {
            self.wanted.remove(node);
        } else {
            self.wanted.insert(node.to_owned(), drivers);
        }
    }

    /// The nodes whose pods name a driver.
    fn nodes(&self, driver: &str) -> impl Iterator<Item = &String> {
        let naming = self.wanted.iter();
        naming
            .filter(move |(_, drivers)| drivers.contains(driver))
            .map(|(node, _)| node)
    }

    /// The drivers to look at now, and when there is more to do.
    fn due(&mut self, mut named: BTreeSet<String>, now: Instant) -> (Vec<String>, Option<Instant>) {
        named.extend(self.wanted.values().flatten().cloned());
        self.begun.retain(|driver, _| named.contains(driver));
        self.missing.retain(|driver| named.contains(driver));
        let mut due = Vec::new();
        for driver in named {
            let recent = self
                .begun
                .get(&driver)
                .is_some_and(|at| now < *at + PROBE_PERIOD);
            if !recent && !self.running.contains(&driver) {
                self.begun.insert(driver.clone(), now);
                self.running.insert(driver.clone());
                due.push(driver);
            }
        }
        let idle = self
            .begun
            .iter()
            .filter(|(d, _)| !self.running.contains(*d));
        let next = idle.map(|(_, at)| *at + PROBE_PERIOD).min();
        (due, next)
    }
}

/// Driver and volume of a name in a node's status.
fn split_name(name: &str) -> Option<(DriverName, &str)> {
    let (driver, volume) = name.rsplit_once('/')?;
    Some((DriverName::new(driver).ok()?, volume))
}

impl AttachDetach {
    /// Looks at the drivers that are named; answers when it wants to be called again.
    pub(super) fn probe(&mut self, now: Instant) -> Option<Instant> {
        let listed = self.state.unknown_listed();
        let listed = listed.iter().filter_map(|at| split_name(&at.volume));
        let named = listed.map(|(driver, _)| driver.to_string()).collect();
        let (due, next) = self.probes.due(named, now);
        for driver in due {
            let drivers = self.operations.flex_drivers.clone();
            self.running.spawn(async move {
                let work = async { Ok(drivers.get(&driver).await.map_err(AttachError::from)) };
                let ended = attempt(OPERATION_DEADLINE, TASK, &driver, work).await;
                let result = ended.map_err(AttachError::from).flatten();
                let result = result.map(|driver| driver.capabilities().attach);
                EndedOperation::Probe { driver, result }
            });
        }
        next
    }

    /// What was found out is kept when a driver is gone later: its volumes are still attached.
    pub(super) fn end_probe(&mut self, driver: &str, result: Result<bool, AttachError>) {
        self.probes.running.remove(driver);
        let attaches = match result {
            Ok(attaches) => attaches,
            Err(error) => {
                if self.probes.missing.insert(driver.to_owned()) {
                    tracing::warn!(driver, %error, "volumes of the driver are not attached");
                }
                return;
            }
        };
        self.probes.missing.remove(driver);
        if attaches {
            self.adopt(driver);
        }
        let known = self
            .objects
            .flex_drivers
            .insert(driver.to_owned(), attaches);
        if known != Some(attaches) {
            self.dirty.extend(self.probes.nodes(driver).cloned());
        }
    }

    /// Takes over what nodes list of a driver: an earlier run has attached it.
    fn adopt(&mut self, driver: &str) {
        for at in self.state.unknown_listed() {
            let Some((name, volume)) = split_name(&at.volume) else {
                continue;
            };
            if name.as_str() == driver {
                let source = FlexSource {
                    driver: driver.to_owned(),
                    volume: volume.to_owned(),
                    options: String::new(),
                    exclusive: false,
                };
                self.state.restore(at, AttachSource::Flex(source), true);
            }
        }
    }

    /// Asks drivers whether what they have attached still is.
    pub(super) fn verify_flex(&mut self) {
        let flex = self
            .state
            .settled()
            .filter_map(|(at, source)| match source {
                AttachSource::Flex(source) if !source.options.is_empty() => {
                    Some((at.clone(), source.clone()))
                }
                _ => None,
            });
        let flex: Vec<(VolumeOnNode, FlexSource)> = flex.collect();
        for (at, source) in flex {
            self.state.verify(&at);
            let operations = self.operations.clone();
            self.running.spawn(async move {
                let work = async { Ok(operations.is_attached(&source, &at.node).await) };
                let ended = attempt(OPERATION_DEADLINE, TASK, &at, work).await;
                let result = ended.map_err(AttachError::from).flatten();
                EndedOperation::Verify { at, result }
            });
        }
    }

    /// A driver that cannot tell changes nothing.
    pub(super) fn end_verification(
        &mut self,
        at: &VolumeOnNode,
        result: Result<bool, AttachError>,
    ) {
        match &result {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(volume = at.volume, node = at.node, "no longer attached");
            }
            Err(error) => {
                tracing::warn!(volume = at.volume, node = at.node, %error, "not verified");
            }
        }
        self.state.verified(at, result.unwrap_or(true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_looked_at_while_they_are_named() {
        let mut probes = FlexProbes::default();
        let now = Instant::now();
        probes.set("a", BTreeSet::from(["acme/mem".to_owned()]));
        let (due, next) = probes.due(BTreeSet::new(), now);
        assert_eq!((due, next), (vec!["acme/mem".to_owned()], None));
        assert!(probes.due(BTreeSet::new(), now + PROBE_PERIOD).0.is_empty());
        probes.running.clear();
        let (due, next) = probes.due(BTreeSet::new(), now);
        assert_eq!((due.len(), next), (0, Some(now + PROBE_PERIOD)));
        let (due, _) = probes.due(BTreeSet::new(), now + PROBE_PERIOD);
        assert_eq!(due, ["acme/mem"]);
        assert_eq!(probes.nodes("acme/mem").count(), 1);
        probes.set("a", BTreeSet::new());
        assert_eq!(probes.due(BTreeSet::new(), now), (Vec::new(), None));
        assert!(probes.begun.is_empty());
    }

    #[test]
    fn names_of_volumes_end_with_the_volume() {
        let (driver, volume) = split_name("acme/mem/pv").unwrap();
        assert_eq!((driver.as_str(), volume), ("acme/mem", "pv"));
        assert!(split_name("kubernetes.io/iscsi/x:y").is_none());
        assert!(split_name("x").is_none());
    }
}
