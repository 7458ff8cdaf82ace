//! The node's resource managers on the command line, under the kubelet's flag names.

use anyhow::{Context, Result, bail};
use davit_admission::is_nodes_label;
use davit_api::features::Features;
use davit_api::field::Path;
use davit_api::labels::validate_labels;
use davit_node::host_rules::HostRules;
use davit_node::kubelet_config::KubeletConfig;
use davit_node::shutdown::Shutdown;
use davit_podimages::credentials::{self, CredentialOptions};
use davit_topology::Hardware;
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Node resources")]
pub(crate) struct KubeletFlags {
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show and divide the machine this file describes instead of the one at hand
    #[arg(long, value_name = "FILE")]
    machine_file: Option<PathBuf>,
    /// Labels of the node
    #[arg(long, value_name = "K=V,...")]
    node_labels: Option<String>,
    /// Addresses of the node [default: the one of the default route]
    #[arg(long, value_name = "IP,...", value_delimiter = ',')]
    node_ip: Vec<IpAddr>,
    /// Taints that the node is registered with
    #[arg(long, value_name = "KEY=VALUE:EFFECT,...")]
    register_with_taints: Option<String>,
    /// `cgroupfs` or `systemd`, for runtimes that do not say which they use (containerd before 2.0)
    #[arg(long, value_name = "DRIVER")]
    cgroup_driver: Option<String>,
    /// Where health is asked without TLS [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    healthz_bind_address: Option<String>,
    /// Port on which health is asked without TLS; 10248 is the kubelet's [default: none]
    #[arg(long, value_name = "N")]
    healthz_port: Option<u16>,
    /// Whether the node has its server with TLS, for logs, exec and metrics [default: true]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    enable_server: Option<bool>,
    /// Whether that executes in containers and shows logs [default: true]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    enable_debugging_handlers: Option<bool>,
    /// Port on which everybody is told, without TLS, of the node's pods and of what is used [default: none]
    #[arg(long, value_name = "N")]
    read_only_port: Option<u16>,
    /// Whether the agent makes its Node object; else it waits for somebody else's [default: true]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    register_node: Option<bool>,
    /// `spec.providerID` of the Node that is made
    #[arg(long, value_name = "ID")]
    provider_id: Option<String>,
    /// How often the node's status is computed [default: 10s]
    #[arg(long, value_name = "DURATION")]
    node_status_update_frequency: Option<String>,
    /// How many images the node's status names; -1 is all [default: 50]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    node_status_max_images: Option<i64>,
    /// Most pods on the node
    #[arg(long, value_name = "N")]
    max_pods: Option<u32>,
    /// Most pods for each CPU, within the most pods of the node [default: no limit]
    #[arg(long, value_name = "N")]
    pods_per_core: Option<u32>,
    /// Most processes and threads of a pod; no limit without (or -1)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pod_max_pids: Option<i64>,
    /// Refuse a machine that swaps [default: false]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    fail_swap_on: Option<bool>,
    /// Refuse a machine whose kernel is not set as the kubelet would set it [default: false]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    protect_kernel_defaults: Option<bool>,
    /// Whether limits of CPU are quotas of time [default: true]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    cpu_cfs_quota: Option<bool>,
    /// The time of which quotas are parts, 1ms to 1s [default: 100ms]
    #[arg(long, value_name = "DURATION")]
    cpu_cfs_quota_period: Option<String>,
    /// `oom_score_adj` of this process [default: as it is]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    oom_score_adj: Option<i64>,
    /// How many files this process may have open [default: as many as it may]
    #[arg(long, value_name = "N")]
    max_open_files: Option<i64>,
    /// memory=50%: of what pods of better classes request, what others may not have (gate QOSReserved)
    #[arg(long, value_name = "K=V,...")]
    qos_reserved: Option<String>,
    /// The cgroup that is held to --kube-reserved
    #[arg(long, value_name = "PATH")]
    kube_reserved_cgroup: Option<String>,
    /// The cgroup that is held to --system-reserved
    #[arg(long, value_name = "PATH")]
    system_reserved_cgroup: Option<String>,
    /// What is held to what the node leaves it: `pods` (the default), `system-reserved`, `kube-reserved`, each with
    /// `-compressible` for its weight of CPU alone, or `none`
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    enforce_node_allocatable: Option<Vec<String>>,
    /// Sysctls beyond the safe ones that pods may set, and beginnings of such with a `*`: kernel.msg*,net.core.somaxconn
    #[arg(long, value_name = "SYSCTL,...", value_delimiter = ',')]
    allowed_unsafe_sysctls: Vec<String>,
    /// Pull one image after the other [default: false]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    serialize_image_pulls: Option<bool>,
    /// How many images are pulled a second [default: no limit]
    #[arg(long, value_name = "N")]
    registry_qps: Option<i64>,
    /// How many at once, within that
    #[arg(long, value_name = "N")]
    registry_burst: Option<i64>,
    /// How many events are written a second [default: no limit]
    #[arg(long, value_name = "N")]
    event_qps: Option<i64>,
    /// How many at once, within that
    #[arg(long, value_name = "N")]
    event_burst: Option<i64>,
    /// How many requests a second go to the API server [default: no limit]
    #[arg(long, value_name = "N")]
    kube_api_qps: Option<i64>,
    /// How many at once, within that
    #[arg(long, value_name = "N")]
    kube_api_burst: Option<i64>,
    /// How often manifests of static pods are looked for, two seconds at most [default: 2s]
    #[arg(long, value_name = "DURATION")]
    file_check_frequency: Option<String>,
    /// `none` or `static`
    #[arg(long, value_name = "POLICY")]
    cpu_manager_policy: Option<String>,
    /// full-pcpus-only=true,...
    #[arg(long, value_name = "K=V,...")]
    cpu_manager_policy_options: Option<String>,
    /// How often CPU sets of running containers are looked at
    #[arg(long, value_name = "DURATION")]
    cpu_manager_reconcile_period: Option<String>,
    /// CPUs nobody gets, for example 0-1
    #[arg(long, value_name = "CPUS")]
    reserved_cpus: Option<String>,
    /// `None` or `Static`
    #[arg(long, value_name = "POLICY")]
    memory_manager_policy: Option<String>,
    /// Memory the system keeps on a NUMA node: 0:memory=1Gi,hugepages-2Mi=100Mi (repeatable)
    #[arg(long, value_name = "NODE:K=V,...")]
    reserved_memory: Vec<String>,
    /// `none`, `best-effort`, `restricted` or `single-numa-node`
    #[arg(long, value_name = "POLICY")]
    topology_manager_policy: Option<String>,
    /// `container` or `pod`
    #[arg(long, value_name = "SCOPE")]
    topology_manager_scope: Option<String>,
    /// prefer-closest-numa-nodes=true,max-allowable-numa-nodes=16
    #[arg(long, value_name = "K=V,...")]
    topology_manager_policy_options: Option<String>,
    /// cpu=500m,memory=1Gi: kept for the node agent
    #[arg(long, value_name = "K=V,...")]
    kube_reserved: Option<String>,
    /// cpu=500m,memory=1Gi: kept for the system
    #[arg(long, value_name = "K=V,...")]
    system_reserved: Option<String>,
    /// memory.available<100Mi,nodefs.available<10%: less than this and pods are evicted at once
    #[arg(long, value_name = "SIGNAL<AMOUNT,...")]
    eviction_hard: Option<String>,
    /// memory.available<300Mi: less than this for its grace period and pods are evicted
    #[arg(long, value_name = "SIGNAL<AMOUNT,...")]
    eviction_soft: Option<String>,
    /// memory.available=1m30s
    #[arg(long, value_name = "SIGNAL=DURATION,...")]
    eviction_soft_grace_period: Option<String>,
    /// imagefs.available=2Gi: got back beyond the threshold
    #[arg(long, value_name = "SIGNAL=AMOUNT,...")]
    eviction_minimum_reclaim: Option<String>,
    /// Most seconds a pod gets at a soft threshold
    #[arg(long, value_name = "SECONDS")]
    eviction_max_pod_grace_period: Option<i64>,
    /// How long a pressure condition stays on after it was last seen
    #[arg(long, value_name = "DURATION")]
    eviction_pressure_transition_period: Option<String>,
    /// Use of the images' disk from which on unused images go
    #[arg(long, value_name = "PERCENT")]
    image_gc_high_threshold: Option<u8>,
    /// Use of the images' disk at which that ends
    #[arg(long, value_name = "PERCENT")]
    image_gc_low_threshold: Option<u8>,
    /// How long pods have to end at SIGTERM, which then means that the machine goes down (0s: pods go on)
    #[arg(long, value_name = "DURATION")]
    shutdown_grace_period: Option<String>,
    /// Of it, what is kept for critical pods
    #[arg(long, value_name = "DURATION")]
    shutdown_grace_period_critical_pods: Option<String>,
    /// Ask for the certificate of the node's server by CertificateSigningRequest, which somebody has to approve
    /// (`serverTLSBootstrap`)
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    rotate_server_certificates: Option<bool>,
    /// CPUManagerPolicyAlphaOptions=true; those of the API as well, where the API server runs along
    #[arg(long, value_name = "K=V,...")]
    feature_gates: Option<String>,
    /// CredentialProviderConfig (kubelet.config.k8s.io/v1), a file or a directory of files
    #[arg(
        long,
        value_name = "FILE",
        requires = "image_credential_provider_bin_dir"
    )]
    image_credential_provider_config: Option<PathBuf>,
    /// Directory of the credential provider plugins
    #[arg(
        long,
        value_name = "DIR",
        requires = "image_credential_provider_config"
    )]
    image_credential_provider_bin_dir: Option<PathBuf>,
    /// How long a pod waits for a device plugin that is coming back, in seconds (0 refuses at once, as the kubelet does)
    #[arg(long, value_name = "SECONDS")]
    device_plugin_wait: Option<u64>,
    /// What happens to a pod whose device becomes unhealthy: ignore, mark (events), restart (the container) or evict;
    /// [RESOURCE=]POLICY, repeatable [default: mark]
    #[arg(long, value_name = "[RESOURCE=]POLICY")]
    unhealthy_device_policy: Vec<String>,
    /// Calls a second that the podresources socket takes, and how many at once [default: 100:10]
    #[arg(long, value_name = "RATE:BURST")]
    podresources_rate: Option<String>,
    /// How long the end of a pod waits for a DRA driver that is gone, in seconds; its claims are undone when it is back
    #[arg(long, value_name = "SECONDS")]
    dra_driver_wait: Option<u64>,
    /// Directory of the executables of FlexVolume drivers, `VENDOR~DRIVER/DRIVER`
    /// [default: /usr/libexec/kubernetes/kubelet-plugins/volume/exec/]
    #[arg(long, value_name = "DIR")]
    pub(crate) volume_plugin_dir: Option<PathBuf>,
}

