//! Giving a pod its devices.

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_topology::devices::{
    Choice, ChoiceError, ChoiceInput, DeviceMap, DeviceSet, ReuseTable, Step,
};
use davit_topology::{NumaMask, TopologyHint};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::time::{Duration, Instant};

use super::inventory::Presence;
use super::manager::Manager;
use super::requests::{self, Request};
use crate::allocation::{Change, CommitError, DeviceHold, PodName, Reservation};
use crate::answer::{ContainerOptions, OptionsError, Rejection};
use crate::compute::{ComputeOptions, Reuse, Ticket};
use crate::dra::Places;

/// How often a choice is made anew because another pod was faster, before the plugin is no
/// longer asked for its preference.
const CHOICES: usize = 32;
/// Shortest pause before an admission that met a broken connection tries again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a plugin may take to answer before the pod that waits for it says so.
const SLOW_CALL: Duration = Duration::from_secs(2);
/// How long devices may be held by pods that are ending before the pod that waits for them says so.
const HELD_REPORT: Duration = Duration::from_secs(5);
/// Bytes of an answer to Allocate: it is kept, and shown, as long as the pod is there.
const MOST_KEPT: usize = 1 << 20;
/// How often to look whether they are free, beside being told.
const HELD_POLL: Duration = Duration::from_millis(500);

/// Why one container does not get its devices. The texts are part of pod status messages that
/// users and tests know from the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum AllocError {
    #[error(
        "pod \"{uid}\" container \"{container}\" changed request for resource \"{resource}\" from {from} to {to}"
    )]
    Changed {
        uid: String,
        container: String,
        resource: String,
        from: usize,
        to: usize,
    },
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    HeldUnhealthy(String),
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error("unknown Device Plugin {0}")]
    NoPlugin(String),
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Preferred(String),
    #[error("{0}")]
    Allocate(String),
    #[error("no containers return in allocation response {0}")]
    EmptyAnswer(String),
    #[error("the device plugin's answer to Allocate has {0} bytes, more than {MOST_KEPT}")]
    TooLarge(usize),
    #[error("the allocation cannot be recorded: {0}")]
    Record(String),
}

/// How an attempt ended without success.
pub(super) enum Failure {
    /// The pod cannot run here.
    Rejected(Rejection),
    /// A plugin is not there, but may come back until then.
    Absent {
        until: Instant,
        rejection: Rejection,
    },
    /// Pods that are ending hold what is lacking.
    Held(Rejection),
}

impl Failure {
    fn rejection(self) -> Rejection {
        match self {
            Self::Rejected(rejection) | Self::Held(rejection) | Self::Absent { rejection, .. } => {
                rejection
            }
        }
    }
}

/// One container of a pod under admission.
struct Site<'a> {
    pod: &'a PodName,
    request: &'a Request,
    affinity: Option<NumaMask>,
}

impl Site<'_> {
    fn rejection(&self, resource: &str, error: &AllocError) -> Rejection {
        Rejection {
            reason: "UnexpectedAdmissionError".to_owned(),
            message: format!("Allocate failed due to {error}, which is unexpected"),
            container: Some(self.request.container.clone()),
            resource: Some(resource.to_owned()),
            misfit: None,
        }
    }

    fn reject(&self, resource: &str, error: &AllocError) -> Failure {
        Failure::Rejected(self.rejection(resource, error))
    }
}

/// What one attempt has gathered.
pub(super) struct Draft<'a> {
    pub(super) reuse: ReuseTable,
    pub(super) compute_reuse: Reuse,
    pub(super) ticket: Ticket<'a>,
    /// The hint of the whole pod, once it is merged (scope `pod`).
    pub(super) pod_hint: Option<TopologyHint>,
    claims: Reservation,
    changes: Vec<Change>,
}

