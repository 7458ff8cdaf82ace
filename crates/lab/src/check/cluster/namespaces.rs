//! What is where: namespaces, their policies, the namespace `default`.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Facts, Seen, named};
use super::probes::Control;
use super::{CheckResult, Finding, Judged};

/// Pods that are not the cluster's own, by namespace.
fn populated(facts: &Facts) -> Seen<BTreeSet<&str>> {
    let pods = facts.workloads()?.into_iter();
    Ok(pods
        .filter_map(|pod| pod.metadata.namespace.as_deref())
        .collect())
}

/// Something refuses privileged pods, in every namespace with pods.
pub(super) fn policy_control(facts: &Facts) -> Judged {
    let inhabited = populated(facts)?;
    let labelled: BTreeMap<&str, bool> = facts
        .user_namespaces()?
        .into_iter()
        .map(|namespace| {
            let labels = namespace.metadata.labels.iter().flatten();
            let mut labels = labels.filter(|(k, _)| *k == "pod-security.kubernetes.io/enforce");
            let name = namespace.metadata.name.as_deref().unwrap_or_default();
            (
                name,
                labels.any(|(_, v)| v == "baseline" || v == "restricted"),
            )
        })
        .collect();
    let refuses = |name: &str| match facts.tried.admits.get(name) {
        Some(Ok(admits)) => admits.get(&Control::Privileged) == Some(&false),
        _ => labelled.get(name) == Some(&true),
    };
    let open = labelled.keys().filter(|name| !refuses(name));
    let (bad, doubtful): (Vec<&str>, Vec<&str>) = open.partition(|name| inhabited.contains(*name));
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    Ok(Finding::graded(
        owned(bad),
        "namespaces with pods admit privileged ones",
        owned(doubtful),
        "namespaces admit privileged pods",
        "privileged pods are refused in every namespace",
    ))
}

/// Every namespace with pods has a network policy.
pub(super) fn network_policies(facts: &Facts) -> Judged {
    let policies = facts
        .network_policies
        .as_ref()
        .map_err(Clone::clone)?
        .iter();
    let covered: BTreeSet<&str> = policies
        .filter_map(|p| p.metadata.namespace.as_deref())
        .collect();
    let inhabited = populated(facts)?;
    if inhabited.is_empty() {
        return Err("no pods but the cluster's own".to_owned());
    }
    let bare = inhabited.into_iter().filter(|name| !covered.contains(name));
    Ok(Finding::graded(
        bare.map(str::to_owned).collect(),
        "namespaces with pods have no NetworkPolicy",
        Vec::new(),
        "",
        "every namespace with pods has one",
    ))
}

/// Workloads are kept apart by namespaces.
pub(super) fn boundaries(facts: &Facts) -> Judged {
    let inhabited = populated(facts)?;
    if inhabited.iter().any(|name| *name == "default") && inhabited.len() == 1 {
        let seen = "all pods are in the namespace default";
        return Ok(Finding::of(CheckResult::Warn, seen, Vec::new()));
    }
    match inhabited.len() {
        0 => Err("no pods but the cluster's own".to_owned()),
        n => Ok(Finding::pass(format!("pods in {n} namespaces"))),
    }
}

/// Nothing but the API server's Service is in `default`.
pub(super) fn default_namespace(facts: &Facts) -> Judged {
    if facts.is_system("default") {
        return Err("the namespace default is exempt".to_owned());
    }
    let services = facts.services.as_ref().map_err(Clone::clone)?.iter();
    let services = services.filter(|s| s.metadata.name.as_deref() != Some("kubernetes"));
    let pods = facts.pods.as_ref().map_err(Clone::clone)?.iter();
    let all = pods
        .map(|p| ("pod", &p.metadata))
        .chain(services.map(|s| ("service", &s.metadata)));
    let there = all.filter(|(_, meta)| meta.namespace.as_deref() == Some("default"));
    Ok(Finding::graded(
        there
            .map(|(kind, meta)| format!("{kind} {}", named(meta)))
            .collect(),
        "objects are in the namespace default",
        Vec::new(),
        "",
        "nothing but the Service kubernetes",
    ))
}
