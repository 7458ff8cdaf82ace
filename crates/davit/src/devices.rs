//! `davit devices`: which device is where, healthy or not, and which container holds it.

use crate::cluster_flag::Cluster;
use crate::output::Output;
use crate::plain::{or_dash, shortened};
use crate::{paths, table};
use anyhow::{Context, Result, bail};
use davit_api::devices::{Device, NodeDevices};
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

/// What `davit devices` takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Devices {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// Output format
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<Output>,
    /// Go on printing as things change
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Only this node
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
}

/// What one node said, or why it did not.
pub(crate) type Answer = (String, Result<NodeDevices, String>);

pub(crate) async fn run(args: Devices) -> Result<()> {
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    if args.watch {
        return watch(&client, &args).await;
    }
    let answers = collect(&client, args.node.as_deref()).await?;
    let silent = !answers.is_empty() && answers.iter().all(|(_, answer)| answer.is_err());
    if silent {
        bail!("{}", notes(&answers).trim_end());
    }
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
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    if let Some(name) = only {
        let found = nodes.get_metadata_opt(name).await;
        return match found.with_context(|| format!("cannot read node {name}"))? {
            Some(_) => Ok(vec![name.to_owned()]),
            None => bail!("there is no node {name}"),
        };
    }
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
    let wide = args.output == Some(Output::Wide);
    let mut known: BTreeMap<String, Shown> = BTreeMap::new();
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
                if args.output == Some(Output::Yaml) {
                    if let Ok(devices) = &answer {
                        print!("---\n{}", serde_saphyr::to_string(devices)?);
                    }
                    continue;
                }
                let now = Shown::new(&node, &answer, wide);
                print!("{}", now.since(known.get(&node), wide));
                known.insert(node, now);
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

/// What a watch has shown of one node.
struct Shown {
    rows: Vec<Vec<String>>,
    note: Option<String>,
}

impl Shown {
    fn new(node: &str, answer: &Result<NodeDevices, String>, wide: bool) -> Self {
        match answer {
            Ok(devices) => Self {
                rows: rows(node, devices, wide),
                note: None,
            },
            Err(why) => Self {
                rows: Vec::new(),
                note: Some(format!("node {node}: {why}\n")),
            },
        }
    }

    /// What is new since then: everything the first time, afterwards rows that have changed (`~`), come (`+`) or gone
    /// (`-`), with the time.
    fn since(&self, before: Option<&Self>, wide: bool) -> String {
        let Some(before) = before.filter(|before| before.note.is_none()) else {
            return match &self.note {
                Some(note) => note.clone(),
                None => table::render(&header(wide), &self.rows),
            };
        };
        if let Some(note) = &self.note {
            return note.clone();
        }
        let key = |row: &Vec<String>| row.get(..KEY).map(<[String]>::to_vec);
        let has = |rows: &[Vec<String>], row: &Vec<String>| rows.iter().any(|r| key(r) == key(row));
        let mark = |mark: &str, row: &Vec<String>| {
            let mut marked = row.clone();
            if let Some(first) = marked.first_mut() {
                first.insert_str(0, mark);
            }
            marked
        };
        let new = self.rows.iter().filter(|row| !before.rows.contains(row));
        let mut changed: Vec<Vec<String>> = new
            .map(|row| mark(if has(&before.rows, row) { "~ " } else { "+ " }, row))
            .collect();
        let gone = before.rows.iter().filter(|row| !has(&self.rows, row));
        changed.extend(gone.map(|row| mark("- ", row)));
        if changed.is_empty() {
            return String::new();
        }
        let now = jiff::Timestamp::now().strftime("%H:%M:%SZ");
        format!("\n{now}\n{}", table::render(&header(wide), &changed))
    }
}

/// How many of the first cells name the thing that a row is about.
const KEY: usize = 3;
/// IDs that are longer are shortened in the middle, so that who holds the device stays on the screen.
const ID: usize = 36;

fn header(wide: bool) -> Vec<&'static str> {
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
        header.extend(["CLAIM", "SINCE", "REASON"]);
    }
    header
}

