//! Binds claims and volumes to one another, asks provisioners for volumes, and says what becomes of volumes whose claims
//! are gone.
//!
//! What is done next is decided in [`plan`], from stored objects alone; this module looks up what plans need, and carries
//! out their steps. Specified in <https://kubernetes.io/docs/concepts/storage/persistent-volumes/>.

mod cache;
mod plan;

use async_trait::async_trait;
use cache::AssumeCache;
use davit_client::{EventRecorder, Informer, ObjectKey, WorkQueue};
use davit_reconcile::pods::{is_terminal, node_of};
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, cluster_key, gone_is_none,
};
use davit_volume::annotations::BIND_COMPLETED;
use davit_volume::binding::{annotation, claim_ref, volume_name};
use davit_volume::class::{claim_class, default_class, volume_class};
use davit_volume::pod::claims_of;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use plan::{Referenced, Step, Then, VolumeView, Write, plan_claim, plan_volume, referenced};
use std::sync::Arc;
use std::time::Duration;

/// How often all claims and volumes are looked at again: what they wait for may be a class or another volume.
const RESYNC: Duration = Duration::from_secs(15);
/// When to look again while not all classes are known yet.
const SOON: Duration = Duration::from_millis(200);
/// A binding takes four steps; with a class and a finalizer before it, six. More is a defect.
const STEPS: usize = 10;

/// Where a volume is looked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum VolumePlace {
    /// Bound to this claim or kept for it.
    Claim(ObjectKey),
    /// Free, of this class.
    Class(String),
}

fn place_of(volume: &PersistentVolume) -> VolumePlace {
    match claim_ref(volume) {
        Some(reference) => VolumePlace::Claim(referenced(reference)),
        None => VolumePlace::Class(volume_class(volume).to_owned()),
    }
}

/// What the workers of claims and volumes share.
struct Shared {
    client: kube::Client,
    informers: Informers,
    classes: Informer<StorageClass>,
    volumes: AssumeCache<PersistentVolume, VolumePlace>,
    claims: AssumeCache<PersistentVolumeClaim, ()>,
    events: EventRecorder,
}

/// Starts the controller.
pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("persistentvolume-binder-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let shared = Arc::new(Shared {
        client: spawner.client.clone(),
        informers: informers.clone(),
        classes: spawner.informer(),
        volumes: AssumeCache::new(place_of),
        claims: AssumeCache::new(|_| ()),
        events: spawner.events("persistentvolume-controller"),
    });
    // without the volumes that are there, the first claims would be taken for lost
    for volume in informers.volumes.list() {
        shared.volumes.store(volume);
    }
    for claim in informers.claims.list() {
        shared.claims.store(claim);
    }
    let claims = spawner.controller(Claims(shared.clone()));
    let volumes = spawner.controller(Volumes {
        shared,
        claims: claims.clone(),
    });
    spawner.feed(
        &informers.claims,
        &claims,
        |claim: &PersistentVolumeClaim| vec![ObjectKey::of(claim)],
    );
    spawner.feed(&informers.volumes, &volumes, |volume: &PersistentVolume| {
        vec![ObjectKey::of(volume)]
    });
    // a volume hears at once that its claim is gone
    spawner.feed_changes(
        &informers.claims,
        &volumes,
        |_, _| false,
        |claim: &PersistentVolumeClaim| volume_name(claim).map(cluster_key).into_iter().collect(),
    );
    spawner.task(
        "persistent-volume-resync",
        resync(informers, claims, volumes),
    );
}

async fn resync(informers: Informers, claims: WorkQueue<ObjectKey>, volumes: WorkQueue<ObjectKey>) {
    let mut rounds = tokio::time::interval(RESYNC);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for volume in informers.volumes.list() {
            volumes.add(ObjectKey::of(&*volume));
        }
        for claim in informers.claims.list() {
            claims.add(ObjectKey::of(&*claim));
        }
    }
}

