//! How full the volumes of pods are (spec storage.md 4.9).
//!
//! Each volume is measured by itself, and not again while that goes on: a driver or a server that hangs costs its own
//! numbers only.

use super::claims::Claimed;
use super::{Ready, Volumes};
use davit_csi::VolumeStats;
use davit_pods::pod::PodExt;
use davit_proto::csi::v1::NodeGetVolumeStatsRequest;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::fs::SeekFrom;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one volume may take to be measured.
const MEASURING: Duration = Duration::from_secs(15);

type Number = fn(&VolumeStats) -> i64;

/// Names of the metrics of claims without `kubelet_volume_stats_`, what they say, and which number that is.
const METRICS: [(&str, &str, Number); 6] = [
    ("capacity_bytes", "Capacity in bytes of the volume", |n| {
        n.capacity_bytes
    }),
    (
        "available_bytes",
        "Number of available bytes in the volume",
        |n| n.available_bytes,
    ),
    ("used_bytes", "Number of used bytes in the volume", |n| {
        n.used_bytes
    }),
    ("inodes", "Maximum number of inodes in the volume", |n| {
        n.inodes
    }),
    ("inodes_free", "Number of free inodes in the volume", |n| {
        n.inodes_free
    }),
    ("inodes_used", "Number of used inodes in the volume", |n| {
        n.inodes_used
    }),
];

/// A volume that a pod has, as far as measuring it goes.
#[derive(Debug)]
struct Placed {
    /// Name of the persistent volume, if it is one.
    persistent: Option<String>,
    claim: Option<ClaimName>,
    source: Source,
    figures: Option<VolumeFigures>,
    /// It is being measured.
    busy: bool,
}

/// How a volume is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// Not at all: what is there is not the volume's alone.
    Nothing,
    /// By adding up what is in the directory; the rest is the file system's.
    Tree(PathBuf),
    /// It is a file system of its own.
    FileSystem(PathBuf),
    /// A file system, if its FlexVolume driver says so.
    Flex { driver: String, path: PathBuf },
    /// A device.
    Device(PathBuf),
    /// By asking its CSI driver.
    Csi {
        driver: String,
        handle: String,
        path: PathBuf,
    },
}

/// A claim by its names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub persistentvolumeclaim: String,
}

/// How full one volume of a pod is. What is not known is zero, as upstream has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFigures {
    /// When it was measured.
    pub time: Timestamp,
    /// The claim, if there is one.
    pub claim: Option<ClaimName>,
    /// The numbers.
    pub numbers: VolumeStats,
}

/// Why a volume was not measured.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Csi(#[from] davit_csi::Error),
    #[error(transparent)]
    Flex(#[from] davit_flexvolume::Error),
}

/// The volumes that pods have been given since this process began, by pod UID and name in the pod.
#[derive(Debug, Clone, Default)]
pub(super) struct PlacedVolumes(Arc<Mutex<BTreeMap<String, BTreeMap<String, Placed>>>>);

/// A volume to be measured.
#[derive(Debug)]
pub struct Due {
    uid: String,
    volume: String,
    source: Source,
}

impl From<davit_csi::NotRegistered> for MeasureError {
    fn from(error: davit_csi::NotRegistered) -> Self {
        Self::Csi(error.into())
    }
}

fn source(
    root: &Path,
    volume: &Volume,
    claimed: Option<&Claimed>,
    ready: &Ready,
    uid: &str,
) -> Source {
    let path = ready.path().to_owned();
    let Some(claimed) = claimed else {
        if let Some(csi) = &volume.csi {
            return Source::Csi {
                driver: csi.driver.clone(),
                handle: davit_csi::names::inline_handle(uid, &volume.name),
                path,
            };
        }
        if let Some(flex) = &volume.flex_volume {
            let driver = flex.driver.clone();
            return Source::Flex { driver, path };
        }
        return match (&volume.host_path, &volume.nfs) {
            (Some(_), _) => Source::Nothing,
            (_, Some(_)) => Source::FileSystem(path),
            _ => Source::Tree(path),
        };
    };
    let Some(spec) = &claimed.volume.spec else {
        return Source::Nothing;
    };
    match (&spec.csi, &spec.flex_volume) {
        (Some(csi), _) => Source::Csi {
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            // As upstream: the driver may not see the pod's link.
            path: match claimed.is_block() {
                true => davit_csi::paths::device_map(root, claimed.name()).join(uid),
                false => path,
            },
        },
        (_, Some(flex)) => Source::Flex {
            driver: flex.driver.clone(),
            path,
        },
        _ if spec.host_path.is_some() => Source::Nothing,
        _ if claimed.is_block() => Source::Device(path),
        _ => Source::FileSystem(path),
    }
}

