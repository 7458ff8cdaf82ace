//! Who may do what by roles: section 5.1 of the benchmark.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject};

use super::facts::{Facts, Seen};
use super::{CheckResult, Finding, Judged};

/// A permission that only few should have.
#[derive(Debug, Clone, Copy)]
struct Need {
    group: &'static str,
    /// With its subresource, after a slash.
    resources: &'static [&'static str],
    /// Any of them.
    verbs: &'static [&'static str],
}

impl Need {
    const fn new(
        group: &'static str,
        resources: &'static [&'static str],
        verbs: &'static [&'static str],
    ) -> Self {
        Self {
            group,
            resources,
            verbs,
        }
    }

    fn granted_by(self, rule: &PolicyRule) -> bool {
        let groups = rule.api_groups.iter().flatten();
        let mut resources = rule.resources.iter().flatten();
        one_of(groups, &[self.group])
            && one_of(rule.verbs.iter(), self.verbs)
            && resources
                .any(|given| given == "*" || self.resources.iter().any(|r| covers(given, r)))
    }
}

/// Whether a rule's resource is one that is asked about; `*/sub` stands for that subresource of all.
fn covers(given: &str, resource: &str) -> bool {
    given == resource
        || resource
            .split_once('/')
            .is_some_and(|(_, sub)| given.strip_prefix("*/") == Some(sub))
}

fn one_of<'a>(mut given: impl Iterator<Item = &'a String>, wanted: &[&str]) -> bool {
    given.any(|g| g == "*" || wanted.contains(&g.as_str()))
}

fn is_everything(rule: &PolicyRule) -> bool {
    let star = |list: &Option<Vec<String>>| list.iter().flatten().any(|item| item == "*");
    star(&rule.api_groups) && star(&rule.resources) && rule.verbs.iter().any(|v| v == "*")
}

/// Subjects of everybody, or of every pod that has no account of its own.
fn is_broad(subject: &Subject) -> bool {
    match subject.kind.as_str() {
        "Group" => {
            let name = subject.name.as_str();
            [
                "system:authenticated",
                "system:unauthenticated",
                "system:serviceaccounts",
            ]
            .contains(&name)
                || name.starts_with("system:serviceaccounts:")
        }
        "ServiceAccount" => subject.name == "default",
        _ => subject.name == "system:anonymous",
    }
}

/// Subjects of the cluster's own programs.
fn is_own(facts: &Facts, subject: &Subject) -> bool {
    const USERS: [&str; 4] = [
        "system:apiserver",
        "system:kube-controller-manager",
        "system:kube-proxy",
        "system:kube-scheduler",
    ];
    const GROUPS: [&str; 3] = ["system:masters", "system:nodes", "kubeadm:cluster-admins"];
    match subject.kind.as_str() {
        "User" => USERS.contains(&subject.name.as_str()),
        "Group" => GROUPS.contains(&subject.name.as_str()),
        _ => subject
            .namespace
            .as_deref()
            .is_some_and(|n| facts.is_system(n)),
    }
}

fn shown(subject: &Subject) -> String {
    match &subject.namespace {
        Some(namespace) => format!("{} {namespace}/{}", subject.kind, subject.name),
        None => format!("{} {}", subject.kind, subject.name),
    }
}

/// A binding of either kind, with the rules that it grants.
struct Grant<'a> {
    /// As it is shown.
    binding: String,
    role: &'a RoleRef,
    subjects: &'a [Subject],
    rules: &'a [PolicyRule],
}

