//! Undoing, where drivers hang or are gone. A lock that is held is a call under way.

use super::*;
use crate::mounts::NoMounter;
use davit_flexvolume::DriverName;
use davit_pods::objects::FixedObjects;
use davit_pods::paths::Paths;
use davit_volume::names::unique_volume_name;
use serde_json::json;
use std::time::Duration;

fn volumes(root: &Path) -> Volumes {
    Volumes::new(
        Paths::new(root.join("kubelet"), root.join("log/pods")),
        Arc::new(NoMounter),
        Arc::new(FixedObjects::from_json(&[])),
    )
}

fn volume_of_a_missing_driver() -> CsiVolume {
    let source = serde_json::from_value(json!({"driver": "gone.example.com"})).unwrap();
    CsiVolume::inline(&source, "m", "ns", "u1")
}

#[tokio::test]
async fn a_driver_that_is_gone_keeps_no_other_volume_of_the_pod() {
    let tmp = tempfile::tempdir().unwrap();
    let volumes = volumes(tmp.path());
    let dir = |name| paths::pod_volume_dir(volumes.paths.root(), "u1", name);
    // The middle one of many: in whatever order the directory is read, some come after it.
    let others = ["a", "b", "c", "d", "e", "f", "g", "h", "x", "y", "z"];
    for name in others.iter().chain(&["m"]) {
        std::fs::create_dir_all(dir(name).join("mount")).unwrap();
    }
    let record = PublishData::of(&volume_of_a_missing_driver(), "n");
    vol_data::write(&dir("m").join(VOL_DATA), &record).unwrap();
    let error = volumes.unpublish("u1").await.unwrap_err().to_string();
    assert!(
        error.starts_with("UnmountVolume.TearDown failed for volume \"m\" : "),
        "{error}"
    );
    assert!(dir("m").join(VOL_DATA).exists());
    let left = others.iter().filter(|name| dir(name).exists());
    assert_eq!(left.count(), 0);
}

/// All descriptors are taken, or a disk fails, just when it is looked who uses what is on the node.
#[tokio::test]
async fn what_cannot_be_listed_is_not_taken_for_unused() {
    let tmp = tempfile::tempdir().unwrap();
    let volumes = volumes(&tmp.path().join("x".repeat(300)));
    assert!(volumes.is_local_volume_used("pv"));
    volumes.in_use().unwrap_err();
    volumes.others_with("", PLUGIN, "pv").unwrap_err();
    published_records(&volumes.paths.pods()).unwrap_err();
    volumes.teardown("u").await.unwrap_err();
    map_of(&volumes.paths, "pv").pods().unwrap_err();
    let record = StageData::of(&volume_of_a_missing_driver());
    let error = volumes
        .unstage_unused(tmp.path(), &record)
        .await
        .unwrap_err();
    assert!(!error.to_string().contains("gone.example.com"), "{error}");
}

/// Drivers may write in the directories of the node's volumes.
#[tokio::test]
async fn what_a_driver_leaves_there_hides_no_other_volume() {
    let tmp = tempfile::tempdir().unwrap();
    let volumes = volumes(tmp.path());
    let root = volumes.paths.root();
    let dir = |handle: &str| paths::staging_dir(root, "d.example.com", handle);
    for (handle, at) in [("dir", VOL_DATA), ("h", "globalmount")] {
        std::fs::create_dir_all(dir(handle).join(at)).unwrap();
    }
    std::os::unix::fs::symlink("loop", paths::plugin_dir(root).join("loop")).unwrap();
    std::fs::write(paths::plugin_dir(root).join("file"), "").unwrap();
    let mut volume = volume_of_a_missing_driver();
    volume.handle = "h".to_owned();
    vol_data::write(&dir("h").join(VOL_DATA), &StageData::of(&volume)).unwrap();
    let names = volumes.in_use().unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[tokio::test]
async fn a_flexvolume_driver_that_is_gone_keeps_no_csi_volume() {
    let tmp = tempfile::tempdir().unwrap();
    let volumes = volumes(tmp.path());
    let root = volumes.paths.root();
    let csi = paths::pod_volume_dir(root, "u1", "a");
    let flex = root.join("pods/u1/volumes/acme~mem/f");
    for dir in [&csi.join("mount"), &flex] {
        std::fs::create_dir_all(dir).unwrap();
    }
    let error = volumes.teardown("u1").await.unwrap_err().to_string();
    assert!(
        error.starts_with("UnmountVolume.TearDown failed for volume \"f\" : "),
        "{error}"
    );
    assert_eq!((csi.exists(), flex.exists()), (false, true));
}

#[tokio::test]
async fn a_driver_that_hangs_holds_up_its_own_volumes_only() {
    let tmp = tempfile::tempdir().unwrap();
    let volumes = volumes(tmp.path());
    let root = volumes.paths.root();
    let staging = paths::staging_dir(root, "hangs.example.com", "h");
    std::fs::create_dir_all(&staging).unwrap();
    let mut hanging = volume_of_a_missing_driver();
    hanging.driver = "hangs.example.com".to_owned();
    hanging.handle = "h".to_owned();
    vol_data::write(&staging.join(VOL_DATA), &StageData::of(&hanging)).unwrap();
    let flex = DriverName::new("acme/mem").unwrap();
    let [held, free] = ["held", "free"].map(|volume| {
        let dir = davit_flexvolume::paths::global_mount(root, &flex, volume);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    });
    let lock = |name: &str| volumes.volumes.of(name);
    let (csi, flex) = (
        lock("hangs.example.com/h"),
        lock(&unique_volume_name("acme/mem", "held")),
    );
    let _csi = csi.lock().await;
    let held_up = flex.lock().await;
    let gone = async |dir: &Path| {
        while dir.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let look = async {
        gone(&free).await;
        assert!(held.exists());
        drop(held_up);
        gone(&held).await;
    };
    let both = async {
        tokio::select! {
            () = volumes.keep_staged() => {}
            () = look => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .expect("other volumes are undone");
    assert!(staging.join(VOL_DATA).exists());
}

#[tokio::test(start_paused = true)]
async fn item_038_a_node_that_takes_no_more_volumes_says_so() {
    let tmp = tempfile::tempdir().unwrap();
    let volume = volume_of_a_missing_driver();
    let name = davit_csi::names::attachment_name(&volume.handle, &volume.driver, "");
    let attachment = |code: i32| {
        json!({"kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": volume.driver, "nodeName": "n", "source": {}},
            "status": {"attached": false, "attachError": {"message": "full", "errorCode": code}}})
    };
    let object = |period: Option<i64>| {
        let spec = json!({"nodeAllocatableUpdatePeriodSeconds": period});
        let driver = json!({"metadata": {"name": volume.driver}, "spec": spec});
        DriverSettings::of(Some(&serde_json::from_value(driver).unwrap()))
    };
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers": []}}))
            .unwrap();
    for (code, period, full) in [(8, Some(10), true), (13, Some(10), false), (8, None, false)] {
        let volumes = Volumes::new(
            Paths::new(tmp.path().join("kubelet"), tmp.path().join("log/pods")),
            Arc::new(NoMounter),
            Arc::new(FixedObjects::from_json(&[attachment(code)])),
        );
        let cause = volumes.attached(&pod, &volume, &object(period)).await;
        let error = Error::SetUp {
            volume: "v".to_owned(),
            cause: cause.unwrap_err(),
        };
        let driver = full.then_some("gone.example.com");
        assert_eq!(error.full_driver(), driver, "{error}");
    }
}
