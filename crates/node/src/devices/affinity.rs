//! The hint a container's devices are to honour.

use std::collections::BTreeMap;

use davit_topology::devices::{DeviceMap, DeviceSet, HintInput, ReuseTable, device_hints};
use davit_topology::{NumaMask, PolicyKind, ProviderHints};

use super::manager::Manager;
use super::requests::Request;
use crate::containermanager::Rejection;

impl Manager {
    /// Merges the hints for everything the container asks for; `None` means no preference.
    ///
    /// # Errors
    /// The policy refuses the best placement there is.
    pub(super) fn affinity(
        &self,
        uid: &str,
        request: &Request,
        reuse: &ReuseTable,
    ) -> Result<Option<NumaMask>, Rejection> {
        let policy = self.config.topology_policy;
        let Some(machine) = self
            .config
            .machine
            .as_ref()
            .filter(|_| policy.kind != PolicyKind::None)
        else {
            return Ok(None);
        };
        let mut hints: ProviderHints = BTreeMap::new();
        for (resource, &count) in &request.resources {
            let Some(list) = self.list_of(resource) else {
                continue;
            };
            let devices: DeviceMap = list.iter().map(|(id, d)| (id.clone(), d.numa)).collect();
            let free: DeviceSet = self.free(resource).into_keys().collect();
            let held: Option<DeviceSet> = self.ledger.read(|t| {
                let held = t.held(uid, &request.container, resource)?;
                Some(held.devices.keys().cloned().collect())
            });
            let input = HintInput {
                machine,
                devices: &devices,
                available: &free,
                reusable: &reuse.reusable(resource),
                held: held.as_ref(),
                request: count,
            };
            hints.insert(resource.clone(), device_hints(input));
        }
        let merged = policy.merge(machine, &[hints]);
        if !merged.admit {
            return Err(Rejection {
                reason: "TopologyAffinityError".to_owned(),
                message: "Resources cannot be allocated with Topology locality".to_owned(),
                container: Some(request.container.clone()),
                resource: None,
            });
        }
        Ok(merged.hint.mask)
    }
}
