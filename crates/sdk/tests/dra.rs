//! A driver made with the SDK against a small API server, with the agent's part played by the test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "dra/fake_api.rs"]
mod fake_api;

use davit_proto::dra::{v1, v1beta1};
use davit_proto::drahealth::v1alpha1 as health;
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::unix;
use davit_sdk::dra::{
    AllocatedClaim, ClaimId, DeviceExt as _, DeviceHealth, Driver, NodePlugin, Pool,
    PreparedDevice, Problem, Published, Publisher, Publishing, Refusal, Resources, Running, Scope,
    State, device,
};
use davit_sdk::{async_trait, watch};
use fake_api::{FakeApi, SLICES};
use serde_json::json;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

const NAME: &str = "gpu.example.com";
const SOON: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Log {
    calls: Mutex<Vec<String>>,
    busy: AtomicUsize,
}

struct Gpus {
    log: Arc<Log>,
    health: watch::Sender<Vec<DeviceHealth>>,
    pause: Duration,
}

#[async_trait]
impl Driver for Gpus {
    async fn prepare(&self, claim: &AllocatedClaim) -> Result<Vec<PreparedDevice>, Refusal> {
        assert_eq!(self.log.busy.fetch_add(1, Ordering::SeqCst), 0);
        tokio::time::sleep(self.pause).await;
        self.log.busy.fetch_sub(1, Ordering::SeqCst);
        let name = &claim.id().name;
        self.log
            .calls
            .lock()
            .unwrap()
            .push(format!("prepare {name}"));
        if name == "broken" {
            return Err(Refusal::new("told to fail"));
        }
        let devices = claim.devices().iter();
        Ok(devices
            .map(|d| PreparedDevice::of(d).cdi(format!("{NAME}/claim={}", d.device)))
            .collect())
    }

    async fn unprepare(&self, claim: &ClaimId) -> Result<(), Refusal> {
        self.log
            .calls
            .lock()
            .unwrap()
            .push(format!("unprepare {}", claim.name));
        Ok(())
    }

    fn health(&self) -> Option<watch::Receiver<Vec<DeviceHealth>>> {
        Some(self.health.subscribe())
    }
}

fn claim(api: &FakeApi, name: &str, uid: &str, allocated: bool) {
    let mut claim = json!({"metadata": {"namespace": "ns", "name": name, "uid": uid}, "spec": {}});
    if allocated {
        claim["status"] = json!({"allocation": {"devices": {"results": [
            {"request": "a/first", "driver": NAME, "pool": "node-1", "device": "gpu-0", "shareID": "s"},
            {"request": "b", "driver": "other.example.com", "pool": "node-1", "device": "x"}]}}});
    }
    api.put(
        &format!("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{name}"),
        claim,
    );
}

fn asked(name: &str, uid: &str) -> v1::Claim {
    v1::Claim {
        namespace: "ns".into(),
        uid: uid.into(),
        name: name.into(),
    }
}

struct Agent {
    info: reg::PluginInfo,
    registration: reg::registration_client::RegistrationClient<tonic::transport::Channel>,
    channel: tonic::transport::Channel,
}

/// What the agent does when it finds a socket.
async fn agent(registry: &Path, socket: &str) -> Agent {
    let channel = unix::connect(registry.join(socket), SOON).await.unwrap();
    let mut registration = reg::registration_client::RegistrationClient::new(channel);
    let info = registration
        .get_info(reg::InfoRequest {})
        .await
        .unwrap()
        .into_inner();
    let channel = unix::connect(Path::new(&info.endpoint), SOON)
        .await
        .unwrap();
    Agent {
        info,
        registration,
        channel,
    }
}

fn start(
    api: &FakeApi,
    dir: &Path,
    instance: Option<&str>,
    pause: Duration,
) -> (Running, Arc<Log>, watch::Sender<Vec<DeviceHealth>>) {
    let log = Arc::new(Log::default());
    let health = watch::Sender::new(vec![DeviceHealth::healthy("node-1", "gpu-0")]);
    let driver = Gpus {
        log: log.clone(),
        health: health.clone(),
        pause,
    };
    let mut plugin = NodePlugin::new(NAME, api.client(), driver)
        .registry_dir(dir.join("registry"))
        .data_dir(dir.join("data"));
    if let Some(uid) = instance {
        plugin = plugin.instance(uid);
    }
    (plugin.start().unwrap(), log, health)
}

