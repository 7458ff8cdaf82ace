//! Groups whose pods belong into one domain of a topology (KEP-5732): a rack, a zone.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use crate::framework::{
    Action, ClusterEvent, EventResource, GroupToPlace, Placement, PlacementGenerate, Plugin,
    Points, Status,
};

const NAME: &str = "TopologyPlacementGenerator";

/// The plugin `TopologyPlacementGenerator`: a placement for each domain of the topology that a group asks for.
#[derive(Debug)]
pub struct TopologyPlacement;

impl Plugin for TopologyPlacement {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.placement_generate.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let changed = Action::ADD | Action::UPDATE_LABEL;
        vec![
            ClusterEvent::new(EventResource::Node, changed),
            // those that hold the group where it is
            ClusterEvent::new(EventResource::AssignedPod, Action::DELETE),
        ]
    }
}

/// The label whose value has to be the same for all nodes of the group. The API allows for one.
fn topology_key(group: &PodGroup) -> Option<&str> {
    let constraints = group.spec.scheduling_constraints.as_ref()?;
    let first = constraints.topology.as_ref()?.first()?;
    Some(&first.key)
}

/// The domain in which pods of the group are.
fn occupied_domain<'a>(group: GroupToPlace<'a>, key: &str) -> Result<Option<&'a str>, Status> {
    let mut known: Option<&str> = None;
    for name in group.occupied {
        let at = group.snapshot.position(name);
        let node = at.map(|at| group.snapshot.node(at));
        let domain = node.and_then(|node| node.labels().get(key));
        let Some(domain) = domain else {
            return Err(Status::error(format!(
                "cannot determine domain for already scheduled pods: no topology domain found for node {name}"
            )));
        };
        if let Some(known) = known.filter(|known| known != domain) {
            return Err(Status::error(format!(
                "cannot determine domain for already scheduled pods: more than 1 domain found for pod group: {known}, {domain}"
            )));
        }
        known = Some(domain);
    }
    Ok(known)
}

impl PlacementGenerate for TopologyPlacement {
    fn placements(&self, group: GroupToPlace<'_>) -> Result<Option<Vec<Placement>>, Status> {
        let Some(key) = topology_key(group.group) else {
            return Ok(None);
        };
        let required = occupied_domain(group, key)?;
        let mut domains: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, node) in group.snapshot.nodes().iter().enumerate() {
            let domain = node.labels().get(key).map(String::as_str);
            let is_meant = |domain: &&str| required.is_none_or(|required| required == *domain);
            if let Some(domain) = domain.filter(is_meant) {
                domains.entry(domain).or_default().push(at);
            }
        }
        if domains.is_empty() {
            return Err(Status::unresolvable("no feasible placements found"));
        }
        let placements = domains.into_iter().map(|(domain, nodes)| Placement {
            name: domain.to_owned(),
            nodes,
            plugin: NAME,
        });
        Ok(Some(placements.collect()))
    }
}
