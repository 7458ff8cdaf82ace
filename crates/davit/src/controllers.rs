//! `davit controllers`: the controllers alone, against any Kubernetes API server.

use crate::args::{Controllers, DefaultStorageClass};
use crate::cluster_ca::cluster_ca;
use crate::components::CONTROLLER_AGENT;
use crate::features;
use crate::shutdown::Signals;
use crate::single::{Candidate, connect, dns_addresses, finish, lead};
use anyhow::{Context, Result};
use davit_api::time::format_duration;
use davit_apiserver::ServiceRange;
use davit_client::{RequestRate, throttled};
use davit_controllers::{Authority, ControllersSync, NodeRanges, Options, TokenSigner};
use davit_netplan::Network;
use davit_scheduler::config::LeaderElectionConfiguration;
use davit_serving::ServedComponent;
use http::HeaderValue;
use http::header::USER_AGENT;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The Lease for which controllers stand, and what their configuration is served as.
const LEASE: &str = "kube-controller-manager";

pub(crate) async fn run(args: Controllers) -> Result<()> {
    let options = options(&args)?;
    let mut election = LeaderElectionConfiguration::of_component(LEASE);
    args.election.apply(&mut election)?;
    election.validate().context("leader election")?;
    features::remark(&args.gates.feature_gates);
    let mut signals = Signals::new()?;
    let kubeconfig = &args.kubeconfig;
    let Some(client) = connect(&mut signals, kubeconfig).await? else {
        return Ok(());
    };
    let rate = RequestRate::of_client(args.kube_api_qps, args.kube_api_burst);
    // Who stands for a Lease does not wait for its turn.
    let limited = move |client: kube::Client| match rate {
        Some(rate) => throttled(client, rate),
        None => client,
    };
    let mut controllers = davit_controllers::Controllers::new(limited(client.clone()), options);
    if args.use_service_account_credentials {
        let mut config = davit_client::kubeconfig(kubeconfig).await?;
        let agent = HeaderValue::from_static(CONTROLLER_AGENT);
        config.headers.push((USER_AGENT, agent));
        let accounts = davit_client::ServiceAccounts::new(config, "kube-system").await?;
        let client = move |name: &str| limited(accounts.client(name));
        controllers = controllers.with_accounts(Arc::new(client));
    }
    let served = ServedControllers {
        sync: controllers.sync(),
        configuration: configuration(&args, &election),
    };
    let cancel = CancellationToken::new();
    // They end with this function.
    let _guard = cancel.clone().drop_guard();
    let mut serving = JoinSet::new();
    let server = &args.serving;
    server
        .serve(args.secure_port, served, kubeconfig, &mut serving, cancel)
        .await?;
    let candidate = Candidate::of(&election, &args.gates.feature_gates)?;
    let work = async |cancel| controllers.run(cancel).await.context("controllers");
    tokio::select! {
        ended = lead(&mut signals, client, LEASE, candidate, work) => ended,
        Some(ended) = serving.join_next() => finish(Some(ended)),
    }
}

/// What the controllers' server tells of them.
struct ServedControllers {
    sync: ControllersSync,
    configuration: Value,
}

impl ServedComponent for ServedControllers {
    const CHECK: &'static str = "informer-sync";

    fn is_ready(&self) -> bool {
        self.sync.is_idle_or_synced()
    }

    fn configuration(&self) -> Value {
        json!({ "kubecontrollermanager.config.k8s.io": self.configuration })
    }
}

