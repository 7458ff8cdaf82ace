//! Example device plugin.
fn main() {}
