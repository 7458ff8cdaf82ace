//! How an attempt for a group ended, in the words of kube-scheduler.

/// How an attempt for a group ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupVerdict {
    /// It goes.
    Fits,
    /// It will, when pods that are in its way are gone.
    WaitsForPreemption,
    /// It cannot go.
    Unschedulable,
    /// It fits into none of so many placements.
    NoPlacement(usize),
    /// It cannot go, for this reason of a plugin.
    Refused(String),
    /// Something went wrong.
    Failed(String),
    /// Nothing is decided before extenders have been asked.
    Asks,
}

impl GroupVerdict {
    /// For the label `result` of metrics.
    pub(crate) fn result(&self) -> &'static str {
        match self {
            Self::Fits => "scheduled",
            Self::WaitsForPreemption => "waiting_on_preemption",
            Self::Unschedulable | Self::NoPlacement(_) | Self::Refused(_) => "unschedulable",
            Self::Failed(_) => "error",
            Self::Asks => "undecided",
        }
    }

    /// The message of the group's condition.
    pub fn message(&self) -> String {
        match self {
            Self::Fits | Self::Asks => String::new(),
            Self::WaitsForPreemption => refusal(PREEMPTION),
            Self::Unschedulable => UNSCHEDULABLE.to_owned(),
            Self::NoPlacement(tried) => format!(
                "0/{tried} placements are available, first placement status: {UNSCHEDULABLE}"
            ),
            Self::Refused(why) => refusal(why),
            Self::Failed(why) => why.clone(),
        }
    }
}

const UNSCHEDULABLE: &str = "pod group is unschedulable";
pub(super) const PREEMPTION: &str = "pod group is waiting for preemption to complete";

/// Why a pod for which there would be a node does not go.
pub(super) fn refusal(why: &str) -> String {
    if why.is_empty() {
        return UNSCHEDULABLE.to_owned();
    }
    format!("{UNSCHEDULABLE}, {why}")
}
