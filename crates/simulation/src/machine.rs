//! What runs on a node, as the node itself knows it: pods and the devices that they hold.
//!
//! It outlives the kubelet that looks after it, and ends when the machine is switched off.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Devices of an extended resource, and of the driver of claims, that a node has.
pub const DEVICES: usize = 4;

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It runs from then on.
    Starting(Duration),
    /// It ends by itself then, if it does, and how.
    Running(Option<(Duration, bool)>),
    /// It has ended by itself; whether it failed.
    Ended(bool),
    /// It was stopped.
    Stopped,
}

/// A pod on a machine.
#[derive(Debug, Clone)]
pub struct HollowPod {
    /// Namespace and name.
    pub key: (String, String),
    /// How far it is.
    pub stage: Stage,
    /// How many devices of the extended resource it holds.
    pub plugged: usize,
    /// The devices of claims that it holds, each with its claim's UID.
    pub claimed: Vec<(String, String)>,
    /// When it is stopped, once it is to be.
    pub stop_at: Option<Duration>,
}

impl HollowPod {
    fn holds(&self) -> bool {
        matches!(self.stage, Stage::Starting(_) | Stage::Running(_))
    }
}

/// A machine.
#[derive(Debug, Default)]
pub struct HollowMachine {
    /// What runs on it, by UID.
    pub sandboxes: BTreeMap<String, HollowPod>,
    /// Pods that were there when it was switched off.
    pub lost: BTreeSet<String>,
}

impl HollowMachine {
    /// Makes a pod.
    ///
    /// # Errors
    /// When a device that it is to have is held by another.
    pub fn add(&mut self, uid: &str, sandbox: HollowPod) -> Result<(), String> {
        let held: usize = self.holders().map(|(_, other)| other.plugged).sum();
        if held + sandbox.plugged > DEVICES {
            return Err(format!(
                "pod {:?} wants {} devices of the extended resource, {held} of {DEVICES} are held",
                sandbox.key, sandbox.plugged
            ));
        }
        for (device, claim) in &sandbox.claimed {
            let taken = self.holders().find(|(_, other)| {
                let mut held = other.claimed.iter();
                held.any(|(d, c)| d == device && c != claim)
            });
            if let Some((_, other)) = taken {
                return Err(format!(
                    "device {device} of pod {:?} is held by pod {:?}",
                    sandbox.key, other.key
                ));
            }
        }
        self.sandboxes.insert(uid.to_owned(), sandbox);
        Ok(())
    }

    fn holders(&self) -> impl Iterator<Item = (&String, &HollowPod)> {
        self.sandboxes.iter().filter(|(_, sandbox)| sandbox.holds())
    }

    /// How many pods run or are about to.
    pub fn running(&self) -> usize {
        self.holders().count()
    }

    /// Nothing runs any more.
    pub fn switch_off(&mut self) {
        let gone = std::mem::take(&mut self.sandboxes);
        self.lost.extend(gone.into_keys());
    }

    /// Moves every pod to where it is at `now`.
    pub fn advance(
        &mut self,
        now: Duration,
        mut ends: impl FnMut(&HollowPod) -> Option<(Duration, bool)>,
    ) {
        for sandbox in self.sandboxes.values_mut() {
            if sandbox.holds() && sandbox.stop_at.is_some_and(|at| at <= now) {
                sandbox.stage = Stage::Stopped;
            }
            match sandbox.stage {
                Stage::Starting(at) if at <= now => sandbox.stage = Stage::Running(ends(sandbox)),
                Stage::Running(Some((at, failed))) if at <= now => {
                    sandbox.stage = Stage::Ended(failed);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(plugged: usize, claimed: &[(&str, &str)]) -> HollowPod {
        let claimed = claimed
            .iter()
            .map(|(d, c)| ((*d).to_owned(), (*c).to_owned()));
        HollowPod {
            key: ("a".to_owned(), "p".to_owned()),
            stage: Stage::Starting(Duration::ZERO),
            plugged,
            claimed: claimed.collect(),
            stop_at: None,
        }
    }

    #[test]
    fn no_device_has_two_holders() {
        let mut machine = HollowMachine::default();
        machine.add("1", sandbox(3, &[("d0", "c0")])).unwrap();
        machine.add("2", sandbox(2, &[])).unwrap_err();
        machine.add("2", sandbox(0, &[("d0", "c1")])).unwrap_err();
        machine.add("2", sandbox(1, &[("d0", "c0")])).unwrap();
    }

    #[test]
    fn what_has_stopped_holds_nothing() {
        let mut machine = HollowMachine::default();
        let mut first = sandbox(4, &[("d0", "c0")]);
        first.stop_at = Some(Duration::from_secs(3));
        machine.add("1", first).unwrap();
        machine.advance(Duration::from_secs(2), |_| None);
        assert_eq!(machine.running(), 1);
        machine.advance(Duration::from_secs(3), |_| None);
        assert_eq!(machine.running(), 0);
        machine.add("2", sandbox(4, &[("d0", "c1")])).unwrap();
    }
}
