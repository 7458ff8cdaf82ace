//! Registration of device plugins by Register on the kubelet's socket (checklist 10.1).

use std::time::{Duration, Instant};

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_sdk::deviceplugin::{Allocation, Device, DevicePlugin, PluginServer, Refusal, Route};
use davit_sdk::watch;
use tonic::Code;

use crate::plugin::{self, Node, Plugin, R, devices, pod, until};

#[tokio::test]
async fn items_005_006_007_010_012_registration_refusals() {
    let node = Node::start().await;
    let register = |version: &str, name: &str, endpoint: &str| {
        let request = pb::RegisterRequest {
            version: version.into(),
            endpoint: endpoint.into(),
            resource_name: name.into(),
            options: None,
        };
        plugin::register(node.root(), request)
    };
    let status = register("v1alpha", R, "x.sock").await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(
        status.message(),
        "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
    );
    let status = register("v1beta1", "mykubernetes.io/x", "x.sock")
        .await
        .unwrap_err();
    assert_eq!(
        status.message(),
        "the ResourceName \"mykubernetes.io/x\" is invalid"
    );
    let status = register("v1beta1", R, "absent.sock").await.unwrap_err();
    assert!(
        status
            .message()
            .starts_with("failed to dial device plugin: "),
        "{status}"
    );
    let status = register("v1beta1", R, "../x.sock").await.unwrap_err();
    assert!(
        status
            .message()
            .starts_with("failed to dial device plugin: "),
        "{status}"
    );
    assert!(node.manager().node_resources().is_empty());
    let mut registry = prometheus_client::registry::Registry::default();
    node.manager().register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(
        text.contains(&format!(
            "device_plugin_registration_total{{resource_name=\"{R}\"}} 3"
        )),
        "{text}"
    );
}

#[tokio::test]
async fn item_008_serving_too_late_is_no_deadlock() {
    let node = Node::start().await;
    let request = pb::RegisterRequest {
        version: pb::VERSION.into(),
        endpoint: "late.sock".into(),
        resource_name: R.into(),
        options: None,
    };
    let begun = Instant::now();
    let refused = plugin::register(node.root(), request).await.unwrap_err();
    assert!(
        refused
            .message()
            .starts_with("failed to dial device plugin: "),
        "{refused}"
    );
    assert!(begun.elapsed() < Duration::from_secs(10));
    let plugin = Plugin::new("late.sock").with(devices(1));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 1, 1).await;
}

#[tokio::test]
async fn items_009_and_011_failing_registrations_change_nothing() {
    let node = Node::start().await;
    let broken = Plugin::new("broken.sock").failing_options();
    let status = broken
        .serve(node.root())
        .await
        .register(R)
        .await
        .unwrap_err();
    assert!(
        status
            .message()
            .starts_with("failed to get device plugin options: rpc error"),
        "{status}"
    );
    assert_eq!(broken.count("options"), 1);
    assert_eq!(broken.count("list"), 0);
    assert!(!node.manager().node_resources().contains_key(R));

    let good = Plugin::new("good.sock").with(devices(2));
    let _good = good.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    broken
        .serve(node.root())
        .await
        .register(R)
        .await
        .unwrap_err();
    node.counts(R, 2, 2).await;
    node.admit(&pod("a", &[(R, 2)])).await.unwrap();
}

#[tokio::test]
async fn item_013_register_is_answered_before_the_first_list() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").silent();
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    until("the stream is open", || plugin.count("list") == 1).await;
    plugin.list(devices(2));
    node.counts(R, 2, 2).await;
}

#[tokio::test]
async fn item_014_fifty_plugins_at_once() {
    let node = Node::start().await;
    let started = Instant::now();
    let mut serving = Vec::new();
    for n in 0..50 {
        let plugin = Plugin::new(&format!("p{n}.sock")).with(devices(1));
        serving.push(plugin.serve(node.root()).await);
    }
    let all = serving.iter().enumerate().map(|(n, s)| async move {
        s.register(&format!("example.com/r{n}")).await.unwrap();
    });
    futures::future::join_all(all).await;
    until("all listed", || {
        node.manager()
            .node_resources()
            .values()
            .filter(|c| c.allocatable == 1)
            .count()
            == 50
    })
    .await;
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn items_015_016_018_start_sequence() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let plugins = dir.path().join("device-plugins");
    std::fs::create_dir_all(plugins.join("sub")).unwrap();
    std::fs::write(plugins.join("file"), "x").unwrap();
    drop(std::os::unix::net::UnixListener::bind(plugins.join("stale.sock")).unwrap());
    let node = Node::start_in(dir).await;
    assert!(!plugins.join("stale.sock").exists());
    assert!(plugins.join("file").exists() && plugins.join("sub").exists());
    assert!(plugins.join("kubelet.sock").exists());
    let registry = node.root().join("plugins_registry");
    assert_eq!(
        std::fs::metadata(registry).unwrap().permissions().mode() & 0o777,
        0o750
    );
    assert!(node.manager().healthy());
    node.manager().shutdown().await;
    assert!(!node.manager().healthy());
    assert!(!plugins.join("kubelet.sock").exists());
}

/// What a plugin leaves in the place of the agent's sockets.
#[tokio::test]
async fn the_agent_starts_whatever_is_in_the_place_of_its_sockets() {
    let place: [fn(&std::path::Path); 4] = [
        |path| std::fs::write(path, "x").unwrap(),
        |path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(),
        |path| std::os::unix::fs::symlink(path, path).unwrap(),
        |path| std::fs::create_dir_all(path.join("full")).unwrap(),
    ];
    for put in place {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["device-plugins", "pod-resources"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            put(&dir.path().join(folder).join("kubelet.sock"));
        }
        let node = Node::start_in(dir).await;
        let plugin = Plugin::new("p.sock").with(devices(2));
        let _serving = plugin.serve(node.root()).await.registered(R).await;
        node.counts(R, 2, 2).await;
    }
}

/// A plugin of the SDK, which looks for a new socket as plugins do.
struct Steady(watch::Receiver<Vec<Device>>);

#[davit_sdk::async_trait]
impl DevicePlugin for Steady {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.0.clone()
    }

    async fn allocate(&self, _: &[String]) -> Result<Allocation, Refusal> {
        Ok(Allocation::new())
    }
}

#[tokio::test]
async fn item_017_a_plugin_registers_again_when_the_agent_has_started_again() {
    let node = Node::start().await;
    let devices = watch::Sender::new(vec![Device::healthy("0"), Device::healthy("1")]);
    let folder = node.root().join("device-plugins");
    let server = PluginServer::new(R, Steady(devices.subscribe()));
    let plugin = server.route(Route::Register(folder)).start().unwrap();
    node.counts(R, 2, 2).await;
    let node = node.restart().await;
    node.counts(R, 2, 2).await;
    node.admit(&pod("a", &[(R, 2)])).await.unwrap();
    plugin.stop().await;
}
