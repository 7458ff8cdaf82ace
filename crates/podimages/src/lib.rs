//! Image pulls: pull policy, back-off, pull secrets, and one pull at a time for one image.

#![forbid(unsafe_code)]

use davit_client::{EventRecorder, RequestRate, Throttle};
use davit_oci::runtime::{Error as RuntimeError, Runtime};
use davit_pods::backoff::Backoff;
use davit_pods::objects::ObjectSource;
use davit_pods::pod::Waiting;
use davit_pods::pod::{PodExt, Role};
use davit_proto::cri::v1 as cri;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

pub mod credentials;
mod keyring;
mod pulled;

use credentials::CredentialProviders;
use keyring::{Credential, Keyring};
use pulled::{Access, PullRecords};
pub use pulled::{Verification, is_allowlist_entry};

/// Pulls that run beside one another.
const PARALLEL_PULLS: usize = 64;
/// Of these, pulls for pods of one namespace: a registry that takes its time holds up those who named it.
const PULLS_OF_NAMESPACE: usize = 4;

/// An image that a pod needs.
struct Wanted<'a> {
    image: &'a str,
    policy: Option<&'a str>,
    /// What the events are about.
    reference: ObjectReference,
}

/// Images that are mounted as volumes, by the volumes' names in the pod.
pub type ImageVolumes = BTreeMap<String, cri::ImageSpec>;

/// Pulls images for containers.
pub struct ImageManager {
    runtime: Arc<dyn Runtime>,
    recorder: EventRecorder,
    objects: Arc<dyn ObjectSource>,
    providers: CredentialProviders,
    records: PullRecords,
    backoff: Mutex<Backoff>,
    failures: Mutex<HashMap<String, Timestamp>>,
    slots: Slots,
    throttle: Option<Throttle>,
}

/// How many images are pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullLimits {
    /// At once; without, so many that only strangers who name slow registries notice.
    pub parallel: Option<usize>,
    /// A second; what is more fails and is tried again.
    pub rate: Option<RequestRate>,
}

/// Places for pulls, shared among namespaces.
struct Slots {
    all: Semaphore,
    each: usize,
    /// Of namespaces for whose pods something is being pulled or waits to be.
    of_namespace: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Slots {
    /// Who says how many there are at once has none of them kept from anybody.
    fn new(parallel: Option<usize>) -> Self {
        let most = parallel.map(|most| most.min(Semaphore::MAX_PERMITS));
        Self {
            all: Semaphore::new(most.unwrap_or(PARALLEL_PULLS)),
            each: most.unwrap_or(PULLS_OF_NAMESPACE),
            of_namespace: Mutex::default(),
        }
    }

    /// A place, held as long as the answer. Whoever waits for one of the namespace's takes none of all.
    async fn take(
        &self,
        namespace: &str,
    ) -> Result<(OwnedSemaphorePermit, SemaphorePermit<'_>), AcquireError> {
        let own = {
            let mut all = self.of_namespace.lock();
            // Those that nobody holds or waits for are as good as new.
            all.retain(|_, slots| Arc::strong_count(slots) > 1);
            let slots = all
                .entry(namespace.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(self.each)));
            Arc::clone(slots)
        };
        let own = own.acquire_owned().await?;
        Ok((own, self.all.acquire().await?))
    }
}

/// An image that is there.
pub struct Present {
    /// What the container is created from.
    pub reference: String,
    /// The image's user, for `runAsNonRoot`.
    pub uid: Option<i64>,
    /// The image's user by name.
    pub username: String,
}

