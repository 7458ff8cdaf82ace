//! What must hold after every change of the store.

mod claims;
mod jobs;
mod pods;
mod replicas;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use davit_store::{Change, KeyValue};
use serde_json::Value;

use crate::world;

/// Prefixes of keys.
pub const PODS: &str = "/registry/core/pods/";
/// Nodes.
pub const NODES: &str = "/registry/core/nodes/";
/// Claims of devices.
pub const CLAIMS: &str = "/registry/resource.k8s.io/resourceclaims/";
/// Replica sets.
pub const REPLICA_SETS: &str = "/registry/apps/replicasets/";
/// Deployments.
pub const DEPLOYMENTS: &str = "/registry/apps/deployments/";
/// Jobs.
pub const JOBS: &str = "/registry/batch/jobs/";

const CHECKED: [&str; 6] = [PODS, NODES, CLAIMS, REPLICA_SETS, DEPLOYMENTS, JOBS];

/// How long whoever acts may not know of a change.
const MEMORY: Duration = Duration::from_secs(120);

/// Objects by key.
pub type Objects = BTreeMap<Arc<str>, Value>;

/// The state that changes are judged by.
#[derive(Debug, Default)]
pub struct Checks {
    /// Objects of the kinds that are checked.
    objects: Objects,
    /// Of pods of jobs how they ended, by UID and whether they failed: their job's UID. One that was to go and then
    /// succeeded is both.
    ended: BTreeMap<(String, bool), String>,
    /// How many replicas were asked for when, by the UID of who asks.
    wanted: BTreeMap<String, Vec<(Duration, i64)>>,
    /// When nodes went, by their keys.
    gone_nodes: BTreeMap<Arc<str>, Duration>,
    /// Writers may not learn that their writes were made: they may make a thing twice, and take it back.
    pub in_doubt: bool,
    violations: Vec<String>,
    short: String,
}

impl Checks {
    /// Begins with what is there.
    pub fn begin(&mut self, pairs: &[KeyValue]) {
        for pair in pairs {
            if CHECKED.iter().any(|prefix| pair.key.starts_with(prefix)) {
                let object = serde_json::from_slice(&pair.value).unwrap_or(Value::Null);
                self.objects.insert(Arc::clone(&pair.key), object);
            }
        }
    }

    /// Takes a change; what it violates.
    pub fn take(&mut self, change: &Change) -> Vec<String> {
        self.short.clear();
        if !CHECKED.iter().any(|prefix| change.key.starts_with(prefix)) {
            return Vec::new();
        }
        let new = change
            .current
            .as_ref()
            .map(|pair| serde_json::from_slice::<Value>(&pair.value).unwrap_or(Value::Null));
        let old = self.objects.get(&change.key).cloned();
        self.short = new.as_ref().map(short).unwrap_or_default();
        match &new {
            Some(new) => self.objects.insert(Arc::clone(&change.key), new.clone()),
            None => self.objects.remove(&change.key),
        };
        let mut found = Vec::new();
        let judged = Judged {
            key: &change.key,
            old: old.as_ref(),
            new: new.as_ref(),
        };
        match () {
            () if change.key.starts_with(PODS) => {
                self.pods(&judged, &mut found);
                self.pods_of_replica_sets(&judged, &mut found);
                self.pods_of_jobs(&judged);
            }
            () if change.key.starts_with(NODES) && new.is_none() => {
                let key = Arc::clone(&change.key);
                self.gone_nodes.insert(key, world::elapsed());
            }
            () if change.key.starts_with(CLAIMS) => self.claims(&judged, &mut found),
            () if change.key.starts_with(JOBS) => self.jobs(&judged, &mut found),
            () if change.key.starts_with(REPLICA_SETS) => self.replica_sets(&judged, &mut found),
            () if change.key.starts_with(DEPLOYMENTS) => self.deployments(&judged),
            () => {}
        }
        self.violations.extend(found.iter().cloned());
        found
    }

    /// What the last change says, in short.
    pub fn summary(&self) -> &str {
        &self.short
    }

    /// Something else that must not be.
    pub fn report(&mut self, violation: String) {
        self.violations.push(violation);
    }

    /// All that was violated.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn below(&self, prefix: &'static str) -> impl Iterator<Item = (&Arc<str>, &Value)> {
        let from: Arc<str> = Arc::from(prefix);
        self.objects
            .range(from..)
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// Whether a node of this name went so lately that a binding to it may have been on its way.
    fn has_just_gone(&self, node: &str) -> bool {
        let then = world::elapsed().saturating_sub(MEMORY);
        let mut lately = self.gone_nodes.iter().filter(|(_, at)| **at >= then);
        lately.any(|(key, _)| key.strip_prefix(NODES) == Some(node))
    }

    /// What was wanted at most in the last two minutes: whoever acts may know no more than what was then.
    fn wanted_of(&self, uid: &str) -> Option<i64> {
        let then = world::elapsed().saturating_sub(MEMORY);
        let all = self.wanted.get(uid)?;
        let from = all.partition_point(|(at, _)| *at < then).saturating_sub(1);
        all[from..].iter().map(|(_, wanted)| *wanted).max()
    }

    fn want(&mut self, object: &Value) {
        let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
        let all = self
            .wanted
            .entry(text(object, "/metadata/uid").to_owned())
            .or_default();
        if all.last().is_none_or(|(_, last)| *last != replicas) {
            all.push((world::elapsed(), replicas));
        }
    }
}

/// A change of an object.
struct Judged<'a> {
    key: &'a str,
    old: Option<&'a Value>,
    new: Option<&'a Value>,
}

/// A text of an object; empty if it is not there.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The items of a list of an object.
pub fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// The UID of the controller of an object, of this kind.
pub fn controller<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let mut owners = items(object, "/metadata/ownerReferences");
    let owner = owners.find(|owner| owner["controller"] == true && owner["kind"] == kind)?;
    owner["uid"].as_str()
}

/// Whether a pod has ended.
pub fn is_over(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Whether an object is to go.
pub fn is_going(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn short(object: &Value) -> String {
    let mut said = String::new();
    let mut say = |name: &str, pointer: &str| {
        if let Some(value) = object.pointer(pointer) {
            said.push_str(&format!(" {name}={}", value.to_string().trim_matches('"')));
        }
    };
    say("node", "/spec/nodeName");
    say("phase", "/status/phase");
    say("replicas", "/spec/replicas");
    say("has", "/status/replicas");
    say("succeeded", "/status/succeeded");
    say("failed", "/status/failed");
    say("uncounted", "/status/uncountedTerminatedPods");
    say("finalizers", "/metadata/finalizers");
    say("reserved", "/status/reservedFor");
    say("unschedulable", "/spec/unschedulable");
    say("taints", "/spec/taints");
    say("going", "/metadata/deletionTimestamp");
    said
}

#[cfg(test)]
mod tests;
