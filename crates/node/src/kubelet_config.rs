//! `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1): the fields this agent follows. Fields
//! it knows but has not built, and fields nobody knows, are errors that say which of the two.

mod host;
mod not_built;
mod pace;
mod reporting;
mod reserved;
mod server;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use davit_api::features::{self, Features};
use davit_api::quantity::Quantity;
use davit_topology::cpu::CpuOptions;
use davit_topology::memory::{MEMORY, MemoryAmounts};
use davit_topology::{Hardware, Policy, PolicyKind};
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;
use serde_json::{Map, Value};

pub(crate) use self::not_built::fixed;
use self::reserved::Reserved;
use crate::eviction;
use crate::eviction::images::Policy as ImagePolicy;
use crate::eviction::signals::Fields;
use crate::options::NodeOptions;
use crate::shutdown::{Group, Shutdown};
use crate::sysctls::Allowlist;
use davit_containermanager::compute::{DEFAULT_MAX_NUMA_NODES, Settings, SettingsError, option};
use davit_machine::CgroupDriver;
use davit_podimages::{Verification, is_allowlist_entry};
use davit_pods::durations;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not YAML or JSON.
    #[error("kubelet configuration: {0}")]
    Syntax(String),
    /// Another kind or version.
    #[error(
        "kubelet configuration: {api_version:?} {kind:?} is not \"kubelet.config.k8s.io/v1beta1\" \"KubeletConfiguration\""
    )]
    Kind {
        /// `apiVersion`.
        api_version: String,
        /// `kind`.
        kind: String,
    },
    /// A field nobody knows.
    #[error("kubelet configuration: strict decoding error: unknown field {0:?}")]
    Unknown(String),
    /// A field that has no effect here yet.
    #[error("kubelet configuration: {0} is not built in davit yet (docs/status.md); leave it out")]
    NotBuilt(String),
    /// A value that makes no sense.
    #[error("kubelet configuration: {field}: {cause}")]
    Value {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        cause: String,
    },
    /// The resource managers' settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// The fields that are followed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct KubeletConfig {
    api_version: String,
    kind: String,
    address: Option<String>,
    allowed_unsafe_sysctls: Vec<String>,
    authentication: server::Authentication,
    authorization: server::Authorization,
    cgroup_driver: Option<String>,
    cgroup_root: Option<String>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Option<Vec<String>>,
    cluster_domain: Option<String>,
    config_map_and_secret_change_detection_strategy: Option<String>,
    container_log_max_files: Option<usize>,
    container_log_max_size: Option<String>,
    container_log_max_workers: Option<i32>,
    container_log_monitor_interval: Option<String>,
    container_runtime_endpoint: Option<String>,
    #[serde(rename = "cpuCFSQuota")]
    cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    cpu_cfs_quota_period: Option<String>,
    cpu_manager_policy: Option<String>,
    cpu_manager_policy_options: BTreeMap<String, String>,
    cpu_manager_reconcile_period: Option<String>,
    crash_loop_back_off: pace::CrashLoopBackOff,
    enable_debugging_handlers: Option<bool>,
    enable_server: Option<bool>,
    enable_system_log_handler: Option<bool>,
    enable_system_log_query: bool,
    enforce_node_allocatable: Option<Vec<String>>,
    event_burst: Option<i32>,
    #[serde(rename = "eventRecordQPS")]
    event_record_qps: Option<i32>,
    eviction_hard: Option<BTreeMap<String, String>>,
    eviction_max_pod_grace_period: Option<i64>,
    eviction_minimum_reclaim: BTreeMap<String, String>,
    eviction_pressure_transition_period: Option<String>,
    eviction_soft: BTreeMap<String, String>,
    eviction_soft_grace_period: BTreeMap<String, String>,
    fail_cgroup_v1: Option<bool>,
    fail_swap_on: Option<bool>,
    feature_gates: BTreeMap<String, bool>,
    file_check_frequency: Option<String>,
    healthz_bind_address: Option<String>,
    healthz_port: Option<u16>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high: Option<u8>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low: Option<u8>,
    #[serde(rename = "imageMaximumGCAge")]
    image_maximum_gc_age: Option<String>,
    #[serde(rename = "imageMinimumGCAge")]
    image_minimum_gc_age: Option<String>,
    image_pull_credentials_verification_policy: Option<String>,
    image_service_endpoint: Option<String>,
    #[serde(rename = "kubeAPIBurst")]
    kube_api_burst: Option<i32>,
    #[serde(rename = "kubeAPIQPS")]
    kube_api_qps: Option<i32>,
    kube_reserved: BTreeMap<String, String>,
    kube_reserved_cgroup: Option<String>,
    local_storage_capacity_isolation: Option<bool>,
    max_open_files: Option<i64>,
    max_parallel_image_pulls: Option<i32>,
    max_pods: Option<u32>,
    memory_manager_policy: Option<String>,
    memory_swap: host::MemorySwap,
    merge_default_eviction_settings: Option<bool>,
    node_lease_duration_seconds: Option<i32>,
    node_status_max_images: Option<i32>,
    node_status_report_frequency: Option<String>,
    node_status_update_frequency: Option<String>,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "oomScoreAdj")]
    oom_score_adj: Option<i32>,
    pod_logs_dir: Option<PathBuf>,
    pod_pids_limit: Option<i64>,
    pods_per_core: Option<i32>,
    port: Option<u16>,
    preloaded_images_verification_allowlist: Vec<String>,
    protect_kernel_defaults: Option<bool>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    qos_reserved: BTreeMap<String, String>,
    read_only_port: Option<u16>,
    register_node: Option<bool>,
    register_with_taints: Vec<Taint>,
    registry_burst: Option<i32>,
    #[serde(rename = "registryPullQPS")]
    registry_pull_qps: Option<i32>,
    reserved_memory: Vec<MemoryReservation>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: Option<String>,
    resolv_conf: Option<PathBuf>,
    rotate_certificates: Option<bool>,
    #[serde(rename = "serverTLSBootstrap")]
    server_tls_bootstrap: Option<bool>,
    seccomp_default: Option<bool>,
    serialize_image_pulls: Option<bool>,
    shutdown_grace_period: Option<String>,
    shutdown_grace_period_by_pod_priority: Vec<PriorityGroup>,
    shutdown_grace_period_critical_pods: Option<String>,
    #[serde(rename = "singleProcessOOMKill")]
    single_process_oom_kill: Option<bool>,
    static_pod_path: Option<PathBuf>,
    streaming_connection_idle_timeout: Option<String>,
    volume_stats_agg_period: Option<String>,
    system_reserved: BTreeMap<String, String>,
    system_reserved_cgroup: Option<String>,
    tls_cert_file: Option<PathBuf>,
    tls_cipher_suites: Vec<String>,
    tls_min_version: Option<String>,
    tls_private_key_file: Option<PathBuf>,
    topology_manager_policy: Option<String>,
    topology_manager_policy_options: BTreeMap<String, String>,
    topology_manager_scope: Option<String>,
    volume_plugin_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MemoryReservation {
    numa_node: u32,
    #[serde(default)]
    limits: BTreeMap<String, String>,
}

