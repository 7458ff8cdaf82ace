//! One instance of a driver's node plugin: its connection and the calls made on it.

use super::Error;
use super::metrics::Metrics;
use crate::allocation::{ClaimName, PreparedDevice};
use davit_proto::draclassic::{v1alpha1, v1alpha2};
use davit_proto::{
    dra::v1, dra::v1beta1, drahealth::v1 as health, drahealth::v1alpha1 as health_alpha,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// How long a call waits for a connection that is being made anew.
const RECONNECT: Duration = Duration::from_secs(2);

/// Bytes of an answer, as in the kubelet: what of them says nothing takes fifty times as many when it is read.
const MAX_ANSWER: usize = 4 << 20;

pub(super) const PREPARE: &str = "NodePrepareResources";
pub(super) const UNPREPARE: &str = "NodeUnprepareResources";

/// The services the node can use, as plugins name them.
const SERVICES: [&str; 3] = [v1::SERVICE, v1beta1::SERVICE, v1alpha1::VERSION];

/// How a plugin wants to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    V1,
    V1beta1,
    /// One claim a call, of 1.26 and 1.27.
    Classic,
}

/// What a plugin offers by its `supported_versions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(super) service: Service,
    pub(super) health: Option<Health>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    V1,
    V1alpha1,
}

impl Offer {
    /// Takes the first service of the list that the node knows.
    ///
    /// # Errors
    /// There is none; the sentence is what the plugin gets to see.
    pub(crate) fn of(versions: &[String]) -> Result<Self, String> {
        if versions.is_empty() {
            return Err(
                "empty list of supported gRPC services (aka supported versions)".to_owned(),
            );
        }
        let service = versions.iter().find_map(|version| match version.as_str() {
            v1::SERVICE => Some(Service::V1),
            v1beta1::SERVICE => Some(Service::V1beta1),
            v1alpha1::VERSION => Some(Service::Classic),
            _ => None,
        });
        let service = service.ok_or_else(|| {
            format!(
                "none of services supported by the plugin ({}) are supported by the kubelet ({})",
                quoted(versions.iter().map(String::as_str)),
                quoted(SERVICES.into_iter())
            )
        })?;
        let health = versions.iter().find_map(|version| match version.as_str() {
            health::SERVICE => Some(Health::V1),
            health_alpha::SERVICE => Some(Health::V1alpha1),
            _ => None,
        });
        Ok(Self { service, health })
    }
}

fn quoted<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<String> = texts.map(|t| format!("{t:?}")).collect();
    format!("[{}]", all.join(" "))
}

/// A claim as a call names it, with what only classic drivers get.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) claim: ClaimName,
    pub(super) handle: Option<String>,
    /// CDI names of an earlier answer.
    pub(super) cdi: Vec<String>,
}

/// A registered instance.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) driver: String,
    pub(super) endpoint: PathBuf,
    /// The socket in the plugin registry it came by.
    pub(super) registry_socket: PathBuf,
    pub(super) offer: Offer,
    channel: watch::Sender<Option<Channel>>,
    metrics: Metrics,
}

/// Answers by claim: the devices, or what the driver says.
pub(super) type Prepared = BTreeMap<String, Result<Vec<PreparedDevice>, String>>;

impl Instance {
    pub(super) fn new(
        driver: &str,
        endpoint: PathBuf,
        registry_socket: PathBuf,
        offer: Offer,
        metrics: Metrics,
    ) -> Self {
        Self {
            driver: driver.to_owned(),
            endpoint,
            registry_socket,
            offer,
            channel: watch::Sender::new(None),
            metrics,
        }
    }

    pub(super) fn set_channel(&self, channel: Option<Channel>) {
        self.channel.send_replace(channel);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.channel.borrow().is_some()
    }

    /// The connection, waiting a little while there is none.
    pub(super) async fn connection(&self) -> Result<Channel, Status> {
        let mut watching = self.channel.subscribe();
        let connected = tokio::time::timeout(RECONNECT, watching.wait_for(Option::is_some)).await;
        let channel = match connected {
            Ok(Ok(channel)) => channel.clone(),
            _ => None,
        };
        channel.ok_or_else(|| {
            Status::unavailable(format!(
                "no connection to DRA driver {} at {}",
                self.driver,
                self.endpoint.display()
            ))
        })
    }

