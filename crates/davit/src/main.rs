//! davit: a Kubernetes-compatible cluster for devices in one binary.
fn main() {}
