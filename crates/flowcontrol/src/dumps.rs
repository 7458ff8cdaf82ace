//! `/debug/api_priority_and_fairness/`: what the levels, queues and requests are at, as
//! comma-separated lines.

use std::fmt::Write as _;

use super::FlowControl;

impl FlowControl {
    /// One line a level.
    pub fn dump_levels(&self) -> String {
        let mut out = String::from(
            "PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, \
             ExecutingRequests, DispatchedRequests, RejectedRequests, TimedoutRequests, \
             CancelledRequests\n",
        );
        let state = self.state.lock();
        for level in state.levels.all() {
            let active = level
                .queues
                .iter()
                .filter(|queue| !queue.waiting.is_empty())
                .count();
            let idle = level.executing == 0 && level.waiting() == 0;
            // writing to a String cannot fail
            let _ = writeln!(
                out,
                "{}, {active}, {idle}, {}, {}, {}, {}, {}, {}, {}",
                level.spec.name,
                level.leaving,
                level.waiting(),
                level.executing,
                level.dispatched,
                level.rejected,
                level.timed_out,
                level.cancelled,
            );
        }
        out
    }

    /// One line a queue.
    pub fn dump_queues(&self) -> String {
        let mut out = String::from(
            "PriorityLevelName, Index, PendingRequests, ExecutingRequests, SeatsInUse, \
             NextDispatchR, InitialSeatsSum, MaxSeatsSum, TotalWorkSum\n",
        );
        let state = self.state.lock();
        for level in state.levels.all() {
            for (index, queue) in level.queues.iter().enumerate() {
                let waiting = queue.waiting.len();
                let _ = writeln!(
                    out,
                    "{}, {index}, {waiting}, {}, {}, {:.8}ss, {waiting}, {waiting}, {waiting}ss",
                    level.spec.name,
                    queue.executing,
                    queue.seats,
                    queue.next_start(),
                );
            }
        }
        out
    }

    /// One line a waiting request; with `details` also who asks for what.
    pub fn dump_requests(&self, details: bool) -> String {
        let mut out = String::from(
            "PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, \
             FlowDistingsher, ArriveTime, InitialSeats, FinalSeats, AdditionalLatency, StartTime",
        );
        if details {
            out.push_str(
                ", UserName, Verb, APIPath, Namespace, Name, APIVersion, Resource, SubResource",
            );
        }
        out.push('\n');
        let state = self.state.lock();
        for level in state.levels.all() {
            for (index, queue) in level.queues.iter().enumerate() {
                for (at, one) in queue.waiting.iter().enumerate() {
                    let Some(shown) = state.shown.get(&one.id) else {
                        continue;
                    };
                    let arrived = shown.arrived.strftime("%Y-%m-%dT%H:%M:%S%.9fZ");
                    let _ = write!(
                        out,
                        "{}, {}, {index}, {at}, {}, {arrived}, 1, 0, 0s, <none>",
                        level.spec.name, shown.schema, one.flow,
                    );
                    if details {
                        let info = &shown.info;
                        let _ = write!(
                            out,
                            ", {}, {}, {}, {}, {}, {}, {}, {}",
                            shown.user,
                            info.verb,
                            info.path,
                            info.namespace.as_deref().unwrap_or_default(),
                            info.name,
                            info.version,
                            info.resource,
                            info.subresource,
                        );
                    }
                    out.push('\n');
                }
            }
        }
        out
    }
}
