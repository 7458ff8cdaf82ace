//! The node agent's side: finding a driver in the registry and calling it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use davit_proto::dra::{v1, v1beta1};
use davit_proto::drahealth;
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::unix::{self, MAX_MESSAGE};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

use super::cluster::Claim;
use crate::check::agent::{Identity, get_info, notify, said, sockets};
use crate::check::subject::{KubeletDirectory, Life};

const SCAN: Duration = Duration::from_millis(100);
const DIAL: Duration = Duration::from_secs(5);
const DEPTH: usize = 8;

/// What a socket in the registry said of itself.
#[derive(Debug, Clone)]
pub(super) struct PluginSocket {
    pub(super) socket: PathBuf,
    pub(super) name: String,
    pub(super) endpoint: PathBuf,
    pub(super) versions: Vec<String>,
    /// Whether it took the result of its registration.
    pub(super) notified: Result<(), String>,
    /// The connection, made before the result was told.
    pub(super) channel: Result<Channel, String>,
}

/// The part of an agent that looks for plugins. A new one is an agent that has restarted: it knows no socket.
#[derive(Default)]
pub(super) struct Registry {
    known: BTreeMap<PathBuf, Identity>,
}

impl Registry {
    /// The next driver that comes; sockets of others, and of drivers that cannot be asked, are in `odd`.
    pub(super) async fn next(
        &mut self,
        place: &KubeletDirectory,
        life: &mut dyn Life,
        limit: Duration,
        odd: &mut Vec<String>,
    ) -> Option<PluginSocket> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            let mut now = BTreeMap::new();
            sockets(&place.registry(), DEPTH, &mut now);
            self.known.retain(|socket, _| now.contains_key(socket));
            for (socket, identity) in now {
                if self.known.get(&socket) == Some(&identity) {
                    continue;
                }
                match ask(&socket).await {
                    Ok(found) => {
                        self.known.insert(socket, identity);
                        return Some(found);
                    }
                    // It may have made its socket a moment ago; the agent tries again, too.
                    Err(why) => {
                        let why = format!("{}: {why}", socket.display());
                        if !odd.contains(&why) {
                            odd.push(why);
                        }
                    }
                }
            }
            if life.ended().is_some() {
                return None;
            }
            sleep(SCAN).await;
        }
        None
    }
}

