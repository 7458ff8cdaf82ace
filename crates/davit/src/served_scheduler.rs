//! What `davit scheduler` tells of itself over HTTPS.

use std::fmt;

use davit_podrequests::{Resources, spec_limits, spec_requests};
use davit_scheduler::Scheduler;
use davit_serving::ServedComponent;
use k8s_openapi::api::core::v1::Pod;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

/// A scheduler with a server of its own.
pub(crate) struct ServedScheduler(pub(crate) Scheduler);

impl ServedComponent for ServedScheduler {
    const CHECK: &'static str = "sched-handler-sync";

    fn is_ready(&self) -> bool {
        self.0.is_idle_or_synced()
    }

    fn configuration(&self) -> Value {
        json!({ "componentconfig": self.0.configuration() })
    }

    fn register_metrics(&self, registry: &mut Registry) {
        self.0.metrics().register(registry);
    }

    fn resource_metrics(&self) -> Option<Box<dyn Collector>> {
        Some(Box::new(PodResources(self.0.clone())))
    }
}

/// What each pod asks for and is limited to, of all that have not ended; nothing while another replica leads
/// (<https://kubernetes.io/docs/concepts/cluster-administration/system-metrics/#kube-scheduler-metrics>).
#[derive(Debug)]
struct PodResources(Scheduler);

/// A metric's name, what it is, and its amounts of a pod.
type PodMetric = (&'static str, &'static str, fn(&Pod) -> Resources);

const METRICS: [PodMetric; 2] = [
    (
        "kube_pod_resource_request",
        "What a pod asks for, as the scheduler and its node count it",
        spec_requests,
    ),
    (
        "kube_pod_resource_limit",
        "What a pod is limited to, as its node counts it",
        spec_limits,
    ),
];

impl Collector for PodResources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let pods = self.0.pods();
        for (name, help, sum) in METRICS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for pod in &pods {
                for (resource, unit, amount) in figures(&sum(pod)) {
                    let labels = labels(pod, resource, unit);
                    ConstGauge::new(amount).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn labels<'a>(pod: &'a Pod, resource: &'a str, unit: &'a str) -> [(&'a str, String); 7] {
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let priority = spec.and_then(|s| s.priority);
    [
        ("namespace", text(pod.metadata.namespace.as_ref())),
        ("pod", text(pod.metadata.name.as_ref())),
        ("node", text(spec.and_then(|s| s.node_name.as_ref()))),
        (
            "scheduler",
            text(spec.and_then(|s| s.scheduler_name.as_ref())),
        ),
        (
            "priority",
            priority.map(|p| p.to_string()).unwrap_or_default(),
        ),
        ("resource", resource.to_owned()),
        ("unit", unit.to_owned()),
    ]
}

/// The amounts that are not zero, with their units: CPUs in cores, sizes in bytes, volumes counted; others have none.
fn figures(resources: &Resources) -> Vec<(&str, &'static str, f64)> {
    let unit = |name: &str| match name {
        name if name.starts_with("hugepages-") => "bytes",
        name if name.starts_with("attachable-volumes-") => "integer",
        "storage" => "bytes",
        _ => "",
    };
    let known = [
        ("cpu", "cores", resources.milli_cpu as f64 / 1000.0),
        ("memory", "bytes", resources.memory as f64),
        (
            "ephemeral-storage",
            "bytes",
            resources.ephemeral_storage as f64,
        ),
        ("pods", "", resources.pods as f64),
    ];
    let others = resources.scalars();
    let others = others.map(|(name, amount)| (&**name, unit(name), amount as f64));
    let all = known.into_iter().chain(others);
    all.filter(|(.., amount)| *amount != 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_units_of_kube_scheduler() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {
                "schedulerName": "s", "nodeName": "w", "priority": 7,
                "containers": [{"name": "c", "resources": {
                    "requests": {"cpu": "1500m", "memory": "1Gi", "example.com/gpu": "2", "hugepages-2Mi": "4Mi"},
                    "limits": {"ephemeral-storage": "1Mi"},
                }}],
            },
        }))
        .unwrap();
        let requests = spec_requests(&pod);
        assert_eq!(
            figures(&requests),
            [
                ("cpu", "cores", 1.5),
                ("memory", "bytes", 1_073_741_824.0),
                ("example.com/gpu", "", 2.0),
                ("hugepages-2Mi", "bytes", 4_194_304.0),
            ]
        );
        let limits = spec_limits(&pod);
        assert_eq!(
            figures(&limits),
            [("ephemeral-storage", "bytes", 1_048_576.0)]
        );
        let shown = labels(&pod, "cpu", "cores").map(|(name, value)| format!("{name}={value}"));
        assert_eq!(
            shown.join(" "),
            "namespace=n pod=p node=w scheduler=s priority=7 resource=cpu unit=cores"
        );
    }
}
