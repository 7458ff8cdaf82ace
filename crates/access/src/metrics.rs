//! Metrics of authentication and authorization.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::user::UserInfo;

/// Users whose names are label values; others could be too many.
const KNOWN_USERS: [&str; 5] = [
    "admin",
    "client",
    "kube_proxy",
    "kubelet",
    "system:serviceaccount:kube-system:default",
];

/// From half an hour to a year, in seconds.
const CERTIFICATE_LIVES: [f64; 14] = [
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UserLabels {
    username: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    r#type: &'static str,
    name: String,
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    name: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AuthorizerLabels {
    r#type: &'static str,
    name: String,
}

/// Who asked, and what was decided.
#[derive(Debug)]
pub struct AccessMetrics {
    // names that lack the suffix which the text form gives to counters
    attempts: Family<ResultLabels, Gauge>,
    users: Family<UserLabels, Gauge>,
    authentication: Family<ResultLabels, Histogram>,
    certificates: Histogram,
    requests: Family<ResultLabels, Counter>,
    authorization: Family<ResultLabels, Histogram>,
    decisions: Family<DecisionLabels, Counter>,
    calls: Family<CallLabels, Counter>,
    call_durations: Family<CallLabels, Histogram>,
    fail_open: Family<CallLabels, Counter>,
    excluded: Family<AuthorizerLabels, Counter>,
    condition_errors: Family<AuthorizerLabels, Counter>,
    /// Tokens of service accounts: bound ones in time, bound ones beyond the time they were asked
    /// for, such without a bound.
    pub(crate) valid_tokens: Counter,
    pub(crate) stale_tokens: Counter,
    pub(crate) legacy_tokens: Counter,
    /// Of the last: from Secrets made for the account, by hand, and refused ones.
    pub(crate) auto_tokens: Counter,
    pub(crate) manual_tokens: Counter,
    pub(crate) invalid_tokens: Counter,
}

fn durations<L: Clone + Eq + std::hash::Hash>() -> Family<L, Histogram> {
    Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15)))
}

impl Default for AccessMetrics {
    fn default() -> Self {
        Self {
            attempts: Family::default(),
            users: Family::default(),
            authentication: durations(),
            certificates: Histogram::new(CERTIFICATE_LIVES),
            requests: Family::default(),
            authorization: durations(),
            decisions: Family::default(),
            calls: Family::default(),
            call_durations: durations(),
            fail_open: Family::default(),
            excluded: Family::default(),
            condition_errors: Family::default(),
            valid_tokens: Counter::default(),
            stale_tokens: Counter::default(),
            legacy_tokens: Counter::default(),
            auto_tokens: Counter::default(),
            manual_tokens: Counter::default(),
            invalid_tokens: Counter::default(),
        }
    }
}

