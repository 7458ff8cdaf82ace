//! A driver of dynamic resource allocation, to begin with: it has simulated devices until `discover` finds yours.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use davit_sdk::dra::cdi::{CDI_DIR, CdiFiles, Edits};
use davit_sdk::dra::{
    AllocatedClaim, ClaimId, DeviceExt as _, Driver, NodePlugin, Pool, PreparedDevice, Publisher,
    Refusal, Resources, Scope, device,
};
use davit_sdk::kube::config::{Config, KubeConfigOptions, Kubeconfig};
use davit_sdk::{async_trait, kube};
use tokio::signal::unix::{SignalKind, signal};

/// The name of the driver: classes select its devices by it.
const DRIVER: &str = "widget.vendor.example";

/// Publishes the devices of this machine, and prepares them for claims.
#[derive(Debug, Parser)]
struct Args {
    /// Node whose devices these are
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Kubeconfig; without it that of the pod's service account
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The node agent's folder
    #[arg(long, env = "KUBELET_DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Folder for CDI files
    #[arg(long, default_value = CDI_DIR)]
    cdi_dir: PathBuf,
    /// One of several instances, for an update without a gap: the UID of the driver's pod
    #[arg(long, env = "INSTANCE_UID")]
    instance: Option<String>,
    /// Number of simulated devices
    #[arg(long, default_value_t = 4)]
    count: u32,
}

/// Which devices there are, with what claims may select them by. Yours go here. Whenever something changes,
/// `Publishing::publish` takes the new list.
fn discover(args: &Args) -> Pool {
    let described = |n: u32| {
        device(format!("widget-{n}"))
            .text("model", "simulated")
            .int("index", i64::from(n))
            .capacity("memory", "1Gi")
    };
    Pool::new((0..args.count).map(described))
}

struct Widgets {
    /// What containers get, a file for each claim: all that is to be remembered of what is prepared.
    files: CdiFiles,
}

impl Widgets {
    /// Another claim that holds one of the devices.
    fn rival(&self, claim: &AllocatedClaim) -> Result<Option<String>, Refusal> {
        let prepared = self.files.claims().map_err(Refusal::because)?;
        let holds = |held: &[String]| {
            let mut devices = claim.devices().iter();
            devices.any(|d| !d.admin_access && held.contains(&d.device))
        };
        let mut others = prepared.into_iter();
        let found = others.find(|(uid, held)| *uid != claim.id().uid && holds(held));
        Ok(found.map(|(uid, _)| uid))
    }
}

#[async_trait]
impl Driver for Widgets {
    /// Makes the claim's devices ready. Called again for the same claim it answers the same.
    async fn prepare(&self, claim: &AllocatedClaim) -> Result<Vec<PreparedDevice>, Refusal> {
        for device in claim.devices() {
            // A driver without parameters refuses them, so that nobody believes that they do something.
            if claim.parameters(device).next().is_some() {
                return Err(Refusal::new("this driver takes no parameters"));
            }
        }
        if let Some(uid) = self.rival(claim)? {
            return Err(Refusal::new(format!(
                "a device is prepared for the claim {uid}"
            )));
        }
        // What is held by administrators beside its user has a name of its own.
        let key =
            |device: &str, admin: bool| format!("{device}{}", if admin { ".admin" } else { "" });
        let mut edits = BTreeMap::new();
        for device in claim.devices() {
            let name = &device.device;
            let variable = format!("WIDGET_{}", name.to_uppercase().replace('-', "_"));
            // On the host, in the container. A simulated device is /dev/null.
            let given = Edits::new().env(variable, name).device(
                "/dev/null",
                format!("/dev/widgets/{name}"),
                "rw",
            );
            edits.insert(key(name, device.admin_access), given);
        }
        let names = self.files.write(&claim.id().uid, edits);
        let names = names.map_err(Refusal::because)?;
        let prepared = claim.devices().iter().map(|device| {
            PreparedDevice::of(device).cdi(&names[&key(&device.device, device.admin_access)])
        });
        Ok(prepared.collect())
    }

    /// Undoes it. What is unknown is undone already.
    async fn unprepare(&self, claim: &ClaimId) -> Result<(), Refusal> {
        self.files.remove(&claim.uid).map_err(Refusal::because)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // The one provider of TLS that this program has is its default.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let client = client(&args).await?;
    let driver = Widgets {
        files: CdiFiles::new(&args.cdi_dir, DRIVER),
    };
    let mut plugin = NodePlugin::new(DRIVER, client.clone(), driver)
        .registry_dir(args.kubelet_dir.join("plugins_registry"))
        .data_dir(args.kubelet_dir.join("plugins").join(DRIVER));
    if let Some(uid) = &args.instance {
        plugin = plugin.instance(uid);
    }
    let running = plugin.start()?;
    let resources = Resources::new().pool(&args.node_name, discover(&args));
    let scope = Scope::node(&args.node_name);
    let publishing = Publisher::new(client, DRIVER, scope).start(resources)?;
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    // What is prepared stays so. The agent turns to another instance, if there is one, before this one stops publishing.
    running.stop().await;
    publishing.stop().await;
    Ok(())
}

async fn client(args: &Args) -> anyhow::Result<kube::Client> {
    let Some(path) = &args.kubeconfig else {
        return kube::Client::try_default().await.context("kubeconfig");
    };
    let read = Kubeconfig::read_from(path);
    let read = read.with_context(|| format!("kubeconfig {}", path.display()))?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}