impl Manager {
    /// Gives a pod what it asks for, beside the devices of its claims.
    pub(crate) async fn admit(
        &self,
        pod: &Pod,
        places: &Places,
        deadline: Instant,
        waiting: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), Rejection> {
        let mut said = String::new();
        let started = Instant::now();
        let mut changes = self.subscribe();
        loop {
            changes.borrow_and_update();
            let begun = Instant::now();
            let attempt = self.patient_attempt(pod, places, waiting).await;
            self.metrics.topology_took(begun.elapsed());
            let failure = match attempt {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let now = Instant::now();
            let (until, sentence) = match &failure {
                Failure::Rejected(_) => return Err(failure.rejection()),
                Failure::Absent { until, rejection } => {
                    let until = (*until).min(deadline);
                    (until, Some(waiting_for_plugin(rejection, until - now)))
                }
                // Containers end within their grace period; nobody needs to be told unless that takes long.
                Failure::Held(rejection) => {
                    let is_long = now > started + HELD_REPORT;
                    (deadline, is_long.then(|| waiting_for_release(rejection)))
                }
            };
            if now >= until {
                return Err(failure.rejection());
            }
            if let Some((subject, sentence)) = sentence
                && subject != said
            {
                waiting(&sentence);
                said = subject;
            }
            tokio::time::sleep(RETRY_PAUSE.min(until - now)).await;
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(until.min(Instant::now() + HELD_POLL)) => {}
            }
        }
    }

    /// One attempt; says which plugin does not answer when that takes long.
    async fn patient_attempt(
        &self,
        pod: &Pod,
        places: &Places,
        waiting: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), Failure> {
        let asked = Mutex::new(None);
        let attempt = self.attempt(pod, places, &asked);
        let mut attempt = std::pin::pin!(attempt);
        tokio::select! {
            result = &mut attempt => return result,
            () = tokio::time::sleep(SLOW_CALL) => {}
        }
        let call: Option<String> = asked.lock().clone();
        if let Some(call) = call {
            waiting(&format!("waiting for {call} to answer"));
        }
        attempt.await
    }

    /// Whether pods that are ending hold devices of the resource.
    fn is_held_by_ending(&self, resource: &str) -> bool {
        let ending = self.ending_pods();
        !ending.is_empty()
            && self.ledger.read(|t| {
                let of_pod = |uid: &String| t.pods().get(uid);
                let mut containers = ending
                    .iter()
                    .filter_map(of_pod)
                    .flat_map(|p| p.containers.values());
                containers.any(|c| c.devices.contains_key(resource))
            })
    }

    /// One try to give the pod what it lacks. Holds nothing when it fails.
    /// `asked` names the call to a plugin that is under way.
    async fn attempt(
        &self,
        pod: &Pod,
        places: &Places,
        asked: &Mutex<Option<String>>,
    ) -> Result<(), Failure> {
        let mut requests = requests::of(pod);
        for request in &mut requests {
            request.claims = places.get(&request.container).cloned().unwrap_or_default();
        }
        let wants = |r: &Request| {
            !r.resources.is_empty() || !r.claims.is_empty() || self.compute.concerns(r)
        };
        if !requests.iter().any(wants) {
            return Ok(());
        }
        let name = PodName {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
        };
        let _admitting = self.admitting(&name.uid);
        self.free_inactive().await;
        // A plugin that is absent ends the attempt before any plugin is bothered.
        for request in &requests {
            let site = Site {
                pod: &name,
                request,
                affinity: None,
            };
            for (resource, &count) in &request.resources {
                self.check(&site, resource, count)?;
            }
        }
        let mut draft = Draft {
            reuse: ReuseTable::default(),
            compute_reuse: Reuse::default(),
            ticket: self.compute.begin(),
            pod_hint: None,
            claims: self.ledger.reservation(&name.uid),
            changes: Vec::new(),
        };
        draft.reuse.begin(&name.uid);
        for request in requests.iter().filter(|r| wants(r)) {
            let affinity = self.decide(&name, request, &requests, &mut draft)?;
            let site = Site {
                pod: &name,
                request,
                affinity,
            };
            for (resource, &count) in &request.resources {
                if let Some(held) = self.check(&site, resource, count)? {
                    draft.reuse.allocated(resource, request.kind, &held);
                } else {
                    let limit = self.config.allocate_timeout.as_secs();
                    let call =
                        format!("Allocate of the device plugin of {resource} (at most {limit} s)");
                    *asked.lock() = Some(call);
                    self.allocate(&site, resource, count, &mut draft).await?;
                    *asked.lock() = None;
                }
            }
        }
        let Draft {
            claims,
            mut changes,
            ticket,
            ..
        } = draft;
        changes.extend(ticket.changes());
        if changes.is_empty() {
            return Ok(());
        }
        let result = self.ledger.commit(changes, claims).await;
        // From here on the log speaks for what was chosen.
        drop(ticket);
        self.touch();
        result.map_err(|e: CommitError| {
            let site = Site {
                pod: &name,
                request: &requests[0],
                affinity: None,
            };
            site.reject("", &AllocError::Record(e.to_string()))
        })
    }

