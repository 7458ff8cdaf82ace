//! Priority and fairness (<https://kubernetes.io/docs/concepts/cluster-administration/flow-control/>):
//! FlowSchemas sort requests into flows and priority levels, levels have seats, and what finds no
//! seat waits in a bounded queue or is refused (429).
//!
//! The levels decide, [`FlowControl`] keeps callers waiting; the API server keeps the objects in order and puts them in
//! force by [`FlowControl::configure`].

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]
// every error of a request is a Status, which is made once and moved a few times on a cold path
#![allow(clippy::result_large_err)]

mod config;
mod dumps;
mod levels;
mod metrics;
mod shards;

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use davit_access::{RequestInfo, UserInfo};
use davit_api::status::Status;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::sync::oneshot;

pub use metrics::FlowMetrics;

use config::Schema;
use levels::{Arrival, Levels, Refusal, SeatedRequest};

/// The group of the two kinds.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// A queued request waits at most this part of its time, as kube-apiserver has it.
const WAIT_PART: u32 = 4;
/// For requests without a deadline.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
const RETRY_AFTER: u32 = 1;
const REFUSED: &str = "too many requests, please try again later.";

/// The switch, and how much the server does at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowOptions {
    /// Off: two plain limits, one for reads and one for writes, stand in its place.
    pub enabled: bool,
    /// Reads at once; the sum of both is what the levels share.
    pub max_reads: usize,
    /// Writes at once.
    pub max_writes: usize,
}

impl Default for FlowOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            max_reads: 400,
            max_writes: 200,
        }
    }
}

/// A request that runs or waits, for dumps.
#[derive(Debug, Clone)]
struct Shown {
    schema: String,
    arrived: jiff::Timestamp,
    user: String,
    info: RequestInfo,
}

#[derive(Default)]
struct State {
    levels: Levels,
    waiters: HashMap<u64, oneshot::Sender<()>>,
    shown: HashMap<u64, Shown>,
}

impl State {
    /// Tells those whose turn has come. Whoever has gone meanwhile gives the place back itself.
    fn wake(&mut self, started: Vec<SeatedRequest>) {
        for place in started {
            if let Some(waiter) = self.waiters.remove(&place.id) {
                let _ = waiter.send(());
            }
        }
    }
}

/// The gate all short requests pass.
pub struct FlowControl {
    options: FlowOptions,
    schemas: ArcSwap<Vec<Schema>>,
    state: Mutex<State>,
    metrics: FlowMetrics,
}

impl std::fmt::Debug for FlowControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlowControl({:?})", self.options)
    }
}

/// A request's seat; given back on drop.
#[derive(Debug)]
pub struct Seat {
    held: HeldSeat,
    /// UID of the schema, for the answer's headers.
    pub schema_uid: Option<HeaderValue>,
    /// UID of the level, for the answer's headers.
    pub level_uid: Option<HeaderValue>,
}

/// A place in a queue or in a seat. However its owner ends, the place is given back.
#[derive(Debug)]
struct HeldSeat {
    control: Arc<FlowControl>,
    place: SeatedRequest,
    schema: String,
    executing: bool,
    why: Refusal,
}

impl Drop for HeldSeat {
    fn drop(&mut self) {
        let control = &self.control;
        let mut state = control.state.lock();
        state.waiters.remove(&self.place.id);
        state.shown.remove(&self.place.id);
        if !self.executing && state.levels.leave(&self.place, self.why) {
            drop(state);
            control.metrics.left(&self.place.level, &self.schema);
            control
                .metrics
                .rejected(&self.place.level, &self.schema, self.why.reason());
            return;
        }
        let started = state.levels.finish(&self.place);
        state.wake(started);
        drop(state);
        if self.executing {
            control.metrics.finished(&self.place.level, &self.schema);
        }
    }
}

impl FlowControl {
    /// A gate that lets everything pass until it is configured.
    pub fn new(options: FlowOptions, metrics: FlowMetrics) -> Self {
        Self {
            options,
            schemas: ArcSwap::default(),
            state: Mutex::new(State::default()),
            metrics,
        }
    }

    /// Whether it is switched on.
    pub fn is_enabled(&self) -> bool {
        self.options.enabled
    }

