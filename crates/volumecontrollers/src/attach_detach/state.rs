//! What is attached where, what is wanted, and what to do about the difference. Pure: the caller tells the time and what
//! became of the actions.
//!
//! A volume is detached in three steps. It is *withdrawn*: the node's status stops listing it, so that the agent does not
//! mount it again. When that is written the detachment itself runs. Only when it has ended is the volume nowhere.

use super::actions::{
    AttachAction, AttachNode, DetachResult, ForceReason, NodeListing, VolumeOnNode,
    multi_attach_reason,
};
use super::wanted::{AttachSource, WantedVolume};
use davit_volume::names::split_csi_volume_name;
use k8s_openapi::api::core::v1::ObjectReference;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How long the agent of a node that is not ready may leave a volume mounted before it is detached nevertheless.
pub(super) const UNMOUNT_DEADLINE: Duration = Duration::from_secs(6 * 60);
/// Back-off of what fails: doubles from the first to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttachStep {
    Idle,
    Attaching,
    Withdrawn(Option<ForceReason>),
    Detaching,
    /// The driver is asked whether it still is.
    Verifying,
}

#[derive(Debug, Default)]
struct AttachBackoff {
    failures: u32,
    until: Option<Instant>,
}

impl AttachBackoff {
    fn fail(&mut self, now: Instant) {
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.until = Some(now + BACKOFF.0.saturating_mul(factor).min(BACKOFF.1));
        self.failures += 1;
    }

    fn holds(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now)
    }
}

/// A volume that is on a node, or may be.
#[derive(Debug)]
struct AttachEntry {
    source: AttachSource,
    /// Whether it is known to be attached; otherwise an attachment may have happened.
    confirmed: bool,
    /// Its device on the node, if the driver told one.
    device: Option<String>,
    step: AttachStep,
    /// The number of the node's news when the volume was attached. Until there is more news it may be mounted.
    news: u64,
    /// Since when nobody on the node wants it.
    unwanted_since: Option<Instant>,
    backoff: AttachBackoff,
}

#[derive(Debug, Default)]
struct KnownNode {
    exists: bool,
    facts: AttachNode,
    /// How often the node was heard of.
    news: u64,
    /// Whether a write of its status is under way.
    writing: bool,
    backoff: AttachBackoff,
}

/// The state of all attachments.
#[derive(Debug, Default)]
pub(super) struct AttachState {
    nodes: BTreeMap<String, KnownNode>,
    /// By node and volume.
    wanted: BTreeMap<String, BTreeMap<String, WantedVolume>>,
    entries: BTreeMap<VolumeOnNode, AttachEntry>,
    /// Where users have been told that another node has the volume.
    warned: BTreeSet<VolumeOnNode>,
}

impl AttachState {
    /// A node is there and tells this.
    pub(super) fn set_node(&mut self, name: &str, facts: AttachNode) {
        let node = self.nodes.entry(name.to_owned()).or_default();
        node.exists = true;
        node.news += 1;
        let known = std::mem::replace(&mut node.facts, facts).listing;
        if known.version > node.facts.listing.version {
            // news from before the latest write
            node.facts.listing = known;
        }
    }