    /// Whether the container has what it asks for (or needs nothing of us): then the devices it
    /// holds. `None` when it is to be given devices now.
    fn check(
        &self,
        site: &Site<'_>,
        resource: &str,
        count: usize,
    ) -> Result<Option<DeviceSet>, Failure> {
        let (uid, container) = (&site.pod.uid, &site.request.container);
        let (held, owned) = self.ledger.read(|t| {
            let held = t.held(uid, container, resource);
            let held: Option<DeviceSet> = held.map(|h| h.devices.keys().cloned().collect());
            (held, t.owned_resources().any(|(r, _)| r == resource))
        });
        if let Some(held) = &held
            && held.len() != count
        {
            return Err(site.reject(
                resource,
                &AllocError::Changed {
                    uid: uid.clone(),
                    container: container.clone(),
                    resource: resource.to_owned(),
                    from: held.len(),
                    to: count,
                },
            ));
        }
        // What runs keeps what it has: it is adopted, never decided again.
        let settled = match &held {
            Some(_) => self.was_running(uid),
            None => self.container_was_running(uid, container),
        };
        if settled || site.request.finished {
            return Ok(Some(held.unwrap_or_default()));
        }
        match self.presence(resource) {
            None | Some(Presence::Gone) if !owned => return Ok(Some(DeviceSet::new())),
            None | Some(Presence::Gone) => {
                return Err(site.reject(resource, &AllocError::Unregistered(resource.to_owned())));
            }
            Some(Presence::Absent(since)) => {
                return Err(Failure::Absent {
                    until: since + self.config.plugin_wait,
                    rejection: site
                        .rejection(resource, &AllocError::NoneHealthy(resource.to_owned())),
                });
            }
            Some(Presence::Live) => {}
        }
        let healthy = self.healthy_of(resource);
        if healthy.is_empty() {
            return Err(site.reject(resource, &AllocError::NoneHealthy(resource.to_owned())));
        }
        if let Some(held) = &held
            && !held.iter().all(|id| healthy.contains_key(id))
        {
            return Err(site.reject(resource, &AllocError::HeldUnhealthy(resource.to_owned())));
        }
        Ok(held)
    }

