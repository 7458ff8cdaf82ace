//! Who gets room first when several resizes wait for it.

use davit_pods::pod::PodExt;
use davit_pods::resources::{Amounts, Qos};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::cmp::Reverse;

/// A place in the order of KEP-1287: resizes that ask for no more than the pod has; then by priority, the highest first;
/// Guaranteed pods before others; then those that wait longest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Precedence {
    grows: bool,
    priority: Reverse<i32>,
    is_not_guaranteed: bool,
    since: Timestamp,
    uid: String,
}

impl Precedence {
    /// The place of a pod that has `now`, wants `size`, and began to wait at `since`.
    pub(crate) fn of(wanted: &Pod, now: &Amounts, size: &Amounts, since: Timestamp) -> Self {
        let get = |list: &Amounts, name: &str| list.get(name).copied().unwrap_or(0);
        let grows = super::NAMES.iter().any(|n| get(size, n) > get(now, n));
        Self {
            grows,
            priority: Reverse(wanted.pod_spec().priority.unwrap_or(0)),
            is_not_guaranteed: Qos::of(wanted) != Qos::Guaranteed,
            since,
            uid: wanted.uid().to_owned(),
        }
    }
}
