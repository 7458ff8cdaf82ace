//! The embedded container runtime.