impl ImageManager {
    /// Pulls through `runtime`, with the credentials of pods and of `providers`. What was pulled by whom is kept in `records`,
    /// and asked by `verification`; `limits` say how many are pulled.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        recorder: EventRecorder,
        objects: Arc<dyn ObjectSource>,
        providers: CredentialProviders,
        records: &Path,
        verification: Verification,
        limits: PullLimits,
    ) -> Self {
        let backoff = Backoff::new(SignedDuration::from_secs(10), SignedDuration::from_mins(5));
        Self {
            runtime,
            recorder,
            objects,
            providers,
            records: PullRecords::new(records, verification),
            backoff: Mutex::new(backoff),
            failures: Mutex::default(),
            slots: Slots::new(limits.parallel),
            throttle: limits.rate.map(Throttle::new),
        }
    }

    /// Makes sure that the container's image is there.
    ///
    /// # Errors
    /// The waiting state of the container: `InvalidImageName`, `ErrImageNeverPull`, `ErrImagePull`, `ImagePullBackOff`,
    /// `ImageInspectError`.
    pub async fn ensure(
        &self,
        pod: &Pod,
        role: Role,
        container: &Container,
    ) -> Result<Present, Waiting> {
        let wanted = Wanted {
            image: container.image.as_deref().unwrap_or_default(),
            policy: container.image_pull_policy.as_deref(),
            reference: pod.container_reference(role, &container.name),
        };
        self.ensure_image(pod, wanted).await
    }

    /// Makes sure that the images are there that the container mounts as volumes (KEP-4639).
    ///
    /// # Errors
    /// The waiting state of the container, as of its own image.
    pub async fn volumes(
        &self,
        pod: &Pod,
        role: Role,
        container: &Container,
    ) -> Result<ImageVolumes, Waiting> {
        let mounts = || container.volume_mounts.iter().flatten();
        let mut out = ImageVolumes::new();
        for volume in pod.pod_spec().volumes.iter().flatten() {
            let Some(source) = &volume.image else {
                continue;
            };
            if !mounts().any(|mount| mount.name == volume.name) {
                continue;
            }
            let image = source.reference.as_deref().unwrap_or_default();
            let wanted = Wanted {
                image,
                policy: source.pull_policy.as_deref(),
                reference: pod.reference(),
            };
            let present = self.ensure_image(pod, wanted).await;
            let present = present.inspect_err(|waiting| {
                let reference = pod.container_reference(role, &container.name);
                let message = format!("Error: {}", waiting.message);
                self.recorder.warning(&reference, "Failed", message);
            })?;
            let spec = cri::ImageSpec {
                image: present.reference,
                user_specified_image: image.to_owned(),
                ..cri::ImageSpec::default()
            };
            out.insert(volume.name.clone(), spec);
        }
        Ok(out)
    }

    async fn ensure_image(&self, pod: &Pod, wanted: Wanted<'_>) -> Result<Present, Waiting> {
        let Wanted {
            image,
            policy,
            reference,
        } = wanted;
        let wait = |reason: &str, message: String| Waiting {
            reason: reason.to_owned(),
            message,
        };
        let spec = cri::ImageSpec {
            image: image.to_owned(),
            user_specified_image: image.to_owned(),
            ..cri::ImageSpec::default()
        };
        if image.is_empty() || image.contains(char::is_whitespace) {
            let message = format!(
                "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
            );
            self.recorder.warning(&reference, "InspectFailed", &message);
            return Err(wait("InvalidImageName", message));
        }
        let present = self.runtime.image_status(spec.clone()).await.map_err(|e| {
            let message = format!("Failed to inspect image {image:?}: {e}");
            self.recorder.warning(&reference, "InspectFailed", &message);
            wait("ImageInspectError", message)
        })?;
        let policy = policy.unwrap_or_else(|| default_policy(image));
        match (policy, present) {
            ("Never", None) => {
                let message =
                    format!("Container image {image:?} is not present with pull policy of Never");
                self.recorder
                    .warning(&reference, "ErrImageNeverPull", &message);
                return Err(wait("ErrImageNeverPull", message));
            }
            ("Never" | "IfNotPresent", Some(found)) => {
                if self.may_use(pod, image, &found.id).await {
                    let message = format!(
                        "Container image {image:?} already present on machine and can be accessed by the pod"
                    );
                    self.recorder.normal(&reference, "Pulled", message);
                    return Ok(present_of(&found));
                }
                if policy == "Never" {
                    let message = format!(
                        "Container image {image:?} is present with pull policy of Never but does not have the proper credentials to access the image"
                    );
                    self.recorder
                        .warning(&reference, "ErrImageNeverPull", &message);
                    return Err(wait("ErrImageNeverPull", message));
                }
            }
            _ => {}
        }
        self.pull(pod, &reference, spec).await
    }

    /// Whether a pod may use an image that is there as it is, because everybody may or the pod has the credentials by which
    /// it was pulled. Else the registry decides.
    async fn may_use(&self, pod: &Pod, image: &str, id: &str) -> bool {
        let allowed = match self.records.access(image, id) {
            Access::Open => return true,
            Access::Pull => return false,
            Access::Asked(allowed) => allowed,
        };
        if self.records.knows(pod.uid(), image, id) {
            return true;
        }
        let keyring = self.keyring(pod, image).await;
        let may = allowed.admits(&keyring.lookup(image));
        if may {
            self.records.let_in(pod.uid(), image, id);
        }
        may
    }

    /// What the pod can show for an image.
    async fn keyring(&self, pod: &Pod, image: &str) -> Keyring {
        let (keyring, provided) = tokio::join!(
            Keyring::of_pod(pod, &*self.objects),
            self.providers.lookup(image, pod, &*self.objects)
        );
        keyring.with(provided)
    }

    /// Forgets who pulled images that are gone.
    ///
    /// # Errors
    /// The runtime does not say what is there.
    pub async fn forget_gone(&self) -> Result<(), RuntimeError> {
        let asked = Timestamp::now();
        let there = self.runtime.list_images(None).await?;
        self.records.retain(&there, asked);
        Ok(())
    }

    async fn pull(
        &self,
        pod: &Pod,
        reference: &ObjectReference,
        spec: cri::ImageSpec,
    ) -> Result<Present, Waiting> {
        let image = spec.image.clone();
        let key = format!("{}_{image}", pod.uid());
        if let Some(message) = self.backing_off(&key, &image) {
            self.recorder.normal(reference, "BackOff", &message);
            return Err(Waiting {
                reason: "ImagePullBackOff".to_owned(),
                message,
            });
        }
        let _slot = self.slots.take(pod.ns()).await;
        self.recorder
            .normal(reference, "Pulling", format!("Pulling image {image:?}"));
        let keyring = self.keyring(pod, &image).await;
        let begun = Instant::now();
        let noted = self.records.begin(&image).map_err(|error| Waiting {
            reason: "ErrImagePull".to_owned(),
            message: format!("failed to record image pull intent for image {image:?}: {error}"),
        })?;
        match self.try_credentials(&keyring, &spec).await {
            Ok((id, used)) => {
                let size = self.finish(&key, &spec, &id).await?;
                noted.succeeded(&size.0.reference, used.as_ref());
                self.records.let_in(pod.uid(), &image, &size.0.reference);
                let took = begun.elapsed();
                let message = format!(
                    "Successfully pulled image {image:?} in {took:.3?} ({took:.3?} including waiting). Image size: {} bytes.",
                    size.1
                );
                self.recorder.normal(reference, "Pulled", message);
                Ok(size.0)
            }
            Err(error) => {
                noted.failed();
                let now = Timestamp::now();
                self.failures.lock().insert(key.clone(), now);
                self.backoff.lock().next(&key, now, now);
                let message = format!("Failed to pull image {image:?}: {error}");
                self.recorder.warning(reference, "Failed", &message);
                self.recorder
                    .warning(reference, "Failed", "Error: ErrImagePull");
                Err(Waiting {
                    reason: "ErrImagePull".to_owned(),
                    message: error.to_string(),
                })
            }
        }
    }

    fn backing_off(&self, key: &str, image: &str) -> Option<String> {
        let since = *self.failures.lock().get(key)?;
        self.backoff
            .lock()
            .remaining(key, since, Timestamp::now())?;
        Some(format!("Back-off pulling image {image:?}"))
    }

    /// The image's ID, and the credentials that it took.
    async fn try_credentials(
        &self,
        keyring: &Keyring,
        spec: &cri::ImageSpec,
    ) -> Result<(String, Option<Credential>), RuntimeError> {
        let candidates = keyring.lookup(&spec.image);
        if candidates.is_empty() {
            let id = self.pull_once(spec, None).await?;
            return Ok((id, None));
        }
        let mut last = RuntimeError::Internal("no credentials".to_owned());
        for credential in candidates {
            let auth = Some(credential.auth.clone());
            match self.pull_once(spec, auth).await {
                Ok(id) => return Ok((id, Some(credential))),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Pulls, if that is not too often.
    async fn pull_once(
        &self,
        spec: &cri::ImageSpec,
        auth: Option<cri::AuthConfig>,
    ) -> Result<String, RuntimeError> {
        if self.throttle.as_ref().is_some_and(|t| !t.try_take()) {
            return Err(RuntimeError::Internal("pull QPS exceeded".to_owned()));
        }
        self.runtime.pull_image(spec.clone(), auth, None).await
    }

    async fn finish(
        &self,
        key: &str,
        spec: &cri::ImageSpec,
        id: &str,
    ) -> Result<(Present, u64), Waiting> {
        self.failures.lock().remove(key);
        self.backoff.lock().forget(key);
        let inspect = |message: String| Waiting {
            reason: "ImageInspectError".to_owned(),
            message,
        };
        match self.runtime.image_status(spec.clone()).await {
            Ok(Some(image)) => Ok((present_of(&image), image.size)),
            Ok(None) => Ok((
                Present {
                    reference: id.to_owned(),
                    uid: None,
                    username: String::new(),
                },
                0,
            )),
            Err(error) => Err(inspect(format!(
                "Failed to inspect image {:?}: {error}",
                spec.image
            ))),
        }
    }

    /// Forgets the pulls of a pod.
    pub fn forget(&self, uid: &str) {
        self.records.forget(uid);
        let prefix = format!("{uid}_");
        let keys: Vec<String> = self
            .failures
            .lock()
            .keys()
            .filter(|k| k.starts_with(&prefix))
            .cloned()
            .collect();
        for key in keys {
            self.failures.lock().remove(&key);
            self.backoff.lock().forget(&key);
        }
    }
}

fn present_of(image: &cri::Image) -> Present {
    Present {
        reference: image.id.clone(),
        uid: image.uid.as_ref().map(|u| u.value),
        username: image.username.clone(),
    }
}

/// `Always` for `:latest` and untagged images, else `IfNotPresent`.
fn default_policy(image: &str) -> &'static str {
    if image.contains('@') {
        return "IfNotPresent";
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

#[cfg(test)]
mod tests {
    use super::{PULLS_OF_NAMESPACE, Slots, default_policy};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn places_are_shared_or_said() {
        let short = Duration::from_secs(1);
        let one = Slots::new(Some(1));
        let held = one.take("a").await.unwrap();
        let other = tokio::time::timeout(short, one.take("b")).await;
        assert!(other.is_err(), "one after the other");
        drop(held);
        drop(one.take("b").await.unwrap());
        let default = Slots::new(None);
        let mut held = Vec::new();
        for _ in 0..PULLS_OF_NAMESPACE {
            held.push(default.take("a").await.unwrap());
        }
        let more = tokio::time::timeout(short, default.take("a")).await;
        assert!(more.is_err(), "a namespace has its part");
        drop(default.take("b").await.unwrap());
    }

    #[test]
    fn default_pull_policies() {
        for (image, policy) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1.36", "IfNotPresent"),
            ("localhost:5000/a", "Always"),
            ("localhost:5000/a:1", "IfNotPresent"),
            ("a@sha256:0", "IfNotPresent"),
        ] {
            assert_eq!(default_policy(image), policy, "{image}");
        }
    }
}
