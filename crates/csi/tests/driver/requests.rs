//! What a driver is asked, made of objects as the API server has them.

use crate::mock::{Asked, Bench, Script};
use davit_csi::fs_group::FsGroup;
use davit_csi::request::{self, PodAttributes, PublishVolume, StageVolume, Texts};
use davit_csi::{Capabilities, CsiVolume, DriverSettings};
use davit_proto::csi::v1::node_service_capability::rpc::Type;
use davit_proto::csi::v1::volume_capability::{AccessType, MountVolume, access_mode::Mode};
use davit_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::api::core::v1::{CSIVolumeSource, PersistentVolume};
use k8s_openapi::api::storage::v1::CSIDriver;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn persistent(modes: &[&str], block: bool) -> CsiVolume {
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "pv1"},
        "spec": {
            "accessModes": modes,
            "mountOptions": ["noatime", "discard"],
            "volumeMode": if block { "Block" } else { "Filesystem" },
            "csi": {
                "driver": "d", "volumeHandle": "h1", "fsType": "ext4",
                "volumeAttributes": {"a": "1"},
                "nodeStageSecretRef": {"name": "s", "namespace": "ns"},
            },
        },
    }))
    .unwrap();
    CsiVolume::persistent(&volume).unwrap()
}

fn settings(spec: &serde_json::Value) -> DriverSettings {
    let object: CSIDriver =
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap();
    DriverSettings::of(Some(&object))
}

fn tokens() -> BTreeMap<String, TokenRequestStatus> {
    let token = |text: &str| {
        serde_json::from_value(
            json!({"token": text, "expirationTimestamp": "2026-01-02T03:04:05Z"}),
        )
        .unwrap()
    };
    [
        ("".to_owned(), token("hidden1")),
        ("vault".to_owned(), token("hidden2")),
    ]
    .into()
}

/// All that a publish needs, to be changed by tests.
struct Given {
    volume: CsiVolume,
    capabilities: Capabilities,
    settings: DriverSettings,
    pod: PodAttributes,
    tokens: BTreeMap<String, TokenRequestStatus>,
    publish_context: Texts,
    secrets: Texts,
    fs_group: FsGroup,
    read_only: bool,
}

impl Given {
    fn new(volume: CsiVolume, capabilities: Capabilities) -> Self {
        Self {
            volume,
            capabilities,
            settings: DriverSettings::of(None),
            pod: PodAttributes {
                name: "p1".to_owned(),
                namespace: "ns1".to_owned(),
                uid: "u1".to_owned(),
                service_account: "sa1".to_owned(),
            },
            tokens: BTreeMap::new(),
            publish_context: texts(&[("device", "/dev/x")]),
            secrets: texts(&[("key", "secret")]),
            fs_group: FsGroup::Leave,
            read_only: false,
        }
    }

    fn stage(&self) -> NodeStageVolumeRequest {
        let stage = StageVolume {
            volume: &self.volume,
            capabilities: self.capabilities,
            staging_path: "/staging",
            publish_context: &self.publish_context,
            secrets: &self.secrets,
            fs_group: self.fs_group,
        };
        stage.request()
    }

    fn publish(&self) -> NodePublishVolumeRequest {
        let publish = PublishVolume {
            volume: &self.volume,
            capabilities: self.capabilities,
            settings: &self.settings,
            pod: &self.pod,
            tokens: &self.tokens,
            staging_path: "/staging",
            target_path: "/target",
            read_only: self.read_only,
            publish_context: &self.publish_context,
            secrets: &self.secrets,
            fs_group: self.fs_group,
        };
        publish.request().unwrap()
    }
}

