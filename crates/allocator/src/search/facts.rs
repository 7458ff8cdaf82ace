//! What speaks against a device for a request, looked at alone.

use super::{DeviceIndex, Search};
use crate::capacity::Shortfall;
use crate::plan::Need;
use crate::refusal::Cause;

impl Search<'_> {
    /// The first thing that rules the device out for the need, in the order of the search;
    /// constraints between devices left out.
    pub(crate) fn cause(&self, claim: usize, need: &Need, place: usize) -> Option<Cause> {
        let (slice, device) = self.device(place);
        let DeviceIndex { pool, .. } = self.places[place];
        if self.in_use(claim, need, place) {
            return Some(Cause::InUse);
        }
        if !self.allocator.features.binding_conditions && !device.binding_conditions.is_empty() {
            return Some(Cause::FeatureOff {
                feature: "DRADeviceBindingConditions".to_owned(),
            });
        }
        let driver = self.driver(place);
        let class = need
            .class_selectors
            .iter()
            .map(|s| (Some(need.class_name()), s));
        let own = need.selectors.iter().map(|s| (None, s));
        for (class, selector) in class.chain(own) {
            let selectors = &self.allocator.selectors;
            let error = match selector.fault() {
                Some(fault) => Some(fault.to_string()),
                None => match selectors.matches(selector, driver, device, self.call.stop) {
                    Some(Ok(true)) => continue,
                    Some(Ok(false)) => None,
                    Some(Err(fault)) => Some(fault.to_string()),
                    None => Some("not evaluated: no time was left".to_owned()),
                },
            };
            return Some(Cause::Selector {
                class: class.map(str::to_owned),
                expression: crate::excerpt::shown(&selector.expression),
                error,
                seen: crate::refusal::seen(&selector.expression, device.view(driver)),
            });
        }
        if slice.per_device && !device.reach.matches(self.call.node).unwrap_or(false) {
            return Some(Cause::OtherNode);
        }
        match self.capacity(need, place) {
            Ok(()) => {}
            Err(Shortfall::Missing { name }) => return Some(Cause::NoCapacity { capacity: name }),
            Err(Shortfall::Policy { name, amount }) => {
                return Some(Cause::CapacityPolicy {
                    capacity: name,
                    amount: amount.to_string(),
                });
            }
            Err(Shortfall::Short { name, amount, left }) => {
                return Some(Cause::Capacity {
                    capacity: name,
                    requested: amount.to_string(),
                    left: left.to_string(),
                });
            }
        }
        if !self.allocator.features.partitionable_devices && !device.consumes.is_empty() {
            return Some(Cause::FeatureOff {
                feature: "DRAPartitionableDevices".to_owned(),
            });
        }
        if self.takes_counters(place)
            && let Some((set, counter, amount, left)) = self.short_counter(place)
        {
            return Some(Cause::Counter {
                pool: self.pools[pool].id.to_string(),
                set: set.to_owned(),
                counter: counter.to_owned(),
                requested: amount.to_string(),
                left: left.to_string(),
            });
        }
        self.untolerated(need, device).map(|taint| Cause::Taint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.as_str().to_owned(),
        })
    }
}
