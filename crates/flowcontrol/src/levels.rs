//! Seats and queues of the priority levels: a state machine without clock or I/O.
//!
//! Each limited level owns a number of seats. Some of them it lends: another level may take a seat
//! beyond its own while every level keeps, free or taken, the seats it does not lend. A lender gets
//! its seats back as their requests end, ahead of those who borrow. Inside a level, queues take
//! turns by start-time fair queuing.

use std::collections::{BTreeMap, VecDeque};

use super::shards::deal;

/// What a level with limits does with requests it has no seat for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
    Reject,
    Queue {
        queues: usize,
        hand: usize,
        /// Requests per queue.
        length: usize,
    },
}

/// The limits of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Seats of its own.
    pub(crate) nominal: usize,
    /// Seats it never lends.
    pub(crate) min: usize,
    /// Seats it may hold, borrowed ones included.
    pub(crate) max: usize,
    pub(crate) response: Response,
}

/// What a level is configured to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LevelSpec {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// None is exempt.
    pub(crate) limits: Option<Limits>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
    Cancelled,
}

impl Refusal {
    /// As metrics name it.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Refusal::ConcurrencyLimit => "concurrency-limit",
            Refusal::QueueFull => "queue-full",
            Refusal::TimeOut => "time-out",
            Refusal::Cancelled => "cancelled",
        }
    }
}

/// A request that has a place in a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeatedRequest {
    pub(crate) level: String,
    pub(crate) id: u64,
    queue: Option<usize>,
    /// Seats.
    width: usize,
}

/// What became of an arriving request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Arrival {
    Run(SeatedRequest),
    Wait(SeatedRequest),
    Refused(Refusal),
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) id: u64,
    width: usize,
    start: f64,
    /// The flow, for dumps.
    pub(crate) flow: String,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) executing: usize,
    pub(crate) seats: usize,
    finish: f64,
}

impl Queue {
    pub(crate) fn next_start(&self) -> f64 {
        self.waiting
            .front()
            .map_or(self.finish, |first| first.start)
    }
}

/// One level at work.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) spec: LevelSpec,
    /// It is configured no more and goes when it is idle.
    pub(crate) leaving: bool,
    pub(crate) queues: Vec<Queue>,
    pub(crate) executing: usize,
    pub(crate) seats: usize,
    virtual_time: f64,
    pub(crate) dispatched: u64,
    pub(crate) rejected: u64,
    pub(crate) timed_out: u64,
    pub(crate) cancelled: u64,
}

