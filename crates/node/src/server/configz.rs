//! `/configz`: the configuration in force, in the form of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) under
//! the key `kubeletconfig`, as monitors and checkers of nodes read it.
//!
//! What davit does not build has the value that says so: `podPidsLimit: -1`. The parts of
//! `kubeReserved` and `systemReserved` are known as their sum only and stand under `systemReserved`.

use crate::access::Authorize;
use crate::context::Context;
use crate::kubelet_config::not_built;
use crate::options::NodeOptions;
use davit_pods::durations;
use davit_streaming::Body;
use davit_topology::PolicyKind;
use http::Response;
use serde_json::{Map, Value, json};
use std::time::Duration;

pub(super) fn serve(ctx: &Context) -> Response<Body> {
    super::json(&json!({ "kubeletconfig": configuration(&ctx.options) }))
}

fn configuration(options: &NodeOptions) -> Value {
    let mut config = json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "address": options.address,
        "port": options.port,
        "readOnlyPort": 0,
        "healthzPort": options.healthz.map_or(0, |address| address.port()),
        "serverTLSBootstrap": options.server_tls_bootstrap,
        "rotateCertificates": true,
        "authentication": {
            "anonymous": { "enabled": options.access.anonymous },
            "webhook": { "enabled": options.access.tokens, "cacheTTL": shown(options.access.token_for) },
            "x509": authority(options),
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
        "clusterDNS": options.cluster_dns.servers,
        "clusterDomain": options.cluster_dns.domain,
        "resolvConf": options.resolv_conf,
        "maxPods": options.max_pods,
        "podPidsLimit": options.cgroups.as_ref().and_then(|c| c.pod_pids).unwrap_or(-1),
        "enforceNodeAllocatable": enforced(options),
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
        "evictionPressureTransitionPeriod": shown(options.eviction.transition),
        "evictionMaxPodGracePeriod": options.eviction.max_pod_grace,
        "localStorageCapacityIsolation": options.eviction.local_storage,
        "registerNode": true,
        "registerWithTaints": options.taints,
    });
    if let Some(path) = &options.static_pod_dir {
        config["staticPodPath"] = json!(path);
    }
    managers(options, &mut config);
    // Programs write back what they read, and what is left out comes back as zero or false.
    for (name, value) in not_built::in_force() {
        config[name] = value;
    }
    config
}

/// Which groups of processes are held to what they are left. `none` is how the kubelet writes that none is.
fn enforced(options: &NodeOptions) -> [&'static str; 1] {
    match &options.cgroups {
        Some(groups) if groups.enforce_pods => ["pods"],
        _ => ["none"],
    }
}

/// The authority of client certificates is known by its contents, whichever file they came from.
fn authority(options: &NodeOptions) -> Value {
    match &options.client_ca {
        Some(_) => json!({ "clientCAFile": "(given in memory)" }),
        None => json!({}),
    }
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
    let static_memory = settings.memory.is_some();
    config["memoryManagerPolicy"] = json!(if static_memory { "Static" } else { "None" });
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
    if settings.topology.prefer_closest {
        config["topologyManagerPolicyOptions"] = json!({ "prefer-closest-numa-nodes": "true" });
    }
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
    }

    /// As `test/e2e_node` does, which reads `/configz`, changes a field and starts the node with that.
    #[test]
    fn what_is_shown_is_taken_again() {
        let runtime = std::sync::Arc::new(davit_oci::Hollow::default());
        let shown = configuration(&NodeOptions::new("n", "/", runtime));
        assert_eq!(shown["cgroupsPerQOS"], true);
        assert_eq!(shown["cpuCFSQuota"], true);
        assert_eq!(shown["nodeStatusUpdateFrequency"], "10s");
        let read = KubeletConfig::parse(&shown.to_string(), Map::new());
        assert!(read.is_ok(), "{read:?}");
    }
}
