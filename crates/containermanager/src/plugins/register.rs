//! The conversation with one plugin that wants to be registered.

use std::path::{Path, PathBuf};
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as deviceplugin;
use davit_proto::pluginregistration::v1 as pb;
use davit_proto::pluginregistration::v1::registration_client::RegistrationClient;
use davit_proto::unix::{self, Address};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::Handlers;
use crate::devices::{Manager, check_name};
use crate::dra;

const DIAL: Duration = Duration::from_secs(10);
const GET_INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);

/// Bytes of what a plugin calls itself: longer than any name that is valid.
const LONGEST_NAME: usize = 400;
/// Bytes of the path of its socket, as long as any path.
const LONGEST_PATH: usize = 4096;
/// Versions that it may serve.
const MOST_VERSIONS: usize = 64;

/// Why a plugin was not registered.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegisterError {
    #[error(transparent)]
    Dial(#[from] unix::Error),
    #[error("{call} failed: {status}")]
    Call {
        call: &'static str,
        status: Box<Status>,
    },
    /// The plugin has been told so.
    #[error("{0}")]
    Refused(String),
}

/// Asks the plugin behind `socket` who it is, takes it into service and tells it the result.
pub(super) async fn register(handlers: &Handlers, socket: &Path) -> Result<(), RegisterError> {
    let address = Address::below(handlers.devices.root_dir(), socket);
    let mut client = RegistrationClient::new(unix::connect_once(address, DIAL).await?);
    let info = limited("GetInfo", GET_INFO, pb::InfoRequest {}, |r| {
        client.get_info(r)
    })
    .await?;
    let served = match overlong(&info) {
        // First of all: what is longer than any name would be logged and told, again and again.
        Some(fault) => Err(fault),
        None => {
            let (kind, name) = (&info.r#type, &info.name);
            tracing::info!(socket = %socket.display(), ?kind, ?name, "plugin asks for registration");
            serve(handlers, socket, &info).await
        }
    };
    match served {
        Ok(()) => {
            let told = notify(&mut client, true, String::new()).await;
            if told.is_err() {
                handlers.disconnect(socket);
            }
            told
        }
        Err(cause) => {
            let text = format!("RegisterPlugin error -- {cause}");
            if let Err(e) = notify(&mut client, false, text.clone()).await {
                tracing::debug!(socket = %socket.display(), error = %e, "plugin not told of its refusal");
            }
            Err(RegisterError::Refused(text))
        }
    }
}

/// What of a plugin's answer is longer than any plugin has reason to make it.
fn overlong(info: &pb::PluginInfo) -> Option<String> {
    let versions = &info.supported_versions;
    let fits = info.r#type.len() <= LONGEST_NAME
        && info.name.len() <= LONGEST_NAME
        && info.endpoint.len() <= LONGEST_PATH
        && versions.len() <= MOST_VERSIONS
        && versions.iter().all(|version| version.len() <= LONGEST_NAME);
    (!fits).then(|| {
        format!(
            "its type, name and versions may have {LONGEST_NAME} bytes each, its endpoint {LONGEST_PATH}, and there may be \
             {MOST_VERSIONS} versions"
        )
    })
}

async fn serve(handlers: &Handlers, socket: &Path, info: &pb::PluginInfo) -> Result<(), String> {
    match info.r#type.as_str() {
        pb::DEVICE_PLUGIN => {
            validate(info).map_err(|e| format!("plugin validation failed with err: {e}"))?;
            let (manager, endpoint) = (&handlers.devices, endpoint(socket, info));
            let connected =
                Manager::connect(manager, &info.name, &endpoint, Some(socket.to_owned())).await;
            connected.map_err(|e| format!("plugin registration failed with err: {e}"))
        }
        pb::DRA_PLUGIN => {
            let failed = |e: String| format!("plugin registration failed with err: {e}");
            let off = "dynamic resource allocation is off on this node";
            let dra = handlers
                .dra
                .as_ref()
                .ok_or_else(|| failed(off.to_owned()))?;
            let (endpoint, name) = (endpoint(socket, info), &info.name);
            let offer = validate_driver(info, &endpoint)
                .map_err(|e| format!("plugin validation failed with err: {e}"))?;
            let registered = dra::Manager::register(dra, name, endpoint, socket, offer);
            registered.await.map_err(failed)
        }
        pb::CSI_PLUGIN => {
            let csi = handlers.csi.as_ref().ok_or_else(|| {
                "plugin registration failed with err: CSI volumes are off on this node".to_owned()
            })?;
            let (endpoint, name) = (endpoint(socket, info), &info.name);
            csi.validate(name, &endpoint, socket, &info.supported_versions)
                .map_err(|e| format!("plugin validation failed with err: {e}"))?;
            let registered = csi.register(name, endpoint, socket, &info.supported_versions);
            registered
                .await
                .map_err(|e| format!("plugin registration failed with err: {e}"))
        }
        kind => Err(format!(
            "no handler registered for plugin type: {kind} at socket {}",
            socket.display()
        )),
    }
}

