//! `davit explain`: why a pod is pending or refused, or where its devices came from.
//!
//! Everything is read through the API: the pod, its events (the scheduler's record of each node's verdict is an
//! annotation of the FailedScheduling event), and the device table of its node.

mod pod;

use crate::args::{Explain, ExplainWhat, Output};
use crate::paths;
use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;

pub(crate) async fn run(args: Explain) -> Result<()> {
    let ExplainWhat::Pod {
        name,
        namespace,
        output,
        cluster,
    } = args.what;
    let kubeconfig = paths::find_kubeconfig(cluster.kubeconfig.as_deref())?;
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let explanation = explain_pod(&client, &namespace, &name).await?;
    match output {
        Some(Output::Json) => println!("{}", serde_json::to_string_pretty(&explanation)?),
        Some(Output::Yaml) => print!("{}", serde_saphyr::to_string(&explanation)?),
        Some(Output::Wide) | None => print!("{}", explanation.text()),
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
        Some(node) => match crate::devices::collect(client, Some(node)).await?.pop() {
            Some((_, Ok(table))) => Ok(table.devices),
            Some((_, Err(why))) => Err(why),
            None => Ok(Vec::new()),
        },
    };
    Ok(pod::Explanation::new(&pod, &events, devices))
}
