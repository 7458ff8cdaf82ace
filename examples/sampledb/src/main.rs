//! SampleDB: an operator for small databases, and what runs in the pods that it makes. See README.md.
#![forbid(unsafe_code)]

mod certificate;
mod engine;
mod lease;
mod objects;
mod operator;
mod plan;
mod reconcile;
mod resource;
mod review;
mod webhook;
mod work;

use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// An operator for small databases.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The operator, in the cluster or with a kubeconfig.
    Operator(operator::Options),
    /// What the containers of a database do.
    Work(WorkOptions),
}

#[derive(Debug, Args)]
struct WorkOptions {
    #[command(flatten)]
    settings: work::Settings,
    #[command(subcommand)]
    task: work::Task,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let result = match Cli::parse().command {
        Command::Operator(options) => operator::run(&options),
        Command::Work(options) => work::run(&options.settings, options.task),
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    let text = format!("{error:#}");
    eprintln!("sampledb: {text}");
    // where Kubernetes looks for a container's last words; there is none outside of one
    let _outside = std::fs::write("/dev/termination-log", text);
    ExitCode::FAILURE
}