/// The socket of the plugin's service; its registration socket when it names none.
fn endpoint(socket: &Path, info: &pb::PluginInfo) -> PathBuf {
    let given = &info.endpoint;
    match given.strip_prefix("unix://").unwrap_or(given) {
        "" => socket.to_owned(),
        path => PathBuf::from(path),
    }
}

fn validate_driver(info: &pb::PluginInfo, endpoint: &Path) -> Result<dra::Offer, String> {
    if !is_driver_name(&info.name) {
        return Err(format!("invalid name of DRA driver {:?}", info.name));
    }
    dra::Offer::of(&info.supported_versions).map_err(|e| {
        format!(
            "invalid supported gRPC versions of DRA driver plugin {} at endpoint {}: {e}",
            info.name,
            endpoint.display()
        )
    })
}

/// Driver names are DNS subdomains of at most 63 characters.
fn is_driver_name(name: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        let label = label.as_bytes();
        label.first().is_some_and(|b| edge(*b))
            && label.last().is_some_and(|b| edge(*b))
            && label.iter().all(|b| edge(*b) || *b == b'-')
    };
    name.len() <= 63 && name.split('.').all(label)
}

fn validate(info: &pb::PluginInfo) -> Result<(), String> {
    if !info
        .supported_versions
        .iter()
        .any(|v| v == deviceplugin::VERSION)
    {
        return Err(format!(
            "manager version, {}, is not among plugin supported versions [{}]",
            deviceplugin::VERSION,
            info.supported_versions.join(" ")
        ));
    }
    check_name(&info.name).map_err(|e| format!("invalid name of device plugin socket: {e}"))
}

async fn notify(
    client: &mut RegistrationClient<Channel>,
    ok: bool,
    error: String,
) -> Result<(), RegisterError> {
    let status = pb::RegistrationStatus {
        plugin_registered: ok,
        error,
    };
    let call = limited("NotifyRegistrationStatus", NOTIFY, status, |r| {
        client.notify_registration_status(r)
    });
    call.await.map(|_| ())
}

async fn limited<Q, A, F>(
    call: &'static str,
    limit: Duration,
    request: Q,
    send: impl FnOnce(Request<Q>) -> F,
) -> Result<A, RegisterError>
where
    F: Future<Output = Result<tonic::Response<A>, Status>>,
{
    let mut request = Request::new(request);
    request.set_timeout(limit + Duration::from_millis(500));
    let answer = tokio::time::timeout(limit, send(request)).await;
    let answer = answer.unwrap_or_else(|_| {
        Err(Status::deadline_exceeded(format!(
            "no answer within {limit:?}"
        )))
    });
    match answer {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) => Err(RegisterError::Call {
            call,
            status: Box::new(status),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_than_any_name_is_not_looked_at() {
        let good = pb::PluginInfo {
            r#type: pb::DRA_PLUGIN.to_owned(),
            name: "gpu.example.com".to_owned(),
            endpoint: "/var/lib/kubelet/plugins/gpu/dra.sock".to_owned(),
            supported_versions: vec!["v1.DRAPlugin".to_owned()],
        };
        assert_eq!(overlong(&good), None);
        let attacks: [fn(&mut pb::PluginInfo); 5] = [
            |info| info.r#type = "t".repeat(1 << 20),
            |info| info.name = "n".repeat(1 << 20),
            |info| info.endpoint = "/e".repeat(1 << 20),
            |info| info.supported_versions = vec!["v".repeat(1 << 20)],
            |info| info.supported_versions = vec![String::new(); 1 << 20],
        ];
        for attack in attacks {
            let mut info = good.clone();
            attack(&mut info);
            assert!(overlong(&info).is_some_and(|fault| fault.len() < 400));
        }
    }
}
