//! `davit exporter`: Prometheus metrics of the devices of a node.

use crate::paths;
use crate::shutdown::{STOPPING, Signals};
use anyhow::Result;
use davit_lab::exporter::{self, Exporter};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Podresources socket of the node agent, davit's or a kubelet's
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pod_resources_socket: PathBuf,
    /// Where to serve /metrics (port 0 = any)
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:9410")]
    listen: SocketAddr,
    /// Name of the node, for the label `node` [default: $NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    let mut signals = Signals::new()?;
    let node = options.node_name.map_or_else(paths::host_name, Ok)?;
    let exporter = Arc::new(Exporter::new(&options.pod_resources_socket, node));
    let cancel = CancellationToken::new();
    let bound = |address: SocketAddr| println!("metrics at http://{address}/metrics");
    let serving = exporter::serve(exporter, options.listen, bound, cancel.clone());
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        () = signals.recv() => cancel.cancel(),
        ended = &mut serving => return Ok(ended?),
    }
    signals
        .stop_within(STOPPING, async { Ok(serving.await?) })
        .await
}
