//! Pods that were put on a node past the scheduler: their claims are allocated and reserved there.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::extended::Wanted;
use super::{Data, DynamicResources};
use crate::framework::{CycleState, Filter, PreBind, Reserve};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// What can be done for a pod.
pub(crate) enum Adoption {
    /// It has all its claims.
    Done,
    /// Nothing now; a change may help.
    Later,
    /// This, which is to be run to its end.
    Write(BoxFuture<'static, ()>),
}

impl DynamicResources {
    /// Allocates and reserves the claims of a pod for the node it is on.
    pub(crate) fn adopt(self: &Arc<Self>, pod: &Arc<PodInfo>, node: &NodeInfo) -> Adoption {
        let mut cycle = match self.cycle(pod, None) {
            Ok(Some(cycle)) => cycle,
            Ok(None) => return Adoption::Done,
            Err(_) => return Adoption::Later,
        };
        // What the node itself admitted is not to be had a second time.
        cycle.wanted = Wanted::default();
        if (0..cycle.claims.len()).all(|at| cycle.is_reserved(at)) {
            return Adoption::Done;
        }
        let mut state = CycleState::new();
        state.put(Data {
            cycle: Arc::new(cycle),
            gone: BTreeMap::new(),
        });
        if !self.filter(&state, pod, node).is_success() {
            return Adoption::Later;
        }
        if !self.reserve(&mut state, pod, &node.name).is_success() {
            self.unreserve(&mut state, pod, &node.name);
            return Adoption::Later;
        }
        let (plugin, pod, node) = (self.clone(), pod.clone(), node.name.clone());
        let write = async move {
            let status = plugin.pre_bind(&state, &pod, &node).await;
            if !status.is_success() {
                tracing::info!(
                    pod = pod.key(),
                    why = status.message(),
                    "claims not reserved"
                );
                plugin.unreserve(&mut state, &pod, &node);
                for effect in state.take_undoing() {
                    effect.await;
                }
            }
        };
        Adoption::Write(write.boxed())
    }
}
