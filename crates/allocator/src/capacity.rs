//! Consumable capacity (KEP-5075): amounts that are taken from shareable devices.

use std::collections::BTreeMap;

use davit_api::quantity::{Format, Quantity};

use crate::device::{Capacity, CapacityPolicy, Device};

/// Amounts by name of the capacity.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// Why a device's capacities do not do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shortfall {
    /// The device has no such capacity.
    Missing { name: String },
    /// The amount, rounded as the policy asks, is none that can be had.
    Policy { name: String, amount: Quantity },
    /// Too little is left.
    Short {
        name: String,
        amount: Quantity,
        left: Quantity,
    },
}

/// What a request takes of a capacity; `None`: it names no amount.
fn amount(requested: Option<Quantity>, capacity: &Capacity) -> Quantity {
    let policy = capacity.policy.as_deref();
    let Some(requested) = requested else {
        return policy.and_then(|p| p.default).unwrap_or(capacity.value);
    };
    match policy {
        Some(CapacityPolicy {
            range: Some((min, _, step)),
            ..
        }) => raise(requested, *min, *step),
        Some(CapacityPolicy { values, .. }) if !values.is_empty() => values
            .iter()
            .copied()
            .find(|v| requested <= *v)
            .unwrap_or(requested),
        _ => requested,
    }
}

/// At least `min`, and a whole number of steps above it.
fn raise(requested: Quantity, min: Quantity, step: Option<Quantity>) -> Quantity {
    if requested <= min {
        return min;
    }
    let Some(step) = step.map(Quantity::value).filter(|s| *s > 0) else {
        return requested;
    };
    let (floor, added) = (min.value(), requested.value().saturating_sub(min.value()));
    let steps = added / step + i64::from(added % step != 0);
    let sum = floor.saturating_add(steps.saturating_mul(step));
    Quantity::new(sum, Format::BinarySi)
}

fn breaks(amount: Quantity, policy: &CapacityPolicy) -> bool {
    if policy.default == Some(amount) {
        return false;
    }
    if let Some((min, max, step)) = &policy.range {
        if amount < *min || max.is_some_and(|max| amount > max) {
            return true;
        }
        let step = step.map(Quantity::value).filter(|s| *s > 0);
        return step.is_some_and(|s| amount.value().saturating_sub(min.value()) % s != 0);
    }
    !policy.values.is_empty() && !policy.values.contains(&amount)
}

/// What a share of the device for this request takes of every capacity.
pub(crate) fn share(requests: &Amounts, device: &Device) -> Amounts {
    let each = device.capacity.iter();
    each.map(|(name, c)| (name.to_string(), amount(requests.get(&**name).copied(), c)))
        .collect()
}

/// Checks that the device has what the request asks for: all of it for a device that is given as a
/// whole, what `taken` leaves for a shareable one.
pub(crate) fn check(
    requests: &Amounts,
    device: &Device,
    taken: impl Fn(&str) -> Quantity,
) -> Result<(), Shortfall> {
    if let Some(name) = requests.keys().find(|n| device.capacity.get(n).is_none()) {
        return Err(Shortfall::Missing { name: name.clone() });
    }
    for (name, capacity) in device.capacity.iter() {
        let requested = requests.get(&**name).copied();
        if !device.shareable && requested.is_none() {
            continue;
        }
        let amount = amount(requested, capacity);
        if capacity
            .policy
            .as_deref()
            .is_some_and(|p| breaks(amount, p))
        {
            let name = name.to_string();
            return Err(Shortfall::Policy { name, amount });
        }
        let used = if device.shareable {
            taken(name)
        } else {
            Quantity::ZERO
        };
        let left = capacity.value.checked_sub(used).unwrap_or(Quantity::ZERO);
        if amount > left {
            let name = name.to_string();
            return Err(Shortfall::Short { name, amount, left });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    /// Checklist 66.
    #[test]
    fn amounts_are_rounded_up_as_the_policy_asks() {
        let range = |min, max: Option<&str>, step: Option<&str>| Capacity {
            value: q("8"),
            policy: Some(Box::new(CapacityPolicy {
                default: Some(q("2")),
                values: Vec::new(),
                range: Some((q(min), max.map(q), step.map(q))),
            })),
        };
        let values = Capacity {
            value: q("8"),
            policy: Some(Box::new(CapacityPolicy {
                default: Some(q("2")),
                values: vec![q("2"), q("4")],
                range: None,
            })),
        };
        let plain = Capacity {
            value: q("8"),
            policy: None,
        };
        for (capacity, requested, expected) in [
            (&plain, None, "8"),
            (&plain, Some("3"), "3"),
            (&range("2", Some("6"), Some("2")), None, "2"),
            (&range("2", Some("6"), Some("2")), Some("1"), "2"),
            (&range("2", Some("6"), Some("2")), Some("3"), "4"),
            (&range("2", Some("6"), Some("2")), Some("3500m"), "4"),
            (&range("2", Some("6"), None), Some("3500m"), "3500m"),
            (&values, Some("1"), "2"),
            (&values, Some("3"), "4"),
            (&values, Some("5"), "5"),
            (&values, None, "2"),
        ] {
            assert_eq!(
                amount(requested.map(q), capacity),
                q(expected),
                "{requested:?}"
            );
        }
        assert!(breaks(q("5"), values.policy.as_deref().unwrap()));
        let range = range("2", Some("6"), Some("2"));
        assert!(breaks(q("8"), range.policy.as_deref().unwrap()));
        assert!(!breaks(q("6"), range.policy.as_deref().unwrap()));
    }
}
