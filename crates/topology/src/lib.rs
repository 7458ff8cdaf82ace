//! Device, CPU and memory placement on one node: pure decisions.
