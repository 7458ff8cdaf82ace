//! Extenders: HTTP servers that take part in decisions, as kube-scheduler's do
//! (<https://github.com/kubernetes/design-proposals-archive/blob/main/scheduling/scheduler_extender.md>).
//!
//! A decision that needs an extender is broken off with the [question](ExtenderQuestion), which is asked beside the
//! decisions about other pods, and is made again with the [answers](ExtenderAnswers). So a slow extender holds up the pods
//! that it is asked about, one at a time, and no others. What fails again and again is left alone for a while
//! (`breaker`).

mod answers;
mod breaker;
mod calls;
mod wire;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use davit_api::kinds::intern;
use parking_lot::Mutex;
use tokio::time::Instant;

pub use answers::{ExtenderAnswers, ExtenderQuestion, NodeVictims};
pub use calls::ExtenderError;

use crate::config::ExtenderConfiguration;
use crate::framework::Status;
use crate::metrics::Metrics;
use crate::pod::PodInfo;
use breaker::{Breaker, Permission};

/// How long a call may take where the configuration does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The extenders of a scheduler, in the order in which they are asked. Cheap to clone.
#[derive(Clone, Default)]
pub struct Extenders {
    list: Arc<[Extender]>,
    metrics: Metrics,
}

/// One HTTP server.
pub(crate) struct Extender {
    config: ExtenderConfiguration,
    /// The URL prefix, which is its name in messages.
    name: &'static str,
    managed: BTreeSet<String>,
    timeout: Duration,
    client: kube::Client,
    breaker: Mutex<Breaker>,
}

impl fmt::Debug for Extenders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.list.iter().map(|e| e.name))
            .finish()
    }
}

impl Extender {
    fn new(config: &ExtenderConfiguration) -> Result<Self, ExtenderError> {
        let given = config.http_timeout.unsigned_abs();
        Ok(Self {
            client: calls::client(config)?,
            name: intern(&config.url_prefix),
            managed: config
                .managed_resources
                .iter()
                .map(|r| r.name.clone())
                .collect(),
            timeout: if given.is_zero() {
                DEFAULT_TIMEOUT
            } else {
                given
            },
            config: config.clone(),
            breaker: Mutex::default(),
        })
    }

    /// Whether the extender is asked about a pod: one of its containers asks for something it manages.
    fn is_interested(&self, pod: &PodInfo) -> bool {
        let asks = |list: &Option<std::collections::BTreeMap<String, _>>| {
            list.iter()
                .flatten()
                .any(|(name, _)| self.managed.contains(name))
        };
        self.managed.is_empty()
            || pod.containers().any(|container| {
                let resources = container.resources.as_ref();
                resources.is_some_and(|r| asks(&r.requests) || asks(&r.limits))
            })
    }
}

impl Extenders {
    /// Clients for these servers; nothing is connected yet. Ignorable ones are asked last.
    ///
    /// # Errors
    /// When certificates cannot be used.
    pub fn new(
        configurations: &[ExtenderConfiguration],
        metrics: Metrics,
    ) -> Result<Self, ExtenderError> {
        let mut list = configurations
            .iter()
            .map(Extender::new)
            .collect::<Result<Vec<_>, _>>()?;
        list.sort_by_key(|e| e.config.ignorable);
        Ok(Self {
            list: list.into(),
            metrics,
        })
    }

    fn interested(&self, pod: &PodInfo) -> impl Iterator<Item = &Extender> {
        self.list.iter().filter(|e| e.is_interested(pod))
    }

    /// The extenders that are asked about a pod, by place.
    pub(crate) fn places(&self, pod: &PodInfo) -> BTreeSet<usize> {
        let list = self.list.iter().enumerate();
        list.filter(|(_, e)| e.is_interested(pod))
            .map(|(at, _)| at)
            .collect()
    }

    /// Whether nodes for the pod are filtered.
    pub(crate) fn filter_for(&self, pod: &PodInfo) -> bool {
        self.interested(pod)
            .any(|e| !e.config.filter_verb.is_empty())
    }

    /// Whether nodes for the pod are scored.
    pub(crate) fn score_for(&self, pod: &PodInfo) -> bool {
        self.interested(pod)
            .any(|e| !e.config.prioritize_verb.is_empty())
    }

    /// Whether preemptions for the pod are judged.
    pub(crate) fn preempt_for(&self, pod: &PodInfo) -> bool {
        self.interested(pod)
            .any(|e| !e.config.preempt_verb.is_empty())
    }

    /// Asks, and adds what is said to what has been said before.
    ///
    /// # Errors
    /// What failed, in words for the pod's condition.
    pub(crate) async fn ask(
        &self,
        pod: &PodInfo,
        question: ExtenderQuestion,
        answers: &mut ExtenderAnswers,
    ) -> Result<(), ExtenderError> {
        match question {
            ExtenderQuestion::Nodes(nodes) => {
                let left = self.filter(pod, &nodes, answers).await?;
                if left.len() > 1 {
                    self.score(pod, &left, answers).await;
                }
            }
            ExtenderQuestion::Victims(candidates) => {
                let candidates = self.preempt(pod, candidates).await?;
                answers.candidates = Some(candidates);
            }
        }
        Ok(())
    }

    /// Has the first extender bind the pod that is there for it. `None`: the plugins are to do it.
    pub(crate) async fn bind(&self, pod: &PodInfo, node: &str) -> Option<Status> {
        let mut binders = self
            .interested(pod)
            .filter(|e| !e.config.bind_verb.is_empty());
        let extender = binders.next()?;
        match self
            .call(
                extender,
                &extender.config.bind_verb,
                &wire::binding(pod, node),
            )
            .await
        {
            Ok(answer) => match wire::error_of(&answer) {
                None => Some(Status::success()),
                Some(error) => self.failed_binding(extender, error),
            },
            Err(error) => self.failed_binding(extender, error.to_string()),
        }
    }

    fn failed_binding(&self, extender: &Extender, error: String) -> Option<Status> {
        if extender.config.ignorable {
            tracing::info!(
                extender = extender.name,
                error,
                "ignorable extender left out"
            );
            return None;
        }
        Some(Status::error(error).by(extender.name))
    }

    /// One call, unless the extender is left alone at the moment.
    async fn call(
        &self,
        extender: &Extender,
        verb: &str,
        body: &serde_json::Value,
    ) -> Result<serde_json::Value, ExtenderError> {
        let permission = extender.breaker.lock().permission(Instant::now());
        if let Permission::Refused(last) = permission {
            return Err(ExtenderError::LeftAlone {
                url: extender.name,
                last,
            });
        }
        let result = calls::post(extender, verb, body).await;
        let mut breaker = extender.breaker.lock();
        match &result {
            Ok(_) => breaker.succeeded(),
            Err(error) => {
                self.metrics.extender_failed(extender.name);
                breaker.failed(error.to_string(), Instant::now());
            }
        }
        self.metrics
            .extender_left_alone(extender.name, breaker.is_open());
        result
    }
}

#[cfg(test)]
mod tests;
