//! `davit devices`: which device is where, healthy or not, and which container holds it.

use crate::args::{Devices, Output};
use crate::{paths, table};
use anyhow::{Context, Result};
use davit_api::devices::NodeDevices;
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long one node may take to answer.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a watch waits before it asks a node again that went away.
const RETRY: Duration = Duration::from_secs(1);

/// What one node said, or why it did not.
pub(crate) type Answer = (String, Result<NodeDevices, String>);

pub(crate) async fn run(args: Devices) -> Result<()> {
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    if args.watch {
        return watch(&client, &args).await;
    }
    let answers = collect(&client, args.node.as_deref()).await?;
    print!("{}", format(&answers, args.output)?);
    Ok(())
}

/// The devices of all nodes (or of one), nodes in order of their names.
pub(crate) async fn collect(client: &kube::Client, only: Option<&str>) -> Result<Vec<Answer>> {
    let mut asking = JoinSet::new();
    for node in node_names(client, only).await? {
        let client = client.clone();
        asking.spawn(async move {
            let answer = tokio::time::timeout(NODE_DEADLINE, ask(&client, &node)).await;
            let answer = answer
                .unwrap_or_else(|_| Err(format!("no answer within {} s", NODE_DEADLINE.as_secs())));
            (node, answer)
        });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(answers)
}

async fn node_names(client: &kube::Client, only: Option<&str>) -> Result<Vec<String>> {
    if let Some(name) = only {
        return Ok(vec![name.to_owned()]);
    }
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    let nodes = nodes
        .list_metadata(&ListParams::default())
        .await
        .context("cannot list nodes")?;
    Ok(nodes
        .items
        .into_iter()
        .filter_map(|node| node.metadata.name)
        .collect())
}

fn path(node: &str, query: &str) -> String {
    format!("/api/v1/nodes/{node}/proxy/devices{query}")
}

async fn ask(client: &kube::Client, node: &str) -> Result<NodeDevices, String> {
    let request = http::Request::get(path(node, ""))
        .body(Vec::new())
        .map_err(|e| e.to_string())?;
    client.request(request).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            "its node agent serves no device table (not a davit node)".to_owned()
        }
        // Only an answer with a body that is no Status comes with the reason of another program.
        kube::Error::Api(status) => format!("{}, HTTP {}", status.message, status.code),
        other => other.to_string(),
    })
}

async fn watch(client: &kube::Client, args: &Devices) -> Result<()> {
    let (updates, mut changed) = mpsc::channel::<Answer>(64);
    let mut following = JoinSet::new();
    for node in node_names(client, args.node.as_deref()).await? {
        following.spawn(follow(client.clone(), node, updates.clone()));
    }
    drop(updates);
    let mut known: BTreeMap<String, Result<NodeDevices, String>> = BTreeMap::new();
    let mut signals = crate::shutdown::Signals::new()?;
    loop {
        tokio::select! {
            () = signals.recv() => return Ok(()),
            answer = changed.recv() => {
                let Some((node, answer)) = answer else { return Ok(()) };
                if args.output == Some(Output::Json) {
                    if let Ok(devices) = &answer {
                        println!("{}", serde_json::to_string(devices)?);
                    }
                    continue;
                }
                known.insert(node, answer);
                let answers: Vec<Answer> = known.clone().into_iter().collect();
                println!("{}", format(&answers, args.output)?);
            }
        }
    }
}

