//! What the proxy counts, under kube-proxy's names (spec network.md 3.8).

mod policies;

pub(crate) use policies::PolicyMetrics;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const IPV4: FamilyLabels = FamilyLabels { ip_family: "IPv4" };
const IPV6: FamilyLabels = FamilyLabels { ip_family: "IPv6" };

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FamilyLabels {
    ip_family: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    traffic_policy: &'static str,
    ip_family: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    code: u16,
}

type Seconds = Family<FamilyLabels, Gauge<f64, AtomicU64>>;
type Durations = Family<FamilyLabels, Histogram, fn() -> Histogram>;

/// What is counted. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct ProxyMetrics {
    syncs: Durations,
    full_syncs: Durations,
    partial_syncs: Durations,
    programming: Durations,
    conntrack: Durations,
    conntrack_deleted: Family<FamilyLabels, Counter>,
    last: Seconds,
    last_queued: Seconds,
    failures: Family<FamilyLabels, Counter>,
    without_endpoints: Family<PolicyLabels, Gauge>,
    services: Changes,
    endpoints: Changes,
    healthz: Family<CodeLabels, Counter>,
    livez: Family<CodeLabels, Counter>,
    /// Of network policies, where there are any.
    policies: PolicyMetrics,
    /// What is counted of one family is counted of this one.
    own: FamilyLabels,
    /// Whether Services of IPv6 are proxied, too.
    has_six: Arc<AtomicBool>,
}

/// Changes that were seen, and those of them that wait.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    total: Counter,
    pending: Gauge,
}

impl Changes {
    /// One more.
    pub(crate) fn seen(&self) {
        self.total.inc();
        self.pending.inc();
    }
}

/// 1 ms, 2 ms, … 16 s.
fn usual() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// From a quarter of a second to five minutes.
fn programming() -> Histogram {
    let whole = (1..60).chain((60..120).step_by(5));
    let whole = whole.chain((120..=300).step_by(30)).map(f64::from);
    Histogram::new([0.25, 0.5].into_iter().chain(whole))
}

fn durations(of: fn() -> Histogram) -> Durations {
    Family::new_with_constructor(of)
}

impl Default for ProxyMetrics {
    fn default() -> Self {
        Self {
            syncs: durations(usual),
            full_syncs: durations(usual),
            partial_syncs: durations(usual),
            programming: durations(programming),
            conntrack: durations(usual),
            conntrack_deleted: Family::default(),
            last: Family::default(),
            last_queued: Family::default(),
            failures: Family::default(),
            without_endpoints: Family::default(),
            services: Changes::default(),
            endpoints: Changes::default(),
            healthz: Family::default(),
            livez: Family::default(),
            policies: PolicyMetrics::default(),
            own: IPV4,
            has_six: Arc::default(),
        }
    }
}

/// How a write of the proxy went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Everything was told.
    Full,
    /// Changes only.
    Partial,
}

impl ProxyMetrics {
    /// The part of one family, which is proxied from now on.
    pub(crate) fn of(&self, family: davit_netplan::Family) -> Self {
        let own = match family {
            davit_netplan::Family::V4 => IPV4,
            davit_netplan::Family::V6 => {
                self.has_six.store(true, Ordering::Relaxed);
                IPV6
            }
        };
        Self {
            own,
            ..self.clone()
        }
    }

    /// The families that are proxied.
    fn families(&self) -> impl Iterator<Item = FamilyLabels> + use<> {
        let six = self.has_six.load(Ordering::Relaxed);
        [IPV4].into_iter().chain(six.then_some(IPV6))
    }