/// What the flags say, as the KubeControllerManagerConfiguration that kube-controller-manager shows; what has no flag here is
/// left out.
fn configuration(args: &Controllers, election: &LeaderElectionConfiguration) -> Value {
    let file = |file: &Option<PathBuf>| file.as_ref().map(|file| file.display().to_string());
    let joined = |parts: &mut dyn Iterator<Item = &dyn Display>| {
        let parts: Vec<String> = parts.map(ToString::to_string).collect();
        parts.join(",")
    };
    let flags = &args.flags;
    let go = |time: Duration| format_duration(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
    let ranges: Vec<ServiceRange> = args.service_cluster_ip_range.all().collect();
    json!({
        "kind": "KubeControllerManagerConfiguration",
        "apiVersion": "kubecontrollermanager.config.k8s.io/v1alpha1",
        "Generic": {
            "Port": args.secure_port,
            "Address": args.serving.address(args.secure_port).ip(),
            "ClientConnection": {
                "kubeconfig": args.kubeconfig.display().to_string(),
                "qps": args.kube_api_qps,
                "burst": args.kube_api_burst,
            },
            "LeaderElection": election,
            "Controllers": flags.controllers.to_string().split(',').collect::<Vec<_>>(),
        },
        "KubeCloudShared": {
            "ClusterName": args.cluster_name,
            "UseServiceAccountCredentials": args.use_service_account_credentials,
            "AllocateNodeCIDRs": args.allocate_node_cidrs,
            "NodeMonitorPeriod": go(flags.node_monitor_period),
            "ClusterCIDR": joined(&mut args.cluster_cidr.0.iter().map(|range| range as _)),
        },
        "CSRSigningController": {
            "ClusterSigningCertFile": file(&args.cluster_signing_cert_file),
            "ClusterSigningKeyFile": file(&args.cluster_signing_key_file),
            "ClusterSigningDuration": go(args.cluster_signing_duration),
        },
        "HPAController": {
            "HorizontalPodAutoscalerSyncPeriod": go(flags.horizontal_pod_autoscaler_sync_period),
            "HorizontalPodAutoscalerDownscaleStabilizationWindow":
                go(flags.horizontal_pod_autoscaler_downscale_stabilization),
            "HorizontalPodAutoscalerTolerance": flags.horizontal_pod_autoscaler_tolerance,
            "HorizontalPodAutoscalerCPUInitializationPeriod":
                go(flags.horizontal_pod_autoscaler_cpu_initialization_period),
            "HorizontalPodAutoscalerInitialReadinessDelay":
                go(flags.horizontal_pod_autoscaler_initial_readiness_delay),
        },
        "NodeLifecycleController": {
            "NodeStartupGracePeriod": go(flags.node_startup_grace_period),
            "NodeMonitorGracePeriod": go(flags.node_monitor_grace_period),
        },
        "PodGCController": {"TerminatedPodGCThreshold": flags.terminated_pod_gc_threshold},
        "SAController": {
            "ServiceAccountKeyFile": file(&args.service_account_private_key_file),
            "RootCAFile": file(&args.root_ca_file),
        },
        "NodeIPAMController": {"ServiceCIDR": joined(&mut ranges.iter().map(|range| range as _))},
        "PersistentVolumeBinderController": {
            "VolumeConfiguration": {"FlexVolumePluginDir": file(&args.flex_volume_plugin_dir)},
        },
    })
}

/// What the controllers need to know.
fn options(args: &Controllers) -> Result<Options> {
    let read = |file: &Path| {
        std::fs::read_to_string(file).with_context(|| format!("signing file {}", file.display()))
    };
    let files = args
        .cluster_signing_cert_file
        .as_ref()
        .zip(args.cluster_signing_key_file.as_ref());
    let authority = match files {
        Some((certificate, key)) => {
            let authority = Authority::new(&read(certificate)?, &read(key)?);
            let authority = authority.context("certificate authority")?;
            Some(authority.valid_for(args.cluster_signing_duration))
        }
        None => None,
    };
    let token_signer = match &args.service_account_private_key_file {
        Some(file) => {
            let signer = TokenSigner::new(&read(file)?);
            Some(signer.with_context(|| format!("signing file {}", file.display()))?)
        }
        None => None,
    };
    let root_ca = match &args.root_ca_file {
        Some(file) => {
            let name = || format!("--root-ca-file {}", file.display());
            let pem = std::fs::read_to_string(file).with_context(name)?;
            let first = CertificateDer::from_pem_slice(pem.as_bytes());
            first.map_err(anyhow::Error::new).with_context(name)?;
            Some(pem)
        }
        None => cluster_ca(&args.kubeconfig)?,
    };
    if root_ca.is_none() {
        tracing::warn!(
            "the kubeconfig names no authority: pods get no kube-root-ca.crt; --root-ca-file FILE gives them one"
        );
    }
    let services = args.service_cluster_ip_range;
    let node_ranges = args
        .allocate_node_cidrs
        .then(|| args.node_sizes.ranges(&args.cluster_cidr.0, services))
        .transpose()?;
    let mut inside: Vec<Network> = services.all().map(ServiceRange::network).collect();
    inside.extend(node_ranges.iter().flat_map(NodeRanges::all));
    Ok(Options {
        selection: args.flags.controllers.clone(),
        concurrency: args.flags.concurrency.by_controller(),
        node_monitor: args.flags.node_monitor(),
        terminated_pods: args.flags.terminated_pod_gc_threshold,
        autoscaling: args.flags.autoscaling(),
        root_ca,
        authority,
        token_signer,
        node_ranges,
        dns_addresses: dns_addresses(services, args.dns),
        load_balancing: args.load_balancer.or_range(&args.balancer_range, inside)?,
        default_storage_class: args.default_storage_class == DefaultStorageClass::Local,
        flex_volume_plugin_dir: args.flex_volume_plugin_dir.clone(),
        features: args.gates.feature_gates.clone(),
    })
}
