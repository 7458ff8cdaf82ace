//! Counts the requests that are being answered, and bounds them where priority and fairness is off.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use davit_access::MASTERS;
use davit_api::status::Status;
use davit_flowcontrol::FlowOptions;

use crate::context::Context;
use crate::metrics::Metrics;

/// The places.
#[derive(Debug)]
pub(crate) struct InFlight {
    limits: FlowOptions,
    held: Arc<HeldPermit>,
}

#[derive(Debug, Default)]
struct HeldPermit {
    reads: AtomicUsize,
    writes: AtomicUsize,
}

/// A request's place; given back on drop.
#[derive(Debug)]
pub(crate) struct InFlightPermit {
    held: Arc<HeldPermit>,
    reads: bool,
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        let count = if self.reads {
            &self.held.reads
        } else {
            &self.held.writes
        };
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InFlight {
    pub(crate) fn new(limits: FlowOptions) -> Self {
        Self {
            limits,
            held: Arc::default(),
        }
    }

    /// How many requests are being answered.
    pub(crate) fn active(&self) -> usize {
        self.held.reads.load(Ordering::Relaxed) + self.held.writes.load(Ordering::Relaxed)
    }

    /// Shows how many requests are being answered.
    pub(crate) fn show(&self, metrics: &Metrics) {
        metrics.set_in_flight(
            self.held.reads.load(Ordering::Relaxed),
            self.held.writes.load(Ordering::Relaxed),
        );
    }

    /// Takes a place, or refuses (429) if `bounded`. Administrators and health checks are never
    /// refused.
    pub(crate) fn enter(
        &self,
        context: &Context,
        metrics: &Metrics,
        bounded: bool,
    ) -> Result<InFlightPermit, Status> {
        let exempt = !context.info.is_resource || context.user.in_group(MASTERS);
        let reads = context.info.is_read_only();
        let (count, limit) = if reads {
            (&self.held.reads, self.limits.max_reads)
        } else {
            (&self.held.writes, self.limits.max_writes)
        };
        let before = count.fetch_add(1, Ordering::Relaxed);
        let place = InFlightPermit {
            held: Arc::clone(&self.held),
            reads,
        };
        self.show(metrics);
        if bounded && before >= limit && !exempt {
            drop(place);
            return Err(Status::too_many_requests(
                "too many requests, please try again later.",
                1,
            ));
        }
        Ok(place)
    }
}
