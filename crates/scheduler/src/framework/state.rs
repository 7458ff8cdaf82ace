//! What plugins remember between the points of one cycle.

use std::any::{Any, TypeId};
use std::fmt;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::PointTimes;

/// What a plugin keeps in the cycle state; anything that can be cloned.
pub trait StateData: Any + Send + Sync {
    /// A copy for an imagined course of events (preemption).
    fn boxed(&self) -> Box<dyn StateData>;
    /// As any.
    fn as_any(&self) -> &dyn Any;
    /// As any, for changes.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Any + Clone + Send + Sync> StateData for T {
    fn boxed(&self) -> Box<dyn StateData> {
        Box::new(self.clone())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// State of one scheduling attempt: one value per type.
#[derive(Default)]
pub struct CycleState {
    // A handful of entries: looking through them is quicker than hashing.
    data: Vec<(TypeId, Box<dyn StateData>)>,
    pub(crate) skipped_filters: u64,
    pub(crate) skipped_scores: u64,
    pub(crate) times: PointTimes,
    // A future is not Sync, but the state is shared with the plugins of the binding cycle.
    effects: Mutex<Vec<BoxFuture<'static, ()>>>,
    undoing: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl CycleState {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps a value; an older one of the same type is dropped.
    pub fn put<T: Any + Clone + Send + Sync>(&mut self, value: T) {
        let id = TypeId::of::<T>();
        self.data.retain(|(other, _)| *other != id);
        self.data.push((id, Box::new(value)));
    }

    /// The value of this type.
    pub fn get<T: Any + Clone + Send + Sync>(&self) -> Option<&T> {
        let id = TypeId::of::<T>();
        let (_, data) = self.data.iter().find(|(other, _)| *other == id)?;
        (**data).as_any().downcast_ref()
    }

    /// The value of this type, for changes.
    pub fn get_mut<T: Any + Clone + Send + Sync>(&mut self) -> Option<&mut T> {
        let id = TypeId::of::<T>();
        let (_, data) = self.data.iter_mut().find(|(other, _)| *other == id)?;
        (**data).as_any_mut().downcast_mut()
    }

    /// Something to be done outside the cycle, which itself must not wait: an API call, say. The
    /// scheduler runs it beside the cycles, within a deadline.
    pub fn defer(&self, effect: BoxFuture<'static, ()>) {
        self.effects.lock().push(effect);
    }

    /// Takes the deferred effects out.
    pub fn take_effects(&mut self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(self.effects.get_mut())
    }

    /// As [`Self::defer`], for what takes back something that was written for the pod: the pod is not tried again before it is
    /// done, because the next attempt would take for the pod's what is about to go.
    pub fn defer_undoing(&self, effect: BoxFuture<'static, ()>) {
        self.undoing.lock().push(effect);
    }

    /// Takes out what is to be done before the pod is tried again.
    pub fn take_undoing(&mut self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(self.undoing.get_mut())
    }

    /// A copy for an imagined course of events; effects stay with the original.
    #[must_use]
    pub fn imagine(&self) -> Self {
        Self {
            data: self
                .data
                .iter()
                .map(|(id, data)| (*id, (**data).boxed()))
                .collect(),
            skipped_filters: self.skipped_filters,
            skipped_scores: self.skipped_scores,
            times: PointTimes::default(),
            effects: Mutex::default(),
            undoing: Mutex::default(),
        }
    }
}

impl fmt::Debug for CycleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CycleState")
            .field("values", &self.data.len())
            .finish_non_exhaustive()
    }
}
