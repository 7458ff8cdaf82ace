//! Tests of what only the embedded engine does.
