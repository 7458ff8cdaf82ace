//! `davit devices`: which device is where, healthy or not, and which container holds it.

mod watch;

use crate::cluster_flag::Cluster;
use crate::live::{self, Live};
use crate::output::{ListOutput, names};
use crate::page::{Page, Paint};
use crate::plain::{or_dash, printable, shortened};
use crate::{numa, paths, table};
use anyhow::{Context, Result, bail};
use davit_api::devices::{Device, NodeDevices};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use std::time::Duration;
use tokio::task::JoinSet;

/// So much is shown of why a node does not tell its devices.
const WHY: usize = 1024;

/// Most devices of a node, and most containers that have them.
pub(crate) const MOST_DEVICES: usize = 1 << 16;

/// How long one node may take to answer.
const NODE_DEADLINE: Duration = Duration::from_secs(10);

/// What `davit devices` takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Devices {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// Output format
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<ListOutput>,
    /// Go on printing as things change
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Only this node
    #[arg(long, value_name = "NAME", add = live::names(Live::Nodes))]
    pub(crate) node: Option<String>,
    /// Only devices of this resource (of claims: this driver)
    #[arg(long, value_name = "NAME", add = live::names(Live::Resources))]
    pub(crate) resource: Option<String>,
    /// Draw the nodes by their NUMA nodes: what each has, and who holds it
    #[arg(long, conflicts_with_all = ["watch", "output"])]
    pub(crate) numa: bool,
}

impl Devices {
    /// What was asked for of what a node has said.
    fn of(&self, mut answer: Answer) -> Answer {
        if let (Some(resource), Ok(table)) = (&self.resource, &mut answer.1) {
            table.devices.retain(|device| device.resource == *resource);
            table.held.retain(|device| device.resource == *resource);
            table.empty.retain(|empty| empty == resource);
        }
        answer
    }
}

/// What one node said, or why it did not.
pub(crate) type Answer = (String, Result<NodeDevices, String>);

pub(crate) async fn run(args: Devices, paint: Paint) -> Result<()> {
    let kubeconfig = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    if args.watch {
        return watch::run(&client, &args, paint).await;
    }
    let answers = collect(&client, args.node.as_deref()).await?;
    let answers: Vec<Answer> = answers.into_iter().map(|answer| args.of(answer)).collect();
    let silent = !answers.is_empty() && answers.iter().all(|(_, answer)| answer.is_err());
    if silent {
        bail!("{}", notes(&answers).trim_end());
    }
    if args.numa {
        print!("{}", drawn(&answers, paint));
    } else {
        print!("{}", format(&answers, args.output, paint)?);
    }
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
    let table = client.request::<NodeDevices>(request).await;
    let table = table.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            "its node agent serves no device table (not a davit node)".to_owned()
        }
        // Only an answer with a body that is no Status comes with the reason of another program.
        kube::Error::Api(status) => {
            let message = shortened(&status.message, WHY);
            format!("{message}, HTTP {}", status.code)
        }
        other => other.to_string(),
    })?;
    table_of(node, table)
}

/// What a node says is about that node, whatever name it tells.
///
/// # Errors
/// It tells of more than any node has: each is a row of many cells.
fn table_of(node: &str, table: NodeDevices) -> Result<NodeDevices, String> {
    let NodeDevices {
        devices,
        held,
        empty,
        numa,
        ..
    } = &table;
    let holders = devices.iter().chain(held).map(|one| one.holders.len());
    let told = devices.len() + held.len() + empty.len() + numa.len();
    if told > MOST_DEVICES || holders.sum::<usize>() > MOST_DEVICES {
        return Err(format!("it tells of more than {MOST_DEVICES} devices"));
    }
    Ok(NodeDevices {
        node: node.to_owned(),
        ..table
    })
}

/// Every node by its NUMA nodes.
fn drawn(answers: &[Answer], paint: Paint) -> String {
    let mut page = Page::new(paint);
    for (node, answer) in answers {
        if let Ok(devices) = answer {
            numa::draw(&mut page, node, devices);
        }
    }
    page.lines(&notes(answers));
    page.into_text()
}

/// `NODE/RESOURCE/DEVICE`, a line each.
fn paths_of(tables: &[&NodeDevices]) -> String {
    let of_table = |table: &&NodeDevices| -> Vec<String> {
        let all = table.devices.iter().chain(&table.held);
        all.map(|device| format!("{}/{}/{}", table.node, device.resource, device.id))
            .collect()
    };
    let paths: Vec<String> = tables.iter().flat_map(of_table).collect();
    names(paths.iter().map(String::as_str))
}

fn format(answers: &[Answer], output: Option<ListOutput>, paint: Paint) -> Result<String> {
    let tables: Vec<&NodeDevices> = answers
        .iter()
        .filter_map(|(_, a)| a.as_ref().ok())
        .collect();
    Ok(match output {
        Some(ListOutput::Json) => format!(
            "{}\n",
            serde_json::to_string_pretty(&serde_json::json!({ "nodes": tables }))?
        ),
        Some(ListOutput::Yaml) => serde_saphyr::to_string(&serde_json::json!({ "nodes": tables }))?,
        Some(ListOutput::Name) => paths_of(&tables),
        other => text(answers, other == Some(ListOutput::Wide), paint),
    })
}

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
pub(crate) fn text(answers: &[Answer], wide: bool, paint: Paint) -> String {
    let answered = answers
        .iter()
        .filter_map(|(node, answer)| Some((node, answer.as_ref().ok()?)));
    let rows: Vec<Vec<String>> = answered
        .flat_map(|(node, devices)| rows(node, devices, wide))
        .collect();
    if rows.is_empty() {
        return format!("No devices found.\n{}", notes(answers));
    }
    table::painted(&header(wide), &rows, paint) + &notes(answers)
}

/// Nodes that did not answer.
fn notes(answers: &[Answer]) -> String {
    let silent = answers
        .iter()
        .filter_map(|(node, answer)| Some((node, answer.as_ref().err()?)));
    silent
        .map(|(node, why)| printable(&format!("node {node}: {why}")) + "\n")
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
        assert_eq!(text(&answers, false, Paint::NONE), expected);
    }

    #[test]
    fn a_node_tells_its_own_devices() {
        let told = NodeDevices {
            node: "b".into(),
            devices: vec![held("x.example/foo", "foo-0", "Healthy")],
            ..NodeDevices::default()
        };
        let told = table_of("a", told).unwrap();
        let many = NodeDevices {
            empty: vec![String::new(); MOST_DEVICES + 1],
            ..NodeDevices::default()
        };
        assert!(table_of("a", many).is_err());
        assert_eq!(paths_of(&[&told]), "a/x.example/foo/foo-0\n");
    }

    pub(super) fn held(resource: &str, id: &str, health: &str) -> Device {
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
        assert_eq!(
            text(&[("a".to_owned(), Ok(table))], false, Paint::NONE),
            expected
        );
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
}
