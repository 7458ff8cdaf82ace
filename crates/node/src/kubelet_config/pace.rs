//! The fields about how much at once, and how often.

use std::time::Duration;

use serde::Deserialize;

use super::{ConfigError, KubeletConfig, time, value, wrong};
use crate::options::{MANIFEST_CHECK, NodeOptions};
use davit_api::features::{LESS_RESTART_DECAY, MOST_RESTART_DECAY};
use davit_client::RequestRate;
use davit_podimages::PullLimits;
use davit_pods::backoff::RestartDelays;
use davit_pods::durations;

/// `crashLoopBackOff`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct CrashLoopBackOff {
    max_container_restart_period: Option<String>,
}

/// Requests a second and at once: their fields, and the kubelet's defaults for who names the other one.
struct RateFields {
    qps: (&'static str, u32),
    burst: (&'static str, u32),
}

const PULLS: RateFields = RateFields {
    qps: ("registryPullQPS", 5),
    burst: ("registryBurst", 10),
};
const EVENTS: RateFields = RateFields {
    qps: ("eventRecordQPS", 50),
    burst: ("eventBurst", 100),
};
const REQUESTS: RateFields = RateFields {
    qps: ("kubeAPIQPS", 50),
    burst: ("kubeAPIBurst", 100),
};

impl RateFields {
    /// No limit where nothing is said, and where zero is.
    fn rate(
        &self,
        qps: Option<i32>,
        burst: Option<i32>,
    ) -> Result<Option<RequestRate>, ConfigError> {
        let number = |field: &'static str, given: Option<i32>| match given.map(u32::try_from) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(wrong(field, "must not be negative")),
        };
        let qps = number(self.qps.0, qps)?;
        let burst = number(self.burst.0, burst)?.filter(|n| *n > 0);
        let per_second = match (qps, burst) {
            (None, None) | (Some(0), _) => return Ok(None),
            (None, Some(_)) => self.qps.1,
            (Some(given), _) => given,
        };
        Ok(Some(RequestRate {
            per_second,
            burst: burst.unwrap_or(self.burst.1),
        }))
    }
}

impl KubeletConfig {
    /// Puts how much is done at once, and how often, into the options.
    pub(super) fn pace(&self, options: &mut NodeOptions) -> Result<(), ConfigError> {
        options.pulls = self.pulls()?;
        options.event_rate = EVENTS.rate(self.event_record_qps, self.event_burst)?;
        options.request_rate = REQUESTS.rate(self.kube_api_qps, self.kube_api_burst)?;
        options.restarts = self.restarts()?;
        let rotation = &mut options.log_rotation;
        if let Some(workers) = self.container_log_max_workers {
            let field = "containerLogMaxWorkers";
            let workers = usize::try_from(workers).ok().filter(|n| *n > 0);
            rotation.workers = workers.ok_or_else(|| wrong(field, "must be 1 at least"))?;
        }
        let field = "containerLogMonitorInterval";
        let interval = self.container_log_monitor_interval.as_ref();
        if let Some(text) = interval {
            rotation.interval = value(field, durations::parse(text))?;
            if rotation.interval < Duration::from_secs(3) {
                return Err(wrong(field, "must be 3s at least"));
            }
        }
        let field = "fileCheckFrequency";
        let default = options.manifest_check;
        let check = time(field, self.file_check_frequency.as_ref(), default)?;
        options.manifest_check = check.min(MANIFEST_CHECK);
        let strategy = self
            .config_map_and_secret_change_detection_strategy
            .as_deref();
        if !matches!(strategy, None | Some("" | "Watch" | "Cache" | "Get")) {
            let text = "must be one of Watch, Cache or Get";
            return Err(wrong("configMapAndSecretChangeDetectionStrategy", text));
        }
        Ok(())
    }

    fn pulls(&self) -> Result<PullLimits, ConfigError> {
        const FIELD: &str = "maxParallelImagePulls";
        let most = match self.max_parallel_image_pulls {
            None => None,
            Some(most) => {
                let most = usize::try_from(most).ok().filter(|n| *n > 0);
                Some(most.ok_or_else(|| wrong(FIELD, "must be a positive number"))?)
            }
        };
        if self.serialize_image_pulls == Some(true) && most.is_some_and(|most| most > 1) {
            let text = "cannot be larger than 1 unless serializeImagePulls is false";
            return Err(wrong(FIELD, text));
        }
        Ok(PullLimits {
            parallel: match self.serialize_image_pulls {
                Some(true) => Some(1),
                _ => most,
            },
            rate: PULLS.rate(self.registry_pull_qps, self.registry_burst)?,
        })
    }

