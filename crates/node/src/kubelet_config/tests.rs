//! Files as people and kubeadm write them.

use super::*;
use crate::access::Authorize;
use crate::host_rules::HostRules;
use davit_machine::Enforced;
use davit_pods::resources::Amounts;
use davit_pods::resources::SwapBehavior;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn settings(text: &str) -> Result<(Settings, Amounts), ConfigError> {
    let config = KubeletConfig::parse(&format!("{HEAD}{text}"), Map::new())?;
    config.features()?;
    let made = config.settings(Some(Hardware::grid(2, 1, 8, 2, 8 << 30)))?;
    Ok((made.0, made.1.all))
}

#[test]
fn a_configuration_of_all_managers() {
    let (s, reserved) = settings(
        "cpuManagerPolicy: static\n\
         cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n\
         cpuManagerReconcilePeriod: 1m5s\n\
         reservedSystemCPUs: 0,16\n\
         memoryManagerPolicy: Static\n\
         kubeReserved: {cpu: 500m, memory: 500Mi}\n\
         systemReserved: {memory: 424Mi}\n\
         reservedMemory:\n- {numaNode: 0, limits: {memory: 1Gi}}\n\
         topologyManagerPolicy: single-numa-node\n\
         topologyManagerScope: pod\n\
         topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}\n",
    )
    .unwrap();
    s.validate().unwrap();
    assert!(s.cpu.unwrap().full_pcpus_only && s.pod_scope && s.topology.prefer_closest);
    assert_eq!(s.reserved_cpus.unwrap().to_string(), "0,16");
    assert_eq!(s.reconcile_period, Duration::from_secs(65));
    assert_eq!(reserved["cpu"], 2000);
    assert_eq!(reserved["memory"], 1 << 30, "100Mi of eviction included");
}

/// The agent's options by a file.
fn options(text: &str) -> Result<NodeOptions, ConfigError> {
    let runtime = std::sync::Arc::new(davit_oci::Hollow::default());
    let mut options = NodeOptions::new("n", "/", runtime);
    let config = KubeletConfig::parse(text, Map::new())?;
    config.apply(Some(Hardware::grid(1, 1, 4, 1, 8 << 30)), &mut options)?;
    Ok(options)
}

/// What kubeadm writes into the fields that nobody has set.
#[test]
fn zero_is_the_default() {
    let text = "crashLoopBackOff: {}
fileCheckFrequency: 0s
cpuManagerReconcilePeriod: 0s
evictionPressureTransitionPeriod: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}}, verbosity: 0}
memorySwap: {}
containerRuntimeEndpoint: \"\"
shutdownGracePeriod: 0s
syncFrequency: 0s
";
    let read = |text: &str| KubeletConfig::parse(&format!("{HEAD}{text}"), Map::new()).unwrap();
    let (zero, none) = (read(text), read(""));
    assert_eq!(zero.reconcile_period().unwrap(), Duration::from_secs(10));
    assert_eq!(zero.eviction().unwrap(), none.eviction().unwrap());
    assert_eq!(zero.image_gc().unwrap(), none.image_gc().unwrap());
    assert_eq!(zero.shutdown().unwrap(), none.shutdown().unwrap());
}

