//! The scheduler: queue, snapshot, framework and plugins.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "test values are written where they are used"
    )
)]

pub mod cache;
pub mod classic;
pub mod cycle;
pub mod devices;
pub mod extender;
pub mod framework;
pub mod group;
pub mod nominator;
pub mod plugins;
pub mod pod_groups;
pub mod profiles;
pub mod queue;
pub mod registry;
pub mod topology;
pub mod verdict;
pub mod workloads;

/// Pods and nodes as plugins see them.
pub use davit_podinfo::{node, pod};
/// What pods ask for and nodes have.
pub use davit_podrequests as resources;
/// The configuration of schedulers.
pub use davit_schedulerconfig as config;

use davit_api::selector;

mod metrics;
mod reporter;
mod scheduler;
mod victims;
mod waiting;

pub use metrics::{AttemptResult, Metrics};
pub use scheduler::{Scheduler, SchedulerError, SchedulerOptions};
pub use verdict::{NodeVerdict, Record, VERDICT_ANNOTATION};
pub use waiting::WaitingPods;
