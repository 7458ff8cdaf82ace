//! Pods that a Permit plugin lets wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::framework::Status;

/// The pods that wait at Permit, by UID. Plugins hold a clone and let pods pass or refuse them.
#[derive(Debug, Clone, Default)]
pub struct WaitingPods {
    pods: Arc<Mutex<HashMap<Arc<str>, Waiting>>>,
}

#[derive(Debug)]
struct Waiting {
    /// Plugins that have not let the pod pass yet.
    plugins: BTreeSet<&'static str>,
    answer: oneshot::Sender<Status>,
}

/// A pod's place at Permit.
#[derive(Debug)]
pub(crate) struct Ticket {
    uid: Arc<str>,
    answer: oneshot::Receiver<Status>,
    patience: Duration,
    pods: WaitingPods,
}

impl WaitingPods {
    /// The UIDs of the pods that wait.
    pub fn list(&self) -> Vec<Arc<str>> {
        self.pods.lock().keys().cloned().collect()
    }

    /// Lets a pod pass as far as this plugin is concerned.
    pub fn allow(&self, uid: &str, plugin: &str) {
        let mut pods = self.pods.lock();
        let Some(waiting) = pods.get_mut(uid) else {
            return;
        };
        waiting.plugins.remove(plugin);
        if waiting.plugins.is_empty()
            && let Some(waiting) = pods.remove(uid)
        {
            // The receiver is gone only if the pod has stopped waiting.
            let _ = waiting.answer.send(Status::success());
        }
    }

    /// Refuses a pod; whether it was waiting.
    pub fn reject(&self, uid: &str, plugin: &'static str, reason: &str) -> bool {
        let Some(waiting) = self.pods.lock().remove(uid) else {
            return false;
        };
        let _ = waiting
            .answer
            .send(Status::unschedulable(reason.to_owned()).by(plugin));
        true
    }

    /// Lets a pod wait for these plugins, for as long as the most impatient of them says.
    pub(crate) fn enter(&self, uid: Arc<str>, plugins: &[(&'static str, Duration)]) -> Ticket {
        let (answer, receiver) = oneshot::channel();
        let patience = plugins.iter().map(|(_, d)| *d).min().unwrap_or_default();
        let plugins = plugins.iter().map(|(name, _)| *name).collect();
        self.pods
            .lock()
            .insert(uid.clone(), Waiting { plugins, answer });
        Ticket {
            uid,
            answer: receiver,
            patience,
            pods: self.clone(),
        }
    }
}

impl Ticket {
    /// Waits for the answer.
    pub(crate) async fn wait(mut self) -> Status {
        match tokio::time::timeout(self.patience, &mut self.answer).await {
            Ok(Ok(status)) => status,
            Ok(Err(_)) => Status::error("permit was dropped"),
            Err(_) => {
                let plugins = self.pods.pods.lock().remove(&self.uid).map(|w| w.plugins);
                let plugin = plugins.and_then(|p| p.first().copied()).unwrap_or_default();
                Status::unschedulable(format!(
                    "rejected due to timeout after waiting {:?} at plugin {plugin}",
                    self.patience
                ))
                .by(plugin)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Code;

    fn enter(pods: &WaitingPods) -> Ticket {
        let plugins = [("A", Duration::from_secs(5)), ("B", Duration::from_secs(3))];
        pods.enter("p".into(), &plugins)
    }

    #[tokio::test(start_paused = true)]
    async fn every_plugin_must_let_the_pod_pass() {
        let pods = WaitingPods::default();
        let ticket = enter(&pods);
        pods.allow("p", "A");
        assert_eq!(pods.list().len(), 1);
        pods.allow("p", "B");
        assert!(ticket.wait().await.is_success());
        assert!(pods.list().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_refusal_is_enough() {
        let pods = WaitingPods::default();
        let ticket = enter(&pods);
        assert!(pods.reject("p", "B", "no"));
        assert_eq!(ticket.wait().await, Status::unschedulable("no").by("B"));
        assert!(!pods.reject("p", "B", "no"));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends() {
        let pods = WaitingPods::default();
        let status = enter(&pods).wait().await;
        assert_eq!(status.code, Code::Unschedulable);
        assert_eq!(
            status.reasons,
            ["rejected due to timeout after waiting 3s at plugin A"]
        );
        assert!(pods.list().is_empty());
    }
}