/// One of `shutdownGracePeriodByPodPriority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PriorityGroup {
    priority: i32,
    shutdown_grace_period_seconds: i64,
}

impl KubeletConfig {
    /// Reads a configuration file (YAML or JSON; empty for none). `flags` are fields that were
    /// given on the command line; they win.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(text: &str, flags: Map<String, Value>) -> Result<Self, ConfigError> {
        let syntax = |e: &dyn std::fmt::Display| ConfigError::Syntax(e.to_string());
        let file: Value = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_saphyr::from_str(text).map_err(|e| syntax(&e))?
        };
        let mut fields = match file {
            Value::Null => Map::from_iter([
                ("apiVersion".to_owned(), API_VERSION.into()),
                ("kind".to_owned(), "KubeletConfiguration".into()),
            ]),
            Value::Object(fields) => fields,
            _ => return Err(ConfigError::Syntax("not an object".to_owned())),
        };
        fields.extend(flags);
        // What is null was not given.
        fields.retain(|_, v| !v.is_null());
        if let Some((name, _)) = fields.iter().find(|(k, v)| not_built::is_refused(k, v)) {
            return Err(ConfigError::NotBuilt(name.clone()));
        }
        fields.retain(|name, _| !not_built::is_ignored(name));
        let config: Self = serde_json::from_value(Value::Object(fields)).map_err(|e| {
            let text = e.to_string();
            let unknown = text.strip_prefix("unknown field `");
            match unknown.and_then(|t| t.split('`').next()) {
                Some(field) => ConfigError::Unknown(field.to_owned()),
                None => ConfigError::Syntax(text),
            }
        })?;
        if config.api_version != API_VERSION || config.kind != "KubeletConfiguration" {
            return Err(ConfigError::Kind {
                api_version: config.api_version,
                kind: config.kind,
            });
        }
        Ok(config)
    }

    /// Puts the configuration into the agent's options. `hardware` describes the machine when it
    /// is not the one at hand.
    ///
    /// # Errors
    /// A value that makes no sense, or not on this machine.
    pub fn apply(
        &self,
        hardware: Option<Hardware>,
        options: &mut NodeOptions,
    ) -> Result<(), ConfigError> {
        options.features = self.features()?;
        if let Some(address) = &self.address {
            options.address = value("address", address.parse())?;
        }
        options.sysctls = self.sysctls()?;
        if let Some(dns) = &self.cluster_dns {
            options.cluster_dns.servers.clone_from(dns);
        }
        if let Some(text) = &self.volume_stats_agg_period {
            options.volume_stats_period = stats_period(text, options.volume_stats_period)?;
        }
        if let Some(text) = &self.streaming_connection_idle_timeout {
            let idle = value("streamingConnectionIdleTimeout", durations::parse(text))?;
            // Zero stands for the default, as in the kubelet.
            if !idle.is_zero() {
                options.session_idle = idle;
            }
        }
        if let Some(size) = &self.container_log_max_size {
            options.log_rotation.max_bytes = bytes("containerLogMaxSize", size)?;
        }
        let set = |to: &mut PathBuf, from: &Option<PathBuf>| {
            if let Some(path) = from {
                to.clone_from(path);
            }
        };
        set(&mut options.resolv_conf, &self.resolv_conf);
        set(&mut options.log_dir, &self.pod_logs_dir);
        let drivers = self.volume_plugin_dir.clone();
        let drivers = drivers.filter(|dir| !dir.as_os_str().is_empty());
        set(&mut options.volume_plugin_dir, &drivers);
        if self.static_pod_path.is_some() {
            options.static_pod_dir.clone_from(&self.static_pod_path);
        }
        options.port = self.port.unwrap_or(options.port);
        let bootstrap = self.server_tls_bootstrap;
        options.server_tls_bootstrap = bootstrap.unwrap_or(options.server_tls_bootstrap);
        options.seccomp_default = self.seccomp_default.unwrap_or(false);
        options.max_pods = self.max_pods.unwrap_or(options.max_pods);
        let files = self.container_log_max_files;
        options.log_rotation.max_files = files.unwrap_or(options.log_rotation.max_files);
        if let Some(domain) = &self.cluster_domain {
            options.cluster_dns.domain.clone_from(domain);
        }
        if let Some(root) = &self.cgroup_root {
            options.cgroup_root.clone_from(root);
        }
        if let Some(driver) = self.cgroup_driver.as_deref().filter(|d| !d.is_empty()) {
            let named = CgroupDriver::named(driver);
            options.cgroup_driver = named
                .ok_or_else(|| wrong("cgroupDriver", format!("unknown driver: {driver:?}")))?;
        }
        options.taints.clone_from(&self.register_with_taints);
        self.serve(options)?;
        self.report(options)?;
        options.host = self.host()?;
        self.pace(options)?;
        options.eviction = self.eviction()?;
        options.image_gc = self.image_gc()?;
        options.image_verification = self.image_verification()?;
        options.shutdown = self.shutdown()?;
        let (settings, reserved) = self.settings(hardware)?;
        options.resources = settings;
        self.cgroups(&reserved, options)?;
        options.reserved = reserved.all;
        Ok(())
    }

    /// `containerRuntimeEndpoint`, if one is named.
    pub fn runtime_endpoint(&self) -> Option<&str> {
        let endpoint = self.container_runtime_endpoint.as_deref();
        endpoint.filter(|e| !e.is_empty())
    }

    /// `imageServiceEndpoint`, if one is named.
    pub fn image_endpoint(&self) -> Option<&str> {
        let endpoint = self.image_service_endpoint.as_deref();
        endpoint.filter(|e| !e.is_empty())
    }

    /// `rotateCertificates`, if the file says.
    pub fn rotate_certificates(&self) -> Option<bool> {
        self.rotate_certificates
    }

    /// `serverTLSBootstrap`, if the file says.
    pub fn server_tls_bootstrap(&self) -> Option<bool> {
        self.server_tls_bootstrap
    }

    fn sysctls(&self) -> Result<Allowlist, ConfigError> {
        let allowlist = Allowlist::new(&self.allowed_unsafe_sysctls);
        value("allowedUnsafeSysctls", allowlist)
    }

    fn eviction(&self) -> Result<eviction::Config, ConfigError> {
        let fields = Fields {
            hard: self.eviction_hard.as_ref(),
            merge_defaults: self.merge_default_eviction_settings.unwrap_or(false),
            soft: &self.eviction_soft,
            soft_grace: &self.eviction_soft_grace_period,
            min_reclaim: &self.eviction_minimum_reclaim,
        };
        let mut config = value("evictionHard", eviction::Config::parse(fields))?;
        if let Some(seconds) = self.eviction_max_pod_grace_period {
            config.max_pod_grace = seconds.max(0);
        }
        config.local_storage = self.local_storage_capacity_isolation.unwrap_or(true);
        if let Some(text) = &self.eviction_pressure_transition_period {
            let field = "evictionPressureTransitionPeriod";
            // Zero stands for the default, as in the kubelet.
            let period = value(field, durations::parse(text))?;
            if !period.is_zero() {
                config.transition = period;
            }
        }
        Ok(config)
    }

    fn image_verification(&self) -> Result<Verification, ConfigError> {
        let list = &self.preloaded_images_verification_allowlist;
        let named = self.image_pull_credentials_verification_policy.as_deref();
        if let Some(odd) = list.iter().find(|entry| !is_allowlist_entry(entry)) {
            let text = format!("{odd:?} is not a full repository, with \"/*\" at its end at most");
            return Err(wrong("preloadedImagesVerificationAllowlist", text));
        }
        let policy = match named {
            None | Some("" | "NeverVerifyPreloadedImages") => Verification::NeverPreloaded,
            Some("NeverVerifyAllowlistedImages") => Verification::NeverAllowlisted(list.clone()),
            Some("NeverVerify") => Verification::Never,
            Some("AlwaysVerify") => Verification::Always,
            Some(other) => {
                let text = format!("unknown policy {other:?}");
                return Err(wrong("imagePullCredentialsVerificationPolicy", text));
            }
        };
        if !list.is_empty() && !matches!(policy, Verification::NeverAllowlisted(_)) {
            let text =
                "only with imagePullCredentialsVerificationPolicy NeverVerifyAllowlistedImages";
            return Err(wrong("preloadedImagesVerificationAllowlist", text));
        }
        Ok(policy)
    }

    fn image_gc(&self) -> Result<ImagePolicy, ConfigError> {
        let mut policy = ImagePolicy::default();
        policy.high = self.image_gc_high.unwrap_or(policy.high);
        policy.low = self.image_gc_low.unwrap_or(policy.low);
        if policy.high > 100 {
            let text = "must be between 0 and 100, inclusive";
            return Err(wrong("imageGCHighThresholdPercent", text));
        }
        if policy.low >= policy.high {
            let text = "must be less than imageGCHighThresholdPercent";
            return Err(wrong("imageGCLowThresholdPercent", text));
        }
        if let Some(text) = &self.image_minimum_gc_age {
            let age = value("imageMinimumGCAge", durations::parse(text))?;
            if !age.is_zero() {
                policy.min_age = age;
            }
        }
        if let Some(text) = &self.image_maximum_gc_age {
            policy.max_age = value("imageMaximumGCAge", durations::parse(text))?;
            if !policy.max_age.is_zero() && policy.max_age <= policy.min_age {
                let text = "must be greater than imageMinimumGCAge";
                return Err(wrong("imageMaximumGCAge", text));
            }
        }
        Ok(policy)
    }

    /// How long pods have when the machine goes down.
    ///
    /// # Errors
    /// Values that are no durations, or more time for critical pods than for all.
    pub fn shutdown(&self) -> Result<Shutdown, ConfigError> {
        let read = |field, text: &Option<String>| match text {
            Some(text) => value(field, durations::parse(text)),
            None => Ok(Duration::ZERO),
        };
        let critical = "shutdownGracePeriodCriticalPods";
        let all = read("shutdownGracePeriod", &self.shutdown_grace_period)?;
        let kept = read(critical, &self.shutdown_grace_period_critical_pods)?;
        if kept > all {
            return Err(wrong(critical, "must be <= shutdownGracePeriod"));
        }
        if self.shutdown_grace_period_by_pod_priority.is_empty() {
            return Ok(Shutdown::new(all, kept));
        }
        let field = "shutdownGracePeriodByPodPriority";
        if !all.is_zero() {
            let text = "cannot be given together with shutdownGracePeriod";
            return Err(wrong(field, text));
        }
        let groups = self.shutdown_grace_period_by_pod_priority.iter();
        let groups = groups.map(|group| {
            let seconds = u64::try_from(group.shutdown_grace_period_seconds);
            let seconds = seconds.map_err(|_| wrong(field, "seconds must not be negative"))?;
            Ok(Group {
                priority: group.priority,
                period: Duration::from_secs(seconds),
            })
        });
        let shutdown = Shutdown::by_priority(groups.collect::<Result<_, ConfigError>>()?);
        shutdown.ok_or_else(|| wrong(field, "a priority is named twice"))
    }

    fn features(&self) -> Result<Features, ConfigError> {
        let mut features = Features::default();
        let gates = self.feature_gates.iter();
        let set = features.set_each(gates.map(|(name, on)| (name.as_str(), *on)));
        set.map_err(|e| wrong("featureGates", e.to_string()))?;
        Ok(features)
    }

    fn reconcile_period(&self) -> Result<Duration, ConfigError> {
        let period = match &self.cpu_manager_reconcile_period {
            Some(text) => value("cpuManagerReconcilePeriod", durations::parse(text))?,
            None => Duration::ZERO,
        };
        Ok(if period.is_zero() {
            Duration::from_secs(10)
        } else {
            period
        })
    }

    /// The settings of the resource managers, and what is not allocatable.
    fn settings(&self, hardware: Option<Hardware>) -> Result<(Settings, Reserved), ConfigError> {
        let reserved = self.reserved()?;
        let Reserved { cpus, all, .. } = &reserved;
        let memory = self.memory_static()?;
        let node_reserved = all
            .iter()
            .filter(|(name, _)| *name == MEMORY || name.starts_with("hugepages-"))
            .map(|(name, n)| (name.clone(), u64::try_from(*n).unwrap_or(0)))
            .collect();
        let (topology, max_numa_nodes) = self.topology()?;
        let settings = Settings {
            hardware: hardware.unwrap_or_default(),
            cpu: self.cpu_options()?,
            reserved_cpus: cpus.clone(),
            reserved_cpu_millis: all
                .get("cpu")
                .and_then(|n| u64::try_from(*n).ok())
                .unwrap_or(0),
            throttle_exclusive: !self.features()?.is_on(features::UNTHROTTLED),
            reconcile_period: self.reconcile_period()?,
            memory,
            node_reserved,
            topology,
            pod_scope: match self.topology_manager_scope.as_deref() {
                None | Some("container") => false,
                Some("pod") => true,
                Some(other) => {
                    return Err(wrong(
                        "topologyManagerScope",
                        format!("unknown scope: {other:?}"),
                    ));
                }
            },
            max_numa_nodes,
        };
        Ok((settings, reserved))
    }

    fn cpu_options(&self) -> Result<Option<CpuOptions>, ConfigError> {
        let policy = self.cpu_manager_policy.as_deref();
        let field = "cpuManagerPolicyOptions";
        match policy {
            None | Some("" | "none") if self.cpu_manager_policy_options.is_empty() => {
                return Ok(None);
            }
            None | Some("" | "none") => {
                let names = self.cpu_manager_policy_options.keys();
                let names: Vec<&str> = names.map(String::as_str).collect();
                return Err(wrong(
                    field,
                    format!(
                        "none policy: received unsupported options={}",
                        names.join(",")
                    ),
                ));
            }
            Some("static") => {}
            Some(other) => {
                return Err(wrong(
                    "cpuManagerPolicy",
                    format!("unknown policy: {other:?}"),
                ));
            }
        }
        let features = self.features()?;
        let alpha = features.is_on("CPUManagerPolicyAlphaOptions");
        let beta = features.is_on("CPUManagerPolicyBetaOptions");
        let mut options = CpuOptions::default();
        for (name, text) in &self.cpu_manager_policy_options {
            let (slot, level) = match name.as_str() {
                option::FULL_PCPUS => (&mut options.full_pcpus_only, None),
                option::STRICT => (&mut options.strict_reservation, None),
                option::UNCORE => (&mut options.prefer_uncore_cache, None),
                option::ACROSS_NUMA => (&mut options.distribute_across_numa, Some(("Beta", beta))),
                option::BY_SOCKET => (&mut options.align_by_socket, Some(("Alpha", alpha))),
                option::ACROSS_CORES => {
                    (&mut options.distribute_across_cores, Some(("Alpha", alpha)))
                }
                _ => {
                    return Err(wrong(
                        field,
                        format!("unknown CPU Manager Policy option: {name:?}"),
                    ));
                }
            };
            if let Some((level, false)) = level {
                return Err(wrong(
                    field,
                    format!(
                        "CPU Manager Policy {level}-level Options not enabled, but option {name:?} provided"
                    ),
                ));
            }
            *slot = boolean(field, name, text)?;
        }
        Ok(Some(options))
    }

    fn memory_static(&self) -> Result<Option<BTreeMap<u32, MemoryAmounts>>, ConfigError> {
        match self.memory_manager_policy.as_deref() {
            None | Some("" | "None") => return Ok(None),
            Some("Static") => {}
            Some(other) => {
                return Err(wrong(
                    "memoryManagerPolicy",
                    format!("unknown policy: {other:?}"),
                ));
            }
        }
        let mut nodes: BTreeMap<u32, MemoryAmounts> = BTreeMap::new();
        for reservation in &self.reserved_memory {
            let node = nodes.entry(reservation.numa_node).or_default();
            for (kind, text) in &reservation.limits {
                *node.entry(kind.clone()).or_default() += bytes("reservedMemory", text)?;
            }
        }
        Ok(Some(nodes))
    }

    fn topology(&self) -> Result<(Policy, usize), ConfigError> {
        let kind = match self.topology_manager_policy.as_deref() {
            None | Some("" | "none") => PolicyKind::None,
            Some("best-effort") => PolicyKind::BestEffort,
            Some("restricted") => PolicyKind::Restricted,
            Some("single-numa-node") => PolicyKind::SingleNumaNode,
            Some(other) => {
                return Err(wrong(
                    "topologyManagerPolicy",
                    format!("unknown policy: {other:?}"),
                ));
            }
        };
        let field = "topologyManagerPolicyOptions";
        let (mut policy, mut nodes) = (Policy::new(kind), DEFAULT_MAX_NUMA_NODES);
        for (name, text) in &self.topology_manager_policy_options {
            match name.as_str() {
                "prefer-closest-numa-nodes" => policy.prefer_closest = boolean(field, name, text)?,
                "max-allowable-numa-nodes" => nodes = value(field, text.parse())?,
                _ => {
                    return Err(wrong(
                        field,
                        format!("unknown Topology Manager Policy option: {name:?}"),
                    ));
                }
            }
        }
        Ok((policy, nodes))
    }
}

