//! The file `dra_manager_state` in the form of the kubelet, for programs that read it and for a kubelet that takes this
//! node over. The truth is the allocation log.

use super::manager::Manager;
use crate::allocation::{ClaimHold, Table};
use crate::checksum::crc32;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const FILE: &str = "dra_manager_state";
/// Changes that come in quick succession are written once.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    /// JSON of [`Data`], as text.
    data: String,
    checksum: u32,
}

#[derive(Serialize)]
struct Data<'a> {
    kind: &'a str,
    #[serde(rename = "apiVersion")]
    api_version: &'a str,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Vec<Claim<'a>>,
}

#[derive(Serialize)]
struct Claim<'a> {
    #[serde(rename = "ClaimUID")]
    uid: &'a str,
    #[serde(rename = "ClaimName")]
    name: &'a str,
    #[serde(rename = "Namespace")]
    namespace: &'a str,
    /// A set, as Go writes it.
    #[serde(rename = "PodUIDs")]
    pods: BTreeMap<&'a str, Nothing>,
    #[serde(rename = "DriverState")]
    drivers: BTreeMap<&'a str, Driver<'a>>,
}

/// `{}`.
#[derive(Serialize)]
struct Nothing {}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Driver<'a> {
    /// Null when empty, as Go writes it.
    devices: Option<Vec<Device<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Device<'a> {
    pool_name: &'a str,
    device_name: &'a str,
    request_names: &'a [String],
    #[serde(rename = "CDIDeviceIDs")]
    cdi_device_ids: &'a [String],
    #[serde(rename = "ShareID", skip_serializing_if = "Option::is_none")]
    share_id: Option<&'a str>,
}

/// Keeps the file in step with the log until the manager stops.
pub(super) async fn keep(manager: Arc<Manager>) {
    let mut changes = manager.devices.ledger.subscribe();
    changes.mark_changed();
    let dir = manager.devices.root_dir().to_owned();
    let mut written = Vec::new();
    while changes.changed().await.is_ok() {
        changes.borrow_and_update();
        let encoded = manager.devices.ledger.read(encode);
        match encoded {
            Ok(bytes) if bytes == written => {}
            Ok(bytes) => {
                let (copy, dir) = (bytes.clone(), dir.clone());
                match tokio::task::spawn_blocking(move || write(&dir, &copy)).await {
                    Ok(Ok(())) => written = bytes,
                    Ok(Err(error)) => tracing::warn!(%error, "state of claims not written"),
                    Err(error) => tracing::warn!(%error, "state of claims not written"),
                }
            }
            Err(error) => tracing::warn!(%error, "state of claims not encoded"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn encode(table: &Table) -> serde_json::Result<Vec<u8>> {
    // What a classic claim was prepared with, this form cannot say.
    let held = table.claims().values().filter(|hold| !hold.classic);
    let data = serde_json::to_string(&Data {
        kind: "DRACheckpoint",
        api_version: "checkpoint.dra.kubelet.k8s.io/v1",
        claims: held.map(|hold| claim(hold)).collect(),
    })?;
    let checksum = crc32(data.as_bytes());
    serde_json::to_vec(&Checkpoint { data, checksum })
}

fn claim(hold: &ClaimHold) -> Claim<'_> {
    Claim {
        uid: &hold.claim.uid,
        name: &hold.claim.name,
        namespace: &hold.claim.namespace,
        pods: hold
            .pods
            .iter()
            .map(|p| (p.uid.as_str(), Nothing {}))
            .collect(),
        drivers: hold
            .drivers
            .iter()
            .map(|(name, part)| {
                let told = part.devices.iter().map(|d| Device {
                    pool_name: &d.pool,
                    device_name: &d.device,
                    request_names: &d.requests,
                    cdi_device_ids: &d.cdi,
                    share_id: d.share.as_deref(),
                });
                let devices = (!part.devices.is_empty()).then(|| told.collect());
                (name.as_str(), Driver { devices })
            })
            .collect(),
    }
}

fn write(dir: &Path, bytes: &[u8]) -> io::Result<()> {
    Ok(davit_beneath::write_private(dir.join(FILE), bytes)?)
}
