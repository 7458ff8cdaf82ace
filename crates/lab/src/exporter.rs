//! Prometheus metrics of devices: which is where, in whose hands, and why in nobody's.
//!
//! All of it comes from the podresources socket of a node agent, davit's or a kubelet. A device
//! that the agent does not offer any more, but did, is unhealthy or gone; when the agent does not
//! answer nothing is known of its devices, and that is said instead of the last known state.

mod model;
mod server;
mod text;

pub use model::{Claimed, DeviceState, Memory, Owner, Snapshot};
pub use server::{Error, serve};

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use davit_proto::podresources::v1::{AllocatableResourcesResponse, PodResources};
use davit_sdk::podresources::{self, Client};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Answers younger than this serve several scrapes.
const FRESH: Duration = Duration::from_secs(1);
/// How long one look at the agent may take: less than the usual limit of a scrape.
const LIMIT: Duration = Duration::from_secs(5);

/// Reads an agent's podresources and tells Prometheus.
pub struct Exporter {
    client: Client,
    node: String,
    state: Mutex<State>,
}

struct State {
    memory: Memory,
    errors: u64,
    /// The last text and when it was made.
    text: Option<(Instant, Arc<str>)>,
    success: Option<SystemTime>,
}

impl Exporter {
    /// An exporter of the agent behind this socket; `node` is the name its metrics carry.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(socket: impl AsRef<std::path::Path>, node: impl Into<String>) -> Self {
        Self {
            client: Client::new(socket).with_limit(LIMIT),
            node: node.into(),
            state: Mutex::new(State {
                memory: Memory::default(),
                errors: 0,
                text: None,
                success: None,
            }),
        }
    }

    /// The metrics as Prometheus reads them. Scrapes that come together share one look at the
    /// agent.
    pub async fn metrics(&self) -> Arc<str> {
        // Held while asking, so that others wait for the same answer; the limit bounds that.
        let mut state = self.state.lock().await;
        if let Some((made, text)) = &state.text
            && made.elapsed() < FRESH
        {
            return text.clone();
        }
        let begun = Instant::now();
        let snapshot = match self.ask().await {
            Ok((pods, allocatable)) => {
                state.success = Some(SystemTime::now());
                state
                    .memory
                    .look(&pods, allocatable.as_ref(), Instant::now())
            }
            Err(error) => {
                tracing::warn!(%error, "no devices from the node agent");
                state.errors += 1;
                state.memory.unknown()
            }
        };
        let scrape = text::Scrape {
            node: &self.node,
            took: begun.elapsed(),
            errors: state.errors,
            success: state.success,
        };
        let text: Arc<str> = text::render(&snapshot, &scrape).into();
        state.text = Some((Instant::now(), text.clone()));
        text
    }

    async fn ask(
        &self,
    ) -> Result<(Vec<PodResources>, Option<AllocatableResourcesResponse>), podresources::Error>
    {
        let pods = self.client.list().await?;
        let allocatable = match self.client.allocatable().await {
            Ok(allocatable) => Some(allocatable),
            // Agents before 1.23, and those before 1.28 that have it switched off.
            Err(podresources::Error::Refused { status, .. })
                if status.code() == tonic::Code::Unimplemented
                    || status.message().contains("disabled") =>
            {
                None
            }
            Err(e) => return Err(e),
        };
        Ok((pods, allocatable))
    }
}
