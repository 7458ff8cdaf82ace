//! Claims, volumes and classes in memory.

use super::super::{Notice, Step, Then, VolumeView, Write, plan_claim, plan_volume, referenced};
use davit_client::ObjectKey;
use davit_volume::binding::claim_ref;
use davit_volume::class::{claim_class, default_class, volume_class};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Model {
    pub(super) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub(super) claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub(super) classes: Vec<Arc<StorageClass>>,
    pub(super) pods: Vec<String>,
    version: u64,
}

pub(super) fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl Model {
    fn next_version(&mut self) -> Option<String> {
        self.version += 1;
        Some(self.version.to_string())
    }

    pub(super) fn add_volume(&mut self, name: &str, spec: Value) {
        self.add_volume_with(name, json!({}), spec);
    }

    pub(super) fn add_volume_with(&mut self, name: &str, meta: Value, mut spec: Value) {
        spec["capacity"] = json!({"storage": spec["storage"]});
        let mut volume: PersistentVolume = from(json!({"metadata": meta, "spec": spec}));
        volume.metadata.name = Some(name.to_owned());
        volume.metadata.uid = Some(format!("uid-{name}"));
        volume.metadata.resource_version = self.next_version();
        self.volumes.insert(name.to_owned(), Arc::new(volume));
    }

    pub(super) fn add_claim(&mut self, name: &str, uid: &str, mut spec: Value) {
        spec["resources"] = json!({"requests": {"storage": spec["storage"]}});
        let mut claim: PersistentVolumeClaim = from(json!({
            "metadata": {"namespace": "n", "name": name, "uid": uid},
            "spec": spec, "status": {"phase": "Pending"},
        }));
        claim.metadata.resource_version = self.next_version();
        self.claims.insert(name.to_owned(), Arc::new(claim));
    }

    pub(super) fn add_class(&mut self, name: &str, provisioner: &str, more: Value) {
        let mut class: StorageClass = from(json!({"metadata": more["metadata"],
            "provisioner": provisioner, "volumeBindingMode": more["volumeBindingMode"]}));
        class.metadata.name = Some(name.to_owned());
        self.classes.push(Arc::new(class));
    }

    /// What a step would do for a claim now.
    pub(super) fn claim_step(&self, name: &str) -> Step {
        plan_claim(&self.claims[name], self)
    }

    /// What a step would do for a volume now, as the API server knows its claim.
    pub(super) fn volume_step(&self, name: &str) -> Step {
        let volume = &self.volumes[name];
        let claim = claim_ref(volume).map(referenced);
        let known = claim.and_then(|key| self.claims.get(&key.name));
        plan_volume(volume, known.map(|claim| &**claim))
    }

    /// Stores what a step writes, with the checks of the API server.
    pub(super) fn store(&mut self, write: Write) {
        let version = self.next_version();
        match write {
            Write::Volume(new) => self.volume(&new, version, |stored, new| {
                let status = stored.status.clone();
                *stored = PersistentVolume {
                    status,
                    ..new.clone()
                };
            }),
            Write::VolumeStatus(new) => self.volume(&new, version, |stored, new| {
                stored.status.clone_from(&new.status);
            }),
            Write::Claim(new) => self.claim(&new, version, |stored, new| {
                let status = stored.status.clone();
                *stored = PersistentVolumeClaim {
                    status,
                    ..new.clone()
                };
            }),
            Write::ClaimStatus(new) => self.claim(&new, version, |stored, new| {
                stored.status.clone_from(&new.status);
            }),
        }
    }

    fn volume(
        &mut self,
        new: &PersistentVolume,
        version: Option<String>,
        change: impl FnOnce(&mut PersistentVolume, &PersistentVolume),
    ) {
        let stored = self.volumes.get_mut(new.metadata.name.as_deref().unwrap());
        let stored = Arc::make_mut(stored.unwrap());
        assert_eq!(
            stored.metadata.resource_version,
            new.metadata.resource_version
        );
        change(stored, new);
        stored.metadata.resource_version = version;
    }

    fn claim(
        &mut self,
        new: &PersistentVolumeClaim,
        version: Option<String>,
        change: impl FnOnce(&mut PersistentVolumeClaim, &PersistentVolumeClaim),
    ) {
        let stored = self.claims.get_mut(new.metadata.name.as_deref().unwrap());
        let stored = Arc::make_mut(stored.unwrap());
        assert_eq!(
            stored.metadata.resource_version,
            new.metadata.resource_version
        );
        change(stored, new);
        stored.metadata.resource_version = version;
    }

    /// Takes steps for a claim until it waits, at most so many; returns the events and how many writes there were.
    pub(super) fn sync_claim(&mut self, name: &str, steps: usize) -> (Vec<Notice>, usize) {
        self.sync(steps, |model| model.claim_step(name))
    }

    pub(super) fn sync_volume(&mut self, name: &str, steps: usize) -> (Vec<Notice>, usize) {
        self.sync(steps, |model| model.volume_step(name))
    }

    fn sync(&mut self, steps: usize, plan: impl Fn(&Self) -> Step) -> (Vec<Notice>, usize) {
        let (mut notices, mut writes) = (Vec::new(), 0);
        for _ in 0..steps {
            let step = plan(self);
            if let Some(write) = step.write {
                self.store(write);
                writes += 1;
            }
            notices.extend(step.notices);
            if step.then != Then::Plan {
                break;
            }
        }
        (notices, writes)
    }

    /// Looks at everything again until nothing changes.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            let mut writes = 0;
            for name in self.volumes.keys().cloned().collect::<Vec<_>>() {
                writes += self.sync_volume(&name, 10).1;
            }
            for name in self.claims.keys().cloned().collect::<Vec<_>>() {
                writes += self.sync_claim(&name, 10).1;
            }
            if writes == 0 {
                return;
            }
        }
        panic!("does not settle");
    }

    pub(super) fn claim_phase(&self, name: &str) -> &str {
        super::super::claim_phase(&self.claims[name])
    }

    pub(super) fn volume_phase(&self, name: &str) -> &str {
        super::super::phase_of(&self.volumes[name])
    }
}

impl VolumeView for Model {
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(name).cloned()
    }

    fn candidates(&self, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
        let key = ObjectKey::of(claim);
        let fits = |volume: &Arc<PersistentVolume>| match claim_ref(volume) {
            Some(reference) => referenced(reference) == key,
            None => volume_class(volume) == claim_class(claim).unwrap_or(""),
        };
        self.volumes.values().filter(|v| fits(v)).cloned().collect()
    }

    fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        let named = |class: &&Arc<StorageClass>| class.metadata.name.as_deref() == Some(name);
        self.classes.iter().find(named).cloned()
    }

    fn default_class(&self) -> Option<Arc<StorageClass>> {
        let class = default_class(self.classes.iter().map(|class| &**class))?;
        VolumeView::class(self, class.metadata.name.as_deref()?)
    }

    fn unscheduled_pods(&self, _: &PersistentVolumeClaim) -> Vec<String> {
        self.pods.clone()
    }
}
