//! Calls on a driver: their errors, deadlines, and what happens when the driver goes and comes.

use crate::mock::{Asked, Bench, MockDriver, Script, silent};
use davit_csi::{Class, Error, VolumeStats};
use davit_proto::csi::v1::node_service_capability::rpc::Type;
use davit_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeUsage,
    volume_usage::Unit,
};
use std::time::{Duration, Instant};
use tonic::Code;

const LIMIT: Duration = Duration::from_secs(30);

fn publish(volume: &str) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume.to_owned(),
        target_path: "/t".to_owned(),
        secrets: [("password".to_owned(), "hidden".to_owned())].into(),
        ..NodePublishVolumeRequest::default()
    }
}

fn unpublish(volume: &str) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        target_path: "/t".to_owned(),
    }
}

#[tokio::test]
async fn every_call_reaches_the_driver() {
    let bench = Bench::new(LIMIT);
    let (mock, driver) = bench.start(Script {
        node_id: "n1".to_owned(),
        ..Script::default()
    });
    assert_eq!(driver.node_get_info().await.unwrap().node_id, "n1");
    let stage = NodeStageVolumeRequest {
        volume_id: "v".to_owned(),
        staging_target_path: "/s".to_owned(),
        ..NodeStageVolumeRequest::default()
    };
    let unstage = NodeUnstageVolumeRequest {
        volume_id: "v".to_owned(),
        staging_target_path: "/s".to_owned(),
    };
    let expand = NodeExpandVolumeRequest {
        volume_id: "v".to_owned(),
        volume_path: "/t".to_owned(),
        capacity_range: Some(davit_proto::csi::v1::CapacityRange {
            required_bytes: 7,
            limit_bytes: 0,
        }),
        ..NodeExpandVolumeRequest::default()
    };
    driver.stage(stage.clone()).await.unwrap();
    driver.publish(publish("v")).await.unwrap();
    assert_eq!(driver.expand(expand.clone()).await.unwrap(), 7);
    driver.unpublish(unpublish("v")).await.unwrap();
    driver.unstage(unstage.clone()).await.unwrap();
    assert_eq!(
        mock.asked(),
        [
            Asked::Info,
            Asked::Stage(stage),
            Asked::Publish(publish("v")),
            Asked::Expand(expand),
            Asked::Unpublish(unpublish("v")),
            Asked::Unstage(unstage),
        ]
    );
    let missing = driver.publish(publish("")).await.unwrap_err();
    assert_eq!(missing.to_string(), "missing volume id");
    assert!(mock.asked().is_empty());
}

#[tokio::test]
async fn codes_of_the_driver_are_final_or_uncertain() {
    let bench = Bench::new(LIMIT);
    let (mock, driver) = bench.start(Script::default());
    for (code, class) in [
        (Code::InvalidArgument, Class::Final),
        (Code::Internal, Class::Final),
        (Code::Unknown, Class::Final),
        (Code::Unimplemented, Class::Final),
        (Code::Cancelled, Class::Uncertain),
        (Code::DeadlineExceeded, Class::Uncertain),
        (Code::Unavailable, Class::Uncertain),
        (Code::ResourceExhausted, Class::Uncertain),
        (Code::Aborted, Class::Uncertain),
    ] {
        mock.script(|s| s.failure = Some((code, "not now".to_owned())));
        let error = driver.publish(publish("v")).await.unwrap_err();
        assert_eq!(error.class(), class, "{code:?}");
        assert!(error.to_string().ends_with(" desc = not now"), "{error}");
        assert!(!format!("{error:?} {driver:?}").contains("hidden"));
    }
    mock.script(|s| s.failure = Some((Code::OutOfRange, "too large".to_owned())));
    let error = driver.publish(publish("v")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "rpc error: code = OutOfRange desc = too large"
    );
    assert!(error.is_infeasible() && !error.is_in_use());
}