impl KubeletFlags {
    /// Puts file and flags into the agent's options.
    pub(crate) fn apply(&self, options: &mut davit_node::NodeOptions) -> Result<()> {
        let config = self.parsed()?;
        config.apply(self.hardware()?, options)?;
        if let Some(file) = &self.image_credential_provider_config {
            let bin_dir = self.image_credential_provider_bin_dir.clone();
            let bin_dir = bin_dir.context("--image-credential-provider-bin-dir is missing")?;
            let providers =
                credentials::read(file, &bin_dir).context("failed to register CRI auth plugins")?;
            options.credentials = CredentialOptions { providers, bin_dir };
        }
        options.labels.extend(self.labels()?);
        let is_pair = |ips: &[IpAddr]| matches!(ips, [a, b] if a.is_ipv4() != b.is_ipv4());
        if self.node_ip.len() > 1 && !is_pair(&self.node_ip) {
            bail!("--node-ip must contain either a single IP or a dual-stack pair of IPs");
        }
        if !self.node_ip.is_empty() {
            options.node_ips.clone_from(&self.node_ip);
            options.ip_families.clear();
        }
        if let Some(seconds) = self.device_plugin_wait {
            options.plugin_wait = Duration::from_secs(seconds);
        }
        for policy in &self.unhealthy_device_policy {
            let set = options.unhealthy_devices.set(policy);
            set.with_context(|| format!("--unhealthy-device-policy {policy}"))?;
        }
        if let Some(text) = &self.podresources_rate {
            options.podresources_rate = text
                .parse()
                .with_context(|| format!("--podresources-rate {text}"))?;
        }
        if let Some(seconds) = self.dra_driver_wait {
            options.driver_patience = Duration::from_secs(seconds);
        }
        if let Some(dir) = &self.volume_plugin_dir {
            options.volume_plugin_dir.clone_from(dir);
        }
        Ok(())
    }

