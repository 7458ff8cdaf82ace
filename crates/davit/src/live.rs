//! Names of objects for the shell that completes a command line: asked of the cluster that the line is about, within a short
//! time. A cluster that does not answer has no names; what is wrong is said when the line is run.

use crate::paths;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use davit_api::names::is_extended_resource;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

/// The variable by which the shells' scripts ask.
pub(crate) const VARIABLE: &str = "DAVIT_COMPLETE";
/// Whoever has pressed Tab waits no longer.
const DEADLINE: Duration = Duration::from_secs(1);
/// No terminal shows more.
const MOST: u32 = 500;

/// What an argument names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Live {
    Nodes,
    Namespaces,
    /// Extended resources of nodes, and drivers of dynamic resource allocation.
    Resources,
    Pods,
    Claims,
    /// Of the pod that the line names.
    Containers,
    /// `KIND/NAME`.
    Objects,
}

/// Kinds that are offered before their objects are.
const KINDS: [(&str, Live); 3] = [
    ("pod", Live::Pods),
    ("node", Live::Nodes),
    ("claim", Live::Claims),
];

/// Completes an argument that names one of these.
pub(crate) fn names(of: Live) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let begun = current.to_str().unwrap_or_default();
        candidates(of, begun, &Line::of_process())
    })
}

fn candidates(of: Live, begun: &str, line: &Line) -> Vec<CompletionCandidate> {
    let found = match (of, begun.split_once('/')) {
        (Live::Objects, None) => KINDS.iter().map(|(kind, _)| format!("{kind}/")).collect(),
        (Live::Objects, Some((kind, _))) => {
            let known = KINDS.iter().find(|(known, _)| *known == kind);
            let names = known.map_or_else(BTreeSet::new, |(_, of)| asked(*of, line));
            names.iter().map(|name| format!("{kind}/{name}")).collect()
        }
        _ => asked(of, line),
    };
    let fitting = found.into_iter().filter(|name| name.starts_with(begun));
    fitting.map(CompletionCandidate::new).collect()
}

/// What the cluster has, as far as it says so in time.
fn asked(of: Live, line: &Line) -> BTreeSet<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return BTreeSet::new();
    };
    let answer = runtime.block_on(async { tokio::time::timeout(DEADLINE, list(of, line)).await });
    runtime.shutdown_background();
    let names = answer.ok().and_then(Result::ok).unwrap_or_default();
    names.into_iter().filter(|name| is_plain(name)).collect()
}

/// A word that means nothing to a shell.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/:".contains(c);
    !name.is_empty() && name.chars().all(is_plain)
}

async fn list(of: Live, line: &Line) -> anyhow::Result<BTreeSet<String>> {
    let kubeconfig = paths::find_kubeconfig(line.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let namespace = line.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    match of {
        Live::Nodes => names_of(Api::<Node>::all(client)).await,
        Live::Namespaces => names_of(Api::<Namespace>::all(client)).await,
        Live::Pods => names_of(Api::<Pod>::namespaced(client, &namespace)).await,
        Live::Claims => names_of(Api::<ResourceClaim>::namespaced(client, &namespace)).await,
        Live::Resources => resources(client).await,
        Live::Containers => {
            let pod = line.pod.clone().unwrap_or_default();
            let pod = Api::<Pod>::namespaced(client, &namespace).get(&pod).await?;
            let spec = pod.spec.unwrap_or_default();
            let all = spec.containers.into_iter();
            let all = all.chain(spec.init_containers.into_iter().flatten());
            Ok(all.map(|container| container.name).collect())
        }
        Live::Objects => Ok(BTreeSet::new()),
    }
}

async fn names_of<K>(objects: Api<K>) -> anyhow::Result<BTreeSet<String>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let listed = objects
        .list_metadata(&ListParams::default().limit(MOST))
        .await?;
    let names = listed.items.into_iter();
    Ok(names.filter_map(|object| object.metadata.name).collect())
}

async fn resources(client: kube::Client) -> anyhow::Result<BTreeSet<String>> {
    let some = ListParams::default().limit(MOST);
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let nodes: Api<Node> = Api::all(client);
    let (slices, nodes) = tokio::join!(slices.list(&some), nodes.list(&some));
    let statuses = nodes?.items.into_iter().filter_map(|node| node.status);
    let offered = statuses.flat_map(|status| status.capacity.unwrap_or_default().into_keys());
    let mut found: BTreeSet<String> = offered.filter(|name| is_extended_resource(name)).collect();
    // Not every cluster has them.
    let slices = slices.map(|list| list.items).unwrap_or_default();
    found.extend(slices.into_iter().map(|slice| slice.spec.driver));
    Ok(found)
}

/// What of a line says which objects are meant.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    kubeconfig: Option<PathBuf>,
    namespace: Option<String>,
    /// The first word after `logs` that is no flag.
    pod: Option<String>,
}

impl Line {
    /// The shells' scripts put the line behind `--`; kubectl's words are all there is.
    fn of_process() -> Self {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = words.collect();
        let begin = words.iter().position(|word| word == "--");
        Self::read(&words[begin.map_or(0, |at| at + 1)..])
    }

    fn read(words: &[String]) -> Self {
        let mut line = Self::default();
        let mut is_logs = false;
        let mut words = words.iter().map(String::as_str).skip(1);
        while let Some(word) = words.next() {
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) => (flag, Some(value)),
                None => (word, None),
            };
            match flag {
                "--kubeconfig" => {
                    let value = value.or_else(|| words.next()).unwrap_or_default();
                    line.kubeconfig = Some(at_home(value));
                }
                "-n" | "--namespace" => {
                    let value = value.or_else(|| words.next());
                    line.namespace = value.filter(|v| !v.is_empty()).map(str::to_owned);
                }
                "-c" | "--container" | "--tail" | "--since" if value.is_none() => {
                    words.next();
                }
                "logs" | "log" if !is_logs => is_logs = true,
                word if is_logs && line.pod.is_none() && !word.starts_with('-') => {
                    line.pod = Some(word.to_owned());
                }
                _ => {}
            }
        }
        line
    }
}

/// Shells hand words over as they stand: nobody has put the home directory in.
fn at_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_which_cluster_and_namespace_are_meant() {
        let read = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Line::read(&words)
        };
        let line = read("davit logs -n lab -c main web-0 --kubeconfig=/k -f");
        let expected = Line {
            kubeconfig: Some("/k".into()),
            namespace: Some("lab".to_owned()),
            pod: Some("web-0".to_owned()),
        };
        assert_eq!(line, expected);
        assert_eq!(read("davit devices --node "), Line::default());
        assert_eq!(read("davit explain pod x").pod, None);
    }

    #[test]
    fn a_cluster_that_is_away_has_no_names_and_says_nothing() {
        let line = Line {
            kubeconfig: Some("/nowhere/kubeconfig".into()),
            ..Line::default()
        };
        assert!(candidates(Live::Nodes, "", &line).is_empty());
        let kinds = candidates(Live::Objects, "n", &line);
        assert_eq!(kinds.len(), 1);
        assert!(candidates(Live::Objects, "node/x", &line).is_empty());
    }

    #[test]
    fn names_that_a_shell_would_run_are_left_out() {
        assert!(is_plain("hardware-vendor.example/foo"));
        for name in ["", "a b", "$(reboot)", "a;b", "a\x1b[2J", "a\nb", "`x`"] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
