//! Making room for a group as a whole (KEP-5710).

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use super::{CycleState, PostFilterContext};
use crate::cache::Snapshot;
use crate::pod::PodInfo;
use crate::victims::{Removable, Victim};

/// Called when a group cannot go; chooses who is removed for it. The group itself is tried by whoever calls.
pub(crate) trait GroupPostFilter: Send + Sync {
    /// Who may be removed for these pods of a group.
    ///
    /// # Errors
    /// Why nobody may.
    fn removable(
        &self,
        group: &PodGroup,
        members: &[Arc<PodInfo>],
        snapshot: &Snapshot,
    ) -> Result<Removable, String>;

    /// What to remove, of all that may be, so that some node takes this pod, which none took; `None`: nothing helps.
    fn room(
        &self,
        state: &CycleState,
        pod: &Arc<PodInfo>,
        context: &PostFilterContext<'_>,
        removable: &Removable,
    ) -> Option<Vec<Victim>>;

    /// The victims in the order in which they are to be spared, and how many of them break a budget: those that do, then the
    /// others, the most important first.
    fn by_importance(&self, victims: Vec<Victim>) -> (Vec<Victim>, usize);

    /// Removes the victims. Displaced pods lose the nominations by which they wait for the group's nodes.
    fn remove(
        &self,
        group: &PodGroup,
        scheduler: &str,
        victims: Vec<Victim>,
        displaced: Vec<Arc<PodInfo>>,
    ) -> BoxFuture<'static, ()>;
}
