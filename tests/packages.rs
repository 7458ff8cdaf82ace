//! Packages of others on davit: what helm, cert-manager and metrics-server do on any cluster.
//!
//! The programs are built from their public modules (folders below `packages/`), their definitions and charts are read
//! from the same modules at test time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "packages/cert_manager.rs"]
mod cert_manager;
mod harness;
#[path = "packages/helm.rs"]
mod helm;
#[path = "packages/metrics_server.rs"]
mod metrics_server;
#[path = "packages/programs.rs"]
mod programs;
