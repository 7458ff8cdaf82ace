//! The ReplicaSets of a Deployment: the one of its template, and those of templates before.

use crate::pod_control::Owner;
use davit_api::names::short_hash;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// Label that tells the pods of one template from those of another.
pub(super) const HASH: &str = "pod-template-hash";
/// Annotations that kubectl and other controllers read.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// What kubectl apply keeps is not passed on.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The sets of one deployment.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// The set of the present template; several can exist after a collision, the oldest counts.
    pub(super) current: Option<ReplicaSet>,
    /// All others, oldest first.
    pub(super) old: Vec<ReplicaSet>,
}

impl Sets {
    pub(super) fn sort(template: &PodTemplateSpec, mut all: Vec<ReplicaSet>) -> Self {
        let age = |rs: &ReplicaSet| {
            (
                rs.metadata.creation_timestamp.clone(),
                rs.metadata.name.clone(),
            )
        };
        all.sort_by_key(age);
        let current = all
            .iter()
            .position(|rs| has_template(rs, template))
            .map(|at| all.remove(at));
        Self { current, old: all }
    }

    /// All sets, old ones first.
    pub(super) fn all(&self) -> impl Iterator<Item = &ReplicaSet> {
        self.old.iter().chain(&self.current)
    }
}

fn has_template(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let Some(mut theirs) = set.spec.as_ref().and_then(|s| s.template.clone()) else {
        return false;
    };
    if let Some(labels) = theirs.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
        labels.remove(HASH);
    }
    let normal = |template: &PodTemplateSpec| {
        let meta = template.metadata.clone().unwrap_or_default();
        (
            meta.labels.unwrap_or_default(),
            meta.annotations.unwrap_or_default(),
            template.spec.clone(),
        )
    };
    normal(&theirs) == normal(template)
}

/// `spec.replicas`. These numbers are wider than those of objects: several sets may want as many as one object can say.
pub(super) fn wanted(set: &ReplicaSet) -> i64 {
    set.spec
        .as_ref()
        .and_then(|s| s.replicas)
        .unwrap_or(1)
        .into()
}

/// `status.replicas`
pub(super) fn actual(set: &ReplicaSet) -> i64 {
    set.status.as_ref().map_or(0, |s| s.replicas).into()
}

/// `status.availableReplicas`
pub(super) fn available(set: &ReplicaSet) -> i64 {
    let status = set.status.as_ref();
    status
        .and_then(|s| s.available_replicas)
        .unwrap_or(0)
        .into()
}

/// A sum as objects can say it.
pub(super) fn narrow(sum: i64) -> i32 {
    i32::try_from(sum).unwrap_or(if sum < 0 { 0 } else { i32::MAX })
}

/// The revision a set was recorded as; 0 when it was not.
pub(super) fn revision(set: &ReplicaSet) -> i64 {
    set.metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(REVISION))
        .and_then(|r| r.parse().ok())
        .unwrap_or(0)
}

/// The revision after those of the sets. Users write them, too.
pub(super) fn next_revision(sets: &[ReplicaSet]) -> i64 {
    let newest = sets.iter().map(revision).max().unwrap_or(0);
    newest.saturating_add(1)
}

/// Whether a set has and wants no pods.
pub(super) fn is_idle(set: &ReplicaSet) -> bool {
    let observed =
        set.status.as_ref().and_then(|s| s.observed_generation) >= set.metadata.generation;
    wanted(set) == 0 && actual(set) == 0 && observed && set.metadata.deletion_timestamp.is_none()
}

/// The set for the deployment's present template.
pub(super) fn new_set(deployment: &Deployment, owner: &Owner, sets: &Sets) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment
        .status
        .as_ref()
        .and_then(|s| s.collision_count)
        .unwrap_or(0);
    let hash = template_hash(&spec.template, collisions);
    let mut template = spec.template.clone();
    let labels = template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    labels.insert(HASH.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    selector
        .match_labels
        .get_or_insert_default()
        .insert(HASH.to_owned(), hash.clone());
    let mut annotations: BTreeMap<String, String> =
        deployment.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| key != LAST_APPLIED && key != REVISION);
    let desired = spec.replicas.unwrap_or(1);
    let revision = next_revision(&sets.old);
    annotations.insert(REVISION.to_owned(), revision.to_string());
    annotations.insert(DESIRED.to_owned(), desired.to_string());
    annotations.insert(
        MAX.to_owned(),
        (i64::from(desired) + super::rollout::max_surge(Some(&spec))).to_string(),
    );
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", owner.reference.name)),
            namespace: Some(owner.namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner.reference.clone()]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(super::rollout::first_size(&spec, sets)),
            selector,
            template: Some(template),
            min_ready_seconds: spec.min_ready_seconds,
        }),
        status: None,
    }
}

/// A short name for a template. Other than upstream's for the same template: nothing may rely on it but that equal
/// templates hash alike.
pub(crate) fn template_hash(template: &PodTemplateSpec, collisions: i32) -> String {
    let text = serde_json::to_string(template).unwrap_or_default();
    short_hash(text.bytes().chain(collisions.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        let mut template = PodTemplateSpec::default();
        let spec = template.spec.get_or_insert_default();
        spec.containers.push(k8s_openapi::api::core::v1::Container {
            name: "c".into(),
            image: Some(image.into()),
            ..Default::default()
        });
        template
    }

    #[test]
    fn the_set_of_the_present_template_is_found_whatever_its_hash_label() {
        let set = |image: &str, name: &str| {
            let mut set = ReplicaSet::default();
            set.metadata.name = Some(name.to_owned());
            let mut with_hash = template(image);
            let labels = with_hash
                .metadata
                .get_or_insert_default()
                .labels
                .get_or_insert_default();
            labels.insert(HASH.to_owned(), "x".to_owned());
            set.spec.get_or_insert_default().template = Some(with_hash);
            set
        };
        let sets = Sets::sort(&template("new"), vec![set("old", "a"), set("new", "b")]);
        assert_eq!(
            sets.current.and_then(|rs| rs.metadata.name).as_deref(),
            Some("b")
        );
        assert_eq!(sets.old.len(), 1);
    }

    #[test]
    fn the_last_revision_stays_the_last() {
        let recorded = |revision: &str| {
            let mut set = ReplicaSet::default();
            let annotations = set.metadata.annotations.get_or_insert_default();
            annotations.insert(REVISION.to_owned(), revision.to_owned());
            set
        };
        assert_eq!(next_revision(&[recorded("3"), recorded("none")]), 4);
        let last = i64::MAX.to_string();
        assert_eq!(next_revision(&[recorded(&last)]), i64::MAX);
    }

    #[test]
    fn hash_depends_on_template_and_collisions() {
        assert_eq!(
            template_hash(&template("a"), 0),
            template_hash(&template("a"), 0)
        );
        assert_ne!(
            template_hash(&template("a"), 0),
            template_hash(&template("b"), 0)
        );
        assert_ne!(
            template_hash(&template("a"), 0),
            template_hash(&template("a"), 1)
        );
    }
}