/// Passes on what a node says, for ever; a node that goes away is asked again.
async fn follow(client: kube::Client, node: String, updates: mpsc::Sender<Answer>) {
    loop {
        let ended = stream(&client, &node, &updates).await;
        let why = ended
            .err()
            .map_or_else(|| "connection closed".to_owned(), |e| format!("{e:#}"));
        if updates.send((node.clone(), Err(why))).await.is_err() {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn stream(client: &kube::Client, node: &str, updates: &mpsc::Sender<Answer>) -> Result<()> {
    let request = http::Request::get(path(node, "?watch=true")).body(Vec::new())?;
    let mut lines = client
        .request_stream(request)
        .await?
        .lines()
        .map_err(anyhow::Error::from)
        .boxed();
    while let Some(line) = lines.try_next().await? {
        let devices: NodeDevices =
            serde_json::from_str(&line).context("device table of the node")?;
        updates.send((node.to_owned(), Ok(devices))).await?;
    }
    Ok(())
}

fn format(answers: &[Answer], output: Option<Output>) -> Result<String> {
    let tables: Vec<&NodeDevices> = answers
        .iter()
        .filter_map(|(_, a)| a.as_ref().ok())
        .collect();
    Ok(match output {
        Some(Output::Json) => format!(
            "{}\n",
            serde_json::to_string_pretty(&serde_json::json!({ "nodes": tables }))?
        ),
        Some(Output::Yaml) => serde_saphyr::to_string(&serde_json::json!({ "nodes": tables }))?,
        other => text(answers, other == Some(Output::Wide)),
    })
}

/// The table for people.
pub(crate) fn text(answers: &[Answer], wide: bool) -> String {
    let mut rows = Vec::new();
    let mut notes = String::new();
    for (node, answer) in answers {
        match answer {
            Ok(devices) => {
                rows.extend(devices.devices.iter().map(|device| row(node, device, wide)));
            }
            Err(why) => notes.push_str(&format!("node {node}: {why}\n")),
        }
    }
    let mut header = vec![
        "NODE",
        "RESOURCE",
        "DEVICE",
        "HEALTH",
        "NUMA",
        "POD",
        "CONTAINER",
    ];
    if wide {
        header.extend(["SINCE", "REASON"]);
    }
    let all_silent = !answers.is_empty() && answers.iter().all(|(_, a)| a.is_err());
    if rows.is_empty() && all_silent {
        return notes;
    }
    if rows.is_empty() {
        return format!("No devices found.\n{notes}");
    }
    table::render(&header, &rows) + &notes
}

fn row(node: &str, device: &davit_api::devices::Device, wide: bool) -> Vec<String> {
    let or_dash = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    let numa: Vec<String> = device.numa_nodes.iter().map(ToString::to_string).collect();
    let mut pods: Vec<String> = device
        .holders
        .iter()
        .map(|h| format!("{}/{}", h.namespace, h.pod))
        .collect();
    pods.dedup();
    let containers: Vec<&str> = device
        .holders
        .iter()
        .map(|h| h.container.as_str())
        .collect();
    let mut row = vec![
        node.to_owned(),
        device.resource.clone(),
        device.id.clone(),
        device.health.clone(),
        or_dash(numa.join(",")),
        or_dash(pods.join(",")),
        or_dash(containers.join(",")),
    ];
    if wide {
        row.push(or_dash(
            device
                .holders
                .first()
                .map(|h| h.since.clone())
                .unwrap_or_default(),
        ));
        row.push(or_dash(device.reason.clone()));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::devices::{Device, Holder};

    #[test]
    fn table_names_holders_and_nodes_that_did_not_answer() {
        let holder = Holder {
            namespace: "default".into(),
            pod: "p".into(),
            container: "c".into(),
            ..Holder::default()
        };
        let device = |id: &str, holders: Vec<Holder>| Device {
            resource: "x.example/foo".into(),
            id: id.into(),
            health: "Healthy".into(),
            numa_nodes: vec![0],
            holders,
            ..Device::default()
        };
        let devices = vec![device("foo-0", vec![holder]), device("foo-1", Vec::new())];
        let answers = vec![
            (
                "a".to_owned(),
                Ok(NodeDevices {
                    node: "a".into(),
                    generation: 1,
                    devices,
                }),
            ),
            ("b".to_owned(), Err("no answer within 10 s".to_owned())),
        ];
        let expected = "\
NODE   RESOURCE        DEVICE   HEALTH    NUMA   POD         CONTAINER
a      x.example/foo   foo-0    Healthy   0      default/p   c
a      x.example/foo   foo-1    Healthy   0      -           -
node b: no answer within 10 s
";
        assert_eq!(text(&answers, false), expected);
    }
}
