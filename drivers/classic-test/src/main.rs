//! The classic test driver as a program.

use anyhow::Result;
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Test driver for classic dynamic resource allocation: controller and kubelet plugin.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: classic_test::Options,
}

#[tokio::main]
async fn main() -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("another TLS provider is installed already");
    }
    classic_test::run(Args::parse().options).await
}
