//! Whom names of others are asked of: the machine's own servers, and those that the ConfigMap `kube-system/kube-dns` names, as
//! kube-dns read it (spec network.md 6.7 rule 6).

use davit_client::{Informer, Subscription};
use davit_dns::{Forwarder, Upstreams, resolv_conf};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
const PORT: u16 = 53;
/// Between looks at the file of the machine's own servers.
const LOOK: Duration = Duration::from_secs(10);

/// Follows the ConfigMap.
pub(crate) fn settings(
    client: &kube::Client,
    tasks: &mut JoinSet<()>,
    cancel: &CancellationToken,
) -> Informer<ConfigMap> {
    let own = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let maps = Api::namespaced(client.clone(), NAMESPACE);
    Informer::spawn(maps, own, tasks, cancel.clone())
}

/// What the ConfigMap says that cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingsError {
    /// It is something else than JSON of the form that there is to be.
    #[error("{key}: expected {form}: {why}")]
    Form {
        key: &'static str,
        form: &'static str,
        why: String,
    },
    /// A server is no address.
    #[error("{key}: {server:?} is no address (IP or IP:PORT)")]
    Server { key: &'static str, server: String },
}

/// What the ConfigMap says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Settings {
    /// Servers of domains.
    stubs: HashMap<String, Vec<SocketAddr>>,
    /// Servers in the place of the machine's own.
    default: Option<Vec<SocketAddr>>,
}

impl Settings {
    fn read(map: &ConfigMap) -> Result<Self, SettingsError> {
        let text = |key: &str| {
            let text = map.data.as_ref()?.get(key)?;
            Some(text.as_str()).filter(|text| !text.trim().is_empty())
        };
        let key = "stubDomains";
        let stubs: HashMap<String, Vec<String>> = match text(key) {
            None => HashMap::new(),
            Some(text) => {
                let form = "a JSON object of lists of addresses";
                serde_json::from_str(text).map_err(|error| form_error(key, form, &error))?
            }
        };
        let stubs = stubs.into_iter().map(|(domain, servers)| {
            let servers = addresses(key, &servers)?;
            Ok((domain, servers))
        });
        let stubs = stubs.collect::<Result<_, _>>()?;
        let key = "upstreamNameservers";
        let default: Option<Vec<String>> = match text(key) {
            None => None,
            Some(text) => {
                let form = "a JSON list of addresses";
                serde_json::from_str(text).map_err(|error| form_error(key, form, &error))?
            }
        };
        let default = default.map(|servers| addresses(key, &servers));
        Ok(Self {
            stubs,
            default: default.transpose()?,
        })
    }
}

fn form_error(key: &'static str, form: &'static str, error: &serde_json::Error) -> SettingsError {
    SettingsError::Form {
        key,
        form,
        why: error.to_string(),
    }
}

fn addresses(key: &'static str, servers: &[String]) -> Result<Vec<SocketAddr>, SettingsError> {
    let address = |server: &String| {
        let bare = server.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
        bare.or_else(|_| server.parse()).map_err(|_| {
            let server = server.clone();
            SettingsError::Server { key, server }
        })
    };
    servers.iter().map(address).collect()
}

/// Whom names of others are asked of.
pub(super) struct Others {
    resolv_conf: PathBuf,
    maps: Subscription<ConfigMap>,
    settings: Settings,
}

impl Others {
    pub(super) fn new(resolv_conf: PathBuf, maps: Subscription<ConfigMap>) -> Self {
        Self {
            resolv_conf,
            maps,
            settings: Settings::default(),
        }
    }

    /// Keeps the forwarder of the server at these addresses to it, without end. What cannot be done is said, and things stay as
    /// they are.
    pub(super) async fn follow(mut self, forwarder: &Forwarder, own: &[IpAddr]) {
        let mut known = Upstreams::default();
        loop {
            let found = self.upstreams(own);
            if found != known {
                if let Err(error) = forwarder.configure(&found) {
                    tracing::error!(%error, "DNS for pods: servers of other names");
                }
                known = found;
            }
            tokio::select! {
                Some(change) = self.maps.next() => self.see(change),
                () = tokio::time::sleep(LOOK) => {}
            }
            while let Some(change) = self.maps.try_next() {
                self.see(change);
            }
        }
    }

    fn see(&mut self, change: davit_client::Change<ConfigMap>) {
        let map = match change {
            davit_client::Change::Applied { new, .. } => new,
            davit_client::Change::Deleted(_) => {
                self.settings = Settings::default();
                return;
            }
            davit_client::Change::Synced => return,
        };
        match Settings::read(&map) {
            Ok(settings) => self.settings = settings,
            Err(error) => tracing::error!(%error, "ConfigMap {NAMESPACE}/{NAME}"),
        }
    }

    fn upstreams(&self, own: &[IpAddr]) -> Upstreams {
        let default = self.settings.default.clone();
        Upstreams {
            default: default.unwrap_or_else(|| self.of_machine(own)),
            stubs: self.settings.stubs.clone(),
        }
    }

    /// The machine's own servers. Where it has none, other names are not known.
    fn of_machine(&self, own: &[IpAddr]) -> Vec<SocketAddr> {
        let servers = resolv_conf::read(&self.resolv_conf);
        let servers = servers.unwrap_or_else(|error| {
            tracing::debug!(%error, "DNS for pods: no servers of other names");
            Vec::new()
        });
        // The cluster's own address leads here.
        let others = servers
            .into_iter()
            .filter(|server| !own.contains(&server.ip()));
        others.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(data: serde_json::Value) -> Result<Settings, SettingsError> {
        Settings::read(&serde_json::from_value(json!({ "data": data })).unwrap())
    }

    #[test]
    fn stub_domains_and_upstreams() {
        let said = read(json!({
            "stubDomains": r#"{"corp.example": ["10.1.2.3:5353", "10.1.2.4"], "v6.example": ["fd00::1"]}"#,
            "upstreamNameservers": r#"["10.9.9.9", "[fd00::2]:54"]"#,
        }))
        .unwrap();
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let corp = [address("10.1.2.3:5353"), address("10.1.2.4:53")];
        assert_eq!(said.stubs["corp.example"], corp);
        assert_eq!(said.stubs["v6.example"], [address("[fd00::1]:53")]);
        let default = [address("10.9.9.9:53"), address("[fd00::2]:54")];
        assert_eq!(said.default.as_deref(), Some(&default[..]));
        for empty in [json!({}), json!({ "stubDomains": " ", "other": "x" })] {
            assert_eq!(read(empty), Ok(Settings::default()));
        }
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        for (data, words) in [
            (
                json!({ "stubDomains": "[]" }),
                "stubDomains: expected a JSON object",
            ),
            (
                json!({ "stubDomains": r#"{"a.example": ["ns.example"]}"# }),
                "stubDomains: \"ns.example\" is no address",
            ),
            (
                json!({ "upstreamNameservers": "10.0.0.1" }),
                "upstreamNameservers: expected a JSON list",
            ),
        ] {
            let error = read(data).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
