//! The checks of the CIS Kubernetes benchmark that the API of any running cluster can answer, under the benchmark's ids
//! (versions 1.11 and 1.12).
//!
//! [`gather`] asks the cluster, [`Facts`] is what it said, and each row of [`CLUSTER_CHECKS`] judges the facts: no row
//! asks anything itself. Nothing is changed: what would be admitted is found out by requests that are dry runs.
//!
//! A check fails for what the benchmark's text rules out; it warns where the benchmark leaves the judgement to people.

mod accounts;
mod facts;
mod flags;
mod gather;
mod kubelet;
mod namespaces;
mod pods;
mod probes;
mod rbac;
mod server;
mod table;

use std::collections::BTreeSet;
use std::time::Duration;

use super::report::{Check, CheckResult, Report};
use facts::Facts;
pub use table::CLUSTER_CHECKS;

/// How a cluster is checked; [`ClusterOptions::default`] asks everything.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Whether it is tried, by dry runs, what namespaces and admission plugins let in.
    pub dry_run: bool,
    /// Whether the ports of nodes are tried without credentials.
    pub nodes: bool,
    /// In how many namespaces pods are tried at most.
    pub most_namespaces: usize,
    /// Namespaces whose pods are the cluster's own, beside those of Kubernetes.
    pub exempt: BTreeSet<String>,
    /// How long an answer may take.
    pub patience: Duration,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            dry_run: true,
            nodes: true,
            most_namespaces: 50,
            exempt: BTreeSet::new(),
            patience: Duration::from_secs(10),
        }
    }
}

/// A check of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct ClusterCheck {
    /// The benchmark's id.
    pub id: &'static str,
    /// What the benchmark wants.
    pub expected: &'static str,
    judge: Judge,
}

/// How facts are judged.
#[derive(Debug, Clone, Copy)]
enum Judge {
    /// By a function.
    By(fn(&Facts) -> Judged),
    /// By a flag of a program of the control plane.
    Flag(flags::Program, flags::Rule, flags::Breach),
    /// By what is seen to happen; where that does not tell, by a flag of the API server.
    Effect(fn(&Facts) -> Judged, flags::Rule, flags::Breach),
    /// By a field of each node agent's configuration.
    Kubelet(kubelet::Rule, flags::Breach),
}

/// What came of a check, or why it does not apply or could not be made.
type Judged = Result<Finding, String>;

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    verdict: CheckResult,
    seen: String,
    objects: Vec<String>,
}

impl Finding {
    fn pass(seen: impl Into<String>) -> Self {
        Self {
            verdict: CheckResult::Pass,
            seen: seen.into(),
            objects: Vec::new(),
        }
    }

    fn of(verdict: CheckResult, seen: impl Into<String>, objects: Vec<String>) -> Self {
        Self {
            verdict,
            seen: seen.into(),
            objects,
        }
    }

    /// Fails for the first objects, warns for the second; passes when there are none.
    fn graded(
        bad: Vec<String>,
        why_bad: &str,
        doubtful: Vec<String>,
        why: &str,
        good: &str,
    ) -> Self {
        if !bad.is_empty() {
            Self::of(CheckResult::Fail, format!("{} {why_bad}", bad.len()), bad)
        } else if !doubtful.is_empty() {
            Self::of(
                CheckResult::Warn,
                format!("{} {why}", doubtful.len()),
                doubtful,
            )
        } else {
            Self::pass(good)
        }
    }
}

/// Checks the cluster that a configuration names, with the credentials in it and without any.
///
/// # Errors
/// The configuration cannot be used, or the API server does not answer it.
pub async fn cluster(config: kube::Config, options: &ClusterOptions) -> Result<Report, String> {
    let subject = config.cluster_url.to_string();
    let facts = gather::facts(config, options).await?;
    Ok(report(subject, &facts))
}

fn report(subject: String, facts: &Facts) -> Report {
    let checks = CLUSTER_CHECKS.iter().map(|check| {
        let (verdict, seen, objects) = match check.judge.on(facts) {
            Ok(finding) => (finding.verdict, finding.seen, finding.objects),
            Err(why) => (CheckResult::Skip, why, Vec::new()),
        };
        Check {
            id: check.id.to_owned(),
            verdict,
            expected: check.expected.to_owned(),
            seen,
            objects,
        }
    });
    Report::new("cluster", subject, facts.node_names(), checks.collect())
}

impl Judge {
    fn on(self, facts: &Facts) -> Judged {
        match self {
            Self::By(judge) => judge(facts),
            Self::Flag(program, rule, breach) => flags::judge(facts, program, rule, breach),
            Self::Effect(judge, rule, breach) => judge(facts).or_else(|unclear| {
                flags::judge(facts, flags::Program::ApiServer, rule, breach).map_err(|_| unclear)
            }),
            Self::Kubelet(rule, breach) => kubelet::judge(facts, rule, breach),
        }
    }
}

#[cfg(test)]
mod tests;
