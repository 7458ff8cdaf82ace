//! Bounds how many requests are answered at once (400 that read, 200 that write).

use std::sync::Arc;

use davit_api::status::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::context::Context;
use crate::metrics::Metrics;
use crate::user::MASTERS;

const READ_ONLY: usize = 400;
const MUTATING: usize = 200;

/// The places.
#[derive(Debug)]
pub(crate) struct InFlight {
    read_only: Arc<Semaphore>,
    mutating: Arc<Semaphore>,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self {
            read_only: Arc::new(Semaphore::new(READ_ONLY)),
            mutating: Arc::new(Semaphore::new(MUTATING)),
        }
    }

    /// Takes a place, or refuses (429). Administrators and health checks are never refused.
    pub(crate) fn enter(
        &self,
        context: &Context,
        metrics: &Metrics,
    ) -> Result<Option<OwnedSemaphorePermit>, Status> {
        let exempt = !context.info.is_resource || context.user.in_group(MASTERS);
        let places = if context.info.is_read_only() {
            &self.read_only
        } else {
            &self.mutating
        };
        let place = Arc::clone(places).try_acquire_owned().ok();
        metrics.set_in_flight(
            READ_ONLY - self.read_only.available_permits(),
            MUTATING - self.mutating.available_permits(),
        );
        if place.is_none() && !exempt {
            return Err(Status::too_many_requests(
                "too many requests, please try again later.",
                1,
            ));
        }
        Ok(place)
    }
}