/// The table for people.
pub(crate) fn text(answers: &[Answer], wide: bool) -> String {
    let answered = answers
        .iter()
        .filter_map(|(node, answer)| Some((node, answer.as_ref().ok()?)));
    let rows: Vec<Vec<String>> = answered
        .flat_map(|(node, devices)| rows(node, devices, wide))
        .collect();
    if rows.is_empty() {
        return format!("No devices found.\n{}", notes(answers));
    }
    table::render(&header(wide), &rows) + &notes(answers)
}

/// Nodes that did not answer.
fn notes(answers: &[Answer]) -> String {
    let silent = answers
        .iter()
        .filter_map(|(node, answer)| Some((node, answer.as_ref().err()?)));
    silent
        .map(|(node, why)| format!("node {node}: {why}\n"))
        .collect()
}

fn rows(node: &str, devices: &NodeDevices, wide: bool) -> Vec<Vec<String>> {
    let empty = devices.empty.iter().map(|resource| Device {
        resource: resource.clone(),
        reason: "its plugin has no device".to_owned(),
        ..Device::default()
    });
    let listed = devices.devices.iter().cloned().chain(empty);
    let all = listed.chain(devices.held.iter().cloned());
    all.map(|device| row(node, &device, wide)).collect()
}

fn row(node: &str, device: &Device, wide: bool) -> Vec<String> {
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
    let id = if wide {
        device.id.clone()
    } else {
        shortened(&device.id, ID)
    };
    let mut row = vec![
        node.to_owned(),
        device.resource.clone(),
        or_dash(id),
        or_dash(device.health.clone()),
        or_dash(numa.join(",")),
        or_dash(pods.join(",")),
        or_dash(containers.join(",")),
    ];
    if wide {
        let since = device.holders.first().map(|h| h.since.clone());
        row.push(or_dash(device.claim.clone()));
        row.push(or_dash(since.unwrap_or_default()));
        row.push(or_dash(device.reason.clone()));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::devices::Holder;

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
                    ..NodeDevices::default()
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

    fn held(resource: &str, id: &str, health: &str) -> Device {
        Device {
            resource: resource.into(),
            id: id.into(),
            health: health.into(),
            holders: vec![Holder {
                namespace: "n".into(),
                pod: "p".into(),
                container: "c".into(),
                ..Holder::default()
            }],
            ..Device::default()
        }
    }

    #[test]
    fn what_is_held_without_a_plugin_and_plugins_without_devices_are_shown() {
        let table = NodeDevices {
            node: "a".into(),
            held: vec![held("cpu", "2-3", "")],
            empty: vec!["x.example/none".into()],
            ..NodeDevices::default()
        };
        let expected = "\
NODE   RESOURCE         DEVICE   HEALTH   NUMA   POD   CONTAINER
a      x.example/none   -        -        -      -     -
a      cpu              2-3      -        -      n/p   c
";
        assert_eq!(text(&[("a".to_owned(), Ok(table))], false), expected);
    }

    #[test]
    fn long_ids_keep_their_beginning_and_end() {
        let id = "GPU-0123456789abcdef0123456789abcdef0123456789abcdef-end";
        let short = shortened(id, ID);
        assert_eq!(short.chars().count(), ID);
        assert!(
            short.starts_with("GPU-0123") && short.ends_with("-end"),
            "{short}"
        );
        assert_eq!(shortened("GPU-1", ID), "GPU-1");
    }

    #[test]
    fn a_watch_shows_what_changed() {
        let of = |devices: Vec<Device>| {
            let table = NodeDevices {
                devices,
                ..NodeDevices::default()
            };
            Shown::new("a", &Ok(table), false)
        };
        let before = of(vec![
            held("r", "1", "Healthy"),
            held("r", "2", "Healthy"),
            held("r", "3", "Healthy"),
        ]);
        assert_eq!(before.since(None, false).lines().count(), 4);
        assert_eq!(before.since(Some(&before), false), "");
        let after = of(vec![
            held("r", "1", "Healthy"),
            held("r", "2", "Unhealthy"),
            held("r", "4", "Healthy"),
        ]);
        let text = after.since(Some(&before), false);
        let marks: Vec<&str> = text.lines().skip(3).map(|line| &line[..1]).collect();
        assert_eq!(marks, ["~", "+", "-"], "{text}");
        let lost = Shown::new("a", &Err("gone".to_owned()), false);
        assert_eq!(lost.since(Some(&after), false), "node a: gone\n");
        assert_eq!(after.since(Some(&lost), false).lines().count(), 4);
    }
}