    /// The labels of the flag, if a node may have them: an API server would refuse others each time the node reports.
    fn labels(&self) -> Result<Vec<(String, String)>> {
        let labels = self.node_labels.as_deref().unwrap_or_default();
        let labels = pairs("--node-labels", labels, '=')?;
        if let Some(error) = validate_labels(&labels, &Path::new("--node-labels")).first() {
            bail!("{error}");
        }
        let foreign = labels.keys().filter(|key| !is_nodes_label(key));
        let foreign: Vec<&str> = foreign.map(String::as_str).collect();
        if !foreign.is_empty() {
            bail!(
                "--node-labels: a node may not give itself {}: of the labels below kubernetes.io and k8s.io only those of \
                 kubelet.kubernetes.io, node.kubernetes.io and a few more are its own; `kubectl label node` sets others",
                foreign.join(", ")
            );
        }
        let text = |label: Value| label.as_str().unwrap_or_default().to_owned();
        Ok(labels.into_iter().map(|(k, v)| (k, text(v))).collect())
    }

    /// The gates of the flag.
    pub(crate) fn features(&self) -> Result<Features> {
        let list = self.feature_gates.as_deref().unwrap_or_default();
        list.parse().context("--feature-gates")
    }

    /// Whether [`apply`](Self::apply) would work.
    pub(crate) fn check(&self) -> Result<()> {
        let runtime = std::sync::Arc::new(davit_oci::Hollow::default());
        self.apply(&mut davit_node::NodeOptions::new("", "/", runtime))
    }

