//! `davit logs`: what a container of a pod writes.

use crate::cluster_flag::Cluster;
use crate::live::{self, Live};
use crate::paths;
use anyhow::{Context, Result, bail};
use futures::AsyncReadExt;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::LogParams;
use std::io::{ErrorKind, Write};

/// The annotation by which a pod says which container is meant when none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// As much is read at once.
const PIECE: usize = 64 << 10;

/// What `davit logs` takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Logs {
    /// Name of the pod
    #[arg(value_name = "POD", add = live::names(Live::Pods))]
    pod: String,
    /// The container [default: the pod's default container, else its first]
    #[arg(short, long, value_name = "NAME", add = live::names(Live::Containers))]
    container: Option<String>,
    /// Go on with what it writes
    #[arg(short, long)]
    follow: bool,
    /// Only the last so many lines
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..))]
    tail: Option<i64>,
    /// Only what is not older than so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..))]
    since: Option<i64>,
    /// With the time of each line
    #[arg(long)]
    timestamps: bool,
    /// Of the container that ran before this one
    #[arg(short, long)]
    previous: bool,
    /// Namespace of the pod [default: the kubeconfig's]
    #[arg(short, long, add = live::names(Live::Namespaces))]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
}

/// Runs `davit logs`.
pub(crate) async fn run(args: Logs) -> Result<()> {
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let namespace = args.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let name = ["pod/", "pods/", "po/"]
        .iter()
        .find_map(|kind| args.pod.strip_prefix(kind))
        .unwrap_or(&args.pod);
    let pods: kube::Api<Pod> = kube::Api::namespaced(client, &namespace);
    let Some(pod) = pods.get_opt(name).await.context("cannot read the pod")? else {
        bail!("there is no pod {name} in namespace {namespace}; `davit top --once` lists all");
    };
    let (container, others) = chosen(&pod, args.container.as_deref())?;
    if args.container.is_none() && !others.is_empty() {
        eprintln!(
            "container {container}; -c names another: {}",
            others.join(", ")
        );
    }
    let params = LogParams {
        container: Some(container.clone()),
        follow: args.follow,
        tail_lines: args.tail,
        since_seconds: args.since,
        timestamps: args.timestamps,
        previous: args.previous,
        ..LogParams::default()
    };
    let of = format!("the log of container {container} in pod {namespace}/{name}");
    let stream = match pods.log_stream(name, &params).await {
        Ok(stream) => stream,
        Err(kube::Error::Api(status)) => bail!(
            "{}; `davit explain pod {name} -n {namespace}` says how the pod is",
            status.message
        ),
        Err(error) => return Err(error).with_context(|| format!("cannot read {of}")),
    };
    let mut signals = crate::shutdown::Signals::new()?;
    tokio::select! {
        () = signals.recv() => Ok(()),
        copied = copy(stream) => copied.with_context(|| format!("cannot read {of}")),
    }
}

/// Passes on what comes, until it ends or nobody reads it.
async fn copy(stream: impl futures::AsyncRead) -> Result<()> {
    let mut stream = std::pin::pin!(stream);
    let mut piece = vec![0; PIECE];
    loop {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        let written = out.write_all(&piece[..read]).and_then(|()| out.flush());
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            other => other.context("cannot write")?,
        }
    }
}

/// The container that is meant, and the pod's others.
fn chosen(pod: &Pod, asked: Option<&str>) -> Result<(String, Vec<String>)> {
    let spec = pod.spec.as_ref().context("the pod has no spec")?;
    let names = |all: &[Container]| -> Vec<String> { all.iter().map(|c| c.name.clone()).collect() };
    let mut all = names(&spec.containers);
    all.extend(names(spec.init_containers.as_deref().unwrap_or_default()));
    let extra = spec.ephemeral_containers.as_deref().unwrap_or_default();
    all.extend(extra.iter().map(|container| container.name.clone()));
    let annotations = pod.metadata.annotations.as_ref();
    let default = annotations
        .and_then(|a| a.get(DEFAULT_CONTAINER))
        .map(String::as_str);
    let default = default.filter(|name| all.iter().any(|have| have == name));
    let Some(name) = asked.or(default).or(all.first().map(String::as_str)) else {
        bail!("the pod has no containers");
    };
    let Some(at) = all.iter().position(|have| have == name) else {
        bail!("the pod has no container {name}; it has {}", all.join(", "));
    };
    let name = all.remove(at);
    Ok((name, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(annotations: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": {
            "containers": [{"name": "main"}, {"name": "side"}], "initContainers": [{"name": "init"}]}}))
        .unwrap()
    }

    #[test]
    fn the_container_is_the_one_named_the_default_or_the_first() {
        let plain = pod(&json!({}));
        assert_eq!(chosen(&plain, None).unwrap().0, "main");
        assert_eq!(chosen(&plain, Some("init")).unwrap().1, ["main", "side"]);
        let with_default = pod(&json!({DEFAULT_CONTAINER: "side"}));
        assert_eq!(chosen(&with_default, None).unwrap().0, "side");
        let wrong_default = pod(&json!({DEFAULT_CONTAINER: "gone"}));
        assert_eq!(chosen(&wrong_default, None).unwrap().0, "main");
        let error = chosen(&plain, Some("x")).unwrap_err().to_string();
        assert_eq!(error, "the pod has no container x; it has main, side, init");
    }
}