/// One worker: two claims that are looked at at once could take the same volume.
struct Claims(Arc<Shared>);

#[async_trait]
impl Reconcile for Claims {
    const NAME: &'static str = "persistentvolume-binder-claims";
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let shared = &self.0;
        if !shared.classes.is_synced() {
            return Ok(Next::After(SOON));
        }
        let Some(seen) = shared.informers.claims.get(Some(&key.namespace), &key.name) else {
            shared.claims.remove(key);
            return Ok(Next::Wait);
        };
        let claim = shared.claims.store(seen.clone());
        if claim.metadata.resource_version != seen.metadata.resource_version {
            // its own event is on the way
            return Ok(Next::Wait);
        }
        shared.look_for_volume_of(&claim).await?;
        for _ in 0..STEPS {
            let Some(claim) = shared.claims.get(key) else {
                return Ok(Next::Wait);
            };
            match shared
                .carry_out(plan_claim(&claim, shared.as_ref()))
                .await?
            {
                Then::Plan => {}
                Then::Fail(why) => return Err(Error::Invalid(why)),
                Then::Wait | Then::Claim(_) => return Ok(Next::Wait),
            }
        }
        Err(Error::Invalid(format!("claim {key} does not settle")))
    }
}

/// One worker, which hands unfinished bindings to that of the claims.
struct Volumes {
    shared: Arc<Shared>,
    claims: WorkQueue<ObjectKey>,
}

#[async_trait]
impl Reconcile for Volumes {
    const NAME: &'static str = "persistentvolume-binder-volumes";
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let shared = &self.shared;
        let Some(seen) = shared.informers.volumes.get(None, &key.name) else {
            if let Some(last) = shared.volumes.remove(key) {
                let claim = claim_ref(&last).map(referenced);
                claim.into_iter().for_each(|claim| self.claims.add(claim));
            }
            return Ok(Next::Wait);
        };
        let volume = shared.volumes.store(seen.clone());
        if volume.metadata.resource_version != seen.metadata.resource_version {
            return Ok(Next::Wait);
        }
        for _ in 0..STEPS {
            let Some(volume) = shared.volumes.get(key) else {
                return Ok(Next::Wait);
            };
            let claim = shared.claim_of(&volume).await?;
            match shared
                .carry_out(plan_volume(&volume, claim.as_deref()))
                .await?
            {
                Then::Plan => {}
                Then::Fail(why) => return Err(Error::Invalid(why)),
                Then::Wait => return Ok(Next::Wait),
                Then::Claim(claim) => {
                    self.claims.add(claim);
                    return Ok(Next::Wait);
                }
            }
        }
        Err(Error::Invalid(format!("volume {key} does not settle")))
    }
}

impl Shared {
    fn claims_in(&self, namespace: Option<&str>) -> kube::Api<PersistentVolumeClaim> {
        kube::Api::namespaced(self.client.clone(), namespace.unwrap_or_default())
    }

    fn all_volumes(&self) -> kube::Api<PersistentVolume> {
        kube::Api::all(self.client.clone())
    }

    /// Before a claim is given up for lost, the API server is asked for its volume: the cache may not have it yet.
    async fn look_for_volume_of(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let bound = annotation(&claim.metadata, BIND_COMPLETED).is_some();
        let Some(name) = volume_name(claim).filter(|_| bound) else {
            return Ok(());
        };
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
        if phase == Some("Lost") || self.volume(name).is_some() {
            return Ok(());
        }
        let volume = self.all_volumes().get_opt(name).await;
        let volume = volume.context(|| format!("get volume {name}"))?;
        if let Some(volume) = volume {
            self.volumes.store(Arc::new(volume));
        }
        Ok(())
    }