    fn restarts(&self) -> Result<RestartDelays, ConfigError> {
        const FIELD: &str = "crashLoopBackOff.maxContainerRestartPeriod";
        let features = self.features()?;
        let mut delays = RestartDelays::default();
        if features.is_on(LESS_RESTART_DECAY) {
            delays = RestartDelays {
                first: Duration::from_secs(1),
                most: Duration::from_secs(60),
            };
        }
        let given = self
            .crash_loop_back_off
            .max_container_restart_period
            .as_ref();
        let may = features.is_on(MOST_RESTART_DECAY);
        if given.is_some() && !may {
            return Err(wrong(
                FIELD,
                "needs feature gate KubeletCrashLoopBackOffMax",
            ));
        }
        if may {
            delays.most = match given {
                Some(text) => value(FIELD, durations::parse(text))?,
                None => RestartDelays::default().most,
            };
            let range = Duration::from_secs(1)..=Duration::from_secs(300);
            if !range.contains(&delays.most) {
                return Err(wrong(FIELD, "must be between 1s and 300s"));
            }
            delays.first = delays.first.min(delays.most);
        }
        Ok(delays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet_config::API_VERSION;
    use serde_json::Map;

    fn of(text: &str) -> Result<NodeOptions, ConfigError> {
        let runtime = std::sync::Arc::new(davit_oci::Hollow::default());
        let mut options = NodeOptions::new("n", "/", runtime);
        let head = format!("apiVersion: {API_VERSION}\nkind: KubeletConfiguration\n");
        KubeletConfig::parse(&format!("{head}{text}\n"), Map::new())?.pace(&mut options)?;
        Ok(options)
    }

    #[test]
    fn rates_are_limits_where_they_are_named() {
        let rate = |per_second, burst| Some(RequestRate { per_second, burst });
        let events = |text: &str| of(text).unwrap().event_rate;
        assert_eq!(events(""), None);
        assert_eq!(events("eventRecordQPS: 0\neventBurst: 7"), None);
        assert_eq!(events("eventBurst: 0"), None);
        assert_eq!(events("eventRecordQPS: 3"), rate(3, 100));
        assert_eq!(events("eventBurst: 7"), rate(50, 7));
        let all = of("kubeAPIQPS: 20\nkubeAPIBurst: 30\nregistryPullQPS: 2").unwrap();
        assert_eq!(all.request_rate, rate(20, 30));
        assert_eq!(all.pulls.rate, rate(2, 10));
        for field in [
            "eventBurst",
            "eventRecordQPS",
            "kubeAPIQPS",
            "registryBurst",
        ] {
            assert!(of(&format!("{field}: -1")).is_err(), "{field}");
        }
    }

    #[test]
    fn pulls_one_by_one_or_some_at_once() {
        let parallel = |text: &str| of(text).map(|options| options.pulls.parallel);
        assert_eq!(parallel("").unwrap(), None);
        assert_eq!(parallel("serializeImagePulls: false").unwrap(), None);
        assert_eq!(parallel("serializeImagePulls: true").unwrap(), Some(1));
        assert_eq!(parallel("maxParallelImagePulls: 5").unwrap(), Some(5));
        let both = "serializeImagePulls: true\nmaxParallelImagePulls:";
        assert_eq!(parallel(&format!("{both} 1")).unwrap(), Some(1));
        assert!(parallel(&format!("{both} 2")).is_err());
        assert!(parallel("maxParallelImagePulls: 0").is_err());
    }

    #[test]
    fn restarts_by_their_gates() {
        let delays = |text: &str| {
            let delays = of(text).map(|options| options.restarts)?;
            Ok::<_, ConfigError>((delays.first.as_secs(), delays.most.as_secs()))
        };
        let most = "crashLoopBackOff: {maxContainerRestartPeriod:";
        assert_eq!(delays("crashLoopBackOff: {}").unwrap(), (10, 300));
        assert_eq!(delays(&format!("{most} 60s}}")).unwrap(), (10, 60));
        assert_eq!(delays(&format!("{most} 5s}}")).unwrap(), (5, 5));
        for wrong in ["500ms", "301s", "0s"] {
            assert!(delays(&format!("{most} {wrong}}}")).is_err(), "{wrong}");
        }
        let less =
            "featureGates: {ReduceDefaultCrashLoopBackOffDecay: true, KubeletCrashLoopBackOffMax:";
        assert_eq!(delays(&format!("{less} false}}")).unwrap(), (1, 60));
        assert_eq!(delays(&format!("{less} true}}")).unwrap(), (1, 300));
        let off = "featureGates: {KubeletCrashLoopBackOffMax: false}";
        assert!(delays(&format!("{off}\n{most} 60s}}")).is_err());
    }

    #[test]
    fn logs_manifests_and_objects() {
        let options = of("containerLogMaxWorkers: 3\ncontainerLogMonitorInterval: 5s\nfileCheckFrequency: 1s\nconfigMapAndSecretChangeDetectionStrategy: Watch").unwrap();
        assert_eq!(options.log_rotation.workers, 3);
        assert_eq!(options.log_rotation.interval.as_secs(), 5);
        assert_eq!(options.manifest_check.as_secs(), 1);
        for wrong in [
            "containerLogMaxWorkers: 0",
            "containerLogMonitorInterval: 2s",
            "configMapAndSecretChangeDetectionStrategy: Guess",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
