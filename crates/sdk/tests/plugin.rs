//! The SDK's plugin server and podresources client against a small agent in this process.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::deviceplugin::v1beta1::device_plugin_client::DevicePluginClient;
use davit_proto::deviceplugin::v1beta1::registration_server::{Registration, RegistrationServer};
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::pluginregistration::v1::registration_client::RegistrationClient;
use davit_proto::podresources::v1 as podresources;
use davit_proto::podresources::v1::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use davit_proto::unix::{self, Listener};
use davit_sdk::deviceplugin::{
    Allocation, Device, DevicePlugin, Offer, PluginServer, Refusal, Route, Running, State,
};
use davit_sdk::{async_trait, watch};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

struct Foo(watch::Sender<Vec<Device>>);

#[async_trait]
impl DevicePlugin for Foo {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.0.subscribe()
    }

    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        if ids.len() > 2 {
            return Err(Refusal::new("two at most"));
        }
        Ok(Allocation::new()
            .env("FOO", ids.join(","))
            .device("/dev/null", "/dev/foo", "rw"))
    }

    fn has_preference(&self) -> bool {
        true
    }

    async fn preferred(&self, offer: Offer) -> Result<Vec<String>, Refusal> {
        Ok(offer.available.into_iter().rev().take(offer.size).collect())
    }
}

/// Dials back during Register, as an agent does, and passes the request on.
struct Agent {
    dir: PathBuf,
    seen: mpsc::Sender<pb::RegisterRequest>,
}

#[tonic::async_trait]
impl Registration for Agent {
    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> Result<Response<pb::Empty>, Status> {
        let request = request.into_inner();
        let mut client = dial(&self.dir.join(&request.endpoint)).await;
        client.get_device_plugin_options(pb::Empty {}).await?;
        self.seen.send(request).await.unwrap();
        Ok(Response::new(pb::Empty {}))
    }
}

async fn dial(path: &Path) -> DevicePluginClient<tonic::transport::Channel> {
    DevicePluginClient::new(unix::connect(path, Duration::from_secs(5)).await.unwrap())
}

/// Starts an agent that, like the kubelet, first removes all sockets.
fn agent(
    dir: &Path,
) -> (
    mpsc::Receiver<pb::RegisterRequest>,
    CancellationToken,
    tokio::task::JoinHandle<()>,
) {
    unix::remove_stale_sockets(dir).unwrap();
    let (seen, requests) = mpsc::channel(8);
    let listener = Listener::bind(dir.join("kubelet.sock")).unwrap();
    let agent = Agent {
        dir: dir.to_owned(),
        seen,
    };
    let router = unix::server().add_service(RegistrationServer::new(agent));
    let stop = CancellationToken::new();
    let token = stop.clone();
    let task = tokio::spawn(async move {
        unix::serve(listener, router, token.cancelled())
            .await
            .unwrap();
    });
    (requests, stop, task)
}

async fn reaches(running: &Running, state: State) {
    let mut states = running.state();
    let reached = states.wait_for(|s| *s == state);
    tokio::time::timeout(Duration::from_secs(10), reached)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn item_155_registers_again_after_the_agent_restarted_and_leaves_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let devices = watch::Sender::new(vec![
        Device::healthy("0"),
        Device::healthy("1").on_numa_node(1),
    ]);
    let server = PluginServer::new("vendor.example/foo", Foo(devices.clone()));
    let running = server
        .route(Route::Register(dir.path().to_owned()))
        .start()
        .unwrap();
    let socket = dir.path().join("vendor.example-foo.sock");
    for _ in 0..2 {
        let (mut requests, stop, task) = agent(dir.path());
        let request = tokio::time::timeout(Duration::from_secs(10), requests.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (&*request.version, &*request.resource_name),
            ("v1beta1", "vendor.example/foo")
        );
        reaches(&running, State::Registered).await;
        let mut client = dial(&socket).await;
        let mut lists = client
            .list_and_watch(pb::Empty {})
            .await
            .unwrap()
            .into_inner();
        let first = lists.message().await.unwrap().unwrap();
        assert_eq!(first.devices[1].topology.as_ref().unwrap().nodes[0].id, 1);
        devices.send_modify(|all| all[0].healthy = !all[0].healthy);
        let second = lists.message().await.unwrap().unwrap();
        assert_ne!(first.devices[0].health, second.devices[0].health);
        stop.cancel();
        task.await.unwrap();
    }
    let mut client = dial(&socket).await;
    let mut lists = client
        .list_and_watch(pb::Empty {})
        .await
        .unwrap()
        .into_inner();
    lists.message().await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), running.stop())
        .await
        .unwrap();
    assert!(!socket.exists());
    assert!(
        lists.message().await.is_ok_and(|m| m.is_none()),
        "the stream ends cleanly"
    );
}

