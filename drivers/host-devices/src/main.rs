//! The plugin for device files of the host as a program.

use anyhow::Result;
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Device plugin for any device files of the host.
#[derive(Debug, Parser)]
#[command(name = "host-devices", version)]
struct Args {
    #[command(flatten)]
    options: host_devices::Options,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    host_devices::run(Args::parse().options).await
}
