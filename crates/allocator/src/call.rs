//! What is asked for one node.

use std::fmt;

use crate::node::NodeView;
use crate::usage::Usage;

/// Asked now and then during a search; true ends it.
pub type Stop<'a> = &'a dyn Fn() -> bool;

/// What the allocator cannot know by itself.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The node.
    pub node: NodeView<'a>,
    /// What is to be treated as free although it is held (pods that would be preempted).
    pub released: Option<&'a Usage>,
    /// Whether to give up.
    pub stop: Stop<'a>,
    /// A fresh UUID for a share of a device.
    pub share_id: &'a dyn Fn() -> String,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}
