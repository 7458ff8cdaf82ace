//! `davit up --demo`: the main job on real input. The example device plugin runs as a process of its own, a pod asks for
//! two of its devices, and what the container was given and who holds what is printed.

use crate::args::Up;
use crate::components::RunningServer;
use crate::devices;
use crate::page::Paint;
use crate::paths;
use crate::paths::NodePaths;
use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, LogParams, PostParams};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

const RESOURCE: &str = "hardware-vendor.example/foo";
const POD: &str = "demo-pod";
const CONTAINER: &str = "demo-container-1";
/// How long each step of the demo may take.
const STEP: Duration = Duration::from_secs(30);
/// What the container runs: it prints what it was given and stays.
const SCRIPT: &str = "echo 'environment:'; env | grep -i foo | sort; \
                      echo 'device nodes:'; ls -l /dev/foo 2>/dev/null || echo '(none)'; \
                      echo 'done'; while :; do sleep 3600; done";

/// A demo that runs.
pub(crate) struct Demo {
    plugin: Child,
    client: kube::Client,
}

impl Demo {
    /// Starts the plugin and the pod and prints what came of it.
    pub(crate) async fn start(server: &RunningServer, args: &Up) -> Result<Self> {
        let client = server.client("davit:demo", &["system:masters"]);
        let data_dir = paths::data_dir(args.server.data_dir.as_deref())?;
        let kubelet = NodePaths::new(args.node.root.as_deref(), &data_dir)?.kubelet();
        let plugin = Command::new(std::env::current_exe().context("own executable")?)
            .arg("example-device")
            .args(["--resource", RESOURCE, "--count", "4"])
            .arg("--socket-dir")
            .arg(kubelet.join("device-plugins"))
            .arg("--dev-dir")
            .arg(data_dir.join("demo-devices"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("example device plugin")?;
        let demo = Self { plugin, client };
        println!("\nThe example device plugin advertises {RESOURCE}:");
        demo.wait_for_devices().await?;
        println!("{}", demo.table().await?);
        println!("A pod asks for two of them. Its container prints what it was given:");
        demo.run_pod().await?;
        for line in demo.wait_for_output().await?.lines() {
            println!("  | {line}");
        }
        println!("\nWho holds what (davit devices):");
        println!("{}", demo.table().await?);
        println!(
            "Try: kubectl --kubeconfig {} get pods,nodes",
            server.kubeconfig.display()
        );
        println!("Ctrl-C stops and removes everything the demo started.");
        Ok(demo)
    }

    /// Stops the pod and the plugin.
    pub(crate) async fn stop(mut self, _server: &RunningServer) {
        println!("\nstopping the demo …");
        if let Err(error) = self.delete_pod().await {
            eprintln!("davit: the demo's pod was not deleted: {error:#}");
        }
        if let Some(pid) = self.plugin.id().and_then(|pid| i32::try_from(pid).ok()) {
            let pid = nix::unistd::Pid::from_raw(pid);
            // It may have ended meanwhile.
            let _gone = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
        if tokio::time::timeout(Duration::from_secs(5), self.plugin.wait())
            .await
            .is_err()
        {
            let _killed = self.plugin.kill().await;
        }
    }

    fn pods(&self) -> kube::Api<Pod> {
        kube::Api::namespaced(self.client.clone(), "default")
    }

    async fn wait_for_devices(&self) -> Result<()> {
        let nodes: kube::Api<Node> = kube::Api::all(self.client.clone());
        let deadline = Instant::now() + STEP;
        while Instant::now() < deadline {
            let nodes = nodes
                .list(&kube::api::ListParams::default())
                .await
                .context("cannot list nodes")?;
            let offered = nodes
                .items
                .iter()
                .filter_map(|n| n.status.as_ref()?.allocatable.as_ref()?.get(RESOURCE));
            if offered.into_iter().any(|quantity| quantity.0 != "0") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("no node offers {RESOURCE} after {} s", STEP.as_secs())
    }

    async fn table(&self) -> Result<String> {
        Ok(devices::text(
            &devices::collect(&self.client, None).await?,
            false,
            Paint::NONE,
        ))
    }

    async fn run_pod(&self) -> Result<()> {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "name": POD },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": CONTAINER,
                    "image": "davit.local/host",
                    "command": ["/bin/sh", "-c", SCRIPT],
                    "resources": { "limits": { RESOURCE: "2" } },
                }],
            },
        }))?;
        let deadline = Instant::now() + STEP;
        loop {
            match self.pods().create(&PostParams::default(), &pod).await {
                Ok(_) => return Ok(()),
                // The namespace's service account is made a moment after the cluster is up.
                Err(kube::Error::Api(status))
                    if status.code == 403 && Instant::now() < deadline =>
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error).context("cannot create the demo's pod"),
            }
        }
    }

    async fn wait_for_output(&self) -> Result<String> {
        let deadline = Instant::now() + STEP;
        let mut last = String::new();
        while Instant::now() < deadline {
            let pod = self
                .pods()
                .get(POD)
                .await
                .context("cannot read the demo's pod")?;
            let status = pod.status.unwrap_or_default();
            match status.phase.as_deref() {
                Some("Running") => {
                    let params = LogParams {
                        container: Some(CONTAINER.to_owned()),
                        ..LogParams::default()
                    };
                    if let Ok(log) = self.pods().logs(POD, &params).await
                        && log.lines().any(|line| line == "done")
                    {
                        return Ok(log.trim_end_matches("done\n").to_owned());
                    }
                }
                Some("Failed") => {
                    bail!(
                        "the demo's pod failed: {}",
                        status.message.or(status.reason).unwrap_or_default()
                    )
                }
                _ => {
                    last = format!(
                        "{:?}",
                        status
                            .container_statuses
                            .unwrap_or_default()
                            .first()
                            .map(|c| &c.state)
                    );
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!(
            "the demo's pod did not run within {} s; `davit explain pod {POD}` says why ({last})",
            STEP.as_secs()
        )
    }

    async fn delete_pod(&self) -> Result<()> {
        if self.pods().get_opt(POD).await?.is_none() {
            return Ok(());
        }
        self.pods().delete(POD, &DeleteParams::default()).await?;
        let deadline = Instant::now() + STEP;
        while self.pods().get_opt(POD).await?.is_some() {
            if Instant::now() > deadline {
                bail!("it is still there after {} s", STEP.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// `davit example-device`: the plugin itself.
pub(crate) async fn run_plugin(options: example_device::Options) -> Result<()> {
    example_device::run(options).await
}
