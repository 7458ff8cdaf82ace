//! Device plugins that misbehave harm only the pods that use them, and the waiting pod says why.

use crate::{harness, node_harness};
use davit_sdk::deviceplugin::{Allocation, Device, DevicePlugin, PluginServer, Refusal, Route};
use davit_sdk::{async_trait, watch};
use harness::root;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use node_harness::{NodeCluster, pod, within};
use std::time::{Duration, Instant};

const STAY: &str = "while :; do sleep 1000; done";
const HANGS: &str = "misbehaving.example/hangs";
const LIES: &str = "misbehaving.example/lies";
const FLOODS: &str = "misbehaving.example/floods";

/// What a plugin does when it is asked to allocate.
enum Manner {
    Hangs,
    /// Names a device node that does not exist.
    Lies,
    Answers,
}

struct Misbehaving {
    devices: watch::Sender<Vec<Device>>,
    manner: Manner,
}

#[async_trait]
impl DevicePlugin for Misbehaving {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.devices.subscribe()
    }

    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        match self.manner {
            Manner::Hangs => std::future::pending().await,
            Manner::Lies => {
                Ok(Allocation::new().device("/dev/no-such", "/dev/no-such-device", "rw"))
            }
            Manner::Answers => Ok(Allocation::new().env("GIVEN", ids.join(","))),
        }
    }
}

fn serve(
    node: &NodeCluster,
    resource: &str,
    manner: Manner,
) -> (watch::Sender<Vec<Device>>, davit_sdk::deviceplugin::Running) {
    let devices = watch::Sender::new((0..4).map(|n| Device::healthy(format!("d{n}"))).collect());
    let plugin = Misbehaving {
        devices: devices.clone(),
        manner,
    };
    let route = Route::Register(node.kubelet_dir().join("device-plugins"));
    let running = PluginServer::new(resource, plugin)
        .route(route)
        .start()
        .unwrap();
    (devices, running)
}

fn pod_with(name: &str, resource: &str) -> Pod {
    let mut pod = pod(name, STAY, 0);
    let limits = std::collections::BTreeMap::from([(
        resource.to_owned(),
        k8s_openapi::apimachinery::pkg::api::resource::Quantity("1".to_owned()),
    )]);
    pod.spec.as_mut().unwrap().containers[0]
        .resources
        .get_or_insert_default()
        .limits = Some(limits);
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_that_hang_lie_and_flood_harm_only_their_own_pods() {
    let Some(()) = root() else { return };
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let _good = node.plugin(4);
    let (_kept, hanging) = serve(&node, HANGS, Manner::Hangs);
    let (_kept_too, lying) = serve(&node, LIES, Manner::Lies);
    let (flood, flooding) = serve(&node, FLOODS, Manner::Answers);
    node.wait_for_devices(4).await;
    let flooder = tokio::spawn(async move {
        for n in 0..20_000_u32 {
            flood.send_modify(|devices| devices[0].healthy = n % 2 == 0);
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    });
    node.create(&pod_with("hung", HANGS)).await;
    node.create(&pod_with("lied-to", LIES)).await;
    node.create(&pod_with("flooded", FLOODS)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;

    // Others do not notice.
    let began = Instant::now();
    node.create(&pod("plain", STAY, 0)).await;
    node.create(&pod("good", STAY, 2)).await;
    node.wait_for_phase("plain", "Running").await;
    node.wait_for_phase("good", "Running").await;
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "others waited {:?}",
        began.elapsed()
    );
    node.wait_for_phase("flooded", "Running").await;

    // The one that waits says for what.
    let events: kube::Api<Event> = kube::Api::namespaced(node.client.clone(), "default");
    let about = ListParams::default().fields("involvedObject.name=hung");
    within(
        Duration::from_secs(20),
        "the hung pod says what it waits for",
        async || {
            let events = events.list(&about).await.ok()?;
            let says = |e: &Event| {
                e.message.as_deref().is_some_and(|m| {
                    m.contains("Allocate of the device plugin") && m.contains(HANGS)
                })
            };
            events.items.iter().any(says).then_some(())
        },
    )
    .await;
    // The one that was lied to names the device.
    within(
        Duration::from_secs(20),
        "the pod that was lied to says why",
        async || {
            let pod = node.pods().get("lied-to").await.ok()?;
            let status = pod.status?.container_statuses?.into_iter().next()?;
            let states = [status.state, status.last_state].into_iter().flatten();
            let messages = states.flat_map(|s| {
                [
                    s.waiting.and_then(|w| w.message),
                    s.terminated.and_then(|t| t.message),
                ]
            });
            messages
                .flatten()
                .any(|m| m.contains("/dev/no-such"))
                .then_some(())
        },
    )
    .await;
    // It can still be deleted at once, and nothing stays behind.
    node.delete_now("hung").await;
    flooder.abort();
    node.clean_up().await;
    // The API forgets a pod that is deleted without grace before its containers have ended.
    within(Duration::from_secs(20), "no device is held", async || {
        let held = node_harness::owners(&mut node.podresources().await).await;
        held.is_empty().then_some(())
    })
    .await;
    for plugin in [hanging, lying, flooding] {
        plugin.stop().await;
    }
}
