//! The example DRA driver as a program.

use anyhow::Result;
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Example DRA driver: simulated GPUs with partitions, shares and sharing parameters.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: example_gpu::Options,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    // Whoever uses the library in a program of their own may have chosen another one before.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    example_gpu::run(Args::parse().options).await
}