    /// Prepares claims: one call, or one for each claim with classic drivers.
    pub(super) async fn prepare(
        &self,
        asked: &[Asked],
        limit: Duration,
    ) -> Result<Prepared, Error> {
        let begun = Instant::now();
        let answer = match self.offer.service {
            Service::V1 => self.prepare_v1(asked, limit).await,
            Service::V1beta1 => self.prepare_v1beta1(asked, limit).await,
            Service::Classic => {
                let each = asked.iter().map(async |a| {
                    let answer = self.prepare_classic(a, limit).await;
                    (a.claim.uid.clone(), answer.map_err(|s| text(&s)))
                });
                Ok(futures::future::join_all(each).await.into_iter().collect())
            }
        };
        self.called(PREPARE, begun, answer)
    }

    async fn prepare_v1(&self, asked: &[Asked], limit: Duration) -> Result<Prepared, Status> {
        let mut client = v1::dra_plugin_client::DraPluginClient::new(self.connection().await?)
            .max_decoding_message_size(MAX_ANSWER);
        let claims = asked.iter().map(|a| v1::Claim {
            namespace: a.claim.namespace.clone(),
            uid: a.claim.uid.clone(),
            name: a.claim.name.clone(),
        });
        let request = v1::NodePrepareResourcesRequest {
            claims: claims.collect(),
        };
        let call = limited(limit, request, |r| client.node_prepare_resources(r));
        let device = |d: v1::Device| PreparedDevice {
            requests: d.request_names,
            pool: d.pool_name,
            device: d.device_name,
            cdi: d.cdi_device_ids,
            share: d.share_id,
        };
        let answers = call.await?.claims.into_iter();
        Ok(answers
            .map(|(uid, a)| (uid, result(&a.error, a.devices.into_iter().map(device))))
            .collect())
    }

    async fn prepare_v1beta1(&self, asked: &[Asked], limit: Duration) -> Result<Prepared, Status> {
        let mut client = v1beta1::dra_plugin_client::DraPluginClient::new(self.connection().await?)
            .max_decoding_message_size(MAX_ANSWER);
        let claims = asked.iter().map(|a| v1beta1::Claim {
            namespace: a.claim.namespace.clone(),
            uid: a.claim.uid.clone(),
            name: a.claim.name.clone(),
        });
        let request = v1beta1::NodePrepareResourcesRequest {
            claims: claims.collect(),
        };
        let call = limited(limit, request, |r| client.node_prepare_resources(r));
        let device = |d: v1beta1::Device| PreparedDevice {
            requests: d.request_names,
            pool: d.pool_name,
            device: d.device_name,
            cdi: d.cdi_device_ids,
            share: None,
        };
        let answers = call.await?.claims.into_iter();
        Ok(answers
            .map(|(uid, a)| (uid, result(&a.error, a.devices.into_iter().map(device))))
            .collect())
    }

    async fn prepare_classic(
        &self,
        asked: &Asked,
        limit: Duration,
    ) -> Result<Vec<PreparedDevice>, Status> {
        let channel = self.connection().await?;
        let (claim, handle) = (&asked.claim, asked.handle.clone().unwrap_or_default());
        let mut client = v1alpha1::node_client::NodeClient::new(channel.clone());
        let request = v1alpha1::NodePrepareResourceRequest {
            namespace: claim.namespace.clone(),
            claim_uid: claim.uid.clone(),
            claim_name: claim.name.clone(),
            resource_handle: handle.clone(),
        };
        let first = limited(limit, request, |r| client.node_prepare_resource(r)).await;
        let cdi = match first {
            // Both releases announce the same version; only the call tells.
            Err(status) if status.code() == Code::Unimplemented => {
                let mut client = v1alpha2::node_client::NodeClient::new(channel);
                let request = v1alpha2::NodePrepareResourceRequest {
                    namespace: claim.namespace.clone(),
                    claim_uid: claim.uid.clone(),
                    claim_name: claim.name.clone(),
                    resource_handle: handle,
                };
                let second = limited(limit, request, |r| client.node_prepare_resource(r));
                second.await?.cdi_devices
            }
            answer => answer?.cdi_devices,
        };
        let devices = vec![PreparedDevice {
            cdi,
            ..PreparedDevice::default()
        }];
        kept(devices).map_err(Status::internal)
    }

