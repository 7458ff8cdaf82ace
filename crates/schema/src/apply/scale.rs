//! Ownership of a replica count, as requests to `scale` see it: there it is `spec.replicas` of
//! `autoscaling/v1` `Scale`, in the object it is wherever the kind has it.

use serde_json::Value;

use super::managers::{Manager, Managers, Owned};
use super::path::{Path, PathElement};
use super::set::Set;

const SCALE: &str = "autoscaling/v1";

/// Translates `managedFields` between an object and its scale.
#[derive(Debug, Clone)]
pub struct ScaleFields<'a> {
    api_version: &'a str,
    /// Where the object keeps the count.
    replicas: &'a [&'a str],
}

impl<'a> ScaleFields<'a> {
    /// For objects of a version that keep their replica count at a path (`spec`, `replicas`).
    pub fn new(api_version: &'a str, replicas: &'a [&'a str]) -> Self {
        Self {
            api_version,
            replicas,
        }
    }

    /// Gives `scale` the entries of those who own the count of `parent`.
    pub fn to_scale(&self, parent: &Value, scale: &mut Value) {
        let held = Managers::of(parent).unwrap_or_default();
        let path = self.path();
        let mut out = Managers::default();
        for (manager, owned) in held.owned {
            if owned.api_version != self.api_version || !owned.set.contains(&path) {
                continue;
            }
            let of_scale = rename(&manager, SCALE);
            if let Some(time) = held.times.get(&manager) {
                out.times.insert(of_scale.clone(), time.clone());
            }
            let set = Set::of_fields([["spec", "replicas"]]);
            let api_version = SCALE.to_owned();
            out.owned.insert(of_scale, Owned { set, api_version });
        }
        out.write(scale);
    }

    /// Brings the ownership of a changed scale into `parent`.
    pub fn to_parent(&self, scale: &Value, parent: &mut Value) {
        let mut held = Managers::of(parent).unwrap_or_default();
        let mut scaled = Managers::of(scale).unwrap_or_default();
        let path = self.path();
        let replicas = Set::of_fields([self.replicas.iter().copied()]);
        let mut out = Managers::default();
        for (manager, mut owned) in std::mem::take(&mut held.owned) {
            let mut time = held.times.remove(&manager);
            if owned.api_version == self.api_version && owned.set.contains(&path) {
                let of_scale = rename(&manager, SCALE);
                if scaled.owned.remove(&of_scale).is_some() {
                    time = scaled.times.remove(&of_scale);
                } else {
                    // someone else has taken the count
                    owned.set = owned.set.difference(&replicas);
                }
            }
            if owned.set.is_empty() {
                continue;
            }
            if let Some(time) = time {
                out.times.insert(manager.clone(), time);
            }
            out.owned.insert(manager, owned);
        }
        for (manager, owned) in scaled.owned {
            if owned.set.is_empty() {
                continue;
            }
            let of_parent = rename(&manager, self.api_version);
            if let Some(time) = scaled.times.remove(&manager) {
                out.times.insert(of_parent.clone(), time);
            }
            let api_version = self.api_version.to_owned();
            let set = replicas.clone();
            out.owned.insert(of_parent, Owned { set, api_version });
        }
        out.write(parent);
    }

    fn path(&self) -> Path {
        self.replicas
            .iter()
            .map(|step| PathElement::field(*step))
            .collect()
    }
}

/// The same manager in another version.
fn rename(manager: &Manager, api_version: &str) -> Manager {
    Manager::new(
        &manager.name,
        manager.applies,
        api_version,
        &manager.subresource,
    )
}
