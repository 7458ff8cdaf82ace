//! The scheduler: queue, snapshot, framework and plugins.