    /// Puts objects in force. Schemas whose level is missing are left out.
    pub fn configure(&self, schemas: &[serde_json::Value], levels: &[serde_json::Value]) {
        let total = self.options.max_reads + self.options.max_writes;
        let specs = config::levels(levels, total);
        let mut schemas: Vec<Schema> = schemas
            .iter()
            .map(Schema::from_value)
            .filter(|schema| specs.iter().any(|level| level.name == schema.level))
            .collect();
        schemas
            .sort_by(|a, b| (a.precedence, a.name.as_str()).cmp(&(b.precedence, b.name.as_str())));
        for spec in &specs {
            let (nominal, min, max) = spec
                .limits
                .map_or((0, 0, 0), |limits| (limits.nominal, limits.min, limits.max));
            self.metrics.limits(&spec.name, nominal, min, max);
        }
        let mut state = self.state.lock();
        let started = state.levels.configure(&specs);
        state.wake(started);
        drop(state);
        self.schemas.store(Arc::new(schemas));
    }

    /// Waits for a seat. None before the first configuration is known. `objects` counts what a list
    /// goes through.
    ///
    /// # Errors
    /// 429 when there is none, or none in time.
    pub async fn enter(
        self: &Arc<Self>,
        user: &UserInfo,
        info: &RequestInfo,
        deadline: Option<Instant>,
        objects: impl FnOnce() -> usize,
    ) -> Result<Option<Seat>, Status> {
        let schemas = self.schemas.load();
        let Some(schema) = schemas.iter().find(|schema| schema.matches(user, info)) else {
            return Ok(None);
        };
        let (name, uid, level) = (
            schema.name.clone(),
            schema.uid.clone(),
            schema.level.clone(),
        );
        let flow = schema.flow(user, info);
        drop(schemas);
        let hash = hash(&name, &flow);
        let asked = width(info, objects);
        let arrived = Instant::now();
        let (mut held, turn, level_uid) = {
            let mut state = self.state.lock();
            let arrival = state.levels.arrive(&level, &flow, hash, asked);
            let level_uid = state.levels.level(&level).map(|held| held.spec.uid.clone());
            let (place, executing) = match arrival {
                Arrival::Run(place) => (place, true),
                Arrival::Wait(place) => (place, false),
                Arrival::Refused(why) => {
                    drop(state);
                    self.metrics.rejected(&level, &name, why.reason());
                    return Err(Status::too_many_requests(REFUSED, RETRY_AFTER));
                }
            };
            let shown = Shown {
                schema: name.clone(),
                arrived: jiff::Timestamp::now(),
                user: user.name.clone(),
                info: info.clone(),
            };
            state.shown.insert(place.id, shown);
            let turn = (!executing).then(|| {
                let (send, receive) = oneshot::channel();
                state.waiters.insert(place.id, send);
                receive
            });
            let held = HeldSeat {
                control: Arc::clone(self),
                place,
                schema: name.clone(),
                executing,
                why: Refusal::Cancelled,
            };
            (held, turn, level_uid)
        };
        if let Some(turn) = turn {
            self.metrics.queued(&level, &name);
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let limit = left.map_or(LONGEST_WAIT, |left| left / WAIT_PART);
            if tokio::time::timeout(limit, turn).await.is_err() {
                held.why = Refusal::TimeOut;
                return Err(Status::too_many_requests(REFUSED, RETRY_AFTER));
            }
            held.executing = true;
            self.metrics.left(&level, &name);
        }
        self.metrics.dispatched(&level, &name, arrived.elapsed());
        let header = |uid: String| HeaderValue::from_str(&uid).ok();
        Ok(Some(Seat {
            held,
            schema_uid: header(uid),
            level_uid: level_uid.and_then(header),
        }))
    }
}

impl Seat {
    /// The level the seat belongs to.
    pub fn level(&self) -> &str {
        &self.held.place.level
    }
}

/// Objects that a list goes through for each seat, and the seats that it takes at most.
const OBJECTS_A_SEAT: usize = 100;
const WIDEST: usize = 10;

/// The seats that a request takes: those of a list grow with the objects it goes through.
fn width(info: &RequestInfo, objects: impl FnOnce() -> usize) -> usize {
    // a list of one name is a read
    if info.verb != "list" || !info.name.is_empty() {
        return 1;
    }
    objects().div_ceil(OBJECTS_A_SEAT).clamp(1, WIDEST)
}

fn hash(schema: &str, flow: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(schema.as_bytes());
    hasher.write_u8(0xff);
    hasher.write(flow.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests;
