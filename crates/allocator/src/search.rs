//! The search: depth first over claims, requests and devices; the first full solution wins.
//!
//! What bounds it, beside the caller's [`Stop`](crate::Stop): after a number of steps devices that
//! are alike in everything the claims can see are tried once instead of each (a solution with one
//! of them is a solution with the other), and requests that no set of devices could satisfy end it
//! at once. Neither changes what is found, only how soon.

mod alike;

use std::collections::HashMap;
use std::sync::Arc;

use davit_api::quantity::Quantity;

use crate::MOST_RESULTS;
use crate::allocate::Allocator;
use crate::call::Call;
use crate::capacity::{self, Amounts};
use crate::constraint::Tracked;
use crate::device::{Device, Slice};
use crate::error::AllocateError;
use crate::plan::{Mode, Need, Plan};
use crate::pool::{PoolView, State};
use crate::selector::Compiled;
use crate::taint::{Effect, Taint};
use alike::Alike;

/// How many steps pass between two looks at the clock.
const STEPS_PER_LOOK: u64 = 64;
/// After so many steps it is worth asking whether there can be a solution at all.
const STEPS_BEFORE_DOUBT: u64 = 512;

/// A device among all that the node sees: pool, place in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceIndex {
    pub(crate) pool: usize,
    pub(crate) at: usize,
}

/// A device that was chosen.
#[derive(Debug)]
pub(crate) struct Chosen<'a> {
    pub(crate) need: &'a Need,
    pub(crate) place: usize,
    pub(crate) share: Option<(String, Amounts)>,
}

/// Why a branch ended other than by yes or no.
enum Halt {
    /// The claim would get more devices than a claim can have.
    TooMany,
    Error(AllocateError),
}

impl From<AllocateError> for Halt {
    fn from(error: AllocateError) -> Self {
        Self::Error(error)
    }
}

/// The next device to be found.
#[derive(Clone, Copy)]
struct Step {
    claim: usize,
    request: usize,
    /// Which alternative; fixed once one is being tried.
    alternative: Option<usize>,
    /// How many devices of the request have been found.
    found: usize,
}

