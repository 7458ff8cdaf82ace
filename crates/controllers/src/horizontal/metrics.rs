//! What pods and other objects use, as aggregated API servers tell: `metrics.k8s.io`, `custom.metrics.k8s.io` and
//! `external.metrics.k8s.io`.

use davit_api::quantity::Quantity;
use davit_autoscaling::{PodMetric, PodMetrics};
use davit_client::{message_of, path_segment};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::discovery::ApiResource;
use parking_lot::Mutex;
use percent::encoded;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

const RESOURCE_METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
const CUSTOM: &str = "custom.metrics.k8s.io";
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";
/// How long the preferred version of a group is believed.
const KNOWN: Duration = Duration::from_secs(600);
/// The time a value is measured over when the server does not say.
const DEFAULT_WINDOW: SignedDuration = SignedDuration::from_secs(60);

#[derive(Debug, Deserialize)]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

#[derive(Debug, Deserialize)]
struct PodUsage {
    metadata: Named,
    timestamp: Timestamp,
    #[serde(default)]
    window: String,
    #[serde(default)]
    containers: Vec<ContainerUsage>,
}

#[derive(Debug, Deserialize)]
struct ContainerUsage {
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    described_object: Named,
    timestamp: Timestamp,
    window_seconds: Option<i64>,
    value: serde_json::Value,
}

#[derive(Debug, Deserialize)]
struct ExternalValue {
    value: serde_json::Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    preferred_version: Option<Preferred>,
}

#[derive(Debug, Deserialize)]
struct Preferred {
    version: String,
}

fn milli(value: &serde_json::Value) -> Option<i64> {
    Quantity::from_json(value).ok().map(Quantity::milli_value)
}

fn window(text: &str) -> SignedDuration {
    let nanos = davit_api::time::parse_duration(text);
    nanos.map_or(DEFAULT_WINDOW, SignedDuration::from_nanos)
}

/// Use of a resource by pod; pods of which a container says nothing are left out.
fn by_pod(items: Vec<PodUsage>, resource: &str, container: Option<&str>) -> PodMetrics {
    let of_pod = |pod: PodUsage| {
        let counted = |c: &&ContainerUsage| container.is_none_or(|wanted| wanted == c.name);
        let mut counted = pod.containers.iter().filter(counted).peekable();
        counted.peek()?;
        let mut sum = 0_i64;
        for one in counted {
            sum = sum.saturating_add(milli(one.usage.get(resource)?)?);
        }
        let metric = PodMetric {
            milli: sum,
            at: pod.timestamp,
            window: window(&pod.window),
        };
        Some((pod.metadata.name, metric))
    };
    items.into_iter().filter_map(of_pod).collect()
}

/// Asks for metrics.
pub(super) struct Metrics {
    client: kube::Client,
    versions: Mutex<HashMap<&'static str, (Instant, String)>>,
}

impl Metrics {
    pub(super) fn new(client: kube::Client) -> Self {
        Self {
            client,
            versions: Mutex::default(),
        }
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await;
        answer.map_err(|error| message_of(&error))
    }

    /// Use of a resource by the pods of a selector, or by one container of each.
    pub(super) async fn of_resource(
        &self,
        resource: &str,
        namespace: &str,
        selector: &str,
        container: Option<&str>,
    ) -> Result<PodMetrics, String> {
        let selector = encoded(selector);
        let path =
            format!("{RESOURCE_METRICS}/namespaces/{namespace}/pods?labelSelector={selector}");
        let failed = |error| {
            format!(
                "unable to get metrics for resource {resource}: unable to fetch metrics from resource metrics API: {error}"
            )
        };
        let list: List<PodUsage> = self.get(&path).await.map_err(failed)?;
        if list.items.is_empty() {
            return Err(format!(
                "unable to get metrics for resource {resource}: no metrics returned from resource metrics API"
            ));
        }
        Ok(by_pod(list.items, resource, container))
    }

    /// The version in which custom metrics are asked for.
    async fn custom_version(&self) -> Result<String, String> {
        if let Some((since, known)) = self.versions.lock().get(CUSTOM)
            && since.elapsed() < KNOWN
        {
            return Ok(known.clone());
        }
        let group: Group = self.get(&format!("/apis/{CUSTOM}")).await?;
        let version = group
            .preferred_version
            .map_or_else(|| "v1beta1".to_owned(), |preferred| preferred.version);
        let known = (Instant::now(), version.clone());
        self.versions.lock().insert(CUSTOM, known);
        Ok(version)
    }

