//! How jobs are counted: completion indexes, and the policies that end a job early.

pub mod indexes;
pub mod pod_failure_policy;
pub mod success_policy;
