//! `davit explain`: why a pod is pending or refused, where its devices came from, why a claim has none.
//!
//! Everything is read through the API: the pod, its events (the scheduler's record of each node's verdict is an
//! annotation of the FailedScheduling event), and the device table of its node.

mod claim;
mod classic;
mod group;
mod node;
mod offers;
mod pod;

use crate::args::{Explain, ExplainWhat, ExplainedClaim, ExplainedHow, ExplainedPod};
use crate::output::Output;
use crate::page::Paint;
use crate::paths;
use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::ListParams;

pub(crate) async fn run(args: Explain, paint: Paint) -> Result<()> {
    let (name, how) = match args.what {
        ExplainWhat::Node(of) => {
            let kubeconfig = paths::find_kubeconfig(of.cluster.kubeconfig.as_deref())?;
            let client = davit_client::from_kubeconfig(&kubeconfig).await?;
            let explanation = explain_node(&client, &of.name).await?;
            return print(of.output, &explanation, || explanation.text(paint));
        }
        ExplainWhat::Pod(ExplainedPod { name, how }) => {
            let (client, namespace) = reach(&how).await?;
            let explanation = explain_pod(&client, &namespace, &name).await?;
            return print(how.output, &explanation, || explanation.text(paint));
        }
        ExplainWhat::Claim(ExplainedClaim { name, how }) => (name, how),
    };
    let (client, namespace) = reach(&how).await?;
    if let Some(explanation) = claim::explain(&client, &namespace, &name).await? {
        return print(how.output, &explanation, || explanation.text(paint));
    }
    let Some(explanation) = classic::explain(&client, &namespace, &name).await? else {
        bail!("there is no resource claim {name} in namespace {namespace}");
    };
    print(how.output, &explanation, || explanation.text(paint))
}

/// The cluster, and the namespace that is meant.
async fn reach(how: &ExplainedHow) -> Result<(kube::Client, String)> {
    let kubeconfig = paths::find_kubeconfig(how.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let namespace = how.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    Ok((client, namespace))
}

async fn explain_node(client: &kube::Client, name: &str) -> Result<node::NodeExplanation> {
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    let Some(node) = nodes.get_opt(name).await.context("cannot read the node")? else {
        bail!("there is no node {name}");
    };
    let answer = crate::devices::collect(client, Some(name)).await?.pop();
    let devices = answer.map_or_else(|| Err("it has gone".to_owned()), |(_, answer)| answer);
    Ok(node::NodeExplanation::new(&node, devices))
}

/// Prints for people or for programs.
fn print(
    output: Option<Output>,
    explanation: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> Result<()> {
    match output {
        Some(Output::Json) => println!("{}", serde_json::to_string_pretty(explanation)?),
        Some(Output::Yaml) => print!("{}", serde_saphyr::to_string(explanation)?),
        Some(Output::Wide) | None => print!("{}", text()),
    }
    Ok(())
}

async fn explain_pod(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<pod::Explanation> {
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), namespace);
    let Some(pod) = pods.get_opt(name).await.context("cannot read the pod")? else {
        bail!("there is no pod {name} in namespace {namespace}");
    };
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let events: kube::Api<Event> = kube::Api::namespaced(client.clone(), namespace);
    let about_pod = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    let events = events
        .list(&about_pod)
        .await
        .context("cannot read the pod's events")?
        .items;
    let node = pod
        .spec
        .as_ref()
        .and_then(|s| s.node_name.clone())
        .filter(|n| !n.is_empty());
    let devices = match &node {
        None => Ok(Vec::new()),
        Some(node) => match crate::devices::collect(client, Some(node))
            .await
            .unwrap_or_else(|why| vec![(node.clone(), Err(format!("{why:#}")))])
            .pop()
        {
            Some((_, Ok(table))) => Ok([table.devices, table.held].concat()),
            Some((_, Err(why))) => Err(why),
            None => Ok(Vec::new()),
        },
    };
    let negotiation = classic::of_pod(client, &pod).await?;
    let findings = match node {
        None => offers::of_pod(client, &pod).await?,
        Some(_) => offers::Findings::default(),
    };
    let group = group::of_pod(client, &pod).await?;
    let explanation = pod::Explanation::new(&pod, &events, devices);
    Ok(explanation
        .with_group(group)
        .with_negotiation(negotiation)
        .with_findings(findings))
}