impl Volumes {
    /// Remembers a volume that a pod has been given.
    pub(super) fn place(
        &self,
        pod: &Pod,
        volume: &Volume,
        claimed: Option<&Claimed>,
        ready: &Ready,
    ) {
        let mut placed = self.placed.0.lock();
        let of_pod = placed.entry(pod.uid().to_owned()).or_default();
        let claim = |claimed: &Claimed| ClaimName {
            namespace: pod.ns().to_owned(),
            persistentvolumeclaim: claimed.claim.metadata.name.clone().unwrap_or_default(),
        };
        of_pod.entry(volume.name.clone()).or_insert_with(|| Placed {
            persistent: claimed.map(|claimed| claimed.name().to_owned()),
            claim: claimed.map(claim),
            source: source(self.paths.root(), volume, claimed, ready, pod.uid()),
            figures: None,
            busy: false,
        });
    }

    /// Forgets the volumes of a pod, and the sizes of volumes that no pod has.
    pub(super) fn displace(&self, uid: &str) {
        let mut placed = self.placed.0.lock();
        placed.remove(uid);
        let has = |name: &String| {
            let mut all = placed.values().flat_map(BTreeMap::values);
            all.any(|volume| volume.persistent.as_ref() == Some(name))
        };
        self.sizes.lock().retain(|name, _| has(name));
    }

    /// The newest figures of a pod's volumes, by their names in the pod.
    pub fn figures(&self, uid: &str) -> BTreeMap<String, VolumeFigures> {
        let placed = self.placed.0.lock();
        let of_pod = placed.get(uid).into_iter().flatten();
        of_pod
            .filter_map(|(name, volume)| Some((name.clone(), volume.figures.clone()?)))
            .collect()
    }

    /// The volumes that are to be measured: all, or those that never were. Those that are being measured are left alone.
    pub fn due(&self, all: bool) -> Vec<Due> {
        let mut due = Vec::new();
        for (uid, volumes) in self.placed.0.lock().iter_mut() {
            for (name, volume) in volumes {
                let wanted = all || volume.figures.is_none();
                if volume.busy || !wanted || volume.source == Source::Nothing {
                    continue;
                }
                volume.busy = true;
                due.push(Due {
                    uid: uid.clone(),
                    volume: name.clone(),
                    source: volume.source.clone(),
                });
            }
        }
        due
    }

    /// Measures a volume.
    pub async fn measure(&self, due: Due) {
        let numbers = self.numbers(due.source).await;
        let mut placed = self.placed.0.lock();
        let of_pod = placed.get_mut(&due.uid);
        let Some(volume) = of_pod.and_then(|of_pod| of_pod.get_mut(&due.volume)) else {
            return;
        };
        volume.busy = false;
        match numbers {
            Ok(Some(numbers)) => {
                volume.figures = Some(VolumeFigures {
                    time: Timestamp::now(),
                    claim: volume.claim.clone(),
                    numbers,
                });
            }
            Ok(None) => volume.source = Source::Nothing,
            Err(error) => {
                tracing::debug!(pod = due.uid, volume = due.volume, %error, "the volume was not measured");
            }
        }
    }

    /// Measures what is at a path, on a thread that may wait for who serves it.
    async fn measured(
        &self,
        path: PathBuf,
        work: fn(&Path) -> io::Result<VolumeStats>,
    ) -> Result<VolumeStats, MeasureError> {
        let key = path.display().to_string();
        Ok(self.measuring.run(key, move || work(&path)).await??)
    }

    /// The numbers of a volume; nothing where its driver has none.
    async fn numbers(&self, source: Source) -> Result<Option<VolumeStats>, MeasureError> {
        match source {
            Source::Nothing => Ok(None),
            Source::Tree(path) => self.measured(path, tree).await.map(Some),
            Source::FileSystem(path) => self.measured(path, file_system).await.map(Some),
            Source::Device(path) => self.measured(path, device).await.map(Some),
            Source::Flex { driver, path } => {
                let driver = self.flex_drivers.get(&driver).await?;
                if !driver.capabilities().supports_metrics {
                    return Ok(None);
                }
                self.measured(path, file_system).await.map(Some)
            }
            Source::Csi {
                driver,
                handle,
                path,
            } => {
                let driver = self.drivers.get(&driver)?;
                if !driver.capabilities().await?.volume_stats {
                    return Ok(None);
                }
                let request = NodeGetVolumeStatsRequest {
                    volume_id: handle,
                    volume_path: path.to_string_lossy().into_owned(),
                    ..NodeGetVolumeStatsRequest::default()
                };
                Ok(Some(driver.volume_stats(request).await?))
            }
        }
    }
}