#[tokio::test]
async fn item_077_modes_with_and_without_single_node_multi_writer_as_a_driver_sees_them() {
    let bench = Bench::new(Duration::from_secs(30));
    let (mock, driver) = bench.start(Script::default());
    for (able, modes, expected) in [
        (false, vec!["ReadWriteOnce"], Mode::SingleNodeWriter),
        (false, vec!["ReadOnlyMany"], Mode::MultiNodeReaderOnly),
        (false, vec!["ReadWriteMany"], Mode::MultiNodeMultiWriter),
        (false, vec!["ReadWriteOncePod"], Mode::SingleNodeWriter),
        (true, vec!["ReadWriteOnce"], Mode::SingleNodeMultiWriter),
        (true, vec!["ReadOnlyMany"], Mode::MultiNodeReaderOnly),
        (true, vec!["ReadWriteMany"], Mode::MultiNodeMultiWriter),
        (true, vec!["ReadWriteOncePod"], Mode::SingleNodeSingleWriter),
        (
            true,
            vec!["ReadWriteMany", "ReadWriteOnce"],
            Mode::MultiNodeMultiWriter,
        ),
        (false, vec![], Mode::SingleNodeWriter),
    ] {
        let mut capabilities = vec![Type::StageUnstageVolume];
        capabilities.extend(able.then_some(Type::SingleNodeMultiWriter));
        // The driver of this turn, with a connection of its own.
        mock.script(|s| s.capabilities = capabilities);
        let driver_of_turn = bench.register("d-reg.sock", "csi.sock", "1.0.0");
        let given = Given::new(
            persistent(&modes, false),
            driver_of_turn.capabilities().await.unwrap(),
        );
        mock.asked();
        driver_of_turn.stage(given.stage()).await.unwrap();
        driver_of_turn.publish(given.publish()).await.unwrap();
        let asked = mock.asked();
        let [Asked::Stage(stage), Asked::Publish(publish)] = asked.as_slice() else {
            panic!("{asked:?}");
        };
        for capability in [&stage.volume_capability, &publish.volume_capability] {
            let capability = capability.as_ref().unwrap();
            assert_eq!(
                capability.access_mode.unwrap().mode(),
                expected,
                "{able} {modes:?}"
            );
            assert_eq!(
                capability.access_type,
                Some(AccessType::Mount(MountVolume {
                    fs_type: "ext4".to_owned(),
                    mount_flags: vec!["noatime".to_owned(), "discard".to_owned()],
                    volume_mount_group: String::new(),
                }))
            );
        }
        assert_eq!(
            (stage.volume_id.as_str(), stage.staging_target_path.as_str()),
            ("h1", "/staging")
        );
        assert_eq!(stage.publish_context, texts(&[("device", "/dev/x")]));
        assert_eq!(stage.volume_context, texts(&[("a", "1")]));
        assert_eq!(stage.secrets, texts(&[("key", "secret")]));
        assert_eq!(
            (
                publish.volume_id.as_str(),
                publish.staging_target_path.as_str()
            ),
            ("h1", "/staging")
        );
        assert_eq!(
            (publish.target_path.as_str(), publish.readonly),
            ("/target", false)
        );
        assert_eq!(publish.publish_context, texts(&[("device", "/dev/x")]));
        assert_eq!(publish.volume_context, texts(&[("a", "1")]));
        assert_eq!(publish.secrets, texts(&[("key", "secret")]));
    }
    drop(driver);
}

#[test]
fn item_083_no_staging_path_without_staging() {
    let given = Given::new(
        persistent(&["ReadWriteOnce"], false),
        Capabilities::default(),
    );
    assert_eq!(given.publish().staging_target_path, "");
    let expand = request::expand(
        &given.volume,
        given.capabilities,
        "/target",
        "/staging",
        9,
        &given.secrets,
    );
    assert_eq!(expand.staging_target_path, "");
}

#[test]
fn item_079_a_pod_never_sees_the_keys_of_another() {
    let mut given = Given::new(
        persistent(&["ReadWriteMany"], false),
        Capabilities::default(),
    );
    given.settings = settings(&json!({"podInfoOnMount": true}));
    assert_eq!(
        given.publish().volume_context,
        texts(&[
            ("a", "1"),
            ("csi.storage.k8s.io/pod.name", "p1"),
            ("csi.storage.k8s.io/pod.namespace", "ns1"),
            ("csi.storage.k8s.io/pod.uid", "u1"),
            ("csi.storage.k8s.io/serviceAccount.name", "sa1"),
            ("csi.storage.k8s.io/ephemeral", "false"),
        ])
    );
    given.settings = settings(&json!({}));
    given.pod = PodAttributes::default();
    assert_eq!(given.publish().volume_context, texts(&[("a", "1")]));
}

#[test]
fn item_080_tokens_are_in_the_context_or_among_the_secrets() {
    let key = "csi.storage.k8s.io/serviceAccount.tokens";
    let expected = "{\"\":{\"token\":\"hidden1\",\"expirationTimestamp\":\"2026-01-02T03:04:05Z\"},\
                    \"vault\":{\"token\":\"hidden2\",\"expirationTimestamp\":\"2026-01-02T03:04:05Z\"}}";
    let mut given = Given::new(
        persistent(&["ReadWriteOnce"], false),
        Capabilities::default(),
    );
    given.tokens = tokens();
    let request = given.publish();
    assert_eq!(request.volume_context[key], expected);
    assert!(!request.secrets.contains_key(key));
    assert!(!format!("{request:?}").contains("hidden"));

    given.settings = settings(&json!({"serviceAccountTokenInSecrets": true}));
    let request = given.publish();
    assert_eq!(request.secrets[key], expected);
    assert_eq!(request.secrets["key"], "secret");
    assert!(!request.volume_context.contains_key(key));
}

