//! KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1), as kubeadm writes it (spec network.md 3.7).

use crate::protection::duration;
use crate::proxy_flags::BindAddress;
use anyhow::{Context, Result, anyhow, bail};
use davit_netplan::{Family, Network};
use davit_network::{ConntrackLimits, LocalPods, NodePortAddresses, ProxyAlone, ProxyOptions};
use serde::Deserialize;
use serde_json::Value;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";
/// Kube-proxy's defaults.
const HEALTHZ: &str = "0.0.0.0:10256";
const METRICS: &str = "127.0.0.1:10249";

/// Fields that have an effect.
const IN_FORCE: [&str; 19] = [
    "apiVersion",
    "kind",
    "mode",
    "clusterCIDR",
    "detectLocalMode",
    "hostnameOverride",
    "healthzBindAddress",
    "metricsBindAddress",
    "nodePortAddresses",
    "clientConnection.kubeconfig",
    "conntrack.maxPerCore",
    "conntrack.min",
    "conntrack.tcpBeLiberal",
    "conntrack.tcpCloseWaitTimeout",
    "conntrack.tcpEstablishedTimeout",
    "conntrack.udpStreamTimeout",
    "conntrack.udpTimeout",
    "iptables.masqueradeAll",
    "nftables.masqueradeAll",
];
/// The other fields that there are.
const WITHOUT_EFFECT: [&str; 17] = [
    "bindAddress",
    "bindAddressHardFail",
    "clientConnection",
    "configSyncPeriod",
    "conntrack",
    "detectLocal",
    "enableProfiling",
    "featureGates",
    "iptables",
    "ipvs",
    "logging",
    "nftables",
    "oomScoreAdj",
    "portRange",
    "showHiddenMetricsForVersion",
    "windowsRunAsService",
    "winkernel",
];

/// What of the configuration has an effect, and the names of the fields that are given and have none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct KubeProxyConfiguration {
    pub(crate) mode: String,
    #[serde(rename = "clusterCIDR")]
    pub(crate) cluster_cidr: String,
    pub(crate) detect_local_mode: String,
    pub(crate) hostname_override: String,
    healthz_bind_address: String,
    metrics_bind_address: String,
    pub(crate) node_port_addresses: Option<Vec<String>>,
    pub(crate) client_connection: Connection,
    pub(crate) iptables: Rules,
    pub(crate) nftables: Rules,
    conntrack: Conntrack,
    /// Given, and without effect.
    #[serde(skip)]
    pub(crate) ignored: Vec<String>,
}

/// How the API server is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Connection {
    pub(crate) kubeconfig: String,
}

/// What is the same for all kinds of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rules {
    pub(crate) masquerade_all: bool,
}

/// Limits of the kernel's memory of connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Conntrack {
    max_per_core: Option<i32>,
    min: Option<i32>,
    tcp_be_liberal: Option<bool>,
    tcp_established_timeout: Option<String>,
    tcp_close_wait_timeout: Option<String>,
    udp_timeout: Option<String>,
    udp_stream_timeout: Option<String>,
}

impl Conntrack {
    fn limits(&self) -> Result<ConntrackLimits> {
        let usual = ConntrackLimits::default();
        let number = |field: &'static str, given: Option<i32>, usual| match given.map(u32::try_from)
        {
            None => Ok(usual),
            Some(Ok(number)) => Ok(number),
            Some(Err(_)) => bail!("{field}: must be greater than or equal to 0"),
        };
        let time = |field: &'static str, given: &Option<String>, usual| match given {
            None => Ok(usual),
            Some(text) => duration(text).map_err(|error| anyhow!("{field}: {text:?} {error}")),
        };
        Ok(ConntrackLimits {
            max_per_core: number("maxPerCore", self.max_per_core, usual.max_per_core)?,
            min: number("min", self.min, usual.min)?,
            exact: self.max_per_core.is_some() || self.min.is_some(),
            tcp_established: time(
                "tcpEstablishedTimeout",
                &self.tcp_established_timeout,
                usual.tcp_established,
            )?,
            tcp_close_wait: time(
                "tcpCloseWaitTimeout",
                &self.tcp_close_wait_timeout,
                usual.tcp_close_wait,
            )?,
            tcp_be_liberal: self.tcp_be_liberal.unwrap_or_default(),
            udp: time("udpTimeout", &self.udp_timeout, usual.udp)?,
            udp_stream: time(
                "udpStreamTimeout",
                &self.udp_stream_timeout,
                usual.udp_stream,
            )?,
        })
    }
}

/// Whether a field says as much as one that is not there.
fn is_nothing(path: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => {
            text.is_empty() || text == "0s" || (path == "bindAddress" && text == "0.0.0.0")
        }
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) => false,
    }
}

