//! What the scheduler's own server tells of it.

use crate::scheduler::Scheduler;
use davit_serving::ServedComponent;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

impl ServedComponent for Scheduler {
    const CHECK: &'static str = "sched-handler-sync";

    fn is_ready(&self) -> bool {
        self.is_idle_or_synced()
    }

    fn configuration(&self) -> Value {
        json!({ "componentconfig": Self::configuration(self) })
    }

    fn register_metrics(&self, registry: &mut Registry) {
        self.metrics().register(registry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{SYNCING, SchedulerOptions};
    use http_body_util::Full;
    use kube::client::Body;
    use std::convert::Infallible;
    use std::sync::atomic::Ordering;

    #[tokio::test]
    async fn who_waits_for_its_lease_is_ready_and_who_lists_is_not() {
        let nobody = tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, Infallible>(http::Response::new(Full::new(bytes::Bytes::new())))
        });
        let client = davit_client::in_process(nobody, "default");
        let scheduler = Scheduler::new(client, SchedulerOptions::default()).unwrap();
        assert!(scheduler.is_ready());
        scheduler.progress.store(SYNCING, Ordering::Relaxed);
        assert!(!scheduler.is_ready());
        let shown = ServedComponent::configuration(&scheduler);
        assert_eq!(
            shown["componentconfig"]["kind"],
            "KubeSchedulerConfiguration"
        );
        let (mut registry, mut page) = (Registry::default(), String::new());
        scheduler.register_metrics(&mut registry);
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        assert!(
            page.contains("scheduler_preemption_attempts_total"),
            "{page}"
        );
    }
}