    /// Whether nodes with these flags publish what is on their NUMA nodes.
    pub(crate) fn publishes_topology(&self) -> Result<bool> {
        let runtime = std::sync::Arc::new(davit_oci::Hollow::default());
        let mut node = davit_node::NodeOptions::new("", "/", runtime);
        self.apply(&mut node)?;
        Ok(node.resources.topology.kind != davit_topology::PolicyKind::None)
    }

    /// [`apply`](Self::apply) after a [`check`](Self::check), for nodes that are simulated: what this machine is short of
    /// does not concern them. Files that have changed since the check are ignored.
    pub(crate) fn apply_checked(&self, options: &mut davit_node::NodeOptions) {
        if let Err(error) = self.apply(options) {
            tracing::warn!(node = options.node_name, %error, "node keeps its defaults");
        }
        options.eviction.thresholds.clear();
        options.eviction.local_storage = false;
        options.shutdown = Shutdown::default();
        options.host = HostRules::default();
    }

    /// File and flags together.
    pub(crate) fn parsed(&self) -> Result<KubeletConfig> {
        let text = match &self.config {
            Some(file) => std::fs::read_to_string(file)
                .with_context(|| format!("kubelet configuration {}", file.display()))?,
            None => String::new(),
        };
        Ok(KubeletConfig::parse(&text, self.fields()?)?)
    }

    /// Has the node's server ask the cluster for its certificate, unless the user has said something else: where a node joins,
    /// an API server may believe no other.
    pub(crate) fn ask_for_serving_certificate(&mut self) -> Result<()> {
        if self.parsed()?.server_tls_bootstrap().is_none() {
            self.rotate_server_certificates = Some(true);
        }
        Ok(())
    }

    /// Lets pods be on a disk that is nearly full, unless the user has said what is full.
    pub(crate) fn ignore_full_disk(&mut self) {
        if self.config.is_none() {
            let memory_only = || "memory.available<100Mi".to_owned();
            self.eviction_hard.get_or_insert_with(memory_only);
            self.image_gc_high_threshold.get_or_insert(100);
        }
    }

    /// How long pods have when the machine goes down.
    pub(crate) fn shutdown(&self) -> Result<Shutdown> {
        Ok(self.parsed()?.shutdown()?)
    }

    fn hardware(&self) -> Result<Option<Hardware>> {
        let Some(file) = &self.machine_file else {
            return Ok(None);
        };
        let what = || format!("machine file {}", file.display());
        let text = std::fs::read_to_string(file).with_context(what)?;
        let hardware: Hardware = serde_saphyr::from_str(&text).with_context(what)?;
        hardware.validate().with_context(what)?;
        Ok(Some(hardware))
    }