    /// Their names.
    pub(crate) fn family_names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.families().map(|labels| labels.ip_family)
    }

    pub(crate) fn queued(&self) {
        for family in self.families() {
            self.last_queued.get_or_create(&family).set(now());
        }
    }

    pub(crate) fn updated(&self) {
        for family in self.families() {
            self.last.get_or_create(&family).set(now());
        }
        self.services.pending.set(0);
        self.endpoints.pending.set(0);
    }

    /// Changes of Services.
    pub(crate) fn services(&self) -> &Changes {
        &self.services
    }

    /// Changes of their endpoints.
    pub(crate) fn endpoints(&self) -> &Changes {
        &self.endpoints
    }

    pub(crate) fn synced(&self, extent: Extent, took: Duration) {
        let by_extent = match extent {
            Extent::Full => &self.full_syncs,
            Extent::Partial => &self.partial_syncs,
        };
        for durations in [&self.syncs, by_extent] {
            durations
                .get_or_create(&self.own)
                .observe(took.as_secs_f64());
        }
    }

    pub(crate) fn failed(&self) {
        for family in self.families() {
            self.failures.get_or_create(&family).inc();
        }
    }

    /// From when an endpoint changed until the kernel knew.
    pub(crate) fn programmed(&self, took: Duration) {
        for family in self.families() {
            let durations = self.programming.get_or_create(&family);
            durations.observe(took.as_secs_f64());
        }
    }

    pub(crate) fn conntrack(&self, took: Duration, deleted: usize) {
        let durations = self.conntrack.get_or_create(&self.own);
        durations.observe(took.as_secs_f64());
        let deleted = u64::try_from(deleted).unwrap_or(u64::MAX);
        self.conntrack_deleted
            .get_or_create(&self.own)
            .inc_by(deleted);
    }

    /// Ports of Services whose policy is Local, and which have no endpoint here.
    pub(crate) fn without_endpoints(&self, internal: usize, external: usize) {
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let labels = PolicyLabels {
                traffic_policy,
                ip_family: self.own.ip_family,
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.without_endpoints.get_or_create(&labels).set(count);
        }
    }

    /// Somebody has asked for `/healthz`, or else for `/livez`.
    pub(crate) fn asked(&self, healthz: bool, code: u16) {
        let asked = if healthz { &self.healthz } else { &self.livez };
        asked.get_or_create(&CodeLabels { code }).inc();
    }

    /// What is counted of network policies.
    pub(crate) fn policies(&self) -> PolicyMetrics {
        self.policies.clone()
    }

    /// The text of `/metrics`.
    pub(crate) fn encode(&self) -> String {
        let mut registry = Registry::default();
        let proxy = registry.sub_registry_with_prefix("kubeproxy");
        self.register_syncs(proxy);
        self.register_changes(proxy);
        let policies = registry.sub_registry_with_prefix("davit_network_policy");
        self.policies.register(policies);
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &registry) {
            // a String takes everything
            tracing::debug!(%error, "metrics");
        }
        text
    }

    fn register_syncs(&self, to: &mut Registry) {
        for (name, help, durations) in [
            (
                "sync_proxy_rules_duration_seconds",
                "How long writing rules has taken",
                &self.syncs,
            ),
            (
                "sync_full_proxy_rules_duration_seconds",
                "How long writing all rules has taken",
                &self.full_syncs,
            ),
            (
                "sync_partial_proxy_rules_duration_seconds",
                "How long writing changed rules has taken",
                &self.partial_syncs,
            ),
            (
                "network_programming_duration_seconds",
                "From the change of an endpoint until the kernel had it",
                &self.programming,
            ),
            (
                "conntrack_reconciler_sync_duration_seconds",
                "How long ending connections to former endpoints has taken",
                &self.conntrack,
            ),
        ] {
            to.register(name, help, durations.clone());
        }
        to.register(
            "conntrack_reconciler_deleted_entries",
            "Connections to former endpoints that were ended",
            self.conntrack_deleted.clone(),
        );
        to.register(
            "sync_proxy_rules_nftables_sync_failures",
            "Writes that the kernel has refused",
            self.failures.clone(),
        );
        for (name, help, seconds) in [
            (
                "sync_proxy_rules_last_timestamp_seconds",
                "When rules were written last",
                &self.last,
            ),
            (
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "When a change was seen last",
                &self.last_queued,
            ),
        ] {
            to.register(name, help, seconds.clone());
        }
    }

    fn register_changes(&self, to: &mut Registry) {
        to.register(
            "sync_proxy_rules_no_local_endpoints_total",
            "Service ports with policy Local and without endpoints on this node",
            self.without_endpoints.clone(),
        );
        for (what, changes) in [("service", &self.services), ("endpoint", &self.endpoints)] {
            to.register(
                format!("sync_proxy_rules_{what}_changes_pending"),
                "Changes that are not written yet",
                changes.pending.clone(),
            );
            to.register(
                format!("sync_proxy_rules_{what}_changes"),
                "Changes that were seen",
                changes.total.clone(),
            );
        }
        for (name, help, asked) in [
            ("proxy_healthz", "Answers of /healthz", &self.healthz),
            ("proxy_livez", "Answers of /livez", &self.livez),
        ] {
            to.register(name, help, asked.clone());
        }
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kube_proxy() {
        let metrics = ProxyMetrics::default();
        let six = metrics.of(davit_netplan::Family::V6);
        six.synced(Extent::Full, Duration::from_millis(1));
        metrics.queued();
        metrics.services().seen();
        metrics.updated();
        metrics.endpoints().seen();
        metrics.synced(Extent::Full, Duration::from_millis(1));
        metrics.synced(Extent::Partial, Duration::from_millis(3));
        metrics.programmed(Duration::from_millis(300));
        metrics.conntrack(Duration::from_millis(1), 2);
        metrics.without_endpoints(1, 2);
        metrics.failed();
        metrics.asked(true, 200);
        metrics.asked(false, 503);
        let policies = metrics.policies();
        policies.synced(Duration::from_millis(1), 3, 1);
        policies.isolated(2, 1);
        policies.ended(4);
        policies.failed();
        let text = metrics.encode();
        for line in [
            r#"kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1"#,
            r#"kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2"#,
            r#"kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1"#,
            r#"kubeproxy_sync_partial_proxy_rules_duration_seconds_bucket{le="0.004",ip_family="IPv4"} 1"#,
            r#"kubeproxy_network_programming_duration_seconds_bucket{le="0.25",ip_family="IPv4"} 0"#,
            r#"kubeproxy_network_programming_duration_seconds_bucket{le="300.0",ip_family="IPv4"} 1"#,
            r#"kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"} 1"#,
            r#"kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 2"#,
            r#"kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1"#,
            r#"kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="internal",ip_family="IPv4"} 1"#,
            r#"kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="external",ip_family="IPv4"} 2"#,
            "kubeproxy_sync_proxy_rules_service_changes_total 1",
            "kubeproxy_sync_proxy_rules_service_changes_pending 0",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 1",
            r#"kubeproxy_proxy_healthz_total{code="200"} 1"#,
            "davit_network_policy_sync_duration_seconds_count 1",
            "davit_network_policy_sync_failures_total 1",
            "davit_network_policy_policies 3",
            "davit_network_policy_cut_off_pods 1",
            r#"davit_network_policy_isolated_pods{direction="ingress"} 2"#,
            "davit_network_policy_ended_connections_total 4",
            r#"kubeproxy_proxy_livez_total{code="503"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        for name in ["last_timestamp_seconds", "last_queued_timestamp_seconds"] {
            let line = format!("kubeproxy_sync_proxy_rules_{name}{{ip_family=\"IPv4\"}} 1");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
}
