//! `/configz`: the configuration in force, in the form of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) under
//! the key `kubeletconfig`, as monitors and checkers of nodes read it.
//!
//! What is shown can be given back as a configuration file, which then says the same. What cannot be set has the value that says
//! what happens anyway. The authority of clients is the agent's own copy of it.

use super::tls::CLIENT_CA;
use crate::access::Authorize;
use crate::context::Context;
use crate::kubelet_config::fixed;
use crate::options::NodeOptions;
use davit_api::features::MOST_RESTART_DECAY;
use davit_machine::Enforced;
use davit_podimages::Verification;
use davit_pods::durations;
use davit_streaming::Body;
use davit_topology::PolicyKind;
use http::Response;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn serve(ctx: &Context) -> Response<Body> {
    let mut config = configuration(&ctx.options);
    if ctx.options.client_ca.is_some() {
        let file = ctx.paths.pki().join(CLIENT_CA);
        config["authentication"]["x509"]["clientCAFile"] = json!(file);
    }
    super::json(&json!({ "kubeletconfig": config }))
}

fn configuration(options: &NodeOptions) -> Value {
    let mut config = json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "address": options.address,
        "port": options.port,
        "healthzPort": options.healthz.map_or(0, |address| address.port()),
        "serverTLSBootstrap": options.server_tls_bootstrap,
        "rotateCertificates": true,
        "authentication": {
            "anonymous": { "enabled": options.access.anonymous },
            "webhook": { "enabled": options.access.tokens, "cacheTTL": shown(options.access.token_for) },
            "x509": {},
        },
        "authorization": {
            "mode": match options.access.authorize {
                Authorize::AlwaysAllow => "AlwaysAllow",
                Authorize::Webhook => "Webhook",
            },
            "webhook": {
                "cacheAuthorizedTTL": shown(options.access.allowed_for),
                "cacheUnauthorizedTTL": shown(options.access.denied_for),
            },
        },
        "enableServer": options.served.secure,
        "enableDebuggingHandlers": options.served.debugging,
        "enableSystemLogHandler": options.served.system_logs,
        "readOnlyPort": options.served.read_only.unwrap_or(0),
        "clusterDNS": options.cluster_dns.servers,
        "clusterDomain": options.cluster_dns.domain,
        "resolvConf": options.resolv_conf,
        "allowedUnsafeSysctls": options.sysctls.patterns(),
        "cgroupRoot": options.cgroup_root,
        "cgroupDriver": options.cgroup_driver.name(),
        "featureGates": options.features.changed().collect::<BTreeMap<_, _>>(),
        "volumePluginDir": options.volume_plugin_dir,
        "enableSystemLogQuery": options.system_log_query,
        "maxPods": options.max_pods,
        "podsPerCore": options.pods_per_core.unwrap_or(0),
        "podPidsLimit": options.cgroups.as_ref().and_then(|c| c.pod_pids).unwrap_or(-1),
        "seccompDefault": options.seccomp_default,
        "streamingConnectionIdleTimeout": shown(options.session_idle),
        "volumeStatsAggPeriod": options.volume_stats_period.map_or_else(|| "-1s".to_owned(), shown),
        "podLogsDir": options.log_dir,
        "containerLogMaxFiles": options.log_rotation.max_files,
        "containerLogMaxSize": options.log_rotation.max_bytes.to_string(),
        "imageGCHighThresholdPercent": options.image_gc.high,
        "imageGCLowThresholdPercent": options.image_gc.low,
        "imageMinimumGCAge": shown(options.image_gc.min_age),
        "imageMaximumGCAge": shown(options.image_gc.max_age),
        "registerWithTaints": options.taints,
    });
    if let Some([certificate, key]) = &options.serving_files {
        config["tlsCertFile"] = json!(certificate);
        config["tlsPrivateKeyFile"] = json!(key);
    }
    if let Some(version) = options.tls.min_version() {
        config["tlsMinVersion"] = json!(version);
    }
    if !options.tls.suites().is_empty() {
        config["tlsCipherSuites"] = json!(options.tls.suites());
    }
    if let Some(path) = &options.static_pod_dir {
        config["staticPodPath"] = json!(path);
    }
    reporting(options, &mut config);
    pace(options, &mut config);
    reserved(options, &mut config);
    host(options, &mut config);
    eviction(options, &mut config);
    shutdown(options, &mut config);
    verification(options, &mut config);
    managers(options, &mut config);
    // Benchmarks take it for a weakness where chains of iptables are not made; nothing here would use them.
    for (name, value) in fixed().filter(|(name, _)| *name != "makeIPTablesUtilChains") {
        config[name] = value;
    }
    config
}

