//! What a plugin answers.

use std::borrow::Cow;

use davit_allocator::Refusal;

use serde::{Deserialize, Serialize};

/// The kind of an answer, with the meaning of the Kubernetes scheduling framework.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Code {
    /// Go on.
    #[default]
    Success,
    /// Something went wrong inside; the pod is tried again after a back-off.
    Error,
    /// Not now; removing other pods might help.
    Unschedulable,
    /// Not now; removing other pods does not help.
    UnschedulableAndUnresolvable,
    /// Permit: wait.
    Wait,
    /// The plugin has nothing to do with this pod.
    Skip,
    /// Refused while something else, which the plugin waits for, is on its way; the pod is tried
    /// again without back-off when it comes.
    Pending,
}

impl Code {
    /// As in kube-scheduler's logs and metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::Error => "Error",
            Self::Unschedulable => "Unschedulable",
            Self::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
            Self::Wait => "Wait",
            Self::Skip => "Skip",
            Self::Pending => "Pending",
        }
    }
}

/// A reason in words; equal reasons are counted together in messages.
pub type Reason = Cow<'static, str>;

/// By how much a node falls short of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortage {
    /// The resource.
    pub resource: String,
    /// What the pod asks for.
    pub requested: i64,
    /// What the node's pods hold.
    pub used: i64,
    /// What the node has in all.
    pub capacity: i64,
}

/// Why a claim of the pod gets no volume on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRefusal {
    /// The claim's name.
    pub claim: String,
    /// Why, in words.
    pub why: String,
}

/// A plugin's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The kind of answer.
    pub code: Code,
    /// Which plugin gave it; filled in by the framework.
    pub plugin: &'static str,
    /// Why, in words.
    pub reasons: Vec<Reason>,
    /// The numbers behind the reasons, where there are some.
    pub shortages: Vec<Shortage>,
    /// What rules out the node's devices, one by one.
    pub devices: Option<Box<Refusal>>,
    /// What rules out the pod's claims, one by one.
    pub volumes: Vec<VolumeRefusal>,
}

impl Status {
    /// Go on.
    pub const fn success() -> Self {
        Self {
            code: Code::Success,
            plugin: "",
            reasons: Vec::new(),
            shortages: Vec::new(),
            devices: None,
            volumes: Vec::new(),
        }
    }

    /// Nothing to do.
    pub fn skip() -> Self {
        Self {
            code: Code::Skip,
            ..Self::success()
        }
    }

    /// An answer with one reason.
    pub fn new(code: Code, reason: impl Into<Reason>) -> Self {
        Self {
            code,
            reasons: vec![reason.into()],
            ..Self::success()
        }
    }

    /// Refused; removing other pods might help.
    pub fn unschedulable(reason: impl Into<Reason>) -> Self {
        Self::new(Code::Unschedulable, reason)
    }

    /// Refused; removing other pods does not help.
    pub fn unresolvable(reason: impl Into<Reason>) -> Self {
        Self::new(Code::UnschedulableAndUnresolvable, reason)
    }

    /// Something went wrong inside.
    pub fn error(reason: impl Into<Reason>) -> Self {
        Self::new(Code::Error, reason)
    }

    /// The same answer with the plugin's name.
    #[must_use]
    pub fn by(mut self, plugin: &'static str) -> Self {
        self.plugin = plugin;
        self
    }

    /// Whether to go on.
    pub fn is_success(&self) -> bool {
        self.code == Code::Success
    }

    /// Whether to leave the plugin out.
    pub fn is_skip(&self) -> bool {
        self.code == Code::Skip
    }

    /// Whether the pod was refused (rather than something having gone wrong).
    pub fn is_rejected(&self) -> bool {
        matches!(
            self.code,
            Code::Unschedulable | Code::UnschedulableAndUnresolvable | Code::Pending
        )
    }

    /// All reasons in one line.
    pub fn message(&self) -> String {
        self.reasons.join(", ")
    }
}