pub(crate) struct Search<'a> {
    allocator: &'a Allocator,
    plan: &'a Plan,
    pub(crate) pools: &'a [Arc<PoolView>],
    call: Call<'a>,
    /// Devices of complete, valid pools, in the order in which they are tried.
    pub(crate) places: Vec<DeviceIndex>,
    /// Whether somebody else holds the device as a whole.
    held: Vec<bool>,
    /// For which claims of this call a device has been chosen as a whole.
    taken: Vec<Vec<usize>>,
    /// Selector outcomes by need and place: 0 unknown, 1 no, 2 yes.
    selectable: Vec<Vec<u8>>,
    /// The devices of needs that want all, by ordinal of the need.
    all: HashMap<usize, Vec<usize>>,
    constraints: Vec<Vec<Tracked<'a>>>,
    /// Counters taken in this attempt, by pool, set and name.
    counters: HashMap<(usize, &'a str, &'a str), Quantity>,
    /// Capacities given to shares in this attempt, by place, with the number of shares.
    shares: HashMap<usize, (usize, Amounts)>,
    pub(crate) results: Vec<Vec<Chosen<'a>>>,
    /// The alternative taken, by claim and request.
    pub(crate) selected: HashMap<(usize, usize), usize>,
    steps: u64,
    alike: Alike,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        allocator: &'a Allocator,
        plan: &'a Plan,
        pools: &'a [Arc<PoolView>],
        call: Call<'a>,
    ) -> Self {
        let mut places = Vec::new();
        let mut held = Vec::new();
        for (pool, view) in pools.iter().enumerate() {
            if view.state != State::Complete {
                continue;
            }
            for at in 0..view.devices.len() {
                let (slice, device) = view.device(at);
                places.push(DeviceIndex { pool, at });
                held.push(view.used(slice, &device.name).is_some_and(|used| {
                    // A device that was shared and is not shareable any more is in use.
                    let shareable = allocator.features.consumable_capacity && device.shareable;
                    used.exclusive > 0 || (used.shares > 0 && !shareable)
                }));
            }
        }
        let lists = allocator.features.list_attributes;
        let constraints = plan.claims.iter().map(|c| {
            let tracked = c.constraints.iter().map(|p| Tracked::new(p, lists));
            tracked.collect()
        });
        Self {
            allocator,
            plan,
            pools,
            call,
            taken: vec![Vec::new(); places.len()],
            selectable: vec![Vec::new(); plan.needs],
            all: HashMap::new(),
            constraints: constraints.collect(),
            counters: HashMap::new(),
            shares: HashMap::new(),
            results: plan.claims.iter().map(|_| Vec::new()).collect(),
            selected: HashMap::new(),
            steps: 0,
            alike: Alike::default(),
            places,
            held,
        }
    }

    /// Whether there is a solution; it is in `results` then.
    pub(crate) fn run(&mut self) -> Result<bool, AllocateError> {
        self.prepare()?;
        let first = Step {
            claim: 0,
            request: 0,
            alternative: None,
            found: 0,
        };
        match self.one(first, 0) {
            Ok(done) => Ok(done),
            Err(Halt::TooMany) => Ok(false),
            Err(Halt::Error(error)) => Err(error),
        }
    }

    /// Finds out what "all" means and whether the claims ask for more than a claim can have.
    fn prepare(&mut self) -> Result<(), AllocateError> {
        let plan = self.plan;
        for (c, claim) in plan.claims.iter().enumerate() {
            let mut least = 0usize;
            for request in &claim.requests {
                let mut fewest = usize::MAX;
                for need in &request.alternatives {
                    let count = match need.mode {
                        Mode::Exactly(count) => count,
                        Mode::All => self.find_all(c, need)?,
                    };
                    fewest = fewest.min(count);
                }
                least = least.saturating_add(fewest);
            }
            if least > MOST_RESULTS {
                return Err(AllocateError::Failed(format!(
                    "claim {}: number of requested devices {least} exceeds the claim limit of {MOST_RESULTS}",
                    claim.label
                )));
            }
        }
        Ok(())
    }

    fn find_all(&mut self, claim: usize, need: &'a Need) -> Result<usize, AllocateError> {
        let label = &self.plan.claims[claim].label;
        for pool in self.pools {
            let what = match pool.state {
                State::Complete => continue,
                State::Incomplete { .. } => "being updated",
                State::Invalid(_) => "invalid",
            };
            return Err(AllocateError::Failed(format!(
                "claim {label}, request {}: asks for all devices, but resource pool {} is currently {what}",
                need.name(),
                pool.id
            )));
        }
        let mut found = Vec::new();
        for place in 0..self.places.len() {
            if self.selects(claim, need, place)? && self.capacity(need, place).is_ok() {
                found.push(place);
            }
        }
        let count = found.len();
        self.all.insert(need.ordinal, found);
        Ok(count)
    }

    pub(crate) fn device(&self, place: usize) -> (&'a Slice, &'a Device) {
        let DeviceIndex { pool, at } = self.places[place];
        self.pools[pool].device(at)
    }

    fn driver(&self, place: usize) -> &'a str {
        &self.pools[self.places[place].pool].id.driver
    }

    fn shareable(&self, place: usize) -> bool {
        self.allocator.features.consumable_capacity && self.device(place).1.shareable
    }

    /// Whether a request cannot have the device because it is in use.
    fn in_use(&self, claim: usize, need: &Need, place: usize) -> bool {
        if need.admin {
            self.taken[place].contains(&claim)
        } else {
            self.held[place] || !self.taken[place].is_empty()
        }
    }

    fn selects(&mut self, claim: usize, need: &Need, place: usize) -> Result<bool, AllocateError> {
        let known = &mut self.selectable[need.ordinal];
        if known.is_empty() {
            known.resize(self.places.len(), 0);
        }
        match known[place] {
            0 => {}
            other => return Ok(other == 2),
        }
        let answer = self.evaluate(claim, need, place)?;
        self.selectable[need.ordinal][place] = if answer { 2 } else { 1 };
        Ok(answer)
    }

    /// Whether class, request and node selection allow the device for the request.
    fn evaluate(&self, claim: usize, need: &Need, place: usize) -> Result<bool, AllocateError> {
        let (slice, device) = self.device(place);
        if !self.allocator.features.binding_conditions && !device.binding_conditions.is_empty() {
            return Ok(false);
        }
        let class = || format!("class {}", need.class_name());
        let label = || format!("claim {}", self.plan.claims[claim].label);
        if !self.all_match(&need.class_selectors, place, class)?
            || !self.all_match(&need.selectors, place, label)?
        {
            return Ok(false);
        }
        if slice.per_device {
            let reach = device.reach.matches(self.call.node);
            return reach.map_err(|e| AllocateError::Failed(e.to_string()));
        }
        Ok(true)
    }

    fn all_match(
        &self,
        selectors: &[Arc<Compiled>],
        place: usize,
        whose: impl Fn() -> String,
    ) -> Result<bool, AllocateError> {
        let (driver, device) = (self.driver(place), self.device(place).1);
        for (i, selector) in selectors.iter().enumerate() {
            if let Some(fault) = selector.fault() {
                let whose = whose();
                return Err(AllocateError::Failed(format!(
                    "{whose}: selector #{i}: CEL compile error: {fault}"
                )));
            }
            let selectors = &self.allocator.selectors;
            match selectors.matches(selector, driver, device, self.call.stop) {
                None => return Err(AllocateError::Interrupted),
                Some(Ok(true)) => {}
                Some(Ok(false)) => return Ok(false),
                Some(Err(fault)) => {
                    let (whose, DeviceIndex { pool, at }) = (whose(), self.places[place]);
                    let id = self.pools[pool].device_id(at);
                    return Err(AllocateError::Failed(format!(
                        "{whose}: selector #{i} on device {id}: CEL runtime error: {fault}"
                    )));
                }
            }
        }
        Ok(true)
    }

    fn capacity(&self, need: &Need, place: usize) -> Result<(), capacity::Shortfall> {
        if !self.allocator.features.consumable_capacity {
            return Ok(());
        }
        let (slice, device) = self.device(place);
        let others = self.pools[self.places[place].pool].used(slice, &device.name);
        let mine = self.shares.get(&place);
        capacity::check(&need.capacity, device, |name| {
            let theirs = others.as_ref().and_then(|u| u.consumed.get(name).copied());
            let ours = mine.and_then(|(_, amounts)| amounts.get(name).copied());
            let theirs = theirs.unwrap_or(Quantity::ZERO);
            theirs
                .checked_add(ours.unwrap_or(Quantity::ZERO))
                .unwrap_or(theirs)
        })
    }

    /// Whether the time that the caller gave is up.
    pub(crate) fn is_late(&self) -> bool {
        (self.call.stop)()
    }

    fn look_at_clock(&mut self) -> Result<(), AllocateError> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_LOOK) && (self.call.stop)() {
            return Err(AllocateError::Interrupted);
        }
        Ok(())
    }

    /// Finds the device of `step` and all that come after it. `start` is the first place to try.
    fn one(&mut self, step: Step, start: usize) -> Result<bool, Halt> {
        self.look_at_clock()?;
        let plan = self.plan;
        let Some(claim) = plan.claims.get(step.claim) else {
            return Ok(true);
        };
        let Some(request) = claim.requests.get(step.request) else {
            let next = Step {
                claim: step.claim + 1,
                request: 0,
                alternative: None,
                found: 0,
            };
            return match self.one(next, 0) {
                // Other devices for this claim may leave the next one a smaller alternative.
                Err(Halt::TooMany) => Ok(false),
                other => other,
            };
        };
        if request.prioritized && step.alternative.is_none() {
            return self.alternatives(step, request.alternatives.len());
        }
        let need = &request.alternatives[step.alternative.unwrap_or(0)];
        let count = match need.mode {
            Mode::Exactly(count) => count,
            Mode::All => self.all.get(&need.ordinal).map_or(0, Vec::len),
        };
        if need.mode == Mode::All && count == 0 {
            return Ok(false);
        }
        if step.found >= count {
            let next = Step {
                request: step.request + 1,
                alternative: None,
                found: 0,
                ..step
            };
            return self.one(next, 0);
        }
        if self.results[step.claim].len() + count - step.found > MOST_RESULTS {
            return Err(Halt::TooMany);
        }
        match need.mode {
            Mode::All => self.next_of_all(step, need),
            Mode::Exactly(_) => self.next_of_some(step, need, start),
        }
    }

    fn alternatives(&mut self, step: Step, count: usize) -> Result<bool, Halt> {
        let mut too_many = true;
        for alternative in 0..count {
            let step = Step {
                alternative: Some(alternative),
                ..step
            };
            match self.one(step, 0) {
                Err(Halt::TooMany) => {}
                Err(error) => return Err(error),
                Ok(false) => too_many = false,
                Ok(true) => {
                    self.selected
                        .insert((step.claim, step.request), alternative);
                    return Ok(true);
                }
            }
        }
        if too_many {
            Err(Halt::TooMany)
        } else {
            Ok(false)
        }
    }

    fn next_of_all(&mut self, step: Step, need: &'a Need) -> Result<bool, Halt> {
        let place = self.all[&need.ordinal][step.found];
        if !self.take(step.claim, need, place, true)? {
            return Ok(false);
        }
        let next = Step {
            found: step.found + 1,
            ..step
        };
        let outcome = self.one(next, 0);
        if !matches!(outcome, Ok(true)) {
            self.give_back(step.claim, need);
        }
        outcome
    }

    fn next_of_some(&mut self, step: Step, need: &'a Need, start: usize) -> Result<bool, Halt> {
        let next = Step {
            found: step.found + 1,
            ..step
        };
        let mut failed: Vec<alike::Signature> = Vec::new();
        for place in start..self.places.len() {
            if self.in_use(step.claim, need, place)
                || !self.selects(step.claim, need, place)?
                || self.capacity(need, place).is_err()
            {
                continue;
            }
            if !failed.is_empty()
                && let Some(signature) = self.signature(place)
                && failed.contains(&signature)
            {
                continue;
            }
            if !self.take(step.claim, need, place, false)? {
                continue;
            }
            match self.one(next, place + 1) {
                Ok(true) => return Ok(true),
                Ok(false) => self.give_back(step.claim, need),
                Err(halt) => {
                    self.give_back(step.claim, need);
                    return Err(halt);
                }
            }
            if self.steps > STEPS_BEFORE_DOUBT {
                if self.is_hopeless() {
                    return Ok(false);
                }
                failed.extend(self.signature(place));
            }
        }
        Ok(false)
    }

    /// Chooses a device for a need if nothing is against it. With `must` a constraint that is
    /// against it is an error.
    fn take(
        &mut self,
        claim: usize,
        need: &'a Need,
        place: usize,
        must: bool,
    ) -> Result<bool, AllocateError> {
        let (driver, device) = (self.driver(place), self.device(place).1);
        if self.in_use(claim, need, place) || self.capacity(need, place).is_err() {
            return Ok(false);
        }
        if !self.allocator.features.partitionable_devices && !device.consumes.is_empty() {
            return Ok(false);
        }
        let counts = self.takes_counters(place);
        if counts && self.short_counter(place).is_some() {
            return Ok(false);
        }
        if self.untolerated(need, device).is_some() {
            return Ok(false);
        }
        let constraints = &mut self.constraints[claim];
        for i in 0..constraints.len() {
            if constraints[i].add(need, driver, device) {
                continue;
            }
            for earlier in &mut constraints[..i] {
                earlier.remove(need);
            }
            if must {
                let DeviceIndex { pool, at } = self.places[place];
                return Err(AllocateError::Failed(format!(
                    "claim {}, request {}: cannot add device {} because a claim constraint would not be satisfied",
                    self.plan.claims[claim].label,
                    need.name(),
                    self.pools[pool].device_id(at)
                )));
            }
            return Ok(false);
        }
        if counts {
            self.count(place, true);
        }
        let share = if self.shareable(place) {
            let amounts = capacity::share(&need.capacity, device);
            let (number, sums) = self.shares.entry(place).or_default();
            *number += 1;
            for (name, amount) in &amounts {
                let sum = sums.entry(name.clone()).or_insert(Quantity::ZERO);
                *sum = sum.checked_add(*amount).unwrap_or(*sum);
            }
            Some((String::new(), amounts))
        } else {
            self.taken[place].push(claim);
            None
        };
        self.results[claim].push(Chosen { need, place, share });
        Ok(true)
    }

    /// Takes the choice that was made last for a claim back.
    fn give_back(&mut self, claim: usize, need: &'a Need) {
        let Some(Chosen { place, share, .. }) = self.results[claim].pop() else {
            return;
        };
        for constraint in &mut self.constraints[claim] {
            constraint.remove(need);
        }
        if let Some((_, amounts)) = share {
            let (number, sums) = self.shares.entry(place).or_default();
            *number = number.saturating_sub(1);
            let last = *number == 0;
            for (name, amount) in amounts {
                if let Some(sum) = sums.get_mut(&name) {
                    *sum = sum.checked_sub(amount).unwrap_or(*sum);
                }
            }
            if last {
                self.shares.remove(&place);
            }
        } else if let Some(at) = self.taken[place].iter().rposition(|c| *c == claim) {
            self.taken[place].remove(at);
        }
        if self.takes_counters(place) {
            self.count(place, false);
        }
    }

    /// Whether choosing the device now takes from counters: a shareable device that is in use
    /// already has taken its part.
    fn takes_counters(&self, place: usize) -> bool {
        let (slice, device) = self.device(place);
        if device.consumes.is_empty() {
            return false;
        }
        let used = self.pools[self.places[place].pool].used(slice, &device.name);
        let shared = used.is_some_and(|u| u.shares > 0) || self.shares.contains_key(&place);
        !(self.shareable(place) && shared)
    }

    fn count(&mut self, place: usize, up: bool) {
        let pool = self.places[place].pool;
        for consumption in &self.device(place).1.consumes {
            for (name, amount) in &consumption.counters {
                let key = (pool, consumption.set.as_str(), name.as_str());
                let sum = self.counters.entry(key).or_insert(Quantity::ZERO);
                let changed = if up {
                    sum.checked_add(*amount)
                } else {
                    sum.checked_sub(*amount)
                };
                *sum = changed.unwrap_or(*sum);
            }
        }
    }

    /// The first counter that has too little left for the device: set, counter, need, rest.
    fn short_counter(&self, place: usize) -> Option<(&'a str, &'a str, Quantity, Quantity)> {
        let pool = self.places[place].pool;
        let left = self.pools[pool].left();
        for consumption in &self.device(place).1.consumes {
            for (name, amount) in &consumption.counters {
                let key = (pool, consumption.set.as_str(), name.as_str());
                let rest = left.get(&consumption.set).and_then(|s| s.get(name));
                let rest = rest.copied().unwrap_or(Quantity::ZERO);
                let mine = self.counters.get(&key).copied();
                let rest = mine.map_or(rest, |m| rest.checked_sub(m).unwrap_or(rest));
                if *amount > rest {
                    return Some((&consumption.set, name, *amount, rest));
                }
            }
        }
        None
    }

    /// The first taint that the need does not tolerate.
    fn untolerated(&self, need: &Need, device: &'a Device) -> Option<&'a Taint> {
        if !self.allocator.features.device_taints {
            return None;
        }
        device
            .taints
            .iter()
            .filter(|t| t.effect != Effect::None)
            .find(|t| !need.tolerations.iter().any(|x| x.tolerates(t)))
    }
}

mod facts;
