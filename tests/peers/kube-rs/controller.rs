//! A controller built on kube-rs: a derived custom resource, a reconciler with server-side apply, a finalizer.

use crate::harness::Cluster;
use crate::node_harness::within;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::{wait, watcher};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(30);

fn lamps() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("kube-rs.davit.dev", "v1", "Lamp"),
        "lamps",
    )
}

fn definition() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": { "name": "lamps.kube-rs.davit.dev" },
        "spec": {
            "group": "kube-rs.davit.dev",
            "scope": "Namespaced",
            "names": { "plural": "lamps", "singular": "lamp", "kind": "Lamp" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": { "watts": { "type": "integer" } } },
                    "status": { "type": "object", "properties": { "lit": { "type": "boolean" } } },
                } } },
            }],
        },
    }))
    .unwrap()
}

type Failure = kube::runtime::finalizer::Error<kube::Error>;

async fn reconcile(lamp: Arc<DynamicObject>, client: Arc<Client>) -> Result<Action, Failure> {
    let lamps: Api<DynamicObject> = Api::namespaced_with((*client).clone(), "default", &lamps());
    finalizer(&lamps, "kube-rs.davit.dev/off", lamp, |event| async {
        match event {
            Event::Apply(lamp) => light(&lamp, &client).await,
            Event::Cleanup(_) => Ok(Action::await_change()),
        }
    })
    .await
}

async fn light(lamp: &DynamicObject, client: &Client) -> Result<Action, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let params = PatchParams::apply("lamps").force();
    let owner = lamp.controller_owner_ref(&lamps());
    let glow = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": lamp.name_any(), "ownerReferences": owner.into_iter().collect::<Vec<_>>() },
        "data": { "watts": lamp.data["spec"]["watts"].to_string() },
    });
    maps.patch(&lamp.name_any(), &params, &Patch::Apply(glow))
        .await?;
    let all: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &lamps());
    let status =
        json!({ "apiVersion": "kube-rs.davit.dev/v1", "kind": "Lamp", "status": { "lit": true } });
    all.patch_status(&lamp.name_any(), &params, &Patch::Apply(status))
        .await?;
    Ok(Action::await_change())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kube_rs_controller_behaves() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::up(&["--no-node"]))
        .await
        .unwrap();
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let client = davit_client::from_kubeconfig(&cluster.kubeconfig)
        .await
        .unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    within(WAIT, "the default namespace", async || {
        namespaces.get("default").await.ok()
    })
    .await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(&PostParams::default(), &definition())
        .await
        .unwrap();
    let established = wait::await_condition(
        definitions,
        "lamps.kube-rs.davit.dev",
        wait::conditions::is_crd_established(),
    );
    tokio::time::timeout(WAIT, established)
        .await
        .unwrap()
        .unwrap();

    let all: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &lamps());
    let controller = Controller::new_with(all.clone(), watcher::Config::default(), lamps())
        .owns(
            Api::<ConfigMap>::namespaced(client.clone(), "default"),
            watcher::Config::default(),
        )
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_millis(200)),
            Arc::new(client.clone()),
        )
        .for_each(|_| async {});
    let controller = tokio::spawn(controller);

    let lamp: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "kube-rs.davit.dev/v1", "kind": "Lamp",
        "metadata": { "name": "desk" }, "spec": { "watts": 40 },
    }))
    .unwrap();
    all.create(&PostParams::default(), &lamp).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let glow = within(WAIT, "the lamp to be lit", async || {
        let lamp = all.get("desk").await.ok()?;
        (lamp.data["status"]["lit"] == json!(true)).then_some(())?;
        maps.get_opt("desk").await.ok()?
    })
    .await;
    assert_eq!(glow.data.unwrap()["watts"], "40");
    assert_eq!(glow.metadata.owner_references.unwrap()[0].kind, "Lamp");

    all.delete("desk", &DeleteParams::background())
        .await
        .unwrap();
    within(WAIT, "the lamp and its glow to be gone", async || {
        let gone =
            all.get_opt("desk").await.ok()?.is_none() && maps.get_opt("desk").await.ok()?.is_none();
        gone.then_some(())
    })
    .await;
    controller.abort();
}
