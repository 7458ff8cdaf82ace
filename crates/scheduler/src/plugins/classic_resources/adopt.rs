//! Pods that were put on a node past the scheduler: their claims are allocated and reserved for that
//! node, where the original let such pods hang.

use std::sync::Arc;

use davit_allocator::NodeMatcher;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::ClassicResources;
use super::write::{self, PodRef};
use crate::node::NodeInfo;
use crate::plugins::Adoption;
use crate::pod::PodInfo;

impl ClassicResources {
    /// Has the claims of a pod allocated and reserved for the node it is on.
    pub(crate) fn adopt(&self, pod: &Arc<PodInfo>, node: &NodeInfo) -> Adoption {
        let Ok(claims) = self.claims_of(pod) else {
            return Adoption::Later;
        };
        let (Some(client), false) = (self.client.clone(), claims.is_empty()) else {
            return Adoption::Done;
        };
        let classic = self.devices.classic().clone();
        let scheduling = classic.scheduling(&pod.namespace, &pod.name, &pod.uid);
        let who = PodRef::of(pod);
        if claims.iter().all(|(_, c)| c.is_reserved_for(&pod.uid)) {
            return match scheduling {
                Some(_) => Adoption::Write(write::close(client, classic, who).boxed()),
                None => Adoption::Done,
            };
        }
        let view = node.view();
        let mut writes: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut pending = false;
        for (_, claim) in claims {
            let status = &claim.status;
            let Some(allocation) = &status.allocation else {
                pending |= claim.is_delayed();
                continue;
            };
            if status.deallocation_requested || claim.is_reserved_for(&pod.uid) {
                continue;
            }
            let nodes = allocation.available_on_nodes.as_ref();
            let fits = nodes.is_none_or(|n| NodeMatcher::new(n).is_ok_and(|n| n.matches(view)));
            let (client, classic) = (client.clone(), classic.clone());
            if fits && classic.is_free_for(&claim, &pod.uid) {
                let who = who.clone();
                writes.push(Box::pin(async move {
                    if let Err(error) = write::reserve(&client, &classic, &claim, &who).await {
                        tracing::info!(%error, "claim of a bound pod not reserved");
                    }
                }));
            } else if !fits && claim.is_delayed() && status.reserved_for.is_empty() {
                let uid = pod.uid.to_string();
                writes.push(write::deallocate(client, classic, claim, uid).boxed());
            }
        }
        let before = scheduling.map(|s| s.spec.clone()).unwrap_or_default();
        if pending && *before.selected_node != *node.name {
            let mut spec = before;
            spec.selected_node = node.name.to_string();
            spec.potential_nodes = vec![node.name.to_string()];
            writes.push(write::publish(client, classic, who, spec).boxed());
        }
        if writes.is_empty() {
            return Adoption::Later;
        }
        Adoption::Write(futures::future::join_all(writes).map(|_| ()).boxed())
    }
}