    /// Chooses devices for one container, claims them and asks the plugin for their options.
    async fn allocate(
        &self,
        site: &Site<'_>,
        resource: &str,
        count: usize,
        draft: &mut Draft<'_>,
    ) -> Result<(), Failure> {
        let Some(endpoint) = self.serving(resource) else {
            return Err(site.reject(resource, &AllocError::NoPlugin(resource.to_owned())));
        };
        let request = site.request;
        let fail = |error: AllocError, lost: bool| {
            let rejection = site.rejection(resource, &error);
            if matches!(error, AllocError::Choice(_)) && self.is_held_by_ending(resource) {
                return Failure::Held(rejection);
            }
            if !lost || self.config.plugin_wait.is_zero() {
                return Failure::Rejected(rejection);
            }
            // The connection broke under the call: the plugin may be back in a moment.
            let since = match self.presence(resource) {
                Some(Presence::Absent(since)) => since,
                _ => Instant::now(),
            };
            let until = since + self.config.plugin_wait;
            Failure::Absent { until, rejection }
        };
        let devices = self.choose(site, resource, count, &endpoint, draft).await;
        let devices = devices.map_err(|(error, lost)| fail(error, lost))?;
        let ids: DeviceSet = devices.keys().cloned().collect();
        let started = Instant::now();
        let answer = endpoint.allocate(&ids, self.config.allocate_timeout).await;
        self.metrics.allocated(resource, started.elapsed());
        let answer = answer.map_err(|e| {
            let lost = e.lost || !self.is_connected(&endpoint);
            fail(AllocError::Allocate(e.text), lost)
        })?;
        let Some(response) = answer.container_responses.first() else {
            let error = AllocError::EmptyAnswer(format!("{answer:?}"));
            return Err(site.reject(resource, &error));
        };
        if response.encoded_len() > MOST_KEPT {
            let error = AllocError::TooLarge(response.encoded_len());
            return Err(site.reject(resource, &error));
        }
        draft.reuse.allocated(resource, request.kind, &ids);
        draft.changes.push(Change::Hold(DeviceHold {
            pod: site.pod.clone(),
            container: request.container.clone(),
            kind: request.kind,
            resource: resource.to_owned(),
            devices,
            response: response.encode_to_vec(),
            since: jiff::Timestamp::now().as_millisecond(),
        }));
        Ok(())
    }

    /// Chooses free devices and claims them. Nothing is locked while the plugin is asked; when
    /// another pod was faster the choice is made anew.
    async fn choose(
        &self,
        site: &Site<'_>,
        resource: &str,
        count: usize,
        endpoint: &super::endpoint::Endpoint,
        draft: &mut Draft<'_>,
    ) -> Result<DeviceMap, (AllocError, bool)> {
        let request = site.request;
        for attempt in 0.. {
            let healthy = self.healthy_of(resource);
            let list = self.list_of(resource).unwrap_or_default();
            let mut reusable = draft.reuse.reusable(resource);
            reusable.retain(|id| healthy.contains_key(id));
            let mut step = Choice::start(ChoiceInput {
                resource: resource.to_owned(),
                request: count,
                available: self.free(resource),
                reusable,
                affinity: site.affinity,
                has_topology: list.values().any(|d| !d.numa.is_empty()),
            });
            let ids = loop {
                step = match step {
                    Step::Done(ids) => break ids,
                    Step::Failed(error) => return Err((error.into(), false)),
                    Step::AskPreferred(_, choice) if attempt >= CHOICES => {
                        choice.resume(&DeviceSet::new())
                    }
                    Step::AskPreferred(ask, choice) => {
                        let answer = endpoint
                            .preferred(&ask, self.config.preferred_timeout)
                            .await;
                        let preferred = answer.map_err(|e| {
                            let lost = e.lost || !self.is_connected(endpoint);
                            (AllocError::Preferred(e.text), lost)
                        })?;
                        choice.resume(&preferred)
                    }
                };
            };
            if draft
                .claims
                .add(&request.container, request.kind, resource, &ids)
                .is_ok()
            {
                let place = |id| {
                    let numa = list.get(&id).map(|d| d.numa).unwrap_or_default();
                    (id, numa)
                };
                return Ok(ids.into_iter().map(place).collect());
            }
        }
        unreachable!("the loop above has no end of its own")
    }

