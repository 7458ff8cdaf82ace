//! Devices given to containers, and refusals (checklist 10.4).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{
    ContainerExtendedResourceRequest, PodExtendedResourceClaimStatus, PodStatus,
};
use parking_lot::Mutex;

use crate::plugin::{self, Node, Plugin, R, devices, init_pod, pod, until};
use crate::{held, list, message};

#[tokio::test]
async fn items_051_053_059_063_078_allocate_and_options() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock")
        .with(devices(4))
        .preferring(&["d3", "foreign", "d1"]);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    let other = Plugin::new("q.sock").with(devices(4));
    let _other = other
        .serve(node.root())
        .await
        .registered("example.com/bar")
        .await;
    node.counts(R, 4, 4).await;
    node.counts("example.com/bar", 4, 4).await;
    let pod = pod("a", &[(R, 2), ("example.com/bar", 1)]);
    node.admit(&pod).await.unwrap();
    node.admit(&pod).await.unwrap();
    assert_eq!(plugin.allocations(), [["d1", "d3"]]);
    assert_eq!(other.allocations(), [["d0"]]);
    let asked = plugin.asked();
    assert_eq!(asked[0].available_device_i_ds, ["d0", "d1", "d2", "d3"]);
    assert!(asked[0].must_include_device_i_ds.is_empty());
    assert_eq!(asked[0].allocation_size, 2);
    let options = node
        .manager()
        .container_options(&pod, "main")
        .await
        .unwrap();
    let envs: Vec<_> = options
        .envs
        .iter()
        .map(|e| (&*e.key, e.text().into_owned()))
        .collect();
    assert_eq!(
        envs,
        [("DEVICES", "d0".to_owned())],
        "sorted by resource, the first wins"
    );
    assert_eq!(options.devices.len(), 3);
    assert_eq!(options.cdi_devices[0].name, "vendor.com/class=d0");
    assert_eq!(options.annotations.len(), 1);
    assert_eq!(plugin.count("prestart"), 0);
}

#[tokio::test]
async fn items_052_054_055_056_init_containers_and_sidecars() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(4));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 4, 4).await;
    let pod = init_pod("a", &[("side", true), ("init", false)], &["one", "two"]);
    node.admit(&pod).await.unwrap();
    let calls = plugin.allocations();
    assert_eq!(calls, [["d0"], ["d1"], ["d1"], ["d2"]]);
    let listed = list(&node).await;
    let names: Vec<_> = listed[0]
        .containers
        .iter()
        .map(|c| c.name.clone())
        .collect();
    assert_eq!(names, ["side", "one", "two"]);
    let all: Vec<_> = held(&listed[0]).into_values().flatten().collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}

#[tokio::test]
async fn items_057_058_061_068_145_refusals() {
    let node = Node::start_with(|c| c.plugin_wait = Duration::ZERO).await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let error = message(&node.admit(&pod("a", &[(R, 3)])).await.unwrap_err());
    assert_eq!(
        error,
        format!("requested number of devices unavailable for {R}. Requested: 3, Available: 2")
    );
    plugin.empty_answers();
    let error = message(&node.admit(&pod("b", &[(R, 1)])).await.unwrap_err());
    assert!(
        error.starts_with("no containers return in allocation response "),
        "{error}"
    );
    plugin.failing("out of luck");
    let error = message(&node.admit(&pod("c", &[(R, 2)])).await.unwrap_err());
    assert_eq!(
        error,
        "rpc error: code = FailedPrecondition desc = out of luck"
    );
    plugin.working();
    node.admit(&pod("d", &[(R, 2)])).await.unwrap();
    plugin.list(vec![
        plugin::device("d0", "Unhealthy"),
        plugin::device("d1", "Unhealthy"),
    ]);
    node.counts(R, 2, 0).await;
    let error = message(&node.admit(&pod("e", &[(R, 1)])).await.unwrap_err());
    assert_eq!(
        error,
        format!("no healthy devices present; cannot allocate unhealthy devices {R}")
    );
    let error = message(&node.admit(&pod("d", &[(R, 2)])).await.unwrap_err());
    assert_eq!(
        error,
        format!("no healthy devices present; cannot allocate unhealthy devices {R}")
    );
    plugin.list(vec![
        plugin::device("d0", "Unhealthy"),
        plugin::device("d1", "Healthy"),
    ]);
    node.counts(R, 2, 1).await;
    let error = message(&node.admit(&pod("d", &[(R, 2)])).await.unwrap_err());
    assert_eq!(
        error,
        format!(
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {R}"
        )
    );
    let error = message(&node.admit(&pod("d", &[(R, 1)])).await.unwrap_err());
    assert_eq!(
        error,
        format!(
            "pod \"uid-d\" container \"main\" changed request for resource \"{R}\" from 2 to 1"
        )
    );
    node.admit(&pod("f", &[(R, 0)])).await.unwrap();
    // Item 145: taken for a resource of the cluster and not of the node, as the kubelet does.
    node.admit(&pod("g", &[("example.com/unknown", 1)]))
        .await
        .unwrap();
    serving.stop().await;
    node.counts(R, 2, 0).await;
    let error = message(&node.admit(&pod("h", &[(R, 1)])).await.unwrap_err());
    assert_eq!(
        error,
        format!("no healthy devices present; cannot allocate unhealthy devices {R}")
    );
}

#[tokio::test]
async fn items_062_067_no_preference_and_a_failed_call() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    plugin.failing("no power");
    let error = message(&node.admit(&pod("a", &[(R, 2)])).await.unwrap_err());
    assert_eq!(
        error,
        "rpc error: code = FailedPrecondition desc = no power"
    );
    plugin.working();
    // All of them are free again for the next pod.
    node.admit(&pod("b", &[(R, 2)])).await.unwrap();
    assert_eq!(plugin.allocations(), [["d0", "d1"]]);
    assert!(plugin.asked().is_empty());
}

