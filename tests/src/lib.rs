//! Whole-cluster tests with real parts.
