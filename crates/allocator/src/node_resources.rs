//! What allocated devices take of the resources of their node: CPUs, memory, huge pages (KEP-5517).

use std::collections::BTreeMap;

use davit_api::quantity::Quantity;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult};

use crate::device::NodeResourceMapping;
use crate::inventory::Inventory;

/// Why it is not known how much an allocation takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeResourcesError {
    /// The amount follows from a capacity, and the allocation does not say how much of that is consumed.
    #[error(
        "device {device}: how much {resource} of the node it takes follows from capacity {capacity}, and of that the \
         allocation says nothing: only devices with allowMultipleAllocations do"
    )]
    NotConsumed {
        /// Driver, pool and name.
        device: String,
        /// The resource of the node.
        resource: String,
        /// The capacity.
        capacity: String,
    },
    /// More than can be computed.
    #[error("device {device}: the {resource} of the node that it takes is too large a number")]
    TooLarge {
        /// Driver, pool and name.
        device: String,
        /// The resource of the node.
        resource: String,
    },
}

impl Inventory {
    /// How much of the resources of its node an allocation takes, by resource; nothing for devices that take none, or that
    /// nobody publishes any more.
    ///
    /// # Errors
    /// When it cannot be told.
    pub fn node_resources(
        &self,
        allocation: &AllocationResult,
    ) -> Result<BTreeMap<String, Quantity>, NodeResourcesError> {
        let mut sums = BTreeMap::new();
        let devices = allocation.devices.iter().flat_map(|d| &d.results);
        for result in devices.flatten() {
            let device = self.device(&result.driver, &result.pool, &result.device);
            let Some(mappings) = device.and_then(|d| d.node_resources.as_ref()) else {
                continue;
            };
            for (resource, mapping) in mappings.iter() {
                if let Some(amount) = amount(resource, mapping, result)? {
                    let sum: &mut Quantity = sums.entry(resource.to_string()).or_default();
                    let more = sum.checked_add(amount);
                    *sum = more.ok_or_else(|| too_large(resource, result))?;
                }
            }
        }
        Ok(sums)
    }
}

/// What one device takes of a resource; none where the mapping does not concern the allocation.
fn amount(
    resource: &str,
    mapping: &NodeResourceMapping,
    result: &DeviceRequestAllocationResult,
) -> Result<Option<Quantity>, NodeResourcesError> {
    let Some(key) = &mapping.capacity else {
        return Ok(Some(mapping.multiplier));
    };
    let Some(consumed) = &result.consumed_capacity else {
        return Err(NodeResourcesError::NotConsumed {
            device: label(result),
            resource: resource.to_owned(),
            capacity: key.to_string(),
        });
    };
    let consumed = consumed.get(&**key);
    let Some(consumed) = consumed.and_then(|q| Quantity::parse(&q.0).ok()) else {
        return Ok(None);
    };
    let amount = consumed.checked_mul(mapping.multiplier);
    amount.ok_or_else(|| too_large(resource, result)).map(Some)
}

fn too_large(resource: &str, result: &DeviceRequestAllocationResult) -> NodeResourcesError {
    NodeResourcesError::TooLarge {
        device: label(result),
        resource: resource.to_owned(),
    }
}

fn label(result: &DeviceRequestAllocationResult) -> String {
    format!("{}/{}/{}", result.driver, result.pool, result.device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Slice;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn inventory(devices: &Value) -> Inventory {
        let slice = json!({"metadata": {"name": "s"}, "spec": {
            "driver": "cpu.example.com", "nodeName": "n", "devices": devices,
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}}});
        let slice = Slice::new(&serde_json::from_value(slice).unwrap(), &[]).unwrap();
        let mut inventory = Inventory::default();
        inventory.set(Arc::new(slice));
        inventory
    }

    fn taken(inventory: &Inventory, results: &[(&str, Value)]) -> Result<Value, String> {
        let results: Vec<Value> = results
            .iter()
            .map(|(device, consumed)| {
                let mut result = json!({"request": "r", "driver": "cpu.example.com", "pool": "n", "device": device});
                if consumed.is_object() {
                    result["consumedCapacity"] = consumed.clone();
                }
                result
            })
            .collect();
        let allocation = json!({"devices": {"results": results}});
        let taken = inventory.node_resources(&serde_json::from_value(allocation).unwrap());
        taken.map_err(|e| e.to_string()).map(|sums| {
            let sums = sums.into_iter().map(|(k, q)| (k, json!(q.to_string())));
            Value::Object(sums.collect())
        })
    }

    #[test]
    fn devices_add_up_by_number_and_by_what_is_consumed() {
        let inventory = inventory(&json!([
            {"name": "core", "nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "2"}}},
            {"name": "core-2", "nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "2"}}},
            {"name": "socket", "allowMultipleAllocations": true,
             "capacity": {"cores": {"value": "64"}, "bytes": {"value": "1Ti"}},
             "nodeAllocatableResourceMappings": {
                "cpu": {"capacityKey": "cores", "allocationMultiplier": "1500m"},
                "memory": {"capacityKey": "bytes"},
                "hugepages-2Mi": {"allocationMultiplier": "4Mi"}}},
            {"name": "plain"},
        ]));
        assert!(inventory.maps_node_resources());
        let none = Value::Null;
        assert_eq!(
            taken(
                &inventory,
                &[
                    ("core", none.clone()),
                    ("core-2", none.clone()),
                    ("plain", none.clone())
                ]
            ),
            Ok(json!({"cpu": "4"}))
        );
        assert_eq!(
            taken(
                &inventory,
                &[
                    ("socket", json!({"cores": "3", "bytes": "2Gi"})),
                    ("core", none.clone())
                ]
            ),
            Ok(json!({"cpu": "6500m", "memory": "2Gi", "hugepages-2Mi": "4Mi"}))
        );
        // what is not consumed does not count, and what nobody publishes is not known
        assert_eq!(
            taken(
                &inventory,
                &[("socket", json!({"cores": "1"})), ("gone", none.clone())]
            ),
            Ok(json!({"cpu": "1500m", "hugepages-2Mi": "4Mi"}))
        );
        let unknown = taken(&inventory, &[("socket", none.clone())]).unwrap_err();
        assert!(
            unknown.contains("cpu.example.com/n/socket: how much cpu"),
            "{unknown}"
        );
    }

    #[test]
    fn amounts_that_cannot_be_computed_are_refused() {
        let most = "170141183460469231731687303715884105727";
        let inventory = inventory(&json!([
            {"name": "a", "nodeAllocatableResourceMappings": {"memory": {"allocationMultiplier": most}}},
            {"name": "b", "allowMultipleAllocations": true, "capacity": {"x": {"value": most}},
             "nodeAllocatableResourceMappings": {"memory": {"capacityKey": "x", "allocationMultiplier": "3"}}},
        ]));
        for devices in [
            [("a", Value::Null), ("a", Value::Null)].as_slice(),
            &[("b", json!({"x": most}))],
        ] {
            let error = taken(&inventory, devices).unwrap_err();
            assert!(error.contains("too large"), "{error}");
        }
    }

    #[test]
    fn an_inventory_knows_whether_anything_is_mapped() {
        let mut inventory = inventory(&json!([{"name": "plain"}]));
        assert!(!inventory.maps_node_resources());
        assert!(inventory.device("cpu.example.com", "n", "plain").is_some());
        assert!(inventory.device("cpu.example.com", "m", "plain").is_none());
        inventory.remove("s");
        assert!(inventory.device("cpu.example.com", "n", "plain").is_none());
    }
}