/// Collects the paths of the fields that say something and have no effect.
fn collect(path: &str, value: &Value, ignored: &mut Vec<String>) {
    if IN_FORCE.contains(&path) || is_nothing(path, value) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                collect(&format!("{path}.{name}"), value, ignored);
            }
        }
        _ => ignored.push(path.to_owned()),
    }
}

impl KubeProxyConfiguration {
    /// Reads YAML or JSON.
    ///
    /// # Errors
    /// Another kind, and fields that there are not.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let document: Value = serde_saphyr::from_str(text)?;
        let fields = document.as_object().context("not an object")?;
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        if (text("apiVersion"), text("kind")) != (API_VERSION, KIND) {
            let (version, kind) = (text("apiVersion"), text("kind"));
            bail!("expected {KIND} of {API_VERSION}, not {kind:?} of {version:?}");
        }
        let mut ignored = Vec::new();
        for (name, value) in fields {
            let name = name.as_str();
            if !IN_FORCE.contains(&name) && !WITHOUT_EFFECT.contains(&name) {
                bail!("unknown field {name:?}");
            }
            collect(name, value, &mut ignored);
        }
        // What is null is as not given.
        let given = fields.iter().filter(|(_, value)| !value.is_null());
        let given = given.map(|(name, value)| (name.clone(), value.clone()));
        let read: Self = serde_json::from_value(Value::Object(given.collect()))?;
        Ok(Self { ignored, ..read })
    }

    /// The proxy of the node of this name.
    ///
    /// # Errors
    /// Modes that are not built, and texts that are no addresses.
    pub(crate) fn proxy(&self, node: String) -> Result<ProxyAlone> {
        let rules = match self.mode.as_str() {
            "nftables" => &self.nftables,
            "" | "iptables" => {
                tracing::info!("the proxy's mode is nftables, whatever is called iptables");
                &self.iptables
            }
            other => bail!("mode {other:?} is not built: there are nftables and iptables"),
        };
        let address = |text: &str, usual: &str, parse: fn(&str) -> Result<BindAddress, String>| {
            let text = if text.is_empty() { usual } else { text };
            parse(text).map_err(|error| anyhow!("{text:?}: {error}"))
        };
        let healthz = address(&self.healthz_bind_address, HEALTHZ, BindAddress::healthz);
        let metrics = address(&self.metrics_bind_address, METRICS, BindAddress::metrics);
        Ok(ProxyAlone {
            node,
            proxy: ProxyOptions {
                node_ports: self.node_ports().context("nodePortAddresses")?,
                healthz: healthz.context("healthzBindAddress")?.0,
                metrics: metrics.context("metricsBindAddress")?.0,
                conntrack: self.conntrack.limits().context("conntrack")?,
            },
            pods: self.pods()?,
            masquerade_all: rules.masquerade_all,
        })
    }

    fn node_ports(&self) -> Result<NodePortAddresses> {
        let words = self.node_port_addresses.clone().unwrap_or_default();
        if words.is_empty() && self.mode != "nftables" {
            // as in that mode of kube-proxy
            return Ok(NodePortAddresses::Within(
                Family::ALL.map(Family::everything).into(),
            ));
        }
        Ok(NodePortAddresses::parse(&words)?)
    }

    fn pods(&self) -> Result<LocalPods> {
        let ranges = self.cluster_cidr.split(',').map(str::trim);
        let ranges = ranges.filter(|range| !range.is_empty()).map(str::to_owned);
        let ranges: Vec<String> = ranges.collect();
        match self.detect_local_mode.as_str() {
            "NodeCIDR" => Ok(LocalPods::OfNode),
            "" | "ClusterCIDR" if ranges.is_empty() => {
                tracing::warn!("without clusterCIDR nothing is masqueraded on the way to Services");
                Ok(LocalPods::Unknown)
            }
            "" | "ClusterCIDR" => {
                let ranges = ranges.iter().map(|range| range.parse::<Network>());
                let ranges: Result<_, _> = ranges.collect();
                Ok(LocalPods::Within(ranges.context("clusterCIDR")?))
            }
            other => {
                bail!("detectLocalMode {other:?} is not built: there are ClusterCIDR and NodeCIDR")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kubeadm 1.36 writes it, cut where parts are alike.
    const KUBEADM: &str = r#"
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  scheduler: ""
  strictARP: false
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
"#;

    #[test]
    fn a_file_of_kubeadm() {
        let file = KubeProxyConfiguration::parse(KUBEADM).unwrap();
        let connection = &file.client_connection.kubeconfig;
        assert_eq!(connection, "/var/lib/kube-proxy/kubeconfig.conf");
        assert_eq!(file.ignored, ["logging.options.json.infoBufferSize"]);
        let proxy = file.proxy("n".to_owned()).unwrap();
        assert_eq!(proxy.proxy.healthz, HEALTHZ.parse().ok());
        assert_eq!(proxy.proxy.metrics, METRICS.parse().ok());
        assert_eq!(
            proxy.pods,
            LocalPods::Within(["10.244.0.0/16".parse().unwrap()].into())
        );
        assert!(!proxy.masquerade_all);
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let text = KUBEADM
            .replace("portRange: \"\"", "portRange: 1-2")
            .replace(
                "oomScoreAdj: null",
                "oomScoreAdj: -999\nfeatureGates: {A: true}",
            );
        let mut named = KubeProxyConfiguration::parse(&text).unwrap().ignored;
        named.sort();
        let options = "logging.options.json.infoBufferSize";
        assert_eq!(
            named,
            ["featureGates.A", options, "oomScoreAdj", "portRange"]
        );
    }

    #[test]
    fn what_is_not_built_is_refused() {
        let fault = |from: &str, to: &str| {
            let file = KubeProxyConfiguration::parse(&KUBEADM.replace(from, to));
            let proxy = file.and_then(|file| file.proxy("n".to_owned()));
            proxy.map_or_else(|error| format!("{error:#}"), |_| String::new())
        };
        for (from, to, words) in [
            ("mode: \"\"", "mode: ipvs", "mode \"ipvs\" is not built"),
            ("mode: \"\"", "mode: kernelspace", "not built"),
            (
                "detectLocalMode: \"\"",
                "detectLocalMode: BridgeInterface",
                "not built",
            ),
            ("portRange", "portrange", "unknown field \"portrange\""),
            (
                "kind: Kube",
                "kind: Cube",
                "expected KubeProxyConfiguration",
            ),
            ("10.244.0.0/16", "10.244.0.0", "clusterCIDR"),
            (
                "healthzBindAddress: \"\"",
                "healthzBindAddress: x",
                "healthzBindAddress",
            ),
            (
                "min: null",
                "min: -1",
                "conntrack: min: must be greater than or equal to 0",
            ),
            (
                "udpTimeout: 0s",
                "udpTimeout: -1s",
                "conntrack: udpTimeout: \"-1s\" is negative",
            ),
            ("udpTimeout: 0s", "udpTimeout: 1m2", "conntrack"),
            (
                "nodePortAddresses: null",
                "nodePortAddresses: [x]",
                "nodePortAddresses",
            ),
        ] {
            assert!(fault(from, to).contains(words), "{}", fault(from, to));
        }
    }

    #[test]
    fn other_words() {
        let proxy = |changes: &[(&str, &str)]| {
            let mut text = KUBEADM.to_owned();
            for (from, to) in changes {
                text = text.replace(from, to);
            }
            let file = KubeProxyConfiguration::parse(&text).unwrap();
            file.proxy("n".to_owned()).unwrap()
        };
        let nftables = ("mode: \"\"", "mode: nftables");
        assert_eq!(
            proxy(&[nftables]).proxy.node_ports,
            NodePortAddresses::Primary
        );
        let all = NodePortAddresses::Within(Family::ALL.map(Family::everything).into());
        assert_eq!(proxy(&[]).proxy.node_ports, all);
        let dual = ("10.244.0.0/16", "10.244.0.0/16,fd00:10::/56");
        let LocalPods::Within(ranges) = proxy(&[dual]).pods else {
            panic!("ranges expected")
        };
        assert_eq!(ranges.len(), 2, "one of each family");
        let node = ("detectLocalMode: \"\"", "detectLocalMode: NodeCIDR");
        assert_eq!(proxy(&[node]).pods, LocalPods::OfNode);
        let all = ("masqueradeAll: false", "masqueradeAll: true");
        assert!(proxy(&[all]).masquerade_all);
        // Null is as not given, and so is what kubeadm leaves out.
        assert_eq!(proxy(&[]).proxy.conntrack, ConntrackLimits::default());
        let limits = proxy(&[
            ("maxPerCore: null", "maxPerCore: 0"),
            ("tcpCloseWaitTimeout: null", "tcpCloseWaitTimeout: 1h30m"),
            ("tcpBeLiberal: false", "tcpBeLiberal: true"),
        ]);
        let limits = limits.proxy.conntrack;
        assert!(limits.exact && limits.max_per_core == 0 && limits.tcp_be_liberal);
        assert_eq!(limits.tcp_close_wait.as_secs(), 5400);
    }
}
