//! Accounts of pods and their tokens.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use super::facts::{Facts, Seen, named};
use super::rbac::bound_accounts;
use super::{Finding, Judged};

/// The account of a pod, as `NAMESPACE/NAME`.
fn account(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod
        .spec
        .as_ref()
        .and_then(|s| s.service_account_name.as_deref());
    format!(
        "{namespace}/{}",
        name.filter(|n| !n.is_empty()).unwrap_or("default")
    )
}

/// What accounts say about mounting their tokens.
fn mounting(facts: &Facts) -> Seen<BTreeMap<String, Option<bool>>> {
    let accounts = facts.accounts.as_ref().map_err(Clone::clone)?;
    let said = accounts
        .iter()
        .map(|a| (named(&a.metadata), a.automount_service_account_token));
    Ok(said.collect())
}

/// Pods that get their account's token without asking; the pod's word goes before the account's.
fn mounted(facts: &Facts) -> Seen<Vec<&Pod>> {
    let said = mounting(facts)?;
    let gets = |pod: &&Pod| {
        let own = pod
            .spec
            .as_ref()
            .and_then(|s| s.automount_service_account_token);
        own.or_else(|| said.get(&account(pod)).copied().flatten())
            .unwrap_or(true)
    };
    Ok(facts.workloads()?.into_iter().filter(gets).collect())
}

/// Default accounts hold no role, and no pod gets their token.
pub(super) fn default_accounts(facts: &Facts) -> Judged {
    let is_default = |account: &str| account.ends_with("/default");
    let is_system = |account: &str| {
        account
            .split_once('/')
            .is_some_and(|(namespace, _)| facts.is_system(namespace))
    };
    let bound = bound_accounts(facts)?.into_iter().filter(|a| is_default(a));
    let mut used: BTreeSet<String> = bound.map(|a| format!("{a} is bound to a role")).collect();
    for pod in mounted(facts)? {
        if is_default(&account(pod)) {
            used.insert(format!(
                "pod {} has the token of the default account",
                named(&pod.metadata)
            ));
        }
    }
    let open = mounting(facts)?.into_iter().filter(|(account, said)| {
        is_default(account) && !is_system(account) && *said != Some(false)
    });
    Ok(Finding::graded(
        used.into_iter().collect(),
        "uses of default accounts",
        open.map(|(account, _)| account).collect(),
        "default accounts do not say automountServiceAccountToken: false",
        "no default account is used, and all say automountServiceAccountToken: false",
    ))
}

/// A pod whose account may do nothing needs no token.
pub(super) fn needless_tokens(facts: &Facts) -> Judged {
    let bound = bound_accounts(facts)?;
    let needless = mounted(facts)?
        .into_iter()
        .filter(|pod| !bound.contains(&account(pod)));
    let needless = needless.map(|pod| named(&pod.metadata)).collect();
    Ok(Finding::graded(
        needless,
        "pods mount a token whose account is bound to no role",
        Vec::new(),
        "",
        "every token that is mounted has a role",
    ))
}
