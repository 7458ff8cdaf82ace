//! What pod workers are told: of their pods, and that the node ends them.

use crate::status::NodeDecision;
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The inputs of the running workers by pod UID.
pub(crate) type WorkerInputs = Arc<Mutex<HashMap<String, Arc<WorkerInput>>>>;

/// The node ends a pod.
#[derive(Debug, Clone)]
pub(crate) struct Forced {
    /// What its status says.
    pub(crate) verdict: NodeDecision,
    /// The longest its containers get.
    pub(crate) grace: Duration,
}

/// What a worker is told.
pub(crate) struct WorkerInput {
    desired: Mutex<Desired>,
    forced: Mutex<Option<Forced>>,
    wake: Arc<Notify>,
}

/// What is known of the pod from its source.
#[derive(Clone)]
pub(crate) struct Desired {
    pub(crate) pod: Arc<Pod>,
    /// It is gone from there.
    pub(crate) gone: bool,
}

impl WorkerInput {
    /// A new worker's input.
    pub(crate) fn new(pod: Arc<Pod>) -> Self {
        Self {
            desired: Mutex::new(Desired { pod, gone: false }),
            forced: Mutex::default(),
            wake: Arc::default(),
        }
    }

    /// A newer version of the pod.
    pub(crate) fn update(&self, pod: Arc<Pod>) {
        self.desired.lock().pod = pod;
        self.wake.notify_one();
    }

    /// The pod is gone from its source.
    pub(crate) fn set_gone(&self) {
        self.desired.lock().gone = true;
        self.wake.notify_one();
    }

    /// Something about the pod has changed in the runtime.
    pub(crate) fn kick(&self) {
        self.wake.notify_one();
    }

    /// The node ends the pod; the first reason stands.
    pub(crate) fn force(&self, forced: Forced) {
        self.forced.lock().get_or_insert(forced);
        self.wake.notify_one();
    }

    /// Why the node ends the pod, if it does.
    pub(crate) fn forced(&self) -> Option<Forced> {
        self.forced.lock().clone()
    }

    /// Notified when there is something to look at.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    pub(crate) fn read(&self) -> Desired {
        self.desired.lock().clone()
    }

    /// The pod has to end: it is being deleted, or gone, or the node ends it.
    pub(crate) fn must_end(&self) -> bool {
        if self.forced.lock().is_some() {
            return true;
        }
        let desired = self.desired.lock();
        desired.gone || desired.pod.is_deleting()
    }

    /// Waits until the pod has to end.
    pub(crate) async fn ending(&self) {
        // Wake-ups are for the worker's loop; here a slow look is enough and loses none of them.
        while !self.must_end() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
