//! The `clientConfig` of webhook configurations and custom resource conversions.

use base64::Engine as _;
use std::sync::Arc;

use http::Uri;
use serde_json::Value;

use super::ServiceEndpoints;
use super::client::{CallError, Settings};
use super::credentials::HostCredentials;
use super::dial::Dial;
use crate::tls::Trust;

const HTTPS: u16 = 443;

/// A service by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceReference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The service's port.
    pub port: u16,
    /// The path called.
    pub path: String,
}

impl ServiceReference {
    /// `{name}.{namespace}.svc`, the name its certificate must have.
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

/// A service or a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// A service of the cluster.
    Service(ServiceReference),
    /// Anything with an address.
    Url(String),
}

/// Whom to call and whom to believe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientConfig {
    /// Whom to call.
    pub target: Target,
    /// Whom to believe.
    pub trust: Trust,
}

impl ClientConfig {
    /// Reads `clientConfig`: `url` or `service` (port 443 unless given), `caBundle` in base64.
    ///
    /// # Errors
    /// When neither or both are there, or the bundle is no base64 text.
    pub fn from_value(value: &Value) -> Result<Self, CallError> {
        let config = |text: &str| CallError::Config(text.to_owned());
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let url = value["url"].as_str();
        let service = value.get("service").filter(|service| service.is_object());
        let target = match (url, service) {
            (Some(url), None) => Target::Url(url.to_owned()),
            (None, Some(service)) => Target::Service(ServiceReference {
                namespace: text(service, "namespace"),
                name: text(service, "name"),
                port: service["port"]
                    .as_u64()
                    .and_then(|port| u16::try_from(port).ok())
                    .filter(|port| *port != 0)
                    .unwrap_or(HTTPS),
                path: text(service, "path"),
            }),
            _ => return Err(config("exactly one of url or service is required")),
        };
        let trust = match value["caBundle"].as_str().filter(|text| !text.is_empty()) {
            None => Trust::System,
            Some(encoded) => {
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(encoded)
                    .map_err(|_| config("caBundle is not base64"))?;
                let pem = String::from_utf8(bytes).map_err(|_| {
                    config("unable to load root certificates: unable to parse bytes as PEM block")
                })?;
                Trust::Authorities(pem)
            }
        };
        Ok(Self { target, trust })
    }

    pub(super) fn settings(
        &self,
        services: &Arc<dyn ServiceEndpoints>,
        credentials: Option<&HostCredentials>,
    ) -> Result<Settings, CallError> {
        let (base, dial, server_name, host) = match &self.target {
            Target::Service(service) => {
                let host = service.host();
                let base = format!(
                    "https://{host}:{}{}",
                    service.port,
                    clean_path(&service.path)
                );
                let dial = Dial::Service {
                    services: Arc::clone(services),
                    namespace: service.namespace.clone(),
                    name: service.name.clone(),
                    port: service.port,
                };
                (
                    base,
                    dial,
                    Some(host.clone()),
                    format!("{host}:{}", service.port),
                )
            }
            Target::Url(url) => {
                let parsed: Uri = url
                    .parse()
                    .map_err(|error| CallError::Config(format!("parse {url:?}: {error}")))?;
                let host = parsed
                    .authority()
                    .map_or(String::new(), |authority| authority.as_str().to_owned());
                if host.is_empty() || parsed.scheme().is_none() {
                    return Err(CallError::Config(format!("{url:?} is not an absolute URL")));
                }
                let host = if parsed.port_u16().is_none() {
                    format!("{host}:{HTTPS}")
                } else {
                    host
                };
                let scheme = parsed.scheme_str().unwrap_or_default();
                let authority = parsed.authority().map_or("", |a| a.as_str());
                let base = format!("{scheme}://{authority}{}", clean_path(parsed.path()));
                (base, Dial::Direct, None, host)
            }
        };
        let base: Uri = base
            .parse()
            .map_err(|error| CallError::Config(format!("parse {base:?}: {error}")))?;
        let (credentials, own_trust) = credentials
            .and_then(|held| held.for_host(&host))
            .unwrap_or_default();
        let trust = match (&self.trust, own_trust) {
            (Trust::System, Some(trust)) => trust,
            (trust, _) => trust.clone(),
        };
        Ok(Settings {
            base,
            dial,
            trust,
            server_name,
            credentials,
        })
    }
}

/// A path without empty, `.` and `..` segments, as client-go calls it.
fn clean_path(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_has_a_port_a_path_and_a_name() {
        let config = ClientConfig::from_value(&json!({
            "service": { "namespace": "ns", "name": "hook", "path": "/x" },
            "caBundle": "eA==",
        }))
        .unwrap();
        let Target::Service(service) = &config.target else {
            panic!("{config:?}");
        };
        assert_eq!((service.port, service.path.as_str()), (443, "/x"));
        assert_eq!(service.host(), "hook.ns.svc");
        assert_eq!(config.trust, Trust::Authorities("x".to_owned()));
        assert!(ClientConfig::from_value(&json!({})).is_err());
    }
}
