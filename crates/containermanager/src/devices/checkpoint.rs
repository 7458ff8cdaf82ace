//! The file `kubelet_internal_checkpoint`: written for programs that read it (multus falls
//! back to it), read once when this agent takes over from a kubelet. The truth is the
//! allocation log.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use davit_topology::NumaMask;
use davit_topology::devices::{ContainerKind, DeviceId, DeviceMap, by_node};
use serde::{Deserialize, Serialize};

use super::manager::Manager;
use crate::allocation::{Change, DeviceHold, PodName};
use crate::checksum::fnv32a;

const FILE: &str = "kubelet_internal_checkpoint";
/// The largest file that is read; a larger one is damage.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// Changes that come in quick succession are written once.
const PAUSE: Duration = Duration::from_millis(100);
/// And what takes long is written again so many times as long after it.
const PAUSE_FACTOR: u32 = 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
    checksum: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// Null when empty, as Go writes it.
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: BTreeMap<String, Vec<DeviceId>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container_name: String,
    #[serde(rename = "ResourceName")]
    resource_name: String,
    /// NUMA node, `-1` for none, to the devices on it.
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<i64, Vec<DeviceId>>,
    #[serde(rename = "AllocResp", with = "crate::allocation::base64_bytes")]
    alloc_resp: Vec<u8>,
}

/// Keeps the file in step with the state until the manager stops.
pub(super) async fn keep(manager: Arc<Manager>) {
    let mut changes = manager.subscribe();
    changes.mark_changed();
    let mut written = Vec::new();
    loop {
        tokio::select! {
            () = manager.cancel.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
        changes.borrow_and_update();
        let dir = manager.plugins_dir();
        let began = tokio::time::Instant::now();
        match encode(&snapshot(&manager)) {
            Ok(bytes) if bytes == written => {}
            Ok(bytes) => {
                let copy = bytes.clone();
                match tokio::task::spawn_blocking(move || write(&dir, &copy)).await {
                    Ok(Ok(())) => written = bytes,
                    Ok(Err(e)) => tracing::warn!(error = %e, "device checkpoint not written"),
                    Err(e) => tracing::warn!(error = %e, "device checkpoint not written"),
                }
            }
            Err(e) => tracing::warn!(error = %e, "device checkpoint not encoded"),
        }
        // A plugin that lists very many devices, others each time, keeps neither a CPU nor the disk busy.
        tokio::time::sleep(PAUSE.max(began.elapsed() * PAUSE_FACTOR)).await;
    }
}

fn snapshot(manager: &Manager) -> Data {
    let mut entries = Vec::new();
    manager.ledger.read(|t| {
        for (uid, pod) in t.pods() {
            for (container, holdings) in &pod.containers {
                for (resource, held) in &holdings.devices {
                    entries.push(Entry {
                        pod_uid: uid.clone(),
                        container_name: container.clone(),
                        resource_name: resource.clone(),
                        device_ids: by_node(&held.devices)
                            .into_iter()
                            .map(|(node, ids)| (node, ids.into_iter().collect()))
                            .collect(),
                        alloc_resp: held.response.clone(),
                    });
                }
            }
        }
    });
    let resources: Vec<String> = {
        let state = manager.state.lock();
        let known = state.inventory.all();
        known
            .filter(|(_, _, p)| *p != super::inventory::Presence::Gone)
            .map(|(r, ..)| r.clone())
            .collect()
    };
    let healthy = |r: String| {
        let ids = manager.healthy_of(&r).into_keys().collect();
        (r, ids)
    };
    Data {
        pod_device_entries: (!entries.is_empty()).then_some(entries),
        registered_devices: resources.into_iter().map(healthy).collect(),
    }
}

fn encode(data: &Data) -> serde_json::Result<Vec<u8>> {
    // The kubelet's checksum covers a dump in a form of Go's own. Readers do not check it; a
    // kubelet that does would refuse the file, which is the safe answer to a foreign writer.
    let checksum = u64::from(fnv32a(&serde_json::to_vec(data)?));
    let mut bytes = br#"{"Data":"#.to_vec();
    serde_json::to_writer(&mut bytes, data)?;
    write!(bytes, ",\"Checksum\":{checksum}}}").map_err(serde_json::Error::io)?;
    Ok(bytes)
}

fn write(dir: &Path, bytes: &[u8]) -> io::Result<()> {
    // Plugins write this directory, too.
    Ok(davit_beneath::write_private(dir.join(FILE), bytes)?)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    Ok(davit_beneath::read_own(path, MAX_FILE)?)
}

/// What a kubelet recorded in `dir`, as changes for an empty log. Nothing when there is no
/// checkpoint or it cannot be read.
pub(super) fn import(dir: &Path) -> Vec<Change> {
    let path = dir.join(FILE);
    let checkpoint: Checkpoint = match read(&path).map(|b| serde_json::from_slice(&b)) {
        Ok(Ok(checkpoint)) => checkpoint,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Ok(Err(e)) => {
            tracing::error!(path = %path.display(), error = %e, "device checkpoint is corrupted and left out");
            return Vec::new();
        }
        Err(e) => {
            tracing::error!(path = %path.display(), error = %e, "device checkpoint is not readable");
            return Vec::new();
        }
    };
    let since = jiff::Timestamp::now().as_millisecond();
    let learned = checkpoint
        .data
        .registered_devices
        .into_keys()
        .map(|resource| Change::Learned {
            resource,
            pre_start: false,
        });
    let mut changes: Vec<Change> = learned.collect();
    let mut holds: Vec<DeviceHold> = Vec::new();
    for entry in checkpoint.data.pod_device_entries.into_iter().flatten() {
        let hold = hold(entry, since);
        let shares = |h: &DeviceHold| {
            h.resource == hold.resource && h.devices.keys().any(|id| hold.devices.contains_key(id))
        };
        if let Some(other) = holds
            .iter()
            .find(|h| h.pod.uid != hold.pod.uid && shares(h))
        {
            tracing::error!(
                pod = hold.pod.uid,
                holder = other.pod.uid,
                "device of the checkpoint has two owners"
            );
            continue;
        }
        // Inside a pod only an init container shares devices, with those after it.
        for earlier in holds
            .iter_mut()
            .filter(|h| h.pod.uid == hold.pod.uid && shares(h))
        {
            earlier.kind = ContainerKind::Init;
        }
        holds.push(hold);
    }
    changes.extend(holds.into_iter().map(Change::Hold));
    changes
}

/// An entry of the checkpoint; it names neither the pod nor the kind of container.
fn hold(entry: Entry, since: i64) -> DeviceHold {
    let mut devices = DeviceMap::new();
    for (node, ids) in entry.device_ids {
        let node = u32::try_from(node)
            .ok()
            .and_then(|n| NumaMask::single(n).ok());
        for id in ids {
            let mask = devices.entry(id).or_insert(NumaMask::EMPTY);
            *mask = *mask | node.unwrap_or_default();
        }
    }
    DeviceHold {
        pod: PodName {
            uid: entry.pod_uid,
            namespace: String::new(),
            name: String::new(),
        },
        container: entry.container_name,
        kind: ContainerKind::App,
        resource: entry.resource_name,
        devices,
        response: entry.alloc_resp,
        since,
    }
}

#[cfg(test)]
mod tests;
