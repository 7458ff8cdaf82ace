//! `cargo xtask proto`: turns `crates/proto/protos` into the Rust committed under
//! `crates/proto/src/generated`. Needs no protoc.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One set of files that are compiled together into a folder of its own, because
/// several interfaces use the same protobuf package name.
const SETS: &[(&str, &[&str])] = &[
    ("deviceplugin", &["deviceplugin/v1beta1.proto"]),
    ("pluginregistration", &["pluginregistration/v1.proto"]),
    (
        "podresources",
        &[
            "podresources/v1.proto",
            "podresources/v1alpha1.proto",
            "podresources/davit.proto",
        ],
    ),
    ("pods", &["pods/v1alpha1.proto"]),
    ("dra", &["dra/v1.proto", "dra/v1beta1.proto"]),
    (
        "drahealth",
        &["drahealth/v1.proto", "drahealth/v1alpha1.proto"],
    ),
    (
        "draclassic",
        &["draclassic/v1alpha1.proto", "draclassic/v1alpha2.proto"],
    ),
    ("kms", &["kms/v2.proto", "kms/stored.proto"]),
    ("cri", &["cri/runtime.proto", "cri/image.proto"]),
    ("etcd", &["etcd/rpc.proto"]),
    (
        "csi",
        &[
            "csi/identity.proto",
            "csi/controller.proto",
            "csi/node.proto",
        ],
    ),
];

/// Packages whose values are taken from the connection's buffer without a copy: a list of them is as large as the cluster.
const SHARED: &[&str] = &[".mvccpb", ".etcdserverpb"];

/// Messages that hold secrets: their debug print is written by hand, without them.
const SECRET: &[&str] = &[
    "mvccpb.KeyValue",
    "etcdserverpb.PutRequest",
    "runtime.v1.AuthConfig",
    "csi.v1.VolumeCapability.MountVolume",
    "csi.v1.CreateVolumeRequest",
    "csi.v1.DeleteVolumeRequest",
    "csi.v1.ControllerPublishVolumeRequest",
    "csi.v1.ControllerUnpublishVolumeRequest",
    "csi.v1.ValidateVolumeCapabilitiesRequest",
    "csi.v1.ControllerListVolumeHealthRequest",
    "csi.v1.ControllerGetVolumeHealthRequest",
    "csi.v1.ControllerModifyVolumeRequest",
    "csi.v1.ControllerExpandVolumeRequest",
    "csi.v1.CreateSnapshotRequest",
    "csi.v1.DeleteSnapshotRequest",
    "csi.v1.ListSnapshotsRequest",
    "csi.v1.GetSnapshotRequest",
    "csi.v1.NodeStageVolumeRequest",
    "csi.v1.NodePublishVolumeRequest",
    "csi.v1.NodeExpandVolumeRequest",
    "csi.v1.NodeGetStorageHealthRequest",
];

/// Regenerates the committed sources.
pub(crate) fn run() -> Result<()> {
    let krate = proto_crate();
    generate(&krate.join("protos"), &krate.join("src/generated"))
}

fn proto_crate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/proto")
}

fn generate(protos: &Path, out: &Path) -> Result<()> {
    for (set, files) in SETS {
        let dir = out.join(set);
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let builder = SHARED.iter().fold(
            tonic_prost_build::configure(),
            tonic_prost_build::Builder::bytes,
        );
        let fds = protox::compile(*files, [protos]).with_context(|| format!("compile {set}"))?;
        builder
            .build_client(true)
            .build_server(true)
            .build_transport(false)
            // Maps in a stable order make stored answers comparable byte by byte.
            .btree_map(".")
            .skip_debug(SECRET)
            .emit_rerun_if_changed(false)
            .out_dir(&dir)
            .compile_fds(fds)
            .with_context(|| format!("generate {set}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_sources_are_up_to_date() {
        let krate = proto_crate();
        let tmp = tempfile::tempdir().unwrap();
        generate(&krate.join("protos"), tmp.path()).unwrap();
        for (set, _) in SETS {
            for entry in std::fs::read_dir(tmp.path().join(set)).unwrap() {
                let fresh = entry.unwrap().path();
                let committed = krate
                    .join("src/generated")
                    .join(set)
                    .join(fresh.file_name().unwrap());
                assert_eq!(
                    std::fs::read_to_string(&fresh).unwrap(),
                    std::fs::read_to_string(&committed).unwrap_or_default(),
                    "{} is stale: run cargo xtask proto",
                    committed.display()
                );
            }
        }
    }
}