    /// The flags as fields of a KubeletConfiguration.
    fn fields(&self) -> Result<Map<String, Value>> {
        let mut fields = Map::new();
        for (name, text) in [
            ("cpuManagerPolicy", &self.cpu_manager_policy),
            (
                "cpuManagerReconcilePeriod",
                &self.cpu_manager_reconcile_period,
            ),
            ("reservedSystemCPUs", &self.reserved_cpus),
            ("memoryManagerPolicy", &self.memory_manager_policy),
            ("topologyManagerPolicy", &self.topology_manager_policy),
            ("topologyManagerScope", &self.topology_manager_scope),
            (
                "evictionPressureTransitionPeriod",
                &self.eviction_pressure_transition_period,
            ),
            ("shutdownGracePeriod", &self.shutdown_grace_period),
            ("cgroupDriver", &self.cgroup_driver),
            ("healthzBindAddress", &self.healthz_bind_address),
            ("providerID", &self.provider_id),
            ("cpuCFSQuotaPeriod", &self.cpu_cfs_quota_period),
            ("fileCheckFrequency", &self.file_check_frequency),
            ("kubeReservedCgroup", &self.kube_reserved_cgroup),
            ("systemReservedCgroup", &self.system_reserved_cgroup),
            (
                "nodeStatusUpdateFrequency",
                &self.node_status_update_frequency,
            ),
            (
                "shutdownGracePeriodCriticalPods",
                &self.shutdown_grace_period_critical_pods,
            ),
        ] {
            if let Some(text) = text {
                fields.insert(name.to_owned(), json!(text));
            }
        }
        for (name, list, separator) in [
            (
                "cpuManagerPolicyOptions",
                &self.cpu_manager_policy_options,
                '=',
            ),
            (
                "topologyManagerPolicyOptions",
                &self.topology_manager_policy_options,
                '=',
            ),
            ("kubeReserved", &self.kube_reserved, '='),
            ("systemReserved", &self.system_reserved, '='),
            ("qosReserved", &self.qos_reserved, '='),
            ("evictionHard", &self.eviction_hard, '<'),
            ("evictionSoft", &self.eviction_soft, '<'),
            (
                "evictionSoftGracePeriod",
                &self.eviction_soft_grace_period,
                '=',
            ),
            (
                "evictionMinimumReclaim",
                &self.eviction_minimum_reclaim,
                '=',
            ),
        ] {
            if let Some(list) = list {
                let list = pairs(name, list, separator)?;
                fields.insert(name.to_owned(), Value::Object(list));
            }
        }
        if let Some(list) = &self.feature_gates {
            let mut gates = pairs("feature-gates", list, '=')?;
            for (name, value) in &mut gates {
                let parsed = value.as_str().and_then(|v| v.parse::<bool>().ok());
                let Some(on) = parsed else {
                    bail!("--feature-gates: {name} is neither true nor false");
                };
                *value = json!(on);
            }
            fields.insert("featureGates".to_owned(), Value::Object(gates));
        }
        for (name, number) in [
            (
                "evictionMaxPodGracePeriod",
                self.eviction_max_pod_grace_period,
            ),
            (
                "imageGCHighThresholdPercent",
                self.image_gc_high_threshold.map(i64::from),
            ),
            (
                "imageGCLowThresholdPercent",
                self.image_gc_low_threshold.map(i64::from),
            ),
            ("healthzPort", self.healthz_port.map(i64::from)),
            ("readOnlyPort", self.read_only_port.map(i64::from)),
            ("nodeStatusMaxImages", self.node_status_max_images),
            ("podPidsLimit", self.pod_max_pids),
            ("oomScoreAdj", self.oom_score_adj),
            ("registryPullQPS", self.registry_qps),
            ("registryBurst", self.registry_burst),
            ("eventRecordQPS", self.event_qps),
            ("eventBurst", self.event_burst),
            ("kubeAPIQPS", self.kube_api_qps),
            ("kubeAPIBurst", self.kube_api_burst),
            ("maxOpenFiles", self.max_open_files),
            ("maxPods", self.max_pods.map(i64::from)),
            ("podsPerCore", self.pods_per_core.map(i64::from)),
        ] {
            if let Some(number) = number {
                fields.insert(name.to_owned(), json!(number));
            }
        }
        if let Some(list) = &self.register_with_taints {
            fields.insert("registerWithTaints".to_owned(), taints(list)?);
        }
        for (name, on) in [
            ("serverTLSBootstrap", self.rotate_server_certificates),
            ("enableServer", self.enable_server),
            ("enableDebuggingHandlers", self.enable_debugging_handlers),
            ("registerNode", self.register_node),
            ("failSwapOn", self.fail_swap_on),
            ("protectKernelDefaults", self.protect_kernel_defaults),
            ("cpuCFSQuota", self.cpu_cfs_quota),
            ("serializeImagePulls", self.serialize_image_pulls),
        ] {
            if let Some(on) = on {
                fields.insert(name.to_owned(), json!(on));
            }
        }
        if !self.allowed_unsafe_sysctls.is_empty() {
            let sysctls = json!(self.allowed_unsafe_sysctls);
            fields.insert("allowedUnsafeSysctls".to_owned(), sysctls);
        }
        if let Some(names) = &self.enforce_node_allocatable {
            let names: Vec<&String> = names.iter().filter(|n| !n.is_empty()).collect();
            fields.insert("enforceNodeAllocatable".to_owned(), json!(names));
        }
        if !self.reserved_memory.is_empty() {
            let reservation = |text: &String| -> Result<Value> {
                let Some((node, list)) = text.split_once(':') else {
                    bail!("--reserved-memory {text}: expected NODE:K=V,...");
                };
                let node: u32 = node
                    .parse()
                    .with_context(|| format!("--reserved-memory {text}"))?;
                let limits = pairs("reserved-memory", list, '=')?;
                Ok(json!({"numaNode": node, "limits": limits}))
            };
            let list: Result<Vec<Value>> = self.reserved_memory.iter().map(reservation).collect();
            fields.insert("reservedMemory".to_owned(), Value::Array(list?));
        }
        Ok(fields)
    }
}