#[tokio::test]
async fn items_123_claims_are_checked_and_only_good_ones_reach_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    let api = FakeApi::new();
    claim(&api, "good", "u-good", true);
    claim(&api, "broken", "u-broken", true);
    claim(&api, "replaced", "u-new", true);
    claim(&api, "pending", "u-pending", false);
    let (running, log, _health) = start(&api, dir.path(), None, Duration::ZERO);
    let mut agent = agent(&dir.path().join("registry"), "gpu.example.com-reg.sock").await;
    assert_eq!(agent.info.r#type, "DRAPlugin");
    assert_eq!(agent.info.name, NAME);
    assert_eq!(
        agent.info.supported_versions,
        [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth"
        ]
    );
    let mut state = running.state();
    assert_eq!(*state.borrow(), State::Waiting);
    let told = reg::RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    agent
        .registration
        .notify_registration_status(told)
        .await
        .unwrap();
    timeout(SOON, state.wait_for(|s| *s == State::Registered))
        .await
        .unwrap()
        .unwrap();

    let mut client = v1::dra_plugin_client::DraPluginClient::new(agent.channel.clone());
    let request = v1::NodePrepareResourcesRequest {
        claims: vec![
            asked("good", "u-good"),
            asked("broken", "u-broken"),
            asked("replaced", "u-old"),
            asked("pending", "u-pending"),
            asked("gone", "u-gone"),
        ],
    };
    let answer = client
        .node_prepare_resources(request)
        .await
        .unwrap()
        .into_inner()
        .claims;
    let device = v1::Device {
        request_names: vec!["a".into()],
        pool_name: "node-1".into(),
        device_name: "gpu-0".into(),
        cdi_device_ids: vec![format!("{NAME}/claim=gpu-0")],
        share_id: Some("s".into()),
    };
    assert_eq!(answer["u-good"].devices, [device]);
    let error = |uid: &str| answer[uid].error.as_str();
    assert_eq!(error("u-good"), "");
    assert_eq!(error("u-broken"), "told to fail");
    assert_eq!(
        error("u-old"),
        "ResourceClaim ns/replaced: replaced by another one, whose UID is u-new"
    );
    assert_eq!(
        error("u-pending"),
        "ResourceClaim ns/pending: not allocated"
    );
    assert_eq!(error("u-gone"), "ResourceClaim ns/gone: not found");
    assert_eq!(answer.len(), 5);
    let mut calls = log.calls.lock().unwrap().clone();
    calls.sort();
    assert_eq!(calls, ["prepare broken", "prepare good"]);

    let mut old = v1beta1::dra_plugin_client::DraPluginClient::new(agent.channel.clone());
    let claims = vec![v1beta1::Claim {
        namespace: "ns".into(),
        uid: "u-never".into(),
        name: "never".into(),
    }];
    let request = v1beta1::NodeUnprepareResourcesRequest { claims };
    let answer = old
        .node_unprepare_resources(request)
        .await
        .unwrap()
        .into_inner()
        .claims;
    assert_eq!(answer["u-never"].error, "");
    running.stop().await;
    let left = std::fs::read_dir(dir.path().join("registry"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn health_is_a_stream() {
    let dir = tempfile::tempdir().unwrap();
    let api = FakeApi::new();
    let (running, _log, health) = start(&api, dir.path(), None, Duration::ZERO);
    let agent = agent(&dir.path().join("registry"), "gpu.example.com-reg.sock").await;
    let mut client =
        health::dra_resource_health_client::DraResourceHealthClient::new(agent.channel);
    let stream = client
        .node_watch_resources(health::NodeWatchResourcesRequest {})
        .await;
    let mut stream = stream.unwrap().into_inner();
    let mut next = async || timeout(SOON, stream.message()).await.unwrap().unwrap();
    let first = next().await.unwrap().devices.remove(0);
    assert_eq!(first.health(), health::HealthStatus::Healthy);
    assert!(first.last_updated_time > 1_700_000_000);
    health.send_modify(|all| all[0] = all[0].clone().broken("too hot"));
    let second = next().await.unwrap().devices.remove(0);
    assert_eq!(second.health(), health::HealthStatus::Unhealthy);
    assert_eq!(second.message, "too hot");
    running.stop().await;
    assert!(next().await.is_none());
}

#[tokio::test]
async fn instances_exclude_each_other_and_a_call_outlives_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let api = FakeApi::new();
    claim(&api, "good", "u-good", true);
    let pause = Duration::from_millis(300);
    let (old, old_log, _health) = start(&api, dir.path(), Some("old"), pause);
    let (new, new_log, _health) = start(&api, dir.path(), Some("new"), pause);
    let registry = dir.path().join("registry");
    let mut clients = Vec::new();
    for uid in ["old", "new"] {
        let agent = agent(&registry, &format!("{NAME}-{uid}-reg.sock")).await;
        clients.push(v1::dra_plugin_client::DraPluginClient::new(agent.channel));
    }
    let request = v1::NodePrepareResourcesRequest {
        claims: vec![asked("good", "u-good")],
    };
    // The caller of the old one hangs up at once; its call still excludes that of the new one.
    let mut first = clients.remove(0);
    let hasty = timeout(
        Duration::from_millis(100),
        first.node_prepare_resources(request.clone()),
    );
    assert!(hasty.await.is_err());
    let begun = std::time::Instant::now();
    let answer = clients[0].node_prepare_resources(request).await.unwrap();
    assert_eq!(answer.into_inner().claims["u-good"].error, "");
    assert!(begun.elapsed() > pause, "{:?}", begun.elapsed());
    assert_eq!(*old_log.calls.lock().unwrap(), ["prepare good"]);
    assert_eq!(*new_log.calls.lock().unwrap(), ["prepare good"]);
    old.stop().await;
    assert!(registry.join(format!("{NAME}-new-reg.sock")).exists());
    new.stop().await;
}

#[tokio::test]
async fn sockets_that_are_removed_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let api = FakeApi::new();
    let (running, _log, _health) = start(&api, dir.path(), None, Duration::ZERO);
    std::fs::remove_dir_all(dir.path().join("registry")).unwrap();
    std::fs::remove_dir_all(dir.path().join("data")).unwrap();
    let end = std::time::Instant::now() + SOON;
    while !dir.path().join("data/dra.sock").exists() || !dir.path().join("registry").exists() {
        assert!(std::time::Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let agent = agent(&dir.path().join("registry"), "gpu.example.com-reg.sock").await;
    assert_eq!(agent.info.name, NAME);
    running.stop().await;
}

fn resources(count: usize, model: &str) -> Resources {
    let devices = (0..count).map(|n| device(format!("gpu-{n}")).text("model", model));
    Resources::new().pool("node-1", Pool::new(devices))
}

async fn done(publishing: &Publishing) -> Published {
    let mut state = publishing.state();
    let done = state.wait_for(|s| matches!(s, Published::Done { .. }));
    timeout(SOON, done).await.unwrap().unwrap().clone()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + SOON;
    while !holds() {
        assert!(std::time::Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn publisher(api: &FakeApi) -> Publisher {
    let first = Duration::from_millis(100);
    Publisher::new(api.client(), NAME, Scope::node("node-1")).repair(first, first)
}

#[tokio::test]
async fn items_119_120_slices_are_published_repaired_and_taken_over() {
    let api = FakeApi::new();
    let publishing = publisher(&api).start(resources(200, "a")).unwrap();
    done(&publishing).await;
    assert_eq!(api.take_writes().len(), 2);
    let slices = api.slices();
    assert_eq!(
        slices[0]["metadata"]["ownerReferences"][0]["uid"],
        "node-uid"
    );
    assert_eq!(slices[0]["spec"]["nodeName"], "node-1");
    let name = slices[1]["metadata"]["name"].as_str().unwrap().to_owned();

    // Deleted by somebody, and changed by somebody.
    let path = format!("{SLICES}/{name}");
    api.remove(&path);
    until("the slice is back", || api.slices().len() == 2).await;
    let mut spoilt = api.slices().remove(1);
    let before = spoilt["spec"].clone();
    spoilt["spec"]["devices"] = json!([]);
    api.put(&path, spoilt);
    until("the slice is mended", || api.slices()[1]["spec"] == before).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        api.take_writes(),
        [format!("POST {name}"), format!("PUT {name}")]
    );

    // One who takes over writes nothing; other devices are written once.
    publishing.stop().await;
    let publishing = publisher(&api).start(resources(200, "a")).unwrap();
    done(&publishing).await;
    assert!(api.take_writes().is_empty());
    publishing.publish(resources(200, "a")).unwrap();
    publishing.publish(resources(200, "b")).unwrap();
    done(&publishing).await;
    assert_eq!(api.take_writes().len(), 2);
    assert!(
        api.slices()
            .iter()
            .all(|s| s["spec"]["pool"]["generation"] == 2)
    );
    publishing.publish(Resources::new()).unwrap();
    done(&publishing).await;
    assert!(api.slices().is_empty());
    assert!(
        publishing
            .publish(Resources::new().pool("p", Pool::new([device("a"), device("a")])))
            .is_err()
    );
    publishing.stop().await;
}

#[tokio::test]
async fn item_122_refusals_and_dropped_fields_are_told() {
    let api = FakeApi::new();
    api.admit(|slice| {
        let devices = slice["spec"]["devices"].as_array_mut();
        for device in devices.into_iter().flatten() {
            if device["name"] == "bad" {
                return Err("spec.devices[0]: Invalid value".to_owned());
            }
            device.as_object_mut().unwrap().remove("taints");
        }
        Ok(())
    });
    let tainted = |name: &str| {
        let gpu = device(name).taint("x.dev/y", "", "NoSchedule");
        Resources::new().pool("node-1", Pool::new([gpu]))
    };
    let publishing = publisher(&api).start(tainted("gpu-0")).unwrap();
    let Published::Done { slices: 1, dropped } = done(&publishing).await else {
        panic!("{:?}", api.slices())
    };
    assert_eq!(dropped.keys().collect::<Vec<_>>(), [&"DRADeviceTaints"]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(api.take_writes().len(), 1);

    publishing.publish(tainted("bad")).unwrap();
    let mut state = publishing.state();
    let failed = state.wait_for(|s| matches!(s, Published::Failed(_)));
    let failed = timeout(SOON, failed).await.unwrap().unwrap().clone();
    let Published::Failed(problem @ Problem::Refused { .. }) = failed else {
        panic!("{failed:?}")
    };
    assert!(problem.is_recoverable());
    assert!(
        problem
            .to_string()
            .ends_with("spec.devices[0]: Invalid value"),
        "{problem}"
    );
    // Accepted at last, without being told again.
    api.admit(|_| Ok(()));
    let Published::Done { dropped, .. } = done(&publishing).await else {
        unreachable!("waited for")
    };
    assert!(dropped.is_empty());
    publishing.stop().await;
}
