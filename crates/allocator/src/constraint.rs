//! Constraints between the devices of a claim, as devices are added and taken away again.

use std::collections::BTreeSet;

use crate::device::{Attribute, Device};
use crate::plan::{Need, PlannedConstraint};

/// The values of an attribute: one for a scalar, several for a list.
type Values = BTreeSet<Attribute>;

/// A constraint with the devices that have been added so far.
pub(crate) struct Tracked<'a> {
    pub(crate) planned: &'a PlannedConstraint,
    lists: bool,
    /// Match: what all devices so far have in common. Distinct: what each one has.
    stack: Vec<Values>,
}

impl<'a> Tracked<'a> {
    pub(crate) fn new(planned: &'a PlannedConstraint, lists: bool) -> Self {
        Self {
            planned,
            lists,
            stack: Vec::new(),
        }
    }

    /// Adds a device unless that breaks the constraint.
    pub(crate) fn add(&mut self, need: &Need, driver: &str, device: &Device) -> bool {
        if !self.planned.covers(need) {
            return true;
        }
        let Some(attribute) = device.attribute(driver, &self.planned.attribute) else {
            return false;
        };
        let values = values(attribute, self.lists);
        if self.stack.is_empty() {
            // The first one always fits, except where an empty intersection is known at once.
            if self.lists && values.is_empty() {
                return false;
            }
            self.stack.push(values);
            return true;
        }
        if values.is_empty() {
            return false;
        }
        if self.planned.distinct {
            if self.stack.iter().any(|s| !s.is_disjoint(&values)) {
                return false;
            }
            self.stack.push(values);
            return true;
        }
        let common = self.stack.last().map(|s| s & &values).unwrap_or_default();
        if common.is_empty() {
            return false;
        }
        self.stack.push(common);
        true
    }

    /// Takes the device that was added last away.
    pub(crate) fn remove(&mut self, need: &Need) {
        if self.planned.covers(need) {
            self.stack.pop();
        }
    }

    /// What a further device would have to have, in words; empty before the first one.
    pub(crate) fn wanted(&self) -> String {
        let last = self.stack.last().into_iter().flatten();
        last.map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Whether devices have either the same value or none in common.
pub(crate) fn is_scalar(attribute: &Attribute) -> bool {
    matches!(
        attribute,
        Attribute::Bool(_) | Attribute::Int(_) | Attribute::String(_) | Attribute::Version(_)
    )
}

/// The values of an attribute; none if its type is unknown (or a list while lists are off).
pub(crate) fn values(attribute: &Attribute, lists: bool) -> Values {
    match attribute {
        Attribute::Unknown => Values::new(),
        Attribute::Bools(v) if lists => v.iter().map(|v| Attribute::Bool(*v)).collect(),
        Attribute::Ints(v) if lists => v.iter().map(|v| Attribute::Int(*v)).collect(),
        Attribute::Strings(v) if lists => v.iter().map(|v| Attribute::String(v.clone())).collect(),
        Attribute::Versions(v) if lists => {
            v.iter().map(|v| Attribute::Version(v.clone())).collect()
        }
        Attribute::Bools(_)
        | Attribute::Ints(_)
        | Attribute::Strings(_)
        | Attribute::Versions(_) => Values::new(),
        scalar => Values::from([scalar.clone()]),
    }
}