#[tokio::test]
async fn item_065_preferences_are_filled_up_and_cut() {
    let node = Node::start().await;
    let short = Plugin::new("short.sock")
        .with(devices(4))
        .preferring(&["d2"]);
    let long = Plugin::new("long.sock")
        .with(devices(4))
        .preferring(&["d3", "d2", "d1", "d0"]);
    let _short = short
        .serve(node.root())
        .await
        .registered("example.com/short")
        .await;
    let _long = long
        .serve(node.root())
        .await
        .registered("example.com/long")
        .await;
    node.counts("example.com/short", 4, 4).await;
    node.counts("example.com/long", 4, 4).await;
    node.admit(&pod(
        "a",
        &[("example.com/short", 2), ("example.com/long", 2)],
    ))
    .await
    .unwrap();
    let given = &short.allocations()[0];
    assert!(
        given.len() == 2 && given.contains(&"d2".to_owned()),
        "{given:?}"
    );
    assert_eq!(long.allocations()[0].len(), 2);
}

#[tokio::test]
async fn item_066_preference_that_fails() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2)).failing_preference();
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let error = message(&node.admit(&pod("a", &[(R, 1)])).await.unwrap_err());
    assert_eq!(
        error,
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = no taste"
    );
    assert_eq!(node.manager().allocated(), BTreeMap::new());
}

#[tokio::test]
async fn items_069_070_a_plugin_that_hangs() {
    let node = Node::start_with(|c| c.allocate_timeout = Duration::from_secs(4)).await;
    let hanging = Plugin::new("h.sock").with(devices(2));
    let _hanging = hanging.serve(node.root()).await.registered(R).await;
    let good = Plugin::new("g.sock").with(devices(200));
    let _good = good
        .serve(node.root())
        .await
        .registered("example.com/good")
        .await;
    node.counts(R, 2, 2).await;
    node.counts("example.com/good", 200, 200).await;
    hanging.hanging();
    let started = Instant::now();
    let stuck = pod("stuck", &[(R, 2)]);
    let waits = node.admit(&stuck);
    let others = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        for n in 0..20 {
            node.admit(&pod(&format!("g{n}"), &[("example.com/good", 2)]))
                .await
                .unwrap();
            node.admit(&pod(&format!("n{n}"), &[])).await.unwrap();
        }
        started.elapsed()
    };
    let (stuck, others) = tokio::join!(waits, others);
    assert!(others < Duration::from_secs(4), "others took {others:?}");
    let error = message(&stuck.unwrap_err());
    assert!(
        error.contains("DeadlineExceeded") && error.contains("did not answer Allocate within"),
        "{error}"
    );
    hanging.working();
    node.admit(&pod("next", &[(R, 2)])).await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_vanishes_in_the_middle_is_waited_for() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    plugin.hanging();
    let said = Arc::new(Mutex::new(Vec::new()));
    let waiting = pod("a", &[(R, 2)]);
    let admission = node.admit_saying(&waiting, said.clone());
    let script = async {
        until("call arrives", || plugin.count("allocate") == 1).await;
        serving.stop().await;
        // The slow call may have been named before.
        let reason = format!("waiting for the device plugin of {R}");
        let is_told = || said.lock().iter().any(|s: &String| s.contains(&reason));
        until("reason is told", is_told).await;
        assert_eq!(node.manager().allocated(), BTreeMap::new());
        plugin.working();
        plugin.serve(node.root()).await.registered(R).await
    };
    let (admitted, _serving) = tokio::join!(admission, script);
    admitted.unwrap();
    assert_eq!(node.manager().allocated()[R], 2);
}

#[tokio::test]
async fn items_071_072_073_churn_never_shares_a_device() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(200));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 200, 200).await;
    let churn = |worker: usize| {
        let node = &node;
        async move {
            for round in 0..10 {
                let pod = pod(&format!("{worker}-{round}"), &[(R, 2)]);
                node.admit(&pod).await.unwrap();
                tokio::task::yield_now().await;
                node.finish(&pod, round % 2 == 0).await;
            }
        }
    };
    let workers = futures::future::join_all((0..100).map(churn));
    let watch = async {
        loop {
            let mut seen = BTreeSet::new();
            for pod in list(&node).await {
                for id in held(&pod).into_values().flatten() {
                    assert!(seen.insert(id.clone()), "{id} is listed twice");
                }
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    tokio::select! {
        _ = workers => {}
        () = watch => {}
    }
    node.manager().sources_ready();
    node.clear_pods();
    list(&node).await;
    assert_eq!(node.manager().allocated(), BTreeMap::new());
}

#[tokio::test]
async fn item_076_resources_served_by_claims_do_not_reach_the_plugin() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(1));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 1, 1).await;
    let mut mapped = pod("a", &[(R, 5)]);
    let mapping = ContainerExtendedResourceRequest {
        container_name: "main".into(),
        request_name: "container-0-request-0".into(),
        resource_name: R.into(),
    };
    mapped.status = Some(PodStatus {
        extended_resource_claim_status: Some(PodExtendedResourceClaimStatus {
            request_mappings: vec![mapping],
            resource_claim_name: "a-extended".into(),
        }),
        ..Default::default()
    });
    node.admit(&mapped).await.unwrap();
    assert_eq!(plugin.count("allocate"), 0);
    node.admit(&pod("b", &[(R, 1)])).await.unwrap();
}
