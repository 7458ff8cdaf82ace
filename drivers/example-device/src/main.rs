//! The example device plugin as a program.

use anyhow::Result;
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Example device plugin: advertises devices of one extended resource.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: example_device::Options,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    example_device::run(Args::parse().options).await
}