/// `a=1,b=2` as an object of texts.
fn pairs(what: &str, list: &str, separator: char) -> Result<Map<String, Value>> {
    list.split(',')
        .filter(|p| !p.trim().is_empty())
        .map(|pair| match pair.split_once(separator) {
            Some((key, value)) => Ok((key.trim().to_owned(), json!(value.trim()))),
            None => bail!("{what}: {pair:?} is not of the form KEY{separator}VALUE"),
        })
        .collect()
}

/// `key=value:effect,key:effect` as taints.
fn taints(list: &str) -> Result<Value> {
    let taint = |text: &str| {
        let (named, effect) = text.trim().rsplit_once(':').unwrap_or((text, ""));
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if named.is_empty() || !effects.contains(&effect) {
            bail!(
                "--register-with-taints {text}: expected KEY=VALUE:EFFECT, with the effect one of {}",
                effects.join(", ")
            );
        }
        Ok(match named.split_once('=') {
            Some((key, value)) => json!({"key": key, "value": value, "effect": effect}),
            None => json!({"key": named, "effect": effect}),
        })
    };
    let entries = list.split(',').filter(|t| !t.trim().is_empty());
    Ok(Value::Array(entries.map(taint).collect::<Result<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_fields() {
        let flags = KubeletFlags {
            reserved_cpus: Some("0-1".to_owned()),
            kube_reserved: Some("cpu=1,memory=1Gi".to_owned()),
            eviction_hard: Some("memory.available<100Mi".to_owned()),
            reserved_memory: vec!["1:memory=1Gi".to_owned()],
            feature_gates: Some("CPUManagerPolicyAlphaOptions=true".to_owned()),
            register_with_taints: Some("example.com/gpu=a:NoSchedule,alone:NoExecute".to_owned()),
            healthz_port: Some(10248),
            ..KubeletFlags::default()
        };
        let fields = Value::Object(flags.fields().unwrap());
        assert_eq!(
            fields,
            json!({
                "reservedSystemCPUs": "0-1",
                "kubeReserved": {"cpu": "1", "memory": "1Gi"},
                "evictionHard": {"memory.available": "100Mi"},
                "reservedMemory": [{"numaNode": 1, "limits": {"memory": "1Gi"}}],
                "featureGates": {"CPUManagerPolicyAlphaOptions": true},
                "registerWithTaints": [{"key": "example.com/gpu", "value": "a", "effect": "NoSchedule"},
                    {"key": "alone", "effect": "NoExecute"}],
                "healthzPort": 10248,
            })
        );
        KubeletConfig::parse("", flags.fields().unwrap()).unwrap();
        let wrong = KubeletFlags {
            kube_reserved: Some("cpu".to_owned()),
            ..KubeletFlags::default()
        };
        assert!(wrong.fields().is_err());
        assert!(taints("gpu=a").is_err());
    }

    #[test]
    fn labels_that_the_api_server_would_refuse_are_refused_at_start() {
        let labelled = |text: &str| KubeletFlags {
            node_labels: Some(text.to_owned()),
            ..KubeletFlags::default()
        };
        let own = "site=roof,node.kubernetes.io/kind=box,example.com/empty=";
        assert_eq!(labelled(own).labels().unwrap().len(), 3);
        for (text, named) in [
            ("node-role.kubernetes.io/control-plane=", "control-plane"),
            ("a=b,x.k8s.io/y=z", "x.k8s.io/y"),
            ("a=b c", "b c"),
            ("-a=b", "-a"),
        ] {
            let error = labelled(text).check().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