fn wrong(field: &'static str, cause: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        field,
        cause: cause.into(),
    }
}

fn value<T, E: std::fmt::Display>(
    field: &'static str,
    parsed: Result<T, E>,
) -> Result<T, ConfigError> {
    parsed.map_err(|e| wrong(field, e.to_string()))
}

/// A time that was given; zero stands for the default.
fn time(
    field: &'static str,
    text: Option<&String>,
    default: Duration,
) -> Result<Duration, ConfigError> {
    let given = match text {
        Some(text) => value(field, durations::parse(text))?,
        None => Duration::ZERO,
    };
    Ok(if given.is_zero() { default } else { given })
}

/// Zero stands for the default and a negative duration for never, as in the kubelet.
fn stats_period(text: &str, default: Option<Duration>) -> Result<Option<Duration>, ConfigError> {
    let field = "volumeStatsAggPeriod";
    if let Some(positive) = text.strip_prefix('-') {
        return value(field, durations::parse(positive)).map(|_| None);
    }
    let period = value(field, durations::parse(text))?;
    Ok(if period.is_zero() {
        default
    } else {
        Some(period)
    })
}

fn bytes(field: &'static str, text: &str) -> Result<u64, ConfigError> {
    let quantity: Quantity = value(field, text.parse())?;
    u64::try_from(quantity.value()).map_err(|_| wrong(field, format!("{text:?} is negative")))
}

fn boolean(field: &'static str, name: &str, text: &str) -> Result<bool, ConfigError> {
    match text {
        "true" | "1" | "t" | "T" | "TRUE" | "True" => Ok(true),
        "false" | "0" | "f" | "F" | "FALSE" | "False" => Ok(false),
        _ => Err(wrong(
            field,
            format!("bad value for option {name:?}: {text:?} is not a boolean"),
        )),
    }
}

#[cfg(test)]
mod tests;