    /// A node is gone. What it had mounted it may still have, as long as nothing else is heard.
    pub(super) fn remove_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.exists = false;
            node.facts.ready = false;
            node.facts.listing = NodeListing::default();
        }
    }

    /// Whether there are volumes on the node, or may be.
    pub(super) fn has_volumes(&self, node: &str) -> bool {
        self.entries.keys().any(|at| at.node == node)
    }

    /// What the pods of a node need.
    pub(super) fn set_wanted(&mut self, node: &str, volumes: BTreeMap<String, WantedVolume>) {
        self.warned
            .retain(|at| at.node != node || volumes.contains_key(&at.volume));
        if volumes.is_empty() {
            self.wanted.remove(node);
        } else {
            self.wanted.insert(node.to_owned(), volumes);
        }
    }

    /// The pods that need the volume on the node.
    pub(super) fn pods(&self, at: &VolumeOnNode) -> &[ObjectReference] {
        let wanted = self.wanted.get(&at.node).and_then(|w| w.get(&at.volume));
        wanted.map(|w| w.pods.as_slice()).unwrap_or_default()
    }

    /// A volume that an earlier run attached, or may have. That a volume is attached is not forgotten by this.
    pub(super) fn restore(&mut self, at: VolumeOnNode, source: AttachSource, confirmed: bool) {
        let entry = self.entries.entry(at).or_insert_with(|| AttachEntry {
            source: source.clone(),
            confirmed,
            device: None,
            step: AttachStep::Idle,
            news: 0,
            unwanted_since: None,
            backoff: AttachBackoff::default(),
        });
        entry.source = source;
    }

    /// The volumes that are attached as far as is known and that nothing is being done about.
    pub(super) fn settled(&self) -> impl Iterator<Item = (&VolumeOnNode, &AttachSource)> {
        let settled = |e: &AttachEntry| e.confirmed && e.step == AttachStep::Idle;
        let entries = self.entries.iter().filter(move |(_, e)| settled(e));
        entries.map(|(at, e)| (at, &e.source))
    }

    /// A settled volume turned out not to be attached.
    pub(super) fn lost(&mut self, at: &VolumeOnNode) {
        if self
            .entries
            .get(at)
            .is_some_and(|e| e.step == AttachStep::Idle)
        {
            self.entries.remove(at);
        }
    }

    /// Begins to ask the driver of a settled volume; ends with [`verified`](Self::verified).
    pub(super) fn verify(&mut self, at: &VolumeOnNode) {
        if let Some(entry) = self.entries.get_mut(at) {
            entry.step = AttachStep::Verifying;
        }
    }

    /// The driver of a volume was asked whether it is attached.
    pub(super) fn verified(&mut self, at: &VolumeOnNode, attached: bool) {
        if let Some(entry) = self.entries.get_mut(at) {
            entry.step = AttachStep::Idle;
        }
        if !attached {
            self.lost(at);
        }
    }

    /// Volumes that nodes list and that nothing is known of; those of CSI drivers are never such.
    pub(super) fn unknown_listed(&self) -> Vec<VolumeOnNode> {
        let listed = self.nodes.iter().flat_map(|(name, node)| {
            let volumes = node.facts.listing.volumes.keys();
            volumes.map(|volume| VolumeOnNode {
                volume: volume.clone(),
                node: name.clone(),
            })
        });
        let unknown = |at: &VolumeOnNode| {
            split_csi_volume_name(&at.volume).is_none() && !self.entries.contains_key(at)
        };
        listed.filter(unknown).collect()
    }

    /// An [`AttachAction::Attach`] has ended: with the volume's device, which may be empty, or `None` if it failed.
    pub(super) fn attached(&mut self, at: &VolumeOnNode, device: Option<&str>, now: Instant) {
        let news = self.nodes.get(&at.node).map_or(0, |node| node.news);
        let Some(entry) = self.entries.get_mut(at) else {
            return;
        };
        entry.step = AttachStep::Idle;
        if let Some(device) = device {
            entry.confirmed = true;
            entry.device = Some(device.to_owned()).filter(|device| !device.is_empty());
            entry.news = news;
            entry.unwanted_since = None;
            entry.backoff = AttachBackoff::default();
        } else {
            entry.backoff.fail(now);
        }
    }

    /// An [`AttachAction::Detach`] has ended.
    pub(super) fn detached(&mut self, at: &VolumeOnNode, result: DetachResult, now: Instant) {
        if result == DetachResult::Detached {
            self.entries.remove(at);
        } else if let Some(entry) = self.entries.get_mut(at) {
            entry.step = AttachStep::Idle;
            // a detachment that was begun may have happened
            entry.confirmed &= result == DetachResult::InUse;
            entry.backoff.fail(now);
        }
    }

    /// An [`AttachAction::List`] has ended; `written` is what the node's status says since, if it was written.
    pub(super) fn listed(&mut self, node: &str, written: Option<NodeListing>, now: Instant) {
        let Some(known) = self.nodes.get_mut(node) else {
            return;
        };
        known.writing = false;
        if let Some(written) = written {
            known.facts.listing = written;
            known.backoff = AttachBackoff::default();
            return;
        }
        known.backoff.fail(now);
        let withdrawn = self.entries.iter_mut().filter(|(at, e)| {
            at.node == node
                && matches!(e.step, AttachStep::Withdrawn(_))
                && known.facts.listing.volumes.contains_key(&at.volume)
        });
        for (_, entry) in withdrawn {
            entry.step = AttachStep::Idle;
            entry.backoff.fail(now);
        }
    }

    /// What is to be done now. Detachments come first, so that volumes of pods that moved are free for their new nodes.
    pub(super) fn next_actions(&mut self, now: Instant) -> Vec<AttachAction> {
        let mut actions = Vec::new();
        self.withdraw(now);
        self.detach(&mut actions);
        self.attach(now, &mut actions);
        self.list(now, &mut actions);
        let entries = &self.entries;
        self.nodes
            .retain(|name, node| node.exists || entries.keys().any(|at| at.node == *name));
        actions
    }

    /// When there may be something to do although nothing is heard.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let backoffs = self.entries.values().filter_map(|e| e.backoff.until);
        let nodes = self.nodes.values().filter_map(|n| n.backoff.until);
        let unwanted = self.entries.values().filter_map(|e| e.unwanted_since);
        let deadlines = unwanted.map(|since| since + UNMOUNT_DEADLINE);
        let all = backoffs.chain(nodes).chain(deadlines);
        all.filter(|at| *at > now).min()
    }

    fn is_wanted(&self, at: &VolumeOnNode) -> bool {
        let wanted = self.wanted.get(&at.node);
        wanted.is_some_and(|w| w.contains_key(&at.volume))
    }

    /// The other nodes that a volume is on, or may be.
    fn elsewhere(&self, at: &VolumeOnNode) -> impl Iterator<Item = (&VolumeOnNode, &AttachEntry)> {
        let first = VolumeOnNode {
            volume: at.volume.clone(),
            node: String::new(),
        };
        let (volume, node) = (at.volume.clone(), at.node.clone());
        let same = self.entries.range(first..);
        same.take_while(move |(other, _)| other.volume == volume)
            .filter(move |(other, _)| other.node != node)
    }

    fn is_busy_elsewhere(&self, at: &VolumeOnNode) -> bool {
        self.elsewhere(at).any(|(_, e)| e.step != AttachStep::Idle)
    }

    /// Marks volumes for detachment that nobody wants, as far as their nodes let go of them.
    fn withdraw(&mut self, now: Instant) {
        let mut unwanted = Vec::new();
        for (at, entry) in &self.entries {
            let idle = entry.step == AttachStep::Idle && !self.is_wanted(at);
            if idle && !(entry.source.exclusive() && self.is_busy_elsewhere(at)) {
                unwanted.push(at.clone());
            }
        }
        for at in unwanted {
            let Some(entry) = self.entries.get_mut(&at) else {
                continue;
            };
            let since = *entry.unwanted_since.get_or_insert(now);
            if entry.backoff.holds(now) {
                continue;
            }
            let node = self.nodes.get(&at.node);
            let in_use = node.is_none_or(|node| {
                node.news <= entry.news || node.facts.in_use.contains(&at.volume)
            });
            let ready = node.is_some_and(|node| node.facts.ready);
            let overdue = now.duration_since(since) >= UNMOUNT_DEADLINE;
            let force = if node.is_some_and(|node| node.facts.out_of_service) {
                Some(ForceReason::OutOfService)
            } else {
                (!ready && overdue).then_some(ForceReason::Timeout)
            };
            if !in_use || force.is_some() {
                entry.step = AttachStep::Withdrawn(force);
            }
        }
    }

    /// Detaches what no node's status lists any more.
    fn detach(&mut self, actions: &mut Vec<AttachAction>) {
        for (at, entry) in &mut self.entries {
            let AttachStep::Withdrawn(force) = entry.step else {
                continue;
            };
            let wanted = self.wanted.get(&at.node);
            if wanted.is_some_and(|w| w.contains_key(&at.volume)) {
                entry.step = AttachStep::Idle;
                continue;
            }
            let listed = self.nodes.get(&at.node).is_some_and(|node| {
                let listing = &node.facts.listing.volumes;
                node.exists && (node.writing || listing.contains_key(&at.volume))
            });
            if !listed {
                entry.step = AttachStep::Detaching;
                actions.push(AttachAction::Detach {
                    at: at.clone(),
                    source: entry.source.clone(),
                    force,
                });
            }
        }
    }

    fn attach(&mut self, now: Instant, actions: &mut Vec<AttachAction>) {
        let mut missing = Vec::new();
        for (node, volumes) in &self.wanted {
            for (volume, wanted) in volumes {
                let at = VolumeOnNode {
                    volume: volume.clone(),
                    node: node.clone(),
                };
                match self.entries.get_mut(&at) {
                    Some(entry) if entry.step != AttachStep::Idle => {}
                    Some(entry) if entry.confirmed => {
                        entry.unwanted_since = None;
                        entry.source = wanted.source.clone();
                    }
                    Some(entry) if entry.backoff.holds(now) => {}
                    _ => missing.push((at, wanted.source.clone())),
                }
            }
        }
        for (at, source) in missing {
            if source.exclusive() {
                if self.is_busy_elsewhere(&at) {
                    continue;
                }
                // Also where it only may be: an attachment that failed half-way is taken back first. A node that may have
                // the volume itself does not wait for another that is in the same case.
                let own = self.entries.contains_key(&at);
                if self.elsewhere(&at).any(|(_, e)| e.confirmed || !own) {
                    self.warn(&at, &source, actions);
                    continue;
                }
            }
            self.restore(at.clone(), source.clone(), false);
            if let Some(entry) = self.entries.get_mut(&at) {
                entry.step = AttachStep::Attaching;
            }
            actions.push(AttachAction::Attach { at, source });
        }
    }

    /// Tells the pods of a node, once, that another node has their volume.
    fn warn(&mut self, at: &VolumeOnNode, source: &AttachSource, actions: &mut Vec<AttachAction>) {
        if !self.warned.insert(at.clone()) {
            return;
        }
        let holders: Vec<&ObjectReference> = self
            .elsewhere(at)
            .flat_map(|(other, _)| self.pods(other))
            .collect();
        for pod in self.pods(at) {
            let text = format!(
                "Multi-Attach error for volume \"{}\" {}",
                source.volume(),
                multi_attach_reason(pod, &holders)
            );
            actions.push(AttachAction::Warn {
                pod: pod.clone(),
                text,
            });
        }
    }

    /// Brings the statuses of nodes up to date.
    fn list(&mut self, now: Instant, actions: &mut Vec<AttachAction>) {
        let mut attached: BTreeMap<&str, Vec<(&str, Option<&String>)>> = BTreeMap::new();
        let mut known: BTreeSet<(&str, &str)> = BTreeSet::new();
        for (at, entry) in &self.entries {
            known.insert((&at.node, &at.volume));
            let held = matches!(
                entry.step,
                AttachStep::Idle | AttachStep::Attaching | AttachStep::Verifying
            );
            if entry.confirmed && held {
                let volume = (at.volume.as_str(), entry.device.as_ref());
                attached.entry(&at.node).or_default().push(volume);
            }
        }
        for (name, node) in &mut self.nodes {
            if !node.exists || node.writing || node.backoff.holds(now) {
                continue;
            }
            let listed = &node.facts.listing.volumes;
            // volumes of other plugins are not this controller's to judge
            let others = listed.iter().filter(|(volume, _)| {
                split_csi_volume_name(volume).is_none() && !known.contains(&(name, volume))
            });
            let mut volumes: BTreeMap<String, String> =
                others.map(|(v, p)| (v.clone(), p.clone())).collect();
            for (volume, device) in attached.remove(name.as_str()).into_iter().flatten() {
                let path = device.or_else(|| listed.get(volume)).cloned();
                volumes.insert(volume.to_owned(), path.unwrap_or_default());
            }
            if volumes != *listed {
                node.writing = true;
                actions.push(AttachAction::List {
                    node: name.clone(),
                    volumes,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