    /// The claim under the name that a volume refers to; asked of the API server where the cache could be behind.
    async fn claim_of(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, Error> {
        let Some(key) = claim_ref(volume).map(referenced) else {
            return Ok(None);
        };
        // What the informer does not have may be gone, whatever the cache says.
        let informed = self.informers.claims.get(Some(&key.namespace), &key.name);
        let known = informed.map(|claim| {
            let cached = self.claims.get(&key);
            let same =
                |cached: &Arc<PersistentVolumeClaim>| cached.metadata.uid == claim.metadata.uid;
            cached.filter(same).unwrap_or(claim)
        });
        if Referenced::by(volume, known.as_deref()) != Referenced::Server {
            return Ok(known);
        }
        let claim = self.claims_in(Some(&key.namespace)).get(&key.name).await;
        let claim = gone_is_none(claim).context(|| format!("get claim {key}"))?;
        Ok(claim.map(Arc::new))
    }

    /// Makes the write of a step, takes what was stored into the cache, and records the events.
    async fn carry_out(&self, step: Step) -> Result<Then, Error> {
        if let Some(write) = step.write {
            self.store(write).await?;
        }
        for notice in step.notices {
            if notice.warning {
                self.events
                    .warning(&notice.object, notice.reason, notice.message);
            } else {
                self.events
                    .normal(&notice.object, notice.reason, notice.message);
            }
        }
        Ok(step.then)
    }

    async fn store(&self, write: Write) -> Result<(), Error> {
        let params = PostParams::default();
        match write {
            Write::Volume(volume) => {
                let name = volume.metadata.name.clone().unwrap_or_default();
                let stored = self.all_volumes().replace(&name, &params, &volume).await;
                let stored = stored.context(|| format!("update volume {name}"))?;
                self.volumes.store(Arc::new(stored));
            }
            Write::VolumeStatus(volume) => {
                let name = volume.metadata.name.clone().unwrap_or_default();
                let api = self.all_volumes();
                let stored = api.replace_status(&name, &params, &volume).await;
                let stored = stored.context(|| format!("update the status of volume {name}"))?;
                self.volumes.store(Arc::new(stored));
            }
            Write::Claim(claim) => {
                let key = ObjectKey::of(&*claim);
                let api = self.claims_in(Some(&key.namespace));
                let stored = api.replace(&key.name, &params, &claim).await;
                let stored = stored.context(|| format!("update claim {key}"))?;
                self.claims.store(Arc::new(stored));
            }
            Write::ClaimStatus(claim) => {
                let key = ObjectKey::of(&*claim);
                let api = self.claims_in(Some(&key.namespace));
                let stored = api.replace_status(&key.name, &params, &claim).await;
                let stored = stored.context(|| format!("update the status of claim {key}"))?;
                self.claims.store(Arc::new(stored));
            }
        }
        Ok(())
    }
}

impl VolumeView for Shared {
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        let known = self.volumes.get(&cluster_key(name));
        known.or_else(|| self.informers.volumes.get(None, name))
    }

    fn candidates(&self, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
        let class = claim_class(claim).unwrap_or("").to_owned();
        let mut found = self.volumes.at(&VolumePlace::Claim(ObjectKey::of(claim)));
        found.extend(self.volumes.at(&VolumePlace::Class(class)));
        found
    }

    fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(None, name)
    }

    fn default_class(&self) -> Option<Arc<StorageClass>> {
        let classes = self.classes.list();
        let name = default_class(classes.iter().map(|class| &**class))?;
        self.classes.get(None, name.metadata.name.as_deref()?)
    }

    fn unscheduled_pods(&self, claim: &PersistentVolumeClaim) -> Vec<String> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let pods = self.informers.pods.list_namespace(namespace);
        let waiting = pods.iter().filter(|pod| {
            node_of(pod).is_none()
                && !is_terminal(pod)
                && claims_of(pod).any(|named| Some(&named.claim) == claim.metadata.name.as_ref())
        });
        let mut names: Vec<String> = waiting
            .filter_map(|pod| pod.metadata.name.clone())
            .collect();
        names.sort();
        names
    }
}
