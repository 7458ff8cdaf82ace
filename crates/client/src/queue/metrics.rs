//! The metrics of work queues, under the names of client-go, once for the process.

use std::fmt;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    name: &'static str,
}

type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// All queues of the process that have names.
struct Queues {
    depth: Family<Labels, Gauge>,
    adds: Family<Labels, Counter>,
    retries: Family<Labels, Counter>,
    waited: Histograms,
    worked: Histograms,
    at_work: Mutex<Vec<(&'static str, Weak<dyn AtWork>)>>,
}

static QUEUES: LazyLock<Queues> = LazyLock::new(|| Queues {
    depth: Family::default(),
    adds: Family::default(),
    retries: Family::default(),
    waited: Family::new_with_constructor(seconds),
    worked: Family::new_with_constructor(seconds),
    at_work: Mutex::default(),
});

/// The buckets of client-go: from 10 nanoseconds to 1000 seconds.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(10e-9, 10.0, 12))
}

/// A queue that knows since when its keys are being worked on.
pub(super) trait AtWork: Send + Sync {
    /// How long each key that is being worked on has been.
    fn ages(&self) -> Vec<Duration>;
}

/// The metrics of one queue.
#[derive(Clone)]
pub(super) struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl fmt::Debug for QueueMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueMetrics")
    }
}

impl QueueMetrics {
    /// Those of the queue `name`; queues of one name share them.
    pub(super) fn new(name: &'static str) -> Self {
        let labels = Labels { name };
        Self {
            depth: QUEUES.depth.get_or_create(&labels).clone(),
            adds: QUEUES.adds.get_or_create(&labels).clone(),
            retries: QUEUES.retries.get_or_create(&labels).clone(),
            waited: QUEUES.waited.get_or_create(&labels).clone(),
            worked: QUEUES.worked.get_or_create(&labels).clone(),
        }
    }

    /// Has the work of a queue be looked at when metrics are asked for, as long as it lives.
    pub(super) fn follow(name: &'static str, queue: Weak<dyn AtWork>) {
        let mut all = QUEUES.at_work.lock();
        all.retain(|(_, queue)| queue.strong_count() > 0);
        all.push((name, queue));
    }

    pub(super) fn added(&self) {
        self.adds.inc();
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }

    pub(super) fn ready(&self) {
        self.depth.inc();
    }

    pub(super) fn taken(&self, waited: Duration) {
        self.depth.dec();
        self.waited.observe(waited.as_secs_f64());
    }

    /// The queue went with so many keys that waited.
    pub(super) fn dropped(&self, waiting: usize) {
        self.depth
            .dec_by(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    pub(super) fn done(&self, worked: Duration) {
        self.worked.observe(worked.as_secs_f64());
    }
}

/// Adds the metrics of all queues with names to what is served: `workqueue_depth`, `workqueue_adds_total`,
/// `workqueue_retries_total`, `workqueue_queue_duration_seconds`, `workqueue_work_duration_seconds`,
/// `workqueue_unfinished_work_seconds`, `workqueue_longest_running_processor_seconds`, each with the label `name`.
pub fn register_queue_metrics(registry: &mut Registry) {
    let queues = &*QUEUES;
    registry.register("workqueue_depth", "Keys that wait", queues.depth.clone());
    registry.register("workqueue_adds", "Keys that came", queues.adds.clone());
    registry.register(
        "workqueue_retries",
        "Keys that were put off to a later moment",
        queues.retries.clone(),
    );
    registry.register(
        "workqueue_queue_duration_seconds",
        "How long keys waited",
        queues.waited.clone(),
    );
    registry.register(
        "workqueue_work_duration_seconds",
        "How long keys were worked on",
        queues.worked.clone(),
    );
    registry.register_collector(Box::new(Unfinished));
}

/// What is being worked on when metrics are asked for.
#[derive(Debug)]
struct Unfinished;

impl Unfinished {
    /// The seconds of all keys at work and those of the oldest, by queue.
    fn seconds() -> Vec<(Labels, f64, f64)> {
        let queues: Vec<(&'static str, Arc<dyn AtWork>)> = QUEUES
            .at_work
            .lock()
            .iter()
            .filter_map(|(name, queue)| Some((*name, queue.upgrade()?)))
            .collect();
        let mut all: Vec<(Labels, f64, f64)> = Vec::new();
        for (name, queue) in queues {
            let ages = queue.ages();
            let sum = ages.iter().sum::<Duration>().as_secs_f64();
            let most = ages.iter().max().map_or(0.0, Duration::as_secs_f64);
            match all.iter_mut().find(|(labels, ..)| labels.name == name) {
                Some((_, whole, longest)) => {
                    *whole += sum;
                    *longest = longest.max(most);
                }
                None => all.push((Labels { name }, sum, most)),
            }
        }
        all
    }
}

impl Collector for Unfinished {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = Self::seconds();
        let mut whole = encoder.encode_descriptor(
            "workqueue_unfinished_work_seconds",
            "How long the keys that are being worked on have been, together",
            None,
            MetricType::Gauge,
        )?;
        for (labels, sum, _) in &all {
            ConstGauge::new(*sum).encode(whole.encode_family(labels)?)?;
        }
        let mut longest = encoder.encode_descriptor(
            "workqueue_longest_running_processor_seconds",
            "How long the key has been worked on that has been the longest",
            None,
            MetricType::Gauge,
        )?;
        for (labels, _, most) in &all {
            ConstGauge::new(*most).encode(longest.encode_family(labels)?)?;
        }
        Ok(())
    }
}
