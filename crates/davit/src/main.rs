//! davit: a Kubernetes-compatible cluster for devices in one binary.
#![forbid(unsafe_code)]

mod access;
mod args;
mod backup;
mod check;
mod cluster_ca;
mod cluster_flag;
mod completion;
mod component_serving;
mod components;
mod configuration;
mod conntrack_flags;
mod controllers;
mod debug;
mod demo;
mod devices;
mod dns;
mod dns_flags;
mod down;
mod elections;
mod etcd;
mod events;
mod exit;
mod explain;
mod exporter;
mod features;
mod hidden_arguments;
mod image;
mod install;
mod join;
mod kube_proxy_flags;
mod kubeconfig;
mod kubelet_flags;
mod lab;
mod leader_election;
mod live;
mod logs;
mod new;
mod node_identity;
mod node_name;
mod numa;
mod open_files;
mod output;
mod owner;
mod page;
mod paths;
mod plain;
mod plugin;
mod pod_network;
mod pod_ranges;
mod pod_state;
mod protection;
mod proxy;
mod proxy_config;
mod proxy_flags;
mod reference;
mod route_flags;
mod scheduler;
mod scheduler_flags;
mod scratch;
mod served_scheduler;
mod service_manager;
mod serving;
mod shutdown;
mod single;
mod status;
mod table;
mod test_assets;
mod token;
mod top;
mod up;

use anyhow::Context;
use args::{Args, Command};
use page::Paint;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// With the C library's, a fifth of the processor time of a pod goes into allocating, and more the longer a cluster runs. Without huge
/// pages, which would double the memory of an idle one (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A container's monitor is this binary again; it must begin before any thread exists and never returns.
    davit_oci::monitor::main_if_invoked();
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("davit: another TLS provider is installed already");
    }
    // What a shell asks is answered here, and that is all.
    if completion::answer_kubectl(Args::plugin) {
        return ExitCode::SUCCESS;
    }
    clap_complete::CompleteEnv::with_factory(Args::full_command)
        .var(live::VARIABLE)
        .complete();
    let args = Args::of_process();
    let shown = hidden_arguments::hide().err();
    let few_files = open_files::raise().err();
    init_log(&args);
    if let Some(error) = shown {
        tracing::warn!(%error, "secrets of the command line can be seen by all accounts of this machine");
    }
    if let Some(error) = few_files {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // Frames of debug builds are several times as large.
        .thread_stack_size(if cfg!(debug_assertions) {
            4 << 20
        } else {
            1 << 20
        })
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot start")),
    };
    let result = runtime.block_on(run(args));
    // Whatever still blocks (a file system that hangs) must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let paint = Paint::of(args.color);
    match args.command {
        Command::Up(up) => up::run(up).await,
        Command::Down(down) => down::run(down).await,
        Command::Install(flags) => install::install(&flags, &Args::full_command()),
        Command::Uninstall(flags) => install::uninstall(flags, &Args::full_command()).await,
        Command::Server(server) => single::server(server).await,
        Command::Scheduler(flags) => scheduler::run(*flags).await,
        Command::Controllers(args) => controllers::run(*args).await,
        Command::Node(node) => single::node(node).await,
        Command::Proxy(proxy) => proxy::run(*proxy).await,
        Command::Dns(dns) => dns::run(dns).await,
        Command::Token(token) => token::run(token).await,
        Command::Devices(devices) => devices::run(devices, paint).await,
        Command::Explain(explain) => explain::run(explain, paint).await,
        Command::Status(args) => status::run(args, paint).await,
        Command::Top(top) => top::run(top, args.color).await,
        Command::Events(args) => events::run(args, paint).await,
        Command::Logs(args) => logs::run(args).await,
        Command::Kubeconfig(args) => kubeconfig::run(args),
        Command::New(args) => new::run(args),
        Command::Debug(args) => debug::run(args).await,
        Command::Image(image) => image::run(image).await,
        Command::Backup(args) => backup::backup(args).await,
        Command::Restore(args) => backup::restore(args).await,
        Command::Check(args) => check::run(args).await,
        Command::TestAssets(args) => test_assets::run(&args),
        Command::Etcd(args) => test_assets::etcd(args).await,
        Command::Config(flags) => configuration::run(flags, &Args::full_command()),
        Command::Completion { shell } => {
            let written = std::io::stdout().write_all(&completion::script(shell)?);
            written.context("cannot write the script")
        }
        Command::Reference(args) => reference::run(&args, Args::full_command()),
        Command::Version => {
            println!("davit {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Command::Features(features) => features::run(&features),
        Command::Exporter(options) => exporter::run(options).await,
        Command::Lab(lab) => lab::run(lab).await,
        Command::ExampleDevice(options) => demo::run_plugin(options).await,
        Command::ClassicTest(options) => classic_test::run(options).await,
        Command::ExampleGpu(options) => example_gpu::run(options).await,
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    if let Some(exit::ExitWith(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    // What servers, registries and nodes have said is in it.
    eprint!("davit: {}", plain::printable_lines(&sentence(error)));
    if is_unreachable(error) {
        eprintln!(
            "  `davit status` says how a cluster is, `davit up` starts one; --kubeconfig FILE and $KUBECONFIG name another"
        );
    }
    ExitCode::FAILURE
}

/// Whether no API server has answered.
fn is_unreachable(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    causes.any(|cause| matches!(cause, kube::Error::Service(_) | kube::Error::HyperError(_)))
}

/// What failed and why, each cause once: many errors repeat in their own text what caused them.
fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        // What the client puts before a cause that is told next.
        let text = cause.to_string();
        let text = text
            .strip_prefix("ServiceError: ")
            .unwrap_or(&text)
            .to_owned();
        if said.is_empty() {
            said = text;
        } else if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
    }
    said
}

fn init_log(args: &Args) {
    use tracing_subscriber::EnvFilter;
    let filter =
        EnvFilter::try_from_env("DAVIT_LOG").unwrap_or_else(|_| EnvFilter::new(args.default_log()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // files and pipes get plain text
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(true)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::anyhow!("connection refused")
            .context("cannot reach 10.0.0.1:6443: connection refused")
            .context("cannot list nodes");
        let wanted = "cannot list nodes: cannot reach 10.0.0.1:6443: connection refused";
        assert_eq!(sentence(&error), wanted);
    }
}