/// How much is done at once, and how often. Zero is no limit.
fn pace(options: &NodeOptions, config: &mut Value) {
    for (qps, burst, rate) in [
        ("registryPullQPS", "registryBurst", options.pulls.rate),
        ("eventRecordQPS", "eventBurst", options.event_rate),
        ("kubeAPIQPS", "kubeAPIBurst", options.request_rate),
    ] {
        config[qps] = json!(rate.map_or(0, |rate| rate.per_second));
        config[burst] = json!(rate.map_or(0, |rate| rate.burst));
    }
    config["serializeImagePulls"] = json!(options.pulls.parallel == Some(1));
    if let Some(most) = options.pulls.parallel {
        config["maxParallelImagePulls"] = json!(most);
    }
    if options.features.is_on(MOST_RESTART_DECAY) {
        let most = shown(options.restarts.most);
        config["crashLoopBackOff"] = json!({ "maxContainerRestartPeriod": most });
    }
    config["containerLogMaxWorkers"] = json!(options.log_rotation.workers);
    config["containerLogMonitorInterval"] = json!(shown(options.log_rotation.interval));
    config["fileCheckFrequency"] = json!(shown(options.manifest_check));
    config["configMapAndSecretChangeDetectionStrategy"] = json!("Get");
}

/// What the system and the agent are left, and which of them is held to it.
fn reserved(options: &NodeOptions, config: &mut Value) {
    let Some(groups) = &options.cgroups else {
        config["enforceNodeAllocatable"] = json!(["none"]);
        return;
    };
    let mut enforced = Vec::new();
    if groups.enforce_pods {
        enforced.push("pods".to_owned());
    }
    for (name, short, share) in [
        ("systemReserved", "system-reserved", &groups.system),
        ("kubeReserved", "kube-reserved", &groups.kube),
    ] {
        let shown = share
            .amounts
            .iter()
            .map(|(name, amount)| match name.as_str() {
                "cpu" => ("cpu", format!("{amount}m")),
                name => (name, amount.to_string()),
            });
        config[name] = json!(shown.collect::<BTreeMap<_, _>>());
        if !share.cgroup.is_empty() {
            config[format!("{name}Cgroup")] = json!(share.cgroup);
        }
        match share.enforced {
            Enforced::Nothing => {}
            Enforced::Compressible => enforced.push(format!("{short}-compressible")),
            Enforced::All => enforced.push(short.to_owned()),
        }
    }
    // so the kubelet writes that nobody is held
    if enforced.is_empty() {
        enforced.push("none".to_owned());
    }
    config["enforceNodeAllocatable"] = json!(enforced);
    if let Some(percent) = groups.qos_reserved {
        config["qosReserved"] = json!({ "memory": format!("{percent}%") });
    }
}

/// What is asked of the machine and of the process.
fn host(options: &NodeOptions, config: &mut Value) {
    let host = &options.host;
    config["failSwapOn"] = json!(host.fail_swap_on);
    config["failCgroupV1"] = json!(host.fail_cgroup_v1);
    config["protectKernelDefaults"] = json!(host.protect_kernel_defaults);
    config["memorySwap"] = json!({ "swapBehavior": host.swap.as_str() });
    config["cpuCFSQuota"] = json!(host.quotas.enforced);
    let period = u64::try_from(host.quotas.period).unwrap_or(0);
    config["cpuCFSQuotaPeriod"] = json!(shown(Duration::from_micros(period)));
    if let Some(score) = host.oom_score {
        config["oomScoreAdj"] = json!(score);
    }
    if let Some(most) = host.open_files {
        config["maxOpenFiles"] = json!(most);
    }
    if let Some(single) = host.single_process_oom_kill {
        config["singleProcessOOMKill"] = json!(single);
    }
}

/// How the Node object is made and kept.
fn reporting(options: &NodeOptions, config: &mut Value) {
    let reporting = &options.reporting;
    config["registerNode"] = json!(reporting.register);
    config["nodeLeaseDurationSeconds"] = json!(reporting.lease_seconds);
    config["nodeStatusUpdateFrequency"] = json!(shown(reporting.update));
    config["nodeStatusReportFrequency"] = json!(shown(reporting.report));
    let most = reporting
        .max_images
        .map(|most| i64::try_from(most).unwrap_or(i64::MAX));
    config["nodeStatusMaxImages"] = json!(most.unwrap_or(-1));
    for (name, text) in [
        ("providerID", &reporting.provider_id),
        ("podCIDR", &reporting.pod_cidr),
    ] {
        if !text.is_empty() {
            config[name] = json!(text);
        }
    }
}

