//! What is counted, once for the process: components of one process share the page of metrics.

use std::sync::LazyLock;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    component: &'static str,
    task: &'static str,
}

static PANICS: LazyLock<Family<Labels, Counter>> = LazyLock::new(Family::default);
static RESTARTS: LazyLock<Family<Labels, Counter>> = LazyLock::new(Family::default);

/// Adds the counts of the process to what is served as metrics: `davit_task_panics_total` and
/// `davit_task_restarts_total`, by component and task.
pub fn register_metrics(registry: &mut Registry) {
    registry.register(
        "davit_task_panics",
        "Panics of tasks, or of pieces of their work",
        PANICS.clone(),
    );
    registry.register(
        "davit_task_restarts",
        "Tasks that were started again after they panicked or ended",
        RESTARTS.clone(),
    );
}

/// How often a task, or a piece of its work, has panicked in this process.
pub fn panics(component: &'static str, task: &'static str) -> u64 {
    PANICS.get_or_create(&Labels { component, task }).get()
}

/// How often a task has been started again in this process.
pub fn restarts(component: &'static str, task: &'static str) -> u64 {
    RESTARTS.get_or_create(&Labels { component, task }).get()
}

pub(crate) fn count_panic(component: &'static str, task: &'static str) {
    PANICS.get_or_create(&Labels { component, task }).inc();
}

pub(crate) fn count_restart(component: &'static str, task: &'static str) {
    RESTARTS.get_or_create(&Labels { component, task }).inc();
}