#[tokio::test]
async fn item_087_a_call_that_hangs_is_cancelled_and_others_go_on() {
    let bench = Bench::new(Duration::from_secs(1));
    let (mock, driver) = bench.start(Script {
        hangs: vec!["stuck".to_owned()],
        ..Script::default()
    });
    let begun = Instant::now();
    let (stuck, well) = tokio::join!(driver.publish(publish("stuck")), async {
        driver.publish(publish("v")).await.unwrap();
        begun.elapsed()
    });
    let error = stuck.unwrap_err();
    assert_eq!(
        error.to_string(),
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
    assert_eq!(error.class(), Class::Uncertain);
    assert!(begun.elapsed() >= Duration::from_secs(1) && well < Duration::from_secs(1));
    // The driver knows the limit and hears of the end.
    assert!(
        mock.limits()
            .iter()
            .all(|l| l.as_deref() == Some("1500000u")),
        "{:?}",
        mock.limits()
    );
    mock.given_up().await;
    driver.publish(publish("v")).await.unwrap();
}

#[tokio::test]
async fn a_driver_that_dies_in_a_call_leaves_the_outcome_open() {
    let bench = Bench::new(LIMIT);
    let (mock, driver) = bench.start(Script {
        hangs: vec!["v".to_owned()],
        ..Script::default()
    });
    let (result, ()) = tokio::join!(driver.publish(publish("v")), async {
        mock.called().await;
        drop(mock);
    });
    let error = result.unwrap_err();
    assert_eq!(error.class(), Class::Uncertain, "{error}");
    assert!(
        error
            .to_string()
            .starts_with("rpc error: code = Unavailable desc = "),
        "{error}"
    );
}

#[tokio::test]
async fn capabilities_are_asked_once_a_connection_and_never_kept_over_a_new_one() {
    let bench = Bench::new(LIMIT);
    let (mock, driver) = bench.start(Script {
        capabilities: vec![Type::StageUnstageVolume, Type::GetVolumeHealth],
        ..Script::default()
    });
    for _ in 0..3 {
        let capabilities = driver.capabilities().await.unwrap();
        assert!(capabilities.stage_unstage && !capabilities.expand);
    }
    driver.unpublish(unpublish("v")).await.unwrap();
    assert_eq!(
        mock.asked(),
        [Asked::Capabilities, Asked::Unpublish(unpublish("v"))]
    );

    drop(mock);
    let mock = MockDriver::serve(
        &bench.socket("csi.sock"),
        Script {
            capabilities: vec![Type::ExpandVolume],
            ..Script::default()
        },
    );
    // One call may still meet the end of the old connection.
    let mut errors = 0;
    while let Err(error) = driver.unpublish(unpublish("v")).await {
        assert_eq!(error.class(), Class::Uncertain, "{error}");
        errors += 1;
        assert!(errors < 10, "{error}");
    }
    let capabilities = driver.capabilities().await.unwrap();
    assert!(!capabilities.stage_unstage && capabilities.expand);
    assert_eq!(
        mock.asked(),
        [Asked::Unpublish(unpublish("v")), Asked::Capabilities]
    );
}

#[tokio::test]
async fn failed_capabilities_are_asked_again() {
    let bench = Bench::new(LIMIT);
    let (mock, driver) = bench.start(Script {
        failure: Some((Code::Unavailable, "starting".to_owned())),
        ..Script::default()
    });
    assert_eq!(
        driver.capabilities().await.unwrap_err().class(),
        Class::Uncertain
    );
    mock.script(|s| s.failure = None);
    driver.capabilities().await.unwrap();
    assert_eq!(mock.asked().len(), 2);
}

#[tokio::test]
async fn a_replaced_driver_is_not_called_and_its_end_does_not_take_out_the_new_one() {
    let bench = Bench::new(LIMIT);
    let (old, _) = bench.start(Script::default());
    let new = MockDriver::serve(&bench.socket("new.sock"), Script::default());
    bench.register("d-new-reg.sock", "new.sock", "1.1.0");
    drop(old);
    let removed = bench.drivers.deregister(&bench.socket("d-reg.sock"));
    assert!(removed[0].successor.is_some());
    let driver = bench.drivers.get("d").unwrap();
    driver.unpublish(unpublish("v")).await.unwrap();
    assert_eq!(new.asked(), [Asked::Unpublish(unpublish("v"))]);
}

#[tokio::test]
async fn a_driver_that_is_not_there_costs_all_waiters_one_attempt() {
    let bench = Bench::new(LIMIT);
    let driver = bench.register("d-reg.sock", "none.sock", "1.0.0");
    let begun = Instant::now();
    let calls = (0..20).map(|_| {
        let driver = driver.clone();
        tokio::spawn(async move { driver.unpublish(unpublish("v")).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let error = call.await.unwrap().unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("rpc error: code = Unavailable desc = connection error: dial /"),
            "{text}"
        );
        assert_eq!(error.class(), Class::Uncertain);
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
    let _mock = MockDriver::serve(&bench.socket("none.sock"), Script::default());
    driver.unpublish(unpublish("v")).await.unwrap();
}

#[tokio::test]
async fn a_socket_that_accepts_and_is_silent_ends_with_the_deadline() {
    let bench = Bench::new(Duration::from_secs(1));
    let _listener = silent(&bench.socket("csi.sock"));
    let driver = bench.register("d-reg.sock", "csi.sock", "1.0.0");
    let error = driver.capabilities().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Call {
                code: Code::DeadlineExceeded,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn numbers_of_a_volume() {
    let bench = Bench::new(LIMIT);
    let (mock, driver) = bench.start(Script::default());
    let ask = || {
        driver.volume_stats(NodeGetVolumeStatsRequest {
            volume_id: "v".to_owned(),
            volume_path: "/t".to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        })
    };
    let nothing = ask().await.unwrap_err();
    assert_eq!(
        nothing.to_string(),
        "failed to get usage from response. usage is nil"
    );
    // Two bytes each, which take many more when they are read.
    mock.script(|s| s.stats.usage = vec![VolumeUsage::default(); 3 << 20]);
    let too_long = ask().await.unwrap_err().to_string();
    assert!(too_long.contains("too large"), "{too_long}");
    let usage = |unit: Unit, available, total, used| VolumeUsage {
        available,
        total,
        used,
        unit: unit.into(),
    };
    mock.script(|s| {
        s.stats.usage = vec![usage(Unit::Inodes, 1, 2, 3), usage(Unit::Bytes, 4, 5, 6)];
    });
    assert_eq!(
        ask().await.unwrap(),
        VolumeStats {
            available_bytes: 4,
            capacity_bytes: 5,
            used_bytes: 6,
            inodes_free: 1,
            inodes: 2,
            inodes_used: 3,
            condition: None,
        }
    );
    // Whoever reads the statistics of the node expects none below zero.
    mock.script(|s| {
        s.stats.usage = vec![
            usage(Unit::Inodes, i64::MIN, -1, -7),
            usage(Unit::Bytes, -1, i64::MAX, i64::MIN),
        ];
    });
    assert_eq!(
        ask().await.unwrap(),
        VolumeStats {
            capacity_bytes: i64::MAX,
            ..VolumeStats::default()
        }
    );
}
