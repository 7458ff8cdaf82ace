//! Pod networks: where a plugin that connects pods with the outside is put in.

use async_trait::async_trait;
use davit_api::quantity::Quantity;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};

/// A pod as its network sees it.
#[derive(Debug, Clone, Default)]
pub struct PodNetwork {
    /// Sandbox ID.
    pub sandbox_id: String,
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod UID.
    pub uid: String,
    /// File that stands for the pod's network namespace; its loopback device is up.
    pub netns: PathBuf,
    /// Pod annotations (bandwidth).
    pub annotations: BTreeMap<String, String>,
    /// Ports to open on the host.
    pub ports: Vec<davit_proto::cri::v1::PortMapping>,
    /// Name resolution of the pod.
    pub dns: Option<davit_proto::cri::v1::DnsConfig>,
    /// cgroup of the pod, empty when it has none of its own.
    pub cgroup_parent: String,
}

/// Annotations of pods: bits a second.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// What a pod receives and sends at most, in bits a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// What it receives.
    pub ingress: Option<u64>,
    /// What it sends.
    pub egress: Option<u64>,
}

/// Annotation: addresses that the pod is to have, separated by commas. CNI plugins take them, where the node's operator lets
/// pods choose.
pub(crate) const WISHED_ADDRESSES: &str = "davit.dev/pod-ips";

impl PodNetwork {
    /// Refuses a pod that chooses its addresses, for networks in which none does: it would have others than it was told.
    ///
    /// # Errors
    /// The annotation is there.
    pub fn check_addresses(&self) -> Result<(), Error> {
        if self.annotations.contains_key(WISHED_ADDRESSES) {
            return Err(Error(format!(
                "annotation {WISHED_ADDRESSES}: pods choose no addresses on this node, whose network is no CNI plugin's"
            )));
        }
        Ok(())
    }

    /// What the pod's annotations say of bandwidth.
    ///
    /// # Errors
    /// No quantities, or outside of 1k to 1P; the text is for people.
    pub fn bandwidth(&self) -> Result<Bandwidth, String> {
        let rate = |key: &str| self.annotations.get(key).map(|text| bits(text)).transpose();
        let read = || {
            Ok(Bandwidth {
                ingress: rate(INGRESS)?,
                egress: rate(EGRESS)?,
            })
        };
        read().map_err(|error: String| {
            format!("failed to get bandwidth info from annotations: {error}")
        })
    }
}

fn bits(text: &str) -> Result<u64, String> {
    let quantity: Quantity = text.parse().map_err(|e| format!("{e}"))?;
    match quantity.value() {
        small if small < 1000 => Err("resource is unreasonably small (< 1kbit)".to_owned()),
        large if large > 1_000_000_000_000_000 => {
            Err("resource is unreasonably large (> 1Pbit)".to_owned())
        }
        fine => u64::try_from(fine).map_err(|error| error.to_string()),
    }
}

/// A network operation failed; the text is for people.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// Connects pods. Calls may take long; the runtime gives each a deadline.
#[async_trait]
pub trait Network: Send + Sync + std::fmt::Debug {
    /// Whether pods can be connected now; the text of the error becomes the `NetworkReady` condition's.
    async fn ready(&self) -> Result<(), Error>;
    /// Connects a pod; answers with its addresses, the primary one first. When it fails, [`Network::detach`] follows.
    async fn attach(&self, pod: &PodNetwork) -> Result<Vec<String>, Error>;
    /// Disconnects a pod. Idempotent; the namespace may be gone already.
    async fn detach(&self, pod: &PodNetwork) -> Result<(), Error>;
    /// Disconnects whatever an earlier run has connected and no sandbox in `living` stands for. Called at start, before
    /// any [`Network::attach`].
    async fn collect(&self, _living: &BTreeSet<String>) -> Result<(), Error> {
        Ok(())
    }
}
/// Pods are alone with their loopback device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loopback;

#[async_trait]
impl Network for Loopback {
    async fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn attach(&self, pod: &PodNetwork) -> Result<Vec<String>, Error> {
        pod.check_addresses()?;
        Ok(Vec::new())
    }

    async fn detach(&self, _pod: &PodNetwork) -> Result<(), Error> {
        Ok(())
    }
}

/// Unconnected sockets of a network namespace, or of this one: for IPv4 and, if there is such a thing, for IPv6. Blocks
/// for a moment, not for what is at the other end.
pub(crate) fn sockets(netns: Option<&Path>) -> std::io::Result<[Option<TcpSocket>; 2]> {
    let make = || -> std::io::Result<[Option<TcpSocket>; 2]> {
        Ok([Some(TcpSocket::new_v4()?), TcpSocket::new_v6().ok()])
    };
    let Some(netns) = netns else { return make() };
    let file = std::fs::File::open(netns)?;
    // A thread of its own, which ends with the namespace it entered.
    let thread = std::thread::Builder::new()
        .name("pod-dial".to_owned())
        .spawn(move || {
            nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET)?;
            make()
        })?;
    thread
        .join()
        .map_err(|_| std::io::Error::other("the dialing thread panicked"))?
}

/// Connects one of the sockets to `localhost:port` of where they were made, each within `patience`.
pub(crate) async fn dial(
    [v4, v6]: [Option<TcpSocket>; 2],
    port: u16,
    patience: Duration,
) -> std::io::Result<TcpStream> {
    let connect = async |socket: Option<TcpSocket>, address: IpAddr| {
        let socket = socket.ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        tokio::time::timeout(patience, socket.connect((address, port).into())).await?
    };
    match connect(v4, Ipv4Addr::LOCALHOST.into()).await {
        Ok(stream) => Ok(stream),
        Err(error) => connect(v6, Ipv6Addr::LOCALHOST.into())
            .await
            .map_err(|_| error),
    }
}
