//! Asking the node agent which pod holds which devices (podresources API v1).
//!
//! ```no_run
//! # async fn example() -> Result<(), davit_sdk::podresources::Error> {
//! let client = davit_sdk::podresources::Client::default();
//! for pod in client.list().await? {
//!     for container in &pod.containers {
//!         for device in davit_sdk::podresources::devices(&container.devices) {
//!             println!("{}/{}: {} {}", pod.namespace, pod.name, device.resource, device.id);
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use davit_proto::podresources::v1 as pb;
use davit_proto::podresources::v1::pod_resources_lister_client::PodResourcesListerClient;
use davit_proto::unix::{self, MAX_MESSAGE};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

/// The messages of the API.
pub use davit_proto::podresources::v1::{
    AllocatableResourcesResponse, ClaimResource, ContainerDevices, ContainerMemory,
    ContainerResources, DynamicResource, PodResources,
};

/// The agent's socket by default. Mount its folder, not the file: it is replaced at each start.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

const LIMIT: Duration = Duration::from_secs(10);
const RETRY_LIMITED: Duration = Duration::from_millis(100);
const RETRY_ABSENT: Duration = Duration::from_millis(250);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent could not be reached, or limited the rate of calls, until the time was over.
    #[error("podresources {call}: no answer within {after:?}: {last}")]
    Unavailable {
        /// The call.
        call: &'static str,
        /// How long it was tried.
        after: Duration,
        /// The last failure.
        last: String,
    },
    /// The agent answered with an error.
    #[error("podresources {call}: {status}")]
    Refused {
        /// The call.
        call: &'static str,
        /// The error.
        status: Box<Status>,
    },
}

/// A client. Cheap to clone; finds a restarted agent again; waits when the agent limits the
/// rate of calls.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
    client: PodResourcesListerClient<Channel>,
    limit: Duration,
}

impl Default for Client {
    /// For the usual socket.
    fn default() -> Self {
        Self::new(SOCKET)
    }
}

impl Client {
    /// For a socket elsewhere. Connects at the first call.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        let client = PodResourcesListerClient::new(unix::connect_lazy(&path))
            .max_decoding_message_size(MAX_MESSAGE);
        Self {
            path,
            client,
            limit: LIMIT,
        }
    }

    /// Sets how long a call may take with all its tries; ten seconds by default.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All pods of the node that are not terminal, with what their containers hold. Right after
    /// a start of the agent pods may be missing: absence is no proof of release.
    ///
    /// # Errors
    /// No answer in time, or an error as answer.
    pub async fn list(&self) -> Result<Vec<PodResources>, Error> {
        let call = |mut c: PodResourcesListerClient<Channel>| async move {
            c.list(pb::ListPodResourcesRequest {}).await
        };
        Ok(self.call("List", call).await?.pod_resources)
    }

    /// One pod; `None` when the node does not have it.
    ///
    /// # Errors
    /// No answer in time, or an error as answer.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<PodResources>, Error> {
        let request = pb::GetPodResourcesRequest {
            pod_name: name.to_owned(),
            pod_namespace: namespace.to_owned(),
        };
        let call = |mut c: PodResourcesListerClient<Channel>| {
            let request = request.clone();
            async move { c.get(request).await }
        };
        match self.call("Get", call).await {
            Ok(answer) => Ok(answer.pod_resources),
            // The agent's code for this is Unknown; the text is all there is to go by.
            Err(Error::Refused { status, .. }) if status.message().ends_with("not found") => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// What the node could give to pods, whether in use or not.
    ///
    /// # Errors
    /// No answer in time, or an error as answer.
    pub async fn allocatable(&self) -> Result<AllocatableResourcesResponse, Error> {
        self.call("GetAllocatableResources", |mut c| async move {
            c.get_allocatable_resources(pb::AllocatableResourcesRequest {})
                .await
        })
        .await
    }

    async fn call<T, F>(
        &self,
        call: &'static str,
        send: impl Fn(PodResourcesListerClient<Channel>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + self.limit;
        let mut last = String::from("no answer");
        loop {
            let pause = match timeout_at(deadline, send(self.client.clone())).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => {
                    let pause = pause(&status).ok_or_else(|| Error::Refused {
                        call,
                        status: Box::new(status.clone()),
                    })?;
                    last = status.to_string();
                    Some(pause)
                }
                Err(_) => None,
            };
            match pause {
                Some(pause) if Instant::now() + pause < deadline => sleep(pause).await,
                _ => {
                    return Err(Error::Unavailable {
                        call,
                        after: self.limit,
                        last,
                    });
                }
            }
        }
    }
}

/// How long to wait before the next try; `None` when another try is of no use.
fn pause(status: &Status) -> Option<Duration> {
    let base = match status.code() {
        Code::ResourceExhausted if status.message().contains("rate limit") => RETRY_LIMITED,
        Code::Unavailable => RETRY_ABSENT,
        // The connection broke during the call: the agent restarts.
        _ if std::error::Error::source(status).is_some() => RETRY_ABSENT,
        _ => return None,
    };
    // Callers that were turned away together shall not come back together.
    let nanos = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.subsec_nanos());
    Some(base + base * (nanos % 1000) / 1000)
}

/// A device in somebody's hands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The extended resource.
    pub resource: String,
    /// Its ID.
    pub id: String,
    /// NUMA nodes it is local to.
    pub numa_nodes: BTreeSet<i64>,
}

/// The devices of a container or of the allocatable ones. The API names a device once for each
/// of its NUMA nodes; here it is one.
pub fn devices(entries: &[ContainerDevices]) -> Vec<Device> {
    let mut found: BTreeMap<(&str, &str), BTreeSet<i64>> = BTreeMap::new();
    for entry in entries {
        for id in &entry.device_ids {
            let nodes = entry.topology.iter().flat_map(|t| &t.nodes);
            found
                .entry((&entry.resource_name, id))
                .or_default()
                .extend(nodes.map(|n| n.id));
        }
    }
    let device = |((resource, id), numa_nodes): ((&str, &str), _)| Device {
        resource: resource.to_owned(),
        id: id.to_owned(),
        numa_nodes,
    };
    found.into_iter().map(device).collect()
}
