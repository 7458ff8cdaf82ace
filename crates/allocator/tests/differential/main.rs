//! Random selectors and claims, answered by this crate and by Kubernetes' own Go code
//! (k8s.io/dynamic-resource-allocation, built into `tests/peers/go/draoracle`): the answers agree.
//!
//! The seed is printed with every case that differs. By hand, with more cases or one seed again:
//! `DAVIT_DIFFERENTIAL_CASES=100000 DAVIT_DIFFERENTIAL_SEED=7 cargo test -p davit-allocator --test differential`

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod claims;
mod expressions;
mod oracle;
mod seeded;
