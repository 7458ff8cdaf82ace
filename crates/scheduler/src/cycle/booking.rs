//! What follows the choice of a node: Reserve and its undoing, and Permit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::framework::{Code, CycleState, ExtensionPoint, Profile, Status};
use crate::pod::PodInfo;

/// What the Permit plugins say of a decision.
pub(crate) enum PermitAnswer {
    /// Go on.
    Granted,
    /// Plugins that have the pod wait, each for so long at most, and why.
    Waits(Vec<(&'static str, Duration)>, String),
    /// One refuses it.
    Refused(Status),
}

/// The pod as it counts on the node.
pub(crate) fn on_node(
    profile: &Profile,
    state: &CycleState,
    pod: &Arc<PodInfo>,
    node: &str,
) -> Arc<PodInfo> {
    let plugins = profile.points.reserve.iter();
    plugins.fold(pod.clone(), |pod, plugin| {
        let counted = plugin.on_node(state, &pod, node);
        counted.map_or(pod, Arc::new)
    })
}

/// Has all plugins book what the pod needs on the node.
///
/// # Errors
/// The answer of the first that does not. Then [`unreserve`] has to follow.
pub(crate) fn reserve(
    profile: &Profile,
    state: &mut CycleState,
    pod: &PodInfo,
    node: &str,
) -> Result<(), Status> {
    let began = Instant::now();
    let mut reserved = Ok(());
    for plugin in &profile.points.reserve {
        let status = plugin.reserve(state, pod, node).by(plugin.name());
        if !status.is_success() {
            reserved = Err(status);
            break;
        }
    }
    let code = reserved.as_ref().err().map_or(Code::Success, |s| s.code);
    state.times.note(ExtensionPoint::Reserve, code, began);
    reserved
}

/// Has all plugins take back what they have booked, in reverse order.
pub(crate) fn unreserve(profile: &Profile, state: &mut CycleState, pod: &PodInfo, node: &str) {
    for plugin in profile.points.reserve.iter().rev() {
        plugin.unreserve(state, pod, node);
    }
}

/// Asks all plugins whether the decision may be carried out.
pub(crate) fn permit(
    profile: &Profile,
    state: &mut CycleState,
    pod: &PodInfo,
    node: &str,
) -> PermitAnswer {
    let began = Instant::now();
    let answer = ask_permit(profile, state, pod, node);
    let code = match &answer {
        PermitAnswer::Granted => Code::Success,
        PermitAnswer::Waits(..) => Code::Wait,
        PermitAnswer::Refused(status) => status.code,
    };
    state.times.note(ExtensionPoint::Permit, code, began);
    answer
}

fn ask_permit(
    profile: &Profile,
    state: &mut CycleState,
    pod: &PodInfo,
    node: &str,
) -> PermitAnswer {
    let (mut waits, mut reasons) = (Vec::new(), Vec::new());
    for plugin in &profile.points.permit {
        let (status, patience) = plugin.permit(state, pod, node);
        match status.code {
            Code::Success | Code::Skip => {}
            Code::Wait => {
                waits.push((plugin.name(), patience));
                reasons.extend(status.reasons);
            }
            _ => return PermitAnswer::Refused(status.by(plugin.name())),
        }
    }
    if waits.is_empty() {
        PermitAnswer::Granted
    } else {
        PermitAnswer::Waits(waits, reasons.join(", "))
    }
}