fn grants(facts: &Facts) -> Seen<Vec<Grant<'_>>> {
    let roles = facts.roles.as_ref().map_err(Clone::clone)?;
    let cluster_roles = facts.cluster_roles.as_ref().map_err(Clone::clone)?;
    let bindings = facts.role_bindings.as_ref().map_err(Clone::clone)?;
    let cluster_bindings = facts.cluster_role_bindings.as_ref().map_err(Clone::clone)?;
    let mut rules: BTreeMap<(Option<&str>, &str), &[PolicyRule]> = BTreeMap::new();
    for role in cluster_roles {
        let name = role.metadata.name.as_deref().unwrap_or_default();
        rules.insert((None, name), role.rules.as_deref().unwrap_or_default());
    }
    for role in roles {
        let name = role.metadata.name.as_deref().unwrap_or_default();
        let key = (role.metadata.namespace.as_deref(), name);
        rules.insert(key, role.rules.as_deref().unwrap_or_default());
    }
    let found = |namespace: Option<&str>, role: &RoleRef| {
        let namespace = namespace.filter(|_| role.kind == "Role");
        rules
            .get(&(namespace, role.name.as_str()))
            .copied()
            .unwrap_or_default()
    };
    let of_cluster = cluster_bindings.iter().map(|b| Grant {
        binding: super::facts::named(&b.metadata),
        role: &b.role_ref,
        subjects: b.subjects.as_deref().unwrap_or_default(),
        rules: found(None, &b.role_ref),
    });
    let of_namespaces = bindings.iter().map(|b| Grant {
        binding: super::facts::named(&b.metadata),
        role: &b.role_ref,
        subjects: b.subjects.as_deref().unwrap_or_default(),
        rules: found(b.metadata.namespace.as_deref(), &b.role_ref),
    });
    Ok(of_cluster.chain(of_namespaces).collect())
}