impl Level {
    fn new(spec: LevelSpec) -> Self {
        Self {
            queues: Vec::new(),
            leaving: false,
            executing: 0,
            seats: 0,
            virtual_time: 0.0,
            dispatched: 0,
            rejected: 0,
            timed_out: 0,
            cancelled: 0,
            spec,
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    fn min(&self) -> usize {
        self.spec.limits.map_or(0, |limits| limits.min)
    }

    /// What counts of the level against the total: its seats, and those nobody may borrow.
    fn reserved(&self) -> usize {
        match self.spec.limits {
            Some(limits) if !self.leaving => self.seats.max(limits.min),
            Some(_) => self.seats,
            None => 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.executing == 0 && self.waiting() == 0
    }

    /// The queue whose turn it is.
    fn turn(&self) -> Option<usize> {
        let heads = self.queues.iter().enumerate();
        heads
            .filter_map(|(index, queue)| queue.waiting.front().map(|first| (index, first.start)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(index, _)| index)
    }

    fn start(&mut self, queue: Option<usize>, width: usize) {
        self.executing += 1;
        self.seats += width;
        self.dispatched += 1;
        if let Some(queue) = queue.and_then(|index| self.queues.get_mut(index)) {
            queue.executing += 1;
            queue.seats += width;
        }
    }
}

/// All levels.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    levels: BTreeMap<String, Level>,
    /// Seats of all limited levels together.
    total: usize,
    next: u64,
}

impl Levels {
    /// Puts a configuration in force. Requests that run or wait keep their places.
    pub(crate) fn configure(&mut self, specs: &[LevelSpec]) -> Vec<SeatedRequest> {
        for level in self.levels.values_mut() {
            level.leaving = true;
        }
        for spec in specs {
            let level = self
                .levels
                .entry(spec.name.clone())
                .or_insert_with(|| Level::new(spec.clone()));
            level.leaving = false;
            level.spec = spec.clone();
            if let Some(Limits {
                response: Response::Queue { queues, .. },
                ..
            }) = spec.limits
                && level.queues.len() < queues
            {
                level.queues.resize_with(queues, Queue::default);
            }
        }
        self.levels
            .retain(|_, level| !level.leaving || !level.is_idle());
        self.total = self
            .levels
            .values()
            .filter(|level| !level.leaving)
            .filter_map(|level| level.spec.limits)
            .map(|limits| limits.nominal)
            .sum();
        self.dispatch()
    }

    /// The levels, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Level> {
        self.levels.values()
    }

    pub(crate) fn level(&self, name: &str) -> Option<&Level> {
        self.levels.get(name)
    }

    /// A request of a flow comes in. Unknown levels take anything.
    pub(crate) fn arrive(&mut self, level: &str, flow: &str, hash: u64, width: usize) -> Arrival {
        let id = self.next;
        self.next += 1;
        let mut place = SeatedRequest {
            level: level.to_owned(),
            id,
            queue: None,
            width: width.max(1),
        };
        let Some(held) = self.levels.get(level) else {
            return Arrival::Run(place);
        };
        let Some(limits) = held.spec.limits else {
            if let Some(level) = self.levels.get_mut(level) {
                level.start(None, place.width);
            }
            return Arrival::Run(place);
        };
        place.width = place.width.min(limits.max.max(1));
        let free = held.waiting() == 0 && self.may_start(held, place.width);
        let Some(held) = self.levels.get_mut(level) else {
            return Arrival::Run(place);
        };
        let Response::Queue {
            queues,
            hand,
            length,
        } = limits.response
        else {
            if free {
                held.start(None, place.width);
                return Arrival::Run(place);
            }
            held.rejected += 1;
            return Arrival::Refused(Refusal::ConcurrencyLimit);
        };
        let chosen = deal(hash, queues.min(held.queues.len()), hand)
            .into_iter()
            .min_by_key(|index| {
                let queue = &held.queues[*index];
                let waiting: usize = queue.waiting.iter().map(|one| one.width).sum();
                waiting + queue.seats
            });
        let Some(index) = chosen else {
            held.rejected += 1;
            return Arrival::Refused(Refusal::QueueFull);
        };
        place.queue = Some(index);
        let now = held.virtual_time;
        let queue = &mut held.queues[index];
        let start = queue.finish.max(now);
        if !free && queue.waiting.len() >= length {
            held.rejected += 1;
            return Arrival::Refused(Refusal::QueueFull);
        }
        queue.finish = start + place.width as f64;
        if free {
            held.virtual_time = start;
            held.start(Some(index), place.width);
            return Arrival::Run(place);
        }
        queue.waiting.push_back(Waiting {
            id,
            width: place.width,
            start,
            flow: flow.to_owned(),
        });
        Arrival::Wait(place)
    }

    /// A running request has ended. Answers the requests that may run now.
    pub(crate) fn finish(&mut self, place: &SeatedRequest) -> Vec<SeatedRequest> {
        if let Some(level) = self.levels.get_mut(&place.level) {
            level.executing = level.executing.saturating_sub(1);
            level.seats = level.seats.saturating_sub(place.width);
            if let Some(queue) = place.queue.and_then(|index| level.queues.get_mut(index)) {
                queue.executing = queue.executing.saturating_sub(1);
                queue.seats = queue.seats.saturating_sub(place.width);
            }
            if level.leaving && level.is_idle() {
                self.levels.remove(&place.level);
            }
        }
        self.dispatch()
    }

    /// A waiting request gives up; false when it waits no more, because it runs.
    pub(crate) fn leave(&mut self, place: &SeatedRequest, why: Refusal) -> bool {
        let Some(level) = self.levels.get_mut(&place.level) else {
            return false;
        };
        let Some(queue) = place.queue.and_then(|index| level.queues.get_mut(index)) else {
            return false;
        };
        let Some(at) = queue.waiting.iter().position(|one| one.id == place.id) else {
            return false;
        };
        queue.waiting.remove(at);
        match why {
            Refusal::TimeOut => level.timed_out += 1,
            _ => level.cancelled += 1,
        }
        true
    }

    fn may_start(&self, level: &Level, width: usize) -> bool {
        let Some(limits) = level.spec.limits else {
            return true;
        };
        let wanted = level.seats + width;
        if wanted <= level.min() {
            return true;
        }
        if wanted > limits.max && level.seats > 0 {
            return false;
        }
        let others: usize = self
            .levels
            .values()
            .filter(|other| other.spec.name != level.spec.name)
            .map(Level::reserved)
            .sum();
        if others + wanted > self.total.max(1) {
            return false;
        }
        // who borrows comes after those who want what is their own
        wanted <= limits.nominal
            || !self.levels.values().any(|other| {
                other.spec.name != level.spec.name
                    && other.waiting() > 0
                    && other
                        .spec
                        .limits
                        .is_some_and(|limits| other.seats < limits.nominal)
            })
    }

    fn dispatch(&mut self) -> Vec<SeatedRequest> {
        let mut started = Vec::new();
        while let Some(place) = self.dispatch_one() {
            started.push(place);
        }
        started
    }

    fn dispatch_one(&mut self) -> Option<SeatedRequest> {
        let mut levels: Vec<(&Level, f64)> = self
            .levels
            .values()
            .filter(|level| level.waiting() > 0)
            .map(|level| {
                let nominal = level.spec.limits.map_or(1, |limits| limits.nominal.max(1));
                (level, level.seats as f64 / nominal as f64)
            })
            .collect();
        levels.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (name, index, width) = levels.into_iter().find_map(|(level, _)| {
            let index = level.turn()?;
            let width = level.queues[index].waiting.front()?.width;
            self.may_start(level, width)
                .then(|| (level.spec.name.clone(), index, width))
        })?;
        let level = self.levels.get_mut(&name)?;
        let first = level.queues[index].waiting.pop_front()?;
        level.virtual_time = level.virtual_time.max(first.start);
        level.start(Some(index), width);
        Some(SeatedRequest {
            level: name,
            id: first.id,
            queue: Some(index),
            width,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn level(name: &str, nominal: usize, min: usize, max: usize, response: Response) -> LevelSpec {
        LevelSpec {
            name: name.to_owned(),
            uid: String::new(),
            limits: Some(Limits {
                nominal,
                min,
                max,
                response,
            }),
        }
    }

    const QUEUE: Response = Response::Queue {
        queues: 8,
        hand: 2,
        length: 4,
    };

    fn run(arrival: Arrival) -> SeatedRequest {
        match arrival {
            Arrival::Run(place) => place,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_a_seat_a_level_rejects_or_queues() {
        let mut levels = Levels::default();
        levels.configure(&[
            level("r", 1, 1, 1, Response::Reject),
            level("q", 1, 1, 1, QUEUE),
        ]);
        let first = run(levels.arrive("r", "f", 1, 1));
        let second = levels.arrive("r", "f", 1, 1);
        assert_eq!(second, Arrival::Refused(Refusal::ConcurrencyLimit));
        levels.finish(&first);
        run(levels.arrive("r", "f", 1, 1));
        let first = run(levels.arrive("q", "f", 1, 1));
        let mut waiting = 0;
        loop {
            match levels.arrive("q", "f", 1, 1) {
                Arrival::Wait(_) => waiting += 1,
                Arrival::Refused(refusal) => {
                    assert_eq!(refusal, Refusal::QueueFull);
                    break;
                }
                Arrival::Run(_) => panic!("there was no seat"),
            }
        }
        // the flow's own two queues, four each
        assert_eq!(waiting, 8);
        assert_eq!(levels.finish(&first).len(), 1);
    }

    #[test]
    fn flows_take_turns() {
        let mut levels = Levels::default();
        let spec = level(
            "q",
            1,
            1,
            1,
            Response::Queue {
                queues: 64,
                hand: 1,
                length: 50,
            },
        );
        levels.configure(&[spec]);
        let mut running = run(levels.arrive("q", "greedy", 3, 1));
        for _ in 0..20 {
            levels.arrive("q", "greedy", 3, 1);
        }
        let Arrival::Wait(modest) = levels.arrive("q", "modest", 9, 1) else {
            panic!("there was no seat");
        };
        let mut turns = 0;
        loop {
            running = levels.finish(&running).remove(0);
            turns += 1;
            if running.id == modest.id {
                break;
            }
        }
        assert!(turns <= 3, "{turns}");
    }

    #[test]
    fn seats_are_lent_and_given_back() {
        let mut levels = Levels::default();
        levels.configure(&[level("a", 4, 2, 8, QUEUE), level("b", 4, 2, 8, QUEUE)]);
        let mut a: Vec<SeatedRequest> =
            (0..6).map(|i| run(levels.arrive("a", "f", i, 1))).collect();
        // two of b's are never lent
        assert!(matches!(levels.arrive("a", "f", 7, 1), Arrival::Wait(_)));
        run(levels.arrive("b", "f", 1, 1));
        run(levels.arrive("b", "f", 2, 1));
        let Arrival::Wait(third) = levels.arrive("b", "f", 3, 1) else {
            panic!("a holds what b lent");
        };
        // b comes first
        let started = levels.finish(&a.remove(0));
        assert_eq!(started, [third]);
    }

    #[test]
    fn a_level_that_is_gone_ends_its_requests_in_peace() {
        let mut levels = Levels::default();
        levels.configure(&[level("a", 1, 1, 1, QUEUE)]);
        let first = run(levels.arrive("a", "f", 1, 1));
        let Arrival::Wait(second) = levels.arrive("a", "f", 1, 1) else {
            panic!("there was no seat");
        };
        levels.configure(&[level("b", 1, 1, 1, QUEUE)]);
        assert!(levels.level("a").is_some_and(|level| level.leaving));
        let started = levels.finish(&first);
        assert_eq!(started, std::slice::from_ref(&second));
        levels.finish(&second);
        assert!(levels.level("a").is_none());
    }

    proptest! {
        /// Nobody is above its limit, the total is kept, lenders keep what they do not lend, and
        /// nobody waits while there is a seat.
        #[test]
        fn seats_are_never_oversold(steps in prop::collection::vec((0..3usize, 0..40u64, 1..4usize, any::<bool>()), 1..200)) {
            let names = ["a", "b", "c"];
            let mut levels = Levels::default();
            let specs = [
                level("a", 5, 5, 16, QUEUE),
                level("b", 6, 2, 16, QUEUE),
                level("c", 5, 0, 8, Response::Reject),
            ];
            levels.configure(&specs);
            let mut running: Vec<SeatedRequest> = Vec::new();
            let mut waiting: Vec<SeatedRequest> = Vec::new();
            for (which, hash, width, ends) in steps {
                let started = if ends && !running.is_empty() {
                    let place = running.remove(hash as usize % running.len());
                    levels.finish(&place)
                } else {
                    match levels.arrive(names[which], "f", hash, width) {
                        Arrival::Run(place) => running.push(place),
                        Arrival::Wait(place) => waiting.push(place),
                        Arrival::Refused(_) => {}
                    }
                    Vec::new()
                };
                for place in started {
                    prop_assert!(waiting.iter().any(|one| one.id == place.id));
                    waiting.retain(|one| one.id != place.id);
                    running.push(place);
                }
                let reserved: usize = levels.all().map(Level::reserved).sum();
                prop_assert!(reserved <= 16, "{reserved}");
                for level in levels.all() {
                    let limits = level.spec.limits.unwrap();
                    prop_assert!(level.seats <= limits.max);
                    let held: usize = running.iter().filter(|p| p.level == level.spec.name).map(|p| p.width).sum();
                    prop_assert_eq!(held, level.seats);
                }
            }
            for place in std::mem::take(&mut waiting) {
                if levels.leave(&place, Refusal::TimeOut) {
                    continue;
                }
                prop_assert!(false, "a waiting request was lost");
            }
            for place in running {
                levels.finish(&place);
            }
            prop_assert_eq!(levels.all().map(|level| level.seats).sum::<usize>(), 0);
        }
    }
}