/// When pods are evicted.
fn eviction(options: &NodeOptions, config: &mut Value) {
    let settings = &options.eviction;
    config["evictionPressureTransitionPeriod"] = json!(shown(settings.transition));
    config["evictionMaxPodGracePeriod"] = json!(settings.max_pod_grace);
    config["localStorageCapacityIsolation"] = json!(settings.local_storage);
    config["evictionHard"] = json!({});
    for threshold in &settings.thresholds {
        let signal = threshold.signal.as_str();
        let value = threshold.value.to_string();
        if threshold.is_hard() {
            config["evictionHard"][signal] = json!(value);
        } else {
            config["evictionSoft"][signal] = json!(value);
            config["evictionSoftGracePeriod"][signal] = json!(shown(threshold.grace));
        }
        if let Some(least) = threshold.min_reclaim {
            config["evictionMinimumReclaim"][signal] = json!(least.to_string());
        }
    }
}

/// How long pods have when the machine goes down.
fn shutdown(options: &NodeOptions, config: &mut Value) {
    let shutdown = &options.shutdown;
    if let Some(critical) = shutdown.of_critical() {
        config["shutdownGracePeriod"] = json!(shown(shutdown.total()));
        config["shutdownGracePeriodCriticalPods"] = json!(shown(critical));
        return;
    }
    let groups = shutdown.groups().iter();
    let groups = groups.map(|group| {
        json!({ "priority": group.priority, "shutdownGracePeriodSeconds": group.period.as_secs() })
    });
    config["shutdownGracePeriodByPodPriority"] = groups.collect();
}

/// Which pods have to show that they may have an image that is there.
fn verification(options: &NodeOptions, config: &mut Value) {
    let policy = match &options.image_verification {
        Verification::Never => "NeverVerify",
        Verification::NeverPreloaded => "NeverVerifyPreloadedImages",
        Verification::NeverAllowlisted(list) => {
            config["preloadedImagesVerificationAllowlist"] = json!(list);
            "NeverVerifyAllowlistedImages"
        }
        Verification::Always => "AlwaysVerify",
    };
    config["imagePullCredentialsVerificationPolicy"] = json!(policy);
}

/// The CPU, memory and topology managers.
fn managers(options: &NodeOptions, config: &mut Value) {
    let settings = &options.resources;
    let mut cpu_options = Map::new();
    if let Some(cpu) = &settings.cpu {
        for (name, on) in [
            ("full-pcpus-only", cpu.full_pcpus_only),
            ("distribute-cpus-across-numa", cpu.distribute_across_numa),
            ("align-by-socket", cpu.align_by_socket),
            ("distribute-cpus-across-cores", cpu.distribute_across_cores),
            ("strict-cpu-reservation", cpu.strict_reservation),
            ("prefer-align-cpus-by-uncorecache", cpu.prefer_uncore_cache),
        ] {
            if on {
                cpu_options.insert(name.to_owned(), json!("true"));
            }
        }
    }
    config["cpuManagerPolicy"] = json!(if settings.cpu.is_some() {
        "static"
    } else {
        "none"
    });
    config["cpuManagerPolicyOptions"] = Value::Object(cpu_options);
    config["cpuManagerReconcilePeriod"] = json!(shown(settings.reconcile_period));
    if let Some(cpus) = &settings.reserved_cpus {
        config["reservedSystemCPUs"] = json!(cpus.to_string());
    }
    config["memoryManagerPolicy"] = json!("None");
    if let Some(nodes) = &settings.memory {
        config["memoryManagerPolicy"] = json!("Static");
        let nodes = nodes.iter().map(|(node, amounts)| {
            let amounts = amounts
                .iter()
                .map(|(kind, bytes)| (kind, bytes.to_string()));
            json!({ "numaNode": node, "limits": amounts.collect::<BTreeMap<_, _>>() })
        });
        config["reservedMemory"] = nodes.collect();
    }
    config["topologyManagerPolicy"] = json!(match settings.topology.kind {
        PolicyKind::None => "none",
        PolicyKind::BestEffort => "best-effort",
        PolicyKind::Restricted => "restricted",
        PolicyKind::SingleNumaNode => "single-numa-node",
    });
    config["topologyManagerScope"] = json!(if settings.pod_scope {
        "pod"
    } else {
        "container"
    });
    config["topologyManagerPolicyOptions"] = json!({
        "prefer-closest-numa-nodes": settings.topology.prefer_closest.to_string(),
        "max-allowable-numa-nodes": settings.max_numa_nodes.to_string(),
    });
}

