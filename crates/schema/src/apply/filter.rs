//! Fields that a request cannot change, because the strategy of the kind resets them, and which it
//! therefore does not come to own.

use super::path::PathElement;
use super::set::Set;

/// Which fields of a request count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Filter {
    /// All fields.
    #[default]
    All,
    /// All but these and what is below them.
    Except(Set),
    /// Only what is below these paths, and the way to it; none stands for any step.
    Only(Vec<Vec<Option<&'static str>>>),
}

impl Filter {
    /// The filter of a built-in or custom resource and a subresource (empty for the main one).
    ///
    /// `has_status` tells whether the resource has the subresource `status`.
    pub fn of(group: &str, plural: &str, subresource: &str, has_status: bool) -> Self {
        let except = |paths: &[&[&'static str]]| {
            Filter::Except(Set::of_fields(paths.iter().map(|p| p.iter().copied())))
        };
        const SPEC: &[&str] = &["spec"];
        const STATUS: &[&str] = &["status"];
        const METADATA: &[&str] = &["metadata"];
        match (group, plural, subresource) {
            ("", "pods", "status") => except(&[
                SPEC,
                &["metadata", "deletionTimestamp"],
                &["metadata", "ownerReferences"],
            ]),
            ("", "pods", "ephemeralcontainers") => {
                Filter::Only(vec![vec![Some("spec"), Some("ephemeralContainers")]])
            }
            ("", "pods", "resize") => {
                let path = |list, field| vec![Some("spec"), Some(list), None, Some(field)];
                Filter::Only(vec![
                    path("containers", "resources"),
                    path("containers", "resizePolicy"),
                    path("initContainers", "resources"),
                    path("initContainers", "resizePolicy"),
                ])
            }
            ("", "namespaces", "finalize") => except(&[STATUS]),
            ("certificates.k8s.io", "certificatesigningrequests", "") => except(&[SPEC, STATUS]),
            ("certificates.k8s.io", "certificatesigningrequests", "status") => {
                except(&[SPEC, &["status", "conditions"]])
            }
            ("certificates.k8s.io", "certificatesigningrequests", "approval") => {
                except(&[SPEC, &["status", "certificate"]])
            }
            ("apps", "deployments", "status") => except(&[SPEC, &["metadata", "labels"]]),
            ("storage.k8s.io", "volumeattachments", "status")
            | ("apiextensions.k8s.io", "customresourcedefinitions", "status")
            | ("apiregistration.k8s.io", "apiservices", "status")
            | ("flowcontrol.apiserver.k8s.io", _, "status")
            | ("admissionregistration.k8s.io", _, "status") => except(&[METADATA, SPEC]),
            // The status of a new group is dropped, and who gave it is its owner all the same.
            ("scheduling.k8s.io", "podgroups", "") => Filter::All,
            ("scheduling.k8s.io", "podgroups", "status") => except(&[METADATA, SPEC]),
            (_, _, "status") => except(&[SPEC]),
            (_, _, "") if has_status => except(&[STATUS]),
            _ => Filter::All,
        }
    }

    /// The fields of a set that count.
    pub(super) fn filter(&self, mut set: Set) -> Set {
        match self {
            Filter::All => set,
            Filter::Except(fields) => {
                set.take_below(fields);
                set
            }
            Filter::Only(paths) => {
                let paths: Vec<&[Option<&str>]> = paths.iter().map(Vec::as_slice).collect();
                only(&set, &paths)
            }
        }
    }
}

fn only(set: &Set, paths: &[&[Option<&str>]]) -> Set {
    if paths.iter().any(|path| path.is_empty()) {
        return set.clone();
    }
    let below = |step: &PathElement| -> Vec<&[Option<&str>]> {
        let fits = |head: &Option<&str>| match (head, step) {
            (None, _) => true,
            (Some(name), PathElement::Field(field)) => name == field,
            _ => false,
        };
        paths
            .iter()
            .filter_map(|path| {
                let (head, rest) = path.split_first()?;
                fits(head).then_some(rest)
            })
            .collect()
    };
    let children = set.children.iter().filter_map(|(step, child)| {
        let paths = below(step);
        if paths.is_empty() {
            return None;
        }
        let kept = only(child, &paths);
        (!kept.is_empty()).then(|| (step.clone(), kept))
    });
    Set {
        members: set
            .members
            .iter()
            .filter(|step| !below(step).is_empty())
            .cloned()
            .collect(),
        children: children.collect(),
    }
}
