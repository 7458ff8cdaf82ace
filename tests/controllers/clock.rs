//! Clocks that are set while davit runs: a box without a battery starts in 1970, is told the time when its network comes up,
//! and told another one by a better server.

use super::value;
use crate::harness::{Cluster, any_kubectl, eventually, kubectl, kubectl_stdin, part, root};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The clock is looked at every ten seconds.
const SOON: Duration = Duration::from_secs(60);

/// Files of pods are looked at less often.
const REFRESH: Duration = Duration::from_secs(150);

/// The library that gives programs another clock, by what stands in a file.
fn faketime() -> Option<PathBuf> {
    let of = |arch| format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1").into();
    let found = ["x86_64", "aarch64"].map(of);
    part(
        "faketime",
        found.into_iter().find(|path: &PathBuf| path.is_file()),
    )
}

fn year() -> i64 {
    let now = jiff::Timestamp::now();
    i64::from(now.to_zoned(jiff::tz::TimeZone::UTC).year())
}

fn cron_job(name: &str, schedule: &str) -> String {
    format!(
        "apiVersion: batch/v1
kind: CronJob
metadata: {{name: {name}}}
spec:
  schedule: \"{schedule}\"
  jobTemplate:
    spec:
      template:
        spec: {{restartPolicy: Never, containers: [{{name: c, image: davit.local/host, command: ['true']}}]}}
---
"
    )
}

const POD: &str = "apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: davit.local/host, command: [sleep, '1000']}]}
---
";

/// For which times jobs of the cron job are there.
fn scheduled(cluster: &Cluster, k: &Path, cron: &str) -> Vec<String> {
    let path = format!(
        "jsonpath={{.items[?(@.metadata.ownerReferences[0].name==\"{cron}\")].metadata.annotations}}"
    );
    let annotations = kubectl(cluster, k, ["get", "jobs", "-o", &path]);
    let times = annotations.split("scheduled-timestamp\":\"").skip(1);
    times.map(|rest| rest.chars().take(20).collect()).collect()
}

/// From when the token that the pod has is good, in seconds since 1970.
fn token_begins(cluster: &Cluster, k: &Path) -> i64 {
    let file = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    let token = kubectl(cluster, k, ["exec", "p", "--", "cat", file]);
    let claims = token.split('.').nth(1).unwrap();
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    claims["nbf"].as_i64().unwrap()
}

#[test]
fn a_clock_that_is_set_forward_and_back_ends_nothing() {
    let (Some(k), Some(()), Some(library)) = (any_kubectl(), root(), faketime()) else {
        return;
    };
    let clock = tempfile::NamedTempFile::new().unwrap();
    let set = |text: &str| std::fs::write(clock.path(), text).unwrap();
    set(&format!("-{}y", year() - 1970));
    let env = vec![
        ("LD_PRELOAD", library.display().to_string()),
        (
            "FAKETIME_TIMESTAMP_FILE",
            clock.path().display().to_string(),
        ),
        ("FAKETIME_CACHE_DURATION", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    let args = ["--node-name", "node-1", "--allow-host-image"];
    let cluster = Cluster::up_with(env, &args, |_| {});
    let manifest = format!(
        "{POD}{}{}",
        cron_job("daily", "0 3 * * *"),
        cron_job("each", "@every 2s")
    );
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], &manifest);
    eventually("the pod in 1970", SOON, || {
        value(&cluster, &k, "pod/p", ".status.phase") == "Running"
    });
    eventually("a job in 1970", SOON, || {
        scheduled(&cluster, &k, "each")
            .iter()
            .any(|at| at.starts_with("197"))
    });
    assert_eq!(scheduled(&cluster, &k, "daily").len(), 0);

    set("+0");
    let this_year = year().to_string();
    eventually("the day's job, as the time is told", SOON, || {
        scheduled(&cluster, &k, "daily").len() == 1
    });
    eventually("a job now", SOON, || {
        scheduled(&cluster, &k, "each")
            .iter()
            .any(|at| at.starts_with(&this_year))
    });
    let day = scheduled(&cluster, &k, "daily");
    assert!(
        day[0] >= format!("{}-12-30", year() - 1),
        "{day:?} is the last, and the only one"
    );
    let ready = ".status.conditions[?(@.type==\"Ready\")].status";
    assert_eq!(value(&cluster, &k, "node/node-1", ready), "True");

    set("-3y");
    let two_years_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(2 * 365 * 24);
    let before = two_years_ago.to_string();
    eventually("a job three years ago", SOON, || {
        let times = scheduled(&cluster, &k, "each");
        times
            .iter()
            .any(|at| *at < before && !at.starts_with("197"))
    });
    eventually("a token that does not begin later", REFRESH, || {
        token_begins(&cluster, &k) < two_years_ago.as_second()
    });
    assert_eq!(value(&cluster, &k, "node/node-1", ready), "True");
}
