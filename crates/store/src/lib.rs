//! The store: revisions, compare-and-swap, watch, compaction.