impl AccessMetrics {
    /// Adds them to a registry.
    pub fn register(&self, r: &mut Registry) {
        r.register(
            "authentication_attempts",
            "Authenticated requests by their outcome",
            self.attempts.clone(),
        );
        r.register(
            "authenticated_user_requests",
            "Authenticated requests by kinds of users",
            self.users.clone(),
        );
        r.register(
            "authentication_duration_seconds",
            "Time to authenticate a request",
            self.authentication.clone(),
        );
        r.register(
            "apiserver_client_certificate_expiration_seconds",
            "Remaining lifetime of the certificates that authenticated requests",
            self.certificates.clone(),
        );
        r.register(
            "authorization_attempts",
            "Authorized requests by their outcome",
            self.requests.clone(),
        );
        r.register(
            "authorization_duration_seconds",
            "Time to authorize a request",
            self.authorization.clone(),
        );
        r.register(
            "apiserver_authorization_decisions",
            "Decisions by the authorizer that made them",
            self.decisions.clone(),
        );
        r.register(
            "apiserver_authorization_webhook_evaluations",
            "Calls of authorization webhooks",
            self.calls.clone(),
        );
        r.register(
            "apiserver_authorization_webhook_duration_seconds",
            "Time an authorization webhook took",
            self.call_durations.clone(),
        );
        r.register(
            "apiserver_authorization_webhook_evaluations_fail_open",
            "Failed calls of authorization webhooks that were no opinion",
            self.fail_open.clone(),
        );
        r.register(
            "apiserver_authorization_match_condition_exclusions",
            "Requests an authorizer was not asked about by its match conditions",
            self.excluded.clone(),
        );
        r.register(
            "apiserver_authorization_match_condition_evaluation_errors",
            "Match conditions of authorizers that failed",
            self.condition_errors.clone(),
        );
        for (name, help, counter) in [
            (
                "serviceaccount_valid_tokens",
                "Uses of valid projected service account tokens",
                &self.valid_tokens,
            ),
            (
                "serviceaccount_stale_tokens",
                "Uses of stale projected service account tokens",
                &self.stale_tokens,
            ),
            (
                "serviceaccount_legacy_tokens",
                "Uses of service account tokens of Secrets",
                &self.legacy_tokens,
            ),
            (
                "serviceaccount_legacy_auto_token_uses",
                "Uses of tokens of Secrets that were made for accounts",
                &self.auto_tokens,
            ),
            (
                "serviceaccount_legacy_manual_token_uses",
                "Uses of tokens of Secrets that were made by hand",
                &self.manual_tokens,
            ),
            (
                "serviceaccount_invalid_legacy_auto_token_uses",
                "Uses of tokens of Secrets that were marked invalid",
                &self.invalid_tokens,
            ),
        ] {
            r.register(name, help, counter.clone());
        }
    }

    /// Counts an authentication; `None` when the credential was refused.
    pub fn authenticated(&self, user: Option<&UserInfo>, took: Duration) {
        let result = if user.is_some() { "success" } else { "failure" };
        let labels = ResultLabels { result };
        self.attempts.get_or_create(&labels).inc();
        self.authentication
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        if let Some(user) = user {
            let username = username(&user.name);
            self.users.get_or_create(&UserLabels { username }).inc();
        }
    }

    /// Counts a request by a client certificate that lives on for so many seconds.
    #[expect(clippy::cast_precision_loss, reason = "seconds of a life fit")]
    pub(crate) fn shown_certificate(&self, left: i64) {
        self.certificates.observe(left as f64);
    }

    /// Counts what the authorization of a request led to: `allowed`, `denied`, `no-opinion`.
    pub fn authorized(&self, result: &'static str, took: Duration) {
        let labels = ResultLabels { result };
        self.requests.get_or_create(&labels).inc();
        self.authorization
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Counts a decision of one authorizer: `allowed` or `denied`.
    pub(crate) fn decided(&self, r#type: &'static str, name: &str, decision: &'static str) {
        let labels = DecisionLabels {
            r#type,
            name: name.to_owned(),
            decision,
        };
        self.decisions.get_or_create(&labels).inc();
    }

    /// Counts a call of a webhook: `success`, `timeout` or `error`.
    pub(crate) fn called(&self, name: &str, result: &'static str, open: bool, took: Duration) {
        let labels = CallLabels {
            name: name.to_owned(),
            result,
        };
        self.calls.get_or_create(&labels).inc();
        self.call_durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        if open {
            self.fail_open.get_or_create(&labels).inc();
        }
    }

    /// Counts a request that match conditions kept from a webhook, or that made them fail.
    pub(crate) fn excluded(&self, name: &str, failed: bool) {
        let labels = AuthorizerLabels {
            r#type: "Webhook",
            name: name.to_owned(),
        };
        let family = if failed {
            &self.condition_errors
        } else {
            &self.excluded
        };
        family.get_or_create(&labels).inc();
    }
}

fn username(name: &str) -> &'static str {
    if let Some(known) = KNOWN_USERS.into_iter().find(|known| *known == name) {
        return known;
    }
    // probably an address
    if name.contains('@') {
        "email_id"
    } else {
        "other"
    }
}