impl Collector for PlacedVolumes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut by_claim = BTreeMap::new();
        for volume in self.0.lock().values().flat_map(BTreeMap::values) {
            if let (Some(claim), Some(figures)) = (&volume.claim, &volume.figures) {
                by_claim.insert(claim.clone(), figures.numbers.clone());
            }
        }
        if by_claim.is_empty() {
            return Ok(());
        }
        for (name, help, number) in METRICS {
            let name = format!("kubelet_volume_stats_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for (claim, numbers) in &by_claim {
                let value = ConstGauge::new(number(numbers));
                value.encode(family.encode_family(claim)?)?;
            }
        }
        Ok(())
    }
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Figures of a whole file system, by a path that pods do not shape.
pub fn file_system(path: &Path) -> io::Result<VolumeStats> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| number(blocks.saturating_mul(stat.f_frsize));
    Ok(VolumeStats {
        available_bytes: bytes(stat.f_bavail),
        capacity_bytes: bytes(stat.f_blocks),
        used_bytes: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        inodes_free: number(stat.f_ffree),
        inodes: number(stat.f_files),
        inodes_used: number(stat.f_files.saturating_sub(stat.f_ffree)),
        condition: None,
    })
}

/// What is in a directory, on a file system that others use too.
fn tree(path: &Path) -> io::Result<VolumeStats> {
    let known = davit_beneath::disk_use(path, Instant::now() + MEASURING);
    let known = known.map(|seen| (number(seen.bytes), number(seen.inodes)));
    let (used_bytes, inodes_used) = known.ok_or(io::ErrorKind::TimedOut)?;
    Ok(VolumeStats {
        used_bytes,
        inodes_used,
        ..file_system(path)?
    })
}

fn device(path: &Path) -> io::Result<VolumeStats> {
    let file = std::fs::File::open(path)?;
    Ok(VolumeStats {
        capacity_bytes: number(rustix::fs::seek(&file, SeekFrom::End(0))?),
        ..VolumeStats::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::NoMounter;
    use davit_pods::objects::FixedObjects;
    use davit_pods::paths::Paths;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use serde_json::json;

    fn volumes(root: &Path) -> Volumes {
        let paths = Paths::new(root.join("kubelet"), root.join("log/pods"));
        let objects = Arc::new(FixedObjects::from_json(&[]));
        Volumes::new(paths, Arc::new(NoMounter), objects)
    }

    fn volume(source: serde_json::Value) -> Volume {
        let mut volume = source;
        volume["name"] = json!("v");
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn claims_have_the_kubelets_metrics() {
        let placed = PlacedVolumes::default();
        let claim = ClaimName {
            namespace: "ns".to_owned(),
            persistentvolumeclaim: "data".to_owned(),
        };
        let numbers = VolumeStats {
            capacity_bytes: 7,
            inodes_free: 3,
            ..VolumeStats::default()
        };
        let volume = Placed {
            persistent: None,
            claim: Some(claim.clone()),
            source: Source::Nothing,
            figures: Some(VolumeFigures {
                time: Timestamp::UNIX_EPOCH,
                claim: Some(claim),
                numbers,
            }),
            busy: false,
        };
        let of_pod = BTreeMap::from([("v".to_owned(), volume)]);
        placed.0.lock().insert("u".to_owned(), of_pod);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(placed));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let labels = "{namespace=\"ns\",persistentvolumeclaim=\"data\"}";
        for line in [
            format!("kubelet_volume_stats_capacity_bytes{labels} 7"),
            format!("kubelet_volume_stats_inodes_free{labels} 3"),
            format!("kubelet_volume_stats_used_bytes{labels} 0"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }

    #[tokio::test]
    async fn a_directory_is_counted_and_one_of_the_host_is_not() {
        let tmp = tempfile::tempdir().unwrap();
        let volumes = volumes(tmp.path());
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"uid": "u", "name": "p"}, "spec": {"containers": []}}),
        )
        .unwrap();
        std::fs::write(tmp.path().join("f"), vec![1; 9000]).unwrap();
        let ready = Ready::Directory {
            path: tmp.path().to_owned(),
            read_only: false,
        };
        let host = Volume {
            name: "host".to_owned(),
            ..volume(json!({"hostPath": {"path": "/"}}))
        };
        volumes.place(&pod, &volume(json!({"emptyDir": {}})), None, &ready);
        volumes.place(&pod, &host, None, &ready);
        let due = volumes.due(false);
        assert_eq!(due.len(), 1);
        // while it goes on it is not begun anew
        assert_eq!(volumes.due(true).len(), 0);
        for one in due {
            volumes.measure(one).await;
        }
        let figures = volumes.figures("u");
        let numbers = &figures["v"].numbers;
        assert_eq!((figures.len(), numbers.inodes_used), (1, 1));
        assert!(numbers.used_bytes >= 9000 && numbers.used_bytes < 100_000);
        assert!(numbers.capacity_bytes > numbers.available_bytes);
        assert_eq!(volumes.due(false).len(), 0);
        assert_eq!(volumes.due(true).len(), 1);
        volumes.displace("u");
        assert!(volumes.figures("u").is_empty());
    }
}