    async fn custom(
        &self,
        place: &str,
        queries: &[(&str, &str)],
    ) -> Result<Vec<MetricValue>, String> {
        let failed = |error| format!("unable to fetch metrics from custom metrics API: {error}");
        let version = self.custom_version().await.map_err(failed)?;
        let queries = queries.iter().filter(|(_, value)| !value.is_empty());
        let queries: Vec<String> = queries
            .map(|(key, value)| format!("{key}={}", encoded(value)))
            .collect();
        let path = format!("/apis/{CUSTOM}/{version}/{place}?{}", queries.join("&"));
        let list: List<MetricValue> = self.get(&path).await.map_err(failed)?;
        if list.items.is_empty() {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        Ok(list.items)
    }

    /// A custom metric of the pods of a selector.
    pub(super) async fn of_pods(
        &self,
        metric: &str,
        namespace: &str,
        selector: &str,
        metric_selector: &str,
    ) -> Result<PodMetrics, String> {
        let place = format!("namespaces/{namespace}/pods/*/{}", encoded(metric));
        let queries = [
            ("labelSelector", selector),
            ("metricLabelSelector", metric_selector),
        ];
        let values = self.custom(&place, &queries).await?;
        let of_pod = |value: MetricValue| {
            let seconds = value.window_seconds;
            let metric = PodMetric {
                milli: milli(&value.value)?,
                at: value.timestamp,
                window: seconds.map_or(DEFAULT_WINDOW, SignedDuration::from_secs),
            };
            Some((value.described_object.name, metric))
        };
        Ok(values.into_iter().filter_map(of_pod).collect())
    }

    /// A custom metric of one object, in thousandths.
    pub(super) async fn of_object(
        &self,
        metric: &str,
        namespace: &str,
        resource: Option<&ApiResource>,
        name: &str,
        metric_selector: &str,
    ) -> Result<i64, String> {
        let metric = encoded(metric);
        let name = path_segment(name).ok_or_else(|| format!("no object is called {name:?}"))?;
        let place = match resource {
            // a metric of the namespace itself
            None => format!("namespaces/{namespace}/metrics/{metric}"),
            Some(resource) => {
                let (plural, group) = (&resource.plural, &resource.group);
                let full = match group.is_empty() {
                    true => plural.clone(),
                    false => format!("{plural}.{group}"),
                };
                format!("namespaces/{namespace}/{full}/{name}/{metric}")
            }
        };
        let queries = [("metricLabelSelector", metric_selector)];
        let values = self.custom(&place, &queries).await?;
        let value = values.first().and_then(|value| milli(&value.value));
        value.ok_or_else(|| "the value is not a quantity".to_owned())
    }

    /// The sum of an external metric, in thousandths.
    pub(super) async fn external(
        &self,
        metric: &str,
        namespace: &str,
        selector: &str,
    ) -> Result<i64, String> {
        let path = format!(
            "{EXTERNAL}/namespaces/{namespace}/{}?labelSelector={}",
            encoded(metric),
            encoded(selector)
        );
        let failed = |error| format!("unable to fetch metrics from external metrics API: {error}");
        let list: List<ExternalValue> = self.get(&path).await.map_err(failed)?;
        if list.items.is_empty() {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        let values = list.items.iter().filter_map(|item| milli(&item.value));
        Ok(values.fold(0, i64::saturating_add))
    }
}

/// Text in URLs.
mod percent {
    use std::fmt::Write as _;

    /// The text with everything but letters, digits and `-_.~` written as `%XX`.
    pub(super) fn encoded(text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                out.push(char::from(byte));
            } else {
                // writing to a String cannot fail
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list() -> Vec<PodUsage> {
        let list: List<PodUsage> = serde_json::from_value(json!({ "items": [
            { "metadata": { "name": "a" }, "timestamp": "2026-01-01T00:00:00Z", "window": "30s",
              "containers": [{ "name": "c", "usage": { "cpu": "100m", "memory": "1Mi" } },
                             { "name": "d", "usage": { "cpu": "1" } }] },
            { "metadata": { "name": "b" }, "timestamp": "2026-01-01T00:00:00Z",
              "containers": [{ "name": "c", "usage": {} }] },
        ] }))
        .unwrap();
        list.items
    }

    #[test]
    fn containers_are_summed_and_gaps_leave_pods_out() {
        let cpu = by_pod(list(), "cpu", None);
        assert_eq!(cpu.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(
            (cpu["a"].milli, cpu["a"].window),
            (1100, SignedDuration::from_secs(30))
        );
        assert_eq!(by_pod(list(), "cpu", Some("c"))["a"].milli, 100);
        assert!(by_pod(list(), "memory", None).is_empty());
        assert!(by_pod(list(), "cpu", Some("none")).is_empty());
    }

    #[test]
    fn selectors_are_written_for_urls() {
        assert_eq!(encoded("a=b,c in (d e)"), "a%3Db%2Cc%20in%20%28d%20e%29");
    }
}