/// Numbers as programs write them that write every field, and what the kubelet's `/configz` shows of a default.
#[test]
fn numbers_that_say_what_happens_anyway() {
    let read = |text: &str| KubeletConfig::parse(&format!("{HEAD}{text}\n"), Map::new());
    for field in ["iptablesMasqueradeBit", "iptablesDropBit"] {
        for bit in ["0", "14", "31"] {
            assert!(read(&format!("{field}: {bit}")).is_ok(), "{field} {bit}");
        }
        assert!(read(&format!("{field}: 32")).is_err(), "{field}");
    }
    assert!(read("runtimeRequestTimeout: 2m0s").is_ok());
    assert!(read("memoryThrottlingFactor: 0.9\nmemoryReservationPolicy: None").is_ok());
    for wrong in [
        "memoryThrottlingFactor: 1.1",
        "memoryReservationPolicy: TieredReservation",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    assert!(read("hairpinMode: promiscuous-bridge\nhttpCheckFrequency: 20s").is_ok());
    assert!(read("httpCheckFrequency: 20").is_err());
    assert!(read("makeIPTablesUtilChains: true").is_ok());
    assert!(read("makeIPTablesUtilChains: x").is_err());
}

#[test]
fn tls_is_what_the_file_asks_for() {
    let suite = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    let text = format!("tlsMinVersion: VersionTLS13\ntlsCipherSuites: [{suite}]");
    let options = |text: &str| options(&format!("{HEAD}{text}\n"));
    let tls = options(&text).unwrap().tls;
    assert_eq!(tls.min_version(), Some("VersionTLS13"));
    assert_eq!(tls.suites(), [suite]);
    for (wrong, field) in [
        ("tlsCipherSuites: [TLS_NULL]", "tlsCipherSuites"),
        ("tlsMinVersion: SSL3", "tlsMinVersion"),
    ] {
        let error = options(wrong).err().unwrap().to_string();
        assert!(error.contains(field), "{error}");
    }
}

/// The file of a node that `kubeadm join` has prepared, with the paths of this test.
#[test]
fn the_file_of_kubeadm() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.crt");
    std::fs::write(&ca, "the CA").unwrap();
    let text = format!(
        "{HEAD}authentication:
  anonymous: {{enabled: false}}
  webhook: {{cacheTTL: 0s, enabled: true}}
  x509: {{clientCAFile: {}}}
authorization:
  mode: Webhook
  webhook: {{cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {{}}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {{flushFrequency: 0, options: {{json: {{infoBufferSize: \"0\"}}, text: {{infoBufferSize: \"0\"}}}}, verbosity: 0}}
memorySwap: {{}}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumePluginDir: /opt/volume-plugins
volumeStatsAggPeriod: 0s
registerWithTaints: [{{key: example.com/gpu, value: a, effect: NoSchedule}}]
",
        ca.display()
    );
    let options = options(&text).unwrap();
    let defaults = crate::access::AccessOptions::default();
    assert_eq!(options.access, defaults);
    assert_eq!(options.client_ca.as_deref(), Some(b"the CA".as_slice()));
    assert_eq!(options.cgroup_driver, CgroupDriver::Systemd);
    assert_eq!(options.healthz.unwrap().to_string(), "127.0.0.1:10248");
    assert_eq!(options.taints[0].key, "example.com/gpu");
    let drivers = std::path::Path::new("/opt/volume-plugins");
    assert_eq!(options.volume_plugin_dir, drivers);
    let config = KubeletConfig::parse(&text, Map::new()).unwrap();
    let endpoint = config.runtime_endpoint();
    assert_eq!(endpoint, Some("unix:///run/containerd/containerd.sock"));
    assert_eq!(config.rotate_certificates(), Some(true));
}

#[test]
fn who_may_call_the_node() {
    let text = format!(
        "{HEAD}authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false, cacheTTL: 1m}}}}
authorization: {{mode: AlwaysAllow, webhook: {{cacheUnauthorizedTTL: 5s}}}}
"
    );
    let access = options(&text).unwrap().access;
    assert!(access.anonymous && !access.tokens);
    assert_eq!(access.authorize, Authorize::AlwaysAllow);
    assert_eq!(
        [access.token_for, access.allowed_for, access.denied_for].map(|t| t.as_secs()),
        [60, 300, 5]
    );
    for (wrong, why) in [
        ("authorization: {mode: RBAC}", "unknown mode: \"RBAC\""),
        ("authentication: {basic: {}}", "unknown field \"basic\""),
        (
            "authentication: {x509: {clientCAFile: /none}}",
            "/none: No such file",
        ),
        ("tlsCertFile: /none", "needs tlsPrivateKeyFile"),
        ("cgroupDriver: none", "unknown driver: \"none\""),
        ("healthzBindAddress: here", "healthzBindAddress"),
    ] {
        let error = options(&format!("{HEAD}{wrong}\n")).err().unwrap();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn what_happens_anyway_may_be_said() {
    let same =
        "failSwapOn: false\nreadOnlyPort: 0\ncgroupsPerQOS: true\nnodeStatusUpdateFrequency: 10s\n";
    assert!(options(&format!("{HEAD}{same}")).is_ok());
    let other = options(&format!("{HEAD}runOnce: true\n"));
    assert!(matches!(other, Err(ConfigError::NotBuilt(field)) if field == "runOnce"));
}

#[test]
fn what_is_answered_and_how_the_node_is_kept() {
    let of = |text: &str| options(&format!("{HEAD}{text}\n"));
    let served = of("enableDebuggingHandlers: false\nreadOnlyPort: 10255\nenableServer: false");
    let served = served.unwrap().served;
    assert!(!served.debugging && !served.secure && served.system_logs);
    assert_eq!(served.read_only, Some(10255));
    assert_eq!(of("readOnlyPort: 0").unwrap().served, Default::default());
    let reporting = |text: &str| of(text).unwrap().reporting;
    let seconds = |text: &str| {
        let both = reporting(text);
        (both.update.as_secs(), both.report.as_secs())
    };
    assert_eq!(seconds(""), (10, 300));
    assert_eq!(seconds("nodeStatusUpdateFrequency: 0s"), (10, 300));
    assert_eq!(seconds("nodeStatusUpdateFrequency: 4s"), (4, 4));
    assert_eq!(seconds("nodeStatusReportFrequency: 1m"), (10, 60));
    let both = "nodeStatusUpdateFrequency: 4s\nnodeStatusReportFrequency: 1m";
    assert_eq!(seconds(both), (4, 60));
    let lease = reporting("nodeLeaseDurationSeconds: 20");
    assert_eq!((lease.lease_seconds, lease.renewal().as_secs()), (20, 5));
    assert_eq!(reporting("nodeLeaseDurationSeconds: 0").lease_seconds, 40);
    assert_eq!(reporting("nodeStatusMaxImages: -1").max_images, None);
    assert_eq!(reporting("nodeStatusMaxImages: 0").max_images, Some(0));
    let made = reporting("registerNode: false\nproviderID: cloud://a\npodCIDR: 10.1.0.0/24");
    assert!(!made.register && made.provider_id == "cloud://a" && made.pod_cidr == "10.1.0.0/24");
    assert_eq!(of("podsPerCore: 0").unwrap().pods_per_core, None);
    assert_eq!(of("podsPerCore: 7").unwrap().pods_per_core, Some(7));
    for (wrong, why) in [
        ("nodeLeaseDurationSeconds: -1", "greater than 0"),
        ("nodeStatusMaxImages: -2", "-1 or greater"),
        ("podsPerCore: -1", "negative"),
        ("readOnlyPort: 65536", "65536"),
        (
            "enableSystemLogQuery: true\nenableSystemLogHandler: false",
            "needs enableSystemLogHandler",
        ),
    ] {
        let error = of(wrong).err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn what_is_asked_of_the_machine() {
    let of = |text: &str| options(&format!("{HEAD}{text}\n")).map(|o| o.host);
    assert_eq!(of("").unwrap(), HostRules::default());
    let text = "failSwapOn: true
failCgroupV1: true
protectKernelDefaults: true
oomScoreAdj: -5
maxOpenFiles: 2000
memorySwap: {swapBehavior: LimitedSwap}
cpuCFSQuota: false
cpuCFSQuotaPeriod: 5ms
singleProcessOOMKill: true";
    let host = of(text).unwrap();
    assert!(host.fail_swap_on && host.fail_cgroup_v1 && host.protect_kernel_defaults);
    assert_eq!((host.oom_score, host.open_files), (Some(-5), Some(2000)));
    assert_eq!(host.swap, SwapBehavior::LimitedSwap);
    assert!(!host.quotas.enforced && host.quotas.period == 5000);
    assert_eq!(host.single_process_oom_kill, Some(true));
    for (wrong, why) in [
        ("oomScoreAdj: 1001", "between -1000 and 1000"),
        ("maxOpenFiles: -1", "negative"),
        (
            "memorySwap: {swapBehavior: UnlimitedSwap}",
            "must be one of",
        ),
        ("cpuCFSQuotaPeriod: 2s", "between 1ms and 1s"),
        ("cpuCFSQuotaPeriod: 0s", "between 1ms and 1s"),
    ] {
        let error = of(wrong).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn idle_sessions_and_profiles_by_default() {
    let of = |text: &str| options(&format!("{HEAD}{text}")).unwrap();
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    assert_eq!(of("").session_idle, hours(4));
    assert_eq!(
        of("streamingConnectionIdleTimeout: 0s\n").session_idle,
        hours(4)
    );
    assert_eq!(
        of("streamingConnectionIdleTimeout: 1h\n").session_idle,
        hours(1)
    );
    for (text, period) in [
        ("", Some(60)),
        ("volumeStatsAggPeriod: 0s\n", Some(60)),
        ("volumeStatsAggPeriod: 5m\n", Some(300)),
        ("volumeStatsAggPeriod: -1s\n", None),
    ] {
        let period = period.map(Duration::from_secs);
        assert_eq!(of(text).volume_stats_period, period, "{text}");
    }
    assert!(!of("").seccomp_default);
    assert!(of("seccompDefault: true\n").seccomp_default);
}

#[test]
fn sysctls_beyond_the_safe_ones_are_listed() {
    let text = format!("{HEAD}allowedUnsafeSysctls: [vm.swappiness]\n");
    let config = KubeletConfig::parse(&text, Map::new()).unwrap();
    assert_eq!(
        config.sysctls().unwrap_err().to_string(),
        "kubelet configuration: allowedUnsafeSysctls: the sysctls \"vm.swappiness\" are not known to be namespaced"
    );
}

#[test]
fn what_is_unknown_or_not_built_is_refused() {
    let refused = |text: &str| settings(text).unwrap_err().to_string();
    assert_eq!(
        refused("noSuchField: 1\n"),
        "kubelet configuration: strict decoding error: unknown field \"noSuchField\""
    );
    assert_eq!(
        refused("kubeletCgroups: /x\n"),
        "kubelet configuration: kubeletCgroups is not built in davit yet (docs/status.md); leave it out"
    );
    assert!(refused("cpuManagerPolicy: best\n").contains("unknown policy: \"best\""));
    assert!(refused("topologyManagerScope: node\n").contains("unknown scope: \"node\""));
    assert!(
        refused("topologyManagerPolicyOptions: {x: \"1\"}\n")
            .contains("unknown Topology Manager Policy option: \"x\"")
    );
    let alpha = "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: \"true\"}\n";
    assert!(refused(alpha).contains("Alpha-level Options not enabled"));
    let gate = format!("{alpha}featureGates: {{CPUManagerPolicyAlphaOptions: true}}\n");
    assert!(settings(&gate).unwrap().0.cpu.unwrap().align_by_socket);
    assert!(KubeletConfig::parse("kind: Pod\napiVersion: v1\n", Map::new()).is_err());
}

#[test]
fn eviction_image_collection_and_shutdown() {
    let parse = |text: &str| KubeletConfig::parse(&format!("{HEAD}{text}"), Map::new()).unwrap();
    let config = parse(
        "evictionHard: {memory.available: 5%, nodefs.available: 1Gi}\n\
         evictionSoft: {pid.available: '100'}\nevictionSoftGracePeriod: {pid.available: 30s}\n\
         evictionPressureTransitionPeriod: 10s\nevictionMaxPodGracePeriod: 7\n\
         imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60\nimageMinimumGCAge: 0s\n\
         shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n",
    );
    let eviction = config.eviction().unwrap();
    assert_eq!(eviction.thresholds.len(), 3);
    assert_eq!(
        (eviction.max_pod_grace, eviction.transition.as_secs()),
        (7, 10)
    );
    assert_eq!(config.image_gc().unwrap().high, 70);
    let shutdown = config.shutdown().unwrap();
    let periods: Vec<u64> = shutdown
        .groups()
        .iter()
        .map(|g| g.period.as_secs())
        .collect();
    assert_eq!(periods, [20, 10]);
    assert!(config.settings(None).is_ok());
    let wrong = parse("shutdownGracePeriod: 1s\nshutdownGracePeriodCriticalPods: 10s\n");
    assert!(wrong.shutdown().is_err());
    let by = "shutdownGracePeriodByPodPriority:\n- {priority: 1000, shutdownGracePeriodSeconds: 7}\n- {priority: 0, shutdownGracePeriodSeconds: 5}\n";
    let shutdown = parse(by).shutdown().unwrap();
    assert_eq!(shutdown.total().as_secs(), 12);
    assert_eq!(shutdown.groups()[0].priority, 0);
    assert!(
        parse(&format!("shutdownGracePeriod: 1s\n{by}"))
            .shutdown()
            .is_err()
    );
    assert!(parse(&by.replace("1000", "0")).shutdown().is_err());
    assert!(
        parse("imageGCHighThresholdPercent: 50\n")
            .image_gc()
            .is_err()
    );
    assert!(parse("evictionHard: {disk: 5%}\n").eviction().is_err());
}

#[test]
fn flags_win_over_the_file() {
    let flags = Map::from_iter([("maxPods".to_owned(), 7.into())]);
    let config = KubeletConfig::parse(&format!("{HEAD}maxPods: 9\n"), flags.clone()).unwrap();
    assert_eq!(config.max_pods, Some(7));
    assert_eq!(KubeletConfig::parse("", flags).unwrap().max_pods, Some(7));
}

#[test]
fn pods_as_a_whole_are_limited() {
    let is_root = rustix::process::geteuid().is_root();
    let of = |text: &str| options(&format!("{HEAD}{text}\n")).map(|o| o.cgroups);
    let why = |text: &str| of(text).unwrap_err().to_string();
    assert!(of("podPidsLimit: -1").is_ok());
    for (text, wrong) in [
        (
            "enforceNodeAllocatable: [pods, kube-reserved]",
            "needs kubeReservedCgroup",
        ),
        (
            "enforceNodeAllocatable: [system-reserved, system-reserved-compressible]\nsystemReservedCgroup: /s",
            "beside its other form",
        ),
        ("enforceNodeAllocatable: [pods, pods]", "named twice"),
        (
            "reservedSystemCPUs: \"0\"\nkubeReservedCgroup: /k",
            "cannot be used",
        ),
        ("qosReserved: {cpu: 50%}", "cannot reserve \"cpu\""),
        ("qosReserved: {memory: 101%}", "no percentage"),
        ("enforceNodeAllocatable: [none, pods]", "none stands alone"),
        ("enforceNodeAllocatable: [all]", "unknown value \"all\""),
    ] {
        assert!(why(text).contains(wrong), "{}", why(text));
    }
    if !is_root {
        assert!(why("podPidsLimit: 100").contains("need root"));
        return;
    }
    let reserved =
        "systemReserved: {memory: 1Gi, cpu: 500m}\nevictionHard: {memory.available: 2Gi}";
    let groups = of(&format!("{reserved}\npodPidsLimit: 100"))
        .unwrap()
        .unwrap();
    assert_eq!(groups.pod_pids, Some(100));
    assert!(groups.enforce_pods);
    let kept = [("memory".to_owned(), 1 << 30), ("cpu".to_owned(), 500)];
    assert_eq!(
        groups.reserved(),
        Amounts::from(kept),
        "eviction is not reserved"
    );
    let none = of("enforceNodeAllocatable: [none]").unwrap().unwrap();
    assert!(!none.enforce_pods);
    let text = "enforceNodeAllocatable: [kube-reserved, system-reserved-compressible]
kubeReserved: {cpu: 100m, pid: '500'}
systemReserved: {cpu: 200m}
kubeReservedCgroup: /kube
systemReservedCgroup: /system
qosReserved: {memory: 50%}";
    let both = of(text).unwrap().unwrap();
    assert_eq!(both.kube.enforced, Enforced::All);
    assert_eq!(both.kube.cgroup, "/kube");
    assert_eq!(both.kube.amounts["pid"], 500);
    assert_eq!(both.system.enforced, Enforced::Compressible);
    assert_eq!(both.reserved()["cpu"], 300);
    assert_eq!(both.qos_reserved, None, "its gate is off");
    let gate = format!("{text}\nfeatureGates: {{QOSReserved: true}}");
    assert_eq!(of(&gate).unwrap().unwrap().qos_reserved, Some(50));
}