    pub(crate) async fn container_options(
        &self,
        pod: &Pod,
        container: &str,
    ) -> Result<ContainerOptions, OptionsError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let requests = requests::of(pod);
        let Some(request) = requests.iter().find(|r| r.container == container) else {
            return Ok(ContainerOptions {
                compute: self.compute_options(&uid, container),
                ..ContainerOptions::default()
            });
        };
        let held = |resource: &str| {
            self.ledger
                .read(|t| t.held(&uid, container, resource).cloned())
        };
        let ours = |resource: &str| {
            self.presence(resource).is_some()
                || self.ledger.read(|t| t.known().contains_key(resource))
        };
        let lacking = request
            .resources
            .keys()
            .any(|r| held(r).is_none() && ours(r));
        if lacking {
            // The log was lost while the container ran, or the plugin is new to the node.
            self.forget_running(&uid);
            self.attempt(pod, &Places::new(), &Mutex::default())
                .await
                .map_err(|f| OptionsError(f.rejection().message))?;
        }
        let mut answers = Vec::new();
        for resource in request
            .resources
            .keys()
            .filter(|r| ours(r) || held(r).is_some())
        {
            self.pre_start(&uid, container, resource)
                .await
                .map_err(OptionsError)?;
            if let Some(held) = held(resource) {
                let answer = pb::ContainerAllocateResponse::decode(held.response.as_slice())
                    .map_err(|e| {
                        OptionsError(format!("recorded answer of the plugin of {resource}: {e}"))
                    })?;
                answers.push((resource.as_str(), answer));
            }
        }
        let merged = super::options::merge(answers);
        for conflict in &merged.conflicts {
            tracing::warn!(
                pod = uid,
                container,
                conflict,
                "device plugins contradict each other"
            );
        }
        Ok(ContainerOptions {
            compute: self.compute_options(&uid, container),
            ..merged.options
        })
    }

    /// CPUs and memory nodes of a container, by what the log says now.
    pub(crate) fn compute_options(&self, uid: &str, container: &str) -> ComputeOptions {
        self.ledger
            .read(|t| self.compute.options(t, uid, container))
    }

    /// Calls PreStartContainer if the plugin of the resource wants that.
    async fn pre_start(&self, uid: &str, container: &str, resource: &str) -> Result<(), String> {
        let endpoint = self.serving(resource);
        let wanted = match &endpoint {
            Some(endpoint) => endpoint.options.pre_start_required,
            None => self
                .ledger
                .read(|t| t.known().get(resource).is_some_and(|k| k.pre_start)),
        };
        if !wanted {
            return Ok(());
        }
        let held = self.ledger.read(|t| {
            let held = t.held(uid, container, resource)?;
            Some(
                held.devices
                    .keys()
                    .map(|id| id.as_str().to_owned())
                    .collect::<Vec<_>>(),
            )
        });
        let Some(ids) = held else {
            return Err(format!(
                "no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}"
            ));
        };
        let Some(endpoint) = endpoint else {
            return Err(format!("endpoint of {resource} has been stopped"));
        };
        let answer = endpoint.pre_start(ids, self.config.pre_start_timeout).await;
        answer.map_err(|e| {
            format!(
                "device plugin PreStartContainer rpc failed with err: {}",
                e.text
            )
        })
    }
}

/// What is waited for (to tell whether it has changed) and the sentence about it.
fn waiting_for_release(rejection: &Rejection) -> (String, String) {
    let resource = rejection.resource.clone().unwrap_or_default();
    let sentence = format!(
        "waiting for devices of {resource} that pods which are ending still hold: {}",
        rejection.message
    );
    (format!("{resource} held"), sentence)
}

/// As [`waiting_for_release`], for a plugin that may come back.
fn waiting_for_plugin(rejection: &Rejection, left: Duration) -> (String, String) {
    let resource = rejection.resource.clone().unwrap_or_default();
    let sentence = format!(
        "waiting for the device plugin of {resource} to come back (for {} s more at most): {}",
        left.as_secs(),
        rejection.message
    );
    (resource, sentence)
}