    /// Undoes claims.
    pub(super) async fn unprepare(
        &self,
        asked: &[Asked],
        limit: Duration,
    ) -> Result<BTreeMap<String, Result<(), String>>, Error> {
        let begun = Instant::now();
        let answer = match self.offer.service {
            Service::V1 => self.unprepare_v1(asked, limit).await,
            Service::V1beta1 => self.unprepare_v1beta1(asked, limit).await,
            Service::Classic => {
                let each = asked.iter().map(async |a| {
                    let answer = self.unprepare_classic(a, limit).await;
                    (a.claim.uid.clone(), answer.map_err(|s| text(&s)))
                });
                Ok(futures::future::join_all(each).await.into_iter().collect())
            }
        };
        self.called(UNPREPARE, begun, answer)
    }

    fn called<T>(
        &self,
        method: &'static str,
        begun: Instant,
        answer: Result<T, Status>,
    ) -> Result<T, Error> {
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.metrics
            .call(&self.driver, method, code, begun.elapsed());
        answer.map_err(|status| Error::Call {
            method,
            cause: text(&status),
        })
    }

    async fn unprepare_v1(
        &self,
        asked: &[Asked],
        limit: Duration,
    ) -> Result<BTreeMap<String, Result<(), String>>, Status> {
        let mut client = v1::dra_plugin_client::DraPluginClient::new(self.connection().await?);
        let claims = asked.iter().map(|a| v1::Claim {
            namespace: a.claim.namespace.clone(),
            uid: a.claim.uid.clone(),
            name: a.claim.name.clone(),
        });
        let request = v1::NodeUnprepareResourcesRequest {
            claims: claims.collect(),
        };
        let call = limited(limit, request, |r| client.node_unprepare_resources(r));
        let answers = call.await?.claims.into_iter();
        Ok(answers.map(|(uid, a)| (uid, undone(&a.error))).collect())
    }

    async fn unprepare_v1beta1(
        &self,
        asked: &[Asked],
        limit: Duration,
    ) -> Result<BTreeMap<String, Result<(), String>>, Status> {
        let mut client = v1beta1::dra_plugin_client::DraPluginClient::new(self.connection().await?);
        let claims = asked.iter().map(|a| v1beta1::Claim {
            namespace: a.claim.namespace.clone(),
            uid: a.claim.uid.clone(),
            name: a.claim.name.clone(),
        });
        let request = v1beta1::NodeUnprepareResourcesRequest {
            claims: claims.collect(),
        };
        let call = limited(limit, request, |r| client.node_unprepare_resources(r));
        let answers = call.await?.claims.into_iter();
        Ok(answers.map(|(uid, a)| (uid, undone(&a.error))).collect())
    }

    async fn unprepare_classic(&self, asked: &Asked, limit: Duration) -> Result<(), Status> {
        let channel = self.connection().await?;
        let claim = &asked.claim;
        let mut client = v1alpha1::node_client::NodeClient::new(channel.clone());
        let request = v1alpha1::NodeUnprepareResourceRequest {
            namespace: claim.namespace.clone(),
            claim_uid: claim.uid.clone(),
            claim_name: claim.name.clone(),
            cdi_devices: asked.cdi.clone(),
        };
        let first = limited(limit, request, |r| client.node_unprepare_resource(r)).await;
        match first {
            Err(status) if status.code() == Code::Unimplemented => {
                let mut client = v1alpha2::node_client::NodeClient::new(channel);
                let request = v1alpha2::NodeUnprepareResourceRequest {
                    namespace: claim.namespace.clone(),
                    claim_uid: claim.uid.clone(),
                    claim_name: claim.name.clone(),
                    resource_handle: asked.handle.clone().unwrap_or_default(),
                };
                let second = limited(limit, request, |r| client.node_unprepare_resource(r));
                second.await.map(|_| ())
            }
            answer => answer.map(|_| ()),
        }
    }
}

fn result(
    error: &str,
    devices: impl Iterator<Item = PreparedDevice>,
) -> Result<Vec<PreparedDevice>, String> {
    if error.is_empty() {
        kept(devices.collect())
    } else {
        Err(shortened(error))
    }
}