/// Asks a socket what it is, dials back and tells the result, as an agent does.
async fn ask(socket: &Path) -> Result<PluginSocket, String> {
    let (mut client, info) = get_info(socket).await?;
    if info.r#type != reg::DRA_PLUGIN {
        return Err(format!("GetInfo names the type {:?}", info.r#type));
    }
    let endpoint = PathBuf::from(&info.endpoint);
    let channel = unix::connect_once(&endpoint, DIAL)
        .await
        .map_err(|e| e.to_string());
    let refusal = channel.as_ref().err().cloned();
    let notified = notify(&mut client, refusal).await;
    Ok(PluginSocket {
        socket: socket.to_owned(),
        name: info.name,
        endpoint,
        versions: info.supported_versions,
        notified,
        channel,
    })
}

/// A driver that is called, in the newest version it has.
#[derive(Clone)]
pub(super) struct Driver {
    channel: Channel,
    is_v1: bool,
    patience: Duration,
}

/// What was answered, by the claim's UID.
pub(super) type Answers<T> = BTreeMap<String, Result<T, String>>;

fn outcome<T>(error: String, good: T) -> Result<T, String> {
    if error.is_empty() {
        Ok(good)
    } else {
        Err(error)
    }
}

impl Driver {
    pub(super) fn new(channel: Channel, versions: &[String], patience: Duration) -> Self {
        // A driver of the first releases names its own version and serves v1beta1.
        let is_v1 = versions.iter().any(|v| v == v1::SERVICE);
        Self {
            channel,
            is_v1,
            patience,
        }
    }

    pub(super) async fn prepare(
        &self,
        claims: &[&Claim],
    ) -> Result<Answers<Vec<v1::Device>>, String> {
        if self.is_v1 {
            let mut client = v1::dra_plugin_client::DraPluginClient::new(self.channel.clone())
                .max_decoding_message_size(MAX_MESSAGE);
            let request = v1::NodePrepareResourcesRequest {
                claims: claims.iter().map(|claim| claim.v1()).collect(),
            };
            let answer = self.within(client.node_prepare_resources(request)).await?;
            let each = answer.claims.into_iter();
            return Ok(each
                .map(|(uid, a)| (uid, outcome(a.error, a.devices)))
                .collect());
        }
        let mut client = v1beta1::dra_plugin_client::DraPluginClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE);
        let request = v1beta1::NodePrepareResourcesRequest {
            claims: claims.iter().map(|claim| claim.v1beta1()).collect(),
        };
        let answer = self.within(client.node_prepare_resources(request)).await?;
        let device = |d: v1beta1::Device| v1::Device {
            request_names: d.request_names,
            pool_name: d.pool_name,
            device_name: d.device_name,
            cdi_device_ids: d.cdi_device_ids,
            share_id: None,
        };
        let each = answer.claims.into_iter();
        Ok(each
            .map(|(uid, a)| {
                let devices = a.devices.into_iter().map(device).collect();
                (uid, outcome(a.error, devices))
            })
            .collect())
    }

    pub(super) async fn unprepare(&self, claims: &[&Claim]) -> Result<Answers<()>, String> {
        if self.is_v1 {
            let mut client = v1::dra_plugin_client::DraPluginClient::new(self.channel.clone());
            let request = v1::NodeUnprepareResourcesRequest {
                claims: claims.iter().map(|claim| claim.v1()).collect(),
            };
            let answer = self
                .within(client.node_unprepare_resources(request))
                .await?;
            let each = answer.claims.into_iter();
            return Ok(each.map(|(uid, a)| (uid, outcome(a.error, ()))).collect());
        }
        let mut client = v1beta1::dra_plugin_client::DraPluginClient::new(self.channel.clone());
        let request = v1beta1::NodeUnprepareResourcesRequest {
            claims: claims.iter().map(|claim| claim.v1beta1()).collect(),
        };
        let answer = self
            .within(client.node_unprepare_resources(request))
            .await?;
        let each = answer.claims.into_iter();
        Ok(each.map(|(uid, a)| (uid, outcome(a.error, ()))).collect())
    }

    /// Prepares one claim.
    pub(super) async fn prepare_one(&self, claim: &Claim) -> Result<Vec<v1::Device>, String> {
        let mut answers = self.prepare(&[claim]).await?;
        let own = answers.remove(&claim.uid);
        own.ok_or_else(|| "the answer has no entry for the claim".to_owned())?
    }

    /// Undoes one claim.
    pub(super) async fn unprepare_one(&self, claim: &Claim) -> Result<(), String> {
        let mut answers = self.unprepare(&[claim]).await?;
        let own = answers.remove(&claim.uid);
        own.ok_or_else(|| "the answer has no entry for the claim".to_owned())?
    }

    /// The first message of the health service: pool and name of each device. `None` when it is not served.
    pub(super) async fn health(
        &self,
        versions: &[String],
    ) -> Result<Option<Vec<(String, String)>>, String> {
        let has = |service: &str| versions.iter().any(|v| v == service);
        if has(drahealth::v1::SERVICE) {
            use drahealth::v1::dra_resource_health_client::DraResourceHealthClient;
            let mut client = DraResourceHealthClient::new(self.channel.clone());
            let request = drahealth::v1::NodeWatchResourcesRequest {};
            let mut stream = self.within(client.node_watch_resources(request)).await?;
            let message = self.first(stream.message()).await?;
            let devices = message.devices.into_iter().filter_map(|d| d.device);
            return Ok(Some(
                devices.map(|d| (d.pool_name, d.device_name)).collect(),
            ));
        }
        if has(drahealth::v1alpha1::SERVICE) {
            use drahealth::v1alpha1::dra_resource_health_client::DraResourceHealthClient;
            let mut client = DraResourceHealthClient::new(self.channel.clone());
            let request = drahealth::v1alpha1::NodeWatchResourcesRequest {};
            let mut stream = self.within(client.node_watch_resources(request)).await?;
            let message = self.first(stream.message()).await?;
            let devices = message.devices.into_iter().filter_map(|d| d.device);
            return Ok(Some(
                devices.map(|d| (d.pool_name, d.device_name)).collect(),
            ));
        }
        Ok(None)
    }

    async fn within<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, String> {
        match timeout(self.patience, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(said(&status)),
            Err(_) => Err(format!("no answer in {} s", self.patience.as_secs())),
        }
    }

    async fn first<T>(
        &self,
        message: impl Future<Output = Result<Option<T>, tonic::Status>>,
    ) -> Result<T, String> {
        match timeout(self.patience, message).await {
            Ok(Ok(Some(message))) => Ok(message),
            Ok(Ok(None)) => Err("the stream ended without a message".to_owned()),
            Ok(Err(status)) => Err(said(&status)),
            Err(_) => Err(format!("no message in {} s", self.patience.as_secs())),
        }
    }
}

impl Claim {
    fn v1(&self) -> v1::Claim {
        v1::Claim {
            namespace: self.namespace.clone(),
            uid: self.uid.clone(),
            name: self.name.clone(),
        }
    }

    fn v1beta1(&self) -> v1beta1::Claim {
        v1beta1::Claim {
            namespace: self.namespace.clone(),
            uid: self.uid.clone(),
            name: self.name.clone(),
        }
    }
}
