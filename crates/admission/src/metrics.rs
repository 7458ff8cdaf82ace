//! Metrics of admission, by plugin and by step.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    operation: &'static str,
    rejected: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    name: &'static str,
    operation: &'static str,
    rejected: &'static str,
    r#type: &'static str,
}

/// What a step of admission does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Plugins change objects.
    Admit,
    /// Plugins judge them.
    Validate,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Validate => "validate",
        }
    }
}

/// How long plugins take, and what they refuse.
#[derive(Debug)]
pub struct AdmissionMetrics {
    plugins: Family<PluginLabels, Histogram, fn() -> Histogram>,
    steps: Family<StepLabels, Histogram, fn() -> Histogram>,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        let made: fn() -> Histogram = || Histogram::new(BUCKETS);
        Self {
            plugins: Family::new_with_constructor(made),
            steps: Family::new_with_constructor(made),
        }
    }
}

impl AdmissionMetrics {
    /// Puts them on a page of metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_admission_controller_admission_duration_seconds",
            "Time that an admission plugin takes",
            self.plugins.clone(),
        );
        registry.register(
            "apiserver_admission_step_admission_duration_seconds",
            "Time that all admission plugins together take",
            self.steps.clone(),
        );
    }

    /// A plugin has spoken.
    pub(crate) fn plugin(
        &self,
        name: &'static str,
        step: Step,
        operation: &'static str,
        accepted: bool,
        took: Duration,
    ) {
        let labels = PluginLabels {
            name,
            operation,
            rejected: if accepted { "false" } else { "true" },
            r#type: step.name(),
        };
        let plugin = self.plugins.get_or_create(&labels);
        plugin.observe(took.as_secs_f64());
    }

    /// All plugins have spoken, or one has refused.
    pub(crate) fn step(&self, step: Step, operation: &'static str, accepted: bool, took: Duration) {
        let labels = StepLabels {
            operation,
            rejected: if accepted { "false" } else { "true" },
            r#type: step.name(),
        };
        let step = self.steps.get_or_create(&labels);
        step.observe(took.as_secs_f64());
    }
}
