//! Which mutating plugins run a second time.
//!
//! The first webhook or policy that changes the object asks for a second round. In it all built-in
//! plugins run again, and of the webhooks and policies those that allow it and have not seen the
//! change. <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#reinvocation-policy>

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use serde_json::Value;

/// The state of one write.
#[derive(Debug, Default)]
pub struct Reinvocation(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    second: bool,
    of: HashMap<&'static str, Rounds>,
}

/// What one kind of plugin (the webhooks, the policies) has run.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    ran: BTreeSet<String>,
    again: BTreeSet<String>,
    output: Option<Value>,
}

impl Reinvocation {
    /// Whether the second round is running.
    pub(crate) fn is_second_round(&self) -> bool {
        self.0.lock().second
    }

    /// Asks for a second round, after the object was changed.
    pub(crate) fn want_second_round(&self) {
        self.0.lock().wanted = true;
    }

    /// Begins the second round if one is wanted.
    pub(super) fn begin_second_round(&self) -> bool {
        let mut state = self.0.lock();
        let begins = state.wanted && !state.second;
        state.second |= begins;
        begins
    }

    /// The rounds of one kind of plugin.
    pub(crate) fn of<R>(&self, plugin: &'static str, work: impl FnOnce(&mut Rounds) -> R) -> R {
        work(self.0.lock().of.entry(plugin).or_default())
    }
}

impl Rounds {
    /// Everything that ran so far and allows it runs again.
    pub(crate) fn repeat_previous(&mut self) {
        self.again.append(&mut self.ran);
    }

    /// Something that allows to be repeated has run.
    pub(crate) fn ran(&mut self, id: &str) {
        self.ran.insert(id.to_owned());
    }

    /// Whether something runs in the second round.
    pub(crate) fn repeats(&self, id: &str) -> bool {
        self.again.contains(id)
    }

    /// Keeps the object as it was left.
    pub(crate) fn leave(&mut self, object: Option<&Value>) {
        self.output = object.cloned();
    }

    /// Whether others have changed the object since.
    pub(crate) fn is_changed(&self, object: Option<&Value>) -> bool {
        self.output.as_ref() != object
    }
}