fn undone(error: &str) -> Result<(), String> {
    if error.is_empty() {
        Ok(())
    } else {
        Err(shortened(error))
    }
}

/// What a driver may say of one claim's devices, in bytes with [`PLACE`] for each text and device. It stays in the allocation
/// log as long as the claim is in use, and stands in what podresources tells of all pods, which has a size.
const MOST: usize = 128 << 10;
const PLACE: usize = 16;
/// Bytes of what a driver says that are passed on.
const SHOWN: usize = 1024;

/// The devices, if they can be kept.
fn kept(devices: Vec<PreparedDevice>) -> Result<Vec<PreparedDevice>, String> {
    let mut bytes = 0_usize;
    for device in &devices {
        bytes += PLACE;
        let names = [&device.pool, &device.device].into_iter();
        let names = names.chain(&device.requests).chain(&device.cdi);
        for text in names.chain(&device.share) {
            bytes += PLACE + text.len();
            if text.contains(char::is_control) {
                let text = shortened(text);
                return Err(format!(
                    "the driver's answer has a name with control characters: {text:?}"
                ));
            }
        }
        if bytes > MOST {
            return Err(format!(
                "the driver's answer about the claim's devices is longer than {MOST} bytes"
            ));
        }
    }
    Ok(devices)
}

/// The beginning of what a driver says.
fn shortened(text: &str) -> String {
    match text.floor_char_boundary(SHOWN) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

async fn limited<Q, A, F>(
    limit: Duration,
    request: Q,
    send: impl FnOnce(Request<Q>) -> F,
) -> Result<A, Status>
where
    F: Future<Output = Result<tonic::Response<A>, Status>>,
{
    let mut request = Request::new(request);
    request.set_timeout(limit + Duration::from_millis(500));
    match tokio::time::timeout(limit, send(request)).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}

/// As grpc-go prints it.
fn text(status: &Status) -> String {
    let code = match status.code() {
        Code::DeadlineExceeded => "DeadlineExceeded".to_owned(),
        code => format!("{code:?}"),
    };
    let said = shortened(status.message());
    format!("rpc error: code = {code} desc = {said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It would have been in the log, and kept podresources from answering about any pod.
    #[test]
    fn what_is_kept_of_an_answer_has_a_size() {
        let device = |cdi: Vec<String>| PreparedDevice {
            requests: vec!["gpu".to_owned()],
            pool: "node".to_owned(),
            device: "gpu-0".to_owned(),
            cdi,
            share: None,
        };
        let answer = |devices: Vec<PreparedDevice>| result("", devices.into_iter());
        let usual = vec![device(vec!["vendor.example/class=claim-uid-gpu-0".to_owned(); 8]); 32];
        assert_eq!(answer(usual.clone()).unwrap().len(), 32);
        for hostile in [
            vec![device(vec!["c".repeat(1 << 20)])],
            vec![device(vec![String::new(); 1 << 16])],
            vec![device(Vec::new()); 1 << 16],
            vec![device(vec!["vendor.example/class=\u{1b}[2J".to_owned()])],
        ] {
            let fault = answer(hostile).unwrap_err();
            assert!(fault.len() < 400 && !fault.contains('\u{1b}'), "{fault}");
        }
        assert!(
            result(&"e".repeat(1 << 20), usual.into_iter())
                .unwrap_err()
                .len()
                < 1100
        );
    }

    #[test]
    fn item_102_the_first_known_service_counts() {
        let offer = |versions: &[&str]| {
            Offer::of(&versions.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>())
        };
        let both = offer(&["v1beta1.DRAPlugin", "v1.DRAPlugin"]).unwrap();
        assert_eq!(both.service, Service::V1beta1);
        let new = offer(&["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]).unwrap();
        assert_eq!(
            (new.service, new.health),
            (Service::V1, Some(Health::V1alpha1))
        );
        assert_eq!(offer(&["1.0.0"]).unwrap().service, Service::Classic);
        assert_eq!(
            offer(&[]).unwrap_err(),
            "empty list of supported gRPC services (aka supported versions)"
        );
        assert_eq!(
            offer(&["v9.DRAPlugin", "x"]).unwrap_err(),
            "none of services supported by the plugin ([\"v9.DRAPlugin\" \"x\"]) are supported by \
             the kubelet ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\" \"1.0.0\"])"
        );
    }
}