#[test]
fn item_082_the_group_is_told_to_drivers_that_can() {
    let mut given = Given::new(
        persistent(&["ReadWriteOnce"], false),
        Capabilities::default(),
    );
    given.fs_group = FsGroup::Driver(2000);
    for capability in [
        given.stage().volume_capability,
        given.publish().volume_capability,
    ] {
        let Some(AccessType::Mount(mount)) = capability.unwrap().access_type else {
            panic!("not a mount");
        };
        assert_eq!(mount.volume_mount_group, "2000");
    }
    given.fs_group = FsGroup::Agent(2000);
    let Some(AccessType::Mount(mount)) = given.stage().volume_capability.unwrap().access_type
    else {
        panic!("not a mount");
    };
    assert_eq!(mount.volume_mount_group, "");
}

#[test]
fn item_088_an_inline_volume() {
    let source: CSIVolumeSource = serde_json::from_value(json!({
        "driver": "d", "fsType": "xfs", "readOnly": true, "volumeAttributes": {"size": "1Gi"},
        "nodePublishSecretRef": {"name": "s"},
    }))
    .unwrap();
    let volume = CsiVolume::inline(&source, "c", "ns1", "ab");
    assert_eq!(volume.publish_secret.as_ref().unwrap().to_string(), "ns1/s");
    let staging = Capabilities {
        stage_unstage: true,
        single_node_multi_writer: true,
        ..Capabilities::default()
    };
    let mut given = Given::new(volume, staging);
    given.settings = settings(&json!({"podInfoOnMount": true}));
    given.publish_context = Texts::new();
    let request = given.publish();
    assert_eq!(
        request.volume_id,
        "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert_eq!(
        (request.staging_target_path.as_str(), request.readonly),
        ("", true)
    );
    assert_eq!(
        request.volume_context["csi.storage.k8s.io/ephemeral"],
        "true"
    );
    assert_eq!(request.volume_context["size"], "1Gi");
    let capability = request.volume_capability.unwrap();
    assert_eq!(
        capability.access_mode.unwrap().mode(),
        Mode::SingleNodeMultiWriter
    );
    assert_eq!(
        capability.access_type,
        Some(AccessType::Mount(MountVolume {
            fs_type: "xfs".to_owned(),
            ..MountVolume::default()
        }))
    );
}

#[test]
fn item_090_a_device_has_no_mount_no_tokens_and_always_a_staging_path() {
    let mut given = Given::new(
        persistent(&["ReadWriteOnce"], true),
        Capabilities::default(),
    );
    given.tokens = tokens();
    given.read_only = true;
    given.fs_group = FsGroup::Leave;
    let request = given.publish();
    assert_eq!(request.staging_target_path, "/staging");
    assert!(request.readonly);
    assert_eq!(request.volume_context, texts(&[("a", "1")]));
    assert_eq!(request.secrets, texts(&[("key", "secret")]));
    for capability in [request.volume_capability, given.stage().volume_capability] {
        assert!(matches!(
            capability.unwrap().access_type,
            Some(AccessType::Block(_))
        ));
    }
}

#[test]
fn an_expansion_names_the_wish_and_no_limit() {
    let staging = Capabilities {
        stage_unstage: true,
        ..Capabilities::default()
    };
    let given = Given::new(persistent(&["ReadWriteMany"], false), staging);
    let request = request::expand(
        &given.volume,
        staging,
        "/target",
        "/staging",
        1 << 30,
        &given.secrets,
    );
    let range = request.capacity_range.unwrap();
    assert_eq!((range.required_bytes, range.limit_bytes), (1 << 30, 0));
    assert_eq!(
        (
            request.volume_id.as_str(),
            request.volume_path.as_str(),
            request.staging_target_path.as_str()
        ),
        ("h1", "/target", "/staging")
    );
    assert_eq!(request.secrets, texts(&[("key", "secret")]));
    let mode = request
        .volume_capability
        .unwrap()
        .access_mode
        .unwrap()
        .mode();
    assert_eq!(mode, Mode::MultiNodeMultiWriter);
}