/// As Go writes durations.
fn shown(duration: Duration) -> String {
    durations::show(duration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet_config::KubeletConfig;

    #[test]
    fn what_is_in_force_is_shown() {
        let runtime = std::sync::Arc::new(davit_oci::Hollow::default());
        let mut options = NodeOptions::new("n", "/", runtime);
        options.resources.topology.kind = PolicyKind::SingleNumaNode;
        options.resources.pod_scope = true;
        options.max_pods = 7;
        let shown = configuration(&options);
        assert_eq!(shown["topologyManagerPolicy"], "single-numa-node");
        assert_eq!(shown["topologyManagerScope"], "pod");
        assert_eq!(shown["cpuManagerPolicy"], "none");
        assert_eq!(shown["maxPods"], 7);
        assert_eq!(shown["evictionPressureTransitionPeriod"], "5m0s");
        assert_eq!(shown["evictionHard"]["memory.available"], "104857600");
        assert_eq!(shown["evictionHard"]["nodefs.available"], "5%");
        assert_eq!(shown["nodeStatusUpdateFrequency"], "10s");
        assert_eq!(shown["cgroupsPerQOS"], true);
    }

    /// Suites and tools read the page, change a field and write all of it into the file.
    #[test]
    fn what_is_shown_can_be_given_back() {
        let runtime = std::sync::Arc::new(davit_oci::Hollow::default());
        let plain = NodeOptions::new("n", "/", runtime);
        let text = r#"
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
allowedUnsafeSysctls: ["net.core.*"]
cgroupDriver: systemd
cgroupRoot: /pods
evictionHard: {memory.available: 64Mi, nodefs.available: "7.5%", imagefs.available: "0%"}
evictionMinimumReclaim: {memory.available: "1%"}
evictionSoft: {nodefs.inodesFree: "9%"}
evictionSoftGracePeriod: {nodefs.inodesFree: 90s}
featureGates: {GenericWorkload: true}
imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages
preloadedImagesVerificationAllowlist: [example.com/a/*]
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 20}
- {priority: 100, shutdownGracePeriodSeconds: 5}
topologyManagerPolicy: restricted
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true"}
systemReserved: {memory: 1Gi}
kubeReserved: {cpu: 100m}
kubeReservedCgroup: /kube
enforceNodeAllocatable: [pods, kube-reserved-compressible]
cpuCFSQuotaPeriod: 20ms
crashLoopBackOff: {maxContainerRestartPeriod: 1m}
enableDebuggingHandlers: false
kubeAPIQPS: 20
maxOpenFiles: 2000
maxParallelImagePulls: 3
memorySwap: {swapBehavior: LimitedSwap}
nodeStatusMaxImages: -1
providerID: cloud://one
readOnlyPort: 10255
registerNode: false
registryPullQPS: 2
"#;
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = ["c.crt", "c.key"].map(|name| dir.path().join(name));
        for file in [&certificate, &key] {
            std::fs::write(file, "pem").unwrap();
        }
        let files = json!({ "tlsCertFile": certificate, "tlsPrivateKeyFile": key });
        let text = format!(
            "{text}tlsCertFile: {}\ntlsPrivateKeyFile: {}\n",
            certificate.display(),
            key.display()
        );
        for text in ["", &text] {
            let given_back = |text: &str| {
                let mut options = plain.clone();
                let config = KubeletConfig::parse(text, Map::new()).unwrap();
                config.apply(None, &mut options).unwrap();
                configuration(&options)
            };
            let shown = given_back(text);
            let pulls = if text.is_empty() { 0 } else { 2 };
            assert_eq!(shown["registryPullQPS"], pulls);
            assert_eq!(given_back(&shown.to_string()), shown);
            for file in ["tlsCertFile", "tlsPrivateKeyFile"] {
                let wanted = if text.is_empty() {
                    &Value::Null
                } else {
                    &files[file]
                };
                assert_eq!(&shown[file], wanted);
            }
        }
    }
}