#[tokio::test]
async fn a_second_instance_of_the_same_name_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let devices = watch::Sender::new(vec![Device::healthy("0")]);
        let server = PluginServer::new("vendor.example/foo", Foo(devices));
        let route = Route::Register(dir.path().to_owned());
        server.route(route).start().unwrap()
    };
    let (mut requests, stop, task) = agent(dir.path());
    let first = start();
    requests.recv().await.unwrap();
    let second = start();
    requests.recv().await.unwrap();
    let mut client = dial(&dir.path().join("vendor.example-foo.sock")).await;
    let mut lists = client
        .list_and_watch(pb::Empty {})
        .await
        .unwrap()
        .into_inner();
    lists.message().await.unwrap().unwrap();
    // Long enough for the first to see that the name is not its own any more.
    let again = tokio::time::timeout(Duration::from_secs(2), requests.recv());
    assert!(again.await.is_err(), "the first registers again");
    first.stop().await;
    let more = tokio::time::timeout(Duration::from_secs(1), lists.message());
    assert!(more.await.is_err(), "the stream of the second ends");
    second.stop().await;
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn calls_and_the_registry_route() {
    let dir = tempfile::tempdir().unwrap();
    let devices = watch::Sender::new((0..4).map(|n| Device::healthy(n.to_string())).collect());
    let server = PluginServer::new("vendor.example/foo", Foo(devices));
    let route = Route::Registry(dir.path().to_owned());
    let running = server.route(route).socket_name("foo.sock").start().unwrap();
    let socket = dir.path().join("foo.sock");
    let channel = unix::connect(&socket, Duration::from_secs(5))
        .await
        .unwrap();
    let mut registration = RegistrationClient::new(channel);
    let info = registration
        .get_info(reg::InfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (&*info.r#type, &*info.name),
        ("DevicePlugin", "vendor.example/foo")
    );
    assert_eq!(
        (&*info.endpoint, &*info.supported_versions[0]),
        (socket.to_str().unwrap(), "v1beta1")
    );
    let status = reg::RegistrationStatus {
        plugin_registered: false,
        error: "no".into(),
    };
    registration
        .notify_registration_status(status)
        .await
        .unwrap();
    reaches(&running, State::Refused("no".into())).await;

    let mut client = dial(&socket).await;
    let allocate = |ids: &[&str]| pb::AllocateRequest {
        container_requests: vec![pb::ContainerAllocateRequest {
            devices_ids: ids.iter().map(|&i| i.into()).collect(),
        }],
    };
    let answer = client
        .allocate(allocate(&["1", "2"]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.container_responses[0].envs["FOO"], "1,2");
    let status = client.allocate(allocate(&["9"])).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = client
        .allocate(allocate(&["1", "2", "3"]))
        .await
        .unwrap_err();
    assert_eq!(status.message(), "two at most");
    let request = pb::PreferredAllocationRequest {
        container_requests: vec![pb::ContainerPreferredAllocationRequest {
            available_device_i_ds: vec!["0".into(), "1".into(), "2".into()],
            must_include_device_i_ds: vec![],
            allocation_size: 2,
        }],
    };
    let answer = client
        .get_preferred_allocation(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.container_responses[0].device_i_ds, ["2", "1"]);
    running.stop().await;
}

/// Turns the first calls away.
struct Lister(Arc<std::sync::atomic::AtomicUsize>);

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<podresources::ListPodResourcesRequest>,
    ) -> Result<Response<podresources::ListPodResourcesResponse>, Status> {
        if self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2 {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        Ok(Response::new(
            podresources::ListPodResourcesResponse::default(),
        ))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<podresources::AllocatableResourcesRequest>,
    ) -> Result<Response<podresources::AllocatableResourcesResponse>, Status> {
        Err(Status::internal("broken"))
    }

    async fn get(
        &self,
        _: Request<podresources::GetPodResourcesRequest>,
    ) -> Result<Response<podresources::GetPodResourcesResponse>, Status> {
        Err(Status::unknown("pod x in namespace y not found"))
    }
}

#[tokio::test]
async fn podresources_survives_the_rate_limit_and_restarts() {
    use davit_sdk::podresources::{Client, Error};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let client = Client::new(&path).with_limit(Duration::from_secs(5));
    let serve = || {
        let lister = PodResourcesListerServer::new(Lister(Arc::default()));
        let router = unix::server().add_service(lister);
        let listener = Listener::bind_by_rename(&path).unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        (
            stop,
            tokio::spawn(async move {
                unix::serve(listener, router, token.cancelled())
                    .await
                    .unwrap();
            }),
        )
    };
    for _ in 0..2 {
        let early = client.list();
        let (answer, (stop, task)) = tokio::join!(early, async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            serve()
        });
        assert!(answer.unwrap().is_empty());
        assert_eq!(client.get("y", "x").await.unwrap(), None);
        assert!(matches!(
            client.allocatable().await,
            Err(Error::Refused { .. })
        ));
        stop.cancel();
        task.await.unwrap();
    }
    let absent = client.with_limit(Duration::from_millis(300)).list().await;
    assert!(matches!(absent, Err(Error::Unavailable { .. })));
}
