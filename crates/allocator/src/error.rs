//! Why there is no answer.

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// Something is wrong with the claims or classes; other nodes will not do either.
    #[error("{0}")]
    Failed(String),
    /// Something is wrong with what this node sees.
    #[error("{0}")]
    Node(String),
    /// The time given was not enough.
    #[error("filter operation aborted: the allocation took longer than the filter timeout")]
    Interrupted,
}
