//! Devices that are alike in everything the claims can see, and requests without hope.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::MOST_RESULTS;
use crate::constraint::values;
use crate::device::Attribute;
use crate::plan::{Mode, Need, PlannedClaim};

use super::Search;

/// Everything the claims can see of a device. Equal ones can stand in for each other.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Signature(Arc<Looks>);

#[derive(Debug, PartialEq)]
struct Looks {
    held: bool,
    /// By need: selected, tolerated, capacity suffices.
    needs: Vec<(bool, bool, bool)>,
    /// By constraint.
    attributes: Vec<Option<Attribute>>,
    /// The pool and what is taken from its counters.
    counters: Option<(usize, Vec<crate::device::Consumption>)>,
}

/// What has been found out so far.
#[derive(Debug, Default)]
pub(super) struct Alike {
    signatures: HashMap<usize, Option<Signature>>,
    hopeless: Option<bool>,
}

impl<'a> Search<'a> {
    /// The device's signature; `None` if it cannot stand in for another one: it is shareable, is
    /// chosen already, or a selector fails on it.
    pub(super) fn signature(&mut self, place: usize) -> Option<Signature> {
        if self.shareable(place) || !self.taken[place].is_empty() {
            return None;
        }
        if let Some(known) = self.alike.signatures.get(&place) {
            return known.clone();
        }
        let signature = self.looks(place).map(|l| Signature(Arc::new(l)));
        self.alike.signatures.insert(place, signature.clone());
        signature
    }

    fn looks(&mut self, place: usize) -> Option<Looks> {
        let plan = self.plan;
        let device = self.device(place).1;
        let driver = self.driver(place);
        let mut needs = Vec::new();
        let mut attributes = Vec::new();
        for (c, claim) in plan.claims.iter().enumerate() {
            for need in claim.requests.iter().flat_map(|r| &r.alternatives) {
                let selected = self.selects(c, need, place).ok()?;
                let tolerated = self.untolerated(need, device).is_none();
                needs.push((selected, tolerated, self.capacity(need, place).is_ok()));
            }
            for constraint in &claim.constraints {
                attributes.push(device.attribute(driver, &constraint.attribute).cloned());
            }
        }
        let pool = self.places[place].pool;
        Some(Looks {
            held: self.held[place],
            needs,
            attributes,
            counters: (!device.consumes.is_empty()).then(|| (pool, device.consumes.clone())),
        })
    }

    /// Whether some request cannot be satisfied even if everything that is free now were for it
    /// alone. Found out once.
    pub(super) fn is_hopeless(&mut self) -> bool {
        if let Some(known) = self.alike.hopeless {
            return known;
        }
        let answer = self.find_hopeless();
        self.alike.hopeless = Some(answer);
        answer
    }

    fn find_hopeless(&mut self) -> bool {
        let plan = self.plan;
        for (c, claim) in plan.claims.iter().enumerate() {
            for request in &claim.requests {
                let mut any = false;
                for need in &request.alternatives {
                    match self.may_fit(c, claim, need) {
                        // Something may fail: the search itself has to run into it.
                        None => return false,
                        Some(fits) => any |= fits,
                    }
                }
                if !any {
                    return true;
                }
            }
        }
        false
    }

    /// Whether enough devices are there for one need, all others forgotten.
    fn may_fit(&mut self, c: usize, claim: &'a PlannedClaim, need: &'a Need) -> Option<bool> {
        let Mode::Exactly(count) = need.mode else {
            // all devices against a constraint are an error, which the search has to run into
            let bound = claim.constraints.iter().any(|k| k.covers(need));
            return (!bound).then_some(true);
        };
        let lists = self.allocator.features.list_attributes;
        let mut usable = Vec::new();
        for place in 0..self.places.len() {
            if self.held[place] && !need.admin || !self.selects(c, need, place).ok()? {
                continue;
            }
            let device = self.device(place).1;
            let shareable = self.shareable(place);
            if self.untolerated(need, device).is_some() {
                continue;
            }
            if !shareable {
                // What this attempt has taken so far may be given back.
                let left = self.pools[self.places[place].pool].left();
                let short = device.consumes.iter().any(|consumption| {
                    let set = left.get(&consumption.set);
                    let rest = |name| set.and_then(|s| s.get(name));
                    let mut all = consumption.counters.iter();
                    all.any(|(name, amount)| rest(name).is_none_or(|r| amount > r))
                });
                if short || self.capacity(need, place).is_err() {
                    continue;
                }
            }
            // A shareable device may be chosen several times, but only by several needs.
            usable.push(place);
        }
        if usable.len() < count.min(MOST_RESULTS) {
            return Some(false);
        }
        for constraint in claim.constraints.iter().filter(|k| k.covers(need)) {
            let mut groups: BTreeMap<Attribute, usize> = BTreeMap::new();
            for &place in &usable {
                let (driver, device) = (self.driver(place), self.device(place).1);
                let attribute = device.attribute(driver, &constraint.attribute);
                for value in attribute.map(|a| values(a, lists)).into_iter().flatten() {
                    *groups.entry(value).or_default() += 1;
                }
            }
            let most = groups.values().copied().max().unwrap_or(0);
            // One device alone may have a value of an unknown type.
            let fits = if constraint.distinct {
                lists || groups.len() >= count
            } else {
                most >= count
            };
            if count > 1 && !fits {
                return Some(false);
            }
        }
        Some(true)
    }
}
