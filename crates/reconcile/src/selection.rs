//! Which controllers run: their names, as kube-controller-manager has them.
//!
//! Source: kube-controller-manager's reference, `--controllers`.

use std::fmt;
use std::str::FromStr;

/// A controller that can be chosen by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedController {
    pub(crate) name: &'static str,
    /// Its service account in `kube-system`; what only davit has acts as all controllers together.
    pub(crate) account: Option<&'static str>,
}

/// All that run here: name, alias, account. `cluster-dns-controller`, `local-volume-controller`, `network-controller` and
/// `service-ip-repair-controller` are davit's own.
#[rustfmt::skip]
const CONTROLLERS: [(&str, &str, &str); 54] = [
    ("bootstrap-signer-controller", "bootstrapsigner", "bootstrap-signer"),
    ("certificatesigningrequest-approving-controller", "csrapproving", "certificate-controller"),
    ("certificatesigningrequest-cleaner-controller", "csrcleaner", "certificate-controller"),
    ("certificatesigningrequest-signing-controller", "csrsigning", "certificate-controller"),
    ("cluster-dns-controller", "", ""),
    ("clusterrole-aggregation-controller", "clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob-controller", "cronjob", "cronjob-controller"),
    ("daemonset-controller", "daemonset", "daemon-set-controller"),
    ("deployment-controller", "deployment", "deployment-controller"),
    ("device-taint-eviction-controller", "", "device-taint-eviction-controller"),
    ("disruption-controller", "disruption", "disruption-controller"),
    ("endpoints-controller", "endpoint", "endpoint-controller"),
    ("endpointslice-controller", "endpointslice", "endpointslice-controller"),
    ("endpointslice-mirroring-controller", "endpointslicemirroring", "endpointslicemirroring-controller"),
    ("ephemeral-volume-controller", "ephemeral-volume", "ephemeral-volume-controller"),
    ("garbage-collector-controller", "garbagecollector", "generic-garbage-collector"),
    ("horizontal-pod-autoscaler-controller", "horizontalpodautoscaling", "horizontal-pod-autoscaler"),
    ("job-controller", "job", "job-controller"),
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", "", "kube-apiserver-serving-clustertrustbundle-publisher"),
    ("legacy-serviceaccount-token-cleaner-controller", "legacy-service-account-token-cleaner", "legacy-service-account-token-cleaner"),
    ("local-volume-controller", "", ""),
    ("namespace-controller", "namespace", "namespace-controller"),
    ("network-controller", "", ""),
    ("node-ipam-controller", "nodeipam", "node-controller"),
    ("node-lifecycle-controller", "nodelifecycle", "node-controller"),
    ("node-route-controller", "route", ""),
    ("persistentvolume-attach-detach-controller", "attachdetach", "attachdetach-controller"),
    ("persistentvolume-binder-controller", "persistentvolume-binder", "persistent-volume-binder"),
    ("persistentvolume-expander-controller", "persistentvolume-expander", "expand-controller"),
    ("persistentvolume-protection-controller", "pv-protection", "pv-protection-controller"),
    ("persistentvolumeclaim-protection-controller", "pvc-protection", "pvc-protection-controller"),
    ("pod-garbage-collector-controller", "podgc", "pod-garbage-collector"),
    ("podcertificaterequest-cleaner-controller", "", "podcertificaterequestcleaner"),
    ("podgroup-protection-controller", "", "podgroup-protection-controller"),
    ("replicaset-controller", "replicaset", "replicaset-controller"),
    ("replicationcontroller-controller", "replicationcontroller", "replication-controller"),
    ("resourceclaim-controller", "resource-claim-controller", "resource-claim-controller"),
    ("resourcepoolstatusrequest-controller", "", "resourcepoolstatusrequest-controller"),
    ("resourcequota-controller", "resourcequota", "resourcequota-controller"),
    ("root-ca-certificate-publisher-controller", "root-ca-cert-publisher", "root-ca-cert-publisher"),
    ("service-cidr-controller", "", "service-cidrs-controller"),
    ("service-ip-repair-controller", "", ""),
    ("service-lb-controller", "service", "service-controller"),
    ("serviceaccount-controller", "serviceaccount", "service-account-controller"),
    ("serviceaccount-token-controller", "serviceaccount-token", ""),
    ("statefulset-controller", "statefulset", "statefulset-controller"),
    ("storage-version-migrator-controller", "svm", "storage-version-migrator-controller"),
    ("storageversion-garbage-collector-controller", "storage-version-gc", "storage-version-garbage-collector"),
    ("taint-eviction-controller", "", "node-controller"),
    ("token-cleaner-controller", "tokencleaner", "token-cleaner"),
    ("ttl-after-finished-controller", "ttl-after-finished", "ttl-after-finished-controller"),
    ("ttl-controller", "ttl", "ttl-controller"),
    ("validatingadmissionpolicy-status-controller", "", "validatingadmissionpolicy-status-controller"),
    ("volumeattributesclass-protection-controller", "", "volumeattributesclass-protection-controller"),
];

/// Those of kube-controller-manager that do not exist here: they can be left out, not asked for.
const ABSENT: [(&str, &str); 2] = [
    ("cloud-node-lifecycle-controller", "cloud-node-lifecycle"),
    ("selinux-warning-controller", ""),
];

