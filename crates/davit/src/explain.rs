//! `davit explain`: why a pod is pending or refused, where its devices came from, why a claim has none.
//!
//! Everything is read through the API: the pod, its events (the scheduler's record of each node's verdict is an
//! annotation of the FailedScheduling event), and the device table of its node.

mod claim;
mod classic;
mod group;
mod offers;
mod pod;

use crate::args::{Explain, ExplainWhat};
use crate::output::Output;
use crate::paths;
use crate::plain::printable_lines;
use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;

pub(crate) async fn run(args: Explain) -> Result<()> {
    let (ExplainWhat::Pod(of) | ExplainWhat::Claim(of)) = &args.what;
    let kubeconfig = paths::find_kubeconfig(of.cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let namespace = of.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    if let ExplainWhat::Claim(_) = &args.what {
        if let Some(explanation) = claim::explain(&client, &namespace, &of.name).await? {
            return print(of.output, &explanation, || explanation.text());
        }
        let Some(explanation) = classic::explain(&client, &namespace, &of.name).await? else {
            bail!(
                "there is no resource claim {} in namespace {namespace}",
                of.name
            );
        };
        return print(of.output, &explanation, || explanation.text());
    }
    let explanation = explain_pod(&client, &namespace, &of.name).await?;
    print(of.output, &explanation, || explanation.text())
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
        Some(Output::Wide) | None => print!("{}", printable_lines(&text())),
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
