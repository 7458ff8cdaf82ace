//! How long the extension points of one attempt took.

use std::time::{Duration, Instant};

use super::Code;

/// An extension point, as metrics name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ExtensionPoint {
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl ExtensionPoint {
    /// For the label `extension_point`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::PreFilter => "PreFilter",
            Self::Filter => "Filter",
            Self::PostFilter => "PostFilter",
            Self::PreScore => "PreScore",
            Self::Score => "Score",
            Self::Reserve => "Reserve",
            Self::Permit => "Permit",
            Self::PreBind => "PreBind",
            Self::Bind => "Bind",
            Self::PostBind => "PostBind",
        }
    }
}

/// All plugins of one point, once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PointTime {
    pub(crate) point: ExtensionPoint,
    pub(crate) code: Code,
    pub(crate) took: Duration,
}

/// The points of an attempt in the order in which they ended.
#[derive(Debug, Default)]
pub(crate) struct PointTimes(Vec<PointTime>);

impl PointTimes {
    /// A point has ended that began then.
    pub(crate) fn note(&mut self, point: ExtensionPoint, code: Code, began: Instant) {
        let took = began.elapsed();
        self.0.push(PointTime { point, code, took });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PointTime> {
        self.0.iter()
    }
}