/// The controller of a name, of today or as it was before 1.28.
pub(crate) fn controller_named(name: &str) -> Option<NamedController> {
    let is_it = |word: &str| !name.is_empty() && word == name;
    let mut all = CONTROLLERS.iter();
    let found = all.find(|(today, alias, _)| is_it(today) || is_it(alias));
    let (name, _, account) = found?;
    Some(NamedController {
        name,
        account: Some(*account).filter(|account| !account.is_empty()),
    })
}

/// The names of all controllers that run here.
pub fn controller_names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|(name, _, _)| *name)
}

/// Which controllers run, as `--controllers` says it: `*` for all, `NAME` for one, `-NAME` for all but one; of two words about
/// one controller the first counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSelection {
    /// What was said, with today's names.
    words: Vec<Word>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    All,
    With(&'static str),
    Without(&'static str),
}

/// Why a list of controllers is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// Nobody has heard of it.
    #[error("{0:?} is not in the list of known controllers ({all})", all = controller_names().collect::<Vec<_>>().join(", "))]
    Unknown(String),
    /// Kubernetes has it, davit does not.
    #[error("controller {0} is not built, so that it can be left out only (-{0})")]
    Absent(&'static str),
}

impl Default for ControllerSelection {
    fn default() -> Self {
        Self {
            words: vec![Word::All],
        }
    }
}

impl ControllerSelection {
    /// Whether a controller runs, by its name of today.
    pub fn has(&self, name: &str) -> bool {
        let said = self.words.iter().find_map(|word| match word {
            Word::With(with) if *with == name => Some(true),
            Word::Without(without) if *without == name => Some(false),
            _ => None,
        });
        said.unwrap_or_else(|| self.words.contains(&Word::All))
    }
}

impl FromStr for ControllerSelection {
    type Err = SelectionError;

    fn from_str(list: &str) -> Result<Self, SelectionError> {
        let words = list.split(',').map(str::trim);
        let words = words.filter(|word| !word.is_empty()).map(Word::parse);
        let words: Vec<Option<Word>> = words.collect::<Result<_, _>>()?;
        Ok(Self {
            words: words.into_iter().flatten().collect(),
        })
    }
}

impl Word {
    /// None where there is nothing to leave out.
    fn parse(word: &str) -> Result<Option<Self>, SelectionError> {
        if word == "*" {
            return Ok(Some(Self::All));
        }
        let without = word.strip_prefix('-');
        let name = without.unwrap_or(word);
        if let Some(known) = controller_named(name) {
            return Ok(Some(match without {
                Some(_) => Self::Without(known.name),
                None => Self::With(known.name),
            }));
        }
        let mut absent = ABSENT.iter();
        let absent =
            absent.find(|(today, alias)| *today == name || (*alias == name && !name.is_empty()));
        match (absent, without) {
            (Some(_), Some(_)) => Ok(None),
            (Some((today, _)), None) => Err(SelectionError::Absent(today)),
            (None, _) => Err(SelectionError::Unknown(name.to_owned())),
        }
    }
}

/// As `--controllers` has it.
impl fmt::Display for ControllerSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.words.iter().map(|word| match word {
            Word::All => "*".to_owned(),
            Word::With(name) => (*name).to_owned(),
            Word::Without(name) => format!("-{name}"),
        });
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(list: &str) -> ControllerSelection {
        list.parse().unwrap()
    }

    #[test]
    fn all_run_but_those_that_are_left_out() {
        let all = ControllerSelection::default();
        assert!(controller_names().all(|name| all.has(name)));
        let chosen = selection("*,-nodelifecycle,-ttl-controller");
        assert!(!chosen.has("node-lifecycle-controller") && !chosen.has("ttl-controller"));
        assert!(chosen.has("job-controller"));
        assert_eq!(
            chosen.to_string(),
            "*,-node-lifecycle-controller,-ttl-controller"
        );
    }

    #[test]
    fn without_a_star_those_run_that_are_named() {
        let chosen = selection("garbagecollector, resourceclaim-controller");
        let running: Vec<&str> = controller_names().filter(|name| chosen.has(name)).collect();
        assert_eq!(
            running,
            ["garbage-collector-controller", "resourceclaim-controller"]
        );
    }

    #[test]
    fn the_first_word_about_a_controller_counts() {
        assert!(selection("job,-job").has("job-controller"));
        assert!(!selection("-job-controller,job,*").has("job-controller"));
    }

    #[test]
    fn kubeadms_list_is_understood() {
        assert!(selection("*,bootstrapsigner,tokencleaner").has("token-cleaner-controller"));
    }

    #[test]
    fn names_that_nobody_has_are_refused() {
        let error = "*,-nodelifecyle"
            .parse::<ControllerSelection>()
            .unwrap_err();
        assert_eq!(error, SelectionError::Unknown("nodelifecyle".to_owned()));
        assert!("*,-".parse::<ControllerSelection>().is_err());
        let error = "selinux-warning-controller".parse::<ControllerSelection>();
        assert_eq!(
            error,
            Err(SelectionError::Absent("selinux-warning-controller"))
        );
        assert_eq!(
            selection("*,-cloud-node-lifecycle"),
            ControllerSelection::default()
        );
    }

    #[test]
    fn each_name_is_one_controllers() {
        for (name, alias, _) in CONTROLLERS {
            let known = controller_named(name).map(|known| known.name);
            assert_eq!(known, Some(name));
            let same = controller_named(alias).map(|known| known.name);
            assert!(alias.is_empty() || same == Some(name), "{alias}");
        }
    }
}