/// Whoever is granted something fails when it is everybody, and is a matter of judgement otherwise.
fn holders(facts: &Facts, granted: impl Fn(&Grant<'_>) -> bool) -> Judged {
    let (mut broad, mut others) = (BTreeSet::new(), BTreeSet::new());
    for grant in grants(facts)? {
        if !granted(&grant) {
            continue;
        }
        for subject in grant.subjects {
            let line = format!(
                "{} by {} ({})",
                shown(subject),
                grant.binding,
                grant.role.name
            );
            if is_broad(subject) {
                broad.insert(line);
            } else if !is_own(facts, subject) {
                others.insert(line);
            }
        }
    }
    Ok(Finding::graded(
        broad.into_iter().collect(),
        "grants to everybody, or to pods without an account of their own",
        others.into_iter().collect(),
        "subjects beside the cluster's own programs hold it: are all of them needed?",
        "nobody but the cluster's own programs and administrators",
    ))
}

fn by_need(facts: &Facts, needs: &[Need]) -> Judged {
    holders(facts, |grant| {
        let mut rules = grant.rules.iter();
        rules.any(|rule| needs.iter().any(|need| need.granted_by(rule)))
    })
}

pub(super) fn cluster_admin(facts: &Facts) -> Judged {
    let mut finding = holders(facts, |grant| {
        grant.role.name == "cluster-admin" || grant.rules.iter().any(is_everything)
    })?;
    // An account of pods that rules everything is what the benchmark means, whoever uses it.
    let account = |line: &String| line.starts_with("ServiceAccount");
    if finding.verdict == CheckResult::Warn && finding.objects.iter().any(account) {
        finding.verdict = CheckResult::Fail;
        finding.seen = "accounts of pods may do everything".to_owned();
    }
    Ok(finding)
}

pub(super) fn secrets(facts: &Facts) -> Judged {
    by_need(
        facts,
        &[Need::new("", &["secrets"], &["get", "list", "watch"])],
    )
}

pub(super) fn create_pods(facts: &Facts) -> Judged {
    by_need(facts, &[Need::new("", &["pods"], &["create"])])
}

pub(super) fn escalation(facts: &Facts) -> Judged {
    const ROLES: &[&str] = &["roles", "clusterroles"];
    const WHO: &[&str] = &["users", "groups", "serviceaccounts", "uids"];
    by_need(
        facts,
        &[
            Need::new("rbac.authorization.k8s.io", ROLES, &["bind", "escalate"]),
            Need::new("", WHO, &["impersonate"]),
        ],
    )
}

pub(super) fn persistent_volumes(facts: &Facts) -> Judged {
    by_need(facts, &[Need::new("", &["persistentvolumes"], &["create"])])
}

pub(super) fn node_proxy(facts: &Facts) -> Judged {
    const VERBS: &[&str] = &["get", "create", "update", "patch", "delete"];
    by_need(facts, &[Need::new("", &["nodes/proxy"], VERBS)])
}

pub(super) fn approval(facts: &Facts) -> Judged {
    const RESOURCES: &[&str] = &["certificatesigningrequests/approval"];
    by_need(
        facts,
        &[Need::new(
            "certificates.k8s.io",
            RESOURCES,
            &["update", "patch"],
        )],
    )
}

pub(super) fn webhooks(facts: &Facts) -> Judged {
    const RESOURCES: &[&str] = &[
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
    ];
    const VERBS: &[&str] = &["create", "update", "patch", "delete"];
    by_need(
        facts,
        &[Need::new("admissionregistration.k8s.io", RESOURCES, VERBS)],
    )
}

pub(super) fn tokens(facts: &Facts) -> Judged {
    by_need(
        facts,
        &[Need::new("", &["serviceaccounts/token"], &["create"])],
    )
}

/// Roles that are not the cluster's own have no wildcards.
pub(super) fn wildcards(facts: &Facts) -> Judged {
    let roles = facts.roles.as_ref().map_err(Clone::clone)?.iter();
    let roles = roles.map(|role| (&role.metadata, &role.rules));
    let cluster = facts.cluster_roles.as_ref().map_err(Clone::clone)?.iter();
    let all = roles.chain(cluster.map(|role| (&role.metadata, &role.rules)));
    let (mut everything, mut some) = (Vec::new(), Vec::new());
    for (meta, rules) in all {
        let name = meta.name.as_deref().unwrap_or_default();
        let system = meta
            .namespace
            .as_deref()
            .is_some_and(|n| facts.is_system(n));
        // Roles that the API server brings; who holds them is judged by the other checks.
        let brought = meta
            .labels
            .iter()
            .flatten()
            .any(|(k, v)| k == "kubernetes.io/bootstrapping" && v == "rbac-defaults");
        if system || brought || name == "cluster-admin" || name.starts_with("system:") {
            continue;
        }
        let rules = rules.as_deref().unwrap_or_default();
        let star = |list: &Vec<String>| list.iter().any(|item| item == "*");
        let stars = |rule: &PolicyRule| {
            let lists = [&rule.api_groups, &rule.resources];
            star(&rule.verbs) || lists.into_iter().flatten().any(star)
        };
        if rules
            .iter()
            .any(|r| star(&r.verbs) && r.resources.as_ref().is_some_and(star))
        {
            everything.push(super::facts::named(meta));
        } else if rules.iter().any(stars) {
            some.push(super::facts::named(meta));
        }
    }
    Ok(Finding::graded(
        everything,
        "roles grant all verbs on all resources",
        some,
        "roles have wildcards",
        "no role but the cluster's own has wildcards",
    ))
}

/// The group that no role binds is for emergencies.
pub(super) fn masters(facts: &Facts) -> Judged {
    let mut bound = Vec::new();
    for grant in grants(facts)? {
        let masters = |s: &Subject| s.kind == "Group" && s.name == "system:masters";
        if grant.binding != "cluster-admin" && grant.subjects.iter().any(masters) {
            bound.push(grant.binding);
        }
    }
    let own = facts.tried.own_groups.as_ref();
    if own.is_ok_and(|groups| groups.iter().any(|g| g == "system:masters")) {
        bound.push("the credentials of this check".to_owned());
    }
    let why = "uses of system:masters, whose members no role can be taken from";
    Ok(Finding::graded(
        Vec::new(),
        "",
        bound,
        why,
        "no use of system:masters is seen",
    ))
}

/// Accounts of pods that are bound to any role, as `NAMESPACE/NAME`.
pub(super) fn bound_accounts(facts: &Facts) -> Seen<BTreeSet<String>> {
    let mut bound = BTreeSet::new();
    for grant in grants(facts)? {
        for subject in grant.subjects {
            if subject.kind == "ServiceAccount" {
                let namespace = subject.namespace.as_deref().unwrap_or_default();
                bound.insert(format!("{namespace}/{}", subject.name));
            }
        }
    }
    Ok(bound)
}
