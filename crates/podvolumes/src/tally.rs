//! How many volumes pods have and are to have, and how long they take to be made, under the kubelet's names.

use super::claims::Claimed;
use k8s_openapi::api::core::v1::Volume;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Seconds, as the kubelet's.
const BUCKETS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StorageOperation {
    volume_plugin: String,
    operation_name: &'static str,
    status: &'static str,
    migrated: &'static str,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct VolumesInState {
    plugin_name: String,
    state: &'static str,
}

/// A volume that a pod is to have.
#[derive(Debug)]
struct Counted {
    plugin: String,
    has: bool,
}

/// The volumes of pods since this process began, by pod UID and name in the pod. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct VolumeTally {
    volumes: Arc<Mutex<BTreeMap<String, BTreeMap<String, Counted>>>>,
    took: Family<StorageOperation, Histogram, fn() -> Histogram>,
}

impl Default for VolumeTally {
    fn default() -> Self {
        Self {
            volumes: Arc::default(),
            took: Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram),
        }
    }
}

impl VolumeTally {
    /// A pod is to have a volume; whether it has it already.
    pub(super) fn wanted(&self, uid: &str, volume: &Volume, claimed: Option<&Claimed>) -> bool {
        let mut volumes = self.volumes.lock();
        let of_pod = volumes.entry(uid.to_owned()).or_default();
        let counted = of_pod.entry(volume.name.clone());
        let counted = counted.or_insert_with(|| Counted {
            plugin: plugin(volume, claimed),
            has: false,
        });
        counted.has
    }

    /// What became of making a volume that the pod had not yet.
    pub(super) fn made(&self, uid: &str, volume: &str, succeeded: bool, took: Duration) {
        let mut volumes = self.volumes.lock();
        let of_pod = volumes.get_mut(uid);
        let Some(counted) = of_pod.and_then(|of_pod| of_pod.get_mut(volume)) else {
            return;
        };
        counted.has = succeeded;
        let operation = StorageOperation {
            volume_plugin: counted.plugin.clone(),
            operation_name: "volume_mount",
            status: if succeeded { "success" } else { "fail-unknown" },
            migrated: "false",
        };
        let took = took.as_secs_f64();
        self.took.get_or_create(&operation).observe(took);
    }

    /// A pod has no volumes any more.
    pub(super) fn gone(&self, uid: &str) {
        self.volumes.lock().remove(uid);
    }

    fn counts(&self) -> BTreeMap<VolumesInState, i64> {
        let mut counts = BTreeMap::new();
        let volumes = self.volumes.lock();
        for volume in volumes.values().flat_map(BTreeMap::values) {
            let mut count = |state| {
                let plugin_name = volume.plugin.clone();
                *counts
                    .entry(VolumesInState { plugin_name, state })
                    .or_default() += 1;
            };
            count("desired_state_of_world");
            if volume.has {
                count("actual_state_of_world");
            }
        }
        counts
    }
}

impl Collector for VolumeTally {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let name = "volume_manager_total_volumes";
        let help = "Number of volumes in Volume Manager";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, count) in self.counts() {
            let gauge = ConstGauge::new(count);
            gauge.encode(family.encode_family(&labels)?)?;
        }
        let name = "storage_operation_duration_seconds";
        let help = "Storage operation duration";
        let kind = self.took.metric_type();
        self.took
            .encode(encoder.encode_descriptor(name, help, None, kind)?)
    }
}

/// The kubelet's name of what makes a volume.
fn plugin(volume: &Volume, claimed: Option<&Claimed>) -> String {
    let csi = |driver: &str| format!("kubernetes.io/csi:{driver}");
    let kinds = match claimed {
        Some(claimed) => {
            let Some(spec) = &claimed.volume.spec else {
                return "N/A".to_owned();
            };
            if let Some(source) = &spec.csi {
                return csi(&source.driver);
            }
            if let Some(source) = &spec.flex_volume {
                return source.driver.clone();
            }
            vec![
                (spec.host_path.is_some(), "host-path"),
                (spec.local.is_some(), "local-volume"),
                (spec.nfs.is_some(), "nfs"),
            ]
        }
        None => {
            if let Some(source) = &volume.csi {
                return csi(&source.driver);
            }
            if let Some(source) = &volume.flex_volume {
                return source.driver.clone();
            }
            vec![
                (volume.host_path.is_some(), "host-path"),
                (volume.empty_dir.is_some(), "empty-dir"),
                (volume.config_map.is_some(), "configmap"),
                (volume.secret.is_some(), "secret"),
                (volume.downward_api.is_some(), "downward-api"),
                (volume.projected.is_some(), "projected"),
                (volume.nfs.is_some(), "nfs"),
            ]
        }
    };
    let kind = kinds.into_iter().find(|(is, _)| *is);
    kind.map_or("N/A".to_owned(), |(_, kind)| {
        format!("kubernetes.io/{kind}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;
    use serde_json::json;

    #[test]
    fn volumes_are_counted_until_their_pod_is_gone() {
        let volume = |json| serde_json::from_value::<Volume>(json).unwrap();
        let (disk, csi) = (
            volume(json!({"name": "a", "emptyDir": {}})),
            volume(json!({"name": "b", "csi": {"driver": "d.example"}})),
        );
        let tally = VolumeTally::default();
        assert!(!tally.wanted("u", &disk, None));
        assert!(!tally.wanted("u", &csi, None));
        tally.made("u", "a", true, Duration::from_millis(300));
        tally.made("u", "b", false, Duration::from_secs(3));
        assert!(tally.wanted("u", &disk, None) && !tally.wanted("u", &csi, None));
        let page = || {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(tally.clone()));
            let mut page = String::new();
            prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
            page
        };
        let shown = page();
        for line in [
            r#"volume_manager_total_volumes{plugin_name="kubernetes.io/empty-dir",state="actual_state_of_world"} 1"#,
            r#"volume_manager_total_volumes{plugin_name="kubernetes.io/csi:d.example",state="desired_state_of_world"} 1"#,
            r#"storage_operation_duration_seconds_count{volume_plugin="kubernetes.io/empty-dir",operation_name="volume_mount",status="success",migrated="false"} 1"#,
            r#"storage_operation_duration_seconds_count{volume_plugin="kubernetes.io/csi:d.example",operation_name="volume_mount",status="fail-unknown",migrated="false"} 1"#,
        ] {
            assert!(shown.lines().any(|l| l == line), "{line} in {shown}");
        }
        assert!(!shown.contains(r#"csi:d.example",state="actual"#));
        tally.gone("u");
        assert!(!page().contains("total_volumes{"));
    }
}
